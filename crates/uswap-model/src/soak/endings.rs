//! Which lines a process may end with, in which scenario.

use super::scenario::Scenario;

/// Whether a process of `scenario` may end itself with `why`.
pub(super) fn is_allowed(scenario: &Scenario, why: &str) -> bool {
    let habits = &scenario.habits;
    // One thread, too: what it did call by call is read at a time where the engine was late (docs/known-issues.md).
    let moves = habits.calls > 0 && habits.calls_of[2] > 0;
    let is_refused = scenario.world.refusals > 0;
    // What several threads moved at a time, and no report tells apart.
    let is_unclear = why.contains("moved memory by several threads at a time");
    // The same around a fork, or the parent was killed or stood still just then.
    let is_cut = why.contains("it was forked while memory was being moved");
    let is_blind = scenario.world.failed_looks > 0;
    let blind = ["cannot look at", "the kernel does not tell what is there", "cannot swap"];
    let lacks = [
        "cannot swap",
        "has swapped pages and cannot be registered",
        "no memory to follow a fork",
        "cannot look at its memory",
        "cannot join",
    ];
    is_unclear && moves
        || is_cut && habits.forks > 0
        || is_refused && lacks.iter().any(|line| why.contains(line))
        || is_blind && blind.iter().any(|line| why.contains(line))
}
