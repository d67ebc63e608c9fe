//! Pages that the kernel writes to when a thread ends.
//!
//! A thread that ends clears its tid in its control block and wakes whoever joins it (CLONE_CHILD_CLEARTID). For a task that
//! is ending the kernel takes no userfault: the write to a page that is swapped out just fails, and the joiner waits for
//! ever. So these pages stay in memory: one for each thread, which tells of itself before it begins (the agent's
//! `threads.rs`). (Restartable sequences, glibc 2.35 and later, have the kernel touch the same page at each change of threads;
//! so the page is rarely out.) A page is never taken off the list; glibc uses the stacks of ended threads again, and what has become of one otherwise is a page
//! that stays.

use uswap_core::{PAGE_SIZE, PageNumber};
use uswap_system::atomic::{AtomicUsize, Ordering::*};

/// Bytes from the control block's start that hold the tid, and the list of robust mutexes behind it.
const USED_BYTES: usize = 1024;
const PLACES: usize = 4096;
/// Places that a page may be in. In a table that is fuller than that, a page takes the place of another.
const PROBES: usize = 16;

/// The pages of control blocks: page numbers; 0: free.
pub struct ControlBlocks([AtomicUsize; PLACES]);

impl ControlBlocks {
    pub(crate) const fn new() -> ControlBlocks {
        ControlBlocks([const { AtomicUsize::new(0) }; PLACES])
    }

    /// A thread's control block is at `address`: the value of a pthread_t. Needs neither heap nor lock.
    pub fn keep(&self, address: usize) {
        for byte in [address, address + USED_BYTES - 1] {
            self.insert(byte / PAGE_SIZE);
        }
    }

    /// Which of the `pages` pages from `first` on have to stay.
    pub(crate) fn kept(&self, first: PageNumber, pages: usize) -> u16 {
        let kept = (0..pages).filter(|&index| self.contains(first.plus(index as u64).0 as usize));
        kept.fold(0, |mask, index| mask | 1 << index)
    }

    /// All of them, in order.
    pub(crate) fn all(&self) -> Vec<PageNumber> {
        let listed = self.0.iter().map(|place| place.load(Acquire)).filter(|&page| page != 0);
        let mut pages: Vec<PageNumber> = listed.map(|page| PageNumber(page as u64)).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    fn places(&self, page: usize) -> impl Iterator<Item = &AtomicUsize> {
        // Control blocks lie at equal distances: Fibonacci hashing spreads them.
        let start = page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (start..start + PROBES).map(|place| &self.0[place % PLACES])
    }

    fn insert(&self, page: usize) {
        if self.contains(page)
            || self.places(page).any(|place| place.compare_exchange(0, page, AcqRel, Relaxed).is_ok())
        {
            return;
        }
        if let Some(place) = self.places(page).next() {
            place.store(page, Release);
        }
    }

    fn contains(&self, page: usize) -> bool {
        self.places(page).map(|place| place.load(Acquire)).take_while(|&kept| kept != 0).any(|kept| kept == page)
    }
}

#[cfg(all(test, uswap_words))]
mod words;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_is_found() {
        let table = ControlBlocks::new();
        // Stacks of 8 MiB and their guard pages, as glibc maps them.
        let pages: Vec<usize> = (0..2000).map(|thread| 0x7_f000_0000 - thread * 2049).collect();
        pages.iter().for_each(|&page| table.insert(page));
        assert!(pages.iter().all(|&page| table.contains(page)));
        assert!(!pages.iter().any(|&page| table.contains(page + 1)));
        pages.iter().for_each(|&page| table.insert(page));
        assert_eq!(table.0.iter().filter(|place| place.load(Relaxed) != 0).count(), 2000, "none is in there twice");
    }

    #[test]
    fn in_a_full_table_the_newest_is_found() {
        let table = ControlBlocks::new();
        (1..20_000).for_each(|page| table.insert(page * 2049));
        assert!(table.contains(19_999 * 2049));
    }

    #[test]
    fn a_block_that_straddles_pages_keeps_both() {
        let table = ControlBlocks::new();
        table.keep(0x5000_0000_0000 + PAGE_SIZE - 64);
        assert_eq!(table.kept(PageNumber::containing(0x5000_0000_0000), 16), 0b11);
    }
}
