//! Forked processes that write to what they have in common: a copy is made only where there is room for it, so all that they have stays
//! within the budget. In the end the first process is alone, its budget becomes smaller, and it comes to keep that as well.
//!
//! One process writes at a time: what several take between two looks of their monitors is more.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use uswap_engine::group::{FaultPlan, GroupConfig};
use uswap_system::{PAGE_SIZE, System};

use super::disturbances::Disturbances;
use super::scenario::Scenario;
use super::{at_rest, read_everything};
use crate::chance::Chance;
use crate::system::Model;
use crate::tree::Tree;
use crate::violation::{Checker, Violation};
use crate::world::{Check, current};
use crate::world_config::WorldConfig;
use crate::{hooks, user_mode};

/// How long a process rests before it writes: its engine has begun, and has seen what is in common.
const SETTLES: Duration = Duration::from_millis(400);
/// How long one process waits for the other, in such rests.
const RESTS_MAX: u32 = 100;
/// Pages beyond the budget that nobody would mind while one process writes: what is brought in before the monitors look.
const BEYOND: u64 = 64;

/// What the processes of one world do.
#[derive(Clone, Debug)]
pub struct Copiers {
    /// The memory that both have.
    pub space: Range<usize>,
    /// What the first one fills when it has forked, so that reclaim meets what is in common; none where its budget is looked at.
    pub own: Range<usize>,
    /// The child writes, not its parent.
    pub child_writes: bool,
    /// Parts of 100 of the pages that it writes to.
    pub written: u64,
}

/// What the check and the programs say to each other.
#[derive(Clone, Default)]
pub(super) struct Course {
    /// One process writes at this moment.
    writes: Rc<Cell<bool>>,
    /// It has done so.
    has_written: Rc<Cell<bool>>,
}

impl Scenario {
    /// The same kernel and engine, where nothing is refused and what leaves finds a place, for programs that do nothing but copy.
    #[must_use]
    pub fn copying(mut self, seed: u64) -> Scenario {
        let mut chance = Chance::new(seed ^ 0xc0b1_c0b1_0000);
        let limit = 300 + chance.below(300);
        // So much that there is an engine before the fork, and less than may stay in common.
        let pages = (limit / 3 * 2 + chance.below(limit / 16)) as usize;
        let own = if chance.happens(1, 2) { (limit / 8 + chance.below(limit / 4)) as usize } else { 0 };
        let world = WorldConfig {
            span: pages + own,
            switching: self.world.switching,
            step_ns: [200, 500, 2000][chance.index(3)],
            woken_first: self.world.woken_first,
            late_looks: self.world.late_looks,
            spurious: self.world.spurious,
            lazy_drops: 0,
            may_lose_pages: false,
            ..WorldConfig::plain()
        };
        self.copiers = Some(Copiers {
            space: world.base..world.base + pages,
            own: world.base + pages..world.base + pages + own,
            child_writes: chance.happens(1, 2),
            written: 50 + chance.below(51),
        });
        self.area_slots = vec![8000];
        self.group = GroupConfig {
            memory_limit_bytes: limit * PAGE_SIZE as u64,
            zpool_percent: [0, 1, 5][chance.index(3)],
            fault_injection: FaultPlan::default(),
            ..self.group
        };
        self.world = world;
        self.disturbances = Disturbances::default();
        self.habits.rests_in_budget = false;
        self
    }
}

/// The program of the first process.
pub(super) fn first_process(copiers: &Rc<Copiers>, course: &Course) {
    let world = current();
    let fill = |space: &Range<usize>| {
        user_mode::mmap(space.clone());
        for page in space.clone() {
            let _ = user_mode::write(page, world.new_content());
        }
    };
    fill(&copiers.space);
    Model::sleep(SETTLES);
    let (of_child, course_of_child) = (copiers.clone(), course.clone());
    hooks::fork(move || {
        life(&of_child, true, &course_of_child);
        user_mode::munmap(of_child.space.clone());
    });
    if !copiers.own.is_empty() {
        fill(&copiers.own);
    }
    life(copiers, false, course);
    if !is_alone() {
        return;
    }
    let group = hooks::environment().tree.group;
    group.set_limit_bytes(group.limit_bytes() / 4);
    group.announce::<Model>();
    Model::sleep(4 * SETTLES);
    at_rest::is_within_budget();
    read_everything();
    user_mode::munmap(copiers.space.start..copiers.own.end);
}

/// Of the child, or its parent: it writes, or rests until the other one has done so.
fn life(copiers: &Copiers, is_child: bool, course: &Course) {
    Model::sleep(2 * SETTLES);
    if is_child == copiers.child_writes {
        let world = current();
        let mut chance = Chance::new(world.below(u64::MAX));
        course.writes.set(true);
        for page in copiers.space.clone() {
            if chance.happens(copiers.written, 100) {
                let _ = user_mode::write(page, world.new_content());
            }
        }
        course.writes.set(false);
        course.has_written.set(true);
    }
    for _ in 0..RESTS_MAX {
        if course.has_written.get() {
            return;
        }
        Model::sleep(SETTLES);
    }
}

/// The running process waits until it is the only one; false if that takes too long.
fn is_alone() -> bool {
    (0..RESTS_MAX).any(|_| {
        Model::sleep(SETTLES);
        current().kernel().processes.iter().filter(|process| process.is_alive).count() == 1
    })
}

/// Between two steps: what all processes have is within the budget while one of them writes, but for this: what it has copied may come to its
/// fair share before the others have given way, and until then all of them have what was in common.
pub(super) fn look(tree: &Rc<Tree>, copiers: &Copiers, course: &Course) -> Check {
    let (tree, course, own) = (tree.clone(), course.clone(), copiers.own.clone());
    let limit = tree.group.limit_pages();
    let beyond = (copiers.space.len() as u64).saturating_sub(limit / 2) + BEYOND;
    Box::new(move |world| {
        if !course.writes.get() || !own.is_empty() {
            return Ok(());
        }
        let group = tree.group;
        let pools: u64 =
            group.processes().map(|(_, slot)| slot.pool.bytes.load(Relaxed).div_ceil(PAGE_SIZE as u64)).sum();
        let used = world.kernel().frames.taken() + pools;
        if used <= limit + beyond {
            return Ok(());
        }
        let detail = format!("{used} pages while one process writes, of {limit}");
        Err(Violation { checker: Checker::BudgetKept, detail })
    })
}
