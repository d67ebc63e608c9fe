//! What happens to a tree from outside while its programs run: kills, areas that leave, other budgets, the end of its supervisor.

use std::cell::RefCell;
use std::rc::Rc;

use super::scenario::Scenario;
use crate::chance::Chance;
use crate::coverage::Happening;
use crate::system::Model;
use crate::tree::Tree;
use crate::violation::{Checker, Violation};
use crate::world::{Check, World};

/// Virtual nanoseconds after which no process of a tree lives whose supervisor has ended.
const ORPHANS_END_NS: u64 = 2_000_000_000;

/// What happens how often. Rates are parts of 100,000 looks at the world.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Disturbances {
    /// A child is killed.
    pub kills: u64,
    /// The first process is killed.
    pub first_kills: u64,
    /// An area is told to leave, or to stay after all.
    pub swapoffs: u64,
    /// The budget is changed.
    pub sets: u64,
    /// The supervisor ends.
    pub supervisor_ends: u64,
}

impl Disturbances {
    /// Those of `chance`.
    pub fn draw(chance: &mut Chance) -> Disturbances {
        let mut rare = |one_in: u64, most: u64| if chance.happens(1, one_in) { 1 + chance.below(most) } else { 0 };
        Disturbances {
            kills: rare(4, 50),
            first_kills: rare(12, 20),
            swapoffs: rare(3, 200),
            sets: rare(6, 100),
            supervisor_ends: rare(16, 20),
        }
    }

    /// Whether nothing happens.
    pub fn are_none(&self) -> bool {
        *self == Disturbances::default()
    }
}

/// What is done from outside, and by the supervisor.
struct Outside {
    tree: Rc<Tree>,
    rates: Disturbances,
    limit_bytes: u64,
    /// Whether processes fork.
    forks: bool,
    /// Areas that are leaving.
    leaving: Vec<usize>,
    /// When the supervisor ended.
    ended_ns: Option<u64>,
}

/// The supervisor's own work, late or soon, and what disturbs it.
pub(super) fn look_after(tree: &Rc<Tree>, scenario: &Scenario) -> Check {
    let outside = RefCell::new(Outside {
        tree: tree.clone(),
        rates: scenario.disturbances,
        limit_bytes: scenario.group.memory_limit_bytes,
        forks: scenario.habits.forks > 0,
        leaving: Vec::new(),
        ended_ns: None,
    });
    Box::new(move |world| outside.borrow_mut().look(world))
}

impl Outside {
    fn look(&mut self, world: &World) -> Result<(), Violation> {
        if let Some(since) = self.ended_ns {
            return orphans_end(world, since);
        }
        if world.happens(1, 64) {
            self.tree.look_after_the_dead(world);
            self.look_at_leaving(world)?;
        }
        let rates = self.rates;
        if world.happens(rates.kills, 100_000) {
            self.kill_a_child(world);
        }
        if world.happens(rates.first_kills, 100_000) && world.kernel().processes[0].is_alive {
            world.note(Happening::FirstKilled, 1);
            world.kill(crate::process::ProcessId(0));
        }
        if world.happens(rates.swapoffs, 100_000) {
            self.change_an_area(world);
        }
        if world.happens(rates.sets, 100_000) {
            world.note(Happening::BudgetSet, 1);
            let quarters = 2 + world.below(5);
            self.tree.group.set_limit_bytes((self.limit_bytes / 4 * quarters).max(self.limit_bytes / 4 * 3));
            self.tree.group.announce::<Model>();
        }
        if world.happens(rates.supervisor_ends, 100_000) {
            world.note(Happening::SupervisorLost, 1);
            self.ended_ns = Some(world.clock().now_ns());
            world.end_supervisor();
        }
        Ok(())
    }

    fn kill_a_child(&self, world: &World) {
        let living: Vec<_> =
            world.kernel().processes.iter().skip(1).filter(|one| one.is_alive).map(|one| one.id).collect();
        if !living.is_empty() {
            world.note(Happening::Kill, 1);
            world.kill(living[world.below(living.len() as u64) as usize]);
        }
    }

    fn change_an_area(&mut self, world: &World) {
        let areas = self.tree.areas.len();
        if areas == 0 {
            return;
        }
        let area = world.below(areas as u64) as usize;
        let leaves = !self.tree.group.is_leaving(area);
        world.note(if leaves { Happening::SwapoffBegun } else { Happening::SwapoffTakenBack }, 1);
        self.tree.group.set_leaving(area, leaves);
        self.tree.group.announce::<Model>();
        self.leaving.retain(|&other| other != area);
        if leaves {
            self.leaving.push(area);
        }
    }

    /// As `uswap swapoff`: what it calls empty, nobody reads again, so other bytes may be there from now on. Who says that he is
    /// done has nothing on it, unless his children may read it.
    fn look_at_leaving(&mut self, world: &World) -> Result<(), Violation> {
        let (tree, before) = (&self.tree, self.leaving.len());
        let mut not_empty = None;
        self.leaving.retain(|&area| {
            let progress = tree.group.swapoff_progress(area);
            let is_empty = progress.used_slots == 0 && progress.unfinished == 0;
            if is_empty {
                tree.spoil_area(area);
            } else if progress.unfinished == 0 && !self.forks {
                not_empty = Some((area, progress.used_slots));
            }
            !is_empty
        });
        world.note(Happening::SwapoffEnded, before - self.leaving.len());
        match not_empty {
            Some((area, slots)) => {
                let detail = format!("area {area} passes for empty, and {slots} slots of it are in use");
                Err(Violation { checker: Checker::EmptyIsEmpty, detail })
            }
            None => Ok(()),
        }
    }
}

/// A tree ends with its supervisor.
fn orphans_end(world: &World, since: u64) -> Result<(), Violation> {
    if world.clock().now_ns() < since + ORPHANS_END_NS || !world.kernel().processes.iter().any(|one| one.is_alive) {
        return Ok(());
    }
    Err(Violation { checker: Checker::EndsWithSupervisor, detail: "a process goes on without supervisor".to_owned() })
}
