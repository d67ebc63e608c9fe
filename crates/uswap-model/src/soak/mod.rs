//! Soak: random programs under the engine that runs on Linux, one schedule for each seed.
//!
//! A seed makes a world (how much of everything, what goes how often wrong), programs, and the order in which all threads take
//! their steps. In the end the programs read every page.

mod at_rest;
mod copiers;
mod counted;
mod disturbances;
mod endings;
mod follower;
mod left_behind;
mod random_program;
mod scenario;
pub mod sharing;

use std::rc::Rc;

pub use copiers::Copiers;
pub use disturbances::Disturbances;
pub use random_program::Habits;
pub use scenario::Scenario;

use left_behind::LeftBehind;

use crate::chance::Chance;
use crate::coverage::{Coverage, Happening};
use crate::scheduler::Kind;
use crate::tree::Tree;
use crate::violation::{Checker, Violation};
use crate::world::{End, Outcome, World};
use crate::{hooks, user_mode};

/// What a seed came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Soaked {
    /// How the world ended.
    pub outcome: Outcome,
    /// What happened how often.
    pub coverage: Coverage,
    /// Processes that there were.
    pub processes: usize,
    /// What was said to the user.
    pub lines: Vec<String>,
}

impl Soaked {
    /// What a checker found.
    pub fn violation(&self) -> Option<&Violation> {
        match &self.outcome.end {
            End::Violation(violation) => Some(violation),
            End::Rest | End::Ended { .. } | End::Killed(_) => None,
        }
    }
}

/// Runs the schedule of `seed`.
pub fn run_seed(seed: u64) -> Soaked {
    let mut chance = Chance::new(seed);
    let scenario = Scenario::draw(&mut chance);
    run(scenario, chance)
}

/// Runs the schedule of `seed` in a world where nothing rests ([`Scenario::restless`]).
pub fn run_restless_seed(seed: u64) -> Soaked {
    let mut chance = Chance::new(seed);
    let scenario = Scenario::draw(&mut chance).restless(seed);
    run(scenario, chance)
}

/// Runs the schedule of `seed` in which processes write to what forks leave in common ([`Scenario::copying`]).
pub fn run_copying_seed(seed: u64) -> Soaked {
    let mut chance = Chance::new(seed);
    let scenario = Scenario::draw(&mut chance).copying(seed);
    run(scenario, chance)
}

/// The same as [`run_seed`], and its last steps are kept: [`last_steps`](crate::world::last_steps) tells them, also after a panic.
pub fn run_seed_and_keep_steps(seed: u64) -> Soaked {
    let mut chance = Chance::new(seed);
    let mut scenario = Scenario::draw(&mut chance);
    scenario.world.keeps_last_steps = true;
    run(scenario, chance)
}

/// The same with a planted defect, which must be found.
pub fn run_seed_that_misreads(seed: u64) -> Soaked {
    let mut chance = Chance::new(seed);
    let mut scenario = Scenario::draw(&mut chance);
    scenario.world.misreads = 1000;
    run(scenario, chance)
}

/// Runs a scenario with everything that comes by chance drawn from `chance`.
///
/// # Panics
/// The machine has no memory for it.
pub fn run(scenario: Scenario, chance: Chance) -> Soaked {
    let mut left_behind = LeftBehind::begin();
    let world = World::with(scenario.world.clone(), chance);
    let tree = Tree::new(scenario.group.clone(), &scenario.area_slots, scenario.crew).expect("there is memory");
    let process = world.new_process();
    hooks::start(&world, process, &tree);
    match scenario.copiers.clone().map(Rc::new) {
        Some(copiers) => {
            let course = copiers::Course::default();
            world.add_check(copiers::look(&tree, &copiers, &course));
            world.spawn(process, "program", Kind::Program, move || copiers::first_process(&copiers, &course));
        }
        None => {
            let habits = Rc::new(scenario.habits.clone());
            world.spawn(process, "program", Kind::Program, move || random_program::first_process(&habits));
        }
    }
    world.add_check(disturbances::look_after(&tree, &scenario));
    let mut counted = counted::Counted::new(&tree, &scenario);
    world.add_check(Box::new(move |world| counted.look(world)));
    let mut outcome = world.run();
    outcome.end = judge(&scenario, outcome.end);
    world.note(Happening::EndedWithLine, usize::from(matches!(outcome.end, End::Ended { .. })));
    let mut coverage = world.coverage();
    coverage.take_counters(tree.group);
    let processes = world.kernel().processes.len();
    let lines = world.lines().clone();
    left_behind.descriptors(tree.given.take(), &tree.areas);
    drop(world);
    Soaked { outcome, coverage, processes, lines }
}

/// A process ends itself only for a reason that there was.
fn judge(scenario: &Scenario, end: End) -> End {
    let (checker, detail) = match end {
        End::Ended { process, ref why } if !endings::is_allowed(scenario, why) => {
            (Checker::EndsForAReason, format!("{process:?} ended with: {why}"))
        }
        End::Killed(process) => (Checker::EndsWithSupervisor, format!("{process:?} killed itself")),
        other => return other,
    };
    End::Violation(Violation { checker, detail })
}

/// All of the program's pages that are mapped in the process of the running thread.
fn mapped_pages() -> Vec<usize> {
    let world = crate::world::current();
    let kernel = world.kernel();
    kernel.process(world.this_process()).mm.vmas.iter().flat_map(|vma| vma.start..vma.end).collect()
}

/// Reads every page; the oracle compares.
fn read_everything() {
    for page in mapped_pages() {
        let _ = user_mode::read(page);
    }
}
