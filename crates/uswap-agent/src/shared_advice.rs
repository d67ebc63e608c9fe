//! What a program advises about shared memory that is swapped, and the kernel alone cannot do.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io::Write as _;
use std::ops::{ControlFlow, Range};

use rustix::fs::{Mode, OFlags};
use uswap_sys::maps::{self, Vma};
use uswap_sys::shared_file::{NAME_IN_MAPS, TMPFS_MAGIC};
use uswap_sys::{PAGE_SIZE, huge_pages, shared_mapping};

use crate::advice::is_of_the_engine;
use crate::kernel;
use crate::named_changes::bring_back;

/// Room for lines of /proc/PID/maps. A path may have 4 KiB.
const LINES: usize = 6 << 10;

/// A part of shared memory that may be swapped.
struct Part {
    range: Range<usize>,
    /// Of mmap(2).
    protection: i32,
    /// Its file's device and number, if they are known.
    file: Option<(u64, u64)>,
}

/// Whether memory with this mapping may be swapped: files on disk are not.
fn may_be_swapped(vma: &Vma<'_>) -> bool {
    let is_named = || crate::named_memory::are_asked_for() && is_in_memory(vma);
    vma.shared && vma.inode != 0 && (vma.name == NAME_IN_MAPS || is_named())
}

/// Whether a file that is mapped is in memory. Where it may not be opened by its mapping, the server could not, either.
fn is_in_memory(vma: &Vma<'_>) -> bool {
    let mut path = [0u8; 80];
    let is_written = write!(&mut path[..], "/proc/self/map_files/{:x}-{:x}\0", vma.start, vma.end).is_ok();
    let path = CStr::from_bytes_until_nul(&path).ok().filter(|_| is_written);
    let file = path.and_then(|path| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok());
    file.and_then(|file| rustix::fs::fstatfs(file).ok()).is_some_and(|found| found.f_type as u32 == TMPFS_MAGIC)
}

/// Goes through the mappings of the process, lowest address first. `None` where they cannot be read.
///
/// A thread of the program calls, which may not allocate, and has none of the descriptors of the agent's threads.
fn for_each_mapping(mut visit: impl FnMut(&Vma<'_>) -> ControlFlow<()>) -> Option<()> {
    let maps = rustix::fs::open(c"/proc/thread-self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let (mut lines, mut filled) = ([0u8; LINES], 0);
    loop {
        if filled == LINES {
            // A line that is longer.
            return None;
        }
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&maps, &mut lines[filled..])).ok()?;
        if count == 0 {
            return Some(());
        }
        filled += count;
        let whole = lines[..filled].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        if maps::vmas(&lines[..whole]).any(|vma| visit(&vma).is_break()) {
            return Some(());
        }
        lines.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// The parts of a range that are shared memory which may be swapped.
fn for_each_part(start: usize, len: usize, mut act: impl FnMut(&Part)) {
    let Some(end) = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE_SIZE)) else { return };
    if !shared_mapping::is_mapped() {
        return;
    }
    let all_are_seen = for_each_mapping(|vma| {
        if vma.start >= end {
            return ControlFlow::Break(());
        }
        if start < vma.end && may_be_swapped(vma) {
            let access = [(vma.read, libc::PROT_READ), (vma.write, libc::PROT_WRITE), (vma.exec, libc::PROT_EXEC)];
            let protection = access.iter().filter(|access| access.0).fold(0, |all, access| all | access.1);
            let file = Some((vma.device, vma.inode));
            act(&Part { range: vma.start.max(start)..vma.end.min(end), protection, file });
        }
        ControlFlow::Continue(())
    });
    if all_are_seen.is_none() {
        // Where there is no /proc, it is taken for what such advice is given about.
        act(&Part { range: start..end, protection: libc::PROT_READ | libc::PROT_WRITE, file: None });
    }
}

/// Whether some of it is shared memory that may be swapped.
pub(crate) fn is_about_some(start: usize, len: usize) -> bool {
    let mut is = false;
    with_errno_kept(|| for_each_part(start, len, |_| is = true));
    is
}

/// The program has advised huge pages there (MADV_HUGEPAGE). Shared memory that is swapped has none.
pub(crate) fn keep_from_huge_pages(start: usize, len: usize) {
    with_errno_kept(|| {
        for_each_part(start, len, |part| {
            huge_pages::keep_from(part.range.start, part.range.len());
        })
    });
}

/// The program has removed what was there (MADV_REMOVE). What had been swapped out is not the kernel's to take away, so zeros are written.
pub(crate) fn is_removed(start: usize, len: usize) {
    if !shared_mapping::is_shared() {
        return;
    }
    with_errno_kept(|| for_each_part(start, len, remove));
}

/// Pages of what is mapped there are about to be mapped in another order (remap_file_pages), round the mmap that the server is told of.
pub(crate) extern "C" fn is_reordered(start: usize, len: usize) {
    if is_of_the_engine() || !crate::forks::is_member() {
        return;
    }
    let mut told = None;
    with_errno_kept(|| {
        for_each_part(start, len, |part| {
            if let Some(file) = part.file.filter(|&file| told != Some(file)) {
                bring_back(file.0, file.1);
                told = Some(file);
            }
        })
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

pub(crate) fn with_errno_kept(act: impl FnOnce()) {
    // SAFETY: errno is this thread's own, here and below.
    let errno = unsafe { *libc::__errno_location() };
    act();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    use super::*;

    #[test]
    fn all_mappings_are_gone_through_however_many_there_are() {
        const PAGES: usize = 400;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping where the kernel has room, which nobody uses.
        let many = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGES * PAGE_SIZE, access, flags) }.unwrap();
        for page in (0..PAGES).step_by(2) {
            // SAFETY: of that mapping.
            unsafe { mprotect(many.wrapping_byte_add(page * PAGE_SIZE), PAGE_SIZE, MprotectFlags::READ) }.unwrap();
        }
        let here = 0u8;
        let at = (&raw const here).addr();
        let (mut count, mut last, mut is_here) = (0, 0, false);
        let visit = |vma: &Vma<'_>| {
            assert!(vma.start >= last, "in order");
            (count, last) = (count + 1, vma.end);
            is_here |= (vma.start..vma.end).contains(&at);
            ControlFlow::Continue(())
        };
        assert!(for_each_mapping(visit).is_some() && is_here);
        let text = std::fs::read_to_string("/proc/thread-self/maps").unwrap();
        assert!(text.len() > LINES && count >= text.lines().count() - 2, "{count} of {}", text.lines().count());
    }
}
