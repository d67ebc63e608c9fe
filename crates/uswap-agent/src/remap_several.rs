//! One mremap over several mappings, as Linux has it since 6.17: mapping by mapping.
//!
//! The kernel moves several mappings with one call only as long as none of them is registered with a userfaultfd. At the
//! first that is it stops with EFAULT, and what came before it has been moved. So the wrapper of mremap never lets it come to
//! that: it finds where each mapping ends and moves them one by one. Holes stay holes, and what the target has there stays,
//! as the kernel has it.
//!
//! Where a mapping ends is found without a descriptor, an allocation or another thread: a mremap to a size that no process
//! can have fails in either case, with EFAULT only if the old range is not all in one mapping.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::Ordering::Acquire;

use uswap_sys::PAGE_SIZE;

use crate::libc_functions::SYSCALL;

/// No mapping of x86-64 grows to this in its place: it is all that there is, and the largest that the kernel does not take for
/// nonsense. Where there is more, by five levels of page tables, the stack lies across it.
const IMPOSSIBLE_LEN: usize = TASK_SIZE;

/// Where addresses of programs end.
const TASK_SIZE: usize = (1 << 47) - PAGE_SIZE;

/// The new length, if mremap makes memory shorter and moves it to a fixed place. Before Linux 6.15 such a call is reported with the
/// length that it had, as if what was cut off had been moved as well (`mremap_to` in mm/mremap.c); it is made in two, which the kernel's
/// own begins with, too.
pub(crate) fn made_shorter(from: usize, old_len: usize, new_len: usize, flags: c_int, to: usize) -> Option<usize> {
    let old_len = old_len.checked_next_multiple_of(PAGE_SIZE)?;
    let new_len = new_len.checked_next_multiple_of(PAGE_SIZE)?;
    let (end, to_end) = (from.checked_add(old_len)?, to.checked_add(new_len)?);
    let apart = (end <= to || to_end <= from) && to_end <= TASK_SIZE;
    let is_it = flags == libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED
        && (from | to).is_multiple_of(PAGE_SIZE)
        && apart
        && (1..old_len).contains(&new_len);
    is_it.then_some(new_len)
}

/// A move whose target is given and whose size stays: the kind that may be of several mappings.
#[derive(Clone, Copy)]
pub(crate) struct Move {
    pub from: usize,
    pub len: usize,
    pub to: usize,
}

impl Move {
    /// `None` when these arguments of mremap mean something else, or nothing that the kernel takes.
    pub fn new(from: usize, old_len: usize, new_len: usize, flags: c_int, to: usize) -> Option<Move> {
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let len = old_len.checked_next_multiple_of(PAGE_SIZE)?;
        let same = new_len.checked_next_multiple_of(PAGE_SIZE)? == len && len > PAGE_SIZE;
        let aligned = (from | to).is_multiple_of(PAGE_SIZE);
        let (end, to_end) = (from.checked_add(len)?, to.checked_add(len)?);
        let apart = end <= to || to_end <= from;
        (flags & !known == 0 && flags & fixed == fixed && same && aligned && apart).then_some(Move { from, len, to })
    }

    /// Whether one mapping has all of it. If so, the kernel's own mremap does as it does without us.
    pub fn is_of_one_mapping(self) -> bool {
        is_in_one_mapping(self.from, self.len)
    }

    /// Moves mapping by mapping; `mremap` moves one of them. The first error ends it, as it ends the kernel's own. `None`
    /// when the kernel is to answer: nothing lies at the start, or something that no probe can tell.
    pub fn by_mapping(self, mut mremap: impl FnMut(Move) -> *mut c_void) -> Option<*mut c_void> {
        // First all are looked at, so that nothing has been moved when the kernel is to answer.
        let mut at = self.part_from(0)?;
        while at.from + at.len < self.from + self.len {
            let Some(next) = self.part_from(at.from + at.len - self.from) else { break };
            at = next;
        }
        if !is_hole(at.from + at.len, self.from + self.len) {
            return None;
        }
        let mut done = 0;
        while let Some(part) = self.part_from(done) {
            if mremap(part) == libc::MAP_FAILED {
                return Some(libc::MAP_FAILED);
            }
            done = part.from + part.len - self.from;
        }
        Some(std::ptr::without_provenance_mut(self.to))
    }

    /// What one mapping has of this, from the first page at or after `offset` that has one. At offset 0 there is to be one.
    fn part_from(self, offset: usize) -> Option<Move> {
        let end = self.from + self.len;
        let mut from = self.from + offset;
        while from < end && !is_in_one_mapping(from, PAGE_SIZE) {
            if offset == 0 || !is_hole(from, from + PAGE_SIZE) {
                return None;
            }
            from += PAGE_SIZE;
        }
        if from >= end {
            return None;
        }
        // The longest that is in one mapping: a range that is not stays so when it grows.
        let (mut pages, mut too_many) = (1, (end - from) / PAGE_SIZE + 1);
        while too_many - pages > 1 {
            let middle = pages + (too_many - pages) / 2;
            match is_in_one_mapping(from, middle * PAGE_SIZE) {
                true => pages = middle,
                false => too_many = middle,
            }
        }
        Some(Move { from, len: pages * PAGE_SIZE, to: self.to + (from - self.from) })
    }
}

