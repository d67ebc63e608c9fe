//! Compaction of the pool: which objects may move, and who is told of their new place.
//!
//! Which slabs are to run empty, and where their objects go, is the pool's business. Who owns the objects in these slabs is
//! found by a search that goes over the swap table once, from its beginning to its end; so no object carries the name of
//! its owner, as zsmalloc's do. No slab that is to run empty takes new objects, so what is stored behind the search need
//! not be looked at.
//!
//! An object moves as it is written back: its entry is pinned, its copy is made outside of the lock, and the copy becomes
//! the entry's place in one step under the lock, if nobody else reads the old place at that moment. The old place is
//! released after that, never before. What an heir may read stays where it is, because the heir's books name its place.

use crate::core::{Core, Released};
use crate::defects::{Sabotage, is_on};
use crate::entry::{EntryId, Location};

/// How far a search for objects to move has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CompactionSearch {
    next: u32,
}

/// An object to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct CompactionJob {
    /// Its entry, pinned until [`Core::compacted`].
    pub entry: EntryId,
    /// Where it is.
    pub handle: u32,
    /// Its length in bytes.
    pub len: u16,
}

impl Core {
    /// Whether `search` has seen all entries.
    pub fn is_searched(&self, search: &CompactionSearch) -> bool {
        search.next >= self.table.len()
    }

    /// The next object of this process that is `leaving` its place, that nobody is reading, and that no heir may read
    /// (`held`). `looks` is how many more entries may be looked at, and is counted down; without an object, either it is 0
    /// or the search [is over](Self::is_searched).
    ///
    /// Between this and [`Core::compacted`] the process must not be forked.
    pub fn next_compaction(
        &mut self,
        search: &mut CompactionSearch,
        looks: &mut u32,
        leaving: impl Fn(u32) -> bool,
        held: impl Fn(EntryId) -> bool,
    ) -> Option<CompactionJob> {
        while *looks > 0 && search.next < self.table.len() {
            let entry = EntryId(search.next);
            *looks -= 1;
            search.next += 1;
            if !self.table.is_live(entry)
                || self.table.is_foreign(entry)
                || self.table.pins(entry) > 0 && !is_on(Sabotage::CompactionIgnoresPins)
            {
                continue;
            }
            let Location::Pool { handle, len } = self.table.location(entry) else { continue };
            if leaving(handle) && !held(entry) {
                self.table.pin(entry);
                return Some(CompactionJob { entry, handle, len });
            }
        }
        None
    }

