//! Wrappers of shmat and shmdt: a shared segment that takes the place of other memory (SHM_REMAP), and one that can be swapped
//! ([`named_memory`]).
//!
//! The kernel reports nothing of what it unmaps then: the books would still have what was swapped out there, and hand it to what
//! is mapped in its place later. So the segment is attached elsewhere, and moved to its place by mremap, which is reported.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use rustix::mm::{MapFlags, ProtFlags};
use uswap_sys::{PAGE_SIZE, placement};

use crate::advice::is_of_the_engine;
use crate::kernel;
use crate::named_memory;
use crate::real::{Real, Wrapper};
use crate::remap::mremap;

/// What segments of huge pages are to be aligned to. There are none of a gibibyte in place of other memory.
const HUGE_PAGE: usize = 2 << 20;

/// As libc's.
///
/// # Safety
/// As for shmat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    match place(address as usize, flags) {
        // SAFETY: the caller's promise.
        Some(place) if crate::forks::is_member() => unsafe { attach_over(id, place, flags) },
        // SAFETY: as above.
        _ => unsafe { attach_known(id, address as usize, flags) },
    }
}

/// Attaches a segment; where segments are swapped, its server knows of it.
///
/// # Safety
/// As for shmat(2), and it takes the place of nothing.
unsafe fn attach_known(id: c_int, address: usize, flags: c_int) -> *mut c_void {
    // SAFETY: the caller's promise.
    let attached = unsafe { attach(id, address, flags) };
    let is_asked_for = attached != libc::MAP_FAILED && named_memory::are_asked_for() && !is_of_the_engine();
    if !is_asked_for || named_memory::may_be_used(attached) {
        return attached;
    }
    detach(attached as usize);
    libc::MAP_FAILED
}

/// As libc's.
///
/// # Safety
/// As for shmdt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(address: *const c_void) -> c_int {
    // SAFETY: errno is this thread's own, here and below.
    let errno = unsafe { *libc::__errno_location() };
    // What the kernel has attached there goes by it: a process that may not replace it may have others that have been replaced before.
    // SAFETY: the caller's promise.
    let answer = unsafe { detach_by_kernel(address) };
    // SAFETY: as above.
    let has_nothing = answer != 0 && unsafe { *libc::__errno_location() } == libc::EINVAL;
    if has_nothing && !is_of_the_engine() && named_memory::detach(address as usize) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        return 0;
    }
    answer
}

/// # Safety
/// As for shmdt(2).
unsafe fn detach_by_kernel(address: *const c_void) -> c_int {
    type Shmdt = unsafe extern "C" fn(*const c_void) -> c_int;
    // SAFETY: null, or a function of this signature.
    match unsafe { std::mem::transmute::<*mut c_void, Option<Shmdt>>(REAL_SHMDT.known()) } {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(address) },
        // Before the agent has started.
        // SAFETY: as above.
        None => unsafe { kernel::ask(libc::SYS_shmdt, [address as usize, 0, 0, 0, 0]) as c_int },
    }
}

/// Detaches what nobody knows of. errno stays.
fn detach(at: usize) {
    // SAFETY: errno is this thread's own; what is there was attached for nobody.
    unsafe {
        let errno = *libc::__errno_location();
        shmdt(at as *const c_void);
        *libc::__errno_location() = errno;
    }
}

/// Where a segment takes the place of others, rounded as the kernel does; `None` if it takes none, or the kernel refuses.
fn place(address: usize, flags: c_int) -> Option<usize> {
    let place = address & !(PAGE_SIZE - 1);
    let is_taken = flags & libc::SHM_REMAP != 0 && (place == address || flags & libc::SHM_RND != 0);
    (is_taken && place != 0).then_some(place)
}

static REAL: Real = Real::new(c"shmat");
static REAL_SHMDT: Real = Real::new(c"shmdt");

/// Looks up the next functions of these names, a library's or libc's.
pub(crate) fn prepare() {
    let _ = (REAL.get(), REAL_SHMDT.get());
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 2] {
    [REAL.wrapper(), REAL_SHMDT.wrapper()]
}

/// # Safety
/// As for shmat(2).
unsafe fn attach(id: c_int, address: usize, flags: c_int) -> *mut c_void {
    type Shmat = unsafe extern "C" fn(c_int, *const c_void, c_int) -> *mut c_void;
    // SAFETY: null, or a function of this signature.
    match unsafe { std::mem::transmute::<*mut c_void, Option<Shmat>>(REAL.known()) } {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(id, address as *const c_void, flags) },
        // Before the agent has started.
        // SAFETY: as above.
        None => unsafe { kernel::ask(libc::SYS_shmat, [id as usize, address, flags as usize, 0, 0]) as *mut c_void },
    }
}

/// # Safety
/// As for shmat(2): what lies at `place` is the caller's to replace.
unsafe fn attach_over(id: c_int, place: usize, flags: c_int) -> *mut c_void {
    let Some(len) = len_of(id) else { return libc::MAP_FAILED };
    // Not where the kernel would: that may be a hole at the very place.
    let Some((room, room_len)) = room_for(len) else {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return libc::MAP_FAILED;
    };
    let begin = room.next_multiple_of(HUGE_PAGE);
    let end = begin + len.next_multiple_of(HUGE_PAGE);
    // SAFETY: addresses of `room_for`, which nobody else knows.
    let attached = unsafe { attach_known(id, begin, flags & !libc::SHM_RND) };
    if attached == libc::MAP_FAILED {
        unmap(room, room + room_len);
        return attached;
    }
    unmap(room, begin);
    unmap(end, room + room_len);
    // SAFETY: what has just been attached, to where the caller wants it.
    let moved = unsafe { mremap(attached, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, place as *mut c_void) };
    if moved == libc::MAP_FAILED {
        detach(begin);
    }
    moved
}

/// Bytes of a segment, in whole pages. Who may attach it may ask.
fn len_of(id: c_int) -> Option<usize> {
    let mut segment = MaybeUninit::<libc::shmid_ds>::zeroed();
    let arguments = [id as usize, libc::IPC_STAT as usize, segment.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the kernel fills the record in. Zeros are one.
    let segment = unsafe {
        if kernel::ask(libc::SYS_shmctl, arguments) != 0 {
            return None;
        }
        segment.assume_init()
    };
    segment.shm_segsz.checked_next_multiple_of(PAGE_SIZE)
}

/// Addresses that a segment fits in wherever huge pages begin.
fn room_for(len: usize) -> Option<(usize, usize)> {
    let len = len.checked_next_multiple_of(HUGE_PAGE)?.checked_add(HUGE_PAGE)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let room = placement::map(len, ProtFlags::empty(), flags, None).ok()?;
    Some((room.as_ptr() as usize, len))
}

/// Of `room_for`.
fn unmap(start: usize, end: usize) {
    if start < end {
        // SAFETY: addresses that nobody else knows.
        let _ = unsafe { rustix::mm::munmap(start as *mut c_void, end - start) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_rounded_as_the_kernel_does() {
        let over = libc::SHM_REMAP;
        assert_eq!(place(0x12000, over), Some(0x12000));
        assert_eq!(place(0x12fff, over | libc::SHM_RND), Some(0x12000));
        for (address, flags) in
            [(0x12000, 0), (0x12000, libc::SHM_RND), (0x12fff, over), (0, over), (0xfff, over | libc::SHM_RND)]
        {
            assert_eq!(place(address, flags), None, "{address:#x} {flags:#o}");
        }
    }
}
