//! How much of what it may have at most the pool gets: as much as pays.
//!
//! Memory that the pool gives up becomes memory of the program. Pages that were in the pool for a short time then would
//! never have left: their faults are saved. Pages that were there longer than the pool is large would be on an area:
//! their faults cost more. So each hit in the pool is young or old, and what a fault costs from either place is measured.

/// Hits in the pool since the last judgement, and what faults cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHits {
    /// Hits on objects among the youngest, as many as the pool has pages of memory.
    pub young: u64,
    /// Hits on older objects.
    pub old: u64,
    /// Nanoseconds of a fault that finds its page in the pool.
    pub pool_ns: u64,
    /// Nanoseconds of a fault that reads its page from an area.
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
    /// Hits that make a judgement.
    pub const ENOUGH: u64 = 1024;
    const LEAST: u64 = Self::WHOLE / 8;

    /// The whole share.
    pub fn new() -> Self {
        Self { share: Self::WHOLE }
    }

    /// In parts of [`WHOLE`](Self::WHOLE).
    pub fn share(&self) -> u64 {
        self.share
    }

    /// Judges what happened since it last did.
    pub fn update(&mut self, hits: PoolHits) {
        let saved = hits.young * hits.pool_ns;
        let lost = hits.old * hits.area_ns.saturating_sub(hits.pool_ns);
        // A step of a sixteenth, and only for a clear case, so that the pool does not swing.
        if saved > lost + lost / 4 {
            self.share = (self.share - self.share / 16).max(Self::LEAST);
        } else if lost > saved + saved / 4 {
            self.share = (self.share + self.share / 16).min(Self::WHOLE);
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

    fn after_many(hits: PoolHits) -> u64 {
        let mut share = PoolShare::new();
        for _ in 0..100 {
            share.update(hits);
        }
        share.share()
    }

    #[test]
    fn a_pool_that_compresses_badly_shrinks_when_the_device_is_fast() {
        assert_eq!(after_many(PoolHits { young: 700, old: 300, pool_ns: 40, area_ns: 110 }), PoolShare::LEAST);
    }

    #[test]
    fn the_same_pool_pays_when_the_device_is_slow() {
        assert_eq!(after_many(PoolHits { young: 700, old: 300, pool_ns: 40, area_ns: 8000 }), PoolShare::WHOLE);
    }

    #[test]
    fn a_share_grows_back() {
        let mut share = PoolShare::new();
        for _ in 0..100 {
            share.update(PoolHits { young: 1, old: 0, pool_ns: 40, area_ns: 110 });
        }
        assert_eq!(share.share(), PoolShare::LEAST);
        for _ in 0..100 {
            share.update(PoolHits { young: 1, old: 9, pool_ns: 40, area_ns: 110 });
        }
        assert_eq!(share.share(), PoolShare::WHOLE);
    }
}
