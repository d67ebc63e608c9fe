//! Functions of libc behind the wrappers of the same names.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// A function of libc. To look it up takes the loader's lock, so that is done once; and in the constructor where a wrapper may
/// be called by somebody who has a lock that the loader's holder waits for.
pub(crate) struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Real {
    /// Where the address stands, for wrappers that go there by a jump.
    pub const ADDRESS: usize = std::mem::offset_of!(Real, address);

    pub const fn new(name: &'static CStr) -> Real {
        Real { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Its address, looked up if it is not known; null if libc has no such function.
    pub fn get(&self) -> *mut c_void {
        let known = self.known();
        if !known.is_null() {
            return known;
        }
        // SAFETY: dlsym only reads the name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Release);
        found
    }

    /// Its wrapper, which goes on to it.
    pub fn wrapper(&self) -> Wrapper {
        Wrapper { name: self.name, next: Some(self.known()) }
    }

    /// Its address if it has been looked up, or null.
    pub fn known(&self) -> *mut c_void {
        self.address.load(Acquire)
    }
}

/// A wrapper of this library's, visible by its name.
#[derive(Clone)]
pub(crate) struct Wrapper {
    pub name: &'static CStr,
    /// The function that it goes on to, null if there is none; `None`: to the kernel.
    pub next: Option<*mut c_void>,
}

impl Wrapper {
    /// `name` ends with a zero byte.
    pub fn named(name: &'static str, next: &AtomicPtr<c_void>) -> Wrapper {
        let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
        Wrapper { name, next: Some(next.load(Relaxed)) }
    }
}
