//! Objects move inside the pool, a batch a round, as in `compaction.rs` of the engine.
//!
//! Which slabs run empty is the pool's business, and this one has none: what is to move is drawn.

use uswap_core::{CompactionJob, CompactionSearch, Core};

use crate::page_content::Content;

use super::super::coverage::Happening;
use super::super::process::{Process, World};
use super::super::sabotage::Sabotage;
use super::super::violation::{Checked, Checker, violated};
use super::{Step, held_by_heirs, release_places};

/// Most objects of a round.
const ROUND_OBJECTS: u64 = 8;
/// Most entries that a round looks at.
const ROUND_LOOKS: u64 = 64;
/// One handle in so many is leaving its place.
const SPREAD: u64 = 3;

/// How far a pass over the swap table is, between rounds.
#[derive(Clone, Copy, Default)]
pub(super) struct Pass {
    search: CompactionSearch,
    leaving: u32,
}

enum Phase {
    Collect,
    Place,
    Copy { next: usize },
    Tell,
}

/// A round.
pub(super) struct Compaction {
    phase: Phase,
    pass: Pass,
    jobs: Vec<CompactionJob>,
    targets: Vec<Option<u32>>,
}

impl Compaction {
    pub fn new(pass: Pass) -> Compaction {
        Compaction { phase: Phase::Collect, pass, jobs: Vec::new(), targets: Vec::new() }
    }

    /// Where the next round goes on.
    pub fn pass(&self) -> Pass {
        self.pass
    }

    pub fn step(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        match self.phase {
            Phase::Collect => {
                self.collect(process, world);
                if self.jobs.is_empty() {
                    return Ok(Step::Over);
                }
                self.phase = Phase::Place;
            }
            Phase::Place => {
                for _ in &self.jobs {
                    // Now and then a class has no holes left.
                    let has_room = world.chance.happens(9, 10);
                    let pool = &mut world.group.pools[process.pool];
                    self.targets.push(has_room.then(|| pool.alloc(Content::ZERO)));
                    process.objects_in_flight += u64::from(has_room);
                }
                self.phase = Phase::Copy { next: 0 };
            }
            Phase::Copy { next } => {
                self.copy(next, process, world)?;
                self.phase = if next + 1 < self.jobs.len() { Phase::Copy { next: next + 1 } } else { Phase::Tell };
            }
            Phase::Tell => {
                for (job, target) in self.jobs.drain(..).zip(self.targets.drain(..)) {
                    process.objects_in_flight -= u64::from(target.is_some());
                    let has_moved = process.books.tell(move |core| core.compacted(job, target));
                    world.coverage.note(if has_moved { Happening::Compacted } else { Happening::CompactionGivenUp });
                }
                release_places(process, world)?;
                return Ok(Step::Over);
            }
        }
        Ok(Step::Again)
    }

    fn collect(&mut self, process: &mut Process, world: &mut World) {
        if process.books.look().is_searched(&self.pass.search) {
            self.pass = Pass { search: CompactionSearch::default(), leaving: world.chance.below(SPREAD) as u32 };
        }
        let mut looks = 1 + world.chance.below(ROUND_LOOKS) as u32;
        for _ in 0..1 + world.chance.below(ROUND_OBJECTS) {
            let mut held = held_by_heirs(process, world);
            if world.sabotage == Some(Sabotage::MoveHeld) {
                held.clear();
            }
            let Pass { search, leaving } = self.pass;
            let next = move |core: &mut Core| {
                let (mut search, mut looks) = (search, looks);
                let leaves = |handle: u32| handle % SPREAD as u32 == leaving;
                let job = core.next_compaction(&mut search, &mut looks, leaves, |entry| held.contains(&entry));
                (search, looks, job)
            };
            let (search, left, job) = process.books.tell(next);
            self.pass.search = search;
            looks = left;
            let Some(job) = job else { break };
            self.jobs.push(job);
        }
    }

    fn copy(&mut self, index: usize, process: &Process, world: &mut World) -> Checked {
        let (job, Some(target)) = (self.jobs[index], self.targets[index]) else { return Ok(()) };
        let pool = &mut world.group.pools[process.pool];
        match pool.get(job.handle) {
            Some(content) if content.hash() == process.books.look().swap_table().hash(job.entry) => {
                pool.put(target, content);
                Ok(())
            }
            other => violated(Checker::Recoverable, format!("{job:?} finds {other:?} in the pool")),
        }
    }
}
