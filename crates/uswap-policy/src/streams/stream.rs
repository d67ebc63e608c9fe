//! One stream: where it goes, how far ahead of the program it reads, and how often that was right.

use super::detect::Found;
use uswap_core::units::{PageNumber, PageRange};

/// Pages ahead of the program when a stream begins.
const FIRST_WINDOW: u32 = 2;
/// Pages that the program must have passed for each page that lies ahead: when a stream stops, at most a fifth was waste.
const PROOF: i64 = 4;
/// Windows that must fit memory before a larger one is tried again.
const RETRY_WINDOWS: u32 = 32;
/// Pages that it may skip, because they were in memory or not on swap.
const GAP_MAX: i64 = 8;
/// What is remembered of a stream's past: when so many pages are judged, both counts are halved.
const JUDGED_MAX: u32 = 1024;

/// Pages that are read ahead and were wanted, or dropped unused.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Accuracy {
    /// Wanted.
    pub hits: u64,
    /// Dropped unused.
    pub wasted: u64,
}

/// Evenly spaced pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Steps {
    pub first: u64,
    pub stride: i64,
    pub pages: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Where it began.
    origin: i64,
    /// The page that was touched last.
    at: i64,
    /// The first page that was not asked for yet.
    next: i64,
    stride: i64,
    /// Pages that may lie ahead of the program.
    window: u32,
    /// Larger windows were too large for memory.
    ceiling: u32,
    /// Hits since that was seen, or since a larger ceiling was tried.
    hits_below: u32,
    /// Up to here pages were asked for with a window that was too large.
    too_early_until: i64,
    /// Pages were asked for, and none was found since.
    barren: bool,
    /// What became of the last ones.
    hits: u32,
    wasted: u32,
    pub total: Accuracy,
    pub last_used: u64,
    pub generation: u32,
}

impl Stream {
    /// A stream that was found by a miss at `page` and those before it.
    pub fn new(page: PageNumber, Found { stride, steps }: Found, max: u32, generation: u32) -> Self {
        Self {
            origin: page.0 as i64 - stride * i64::from(steps),
            at: page.0 as i64,
            next: page.0 as i64,
            stride,
            window: FIRST_WINDOW.min(max),
            ceiling: max,
            hits_below: 0,
            too_early_until: page.0 as i64,
            barren: false,
            hits: 0,
            wasted: 0,
            total: Accuracy::default(),
            last_used: 0,
            generation,
        }
    }

    pub fn stride(&self) -> i64 {
        self.stride
    }

    pub fn window(&self) -> u32 {
        self.window
    }

    /// The part of `region` that a stream at `page` may read ahead in: pages that this other stream of the same kind has
    /// passed are used already. Parts of an array that are worked on side by side end where the next one begins.
    pub fn spares(&self, page: PageNumber, stride: i64, region: PageRange) -> PageRange {
        let (page, start, end) = (page.0 as i64, region.start.0 as i64, region.end().0 as i64);
        if self.window == 0 || self.stride != stride {
            return region;
        }
        let (start, end) = match stride > 0 {
            true if (page + 1..end).contains(&self.origin) => (start, self.origin),
            false if (start..page).contains(&self.origin) => (self.origin + 1, end),
            _ => return region,
        };
        PageRange { start: PageNumber(start as u64), pages: (end - start) as u64 }
    }

    /// Steps from `page` to the next page that was not asked for; `None` between two steps.
    fn steps_to_next(&self, page: PageNumber) -> Option<i64> {
        let distance = self.next - page.0 as i64;
        (distance % self.stride == 0).then_some(distance / self.stride)
    }

    /// Whether a miss at `page` belongs to it: where it goes on, a little further where pages in between were not to be read,
    /// or among those that it had asked for and that were dropped too early.
    pub fn expects(&self, page: PageNumber) -> bool {
        let asked_for = -GAP_MAX..=i64::from(self.window);
        self.window > 0 && self.steps_to_next(page).is_some_and(|steps| asked_for.contains(&steps))
    }

    /// The program missed `page`, which it [expects](Self::expects). What to read after it. Its window is 0 when it turns out
    /// to be none.
    pub fn missed(&mut self, page: PageNumber, region: PageRange) -> Option<Steps> {
        // It asked for the page, which is not there, or the program passes by what it asks for.
        let again =
            self.steps_to_next(page).is_some_and(|steps| steps > 0) && !self.is_before(page, self.too_early_until);
        if self.barren || again {
            self.collapse();
        }
        self.at = page.0 as i64;
        self.next = page.0 as i64 + self.stride;
        self.fill(self.window, region)
    }

