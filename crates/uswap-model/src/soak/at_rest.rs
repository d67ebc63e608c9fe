//! What is asked of a program that rests, in a world in which no store fails.

use std::time::Duration;

use uswap_system::System;

use crate::coverage::Happening;
use crate::hooks;
use crate::system::Model;
use crate::violation::Checker;
use crate::world::current;

/// How long a program rests before its budget is looked at: several looks of a monitor that sleeps for long.
const REST: Duration = Duration::from_millis(500);
/// Pages beyond the budget, and pages of pool beyond its share, that nobody would mind.
const BEYOND: u64 = 8;
const POOL_BEYOND: u64 = 32;
/// How often it is looked, and when `uswap swapoff` gives up; and where each step takes long, in steps.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const STUCK_AFTER_NS: u64 = 5_000_000_000;
const STUCK_AFTER_STEPS: u64 = 2_000_000;

/// A process that rests is within its budget, and its pool within its share.
pub(super) fn is_within_budget() {
    let world = current();
    Model::sleep(REST);
    let group = hooks::environment().tree.group;
    let limit = group.limit_pages();
    let kernel = world.kernel();
    let process = kernel.process(world.this_process());
    let pool = process.shared_pages.as_ref().map_or(0, |count| count());
    let used = process.mm.resident() + pool;
    let share = limit * u64::from(group.config().zpool_percent) / 100;
    drop(kernel);
    if used > limit + BEYOND {
        world.violate(Checker::BudgetKept, format!("{used} pages at rest, of {limit}"));
    }
    if pool > share + POOL_BEYOND {
        world.violate(Checker::BudgetKept, format!("{pool} pages of pool at rest, of {share}"));
    }
}

/// What is on an area comes in, as long as there is room for it, though no thread of the program asks for any of it.
pub(super) fn swaps_off() {
    let (world, tree) = (current(), &hooks::environment().tree);
    if tree.areas.is_empty() || !world.happens(1, 2) {
        return;
    }
    let area = world.below(tree.areas.len() as u64) as usize;
    world.note(Happening::SwapoffBegun, 1);
    if world.happens(3, 4) {
        tree.group.set_limit_bytes(4 * tree.group.limit_bytes());
    }
    tree.group.set_leaving(area, true);
    tree.group.announce::<Model>();
    let stuck_after = STUCK_AFTER_NS.max(world.config.step_ns * STUCK_AFTER_STEPS);
    let (mut left, mut since) = (u64::MAX, world.clock().now_ns());
    loop {
        Model::sleep(LOOK_EVERY);
        let progress = tree.group.swapoff_progress(area);
        if progress.used_slots == 0 && progress.unfinished == 0 {
            // Nobody reads it again.
            tree.spoil_area(area);
            return world.note(Happening::SwapoffEnded, 1);
        }
        if progress.waits_for_memory {
            return;
        }
        if progress.used_slots < left {
            (left, since) = (progress.used_slots, world.clock().now_ns());
        }
        if world.clock().now_ns() > since + stuck_after {
            return world.violate(Checker::AreasEmpty, format!("{left} pages stay on area {area}"));
        }
    }
}
