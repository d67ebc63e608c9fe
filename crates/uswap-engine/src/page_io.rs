//! Reads and writes of single pages, carried out in runs, and what becomes of a failed one.
//!
//! Callers think in pages: this slot, that page of memory. A store works best on runs: neighbouring slots to
//! neighbouring memory, one transfer. [`PageBatch`] sorts pages by slot, joins runs, transfers them, and hands each page
//! its own outcome.
//!
//! A run that failed is tried once more page by page, so that one bad sector costs one page. Not when there is no
//! space: the pages of a run then share their fate. What the kernel asks to try again the store has tried already.
#![allow(unsafe_code)]

use uswap_sys::ring::Ring;
use uswap_system::System;

use crate::store::{IoOutcome, PageIo, SLOT_BYTES, Store, StoreError};

/// Pages in the longest run: a cluster of 2 MiB.
pub const RUN_PAGES_MAX: u32 = 512;

/// One page of memory, and the slot that it is read from or written to.
#[derive(Debug)]
pub struct SlotPage {
    slot: u64,
    address: *mut u8,
    /// Whatever the caller wants to know the page by: a batch is sorted by slot.
    pub tag: u64,
    outcome: IoOutcome,
}

// SAFETY: as for `PageIo`: the memory belongs to the transfer on whichever thread.
unsafe impl Send for SlotPage {}

impl SlotPage {
    /// A page of memory at `address` for the content of `slot`.
    ///
    /// # Safety
    /// During the call of [`PageBatch::read`] or [`PageBatch::write`] with this page, the 4096 bytes at `address` are
    /// as [`PageIo::new`] wants them.
    pub unsafe fn new(slot: u64, address: *mut u8, tag: u64) -> SlotPage {
        SlotPage { slot, address, tag, outcome: IoOutcome::Pending }
    }

    /// The slot.
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// What became of the transfer of this page.
    pub fn outcome(&self) -> IoOutcome {
        self.outcome
    }

    fn is_followed_by(&self, next: &SlotPage) -> bool {
        self.slot + 1 == next.slot && self.address.addr() + SLOT_BYTES == next.address.addr()
    }

    /// A transfer of this page and the `pages - 1` after it.
    fn io(&self, pages: u32) -> PageIo {
        // SAFETY: promised for each of the pages in `SlotPage::new`, and they follow each other in memory.
        unsafe { PageIo::new(self.slot, self.address, pages) }
    }
}

/// Room for the transfers of a batch, to be used again and again: a thread of the fault path makes one when it starts
/// and allocates nothing afterwards.
pub struct PageBatch {
    ios: Vec<PageIo>,
}

impl PageBatch {
    /// Room for `runs` transfers at a time. A batch of more runs goes in several rounds.
    pub fn with_capacity(runs: usize) -> PageBatch {
        PageBatch { ios: Vec::with_capacity(runs.max(1)) }
    }

    /// Reads each page. Sorts `pages` by slot; afterwards each has its outcome.
    ///
    /// # Panics
    /// When a slot appears twice.
    pub fn read<S: System>(&mut self, store: &dyn Store, ring: &mut Ring, pages: &mut [SlotPage]) {
        S::call(|| self.transfer(pages, &mut |ios| store.read(ring, ios)));
    }

    /// Writes each page. Sorts `pages` by slot; afterwards each has its outcome.
    ///
    /// # Panics
    /// When a slot appears twice.
    pub fn write<S: System>(&mut self, store: &dyn Store, ring: &mut Ring, pages: &mut [SlotPage]) {
        S::call(|| self.transfer(pages, &mut |ios| store.write(ring, ios)));
    }

    fn transfer(&mut self, pages: &mut [SlotPage], transfer: &mut dyn FnMut(&mut [PageIo])) {
        // In place: a stable sort would allocate.
        pages.sort_unstable_by_key(|page| page.slot);
        for pair in pages.windows(2) {
            assert!(pair[0].slot != pair[1].slot, "slot {} is transferred twice in one batch", pair[0].slot);
        }
        for page in pages.iter_mut() {
            page.outcome = IoOutcome::Pending;
        }
        self.rounds(pages, RUN_PAGES_MAX, transfer, &mut |ios, pages| {
            let mut pages = pages.iter_mut();
            for io in ios {
                let outcome = match io.outcome() {
                    // Left pending: it goes page by page below.
                    IoOutcome::Failed(error) if io.pages() > 1 && is_worth_splitting(error) => IoOutcome::Pending,
                    outcome => outcome,
                };
                for page in pages.by_ref().take(io.pages() as usize) {
                    page.outcome = outcome;
                }
            }
        });
        for failed in pages.chunk_by_mut(|a, b| a.outcome == b.outcome) {
            if failed[0].outcome == IoOutcome::Pending {
                self.rounds(failed, 1, transfer, &mut |ios, pages| {
                    for (io, page) in ios.iter().zip(pages) {
                        page.outcome = io.outcome();
                    }
                });
            }
        }
    }