    /// Ends a move: a whole copy of the object is at `handle`, or there was no place for one (`None`). Whichever place is
    /// needed no more is released. Returns whether the copy is the object's place from here on.
    pub fn compacted(&mut self, job: CompactionJob, handle: Option<u32>) -> bool {
        let CompactionJob { entry, len, .. } = job;
        // Somebody who reads the old place needs it, and who needs the content no more needs no copy.
        let moves = handle.is_some()
            && (self.table.pins(entry) == 1 || is_on(Sabotage::CompactionIgnoresPins))
            && self.table.is_live(entry);
        if let Some(handle) = handle {
            let copy = Location::Pool { handle, len };
            let location = if moves { self.table.relocate(entry, copy) } else { copy };
            self.leftovers.released.push(Released { entry, epoch: self.table.epoch(), location });
        }
        self.unpin(entry);
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CoreConfig;
    use crate::entry::{AreaId, Epoch};
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn core() -> Core {
        Core::new(CoreConfig {
            frame_blocks: 4,
            area_slots: vec![64],
            window_max: 16,
            ahead_max: 0,
            ..CoreConfig::default()
        })
    }

    fn object(core: &mut Core, handle: u32) -> EntryId {
        let entry = core.table.insert(Location::Pool { handle, len: 100 }, handle.into());
        core.zswap.object_added(entry, &core.table);
        entry
    }

    fn next(core: &mut Core, search: &mut CompactionSearch, held: &[EntryId]) -> Option<CompactionJob> {
        let mut looks = u32::MAX;
        core.next_compaction(search, &mut looks, |handle| handle < 100, |entry| held.contains(&entry))
    }

    fn released(core: &mut Core) -> Vec<u32> {
        let mut released = Vec::new();
        core.take_released(&mut released);
        let handle = |place: Released| match place.location {
            Location::Pool { handle, .. } => handle,
            Location::Slot { .. } => unreachable!("slots are not released to the engine"),
        };
        released.into_iter().map(handle).collect()
    }

    #[test]
    fn an_object_is_named_by_its_new_place_before_the_old_one_is_released() {
        let mut core = core();
        let entry = object(&mut core, 7);
        let mut search = CompactionSearch::default();
        let job = next(&mut core, &mut search, &[]).unwrap();
        assert_eq!(job, CompactionJob { entry, handle: 7, len: 100 });
        assert_eq!((released(&mut core), core.table.location(entry)), (vec![], Location::Pool { handle: 7, len: 100 }));
        assert!(core.compacted(job, Some(107)));
        assert_eq!(core.table.location(entry), Location::Pool { handle: 107, len: 100 });
        assert_eq!((released(&mut core), core.pool_objects()), (vec![7], 1));
        assert!(next(&mut core, &mut search, &[]).is_none() && core.is_searched(&search));
    }

    #[test]
    fn what_somebody_reads_meanwhile_stays_where_it_is() {
        let mut core = core();
        let entry = object(&mut core, 7);
        let job = next(&mut core, &mut CompactionSearch::default(), &[]).unwrap();
        core.table.pin(entry);
        assert!(!core.compacted(job, Some(107)));
        assert_eq!(core.table.location(entry), Location::Pool { handle: 7, len: 100 });
        assert_eq!(released(&mut core), [107]);
        assert!(next(&mut core, &mut CompactionSearch::default(), &[]).is_none(), "it is still read");
        core.unpin(entry);
        assert!(next(&mut core, &mut CompactionSearch::default(), &[]).is_some());
    }

    #[test]
    fn what_is_let_go_meanwhile_leaves_both_places() {
        let mut core = core();
        let entry = object(&mut core, 7);
        let job = next(&mut core, &mut CompactionSearch::default(), &[]).unwrap();
        core.let_go(entry);
        assert!(!core.compacted(job, Some(107)));
        assert_eq!((released(&mut core), core.pool_objects()), (vec![107, 7], 0));
    }

    #[test]
    fn without_a_place_nothing_changes() {
        let mut core = core();
        let entry = object(&mut core, 7);
        let job = next(&mut core, &mut CompactionSearch::default(), &[]).unwrap();
        assert!(!core.compacted(job, None));
        assert_eq!((released(&mut core), core.table.pins(entry)), (vec![], 0));
        assert_eq!(core.table.location(entry), Location::Pool { handle: 7, len: 100 });
    }

    #[test]
    fn an_heirs_objects_and_an_ancestors_objects_stay() {
        let mut core = core();
        let held = object(&mut core, 7);
        let let_go = object(&mut core, 8);
        core.add_heir();
        core.let_go(let_go);
        assert!(next(&mut core, &mut CompactionSearch::default(), &[held]).is_none());
        assert!(next(&mut core, &mut CompactionSearch::default(), &[]).is_some_and(|job| job.entry == held));
        core.become_child(4);
        assert!(next(&mut core, &mut CompactionSearch::default(), &[]).is_none());
    }

    #[test]
    fn a_moved_object_is_written_back_in_its_turn() {
        let mut core = core();
        let (first, second) = (object(&mut core, 7), object(&mut core, 200));
        let job = next(&mut core, &mut CompactionSearch::default(), &[]).unwrap();
        assert!(core.compacted(job, Some(300)));
        core.slots_mut(AreaId(0)).grant(0);
        let mut order = Vec::new();
        while let Some(job) = core.next_writeback(|_| false) {
            order.push((job.entry, job.handle));
            let slot = core.slots_mut(AreaId(0)).alloc().unwrap();
            core.written_back(job, Some((AreaId(0), slot)));
        }
        assert_eq!(order, [(first, 300), (second, 200)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// A plain map of where each content is, with objects that come, go, are read and are moved in any order.
        #[test]
        fn model_every_content_has_one_place(
            steps in prop::collection::vec((0u8..10, any::<prop::sample::Index>(), any::<bool>()), 1..120),
        ) {
            let mut core = core();
            let mut places: Vec<(EntryId, u32)> = Vec::new();
            let mut readers: Vec<EntryId> = Vec::new();
            let mut jobs: Vec<(CompactionJob, u32)> = Vec::new();
            let mut search = CompactionSearch::default();
            let (mut last, mut taken) = (0, Vec::new());
            let mut place = |taken: &mut Vec<u32>| {
                last += 1;
                taken.push(last);
                last
            };
            for (step, index, flag) in steps {
                match step {
                    0..3 => {
                        let handle = place(&mut taken);
                        let entry = object(&mut core, handle);
                        places.push((entry, handle));
                    }
                    3 => if !places.is_empty() {
                        let (entry, _) = places.swap_remove(index.index(places.len()));
                        core.let_go(entry);
                    },
                    4 => if !places.is_empty() {
                        let (entry, _) = places[index.index(places.len())];
                        core.table.pin(entry);
                        readers.push(entry);
                    },
                    5 => if !readers.is_empty() {
                        let entry = readers.swap_remove(index.index(readers.len()));
                        core.unpin(entry);
                    },
                    6 | 7 => {
                        if core.is_searched(&search) {
                            search = CompactionSearch::default();
                        }
                        let mut looks = 1 + index.index(4) as u32;
                        if let Some(job) = core.next_compaction(&mut search, &mut looks, |h| h % 2 == 0, |_| false) {
                            prop_assert!(places.contains(&(job.entry, job.handle)) && !readers.contains(&job.entry));
                            jobs.push((job, place(&mut taken)));
                        }
                    }
                    _ => if !jobs.is_empty() {
                        let (job, handle) = jobs.swap_remove(index.index(jobs.len()));
                        let moves = flag && !readers.contains(&job.entry);
                        if let Some(known) = places.iter_mut().find(|(entry, _)| moves && *entry == job.entry) {
                            known.1 = handle;
                        }
                        core.compacted(job, flag.then_some(handle));
                        if !flag {
                            taken.retain(|&other| other != handle);
                        }
                    },
                }
                for freed in released(&mut core) {
                    let before = taken.len();
                    taken.retain(|&other| other != freed);
                    prop_assert_eq!(taken.len() + 1, before, "{} was freed and not taken", freed);
                }
                for &(entry, handle) in &places {
                    prop_assert_eq!(core.table.location(entry), Location::Pool { handle, len: 100 });
                    prop_assert!(taken.contains(&handle));
                    prop_assert_eq!(core.table.epoch_of(entry), Epoch(0));
                }
            }
            for (job, handle) in jobs {
                core.compacted(job, None);
                taken.retain(|&other| other != handle);
            }
            for entry in readers {
                core.unpin(entry);
            }
            for (entry, _) in places {
                core.let_go(entry);
            }
            for freed in released(&mut core) {
                taken.retain(|&other| other != freed);
            }
            prop_assert!(taken.is_empty(), "{:?} are nobody's", taken);
            prop_assert_eq!(core.pool_objects(), 0);
        }
    }
}
