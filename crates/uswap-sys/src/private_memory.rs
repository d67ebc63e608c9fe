//! The memory that belongs to the agent, and so must never be adopted, swapped or waited for.
//!
//! Everything the agent maps comes from [`map`]; what it did not map itself but depends on (its own
//! .data, libc's, thread control blocks) is added with [`note`]. Adoption clips these ranges out of the
//! program's memory by address, because mappings merge and the kernel's list cannot tell them apart.
//!
//! The table of ranges is static and lock-free: it is used before any constructor, inside fork handlers
//! and by threads that may be stopped anywhere. A range is one 64-bit word (page number, page count),
//! so that it appears, grows and goes in one step. Coverage is the union of all words. When two threads
//! change neighbouring ranges at once it may stay larger than the truth, and then some of the program's
//! memory is left unmanaged. It is never smaller: whoever takes a standing page out of one word has put
//! it into another before, so the number of words that cover it cannot fall to zero; and a reader that
//! overlapped such a move notices by `Table::moves` and looks again.
//!
//! A list of mappings read earlier may still show, at an address that we have since been given, what
//! the program had there: adoption asks [`overlaps`] again right after it has registered a range.
//!
//! A mapping is inaccessible (`PROT_NONE`) until it is in the table, and again before it leaves it, so
//! that adoption, which takes writable memory only, has no moment in which to take it.

#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::{PAGE_SIZE, placement, reserve};

/// Ranges the table holds. Neighbours are merged, so this is thousands of separate mappings.
pub const CAPACITY: usize = 8192;

/// What private memory is for: the agent's own footprint is accounted by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Purpose {
    /// The agent's heap.
    Heap,
    /// Stacks and thread control blocks of agent threads.
    Stack,
    /// Page tables, swap tables and other books.
    Tables,
    /// Frames of the swap cache.
    Frames,
    /// Buffers for I/O and compression.
    Buffers,
}

impl Purpose {
    /// How many purposes there are.
    pub const COUNT: usize = 5;
}

static TABLE: Table<CAPACITY> = Table::new();
static MAPPED_BYTES: [AtomicUsize; Purpose::COUNT] = [const { AtomicUsize::new(0) }; Purpose::COUNT];

/// A private mapping, readable and writable, zero at first; unmapped when dropped.
///
/// # Invariants
/// `len` bytes from `base`, whole pages, are mapped, registered in the table, and this value's alone.
#[derive(Debug)]
pub struct PrivateMapping {
    base: NonNull<u8>,
    len: usize,
    purpose: Purpose,
}

// SAFETY: the mapping is plain memory owned by this value; nothing about it is tied to a thread.
unsafe impl Send for PrivateMapping {}
// SAFETY: a shared reference gives out the address and the length only, or bytes nobody can change.
unsafe impl Sync for PrivateMapping {}

/// Maps `len` bytes (rounded up to pages) of zeros that are the agent's own.
///
/// No swap space or commit is reserved for it. When the kernel gives no more, it comes from the [`reserve`], frames
/// excepted. Needs neither heap nor lock.
pub fn map(len: usize, purpose: Purpose) -> io::Result<PrivateMapping> {
    let refused = match map_fresh(len, purpose) {
        Err(error) if purpose != Purpose::Frames => error,
        result => return result,
    };
    let base = reserve::take(len).and_then(NonNull::new).ok_or(refused)?;
    let len = len.next_multiple_of(PAGE_SIZE);
    MAPPED_BYTES[purpose as usize].fetch_add(len, Ordering::Relaxed);
    Ok(PrivateMapping { base, len, purpose })
}

/// As [`map`], and always a new mapping.
pub(crate) fn map_fresh(len: usize, purpose: Purpose) -> io::Result<PrivateMapping> {
    let len = len.checked_next_multiple_of(PAGE_SIZE).filter(|&len| len != 0).ok_or(rustix::io::Errno::INVAL)?;
    // Not with the last addresses that there are: for this there is the reserve.
    let mapped = placement::map_once(len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE, None)?;
    let (start, base) = (mapped.addr().get(), mapped.as_ptr().cast());
    if !TABLE.insert(start, start + len) {
        // SAFETY: mapped above, and nobody else knows of it.
        let _ = unsafe { rustix::mm::munmap(base, len) };
        return Err(rustix::io::Errno::NOMEM.into());
    }
    // SAFETY: mapped above, and nobody else knows of it.
    let opened = unsafe { rustix::mm::mprotect(base, len, MprotectFlags::READ | MprotectFlags::WRITE) };
    if let Err(errno) = opened {
        TABLE.remove(start, start + len);
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::munmap(base, len) };
        return Err(errno.into());
    }
    if purpose == Purpose::Frames {
        // The program may have asked for all new mappings to be locked.
        let _ = unlock(start, len);
    }
    MAPPED_BYTES[purpose as usize].fetch_add(len, Ordering::Relaxed);
    Ok(PrivateMapping { base: mapped, len, purpose })
}

