//! Reading ahead: what a stream will want next is brought in before it is asked for.
//!
//! A stream whose windows have grown to the largest size gets its next pages in *chunks*, which go to the program at once:
//! while it works in one chunk, the next is on its way, and it meets no fault. So that it is seen to come along, one page
//! of each chunk, the first that is not zeros, is its *marker* (the kernel's readahead flag): it rests in the swap cache, and the fault that
//! finds it there asks for the next chunk, twice as large, up to a limit. A stream that ends has at most two chunks too
//! many, which is about what it has used before.

use crate::core::Core;
use crate::fault::{LoadPlan, MAX_WINDOW};
use crate::page_table::PageState;
use crate::units::PageNumber;

/// Pages side by side that were never used, over which a stream is taken to go on.
pub(crate) const HOLE_MAX: u32 = MAX_WINDOW as u32;
/// Pages of the first chunk of a stream.
const FIRST_CHUNK: u32 = 32;

/// How far ahead of its program one stream is.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Ahead {
    /// Pages of the chunk asked for last; 0: none yet.
    chunk: u32,
    /// The page to read next, and how many pages from there on are asked for.
    next: u64,
    left: u32,
    /// How many steps from `next` on the next marker is to be.
    marker_in: Option<u32>,
    /// The last marker, while the program has not come to it.
    marker: Option<u64>,
    /// Pages read since that marker, and between it and the one before.
    read: (u32, u32),
}

/// Pages to read ahead, all of one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    /// The first of them.
    pub page: u64,
    /// From one to the next.
    pub step: i64,
    /// How many.
    pub pages: u32,
    /// The first is to be a marker.
    pub marker: bool,
}

impl Ahead {
    /// The first chunk begins at `page`. Returns its pages.
    pub fn begin(&mut self, page: u64, max: u32) -> u32 {
        let chunk = FIRST_CHUNK.min(max);
        *self = Self { chunk, next: page, left: chunk, marker_in: Some(0), ..Self::default() };
        chunk
    }

    pub fn is_marker(&self, page: u64) -> bool {
        self.marker == Some(page)
    }

    /// The program has come to the marker. Returns the pages of the chunk that is asked for now; none while an earlier one
    /// has not been begun.
    pub fn passed_marker(&mut self, max: u32) -> u32 {
        self.marker = None;
        if self.marker_in.is_some() {
            return 0;
        }
        self.chunk = (self.chunk * 2).min(max);
        self.marker_in = Some(self.left);
        self.left += self.chunk;
        self.chunk
    }

    /// Pages that the program has gone through since the last call, or will in a moment.
    pub fn take_hits(&mut self) -> u32 {
        let (read, before) = self.read;
        self.read = (0, read);
        before
    }

    /// How many steps from the next page to read `page` is, if it is asked for.
    pub fn steps_to(&self, page: u64, step: i64) -> Option<u32> {
        let distance = page.wrapping_sub(self.next) as i64;
        let steps = (distance % step == 0).then_some(distance / step)?;
        u32::try_from(steps).ok().filter(|&steps| steps < self.left)
    }

    /// What to read next.
    pub fn stretch(&self, step: i64) -> Option<Stretch> {
        let most = self.left.min(MAX_WINDOW as u32);
        let (marker, pages) = match self.marker_in {
            Some(0) => (true, most),
            Some(steps) => (false, most.min(steps)),
            None => (false, most),
        };
        (pages > 0).then_some(Stretch { page: self.next, step, pages, marker })
    }

    /// The first `pages` of a stretch are being read; its first page is the marker, if it was to be.
    pub fn reading(&mut self, stretch: &Stretch, pages: u32) {
        if stretch.marker {
            self.marker = Some(stretch.page);
            self.marker_in = None;
        }
        self.read.0 += pages;
        self.advance(stretch.step, pages);
    }

    /// The program has fetched the next `pages` by itself, which were asked for. The page after them is a marker, if one
    /// of them was to be. Whether there is a page after them.
    pub fn overtaken(&mut self, step: i64, pages: u32) -> bool {
        let due = self.marker_in.is_some_and(|steps| steps < pages);
        self.advance(step, pages.min(self.left));
        if due {
            self.marker_in = (self.left > 0).then_some(0);
        }
        self.left > 0
    }