    /// Makes runs of at most `run_pages_max` of the sorted pages, as many as there is room for at a time; transfers
    /// them; and shows the transfers to `settle`, together with the pages that they cover in the same order.
    fn rounds(
        &mut self,
        mut pages: &mut [SlotPage],
        run_pages_max: u32,
        transfer: &mut dyn FnMut(&mut [PageIo]),
        settle: &mut dyn FnMut(&[PageIo], &mut [SlotPage]),
    ) {
        while !pages.is_empty() {
            self.ios.clear();
            let mut covered = 0;
            while covered < pages.len() && self.ios.len() < self.ios.capacity() {
                let run = &pages[covered..];
                let joined = run
                    .windows(2)
                    .take(run_pages_max as usize - 1)
                    .take_while(|pair| pair[0].is_followed_by(&pair[1]))
                    .count();
                self.ios.push(run[0].io(joined as u32 + 1));
                covered += joined + 1;
            }
            transfer(&mut self.ios);
            let (done, rest) = pages.split_at_mut(covered);
            settle(&self.ios, done);
            pages = rest;
        }
    }
}

/// Whether single pages of a failed run may fare better.
fn is_worth_splitting(error: StoreError) -> bool {
    match error {
        StoreError::Io(_) | StoreError::Short => true,
        StoreError::NoSpace => false,
    }
}

#[cfg(test)]
mod tests {
    use uswap_sys::linux::Linux;

    use super::*;
    use crate::store::faulty::{FaultKind, FaultPlan, FaultyStore};
    use crate::store::tests::{Pages, memory_store};
    use std::sync::Mutex;

    /// Remembers the transfers it was given, and fails those that touch a bad slot.
    struct Recorder<S> {
        store: S,
        bad: Vec<u64>,
        error: StoreError,
        seen: Mutex<Vec<(u64, u32)>>,
    }

    impl<S: Store> Recorder<S> {
        fn new(store: S, bad: &[u64], error: StoreError) -> Recorder<S> {
            Recorder { store, bad: bad.to_vec(), error, seen: Mutex::default() }
        }
        fn see(&self, batch: &mut [PageIo], mut pass_on: impl FnMut(&mut [PageIo])) {
            for io in batch {
                self.seen.lock().unwrap().push((io.slot(), io.pages()));
                let slots = io.slot()..io.slot() + u64::from(io.pages());
                if self.bad.iter().any(|slot| slots.contains(slot)) {
                    io.fail(self.error);
                } else {
                    pass_on(std::slice::from_mut(io));
                }
            }
        }
        fn seen(&self) -> Vec<(u64, u32)> {
            std::mem::take(&mut self.seen.lock().unwrap())
        }
    }

    impl<S: Store> Store for Recorder<S> {
        fn read(&self, ring: &mut Ring, batch: &mut [PageIo]) {
            self.see(batch, |batch| self.store.read(ring, batch));
        }
        fn write(&self, ring: &mut Ring, batch: &mut [PageIo]) {
            self.see(batch, |batch| self.store.write(ring, batch));
        }
        fn discard(&self, slot: u64, pages: u32) {
            self.store.discard(slot, pages);
        }
    }

    /// The pages of `memory` at these (slot, page) pairs; the tag is the page.
    fn slot_pages(memory: &mut Pages, pairs: &[(u64, usize)]) -> Vec<SlotPage> {
        let start = memory.io(1, 0, 1).address();
        pairs
            .iter()
            .map(|&(slot, page)| {
                // SAFETY: each test keeps `memory` and leaves it alone during the transfer.
                unsafe { SlotPage::new(slot, start.add(page * SLOT_BYTES), page as u64) }
            })
            .collect()
    }

    fn ring() -> Ring {
        Ring::new_or_synchronous(8)
    }

    #[test]
    fn neighbours_in_slots_and_memory_go_in_one_transfer() {
        let store = Recorder::new(memory_store(100), &[], StoreError::Short);
        let mut memory = Pages::each(20, |i| i as u8 + 1);
        // Runs: slots 5-7 in pages 2-4; slot 8 follows, but in page 9; slots 20-21 in pages 0-1; slot 22 in page 5.
        let pairs = [(7, 4), (22, 5), (5, 2), (21, 1), (8, 9), (6, 3), (20, 0)];
        let mut pages = slot_pages(&mut memory, &pairs);
        let mut batch = PageBatch::with_capacity(16);
        batch.write::<Linux>(&store, &mut ring(), &mut pages);
        assert_eq!(store.seen(), [(5, 3), (8, 1), (20, 2), (22, 1)]);
        assert!(pages.iter().all(|page| page.outcome() == IoOutcome::Done));

        let mut back = Pages::filled(20, 0);
        let mut pages = slot_pages(&mut back, &pairs);
        batch.read::<Linux>(&store, &mut ring(), &mut pages);
        for page in &pages {
            assert_eq!(page.outcome(), IoOutcome::Done);
            assert!(pairs.contains(&(page.slot(), page.tag as usize)));
            assert!(back.is(page.tag as usize, page.tag as u8 + 1));
        }
    }

