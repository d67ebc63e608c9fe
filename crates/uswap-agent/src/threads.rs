//! A wrapper of pthread_create: the engine is told where the kernel writes when the new thread ends.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use uswap_engine::control_blocks;

use crate::real::Real;

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

/// Looked up in the constructor: the loader's lock may be held by a thread that runs the constructor of a library and waits
/// there for a thread that makes another one.
static REAL: Real = Real::new(c"pthread_create");
/// A thread has been made, or tried to be.
static ASKED_FOR: AtomicBool = AtomicBool::new(false);

/// For the constructor: looks libc's function up, and keeps the control block of this first thread, which another may join.
pub(crate) fn prepare() {
    let _ = REAL.get();
    // SAFETY: pthread_self only looks at its own thread.
    control_blocks::keep(unsafe { libc::pthread_self() } as usize);
}

/// Whether the program has never made a thread by libc. libc's own, which it makes for timers and the like, are not seen.
pub(crate) fn were_never_made() -> bool {
    !ASKED_FOR.load(Relaxed)
}

/// As libc's.
///
/// # Safety
/// As for pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    ASKED_FOR.store(true, Relaxed);
    // SAFETY: the symbol is libc's function of this signature, which every glibc has.
    let real = unsafe { std::mem::transmute::<*mut c_void, Create>(REAL.get()) };
    // SAFETY: the caller's promise.
    let result = unsafe { real(thread, attributes, start, argument) };
    if result == 0 {
        // SAFETY: libc has written the new thread's identity there, which is the address of its control block.
        control_blocks::keep(unsafe { thread.read() } as usize);
    }
    result
}
