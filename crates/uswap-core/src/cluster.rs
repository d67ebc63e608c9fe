//! Cluster readahead: what comes along with a page that is read from an area, when no stream says what is next.
//!
//! A device reads 16 pages in little more time than one, and pages that left together lie side by side. So a fault of no
//! stream reads its neighbours too. Unlike the pages of a stream they are not mapped: they rest in the swap cache, where a
//! touch shows that they were wanted, and where the others are dropped without a write. The window grows while at least
//! half of them are wanted and shrinks while less than a quarter is, down to the faulting page alone; from there a few
//! faults now and then try again.

use crate::units::{BLOCK_PAGES, PageNumber};

/// Outcomes that make a judgement.
const JUDGED: u32 = 128;
/// When the window is one page, every fault of this many reads `PROBE_PAGES`.
const PROBE_EVERY: u32 = 64;
const PROBE_PAGES: u32 = 4;

/// The window of this moment, and how the last ones did.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// A power of two.
    pages: u32,
    wanted: u32,
    wasted: u32,
    faults: u32,
    /// Pages that were wanted since [`take_hits`](Self::take_hits).
    hits: u32,
    max: u32,
}

impl Cluster {
    /// Windows are at most `max` pages, and at most a block.
    pub fn new(max: u32) -> Self {
        let max = 1 << max.clamp(1, BLOCK_PAGES as u32).ilog2();
        Self { pages: max.min(8), wanted: 0, wasted: 0, faults: 0, hits: 0, max }
    }

    /// Pages to read for a fault at `page`: the first, and how many. Aligned, so that it stays inside a block.
    pub fn window(&mut self, page: PageNumber) -> (PageNumber, u32) {
        self.faults = self.faults.wrapping_add(1);
        let probes = self.pages == 1 && self.faults.is_multiple_of(PROBE_EVERY);
        let pages = if probes { PROBE_PAGES.min(self.max) } else { self.pages };
        (PageNumber(page.0 & !u64::from(pages - 1)), pages)
    }

    /// A page that came along was touched.
    pub fn wanted(&mut self) {
        self.wanted += 1;
        self.hits += 1;
        self.judge();
    }

    /// A page that came along was dropped untouched.
    pub fn wasted(&mut self) {
        self.wasted += 1;
        self.judge();
    }

    fn judge(&mut self) {
        if self.wanted + self.wasted < JUDGED {
            return;
        }
        if self.wanted * 2 >= JUDGED {
            self.pages = (self.pages * 2).min(self.max);
        } else if self.wanted * 4 < JUDGED {
            self.pages = (self.pages / 2).max(1);
        }
        (self.wanted, self.wasted) = (0, 0);
    }

