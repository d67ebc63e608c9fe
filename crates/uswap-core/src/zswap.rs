//! zswap: which compressed pages leave the pool, and when.
//!
//! The pool takes pages until it reaches its limit; from then on the oldest objects are written back to an area until the
//! pool is down to the accept threshold, as the kernel's zswap does with its shrink worker. A swap-in takes the object
//! out of the pool (exclusive load), so what is old in the pool has not been wanted since it was stored.

use alloc::collections::VecDeque;

use crate::core::Core;
use crate::entry::{AreaId, EntryId, Location};
use crate::swap_table::SwapTable;

/// Objects that one search for a victim looks at.
const SEARCH_MAX: usize = 512;

/// Age order of the pool.
pub struct Zswap {
    fifo: VecDeque<(EntryId, u32)>,
    objects: u64,
}

/// An object to write to an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct WritebackJob {
    /// Its entry, pinned until [`Core::written_back`].
    pub entry: EntryId,
    /// The object.
    pub handle: u32,
    /// Its length in bytes.
    pub len: u16,
    /// Hash of the page in it.
    pub hash: u128,
}

/// Whether the pool takes pages, by its size in bytes. It refuses from the limit on, and takes again at the accept
/// threshold (`accept_threshold_percent`, kernel default 90).
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolGate {
    full: bool,
}

impl PoolGate {
    /// As judged last.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Judges the pool's size; `true`: the oldest objects must be written back.
    pub fn must_shrink(&mut self, pool_bytes: u64, limit_bytes: u64, accept_percent: u64) -> bool {
        if pool_bytes >= limit_bytes {
            self.full = true;
        } else if pool_bytes <= limit_bytes / 100 * accept_percent {
            self.full = false;
        }
        self.full
    }
}

/// What happened so far, and what memory it took. Counts only grow.
#[derive(Clone, Copy, Default, Debug)]
pub struct PoolHits {
    /// Pages that came back from the pool.
    pub pool_hits: u64,
    /// Pages that came back from the swap cache.
    pub cache_hits: u64,
    /// Pages that were read from areas.
    pub area_reads: u64,
    /// Memory of the pool at this moment, in pages.
    pub pool_pages: u64,
    /// Pages in the swap cache at this moment.
    pub cached_pages: u64,
}

/// How much of what it may have at most the pool gets: as much as pays.
///
/// A page of memory in the pool holds several compressed pages, in the swap cache only one, but one that has just left
/// the program. Where a page of memory saved more reads lately, there it is better spent.
#[derive(Debug)]
pub struct PoolShare {
    share: u64,
    last: PoolHits,
}

impl PoolShare {
    /// All of it, as [`share`](Self::share) gives it.
    pub const WHOLE: u64 = 1024;
    const LEAST: u64 = Self::WHOLE / 8;
    /// Events that make a judgement.
    const ENOUGH: u64 = 1024;

    /// The whole share.
    pub fn new() -> Self {
        Self { share: Self::WHOLE, last: PoolHits::default() }
    }

    /// In parts of [`WHOLE`](Self::WHOLE).
    pub fn share(&self) -> u64 {
        self.share
    }

    /// Judges what happened since it last did.
    pub fn update(&mut self, now: PoolHits) {
        let pool = now.pool_hits - self.last.pool_hits;
        let cache = now.cache_hits - self.last.cache_hits;
        let area = now.area_reads - self.last.area_reads;
        if pool + cache + area < Self::ENOUGH {
            return;
        }
        self.last = now;
        let (pool_worth, cache_worth) = (pool * now.cached_pages, cache * now.pool_pages);
        if area * 4 > pool && pool_worth * 2 < cache_worth {
            self.share = (self.share - self.share / 16).max(Self::LEAST);
        } else if pool_worth > cache_worth || area * 4 <= pool {
            self.share = (self.share + self.share / 16).min(Self::WHOLE);
        }
    }
}

impl Default for PoolShare {
    fn default() -> Self {
        Self::new()
    }
}

