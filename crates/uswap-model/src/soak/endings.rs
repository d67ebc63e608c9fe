//! Which lines a process may end with, in which scenario.

use super::scenario::Scenario;

/// Whether a process of `scenario` may end itself with `why`.
pub(super) fn is_allowed(scenario: &Scenario, why: &str) -> bool {
    let habits = &scenario.habits;
    // One thread, too, where what is moved stays mapped: docs/known-issues.md. A forked child may have two.
    let is_alone = habits.threads == 1 && habits.forks == 0 && habits.stays == 0;
    let moves = habits.calls > 0 && habits.calls_of[2] > 0 && !is_alone;
    let is_refused = scenario.world.refusals > 0;
    // What several threads moved at a time, and no report tells apart.
    let is_unclear = why.contains("moved memory by several threads at a time");
    // The same around a fork, or the parent was killed or stood still just then.
    let is_cut = why.contains("it was forked while memory was being moved");
    let lacks = [
        "cannot swap",
        "has swapped pages and cannot be registered",
        "no memory to follow a fork",
        "cannot look at its memory",
        "cannot join",
    ];
    is_unclear && moves || is_cut && habits.forks > 0 || is_refused && lacks.iter().any(|line| why.contains(line))
}
