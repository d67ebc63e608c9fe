//! Discards that the kernel may still be at.
//!
//! madvise(MADV_DONTNEED) is reported, and its thread waits until the report has been read; only then does it drop the pages
//! (userfaultfd_remove in mm/madvise.c comes before the zap). In between nothing is counted any more, and the thread may lose
//! its processor. What a scan finds at such a place is what is about to be dropped: taken in, it would be moved out, the kernel
//! would find nothing to drop, and it would come back. So it is left alone for a while, and until no such call is in the kernel any more, as
//! far as those are counted. A thread that touches such a page after
//! it has been dropped faults, and then the books know it.

use crate::ranges::RangeSet;
use crate::units::{PageNumber, PageRange};

/// Ranges of one age that are told apart; of more, none is scanned.
const RANGES_MAX: u32 = 4096;

/// Ranges that were discarded of late.
#[derive(Clone, Default)]
pub(crate) struct RecentDiscards {
    /// Since [`grow_old`](Self::grow_old) was last called, and before.
    ages: [Age; 2],
}

#[derive(Clone, Default)]
struct Age {
    ranges: RangeSet,
    noted: u32,
}

impl Age {
    fn covers(&self, page: PageNumber) -> bool {
        self.noted > RANGES_MAX || self.ranges.contains(page)
    }
}

impl RecentDiscards {
    /// A report of `range` was read.
    pub fn note(&mut self, range: PageRange) {
        let [young, _] = &mut self.ages;
        young.noted = young.noted.saturating_add(1);
        if young.noted <= RANGES_MAX {
            young.ranges.insert(range);
        } else {
            young.ranges = RangeSet::default();
        }
    }

    /// Nothing of `range` is mapped any more.
    pub fn forget(&mut self, range: PageRange) {
        self.ages.iter_mut().for_each(|age| age.ranges.remove(range));
    }

    /// Time has passed: what was old before is done with.
    pub fn grow_old(&mut self) {
        let [young, old] = &mut self.ages;
        *old = core::mem::take(young);
    }

    /// Whether a scan must leave `page` alone, if the books have nothing there.
    pub fn covers(&self, page: PageNumber) -> bool {
        self.ages.iter().any(|age| age.covers(page))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ages.iter().all(|age| age.noted == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: PageRange = PageRange { start: PageNumber(10), pages: 5 };

    #[test]
    fn a_discard_is_recent_until_time_has_passed_twice() {
        let mut discards = RecentDiscards::default();
        discards.note(RANGE);
        assert!(discards.covers(PageNumber(14)) && !discards.covers(PageNumber(15)));
        discards.grow_old();
        assert!(discards.covers(PageNumber(10)) && !discards.is_empty());
        discards.forget(PageRange { start: PageNumber(10), pages: 1 });
        assert!(!discards.covers(PageNumber(10)) && discards.covers(PageNumber(11)));
        discards.grow_old();
        assert!(!discards.covers(PageNumber(11)) && discards.is_empty());
    }

    #[test]
    fn of_very_many_none_is_scanned() {
        let mut discards = RecentDiscards::default();
        (0..=u64::from(RANGES_MAX)).for_each(|n| discards.note(PageRange { start: PageNumber(n * 2), pages: 1 }));
        assert!(discards.covers(PageNumber(1)));
        discards.grow_old();
        discards.note(RANGE);
        discards.grow_old();
        assert!(!discards.covers(PageNumber(1)) && discards.covers(PageNumber(12)));
    }
}
