//! A wrapper of madvise: what the program says about its memory and fork.
//!
//! All advice goes to libc as it is. What concerns fork is also posted to the engine, which uses the same advice for itself
//! and must not undo the program's.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::*};

use uswap_engine::fork_advice::{self, Advice};

use crate::start::{POST, RENDEZVOUS};

type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up libc's function. Not done on the first call: allocators call madvise while they hold their locks, and the
/// loader, which looks things up, allocates while it holds its own.
pub(crate) fn prepare() {
    REAL.store(crate::start::real(c"madvise"), Release);
}

/// As libc's, and tells the engine what concerns fork.
///
/// # Safety
/// As for madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    let real = REAL.load(Acquire);
    let result = if real.is_null() {
        // Before the agent has started.
        // SAFETY: the caller's promise; libc's function is this system call.
        unsafe { libc::syscall(libc::SYS_madvise, address, len, advice) as c_int }
    } else {
        // SAFETY: the symbol is libc's function of this signature.
        let real = unsafe { std::mem::transmute::<*mut c_void, Madvise>(real) };
        // SAFETY: the caller's promise.
        unsafe { real(address, len, advice) }
    };
    let posted = match advice {
        libc::MADV_DONTFORK => Advice::DontFork,
        libc::MADV_DOFORK => Advice::DoFork,
        libc::MADV_WIPEONFORK => Advice::WipeOnFork,
        _ => return result,
    };
    // SAFETY: errno is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    // With ENOMEM, part of the range is not mapped; the rest has been advised.
    if RENDEZVOUS.get().is_some() && (result == 0 || errno == libc::ENOMEM) {
        while !fork_advice::post(posted, address as usize, len) && !POST.inert.load(Acquire) {
            POST.ring();
            // SAFETY: the thread sleeps for a moment; nothing of its own is read or written but the time on its stack.
            unsafe { libc::usleep(200) };
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    result
}