    /// The program found `page`. What to read next, once half of the window is used up.
    pub fn found(&mut self, page: PageNumber, max: u32, region: PageRange) -> Option<Steps> {
        self.total.hits += 1;
        self.hits += 1;
        self.hits_below = self.hits_below.saturating_add(1);
        self.barren = false;
        self.at = page.0 as i64;
        self.forget();
        let ahead = self.steps_to_next(page)? - 1;
        if ahead > i64::from(self.window / 2) || ahead < 0 {
            return None;
        }
        if self.wasted * 4 <= self.hits {
            let passed = (page.0 as i64 - self.origin) / self.stride;
            let proven = u32::try_from(passed / PROOF).unwrap_or(0);
            if self.hits_below >= self.ceiling.saturating_mul(RETRY_WINDOWS) {
                (self.ceiling, self.hits_below) = ((self.ceiling * 2).min(max), 0);
            }
            self.window = (self.window * 2).min(proven).min(self.ceiling).max(self.window);
        }
        self.fill(self.window.saturating_sub(ahead as u32), region)
    }

    /// `page`, one of its own, was dropped unused. `false`: it is wrong so often that it is none.
    pub fn dropped(&mut self, page: PageNumber) -> bool {
        self.total.wasted += 1;
        let ahead = self.is_before(page, self.next) && !self.is_before(page, self.at);
        if ahead && self.total.hits > 0 {
            self.dropped_early(page);
            return true;
        }
        self.wasted += 1;
        let wrong = self.wasted * 2 > self.hits && self.wasted >= self.window.min(JUDGED_MAX / 4);
        if wrong {
            self.collapse();
        }
        self.forget();
        self.window > 0
    }

    /// The program was still on its way to `page`: not the stream is wrong, but its window does not fit memory. That is told
    /// once for all pages that were asked for by then.
    fn dropped_early(&mut self, page: PageNumber) {
        if self.is_before(page, self.too_early_until) {
            return;
        }
        self.window = (self.window / 2).max(FIRST_WINDOW.min(self.window));
        self.ceiling = self.window;
        self.hits_below = 0;
        self.too_early_until = self.next;
    }

    /// Whether the stream comes to `page` before it comes to `other`.
    fn is_before(&self, page: PageNumber, other: i64) -> bool {
        (other - page.0 as i64) * self.stride.signum() > 0
    }

    fn collapse(&mut self) {
        self.window = if self.window <= FIRST_WINDOW { 0 } else { self.window / 2 };
        (self.hits, self.wasted) = (0, 0);
    }

    fn forget(&mut self) {
        if self.hits + self.wasted > JUDGED_MAX {
            self.hits /= 2;
            self.wasted /= 2;
        }
    }