    /// Pages that were wanted since the last call.
    pub fn take_hits(&mut self) -> u32 {
        core::mem::take(&mut self.hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Core, CoreConfig};
    use crate::entry::{AreaId, Location};
    use crate::fault::{FaultPlan, FrameLeft, LoadPlan};
    use crate::page_table::PageState;
    use crate::policies::{Policies, ReadaheadPolicy};
    use crate::swapout::StoreResult;
    use crate::units::PageRange;

    /// Pages 16 to 31 on slots side by side, and a block of free frames.
    fn swapped() -> Core {
        swapped_with(ReadaheadPolicy::Stream)
    }

    fn swapped_with(readahead: ReadaheadPolicy) -> Core {
        let policies = Policies { readahead, ..Policies::default() };
        let mut core = Core::new(CoreConfig {
            frame_blocks: 4,
            area_slots: alloc::vec![1024],
            window_max: 16,
            policies,
            ..CoreConfig::default()
        });
        core.adopt(PageRange { start: PageNumber(0), pages: 64 });
        core.slots_mut(AreaId(0)).grant(0);
        for index in 0..16 {
            let slot = core.slots_mut(AreaId(0)).alloc().unwrap();
            let entry = core.table.insert(Location::Slot { area: AreaId(0), slot }, u128::from(index));
            core.pages.set(PageNumber(16 + index), PageState::Swapped { entry });
        }
        core.counts.swapped_pages = 16;
        let block = core.cache.take_empty_block().unwrap();
        for index in 0..16 {
            core.cache.cached(block.frame(index), PageNumber(0), None);
        }
        while let Some(frame) = core.cache.take_inactive() {
            core.cache.release(frame);
        }
        core
    }

    fn load(core: &mut Core, page: u64) -> LoadPlan {
        match core.fault(PageNumber(page), false) {
            FaultPlan::Load(plan) => plan,
            other => panic!("{other:?}"),
        }
    }

    fn pages_of(plan: &LoadPlan) -> (u64, usize) {
        (plan.pages()[0].page.0, plan.count)
    }

    #[test]
    fn neighbours_come_along_into_the_swap_cache() {
        let mut core = swapped();
        let plan = load(&mut core, 21);
        assert_eq!((pages_of(&plan), plan.mapped()), ((16, 8), 5..6));
        core.load_done(&plan.pages()[5], plan.op, FrameLeft::Populated, true, true);
        for load in plan.pages().iter().filter(|load| load.page.0 != 21) {
            core.load_cached(load, plan.op);
        }
        assert_eq!((core.loads_in_flight(), core.swapped_pages(), core.swap_cache().cached_frames()), (0, 8, 7));
        let FaultPlan::Restore { first, frame, pages } = core.fault(PageNumber(18), false) else { panic!() };
        core.restored(first, frame, pages, pages, FrameLeft::Populated);
        assert_eq!(core.windows.cluster.take_hits(), pages);
        // What nobody touched leaves without a write.
        let job = core.next_store().unwrap();
        assert_eq!(job.clean_hash, Some(0));
        let _ = core.stored(job, StoreResult::Clean);
        assert!(matches!(core.pages().get(PageNumber(16)), Some(PageState::Swapped { .. })));
        assert_eq!(core.windows.cluster.wasted, 1);
    }

    #[test]
    fn a_page_that_was_discarded_while_it_came_along_is_not_kept() {
        let mut core = swapped();
        let plan = load(&mut core, 21);
        core.removed(PageRange { start: PageNumber(16), pages: 16 });
        for load in plan.pages() {
            if load.page.0 == 21 { core.load_cancelled(load, plan.op) } else { core.load_cached(load, plan.op) }
        }
        assert_eq!((core.swap_cache().cached_frames(), core.swap_cache().free_frames()), (0, 16));
        assert_eq!((core.swapped_pages(), core.swap_table().iter_in_use().count()), (0, 0));
        assert_eq!(core.pages().get(PageNumber(16)), Some(PageState::Untouched));
    }

    #[test]
    fn only_what_lies_beside_the_page_on_its_area_comes_along() {
        let mut core = swapped();
        for (page, slot) in [(19, 500), (23, 501)] {
            let entry = core.table.insert(Location::Slot { area: AreaId(0), slot }, 0);
            core.pages.set(PageNumber(page), PageState::Swapped { entry });
        }
        assert_eq!(pages_of(&load(&mut core, 21)), (20, 3));
    }

    #[test]
    fn without_free_frames_a_page_comes_alone() {
        let mut core = swapped();
        let _block = core.cache.take_block(u16::MAX).unwrap();
        assert_eq!(pages_of(&load(&mut core, 21)), (21, 1));
    }

    /// The window of a fault at page 21 whose neighbours are on slots elsewhere.
    fn window_of_scattered(readahead: ReadaheadPolicy) -> (u64, usize) {
        let mut core = swapped_with(readahead);
        for page in (16..32).filter(|&page| page != 21) {
            let entry = core.table.insert(Location::Slot { area: AreaId(0), slot: 500 - page }, 0);
            core.pages.set(PageNumber(page), PageState::Swapped { entry });
        }
        pages_of(&load(&mut core, 21))
    }

    #[test]
    fn by_address_neighbours_come_along_wherever_they_lie_and_with_none_no_page_does() {
        assert_eq!(window_of_scattered(ReadaheadPolicy::Vma), (18, 8));
        assert_eq!(window_of_scattered(ReadaheadPolicy::Cluster), (21, 1));
        assert_eq!(window_of_scattered(ReadaheadPolicy::Off), (21, 1));
        assert_eq!(pages_of(&load(&mut swapped_with(ReadaheadPolicy::Cluster), 21)), (16, 8));
        assert_eq!(pages_of(&load(&mut swapped_with(ReadaheadPolicy::Off), 21)), (21, 1));
    }

    #[test]
    fn only_streams_make_a_window_grow_with_its_faults() {
        for (readahead, pages) in [(ReadaheadPolicy::Stream, 2), (ReadaheadPolicy::Off, 1)] {
            let mut core = swapped_with(readahead);
            let _taken = core.cache.take_block(u16::MAX);
            assert_eq!(pages_of(&load(&mut core, 20)), (20, 1));
            assert_eq!(pages_of(&load(&mut core, 21)).1, pages, "{readahead:?}");
        }
    }

    #[test]
    fn a_window_that_is_not_wanted_shrinks_to_the_page_alone_and_tries_again_rarely() {
        let mut cluster = Cluster::new(16);
        for _ in 0..4 * JUDGED {
            cluster.wasted();
        }
        let sizes = (0..PROBE_EVERY).map(|_| cluster.window(PageNumber(5)).1);
        assert_eq!(sizes.filter(|&pages| pages > 1).count(), 1);
    }

    #[test]
    fn a_window_that_is_wanted_grows_to_a_block() {
        let mut cluster = Cluster::new(16);
        for _ in 0..JUDGED {
            cluster.wanted();
        }
        assert_eq!(cluster.window(PageNumber(0x125)), (PageNumber(0x120), 16));
        assert_eq!(cluster.take_hits(), JUDGED);
        assert_eq!(cluster.take_hits(), 0);
    }

    #[test]
    fn a_third_wanted_keeps_the_window() {
        let mut cluster = Cluster::new(16);
        for outcome in 0..9 * JUDGED {
            if outcome % 3 == 0 { cluster.wanted() } else { cluster.wasted() }
        }
        assert_eq!(cluster.window(PageNumber(9)), (PageNumber(8), 8));
    }
}
