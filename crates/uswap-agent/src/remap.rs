//! A wrapper of mremap: whether the program leaves old ranges mapped, and what is refused because of us: several mappings
//! at once ([`remap_several`](crate::remap_several)), and one of which a part is adopted.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use uswap_engine::host::notices;

use crate::real::{Real, Wrapper};
use crate::remap_several::{self, Move};

type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;

static REAL: Real = Real::new(c"mremap");

/// How often a refused mremap is tried again.
const TRIES: u32 = 3;

/// Looks up libc's function. Not done on the first call: allocators call it while they hold their locks, and the loader,
/// which looks things up, allocates while it holds its own.
pub(crate) fn prepare() {
    let _ = REAL.get();
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 1] {
    [REAL.wrapper()]
}

/// As libc's, whose last argument is there only with `MREMAP_FIXED` or `MREMAP_DONTUNMAP`: a caller that leaves it out leaves
/// a register as it was.
///
/// # Safety
/// As for mremap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    place: *mut c_void,
) -> *mut c_void {
    let real = REAL.known();
    if real.is_null() {
        // Before the agent has started.
        // SAFETY: the caller's promise; libc's function is this system call.
        return unsafe { libc::syscall(libc::SYS_mremap, address, old_len, new_len, flags, place) as *mut c_void };
    }
    // SAFETY: the symbol is libc's function of this signature.
    let real = unsafe { std::mem::transmute::<*mut c_void, Mremap>(real) };
    let one = |address: *mut c_void, old_len: usize, new_len: usize, place: *mut c_void| {
        let mut tries = 0;
        loop {
            notices().giving_way.give_way();
            let _posted = (flags & libc::MREMAP_DONTUNMAP != 0).then(|| notices().left_mapped.post(address as usize));
            // SAFETY: the caller's promise.
            let moved = unsafe { real(address, old_len, new_len, flags, place) };
            // SAFETY: libc gives each thread a number of its own.
            let is_fault = moved == libc::MAP_FAILED && unsafe { *libc::__errno_location() } == libc::EFAULT;
            if !is_fault || tries == TRIES || !crate::start::POST.ask_for_whole_mappings() {
                return moved;
            }
            tries += 1;
        }
    };
    let mut old_len = old_len;
    if let Some(len) = remap_several::made_shorter(address as usize, old_len, new_len, flags, place as usize) {
        // SAFETY: the caller's promise; this is the first half of what is asked for.
        if unsafe { real(address, old_len, len, 0, null_mut()) } == libc::MAP_FAILED {
            return libc::MAP_FAILED;
        }
        old_len = len;
    }
    // SAFETY: errno is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    let several = Move::new(address as usize, old_len, new_len, flags, place as usize);
    if let Some(several) = several.filter(|several| !several.is_of_one_mapping()) {
        let part = |part: Move| one(part.from as *mut c_void, part.len, part.len, part.to as *mut c_void);
        if let Some(moved) = several.by_mapping(part) {
            if moved != libc::MAP_FAILED {
                // SAFETY: as above.
                unsafe { *libc::__errno_location() = errno };
            }
            return moved;
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    one(address, old_len, new_len, place)
}
