//! What rests in the swap cache is stored: as nothing, as the copy that is still there, in the pool, or on an area.

use uswap_core::{AreaId, StoreJob, StoreResult, Stored};

use super::super::coverage::Happening;
use super::super::process::{Process, World};
use super::super::violation::{Checked, Checker, ensure};
use super::{Step, alloc_slots, free_slot, release_places};
use crate::device::failures::WriteFate;
use crate::page_content::Content;

/// Most pages of one batch.
const BATCH: u64 = 12;

struct Pending {
    job: StoreJob,
    content: Content,
    result: Option<StoreResult>,
}

/// A page on its way to its slot.
#[derive(Clone, Copy)]
struct Transfer {
    store: usize,
    area: usize,
    slot: u64,
    /// Its position in its run: a short write ends the rest of it.
    run: u64,
}

enum Phase {
    Collect { left: u64 },
    Place { next: usize },
    Allocate,
    Write,
    Tell,
}

/// A batch of stores.
pub(super) struct Store {
    phase: Phase,
    stores: Vec<Pending>,
    transfers: Vec<Transfer>,
    cut_runs: Vec<u64>,
    pool_is_full: bool,
    runs: u64,
}

impl Store {
    pub fn new(pool_is_full: bool) -> Store {
        Store {
            phase: Phase::Collect { left: BATCH },
            stores: Vec::new(),
            transfers: Vec::new(),
            cut_runs: Vec::new(),
            pool_is_full,
            runs: 0,
        }
    }

    pub fn step(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        match self.phase {
            Phase::Collect { left } => self.collect(left, process, world),
            Phase::Place { next } => self.place(next, process, world),
            Phase::Allocate => self.allocate(process, world),
            Phase::Write => self.write(process, world),
            Phase::Tell => self.tell(process, world),
        }
    }

    fn collect(&mut self, left: u64, process: &mut Process, world: &mut World) -> Checked<Step> {
        let count = 1 + world.chance.below(left);
        for _ in 0..count {
            let Some(job) = process.books.tell(|core| core.next_store()) else { break };
            let content = process.mm.frames[job.frame.0 as usize];
            ensure(content.is_some(), Checker::Frames, || format!("{job:?} has no memory to store"))?;
            self.stores.push(Pending { job, content: content.expect("ensured"), result: None });
        }
        if self.stores.is_empty() {
            return Ok(Step::Over);
        }
        self.phase = Phase::Place { next: 0 };
        Ok(Step::Again)
    }

    /// One page finds out whether it needs a place at all, and whether the pool has one.
    fn place(&mut self, next: usize, process: &mut Process, world: &mut World) -> Checked<Step> {
        let store = &mut self.stores[next];
        let is_open = !world.group.areas.is_empty();
        store.result = if store.content == Content::ZERO {
            Some(StoreResult::Zero)
        } else if store.job.clean_hash == Some(store.content.hash()) && (!store.job.wanted_soon || self.pool_is_full) {
            Some(StoreResult::Clean)
        } else if self.pool_is_full && is_open {
            None
        } else {
            into_pool(store.content, process, world)
        };
        self.phase = if next + 1 < self.stores.len() { Phase::Place { next: next + 1 } } else { Phase::Allocate };
        Ok(Step::Again)
    }

    /// Slots for those that have no place; where there are none, they fail.
    fn allocate(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        let mut waiting: Vec<usize> =
            (0..self.stores.len()).filter(|&index| self.stores[index].result.is_none()).collect();
        while !waiting.is_empty() {
            let Some((area, first, count)) = alloc_slots(process, world, waiting.len() as u32) else { break };
            self.runs += 1;
            for (offset, store) in waiting.drain(..count as usize).enumerate() {
                self.transfers.push(Transfer { store, area, slot: first + offset as u64, run: self.runs });
            }
        }
        for store in waiting {
            self.stores[store].result = Some(StoreResult::Failed);
        }
        self.phase = Phase::Write;
        Ok(Step::Again)
    }

    /// One transfer, in any order.
    fn write(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        if self.transfers.is_empty() {
            self.phase = Phase::Tell;
            return Ok(Step::Again);
        }
        let transfer = self.transfers.swap_remove(world.chance.index(self.transfers.len()));
        let Transfer { store, area, slot, run } = transfer;
        let content = self.stores[store].content;
        let written = if self.cut_runs.contains(&run) {
            Err(WriteFate::Short)
        } else {
            world.group.write(area, slot, content, world.chance)
        };
        self.stores[store].result = Some(match written {
            Ok(()) => StoreResult::Slot { area: AreaId(area as u8), slot, hash: content.hash() },
            Err(fate) => {
                world.coverage.note(Happening::WriteFault);
                if fate == WriteFate::Short {
                    self.cut_runs.push(run);
                }
                free_slot(process, area, slot);
                // Half a page in memory is less than one.
                into_pool(content, process, world).unwrap_or(StoreResult::Failed)
            }
        });
        Ok(Step::Again)
    }

    fn tell(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        let mut wanted = Vec::new();
        for store in self.stores.drain(..) {
            let (job, result) = (store.job, store.result.expect("each store has come to an end"));
            process.objects_in_flight -= u64::from(matches!(result, StoreResult::Pool { .. }));
            process.slots_in_flight -= u64::from(matches!(result, StoreResult::Slot { .. }));
            match process.books.tell(move |core| core.stored(job, result)) {
                Stored::Done => world.coverage.note(match result {
                    StoreResult::Zero => Happening::StoredZero,
                    StoreResult::Clean => Happening::StoredClean,
                    StoreResult::Pool { .. } => Happening::StoredInPool,
                    StoreResult::Slot { .. } => Happening::StoredOnArea,
                    StoreResult::Failed => Happening::StoreFailed,
                }),
                Stored::Kept => world.coverage.note(Happening::StoreFailed),
                Stored::Wanted(page) => {
                    world.coverage.note(Happening::StoreWanted);
                    wanted.push(page);
                }
            }
        }
        release_places(process, world)?;
        Ok(Step::Wanted(wanted))
    }
}

fn into_pool(content: Content, process: &mut Process, world: &mut World) -> Option<StoreResult> {
    let pool = &mut world.group.pools[process.pool];
    // Past its limit it still takes what no area takes, up to where its address space ends.
    if !content.compresses() || pool.len() >= world.scenario.pool_objects * 3 / 2 {
        return None;
    }
    process.objects_in_flight += 1;
    Some(StoreResult::Pool { handle: pool.alloc(content), len: content.object_len(), hash: content.hash() })
}
