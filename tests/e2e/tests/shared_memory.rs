//! Anonymous shared memory that is swapped behaves as it does in memory.

use std::time::Duration;

use uswap_e2e::{Budget, Launch, TempDir, c_program};

fn run(case: &str, budget_mib: u64) {
    let test = TempDir::new(&format!("shared-memory-{case}"));
    let launch = Launch::new(&test, c_program("shared_memory")).args([case]).time_limit(Duration::from_secs(180));
    let finished = launch.under(&Budget::mib(budget_mib)).finish();
    finished.assert_success();
    assert_eq!(finished.text(), format!("ok {case}\n"), "{finished}");
    finished.assert_swapped();
}

macro_rules! cases {
    ($($name:ident = $case:literal in $budget:literal,)*) => {
        $(#[test]
        fn $name() {
            run($case, $budget);
        })*
    };
}

/// Its threads had a heap without locks: one in eight ended the run.
#[test]
fn the_server_begins_each_time() {
    (0..30).for_each(|_| run("little", 40));
}

cases! {
    mappings_that_move_and_shrink_and_have_aliases = "moves" in 40,
    advice_and_protection = "advice" in 40,
    forked_children_have_it_too = "forks" in 40,
    what_is_given_up_makes_room_for_others = "many" in 40,
    the_kernel_reads_and_writes_it_and_waits_there = "kernel" in 40,
    no_addition_of_several_processes_is_lost = "sums" in 48,
    who_is_killed_holds_up_nobody = "killed" in 48,
    who_is_stopped_holds_up_nobody = "stopped" in 40,
}
