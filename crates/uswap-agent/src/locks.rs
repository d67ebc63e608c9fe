//! Wrappers of mlockall, mlock and mlock2: what the program locks is its own memory, not the engine's, and does not wait for itself.
//!
//! The engine reserves much more than it uses, and the kernel would fill all of it. So pages are locked as they come in
//! (MCL_ONFAULT), whatever the program asked for, and the engine's own are let go again.
//!
//! A mremap that makes locked memory longer and moves it fills what is new before it reports that anything has moved, and until then
//! nothing can be filled: it would wait for ever. What is locked as it comes in is not filled by it. So memory that has been locked, and
//! is in memory by that, is marked so.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use uswap_sys::private_memory;

use crate::forks::keep_errno;
use crate::real::{Real, Wrapper};
use crate::start::RENDEZVOUS;

static REAL: Real = Real::new(c"mlockall");

/// Looks libc's function up: a library's constructor may wait for a thread that calls it.
pub(crate) fn prepare() {
    let _ = REAL.get();
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 3] {
    [REAL.wrapper(), Wrapper { name: c"mlock", next: None }, Wrapper { name: c"mlock2", next: None }]
}

/// As libc's, but pages that are not in memory are locked only when they are touched.
///
/// # Safety
/// As for mlockall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    type Mlockall = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: the symbol is libc's function of this signature, which every glibc has.
    let real = unsafe { std::mem::transmute::<*mut c_void, Mlockall>(REAL.get()) };
    if RENDEZVOUS.get().is_none() {
        // SAFETY: the caller's promise.
        return unsafe { real(flags) };
    }
    // SAFETY: as above.
    let result = unsafe { real(flags | libc::MCL_ONFAULT) };
    if result == 0 {
        private_memory::unlock_all();
    }
    result
}

/// What is added to memory between `start` and `start + len`, which has just been locked, is locked when it comes in. Leaves errno alone.
pub(crate) fn lock_later_parts_on_fault(start: *const c_void, len: usize) {
    if RENDEZVOUS.get().is_some() {
        keep_errno(|| {
            // SAFETY: the memory is locked already; nothing of it changes. Refused, it stays as it is.
            unsafe { libc::syscall(libc::SYS_mlock2, start, len, libc::MLOCK_ONFAULT) };
        });
    }
}

/// As libc's, but what is added to this memory by mremap is locked only when it is touched.
///
/// # Safety
/// As for mlock(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(start: *const c_void, len: usize) -> c_int {
    // SAFETY: the caller's promise; libc's function is this system call.
    let result = unsafe { libc::syscall(libc::SYS_mlock, start, len) };
    if result == 0 {
        lock_later_parts_on_fault(start, len);
    }
    result as c_int
}

/// As libc's, with the same exception.
///
/// # Safety
/// As for mlock2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(start: *const c_void, len: usize, flags: c_uint) -> c_int {
    // SAFETY: the caller's promise; libc's function is this system call.
    let result = unsafe { libc::syscall(libc::SYS_mlock2, start, len, flags) };
    if result == 0 && flags == 0 {
        lock_later_parts_on_fault(start, len);
    }
    result as c_int
}