    #[test]
    fn a_batch_with_more_runs_than_room_goes_in_rounds() {
        let store = memory_store(300);
        let mut memory = Pages::each(100, |i| i as u8 + 1);
        let pairs: Vec<(u64, usize)> = (0..100).map(|i| (1 + i as u64 * 2, i)).collect();
        let mut batch = PageBatch::with_capacity(7);
        let room = batch.ios.capacity();
        let mut pages = slot_pages(&mut memory, &pairs);
        batch.write::<Linux>(&store, &mut ring(), &mut pages);
        let mut back = Pages::filled(100, 0);
        let mut pages = slot_pages(&mut back, &pairs);
        batch.read::<Linux>(&store, &mut ring(), &mut pages);
        assert_eq!(batch.ios.capacity(), room, "it grew");
        for (i, page) in pages.iter().enumerate() {
            assert_eq!(page.outcome(), IoOutcome::Done);
            assert!(back.is(i, i as u8 + 1));
        }
    }

    #[test]
    fn a_run_is_no_longer_than_a_cluster() {
        let store = Recorder::new(memory_store(1200), &[], StoreError::Short);
        let mut memory = Pages::filled(1100, 1);
        let pairs: Vec<(u64, usize)> = (0..1100).map(|i| (1 + i as u64, i)).collect();
        let mut pages = slot_pages(&mut memory, &pairs);
        PageBatch::with_capacity(4).write::<Linux>(&store, &mut ring(), &mut pages);
        assert_eq!(store.seen(), [(1, 512), (513, 512), (1025, 76)]);
    }

    #[test]
    fn a_bad_slot_costs_one_page_of_its_run() {
        for (error, capacity) in [(StoreError::Io(5), 16), (StoreError::Short, 2)] {
            let store = Recorder::new(memory_store(100), &[12, 40], error);
            let mut memory = Pages::each(60, |i| i as u8 + 1);
            let pairs: Vec<(u64, usize)> = (10..16).chain(20..24).chain(38..43).map(|i| (i as u64, i)).collect();
            let mut pages = slot_pages(&mut memory, &pairs);
            let mut batch = PageBatch::with_capacity(capacity);
            batch.write::<Linux>(&store, &mut ring(), &mut pages);
            for page in &pages {
                let expected =
                    if store.bad.contains(&page.slot()) { IoOutcome::Failed(error) } else { IoOutcome::Done };
                assert_eq!(page.outcome(), expected, "slot {}", page.slot());
            }
            // The good pages of the bad runs were written.
            let mut back = Pages::filled(60, 0);
            let mut pages = slot_pages(&mut back, &pairs);
            batch.read::<Linux>(&store.store, &mut ring(), &mut pages);
            for page in &pages {
                let expected = if store.bad.contains(&page.slot()) { 0 } else { page.tag as u8 + 1 };
                assert!(back.is(page.tag as usize, expected));
            }
        }
    }

    #[test]
    fn a_run_without_space_is_not_split() {
        let store = Recorder::new(memory_store(100), &[12], StoreError::NoSpace);
        let mut memory = Pages::filled(8, 1);
        let pairs: Vec<(u64, usize)> = (0..8).map(|i| (10 + i as u64, i)).collect();
        let mut pages = slot_pages(&mut memory, &pairs);
        PageBatch::with_capacity(4).write::<Linux>(&store, &mut ring(), &mut pages);
        assert_eq!(store.seen(), [(10, 8)]);
        let failed = IoOutcome::Failed(StoreError::NoSpace);
        assert!(pages.iter().all(|page| page.outcome() == failed));
    }

    #[test]
    fn every_failure_reaches_its_page() {
        for kind in [FaultKind::ReadEio, FaultKind::ShortRead] {
            let store = FaultyStore::new(memory_store(100), FaultPlan::always(kind));
            let mut memory = Pages::filled(8, 1);
            let pairs: Vec<(u64, usize)> = (0..8).map(|i| (10 + i as u64 * 3, i)).collect();
            let mut pages = slot_pages(&mut memory, &pairs);
            PageBatch::with_capacity(4).read::<Linux>(&store, &mut ring(), &mut pages);
            assert!(pages.iter().all(|page| matches!(page.outcome(), IoOutcome::Failed(_))));
        }
    }

    #[test]
    fn pages_are_used_again_after_a_transfer() {
        let store = memory_store(100);
        let mut memory = Pages::filled(2, 1);
        let mut pages = slot_pages(&mut memory, &[(3, 0), (4, 1)]);
        let mut batch = PageBatch::with_capacity(4);
        batch.write::<Linux>(&store, &mut ring(), &mut pages);
        batch.write::<Linux>(&store, &mut ring(), &mut pages);
        assert!(pages.iter().all(|page| page.outcome() == IoOutcome::Done));
        batch.write::<Linux>(&store, &mut ring(), &mut []);
    }

    #[test]
    #[should_panic(expected = "slot 3 is transferred twice")]
    fn a_slot_twice_in_a_batch_stops_us() {
        let mut memory = Pages::filled(2, 1);
        let mut pages = slot_pages(&mut memory, &[(3, 0), (3, 1)]);
        PageBatch::with_capacity(4).read::<Linux>(&memory_store(10), &mut ring(), &mut pages);
    }
}
