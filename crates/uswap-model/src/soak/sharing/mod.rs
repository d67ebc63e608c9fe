//! Soak of shared memory: processes that have objects mapped, and the shared-memory server, which swaps them.
//!
//! The world of a seed is drawn as for private memory; budget, areas, threads of the engine and what goes wrong are the server's here.
//! Programs have shared memory only.

mod sharing_program;

use std::rc::Rc;

pub use sharing_program::Habits;

use super::left_behind::LeftBehind;
use super::{Disturbances, Scenario, Soaked, disturbances, judge};
use crate::chance::Chance;
use crate::scheduler::Kind;
use crate::shmem::page_cache::PageCache;
use crate::shmem::shared_host::Server;
use crate::tree::Tree;
use crate::violation::{Checker, Violation};
use crate::world::{End, World};

/// What a seed stands for.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// The world, the group and its areas, the server's crew, and what happens from outside.
    pub scenario: Scenario,
    /// What programs do.
    pub habits: Habits,
}

impl Sharing {
    /// That of `chance`.
    pub fn draw(chance: &mut Chance) -> Sharing {
        let mut scenario = Scenario::draw(chance);
        scenario.world.span = 64;
        // The server begins, or there is none.
        (scenario.world.refusals, scenario.world.failed_looks) = (0, 0);
        let habits = Habits::draw(chance);
        // The books, the swap cache, and a part of what there is to be had.
        let least = 2 * u64::from(scenario.group.gap_min_pages) + 40;
        scenario.group.memory_limit_bytes = (least + chance.below(habits.pages as u64 / 2)) * 4096;
        // The server is the first process; it forks nothing.
        scenario.habits.forks = 0;
        let Disturbances { kills, swapoffs, sets, .. } = scenario.disturbances;
        scenario.disturbances = Disturbances { kills, swapoffs, sets, ..Disturbances::default() };
        Sharing { scenario, habits }
    }

    /// See [`Habits::crowded`].
    pub fn crowded(self, seed: u64) -> Sharing {
        let habits = self.habits.crowded(&mut Chance::new(seed ^ 0xc0_3d_ed));
        Sharing { habits, ..self }
    }
}

/// Runs the schedule of `seed`.
pub fn run_seed(seed: u64) -> Soaked {
    let mut chance = Chance::new(seed);
    let sharing = Sharing::draw(&mut chance);
    run(sharing, chance)
}

/// Runs a scenario with everything that comes by chance drawn from `chance`.
///
/// # Panics
/// The machine has no memory for it.
pub fn run(sharing: Sharing, chance: Chance) -> Soaked {
    let Sharing { scenario, habits } = sharing;
    let mut left_behind = LeftBehind::begin();
    let world = World::with(scenario.world.clone(), chance);
    let tree = Tree::new(scenario.group.clone(), &scenario.area_slots, scenario.crew).expect("there is memory");
    let server = Server::start(&world, &tree);
    let first = world.new_process();
    world.spawn(first, "program", Kind::Program, move || sharing_program::first_process(&server, &Rc::new(habits)));
    world.add_check(disturbances::look_after(&tree, &scenario));
    let mut outcome = world.run();
    if outcome.end == End::Rest {
        outcome.end = what_is_left(&world).map_or(End::Rest, End::Violation);
    }
    outcome.end = judge(&scenario, outcome.end);
    let mut coverage = world.coverage();
    coverage.take_counters(tree.group);
    let processes = world.kernel().processes.len();
    let lines = world.lines().clone();
    left_behind.descriptors(tree.given.take(), &tree.areas);
    drop(world);
    Soaked { outcome, coverage, processes, lines }
}

/// What is in memory in the end is what was written last.
fn what_is_left(world: &World) -> Option<Violation> {
    let kernel = world.kernel();
    let is_wrong = |cache: &PageCache| {
        let mut pages = cache.pages.iter().zip(&cache.truth);
        pages.position(|(page, truth)| page.is_some_and(|content| content != *truth))
    };
    let mut caches = kernel.shmem.caches.iter().enumerate();
    let (object, page) = caches.find_map(|(object, cache)| is_wrong(cache).map(|page| (object, page)))?;
    let detail = format!("page {page:#x} of object {object} is not what was written last");
    Some(Violation { checker: Checker::RightContent, detail })
}
