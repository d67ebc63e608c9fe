//! How much of what it may have at most the pool gets: as much as pays.
//!
//! Memory that the pool gives up becomes memory of the program. Pages that are wanted again soon after they left would
//! then never have left: their faults are saved, whether they were in the pool or on an area (what is clean is dropped
//! there without passing through the pool). Pages that were in the pool for longer would be on an area: their faults
//! cost more. Which are which the refault distance tells ([`workingset`](crate::workingset)); what a fault costs from
//! either place is measured.

use crate::units::PAGE_SIZE;
use crate::workingset::Refaults;

/// Nanoseconds of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCost {
    /// That finds its page in the pool.
    pub pool_ns: u64,
    /// That reads its page from an area.
    pub area_ns: u64,
}

/// The share of the pool.
#[derive(Debug)]
pub struct PoolShare {
    share: u64,
}

impl PoolShare {
    /// All of it, as [`share`](Self::share) gives it.
    pub const WHOLE: u64 = 1024;
    /// Faults that make a judgement, of a small pool.
    const ENOUGH: u64 = 512;
    /// Of a larger one as many as this part of the pages that it takes: what a judgement takes from it has to be written to an area.
    const PART: u64 = 16;
    const LEAST: u64 = Self::WHOLE / 8;

    /// The whole share.
    pub fn new() -> Self {
        Self { share: Self::WHOLE }
    }

    /// In parts of [`WHOLE`](Self::WHOLE).
    pub fn share(&self) -> u64 {
        self.share
    }

    /// Faults that make a judgement of a pool that takes this many pages.
    pub fn enough(pool_pages: u64) -> u64 {
        Self::ENOUGH.max(pool_pages / Self::PART)
    }

    /// Bytes that the pool may have, `percent` of those of `pages` being the most.
    pub fn limit_bytes(&self, pages: u64, percent: u64) -> u64 {
        pages * PAGE_SIZE as u64 / 100 * percent * self.share / Self::WHOLE
    }

    /// Judges what happened since it last did.
    pub fn update(&mut self, refaults: Refaults, cost: FaultCost) {
        let saved = refaults.young_pool * cost.pool_ns + refaults.young_area * cost.area_ns;
        let lost = refaults.old_pool * cost.area_ns.saturating_sub(cost.pool_ns);
        // Only for a clear case, and by a sixteenth unless it is very clear, so that the pool does not swing. A very clear one
        // must not wait: until the share fits, programs that a few mebibytes would save from thrashing thrash.
        let step = self.share / if saved > 4 * lost || lost > 4 * saved { 4 } else { 16 };
        if saved > lost + lost / 4 {
            self.share = (self.share - step).max(Self::LEAST);
        } else if lost > saved + saved / 4 {
            self.share = (self.share + step).min(Self::WHOLE);
        }
    }
}

impl Default for PoolShare {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_many(refaults: Refaults, area_ns: u64) -> u64 {
        let mut share = PoolShare::new();
        for _ in 0..100 {
            share.update(refaults, FaultCost { pool_ns: 40, area_ns });
        }
        share.share()
    }

    #[test]
    fn a_limit_is_a_share_of_the_most_that_the_user_allows() {
        let mut share = PoolShare::new();
        assert_eq!(share.limit_bytes(1000, 35), 35 * 40960);
        share.update(Refaults { young_pool: 1, ..Refaults::default() }, FaultCost { pool_ns: 40, area_ns: 110 });
        assert_eq!(share.limit_bytes(1000, 35), 35 * 40960 / 4 * 3);
    }

    #[test]
    fn a_pool_that_compresses_badly_shrinks_when_the_device_is_fast() {
        let refaults = Refaults { young_pool: 700, young_area: 0, old_pool: 300 };
        assert_eq!(after_many(refaults, 110), PoolShare::LEAST);
        assert_eq!(after_many(refaults, 8000), PoolShare::WHOLE);
    }

    #[test]
    fn a_pool_whose_memory_the_program_lacks_shrinks() {
        assert_eq!(after_many(Refaults { young_pool: 100, young_area: 500, old_pool: 400 }, 110), PoolShare::LEAST);
    }

    #[test]
    fn a_very_clear_case_takes_a_quarter_and_any_other_a_sixteenth() {
        let cost = FaultCost { pool_ns: 40, area_ns: 110 };
        let mut share = PoolShare::new();
        share.update(Refaults { young_pool: 900, young_area: 0, old_pool: 100 }, cost);
        assert_eq!(share.share(), PoolShare::WHOLE / 4 * 3);
        share.update(Refaults { young_pool: 700, young_area: 0, old_pool: 300 }, cost);
        assert_eq!(share.share(), PoolShare::WHOLE / 4 * 3 / 16 * 15);
        share.update(Refaults { young_pool: 600, young_area: 0, old_pool: 400 }, cost);
        assert_eq!(share.share(), PoolShare::WHOLE / 4 * 3 / 16 * 15, "what is not clear changes nothing");
    }

    #[test]
    fn a_large_pool_is_judged_by_more_faults() {
        assert_eq!([0, 8192, 32768].map(PoolShare::enough), [512, 512, 2048]);
    }

    #[test]
    fn a_share_grows_back() {
        let mut share = PoolShare::new();
        let cost = FaultCost { pool_ns: 40, area_ns: 110 };
        for _ in 0..100 {
            share.update(Refaults { young_pool: 1, ..Refaults::default() }, cost);
        }
        assert_eq!(share.share(), PoolShare::LEAST);
        for _ in 0..100 {
            share.update(Refaults { young_pool: 1, young_area: 0, old_pool: 9 }, cost);
        }
        assert_eq!(share.share(), PoolShare::WHOLE);
    }
}