impl Zswap {
    pub(crate) fn new() -> Self {
        Self { fifo: VecDeque::new(), objects: 0 }
    }

    pub(crate) fn object_added(&mut self, entry: EntryId, handle: u32, table: &SwapTable) {
        self.fifo.push_back((entry, handle));
        self.objects += 1;
        self.forget_gone(table);
    }

    pub(crate) fn object_gone(&mut self) {
        self.objects -= 1;
    }

    /// Objects leave the pool anywhere in the order; their records go when they are more than half of it.
    fn forget_gone(&mut self, table: &SwapTable) {
        if self.fifo.len() as u64 > 64 + 2 * self.objects {
            self.fifo.retain(|&(entry, handle)| {
                table.is_live(entry)
                    && !table.is_foreign(entry)
                    && matches!(table.location(entry), Location::Pool { handle: current, .. } if current == handle)
            });
        }
    }
}

impl Core {
    /// The oldest object of the pool that nobody is reading. An object that an heir may read (`held`) must stay where
    /// it is: the heir's books name its place.
    pub fn next_writeback(&mut self, held: impl Fn(EntryId) -> bool) -> Option<WritebackJob> {
        for _ in 0..self.zswap.fifo.len().min(SEARCH_MAX) {
            let (entry, handle) = self.zswap.fifo.pop_front()?;
            if !self.table.is_live(entry) || self.table.is_foreign(entry) {
                continue;
            }
            match self.table.location(entry) {
                Location::Pool { handle: current, len } if current == handle => {
                    if self.table.pins(entry) > 0 || held(entry) {
                        self.zswap.fifo.push_back((entry, handle));
                        continue;
                    }
                    self.table.pin(entry);
                    return Some(WritebackJob { entry, handle, len, hash: self.table.hash(entry) });
                }
                _ => {}
            }
        }
        None
    }

    /// Ends a writeback: the content is in `slot` of `area`, or stays in the pool (`None`).
    pub fn written_back(&mut self, job: WritebackJob, place: Option<(AreaId, u64)>) {
        if let Some((area, slot)) = place {
            if self.table.pins(job.entry) == 1 && self.table.is_live(job.entry) {
                let old = self.table.relocate(job.entry, Location::Slot { area, slot });
                let epoch = self.table.epoch();
                self.release_place(job.entry, old, epoch);
            } else {
                // Somebody reads the object, or nobody wants the content any more: the new copy is the one to drop.
                let _ = self.slots[area.0 as usize].free(slot);
                self.zswap.fifo.push_back((job.entry, job.handle));
            }
        } else {
            self.zswap.fifo.push_back((job.entry, job.handle));
        }
        self.unpin(job.entry);
        self.zswap.forget_gone(&self.table);
    }

    /// Objects in the pool of this process.
    pub fn pool_objects(&self) -> u64 {
        self.zswap.objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CoreConfig;
    use alloc::vec::Vec;

    #[test]
    fn the_age_order_does_not_grow_when_nothing_is_written_back() {
        let mut core = Core::new(CoreConfig { frame_blocks: 4, area_slots: Vec::new(), window_max: 16 });
        for round in 0..10_000 {
            let entry = core.table.insert(Location::Pool { handle: round, len: 100 }, 0);
            core.zswap.object_added(entry, round, &core.table);
            core.let_go(entry);
        }
        assert!(core.zswap.fifo.len() < 100, "{} records of no object", core.zswap.fifo.len());
    }

    #[test]
    fn t6a_the_pool_refuses_at_its_limit_and_accepts_at_the_threshold() {
        let mut gate = PoolGate::default();
        let pages = |pages: u64| pages * 4096;
        assert!(!gate.must_shrink(pages(199_999), pages(200_000), 90));
        assert!(gate.must_shrink(pages(200_000), pages(200_000), 90));
        assert!(gate.must_shrink(pages(190_000), pages(200_000), 90));
        assert!(!gate.must_shrink(pages(180_000), pages(200_000), 90));
    }
}
