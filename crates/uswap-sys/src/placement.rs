//! Where the engine's mappings go: far from the program's.
//!
//! The kernel gives a new mapping the highest hole that fits, and that may be a hole that the program has just made and
//! is about to fill: after `munmap` or `mremap` it may map something there with `MAP_FIXED`, which replaces what it finds.
//! In a program of one thread that is no race, so it must not become one. So everything the engine maps lies in a part of
//! the address space that neither the kernel nor a program picks by itself, and no address there is used twice before all others have
//! been.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::PAGE_SIZE;

/// The part: 56 to 80 TiB. Programs and their heaps lie at 85 TiB, what the kernel places grows down from 128 TiB, Go and
/// the JVM pick addresses below 1 TiB, and the shadows of the sanitizers end below it or begin above it.
const START: usize = 56 << 40;
const END: usize = 80 << 40;
/// The first mapping lies at one of this many places, 1 GiB apart.
const PLACES: usize = 16 << 10;
/// How far to go on from memory that somebody else has.
const STEP: usize = 1 << 30;
const ATTEMPTS: usize = 64;

/// Where the next mapping goes; 0 before the first.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Maps `len` bytes, whole pages: of `fd` from its start, or anonymous. Needs neither heap nor lock.
pub fn map(len: usize, prot: ProtFlags, flags: MapFlags, fd: Option<BorrowedFd<'_>>) -> io::Result<NonNull<u8>> {
    let base = match map_once(len, prot, flags, fd) {
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory && crate::reserve::give_up_addresses() => {
            map_once(len, prot, flags, fd)?
        }
        result => result?,
    };
    if flags.contains(MapFlags::SHARED) {
        // Of shared memory the kernel allocates what a debugger reads, also where nothing ever was: gcore filled the pool, four
        // times the budget. SAFETY: mapped above; the advice says only what is not to be dumped, and changes nothing else.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, rustix::mm::Advice::LinuxDontDump) };
    }
    Ok(base)
}