    /// Asks for up to `pages` further pages, as far as `region` goes.
    fn fill(&mut self, pages: u32, region: PageRange) -> Option<Steps> {
        let room = match self.stride > 0 {
            true => region.end().0 as i64 - 1 - self.next,
            false => self.next - region.start.0 as i64,
        };
        let left = if room < 0 { 0 } else { room / self.stride.abs() + 1 };
        let pages = i64::from(pages).min(left);
        let steps = Steps { first: self.next as u64, stride: self.stride, pages: pages as u32 };
        self.next += pages * self.stride;
        self.barren |= pages > 0;
        (pages > 0).then_some(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: PageRange = PageRange { start: PageNumber(0), pages: 10_000 };

    fn stream(stride: i64) -> Stream {
        Stream::new(PageNumber(1000), Found { stride, steps: 2 }, 512, 0)
    }

    #[test]
    fn the_window_grows_with_what_was_passed() {
        let mut stream = stream(1);
        let mut asked = stream.missed(PageNumber(1000), REGION).unwrap().pages;
        assert_eq!(asked, 2);
        let mut windows = alloc::vec![stream.window()];
        for passed in 1..4000 {
            assert!(asked >= passed, "page {passed} was not asked for");
            let page = PageNumber(1000 + u64::from(passed));
            if let Some(steps) = stream.found(page, 512, REGION) {
                asked += steps.pages;
                windows.push(stream.window());
            }
            assert!(asked - passed <= 512.min(passed / 4 + 2), "{} lie ahead after {passed}", asked - passed);
        }
        assert!(windows.is_sorted() && windows.windows(2).all(|pair| pair[1] <= pair[0] * 2));
        assert_eq!(windows.last(), Some(&512));
    }

    #[test]
    fn a_region_ends_a_window() {
        let region = PageRange { start: PageNumber(995), pages: 8 };
        let mut forward = stream(1);
        forward.window = 8;
        assert_eq!(forward.missed(PageNumber(1000), region), Some(Steps { first: 1001, stride: 1, pages: 2 }));
        forward.barren = false;
        assert_eq!(forward.missed(PageNumber(1003), region), None);
        let mut backward = stream(-2);
        backward.window = 8;
        assert_eq!(backward.missed(PageNumber(1000), region), Some(Steps { first: 998, stride: -2, pages: 2 }));
    }

    #[test]
    fn it_goes_on_behind_pages_that_were_not_to_be_read() {
        let mut stream = stream(3);
        assert!(stream.expects(PageNumber(1000)));
        assert!(stream.expects(PageNumber(1024)));
        assert!(!stream.expects(PageNumber(1004)));
        assert!(!stream.expects(PageNumber(1027)), "more than eight are left out");
        assert_eq!(stream.missed(PageNumber(1024), REGION).unwrap().first, 1027);
    }

    #[test]
    fn what_another_stream_of_its_kind_has_passed_is_spared() {
        let region = PageRange { start: PageNumber(0), pages: 5000 };
        let up_to = |end| PageRange { start: PageNumber(0), pages: end };
        let forward = stream(1);
        assert_eq!(forward.spares(PageNumber(500), 1, region), up_to(998));
        assert_eq!(forward.spares(PageNumber(1500), 1, region), region, "it is in there");
        assert_eq!(forward.spares(PageNumber(500), 2, region), region);
        let backward = stream(-1);
        let behind = PageRange { start: PageNumber(1003), pages: 3997 };
        assert_eq!(backward.spares(PageNumber(1500), -1, region), behind);
        assert_eq!(backward.spares(PageNumber(500), -1, region), region);
    }

    #[test]
    fn pages_that_were_dropped_before_their_use_halve_the_window() {
        let mut stream = stream(1);
        stream.window = 16;
        let _ = stream.missed(PageNumber(1000), REGION);
        assert_eq!(stream.missed(PageNumber(1005), REGION), Some(Steps { first: 1006, stride: 1, pages: 8 }));
    }

    #[test]
    fn a_stream_whose_pages_are_passed_by_is_none() {
        let mut stream = stream(1);
        assert_eq!(stream.missed(PageNumber(1000), REGION).unwrap().pages, 2);
        assert_eq!(stream.missed(PageNumber(1003), REGION), None);
        assert!(!stream.expects(PageNumber(1004)));
    }

    #[test]
    fn waste_collapses_the_window_until_nothing_is_left() {
        let mut stream = stream(1);
        stream.window = 16;
        let mut dropped = 1;
        // Pages that the program has left behind.
        while stream.dropped(PageNumber(900)) {
            dropped += 1;
        }
        assert_eq!(dropped, 16 + 8 + 4 + 2);
        assert_eq!(stream.total, Accuracy { hits: 0, wasted: 30 });
    }

    #[test]
    fn a_stream_of_which_nothing_was_ever_wanted_is_none() {
        let mut stream = stream(1);
        assert_eq!(stream.missed(PageNumber(1000), REGION).unwrap().pages, 2);
        assert!(stream.dropped(PageNumber(1001)));
        assert!(!stream.dropped(PageNumber(1002)));
    }

    #[test]
    fn a_little_waste_stops_growth_and_more_of_it_shrinks_the_window() {
        let mut stream = stream(1);
        stream.window = 16;
        stream.hits = 40;
        (0..20).for_each(|_| assert!(stream.dropped(PageNumber(900))));
        assert_eq!(stream.window(), 16);
        (stream.origin, stream.next) = (0, 1001);
        let _ = stream.found(PageNumber(1000), 512, REGION);
        assert_eq!(stream.window(), 16, "more than a fifth of it is wasted");
        (0..2).for_each(|_| assert!(stream.dropped(PageNumber(900))));
        assert_eq!(stream.window(), 8);
    }

    #[test]
    fn a_window_that_does_not_fit_memory_is_halved_once_and_tried_again_late() {
        let mut stream = stream(1);
        stream.window = 64;
        stream.origin = 0;
        assert_eq!(stream.missed(PageNumber(1000), REGION).unwrap().pages, 64);
        stream.total.hits = 1;
        (1033..1065).for_each(|page| assert!(stream.dropped(PageNumber(page))));
        assert_eq!(stream.window(), 32);
        let mut windows = alloc::vec::Vec::new();
        for page in 1001..3000 {
            let _ = stream.found(PageNumber(page), 512, REGION);
            windows.push(stream.window());
        }
        assert_eq!(windows.iter().position(|&window| window > 32), Some(1023), "after 32 windows");
        assert_eq!(windows.last(), Some(&64));
    }
}
