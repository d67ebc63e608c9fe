//! Shared memory that has a name, where it is swapped (`--shared files`): System V segments, and files in memory.
//!
//! What has been mapped is told to the shared-memory server before the program knows where it is: it might see holes as zeros else. Nor
//! may the kernel populate it before: it would fill the holes.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_sys::named_memory::BYTES_MIN;
use uswap_sys::shared_file::TMPFS_MAGIC;
use uswap_system::MapShared;

use crate::kernel;
use crate::locks;
use crate::remap::mremap;
use crate::shared_memory::ask_monitor;
use crate::start::POST;

/// How long a thread waits for memory that is brought back, because it is not to be swapped any more. Then it gets ENOMEM.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(60);
/// How often it asks meanwhile.
const TRY_EVERY: Duration = Duration::from_millis(5);

/// Whether such memory is swapped, in this run and by this process, or may be.
pub(crate) fn are_asked_for() -> bool {
    POST.shared_mappings.are_names_swapped() != Some(false) && crate::forks::is_member() && !POST.inert.load(Relaxed)
}

/// A file in memory.
pub(crate) struct File {
    pub device: u64,
    pub number: u64,
    pub bytes: i64,
}

/// The file in memory that a descriptor is of, if it is large enough. It may become so later: who has mapped it by then is found, too.
pub(crate) fn look(fd: c_int) -> Option<File> {
    // SAFETY: errno is this thread's own, here and below.
    let errno = unsafe { *libc::__errno_location() };
    let (mut stat, mut file_system) = (MaybeUninit::<libc::stat>::zeroed(), MaybeUninit::<libc::statfs>::zeroed());
    let stat_at = [fd as usize, stat.as_mut_ptr() as usize, 0, 0, 0];
    let statfs_at = [fd as usize, file_system.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel fills the records in. Zeros are such.
    let (stat, is_one) = unsafe {
        let is_one = kernel::ask(libc::SYS_fstat, stat_at) == 0
            && stat.assume_init_ref().st_size >= BYTES_MIN as i64
            && kernel::ask(libc::SYS_fstatfs, statfs_at) == 0
            && file_system.assume_init().f_type == libc::__fsword_t::from(TMPFS_MAGIC);
        (stat.assume_init(), is_one)
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    is_one.then_some(File { device: stat.st_dev, number: stat.st_ino, bytes: stat.st_size })
}

/// Asks whether the program may use what has been mapped at `start`.
pub(crate) fn may_be_used(start: *mut c_void) -> bool {
    // What had been swapped is brought back for it, or the server has not answered.
    let answer =
        ask_until(|is_again| MapShared::named(start as usize, is_again), |answer| answer != -libc::EAGAIN as isize);
    // Where nobody has said yet that such memory is swapped, it is not.
    let may_be = answer == Some(0) || (answer.is_none() && !may_be_swapped());
    if !may_be {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
    }
    may_be
}

/// Whether a monitor has said that memory that has a name is swapped.
pub(crate) fn may_be_swapped() -> bool {
    POST.shared_mappings.are_names_swapped() == Some(true)
}

/// Asks the monitor until `is_final`. Where such memory is swapped, that it has much to do is no answer.
pub(crate) fn ask_until(wanted: impl Fn(bool) -> MapShared, is_final: impl Fn(isize) -> bool) -> Option<isize> {
    let (begun, mut is_again) = (Instant::now(), false);
    loop {
        let answer = ask_monitor(wanted(is_again));
        is_again = true;
        let is_later = answer.map_or_else(|| may_be_swapped() && !POST.inert.load(Relaxed), |answer| !is_final(answer));
        if !is_later || begun.elapsed() >= COMES_BACK_WITHIN {
            return answer;
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// Detaches a segment in whose place its file is. Whether that was there.
pub(crate) fn detach(start: usize) -> bool {
    if !may_be_swapped() {
        return false;
    }
    let is_member = crate::forks::is_member() && !POST.inert.load(Relaxed);
    match is_member.then(|| ask_until(|_| MapShared::detached(start), |_| true)).flatten() {
        Some(answer) => answer == 0,
        // Nobody is there to be asked: a child may have its parent's, and run unmanaged.
        None => uswap_sys::named_memory::detach(start),
    }
}

/// Maps a file in memory: `ask` is mmap, by its place and flags.
///
/// # Safety
/// As for mmap(2).
pub(crate) unsafe fn map(
    start: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    ask: impl Fn(*mut c_void, c_int) -> *mut c_void,
) -> *mut c_void {
    // Where other memory is, the kernel puts it in its place when it is known.
    let is_over = flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE != libc::MAP_FIXED_NOREPLACE;
    let at_first = if is_over { null_mut() } else { start };
    let without = libc::MAP_POPULATE | libc::MAP_LOCKED | if is_over { libc::MAP_FIXED } else { 0 };
    let mapped = ask(at_first, flags & !without);
    if mapped == libc::MAP_FAILED {
        return mapped;
    }
    // SAFETY: mapped above, and nobody knows of it.
    let give_up = || unsafe {
        let errno = *libc::__errno_location();
        kernel::ask(libc::SYS_munmap, [mapped as usize, len, 0, 0, 0]);
        *libc::__errno_location() = errno;
        libc::MAP_FAILED
    };
    uswap_sys::huge_pages::keep_from(mapped as usize, len);
    if !may_be_used(mapped) {
        return give_up();
    }
    let mapped = if is_over {
        // SAFETY: what has just been mapped, to where the caller wants it.
        let moved = unsafe { mremap(mapped, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, start) };
        if moved == libc::MAP_FAILED {
            return give_up();
        }
        moved
    } else {
        mapped
    };
    if flags & libc::MAP_LOCKED != 0 {
        // SAFETY: what has just been mapped.
        if unsafe { kernel::ask(libc::SYS_mlock, [mapped as usize, len, 0, 0, 0]) } == 0 {
            locks::lock_later_parts_on_fault(mapped, len);
        }
    } else if flags & libc::MAP_POPULATE != 0 {
        let writes = protection & libc::PROT_WRITE != 0 && flags & libc::MAP_PRIVATE == 0;
        let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: errno is this thread's own; the advice changes no content.
        unsafe {
            let errno = *libc::__errno_location();
            kernel::ask(libc::SYS_madvise, [mapped as usize, len, advice as usize, 0, 0]);
            *libc::__errno_location() = errno;
        }
    }
    mapped
}
