//! A set of pages, kept as ranges: what it takes grows with the number of ranges, not of pages.

use alloc::collections::BTreeMap;

use crate::units::{PageNumber, PageRange};

/// The set. Ranges in it neither overlap nor touch.
#[derive(Clone, Default, Debug)]
pub struct RangeSet {
    /// First page -> the page after the last one.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Puts all pages of `range` in.
    pub fn insert(&mut self, range: PageRange) {
        if range.pages == 0 {
            return;
        }
        let (mut start, mut end) = (range.start.0, range.end().0);
        // Whatever overlaps or touches becomes a part of it.
        while let Some((&other, &other_end)) = self.ranges.range(..=end).next_back().filter(|&(_, &last)| last >= start)
        {
            self.ranges.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.ranges.insert(start, end);
    }

    /// Takes all pages of `range` out.
    pub fn remove(&mut self, range: PageRange) {
        if range.pages == 0 {
            return;
        }
        let (start, end) = (range.start.0, range.end().0);
        while let Some((&other, &other_end)) = self.ranges.range(..end).next_back().filter(|&(_, &last)| last > start) {
            self.ranges.remove(&other);
            for (from, to) in [(other, start), (end, other_end)] {
                if from < to {
                    self.ranges.insert(from, to);
                }
            }
        }
    }

    /// Whether `page` is in the set.
    pub fn contains(&self, page: PageNumber) -> bool {
        self.ranges.range(..=page.0).next_back().is_some_and(|(_, &end)| page.0 < end)
    }

    /// The pages side by side that are in the set, `page` among them.
    pub fn around(&self, page: PageNumber) -> Option<PageRange> {
        let (&start, &end) = self.ranges.range(..=page.0).next_back().filter(|&(_, &end)| page.0 < end)?;
        Some(PageRange { start: PageNumber(start), pages: end - start })
    }

    /// The first pages at or after `from` that are in the set and side by side.
    pub fn next(&self, from: PageNumber) -> Option<PageRange> {
        let around = self.ranges.range(..=from.0).next_back().filter(|&(_, &end)| from.0 < end);
        let (start, end) = match around {
            Some((_, &end)) => (from.0, end),
            None => self.ranges.range(from.0..).next().map(|(&start, &end)| (start, end))?,
        };
        Some(PageRange { start: PageNumber(start), pages: end - start })
    }

    /// The parts of `range` that are in the set, in order.
    pub fn within(&self, range: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        let mut from = range.start;
        core::iter::from_fn(move || {
            let next = self.next(from).filter(|next| next.start < range.end())?;
            let end = next.end().min(range.end());
            from = end;
            Some(PageRange { start: next.start, pages: end.0 - next.start.0 })
        })
    }

    /// The parts of `range` that are not in the set, in order.
    pub fn outside(&self, range: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        let mut from = range.start;
        core::iter::from_fn(move || {
            while from < range.end() {
                let next = self.next(from).filter(|next| next.start < range.end());
                let (start, end) = (from, next.map_or(range.end(), |next| next.start));
                from = next.map_or(range.end(), |next| next.end());
                if start < end {
                    return Some(PageRange { start, pages: end.0 - start.0 });
                }
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange { start: PageNumber(start), pages }
    }

    /// Against a plain set of numbers.
    #[test]
    fn it_is_a_set_of_pages() {
        let mut set = RangeSet::default();
        let mut plain = [false; 96];
        let mut random = 88_172_645_463_325_252u64;
        for _ in 0..4000 {
            for shift in [13, -7, 17] {
                random ^= if shift > 0 { random << shift } else { random >> -shift };
            }
            let (start, pages) = (random % 80, random >> 8 & 15);
            let insert = random >> 16 & 1 == 1;
            if insert {
                set.insert(range(start, pages))
            } else {
                set.remove(range(start, pages))
            }
            plain[start as usize..(start + pages) as usize].fill(insert);
            let all: u64 = set.within(range(0, 96)).map(|part| part.pages).sum();
            let others: Vec<u64> = set.outside(range(3, 90)).flat_map(|part| part.start.0..part.end().0).collect();
            assert_eq!(others, (3..93).filter(|&page| !plain[page as usize]).collect::<Vec<_>>());
            assert_eq!(all, plain.iter().filter(|&&there| there).count() as u64);
            for (page, &there) in plain.iter().enumerate() {
                assert_eq!(set.contains(PageNumber(page as u64)), there);
            }
            let parts: Vec<_> = set.within(range(0, 96)).collect();
            assert!(parts.windows(2).all(|pair| pair[0].end() < pair[1].start), "parts touch: {parts:?}");
            let (start, pages) = (random >> 24 & 63, random >> 32 & 31);
            let within: u64 = set.within(range(start, pages)).map(|part| part.pages).sum();
            let expected = plain[start as usize..(start + pages) as usize].iter().filter(|&&there| there).count();
            assert_eq!(within, expected as u64);
        }
    }

    #[test]
    fn neighbours_become_one() {
        let mut set = RangeSet::default();
        set.insert(range(10, 5));
        set.insert(range(20, 5));
        set.insert(range(15, 5));
        assert_eq!(set.within(range(0, 100)).collect::<Vec<_>>(), [range(10, 15)]);
        assert_eq!(set.next(PageNumber(12)), Some(range(12, 13)));
        assert_eq!(set.next(PageNumber(25)), None);
    }
}
