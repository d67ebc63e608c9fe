//! Finding a stream among misses that no stream explains.

use uswap_core::units::{LEAF_PAGES, PageNumber};

/// Misses that are remembered: enough for several interleaved streams to show three each.
const MISSES: usize = 32;
/// Neighbours among so many last misses are a stream. Further apart in time they are as likely by chance.
const RECENT: usize = 2;
/// Steps longer than this are not followed: the longer they may be, the more random misses seem to be evenly spaced.
const STRIDE_MAX: u64 = LEAF_PAGES as u64;
/// Steps up to this are short: two of the same are enough.
const SHORT: u64 = 8;
/// Extra misses that a doubtful region's streams must show, at most.
pub(super) const DOUBT_MAX: u32 = 4;

/// A stream that misses show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Pages from one miss to the next.
    pub stride: i64,
    /// Steps of that size that led to the last miss.
    pub steps: u32,
}

/// The last misses, oldest overwritten first.
#[derive(Clone, Debug)]
pub(super) struct Misses {
    pages: [u64; MISSES],
    count: usize,
}

impl Misses {
    pub const fn new() -> Self {
        Self { pages: [0; MISSES], count: 0 }
    }

    fn known(&self) -> &[u64] {
        &self.pages[..self.count.min(MISSES)]
    }

    fn is_recent(&self, page: u64) -> bool {
        let recent = (self.count.saturating_sub(RECENT)..self.count).map(|miss| self.pages[miss % MISSES]);
        recent.into_iter().any(|miss| miss == page)
    }

    fn has(&self, page: Option<u64>) -> bool {
        page.is_some_and(|page| self.known().contains(&page))
    }

    pub fn note(&mut self, page: PageNumber) {
        self.pages[self.count % MISSES] = page.0;
        self.count += 1;
    }

    /// The steps by which the misses before lead to a miss at `page`. A recent neighbour is enough; otherwise it takes two misses
    /// before it at the same short distance, or three at a long one; and `doubt` more of them.
    pub fn steps_to(&self, page: PageNumber, doubt: u32) -> Option<Found> {
        let steps = self.known().iter().filter(|&&before| (1..=STRIDE_MAX).contains(&page.0.abs_diff(before)));
        steps
            .filter_map(|&before| {
                let stride = page.0.wrapping_sub(before) as i64;
                let needed = match stride.unsigned_abs() {
                    1 if self.is_recent(before) => 1,
                    ..=SHORT => 2,
                    _ => 3,
                } + doubt;
                let even = (2..=i64::from(needed)).all(|step| self.has(page.0.checked_add_signed(-stride * step)));
                even.then_some(Found { stride, steps: needed })
            })
            .min_by_key(|found| found.stride.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stride(misses: &[u64], page: u64, doubt: u32) -> Option<i64> {
        let mut known = Misses::new();
        misses.iter().for_each(|&miss| known.note(PageNumber(miss)));
        known.steps_to(PageNumber(page), doubt).map(|found| found.stride)
    }

    #[test]
    fn neighbours_are_a_stream_at_once() {
        assert_eq!(stride(&[100], 101, 0), Some(1));
        assert_eq!(stride(&[100], 99, 0), Some(-1));
        assert_eq!(stride(&[], 99, 0), None);
        assert_eq!(stride(&[99], 99, 0), None);
        assert_eq!(stride(&[100, 2000], 101, 0), Some(1));
        assert_eq!(stride(&[100, 2000, 4000], 101, 0), None, "too long ago");
        assert_eq!(stride(&[99, 100, 1, 2000, 4000, 6000], 101, 0), Some(1), "but two of them are no chance");
    }

    #[test]
    fn short_steps_need_two_of_the_same_and_long_ones_three() {
        assert_eq!(stride(&[100], 107, 0), None);
        assert_eq!(stride(&[100, 107], 114, 0), Some(7));
        assert_eq!(stride(&[100, 5000, 107, 5003, 9], 114, 0), Some(7), "others come in between");
        assert_eq!(stride(&[640, 576], 512, 0), None);
        assert_eq!(stride(&[704, 640, 576], 512, 0), Some(-64));
        assert_eq!(stride(&[0, 513, 1026], 1539, 0), None, "too far apart");
    }

    #[test]
    fn how_far_back_a_stream_was_seen_is_told() {
        let mut misses = Misses::new();
        [93, 100].into_iter().for_each(|miss| misses.note(PageNumber(miss)));
        assert_eq!(misses.steps_to(PageNumber(107), 0), Some(Found { stride: 7, steps: 2 }));
        assert_eq!(misses.steps_to(PageNumber(101), 0), Some(Found { stride: 1, steps: 1 }));
    }

    #[test]
    fn doubt_asks_for_more() {
        assert_eq!(stride(&[100], 101, 1), None);
        assert_eq!(stride(&[99, 100], 101, 1), Some(1));
        assert_eq!(stride(&[93, 100], 107, 1), None);
        assert_eq!(stride(&[86, 93, 100], 107, 1), Some(7));
    }

    #[test]
    fn the_shortest_step_wins() {
        assert_eq!(stride(&[98, 94, 96, 99], 100, 0), Some(1));
    }

    #[test]
    fn only_the_last_misses_count() {
        let mut misses = alloc::vec![100];
        misses.extend((0..MISSES as u64).map(|other| 10_000 + other * 1000));
        assert_eq!(stride(&misses, 101, 0), None);
        assert_eq!(stride(&[0], 0, 0), None);
    }
}
