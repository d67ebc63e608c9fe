//! The oldest objects of the pool are written to an area.

use uswap_core::{AreaId, WritebackJob};

use super::super::coverage::Happening;
use super::super::process::{Process, World};
use super::super::violation::{Checked, violated};
use super::{Step, alloc_slots, free_slot, held_by_heirs, release_places};
use crate::soak::violation::Checker;

/// Most objects of one batch.
const BATCH: u64 = 8;

enum Phase {
    Collect,
    Allocate,
    Write { next: usize },
    Tell,
}

/// A batch of writebacks.
pub(super) struct Writeback {
    phase: Phase,
    jobs: Vec<WritebackJob>,
    slots: Vec<Option<(usize, u64)>>,
    places: Vec<Option<(AreaId, u64)>>,
}

impl Writeback {
    pub fn new() -> Writeback {
        Writeback { phase: Phase::Collect, jobs: Vec::new(), slots: Vec::new(), places: Vec::new() }
    }

    pub fn step(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        match self.phase {
            Phase::Collect => {
                let count = 1 + world.chance.below(BATCH);
                for _ in 0..count {
                    let held = held_by_heirs(process, world);
                    let job = process.books.tell(move |core| core.next_writeback(|entry| held.contains(&entry)));
                    let Some(job) = job else { break };
                    self.jobs.push(job);
                }
                if self.jobs.is_empty() {
                    return Ok(Step::Over);
                }
                self.phase = Phase::Allocate;
            }
            Phase::Allocate => {
                while self.slots.len() < self.jobs.len() {
                    let left = (self.jobs.len() - self.slots.len()) as u32;
                    let Some((area, first, count)) = alloc_slots(process, world, left) else { break };
                    self.slots.extend((first..first + u64::from(count)).map(|slot| Some((area, slot))));
                }
                self.slots.resize(self.jobs.len(), None);
                self.phase = Phase::Write { next: 0 };
            }
            Phase::Write { next } => {
                self.write(next, process, world)?;
                self.phase = if next + 1 < self.jobs.len() { Phase::Write { next: next + 1 } } else { Phase::Tell };
            }
            Phase::Tell => {
                for (job, place) in self.jobs.drain(..).zip(self.places.drain(..)) {
                    if place.is_some() {
                        world.coverage.note(Happening::WrittenBack);
                        process.slots_in_flight -= 1;
                    }
                    process.books.tell(move |core| core.written_back(job, place));
                }
                release_places(process, world)?;
                return Ok(Step::Over);
            }
        }
        Ok(Step::Again)
    }

    fn write(&mut self, index: usize, process: &mut Process, world: &mut World) -> Checked {
        let job = self.jobs[index];
        let content = match world.group.pools[process.pool].get(job.handle) {
            Some(content) if content.hash() == job.hash => content,
            other => return violated(Checker::Recoverable, format!("{job:?} finds {other:?} in the pool")),
        };
        let place = match self.slots[index] {
            None => None,
            Some((area, slot)) => match world.group.write(area, slot, content, world.chance) {
                Ok(()) => Some((AreaId(area as u8), slot)),
                Err(_) => {
                    world.coverage.note(Happening::WriteFault);
                    free_slot(process, area, slot);
                    None
                }
            },
        };
        self.places.push(place);
        Ok(())
    }
}