/// Takes back a lock of memory that is the agent's own. Locked memory cannot be given back to the kernel, and pages move
/// between mappings only if both are locked or neither is.
pub fn unlock(start: usize, len: usize) -> io::Result<()> {
    // SAFETY: whether memory is locked changes no content.
    unsafe { rustix::mm::munlock(std::ptr::without_provenance_mut(start), len)? };
    Ok(())
}

/// After the program has locked everything that is mapped: what is private is not meant. Needs neither heap nor lock.
pub fn unlock_all() {
    TABLE.for_each(|start, end| {
        let _ = unlock(start, end - start);
    });
}

impl PrivateMapping {
    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The address of its first byte.
    pub fn start(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// One past the address of its last byte.
    pub fn end(&self) -> usize {
        self.start() + self.len
    }

    /// Bytes, a whole number of pages.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Gives up ownership; [`PrivateMapping::from_raw`] takes it back.
    pub fn into_raw(self) -> (*mut u8, usize) {
        let raw = (self.base.as_ptr(), self.len);
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// `base` and `len` are what [`PrivateMapping::into_raw`] gave, or whole pages of it, and nobody
    /// else uses or owns them.
    pub unsafe fn from_raw(base: NonNull<u8>, len: usize, purpose: Purpose) -> PrivateMapping {
        PrivateMapping { base, len, purpose }
    }

    /// Makes the first page inaccessible: whoever runs over the lower end gets a fault, not a neighbour.
    pub fn guard_first_page(&mut self) -> io::Result<()> {
        if reserve::has(self.start()) {
            // Where memory is short, the guard is what there is to save.
            return Ok(());
        }
        // SAFETY: the page is ours, and no reference to it can exist while self is borrowed mutably.
        unsafe {
            rustix::mm::mprotect(self.base.as_ptr().cast(), PAGE_SIZE, MprotectFlags::empty())?;
        }
        Ok(())
    }
}

impl Drop for PrivateMapping {
    fn drop(&mut self) {
        // SAFETY: by the invariant the range is ours alone, and it is being dropped.
        if unsafe { reserve::give_back(self.base.as_ptr(), self.len) } {
            MAPPED_BYTES[self.purpose as usize].fetch_sub(self.len, Ordering::Relaxed);
            return;
        }
        let base = self.base.as_ptr().cast();
        // Inaccessible first, then out of the table, then gone: at no moment is it writable memory
        // that the table does not know. If the kernel refuses (too many mappings), the range leaks and
        // stays in the table.
        // SAFETY: by the invariant the range is ours alone, and it is being dropped.
        if unsafe { rustix::mm::mprotect(base, self.len, MprotectFlags::empty()) }.is_err() {
            return;
        }
        TABLE.remove(self.start(), self.end());
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::munmap(base, self.len) };
        MAPPED_BYTES[self.purpose as usize].fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// Bytes mapped for one purpose. Address space, not memory: untouched pages cost nothing.
pub fn mapped_bytes(purpose: Purpose) -> usize {
    MAPPED_BYTES[purpose as usize].load(Ordering::Relaxed)
}

/// Adds a range that [`map`] did not make; it is widened to whole pages. False when the table is full.
pub fn note(start: usize, end: usize) -> bool {
    TABLE.insert(start / PAGE_SIZE * PAGE_SIZE, end.next_multiple_of(PAGE_SIZE))
}

/// Takes a range out again, narrowed to whole pages. It may be a part of what was noted.
pub fn forget(start: usize, end: usize) {
    TABLE.remove(start.next_multiple_of(PAGE_SIZE), end / PAGE_SIZE * PAGE_SIZE);
}

/// Takes away whatever was mapped since `from` was [`placement::next`]: for simulations, whose processes leave their memory behind.
///
/// # Safety
/// Nobody uses any of it, or drops what owns it.
pub unsafe fn unmap_since(from: usize) {
    let end = placement::next();
    if from < end {
        TABLE.remove(from, end);
        // SAFETY: no address is given out twice, so all that lies there was mapped by this module or with `placement::map`; the rest
        // is the caller's promise.
        let _ = unsafe { rustix::mm::munmap(std::ptr::without_provenance_mut(from), end - from) };
    }
}

/// Whether any byte of the range is private.
pub fn overlaps(start: usize, end: usize) -> bool {
    let mut found = false;
    TABLE.for_each(|s, e| found |= s < end && start < e);
    found
}

/// The first stretch in `from..end` that is not private, or none.
///
/// To clip a whole range, call again with the end of the answer. Fault path.
pub fn next_gap(from: usize, end: usize) -> Option<(usize, usize)> {
    TABLE.next_gap(from, end)
}

/// A lock-free set of page ranges.
struct Table<const N: usize> {
    /// Page number in the upper bits, page count in the lower [`COUNT_BITS`]; 0 is an empty slot.
    words: [AtomicU64; N],
    /// Slots from here on have never been used.
    used: AtomicUsize,
    /// Counts every time coverage moves between words. Bumped after it has appeared in the new word
    /// and before it leaves the old one.
    moves: AtomicU64,
}

/// 2^28 pages are 1 TiB; larger ranges take several words. 36 bits of page number are 48 of address.
const COUNT_BITS: u32 = 28;
const MAX_PAGES: u64 = (1 << COUNT_BITS) - 1;

/// A word taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pages {
    first: u64,
    end: u64,
}

impl Pages {
    fn unpack(word: u64) -> Option<Pages> {
        (word != 0).then(|| Pages { first: word >> COUNT_BITS, end: (word >> COUNT_BITS) + (word & MAX_PAGES) })
    }

    fn pack(self) -> u64 {
        if self.end <= self.first {
            return 0;
        }
        self.first << COUNT_BITS | (self.end - self.first)
    }

    fn fits(self) -> bool {
        self.end - self.first <= MAX_PAGES
    }
}

// All accesses are SeqCst: the argument about `moves` needs one order of appearing, bumping and
// vanishing, and nothing here is hot.
const ORDER: Ordering = Ordering::SeqCst;

impl<const N: usize> Table<N> {
    const fn new() -> Self {
        Table { words: [const { AtomicU64::new(0) }; N], used: AtomicUsize::new(0), moves: AtomicU64::new(0) }
    }

    fn used(&self) -> &[AtomicU64] {
        &self.words[..self.used.load(ORDER).min(N)]
    }

    /// Covers `start..end`; false, and nothing covered beyond what was, when there is no slot left.
    fn insert(&self, start: usize, end: usize) -> bool {
        let (mut first, end) = ((start / PAGE_SIZE) as u64, (end / PAGE_SIZE) as u64);
        while first < end {
            let piece = Pages { first, end: end.min(first + MAX_PAGES) };
            if !self.insert_piece(piece) {
                self.remove(start, first as usize * PAGE_SIZE);
                return false;
            }
            first = piece.end;
        }
        true
    }

    fn insert_piece(&self, new: Pages) -> bool {
        // 1. Covered already, or the neighbour of a range that can grow?
        for (index, slot) in self.used().iter().enumerate() {
            let word = slot.load(ORDER);
            let Some(old) = Pages::unpack(word) else {
                continue;
            };
            if old.first <= new.first && new.end <= old.end {
                return true;
            }
            let grown = Pages { first: old.first.min(new.first), end: old.end.max(new.end) };
            let touches = new.first <= old.end && old.first <= new.end;
            if touches && grown.fits() && slot.compare_exchange(word, grown.pack(), ORDER, ORDER).is_ok() {
                self.absorb_neighbour(index, grown);
                return true;
            }
        }
        // 2. A slot of its own.
        for (index, slot) in self.words.iter().enumerate() {
            // Readers look at slots below `used` only, so it is raised before the word appears.
            self.used.fetch_max(index + 1, ORDER);
            if slot.compare_exchange(0, new.pack(), ORDER, ORDER).is_ok() {
                return true;
            }
        }
        false
    }

    /// Merges one range that adjoins the one at `index` into it. Only saves slots: it may give up.
    ///
    /// The two must not overlap. Each page of the neighbour then gets one more word that covers it
    /// before it loses one, whatever other threads do to either word and even if the neighbour's slot
    /// was emptied and filled again meanwhile. Merging words that overlap has no such bookkeeping: two
    /// threads that found each the other's word to be superfluous would drop both.
    fn absorb_neighbour(&self, index: usize, range: Pages) {
        let home = &self.words[index];
        for slot in self.used() {
            let word = slot.load(ORDER);
            let Some(other) = Pages::unpack(word) else {
                continue;
            };
            let both = Pages { first: range.first.min(other.first), end: range.end.max(other.end) };
            let adjoins = other.first == range.end || other.end == range.first;
            if adjoins && both.fits() {
                if home.compare_exchange(range.pack(), both.pack(), ORDER, ORDER).is_ok() {
                    self.moves.fetch_add(1, ORDER);
                    // If `other` has changed meanwhile, both stay: the union is what counts.
                    let _ = slot.compare_exchange(word, 0, ORDER, ORDER);
                }
                return;
            }
        }
    }

    /// Uncovers `start..end`.
    fn remove(&self, start: usize, end: usize) {
        let gone = Pages { first: (start / PAGE_SIZE) as u64, end: (end / PAGE_SIZE) as u64 };
        if gone.end <= gone.first {
            return;
        }
        for slot in self.used() {
            loop {
                let word = slot.load(ORDER);
                let Some(old) = Pages::unpack(word) else {
                    break;
                };
                if old.end <= gone.first || gone.end <= old.first {
                    break;
                }
                let below = Pages { first: old.first, end: gone.first.max(old.first) };
                let above = Pages { first: gone.end.min(old.end), end: old.end };
                let stays = if below.pack() == 0 {
                    above
                } else {
                    // What lies above gets a slot of its own before this one shrinks. With no slot
                    // left it stays covered together with the hole: too much, never too little.
                    if above.pack() != 0 {
                        if !self.insert_apart(above) {
                            break;
                        }
                        self.moves.fetch_add(1, ORDER);
                    }
                    below
                };
                if slot.compare_exchange(word, stays.pack(), ORDER, ORDER).is_ok() {
                    break;
                }
            }
        }
    }

    /// Puts a range into an empty slot even if another covers it.
    fn insert_apart(&self, range: Pages) -> bool {
        for (index, slot) in self.words.iter().enumerate() {
            self.used.fetch_max(index + 1, ORDER);
            if slot.compare_exchange(0, range.pack(), ORDER, ORDER).is_ok() {
                return true;
            }
        }
        false
    }

    /// Calls `f(start, end)` for every range. One may come in several pieces, in no order, and a piece more than once.
    fn for_each(&self, mut f: impl FnMut(usize, usize)) {
        loop {
            let moves = self.moves.load(ORDER);
            for slot in self.used() {
                if let Some(range) = Pages::unpack(slot.load(ORDER)) {
                    f(range.first as usize * PAGE_SIZE, range.end as usize * PAGE_SIZE);
                }
            }
            if self.moves.load(ORDER) == moves {
                return;
            }
        }
    }

    fn next_gap(&self, from: usize, end: usize) -> Option<(usize, usize)> {
        // Every round either moves `start` up or ends; a range that covers `start` moves it.
        let mut start = from;
        while start < end {
            let mut covered_to = start;
            let mut gap_end = end;
            self.for_each(|s, e| {
                if s <= start && start < e {
                    covered_to = covered_to.max(e);
                } else if s > start {
                    gap_end = gap_end.min(s);
                }
            });
            if covered_to == start {
                return Some((start, gap_end));
            }
            start = covered_to;
        }
        None
    }
}

/// A page-aligned buffer of private memory, zero at first: for O_DIRECT, and for whole pages.
#[derive(Debug)]
pub struct AlignedBuffer {
    mapping: PrivateMapping,
    len: usize,
}

impl AlignedBuffer {
    /// A buffer of `len` bytes.
    pub fn new(len: usize) -> io::Result<AlignedBuffer> {
        Ok(AlignedBuffer { mapping: map(len, Purpose::Buffers)?, len })
    }

    /// Its first byte.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.mapping.as_ptr()
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has at least `len` bytes, initialised by the kernel, and is this value's
        // alone for as long as the borrow.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: usize = PAGE_SIZE;

    fn ranges<const N: usize>(table: &Table<N>) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        table.for_each(|s, e| all.push((s / P, e / P)));
        all.sort();
        all
    }

    #[test]
    fn neighbours_are_merged() {
        let table = Table::<8>::new();
        assert!(table.insert(10 * P, 12 * P));
        assert!(table.insert(14 * P, 16 * P));
        assert_eq!(ranges(&table), [(10, 12), (14, 16)]);
        assert!(table.insert(12 * P, 14 * P));
        assert_eq!(ranges(&table), [(10, 16)]);
        assert!(table.insert(8 * P, 10 * P));
        assert_eq!(ranges(&table), [(8, 16)]);
    }

    #[test]
    fn a_part_can_be_removed() {
        let table = Table::<8>::new();
        assert!(table.insert(10 * P, 20 * P));
        table.remove(12 * P, 14 * P);
        assert_eq!(ranges(&table), [(10, 12), (14, 20)]);
        table.remove(0, 11 * P);
        table.remove(19 * P, 30 * P);
        assert_eq!(ranges(&table), [(11, 12), (14, 19)]);
        table.remove(0, 100 * P);
        assert_eq!(ranges(&table), []);
    }

    #[test]
    fn a_full_table_refuses_and_keeps_what_it_has() {
        let table = Table::<2>::new();
        assert!(table.insert(10 * P, 11 * P));
        assert!(table.insert(20 * P, 21 * P));
        assert!(!table.insert(30 * P, 31 * P));
        assert!(table.insert(11 * P, 12 * P), "a neighbour needs no slot");
        assert_eq!(ranges(&table), [(10, 12), (20, 21)]);
    }

    #[test]
    fn a_range_larger_than_a_word_can_say_takes_several() {
        let table = Table::<8>::new();
        let end = 1 + MAX_PAGES as usize + 5;
        assert!(table.insert(P, end * P));
        assert_eq!(table.next_gap(0, (end + 9) * P), Some((0, P)));
        assert_eq!(table.next_gap(P, (end + 9) * P), Some((end * P, (end + 9) * P)));
    }

    #[test]
    fn gaps_are_what_the_ranges_leave() {
        let table = Table::<8>::new();
        assert!(table.insert(10 * P, 12 * P));
        assert!(table.insert(15 * P, 18 * P));
        assert_eq!(table.next_gap(5 * P, 20 * P), Some((5 * P, 10 * P)));
        assert_eq!(table.next_gap(10 * P, 20 * P), Some((12 * P, 15 * P)));
        assert_eq!(table.next_gap(15 * P, 20 * P), Some((18 * P, 20 * P)));
        assert_eq!(table.next_gap(15 * P, 18 * P), None);
        assert_eq!(table.next_gap(20 * P, 20 * P), None);
    }

    #[test]
    fn no_reader_misses_a_standing_range_while_neighbours_come_and_go() {
        let table = &Table::<64>::new();
        // Pages 100..101, 104..105, ... stand still; what lies between them comes and goes, so that
        // words merge and split all the time.
        for i in 0..8 {
            assert!(table.insert((100 + 4 * i) * P, (101 + 4 * i) * P));
        }
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|w| {
                    scope.spawn(move || {
                        for round in 0..4000 {
                            let gap = (round + w) % 4 * 2 + w;
                            let (s, e) = ((101 + 4 * gap) * P, (104 + 4 * gap) * P);
                            assert!(table.insert(s, e));
                            table.remove(s, e);
                        }
                    })
                })
                .collect();
            while !writers.iter().all(|w| w.is_finished()) {
                for i in 0..8 {
                    let page = (100 + 4 * i) * P;
                    assert_eq!(table.next_gap(page, page + P), None);
                }
            }
        });
    }

    #[test]
    fn a_mapping_is_in_the_table_as_long_as_it_lives() {
        let mapping = map(3 * P + 1, Purpose::Tables).unwrap();
        let (start, end) = (mapping.start(), mapping.end());
        assert_eq!(end - start, 4 * P);
        assert!(overlaps(end - 1, end) && next_gap(start, end).is_none());
        assert!(mapped_bytes(Purpose::Tables) >= 4 * P);
        drop(mapping);
        assert_eq!(next_gap(start, end), Some((start, end)));
    }

    #[test]
    fn noted_ranges_are_widened_and_forgotten() {
        // Far from anything mapped.
        let start = 0x10_0000_0000;
        assert!(note(start + 5, start + P + 5));
        assert_eq!(next_gap(start, start + 3 * P), Some((start + 2 * P, start + 3 * P)));
        forget(start, start + 2 * P);
        assert!(!overlaps(start, start + 2 * P));
    }

    #[test]
    fn a_buffer_is_aligned_and_zero() {
        let mut buffer = AlignedBuffer::new(100).unwrap();
        assert!(buffer.as_mut_ptr().addr().is_multiple_of(P));
        assert_eq!(buffer.len(), 100);
        assert!(buffer.iter().all(|&b| b == 0));
        buffer[99] = 7;
    }
}