/// Maps shared memory a second time, somewhere: as a forked child has it, within one process.
///
/// # Safety
/// `len` bytes of shared memory are mapped at `base`.
pub unsafe fn map_again(base: NonNull<u8>, len: usize) -> io::Result<NonNull<u8>> {
    let len = len.next_multiple_of(PAGE_SIZE);
    // SAFETY: the caller's promise. For the length 0 the kernel leaves the old mapping as it is.
    let again = unsafe { rustix::mm::mremap(base.as_ptr().cast(), 0, len, rustix::mm::MremapFlags::MAYMOVE)? };
    NonNull::new(again.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// As [`map`], but for the addresses that are kept for when there are no others.
pub(crate) fn map_once(
    len: usize,
    prot: ProtFlags,
    flags: MapFlags,
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<NonNull<u8>> {
    if crate::test_hook::refuses_map() {
        return Err(Errno::NOMEM.into());
    }
    let len = len.checked_next_multiple_of(PAGE_SIZE).filter(|&len| len != 0).ok_or(Errno::INVAL)?;
    for _ in 0..ATTEMPTS {
        let address = take(len);
        if address + len > END {
            break;
        }
        match map_at(address, len, prot, flags | MapFlags::FIXED_NOREPLACE, fd) {
            Err(Errno::EXIST) => {
                let _ = NEXT.fetch_update(Relaxed, Relaxed, |next| Some(next.max(address + STEP)));
            }
            // No memory, or no such addresses: the kernel may know others.
            Err(_) => break,
            Ok(base) => return Ok(base),
        }
    }
    Ok(map_at(0, len, prot, flags, fd)?)
}

/// An address that nobody was given before.
fn take(len: usize) -> usize {
    if NEXT.load(Relaxed) == 0 {
        let mut random = [0; 8];
        let _ = getrandom(&mut random, GetRandomFlags::NONBLOCK);
        let first = START + usize::from_ne_bytes(random) % PLACES * STEP;
        let _ = NEXT.compare_exchange(0, first, Relaxed, Relaxed);
    }
    let after = |next| Some(fitting(next, len) + len);
    let next = NEXT.fetch_update(Relaxed, Relaxed, after);
    fitting(next.unwrap_or_else(|next| next), len)
}

/// Where a mapping goes when `next` is next. After some million forks the part is at its end, and its beginning is as good as new.
fn fitting(next: usize, len: usize) -> usize {
    if next + len > END { START } else { next }
}

/// Where the next mapping will lie at the earliest.
pub fn next() -> usize {
    take(0)
}

/// An address that nobody was or will be given.
pub(crate) fn never_given() -> usize {
    take(PAGE_SIZE)
}

/// Whether `address` was given out after `first`. What the kernel chose itself, when there was nothing else, was not.
pub(crate) fn is_given_from(first: usize, address: usize) -> bool {
    (first..END).contains(&address)
}

fn map_at(
    address: usize,
    len: usize,
    prot: ProtFlags,
    flags: MapFlags,
    fd: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<NonNull<u8>> {
    let hint = std::ptr::without_provenance_mut(address);
    // SAFETY: the address is a hint, or FIXED_NOREPLACE keeps the kernel from replacing what is there.
    let base = unsafe {
        match fd {
            Some(fd) => rustix::mm::mmap(hint, len, prot, flags, fd, 0)?,
            None => rustix::mm::mmap_anonymous(hint, len, prot, flags)?,
        }
    };
    if address != 0 && base.addr() != address {
        // A kernel before 4.17 takes the flag for none.
        // SAFETY: mapped a moment ago, and nobody knows of it.
        let _ = unsafe { rustix::mm::munmap(base, len) };
        return Err(Errno::EXIST);
    }
    NonNull::new(base.cast()).ok_or(Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map_private(len: usize) -> NonNull<u8> {
        map(len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE, None).unwrap()
    }

    #[test]
    fn no_address_is_given_out_twice() {
        let first = map_private(3 * PAGE_SIZE).addr().get();
        assert!((START..END).contains(&first));
        // SAFETY: mapped above, and nobody uses it.
        unsafe { rustix::mm::munmap(std::ptr::without_provenance_mut(first), 3 * PAGE_SIZE) }.unwrap();
        let second = map_private(PAGE_SIZE).addr().get();
        assert!(second >= first + 3 * PAGE_SIZE);
    }

    #[test]
    fn reservations_are_no_part_of_dumps() {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let reserved = map(PAGE_SIZE, protection, MapFlags::SHARED | MapFlags::NORESERVE, None).unwrap().addr().get();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let flags_at = |start: usize| {
            let mut from_there = smaps.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
            from_there.find(|line| line.starts_with("VmFlags:")).unwrap()
        };
        assert!(flags_at(reserved).split(' ').any(|flag| flag == "dd"), "{}", flags_at(reserved));
    }

    #[test]
    fn what_does_not_fit_at_the_end_goes_to_the_beginning() {
        assert_eq!(fitting(END - PAGE_SIZE, PAGE_SIZE), END - PAGE_SIZE);
        assert_eq!([END - PAGE_SIZE, END, END + STEP].map(|next| fitting(next, 2 * PAGE_SIZE)), [START; 3]);
    }

    #[test]
    fn memory_of_others_is_left_alone() {
        let first = map_private(PAGE_SIZE).addr().get();
        let taken = NEXT.load(Relaxed).max(first);
        // SAFETY: NOREPLACE; whether another test was faster does not matter.
        let _ = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::without_provenance_mut(taken),
                PAGE_SIZE,
                ProtFlags::READ,
                MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE,
            )
        };
        for _ in 0..4 {
            let base = map_private(PAGE_SIZE);
            // SAFETY: mapped above, readable and writable.
            unsafe { base.write(7) };
        }
    }
}
