//! Wrappers of the functions by which libc starts a shell: it does so inside, with the program's environment as it is.
//!
//! They are no more than a jump to libc's own after the environment has been looked at: a thread may be cancelled in
//! system(3), and no frame of ours must be in the way when its stack is unwound.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};

use crate::exec::refresh_environment;
use crate::real::{Real, Wrapper};

/// As libc's.
///
/// # Safety
/// As for system(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    naked_asm!("push rdi", "call {before}", "pop rdi", "jmp rax", before = sym before_system)
}

/// As libc's.
///
/// # Safety
/// As for popen(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    naked_asm!(
        "push rdi", "push rsi", "sub rsp, 8", "call {before}", "add rsp, 8", "pop rsi", "pop rdi", "jmp rax",
        before = sym before_popen
    )
}

static SYSTEM: Real = Real::new(c"system");
static POPEN: Real = Real::new(c"popen");

/// Looks libc's functions up: a library's constructor may wait for a thread that calls them.
pub(crate) fn prepare() {
    let _ = (SYSTEM.get(), POPEN.get());
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 2] {
    [SYSTEM.wrapper(), POPEN.wrapper()]
}

/// Returns libc's function.
extern "C" fn before_system() -> *mut c_void {
    refresh_environment();
    SYSTEM.get()
}

/// As above.
extern "C" fn before_popen() -> *mut c_void {
    refresh_environment();
    POPEN.get()
}