    /// Whether all that was asked for has been read, or is nothing.
    pub fn asks_for_nothing(&self) -> bool {
        self.left == 0
    }

    /// The next `pages` are being read, or need not be.
    pub fn advance(&mut self, step: i64, pages: u32) {
        self.next = self.next.wrapping_add_signed(step * i64::from(pages));
        self.left -= pages;
        self.marker_in = self.marker_in.map(|steps| steps.saturating_sub(pages));
    }

    /// Nothing more is asked for. Returns where that ends.
    pub fn end(&mut self) -> u64 {
        self.left = 0;
        self.marker_in = None;
        self.next
    }
}

impl Core {
    /// Whether [`plan_ahead`](Self::plan_ahead) may have something.
    pub fn wants_ahead(&self) -> bool {
        self.windows.streams.wants_ahead()
    }

    /// Pages to read that no thread waits for; each ends in one of the `load_…` verbs. All but a marker go to the program.
    pub fn plan_ahead(&mut self) -> Option<LoadPlan> {
        let mut in_holes = 0;
        loop {
            let (stream, mut stretch) = self.windows.streams.stretch()?;
            let page = |index: u32| PageNumber(stretch.page).stepped(stretch.step, index);
            let first_that = |is: &dyn Fn(PageNumber) -> bool| {
                (0..stretch.pages).find(|&index| page(index).is_none_or(is)).unwrap_or(stretch.pages)
            };
            let mut pages = first_that(&|page| !self.is_swapped(page));
            if pages == 0 {
                // Over what was never used; where pages are in memory already, the program may be somewhere else by now.
                let hole = first_that(&|page| self.pages.get(page) != Some(PageState::Untouched));
                in_holes += hole;
                if hole > 0 && in_holes <= HOLE_MAX && page(hole).is_some() {
                    self.windows.streams.skip_ahead(stream, hole);
                } else {
                    self.windows.streams.end_ahead(stream);
                    in_holes = 0;
                }
                continue;
            }
            in_holes = 0;
            if stretch.marker {
                // Zeros may be a hole that nobody ever touches: the marker is the first page after them.
                let zeros = first_that(&|page| self.pages.get(page) != Some(PageState::SwappedZero));
                if zeros > 0 {
                    (stretch.marker, pages) = (false, pages.min(zeros));
                }
            }
            self.windows.streams.reading_ahead(stream, &stretch, pages);
            let mut block = None;
            if stretch.marker && matches!(self.pages.get(PageNumber(stretch.page)), Some(PageState::Swapped { .. })) {
                block = self.free_block(1);
            }
            // A marker that cannot rest in the swap cache stays where it is.
            let skipped = u32::from(stretch.marker && block.is_none());
            if pages == skipped {
                continue;
            }
            let first = page(skipped).expect("looked at above");
            let last = page(pages - 1).expect("looked at above");
            return Some(self.load_ahead(first, last, stretch.step, block));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CoreConfig;
    use crate::entry::Location;
    use crate::fault::{FaultPlan, FrameLeft, Landing};
    use crate::units::PageRange;

    /// Pages from 0 on that are in the pool, and blocks of free frames.
    fn swapped(pages: u64, ahead_max: u32) -> Core {
        let config = CoreConfig { frame_blocks: 8, window_max: 16, ahead_max, ..CoreConfig::default() };
        let mut core = Core::new(config);
        core.adopt(PageRange { start: PageNumber(0), pages });
        for index in 0..pages {
            let entry = core.table.insert(Location::Pool { handle: index as u32, len: 100 }, u128::from(index));
            core.zswap.object_added(entry, &core.table);
            core.pages.set(PageNumber(index), PageState::Swapped { entry });
        }
        core.counts.swapped_pages = pages;
        for _ in 0..4 {
            let block = core.cache.take_empty_block().unwrap();
            (0..16).for_each(|index| core.cache.cached(block.frame(index), PageNumber(0), None));
        }
        while let Some(frame) = core.cache.take_inactive() {
            core.cache.release(frame);
        }
        core
    }

    /// Carries a plan out: all pages come in.
    fn load(core: &mut Core, plan: &LoadPlan) {
        for (index, load) in plan.pages().iter().enumerate() {
            match plan.mapped().contains(&index) {
                true => core.load_done(load, plan.op, FrameLeft::Populated, true, plan.faulting == Some(index)),
                false => core.load_cached(load, plan.op),
            }
        }
    }

    /// A thread touches `page`; what it waits for comes in. Whether it had to wait.
    fn touch(core: &mut Core, page: u64) -> bool {
        match core.fault(PageNumber(page), false) {
            FaultPlan::Present => return false,
            FaultPlan::Load(plan) => load(core, &plan),
            FaultPlan::Restore { first, frame, pages } => {
                core.restored(first, frame, pages, pages, FrameLeft::Populated);
            }
            other => panic!("{other:?}"),
        }
        true
    }

    fn read_ahead(core: &mut Core) -> u32 {
        let mut pages = 0;
        while let Some(plan) = core.plan_ahead() {
            assert_eq!(plan.faulting, None);
            load(core, &plan);
            pages += plan.count as u32;
        }
        pages
    }

    /// Touches `pages` one after the other, with what is asked for read ahead after each. Returns those that it had to
    /// wait for.
    fn walk(core: &mut Core, pages: impl Iterator<Item = u64>) -> alloc::vec::Vec<u64> {
        pages
            .filter(|&page| {
                let waited = touch(core, page);
                let _ = read_ahead(core);
                waited
            })
            .collect()
    }

    #[test]
    fn a_stream_waits_for_its_markers_only() {
        let mut core = swapped(1000, 256);
        // Windows of 1, 2, 4, 8 and 16 pages; chunks of 32, 64, 128 and 256.
        let waited = walk(&mut core, 0..1000);
        assert_eq!(waited, [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 767]);
        assert_eq!((core.swapped_pages(), core.loads_in_flight()), (0, 0));
    }

    #[test]
    fn a_stream_backwards_and_one_with_a_stride_are_read_ahead_too() {
        let mut core = swapped(1000, 64);
        assert_eq!(walk(&mut core, (500..1000).rev()).last(), Some(&(999 - 31 - 32 - 6 * 64)));
        let mut core = swapped(2000, 64);
        let waited = walk(&mut core, (0..2000).step_by(7));
        assert_eq!(waited[..8], [0, 7, 14, 28, 56, 112, 224, 448]);
        assert!(waited.len() < 16, "{waited:?}");
    }

    #[test]
    fn the_marker_rests_in_the_swap_cache() {
        let mut core = swapped(1000, 256);
        (0..=15).for_each(|page| assert!(touch(&mut core, page) == [0, 1, 3, 7, 15].contains(&page)));
        assert!(core.wants_ahead());
        let plan = core.plan_ahead().unwrap();
        assert_eq!((plan.pages()[0].page, plan.count, plan.mapped()), (PageNumber(31), 16, 1..16));
        assert!(matches!(plan.pages()[0].landing, Landing::Frame(_)));
        load(&mut core, &plan);
        assert!(matches!(core.pages().get(PageNumber(31)), Some(PageState::InFrame { .. })));
        assert!(core.is_resident(PageNumber(32)));
    }

    #[test]
    fn without_free_frames_the_marker_stays_where_it_is() {
        let mut core = swapped(1000, 256);
        while core.cache.take_block(u16::MAX).is_some() {}
        let waited = walk(&mut core, 0..600);
        assert_eq!(waited, [0, 1, 3, 7, 15, 31, 63, 127, 255, 511]);
    }

    #[test]
    fn what_is_not_swapped_ends_it() {
        let mut core = swapped(60, 256);
        (0..=15).for_each(|page| assert!(touch(&mut core, page) == [0, 1, 3, 7, 15].contains(&page)));
        assert_eq!(read_ahead(&mut core), 29);
        assert!(!core.wants_ahead());
        assert!(matches!(core.fault(PageNumber(60), false), FaultPlan::NotAdopted));
    }

    #[test]
    fn a_program_that_overtakes_gets_its_window_and_what_follows_is_read_ahead() {
        let mut core = swapped(1000, 64);
        (0..=15).for_each(|page| assert!(touch(&mut core, page) == [0, 1, 3, 7, 15].contains(&page)));
        // Nothing was read of the 32 pages from 31 on.
        assert!(touch(&mut core, 31));
        assert!(core.is_resident(PageNumber(46)) && !core.is_resident(PageNumber(47)));
        let plan = core.plan_ahead().unwrap();
        assert_eq!((plan.pages()[0].page, plan.count, plan.mapped()), (PageNumber(47), 16, 1..16));
        load(&mut core, &plan);
        assert!(core.plan_ahead().is_none());
        assert!(touch(&mut core, 47), "the marker that the program jumped over is on the page after");
        assert_eq!(read_ahead(&mut core), 64);
    }

    #[test]
    fn a_stream_outlives_faults_elsewhere() {
        let mut core = swapped(4000, 64);
        let mut waited = walk(&mut core, 0..200);
        for stray in 0..40 {
            assert!(touch(&mut core, 1000 + stray * 70));
        }
        waited.extend(walk(&mut core, 200..400));
        assert_eq!(waited, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255, 319, 383]);
    }

    #[test]
    fn pages_read_ahead_are_hits_a_marker_later() {
        let mut core = swapped(1000, 64);
        let _ = walk(&mut core, 0..63);
        let window = core.windows.streams.window(PageNumber(63));
        assert_eq!((window.pages, window.hits), (1, 32));
        let _ = read_ahead(&mut core);
        assert_eq!(core.windows.streams.window(PageNumber(127)).hits, 64);
    }

    /// Of 1000 swapped pages, each third run of 4 is a hole: `of_zeros`, or pages that were never used.
    fn with_holes(of_zeros: bool) -> (Core, impl Iterator<Item = u64>) {
        let is_hole = |page: u64| page / 4 % 3 == 2;
        let mut core = swapped(1000, 256);
        for page in (0..1000).filter(|&page| is_hole(page)) {
            let state = if of_zeros { PageState::SwappedZero } else { PageState::Untouched };
            core.pages.set(PageNumber(page), state);
            core.counts.swapped_pages -= u64::from(!of_zeros);
        }
        (core, (0..1000).filter(move |&page| !is_hole(page)))
    }

    #[test]
    fn a_stream_goes_on_over_holes() {
        for of_zeros in [true, false] {
            let (mut core, pages) = with_holes(of_zeros);
            let waited = walk(&mut core, pages);
            assert!(waited.len() < 20, "{of_zeros}: {waited:?}");
        }
    }

    #[test]
    fn a_stream_backwards_ends_where_addresses_begin() {
        for step in [1, 3, 7] {
            let mut core = swapped(1000, 256);
            let waited = walk(&mut core, (0..1000).rev().step_by(step));
            assert!(waited.len() < 20, "{step}: {waited:?}");
            assert_eq!(core.loads_in_flight(), 0);
        }
    }

    #[test]
    fn a_hole_that_is_long_ends_it() {
        let mut core = swapped(1000, 256);
        let behind = 60 + 3 * u64::from(HOLE_MAX);
        for page in 60..behind {
            core.pages.set(PageNumber(page), PageState::Resident { clean: None });
            core.counts.swapped_pages -= 1;
        }
        let _ = walk(&mut core, 0..60);
        assert!(!core.wants_ahead() && !core.is_resident(PageNumber(behind)));
        assert!(touch(&mut core, behind));
        assert!(!core.is_resident(PageNumber(behind + 1)), "it is another stream");
    }

    #[test]
    fn it_can_be_turned_off() {
        let mut core = swapped(200, 0);
        assert_eq!(walk(&mut core, 0..100), [0, 1, 3, 7, 15, 31, 47, 63, 79, 95]);
    }
}
