//! What a program advises about shared memory that is swapped, and the kernel alone cannot do.

#![allow(unsafe_code)]

use std::ops::Range;

use uswap_sys::maps::{self, MapsOf, Vma};
use uswap_sys::shared_file::NAME_IN_MAPS;
use uswap_sys::{PAGE_SIZE, huge_pages, named_memory, shared_mapping};

use crate::kernel;

/// A part of shared memory that may be swapped.
struct Part {
    range: Range<usize>,
    /// Of mmap(2).
    protection: i32,
}

/// Whether memory with this mapping may be swapped: files on disk are not.
fn may_be_swapped(vma: &Vma<'_>) -> bool {
    let is_named =
        || crate::named_memory::are_asked_for() && named_memory::mapped(std::process::id(), vma.start, vma.end).is_ok();
    vma.shared && vma.inode != 0 && (vma.name == NAME_IN_MAPS || is_named())
}

/// The parts of a range, if there is any shared memory that is swapped.
fn parts(start: usize, len: usize) -> Vec<Part> {
    let (mut text, mut parts) = (Vec::new(), Vec::new());
    let Some(end) = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE_SIZE)) else {
        return parts;
    };
    if !shared_mapping::is_mapped() {
        return parts;
    }
    // By the process's number: this thread is the program's, and has none of the descriptors of the agent's.
    if maps::read_maps(MapsOf::Pid(std::process::id()), &mut text).is_err() {
        // Where there is no /proc, it is taken for what such advice is given about.
        parts.push(Part { range: start..end, protection: libc::PROT_READ | libc::PROT_WRITE });
        return parts;
    }
    let within = maps::vmas(&text).filter(|vma| vma.start < end && start < vma.end);
    for vma in within.filter(may_be_swapped) {
        let access = [(vma.read, libc::PROT_READ), (vma.write, libc::PROT_WRITE), (vma.exec, libc::PROT_EXEC)];
        let protection = access.iter().filter(|access| access.0).fold(0, |all, access| all | access.1);
        parts.push(Part { range: vma.start.max(start)..vma.end.min(end), protection });
    }
    parts
}

/// Whether some of it is shared memory that may be swapped.
pub(crate) fn is_about_some(start: usize, len: usize) -> bool {
    with_errno_kept(|| !parts(start, len).is_empty())
}

/// The program has advised huge pages there (MADV_HUGEPAGE). Shared memory that is swapped has none.
pub(crate) fn keep_from_huge_pages(start: usize, len: usize) {
    with_errno_kept(|| {
        for part in parts(start, len) {
            huge_pages::keep_from(part.range.start, part.range.len());
        }
    });
}

/// The program has removed what was there (MADV_REMOVE). What had been swapped out is not the kernel's to take away, so zeros are written.
pub(crate) fn is_removed(start: usize, len: usize) {
    if !shared_mapping::is_shared() {
        return;
    }
    with_errno_kept(|| {
        for part in parts(start, len) {
            remove(&part);
        }
    });
}

fn remove(part: &Part) {
    const WRITES: i32 = libc::PROT_READ | libc::PROT_WRITE;
    let may_write = part.protection & WRITES == WRITES;
    let protect = |range: &Range<usize>, protection: i32| {
        // SAFETY: the program has the memory mapped, and gets it back as it was.
        unsafe { kernel::ask(libc::SYS_mprotect, [range.start, range.len(), protection as usize, 0, 0]) == 0 }
    };
    // The kernel takes the advice for what the program may not write to at this moment, too.
    if !may_write && !protect(&part.range, WRITES) {
        return;
    }
    let end = end_of_object(&part.range);
    // SAFETY: it may be written to, as far as the object goes, and its content is zeros from here on: the program has asked for that.
    unsafe { std::ptr::write_bytes(part.range.start as *mut u8, 0, end - part.range.start) };
    if !may_write {
        protect(&part.range, part.protection);
    }
}

/// Where a mapping ends to have anything behind it: it may be longer than its object.
fn end_of_object(range: &Range<usize>) -> usize {
    let is_there = |pages: usize| kernel::can_be_read(range.start + (pages - 1) * PAGE_SIZE);
    let pages = range.len() / PAGE_SIZE;
    if pages == 0 || is_there(pages) {
        return range.end;
    }
    // So many pages are there, and so many are not.
    let (mut there, mut beyond) = (0, pages);
    while there + 1 < beyond {
        let middle = there.midpoint(beyond);
        *(if is_there(middle) { &mut there } else { &mut beyond }) = middle;
    }
    range.start + there * PAGE_SIZE
}

fn with_errno_kept<R>(act: impl FnOnce() -> R) -> R {
    // SAFETY: errno is this thread's own, here and below.
    let errno = unsafe { *libc::__errno_location() };
    let result = act();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}
