//! Readahead by address: the neighbours of a page in its mapping, as the kernel's (`swap_vma_readahead` in mm/swap_state.c).
//!
//! Each mapping remembers where it was asked for a page last, and how many of the pages that came along were wanted since. By
//! these the window grows and shrinks; it lies behind a fault that goes on forwards, before one that goes on backwards, and
//! around any other. What we know as a mapping is a run of adopted pages.

use crate::units::{BLOCK_PAGES, LEAF_PAGES, PageNumber, PageRange};

/// Mappings that are remembered; others with the same place in the table make each other forget.
const MAPPINGS: usize = 64;
/// What a mapping is taken to have had before its first fault.
const FIRST_HITS: u32 = 4;
/// More are not counted.
const HITS_MAX: u32 = 63;

#[derive(Clone, Copy)]
struct Mapping {
    /// Its first page.
    start: PageNumber,
    /// The page that was asked for last.
    previous: u64,
    window: u32,
    hits: u32,
}

/// The mappings.
#[derive(Clone)]
pub(crate) struct ByAddress {
    mappings: [Mapping; MAPPINGS],
    max: u32,
}

impl ByAddress {
    /// Windows are at most `max` pages, and at most a block.
    pub fn new(max: u32) -> Self {
        let none = Mapping { start: PageNumber(u64::MAX), previous: 0, window: 0, hits: FIRST_HITS };
        Self { mappings: [none; MAPPINGS], max: max.clamp(1, BLOCK_PAGES as u32) }
    }

    /// Pages to read for a fault at `page` of `mapping`: the first, and how many.
    pub fn window(&mut self, page: PageNumber, mapping: PageRange) -> (PageNumber, u32) {
        let max = self.max;
        let known = self.known(mapping);
        let previous = core::mem::replace(&mut known.previous, page.0);
        let wanted = match core::mem::take(&mut known.hits) {
            0 if page.0.abs_diff(previous) == 1 => 2,
            0 => 1,
            hits => (hits + 2).next_power_of_two().max(4),
        };
        known.window = wanted.min(max).max(known.window / 2);
        let wide = u64::from(known.window);
        let before = match page.0 {
            next if next == previous + 1 => 0,
            last if last + 1 == previous => wide - 1,
            _ => (wide - 1) / 2,
        };
        // The kernel looks at one page of page-table entries.
        let leaf = page.0 & !(LEAF_PAGES as u64 - 1);
        let first = page.0.saturating_sub(before).max(mapping.start.0).max(leaf);
        let end = (page.0 + wide - before).min(mapping.end().0).min(leaf + LEAF_PAGES as u64);
        (PageNumber(first), (end - first) as u32)
    }

    /// A thread has found `page` of `mapping` in the swap cache; `came_along`: this brought it there.
    pub fn found(&mut self, page: PageNumber, mapping: PageRange, came_along: bool) {
        let known = self.known(mapping);
        known.hits = (known.hits + u32::from(came_along)).min(HITS_MAX);
        known.previous = page.0;
    }

    fn known(&mut self, mapping: PageRange) -> &mut Mapping {
        // Mappings lie anywhere: a step of Knuth's multiplicative hash.
        let place = mapping.start.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        let known = &mut self.mappings[place as usize % MAPPINGS];
        if known.start != mapping.start {
            *known = Mapping { start: mapping.start, previous: 0, window: 0, hits: FIRST_HITS };
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPPING: PageRange = PageRange { start: PageNumber(64), pages: 4000 };

    fn window(by_address: &mut ByAddress, page: u64) -> core::ops::Range<u64> {
        let (first, pages) = by_address.window(PageNumber(page), MAPPING);
        first.0..first.0 + u64::from(pages)
    }

    #[test]
    fn a_window_lies_around_a_first_fault_and_where_a_stream_goes_on() {
        let mut by_address = ByAddress::new(8);
        assert_eq!(window(&mut by_address, 100), 97..105);
        (101..105).for_each(|page| by_address.found(PageNumber(page), MAPPING, true));
        assert_eq!(window(&mut by_address, 105), 105..113);
        assert_eq!(window(&mut by_address, 104), 101..105, "half of the last window, backwards");
    }

    #[test]
    fn a_window_that_is_not_wanted_shrinks_to_the_page_alone() {
        let mut by_address = ByAddress::new(8);
        let sizes = [100, 900, 300, 1500, 700].map(|page| window(&mut by_address, page).count());
        assert_eq!(sizes, [8, 4, 2, 1, 1]);
    }

    #[test]
    fn a_window_ends_with_its_mapping_and_its_leaf() {
        assert_eq!(window(&mut ByAddress::new(8), 65), 64..70);
        assert_eq!(window(&mut ByAddress::new(8), 511), 508..512);
        assert_eq!(window(&mut ByAddress::new(8), 512), 512..517);
        assert_eq!(window(&mut ByAddress::new(1), 700), 700..701);
    }

    #[test]
    fn each_mapping_has_its_own_window() {
        let mut by_address = ByAddress::new(8);
        let other = PageRange { start: PageNumber(100_000), pages: 64 };
        let _ = window(&mut by_address, 100);
        let _ = window(&mut by_address, 3000);
        assert_eq!(by_address.window(PageNumber(100_020), other).1, 8);
        assert_eq!(window(&mut by_address, 2000).count(), 2);
    }
}
