//! Swap-out: from the swap cache to the pool, an area, or nothing.

use crate::core::Core;
use crate::defects::{Sabotage, is_on};
use crate::entry::{AreaId, EntryId, Location};
use crate::page_table::PageState;
use crate::swap_cache::{FrameId, FrameUse};
use crate::units::PageNumber;

/// A frame whose content is to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct StoreJob {
    /// The frame.
    pub frame: FrameId,
    /// Hash of a stored copy that was equal when the page came in: when it still is, nothing needs to be stored.
    pub clean_hash: Option<u128>,
    /// It was wanted again soon after it had last left: it belongs into the pool, even if it is equal to that copy on an area.
    pub wanted_soon: bool,
}

/// What the engine did with the content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreResult {
    /// All bytes are zero.
    Zero,
    /// It still equals the stored copy.
    Clean,
    /// In the pool.
    Pool {
        /// The object.
        handle: u32,
        /// Its length in bytes.
        len: u16,
        /// Hash of the page.
        hash: u128,
    },
    /// On an area.
    Slot {
        /// The area.
        area: AreaId,
        /// The slot, one of this process's.
        slot: u64,
        /// Hash of the page.
        hash: u128,
    },
    /// There was no place for it.
    Failed,
}

/// What became of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Stored {
    /// It is free.
    Done,
    /// It keeps its content: there was no place.
    Kept,
    /// It keeps its content, and a thread waits for the page: serve a fault.
    Wanted(PageNumber),
}

impl Core {
    /// The oldest cached frame.
    pub fn next_store(&mut self) -> Option<StoreJob> {
        let frame = self.cache.take_inactive()?;
        let clean = self.cache.frame(frame).clean;
        Some(StoreJob {
            frame,
            clean_hash: clean.map(|entry| self.table.hash(entry)),
            wanted_soon: clean.is_some_and(|entry| self.is_on_area(entry) && self.table.is_wanted_soon(entry)),
        })
    }

    fn is_on_area(&self, entry: EntryId) -> bool {
        matches!(self.table.location(entry), Location::Slot { .. })
    }

    /// Ends a store. The new place, if any, belongs to the books from here on.
    pub fn stored(&mut self, job: StoreJob, result: StoreResult) -> Stored {
        let record = *self.cache.frame(job.frame);
        assert!(record.state == FrameUse::Writing, "{:?} was stored while {:?}", job.frame, record.state);
        let Some(page) = record.owner else {
            // Unmapped or discarded meanwhile; its clean copy went then.
            self.take_back(result);
            self.cache.release(job.frame);
            return Stored::Done;
        };
        assert!(self.pages.get(page) == Some(PageState::InFrame { frame: job.frame }));
        if result == StoreResult::Failed && is_on(Sabotage::FailedStoreForgotten) {
            return Stored::Kept;
        }
        if record.wanted || result == StoreResult::Failed {
            self.take_back(result);
            self.cache.cached_again(job.frame);
            let is_wanted = record.wanted && !is_on(Sabotage::WantedForgotten);
            return if is_wanted { Stored::Wanted(page) } else { Stored::Kept };
        }
        if record.came_along {
            self.windows.cluster.wasted();
        }
        if result != StoreResult::Clean {
            self.drop_clean(record.clean);
        }
        let entry = match result {
            StoreResult::Clean => Some(record.clean.expect("a clean page has a stored copy")),
            StoreResult::Zero => None,
            StoreResult::Pool { handle, len, hash } => {
                let entry = self.table.insert(Location::Pool { handle, len }, hash);
                self.zswap.object_added(entry, &self.table);
                Some(entry)
            }
            StoreResult::Slot { area, slot, hash } => Some(self.table.insert(Location::Slot { area, slot }, hash)),
            StoreResult::Failed => unreachable!("handled above"),
        };
        self.eviction.workingset.evicted(entry, &mut self.table);
        let state = entry.map_or(PageState::SwappedZero, |entry| PageState::Swapped { entry });
        self.pages.set(page, state);
        self.counts.swapped_pages += 1;
        self.cache.release(job.frame);
        Stored::Done
    }

    /// Releases the place of content that nobody needs.
    fn take_back(&mut self, result: StoreResult) {
        let (location, hash) = match result {
            StoreResult::Pool { handle, len, hash } => (Location::Pool { handle, len }, hash),
            StoreResult::Slot { area, slot, hash } => (Location::Slot { area, slot }, hash),
            _ => return,
        };
        let entry = self.table.insert(location, hash);
        if let Location::Pool { .. } = location {
            self.zswap.object_added(entry, &self.table);
        }
        self.let_go(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CoreConfig;
    use crate::fault::{FaultPlan, FrameLeft};
    use crate::reclaim::IsolationOutcome;
    use crate::units::PageRange;

    const PAGE: PageNumber = PageNumber(16);

    /// `PAGE` is on an area, and `objects` others are in the pool.
    fn swapped(objects: u64) -> Core {
        let mut core = Core::new(CoreConfig {
            frame_blocks: 4,
            area_slots: alloc::vec![64],
            window_max: 16,
            ahead_max: 0,
            ..CoreConfig::default()
        });
        core.adopt(PageRange { start: PageNumber(0), pages: 64 });
        core.slots_mut(AreaId(0)).grant(0);
        let slot = core.slots_mut(AreaId(0)).alloc().unwrap();
        for object in 0..objects {
            let entry = core.table.insert(Location::Pool { handle: object as u32, len: 100 }, 0);
            core.zswap.object_added(entry, &core.table);
        }
        let _ = core.found_present(PageRange { start: PAGE, pages: 1 });
        let job = next_store(&mut core);
        assert_eq!((job.clean_hash, job.wanted_soon), (None, false));
        assert_eq!(core.stored(job, StoreResult::Slot { area: AreaId(0), slot, hash: 7 }), Stored::Done);
        core
    }

    fn next_store(core: &mut Core) -> StoreJob {
        let isolation = core.isolate().unwrap();
        let outcome = IsolationOutcome { moved: isolation.mask, ..IsolationOutcome::default() };
        let _ = core.isolated(isolation, outcome);
        core.next_store().unwrap()
    }

    fn comes_back(core: &mut Core) {
        let FaultPlan::Load(plan) = core.fault(PAGE, false) else { panic!() };
        core.load_done(&plan.pages()[0], plan.op, FrameLeft::Populated, true, false);
        // Threads have asked for others since.
        (100..116).for_each(|page| core.eviction.order.just_asked.note(PageNumber(page)));
    }

    #[test]
    fn a_page_that_comes_back_soon_belongs_into_the_pool() {
        let mut core = swapped(300);
        comes_back(&mut core);
        let job = next_store(&mut core);
        assert_eq!((job.clean_hash, job.wanted_soon), (Some(7), true));
        let free = core.slots(AreaId(0)).used();
        assert_eq!(core.stored(job, StoreResult::Pool { handle: 999, len: 100, hash: 7 }), Stored::Done);
        assert_eq!(core.slots(AreaId(0)).used(), free - 1, "the copy on the area is needed no more");
    }

    #[test]
    fn a_page_that_comes_back_late_is_dropped_where_its_copy_is() {
        let mut core = swapped(300);
        (0..600).for_each(|_| core.eviction.workingset.evicted(None, &mut core.table));
        comes_back(&mut core);
        let job = next_store(&mut core);
        assert_eq!((job.clean_hash, job.wanted_soon), (Some(7), false));
        assert_eq!(core.stored(job, StoreResult::Clean), Stored::Done);
        // The next time it does come back soon.
        comes_back(&mut core);
        assert!(next_store(&mut core).wanted_soon);
    }
}