/// Whether one mapping has all of a range.
fn is_in_one_mapping(start: usize, len: usize) -> bool {
    // SAFETY: the kernel only looks: no mapping can have that size, and without MREMAP_MAYMOVE none is moved.
    let result = unsafe { look_by_mremap()(libc::SYS_mremap, start, len, IMPOSSIBLE_LEN, 0) };
    refusal(result) != Some(libc::EFAULT)
}

type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;

/// libc's `syscall`, not the wrapper, which may wait before an mremap: this one changes nothing.
fn look_by_mremap() -> Syscall {
    let real = SYSCALL.load(Acquire);
    // SAFETY: the symbol is libc's function of this signature.
    if real.is_null() { libc::syscall } else { unsafe { std::mem::transmute::<*mut c_void, Syscall>(real) } }
}

/// Whether nothing is mapped from `start` to `end`.
fn is_hole(start: usize, end: usize) -> bool {
    (start..end).step_by(PAGE_SIZE).all(|page| {
        let mut there = 0u8;
        // SAFETY: the kernel writes one byte for one page.
        let result = unsafe { libc::syscall(libc::SYS_mincore, page, PAGE_SIZE, &raw mut there) };
        refusal(result) == Some(libc::ENOMEM)
    })
}

/// Why the kernel refused. The agent's `syscall` gives the kernel's own answer until libc's has been found.
fn refusal(result: c_long) -> Option<c_int> {
    match result {
        // SAFETY: errno is this thread's own.
        -1 => Some(unsafe { *libc::__errno_location() }),
        -4095..-1 => Some(-result as c_int),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    const FIXED: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

    #[test]
    fn only_moves_of_the_same_size_to_a_given_place_may_be_of_several_mappings() {
        let is_one = |from, old, new, flags, to| Move::new(from, old, new, flags, to).is_some();
        assert!(is_one(0x10000, 0x3000, 0x3000, FIXED, 0x20000));
        assert!(is_one(0x10000, 0x3000, 0x2fff, FIXED | libc::MREMAP_DONTUNMAP, 0x20000));
        for (from, old, new, flags, to) in [
            (0x10000, 0x3000, 0x4000, FIXED, 0x20000),
            (0x10000, 0x3000, 0x3000, libc::MREMAP_MAYMOVE, 0x20000),
            (0x10000, 0x3000, 0x3000, FIXED | 64, 0x20000),
            (0x10000, 0x3000, 0x3000, FIXED, 0x20001),
            (0x10000, 0x3000, 0x3000, FIXED, 0x12000),
            (0x12000, 0x3000, 0x3000, FIXED, 0x10000),
            (0x10000, 0x1000, 0x1000, FIXED, 0x20000),
            (0x10000, 0, 0, FIXED, 0x20000),
            (0x10000, usize::MAX, usize::MAX, FIXED, 0x20000),
        ] {
            assert!(!is_one(from, old, new, flags, to), "{from:#x} {old:#x} {new:#x} {flags} {to:#x}");
        }
    }

    /// Sixteen pages: 0 to 3 and 4 to 7 are mappings of their own, 8 to 11 a hole, 12 to 15 a mapping. Far from where the kernel
    /// puts what has no place of its own: a test beside this one might get the hole.
    fn laid_out() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(1 << 44);
        let place = NEXT.fetch_add(1 << 31, Relaxed) as *mut libc::c_void;
        let pages = |from: usize, count: usize| (from * PAGE_SIZE, count * PAGE_SIZE);
        // SAFETY: fresh memory of this test's own, of which no reference is made.
        unsafe {
            let start = libc::mmap(
                place,
                16 * PAGE_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            let (from, len) = pages(4, 4);
            assert_eq!(libc::mprotect(start.byte_add(from), len, libc::PROT_READ), 0);
            let (from, len) = pages(8, 4);
            assert_eq!(libc::munmap(start.byte_add(from), len), 0);
            start as usize
        }
    }

    #[test]
    fn mappings_are_moved_one_by_one_and_holes_are_passed_over() {
        let from = laid_out();
        let to = from + (1 << 30);
        let it = Move { from, len: 16 * PAGE_SIZE, to };
        assert!(!it.is_of_one_mapping());
        assert!(Move { from, len: 4 * PAGE_SIZE, to }.is_of_one_mapping());
        let mut parts = Vec::new();
        let page = |address: usize, base: usize| (address - base) / PAGE_SIZE;
        let moved = it.by_mapping(|part| {
            parts.push((page(part.from, from), part.len / PAGE_SIZE, page(part.to, to)));
            std::ptr::null_mut()
        });
        assert_eq!(moved.map(|address| address as usize), Some(to));
        assert_eq!(parts, [(0, 4, 0), (4, 4, 4), (12, 4, 12)]);
    }

    #[test]
    fn nothing_is_moved_when_a_hole_comes_first() {
        let from = laid_out() + 8 * PAGE_SIZE;
        let it = Move { from, len: 8 * PAGE_SIZE, to: from + (1 << 30) };
        assert!(it.by_mapping(|_| panic!("moved")).is_none());
    }

    #[test]
    fn the_first_error_ends_it() {
        let from = laid_out();
        let mut calls = 0;
        let it = Move { from, len: 16 * PAGE_SIZE, to: from + (1 << 30) };
        let moved = it.by_mapping(|_| {
            calls += 1;
            if calls == 2 { libc::MAP_FAILED } else { std::ptr::null_mut() }
        });
        assert_eq!((moved, calls), (Some(libc::MAP_FAILED), 2));
    }
}
