//! Threads of the program: where libc keeps what it writes to in a forked child.
//!
//! After a fork of a program with threads, libc goes through the control blocks of all of them, ended ones included, before
//! any handler of ours can run. They lie at the top of the threads' stacks, which are adopted like other memory; so each
//! control block is noted when its thread is made, and never swapped.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::*};

use uswap_sys::private_memory;

/// `struct pthread` of glibc is 2304 bytes in 2.36; room to grow.
const CONTROL_BLOCK_BYTES: usize = 4096;
/// Thread-local storage lies below; libc's own comes first.
const STORAGE_BYTES: usize = 1024;

/// Notes the control block of `thread`, which in glibc is its address.
pub(crate) fn note_control_block(thread: libc::pthread_t) {
    let block = thread as usize;
    let start = (block - STORAGE_BYTES) & !4095;
    let end = (block + CONTROL_BLOCK_BYTES).next_multiple_of(4096);
    if private_memory::next_gap(start, end).is_some() {
        let _ = private_memory::note(start, end);
    }
}

type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;

static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// As libc's.
///
/// # Safety
/// As for pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let mut real = REAL.load(Relaxed);
    if real.is_null() {
        real = crate::start::real(c"pthread_create");
        if real.is_null() {
            return libc::EAGAIN;
        }
        REAL.store(real, Relaxed);
    }
    // SAFETY: the symbol is libc's function of this signature.
    let real = unsafe { std::mem::transmute::<*mut c_void, Create>(real) };
    // SAFETY: the caller's promise.
    let result = unsafe { real(thread, attributes, start, argument) };
    if result == 0 && crate::start::RENDEZVOUS.get().is_some() {
        // SAFETY: pthread_create has written it.
        note_control_block(unsafe { *thread });
    }
    result
}
