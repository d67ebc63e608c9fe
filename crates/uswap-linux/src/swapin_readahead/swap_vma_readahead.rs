//! VMA readahead: the neighbours of a page in its mapping (`swap_vma_readahead`).
//!
//! Each mapping has a state of its own, packed into one word: hits in bits 0 to 5, the last window in bits 6 to 11, the
//! address of the last fault from bit 12 on. A read goes to whatever slot each neighbour's PTE names, one page a request.

use core::ops::Range;

use super::window::window;
use uswap_core::units::{LEAF_PAGES, PageNumber, PageRange};

/// `page_cluster` beyond this is not followed: windows are at most 32 pages.
const ORDER_MAX: u32 = 5;
/// What a mapping without faults is taken to have had.
const FIRST_HITS: u32 = 4;

const FIELD: u64 = 0x3f;
const WINDOW_SHIFT: u32 = 6;
const PAGE_SHIFT: u32 = 12;

/// The word of one mapping. Linux 4.14 to 7.3.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VmaReadahead(u64);

/// Pages that are read together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageWindow {
    /// What the window rule said, in pages.
    pub window: u32,
    /// The pages of the window that lie in the mapping and in the 2 MiB of the fault. Pages without a swap PTE are skipped by
    /// whoever reads.
    pub pages: Range<u64>,
}

impl VmaReadahead {
    fn pack(page: PageNumber, window: u32, hits: u32) -> Self {
        Self(page.0 << PAGE_SHIFT | u64::from(window) << WINDOW_SHIFT | u64::from(hits))
    }

    /// The word as the kernel keeps it; 0 for a mapping that has had no fault.
    pub fn word(self) -> u64 {
        self.0
    }

    fn previous_page(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }

    fn window(self) -> u32 {
        (self.0 >> WINDOW_SHIFT & FIELD) as u32
    }

    fn hits(self) -> u32 {
        if self.0 == 0 { FIRST_HITS } else { (self.0 & FIELD) as u32 }
    }

    /// `page` was wanted and found in the swap cache; `ahead` tells whether readahead brought it. Either way the next miss is
    /// measured from here.
    pub fn found(&mut self, page: PageNumber, ahead: bool) {
        let hits = (self.hits() + u32::from(ahead)).min(FIELD as u32);
        *self = Self::pack(page, self.window(), hits);
    }

    /// The pages to read for a miss at `page` of the mapping `region`. Windows are at most `2^page_cluster` pages, and at most
    /// 32; with 0 there is no readahead and nothing is noted.
    pub fn miss(&mut self, page: PageNumber, region: PageRange, page_cluster: u32) -> PageWindow {
        debug_assert!(region.contains(page));
        if page_cluster == 0 {
            return PageWindow { window: 1, pages: page.0..page.0 + 1 };
        }
        let previous = self.previous_page();
        let window = window(previous, page.0, self.hits(), 1 << page_cluster.min(ORDER_MAX), self.window());
        *self = Self::pack(page, window, 0);
        let wide = u64::from(window);
        let before = match page.0 {
            next if next == previous + 1 => 0,
            last if last + 1 == previous => wide - 1,
            _ => (wide - 1) / 2,
        };
        let start = page.0.saturating_sub(before);
        let leaf = page.0 & !(LEAF_PAGES as u64 - 1);
        let first = start.max(region.start.0).max(leaf);
        let end = (page.0 + wide - before).min(region.end().0).min(leaf + LEAF_PAGES as u64);
        PageWindow { window, pages: first..end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: PageRange = PageRange { start: PageNumber(0), pages: 4096 };

    fn miss(state: &mut VmaReadahead, page: u64) -> PageWindow {
        state.miss(PageNumber(page), REGION, 3)
    }

    #[test]
    fn t3e_a_fresh_mapping_reads_around_its_first_miss_and_then_ahead() {
        let mut state = VmaReadahead::default();
        assert_eq!(miss(&mut state, 100), PageWindow { window: 8, pages: 97..105 });
        (101..105).for_each(|page| state.found(PageNumber(page), true));
        assert_eq!(miss(&mut state, 105), PageWindow { window: 8, pages: 105..113 });
    }

    #[test]
    fn a_miss_below_the_last_page_reads_backwards() {
        let mut state = VmaReadahead::default();
        let _ = miss(&mut state, 100);
        assert_eq!(miss(&mut state, 99), PageWindow { window: 4, pages: 96..100 });
    }

    #[test]
    fn a_window_ends_at_the_page_table_page_and_at_the_mapping() {
        let mut state = VmaReadahead::default();
        assert_eq!(miss(&mut state, 513).pages, 512..518);
        let mut state = VmaReadahead::default();
        assert_eq!(miss(&mut state, 510).pages, 507..512);
        let mut state = VmaReadahead::default();
        let region = PageRange { start: PageNumber(99), pages: 3 };
        assert_eq!(state.miss(PageNumber(100), region, 3).pages, 99..102);
    }

    #[test]
    fn a_window_is_never_larger_than_32_pages() {
        let mut state = VmaReadahead::default();
        for page in 0..60 {
            state.found(PageNumber(page), true);
        }
        assert_eq!(state.miss(PageNumber(60), REGION, 9).window, 32);
    }

    #[test]
    fn hits_saturate_and_do_not_spill_into_the_window() {
        let mut state = VmaReadahead::default();
        let _ = miss(&mut state, 100);
        for _ in 0..200 {
            state.found(PageNumber(100), true);
        }
        assert_eq!((state.hits(), state.window(), state.previous_page()), (63, 8, 100));
        assert_eq!(state.word(), 100 << 12 | 8 << 6 | 63);
    }

    #[test]
    fn a_page_that_readahead_did_not_bring_moves_the_place_but_is_no_hit() {
        let mut state = VmaReadahead::default();
        let _ = miss(&mut state, 100);
        state.found(PageNumber(200), false);
        assert_eq!(state.hits(), 0);
        assert_eq!(miss(&mut state, 201).pages, 201..205);
    }
}
