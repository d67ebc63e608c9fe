//! A wrapper of mlockall: what the program locks is its own memory, not the engine's.
//!
//! The engine reserves much more than it uses, and the kernel would fill all of it. So pages are locked as they come in
//! (MCL_ONFAULT), whatever the program asked for, and the engine's own are let go again.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use uswap_sys::private_memory;

use crate::real::{Real, Wrapper};
use crate::start::RENDEZVOUS;

static REAL: Real = Real::new(c"mlockall");

/// Looks libc's function up: a library's constructor may wait for a thread that calls it.
pub(crate) fn prepare() {
    let _ = REAL.get();
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 1] {
    [REAL.wrapper()]
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
