//! Workingset: how long pages had been out when they are wanted back.
//!
//! The kernel's refault distance (mm/workingset.c): a clock counts the pages that leave, each swap entry keeps the time at
//! which its content left, and the pages that left between then and the fault tell how much larger memory would have had
//! to be for the page to stay. Where the content lay meanwhile, in the pool or on an area, tells what the fault has cost.

use crate::swap_table::SwapTable;

use crate::entry::EntryId;

/// Pages that leave in one tick of the clock: stamps have 16 bits and wrap after 64 GiB.
const TICK_PAGES: u64 = 256;

/// Faults since the last judgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refaults {
    /// On pages in the pool, which would never have left if the pool's memory had been the program's.
    pub young_pool: u64,
    /// The same on pages that were on an area.
    pub young_area: u64,
    /// On pages in the pool which would have been on an area then.
    pub old_pool: u64,
}

/// Pages that came back, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returns {
    /// Before more had left than was asked for.
    pub early: u64,
    /// However late.
    pub all: u64,
}

impl Returns {
    /// Those since `then`.
    pub fn since(self, then: Returns) -> Returns {
        Returns { early: self.early.saturating_sub(then.early), all: self.all.saturating_sub(then.all) }
    }
}

impl Refaults {
    fn total(&self) -> u64 {
        self.young_pool + self.young_area + self.old_pool
    }
}

/// The clock, and what it measured.
#[derive(Clone, Debug, Default)]
pub struct Workingset {
    /// Pages that have left.
    evicted: u64,
    /// Ticks in which as many pages leave as the pool has memory.
    young: u16,
    refaults: Refaults,
    /// Ticks within which a page that comes back is early.
    early: u16,
    returns: Returns,
}

impl Workingset {
    fn now(&self) -> u16 {
        (self.evicted / TICK_PAGES) as u16
    }

    /// A page has left; `entry` names its content, if it is not all zeros.
    pub(crate) fn evicted(&mut self, entry: Option<EntryId>, table: &mut SwapTable) {
        self.evicted += 1;
        if let Some(entry) = entry {
            table.set_stamp(entry, self.now());
        }
    }

    /// A thread wants content back that left at `stamp`. Whether a pool of `objects` pages would have had it still, if
    /// whatever left since had gone there.
    pub(crate) fn refaulted(&mut self, stamp: u16, in_pool: bool, objects: u64) -> bool {
        let ticks = self.now().wrapping_sub(stamp);
        self.returns.all += 1;
        self.returns.early += u64::from(ticks <= self.early);
        let young = ticks <= self.young;
        match (young, in_pool) {
            (true, true) => self.refaults.young_pool += 1,
            (true, false) => self.refaults.young_area += 1,
            (false, true) => self.refaults.old_pool += 1,
            (false, false) => {}
        }
        u64::from(ticks) * TICK_PAGES <= objects
    }

    /// Pages that came back, ever. From now on those are early that come back before `pages` others have left.
    pub fn returns(&mut self, pages: u64) -> Returns {
        self.early = (pages / TICK_PAGES).min(u64::from(u16::MAX / 2)) as u16;
        self.returns
    }

    /// The faults since the last call, if they are `enough` to judge by. The pool has `pool_pages` of memory.
    pub fn take_refaults(&mut self, enough: u64, pool_pages: u64) -> Option<Refaults> {
        if self.refaults.total() < enough {
            return None;
        }
        self.young = (pool_pages / TICK_PAGES).min(u64::from(u16::MAX / 2)) as u16;
        Some(core::mem::take(&mut self.refaults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{AreaId, Location};
    use alloc::vec::Vec;

    #[test]
    fn a_fault_is_young_when_the_pools_memory_would_have_kept_the_page() {
        let (mut table, mut workingset) = (SwapTable::new(), Workingset::default());
        assert_eq!(workingset.take_refaults(0, 40 * TICK_PAGES), Some(Refaults::default()));
        let entries: Vec<EntryId> = (0..100)
            .map(|tick| {
                let entry = table.insert(Location::Slot { area: AreaId(0), slot: tick }, 0);
                workingset.evicted(Some(entry), &mut table);
                (1..TICK_PAGES).for_each(|_| workingset.evicted(None, &mut table));
                entry
            })
            .collect();
        for (index, &entry) in entries.iter().enumerate() {
            let _ = workingset.refaulted(table.stamp(entry), index % 2 == 0, 0);
        }
        assert_eq!(workingset.take_refaults(101, 0), None);
        let found = workingset.take_refaults(40, 0).unwrap();
        assert_eq!(found, Refaults { young_pool: 20, young_area: 20, old_pool: 30 });
    }

    #[test]
    fn a_page_is_early_when_no_more_have_left_than_was_asked_for() {
        let (mut table, mut workingset) = (SwapTable::new(), Workingset::default());
        assert_eq!(workingset.returns(3 * TICK_PAGES), Returns::default());
        let entry = table.insert(Location::Slot { area: AreaId(0), slot: 1 }, 0);
        workingset.evicted(Some(entry), &mut table);
        for leave in [3 * TICK_PAGES, TICK_PAGES] {
            (0..leave).for_each(|_| workingset.evicted(None, &mut table));
            let _ = workingset.refaulted(table.stamp(entry), false, 0);
        }
        let returns = workingset.returns(0);
        assert_eq!(returns, Returns { early: 1, all: 2 });
        assert_eq!(returns.since(Returns { early: 1, all: 1 }), Returns { early: 0, all: 1 });
    }

    #[test]
    fn a_page_is_wanted_soon_when_the_pool_would_have_had_it_still() {
        let (mut table, mut workingset) = (SwapTable::new(), Workingset::default());
        let entry = table.insert(Location::Slot { area: AreaId(0), slot: 1 }, 0);
        workingset.evicted(Some(entry), &mut table);
        (1..10 * TICK_PAGES).for_each(|_| workingset.evicted(None, &mut table));
        let stamp = table.stamp(entry);
        assert!(!workingset.refaulted(stamp, false, 10 * TICK_PAGES - 1));
        assert!(workingset.refaulted(stamp, false, 10 * TICK_PAGES));
    }

    #[test]
    fn the_clock_may_wrap() {
        let (mut table, mut workingset) = (SwapTable::new(), Workingset::default());
        workingset.evicted = u64::from(u16::MAX) * TICK_PAGES;
        let _ = workingset.take_refaults(0, 2 * TICK_PAGES);
        let entry = table.insert(Location::Pool { handle: 1, len: 1 }, 0);
        workingset.evicted(Some(entry), &mut table);
        (0..TICK_PAGES).for_each(|_| workingset.evicted(None, &mut table));
        let _ = workingset.refaulted(table.stamp(entry), true, 0);
        assert_eq!(workingset.take_refaults(1, 0), Some(Refaults { young_pool: 1, ..Refaults::default() }));
    }
}
