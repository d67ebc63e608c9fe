//! Wrappers of vmsplice and setsockopt: the program gives pages of its memory to a pipe, or is about to give some to a
//! socket. The engine is told before it happens.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use uswap_engine::page_references;

use crate::real::Real;

/// As libc's.
///
/// # Safety
/// As for vmsplice(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(fd: c_int, pieces: *const libc::iovec, count: usize, flags: c_uint) -> isize {
    static REAL: Real = Real::new(c"vmsplice");
    type Vmsplice = unsafe extern "C" fn(c_int, *const libc::iovec, usize, c_uint) -> isize;
    page_references::note();
    // SAFETY: the symbol is libc's function of this signature, which every glibc has.
    let real = unsafe { std::mem::transmute::<*mut c_void, Vmsplice>(REAL.get()) };
    // SAFETY: the caller's promise.
    unsafe { real(fd, pieces, count, flags) }
}

/// As libc's.
///
/// # Safety
/// As for setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    // Without this option, sends with MSG_ZEROCOPY are plain ones.
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY) {
        page_references::note();
    }
    // SAFETY: the caller's promise; libc's function is this system call, and sets errno as it does.
    unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, value, len) as c_int }
}
