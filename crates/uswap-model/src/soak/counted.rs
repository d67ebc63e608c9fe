//! What forked processes have in RAM counts, and what they have in common once: now and then all programs of a tree get no processor until
//! each process has told what it has, and then it is counted.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use uswap_engine::group::{ByCensus, ProcessSlot};

use super::scenario::Scenario;
use crate::chance::Chance;
use crate::coverage::Happening;
use crate::process::Process;
use crate::tree::Tree;
use crate::violation::{Checker, Violation};
use crate::world::{Kernel, World};

/// Steps between two such moments.
const EVERY: u64 = 4000;
/// Steps between two censuses, at the most.
const CENSUS_EVERY: u64 = 2000;
/// Virtual nanoseconds for which programs stand still at most: several sleeps of a monitor.
const STILL_NS: u64 = 400_000_000;
/// Pages that a process may count too few, where they have come in without a fault: what only passes for that may as well be a huge page
/// (`uswap_core::in_common`).
const UNASKED_MAX: u64 = 256;
/// Pages that may have come to a process and left it while that looked at its share.
const LOOKED_MAX: u64 = 4;

/// Looks at the processes of a tree.
pub(super) struct Counted {
    tree: Rc<Tree>,
    chance: Chance,
    /// The step at which programs stand still the next time; `u64::MAX`: never.
    next: u64,
    /// They stand still until this time.
    until: Option<u64>,
    /// The step at which the next census is announced.
    next_census: u64,
}

impl Counted {
    /// Of trees that do not fork there is nothing to see, and of those that do half are left alone. What comes by chance here has a chance
    /// of its own.
    pub fn new(tree: &Rc<Tree>, scenario: &Scenario) -> Counted {
        let mut chance = Chance::new(scenario.group.memory_limit_bytes ^ scenario.habits.steps << 40);
        let is_looked_at = scenario.habits.forks > 0 && chance.happens(1, 2);
        let next = if is_looked_at { chance.below(EVERY) } else { u64::MAX };
        Counted { tree: tree.clone(), chance, next, until: None, next_census: 0 }
    }

    /// Between two steps.
    pub fn look(&mut self, world: &World) -> Result<(), Violation> {
        if self.next != u64::MAX && world.steps() >= self.next_census {
            let group = self.tree.group;
            let births = group.births();
            if self.all_are_in_the_group(&world.kernel()) {
                group.announce_census(births);
            }
            self.next_census = world.steps() + self.chance.below(CENSUS_EVERY);
        }
        let Some(until) = self.until else {
            if world.steps() >= self.next {
                let until = world.clock().now_ns() + STILL_NS;
                self.until = Some(until);
                world.programs_stand_still(until);
            }
            return Ok(());
        };
        world.clear_the_dead();
        let kernel = world.kernel();
        let has_all_told = self.have_all_told(&kernel);
        if has_all_told || world.clock().now_ns() >= until {
            self.until = None;
            self.next = world.steps() + self.chance.below(2 * EVERY);
            world.programs_stand_still(0);
        }
        if !has_all_told {
            return Ok(());
        }
        world.note(Happening::Counted, 1);
        let counts = self.counts();
        let (counted, there) = (counts.iter().map(|&(_, counted)| counted).sum::<u64>(), kernel.frames.taken());
        let living = kernel.processes.iter().filter(|process| process.is_alive);
        let unasked: u64 = living.map(|process| process.mm.filled_unasked.min(UNASKED_MAX)).sum();
        let by_census = self.tree.group.by_census();
        world.note(Happening::CensusHeld, by_census.iter().count());
        let by_census = by_census.unwrap_or(ByCensus { most: u64::MAX, least: 0 });
        match counted.min(by_census.most) + unasked < there || by_census.least > there + LOOKED_MAX {
            true => Err(Violation {
                checker: Checker::AllCounted,
                detail: format!(
                    "{there} pages are there, {counted} counted, {by_census:?} by census (of each process, and what counts: {counts:?})"
                ),
            }),
            false => Ok(()),
        }
    }

    /// Whether every process is in the group, and nothing has changed in it since it has told what it has.
    fn have_all_told(&self, kernel: &Kernel) -> bool {
        let group = self.tree.group;
        let living = || kernel.processes.iter().filter(|process| process.is_alive);
        let has_told = |process: &Process| {
            let slot = self.tree.index_of(process.id).map(|index| group.process(index));
            let told = slot.map(|slot| slot.resident.anon_pages.load(Relaxed));
            process.told_at == Some(process.mm.changes()) && told == Some(process.mm.resident())
        };
        self.all_are_in_the_group(kernel) && living().all(has_told)
    }

    fn all_are_in_the_group(&self, kernel: &Kernel) -> bool {
        kernel.processes.iter().filter(|process| process.is_alive).count() == self.tree.group.processes().count()
    }

    /// What each process has told, and what of it counts.
    fn counts(&self) -> Vec<(u64, u64)> {
        let (group, family) = (self.tree.group, self.tree.group.family());
        let of = |slot: &ProcessSlot| slot.resident.anon_pages.load(Relaxed);
        group.processes().map(|(index, slot)| (of(slot), family.private_pages(group, index, slot))).collect()
    }
}
