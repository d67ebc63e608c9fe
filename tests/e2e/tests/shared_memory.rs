//! Anonymous shared memory that is swapped behaves as it does in memory, also on a store that fails or is full.

use std::time::Duration;

use uswap_e2e::{Budget, Finished, Launch, Settings, TempDir, c_program};

/// Without these, the kernel tells nobody of forks, and shows nobody what hides itself.
const TOLD_OF_FORKS: &str = "-sys_ptrace,-perfmon,-sys_admin";

fn run(program: &str, case: &str, budget_mib: u64, is_told_of_forks: bool) {
    let test = TempDir::new(&format!("{program}-{case}"));
    let mut launch = Launch::new(&test, c_program(program)).args([case]).time_limit(Duration::from_secs(180));
    if !is_told_of_forks {
        launch = launch.without(TOLD_OF_FORKS);
    }
    let finished = launch.under(&Budget::mib(budget_mib)).finish();
    finished.assert_success();
    assert_eq!(finished.text(), format!("ok {case}\n"), "{finished}");
    // What is mapped for a moment may have gone before it is known who has it.
    if case != "many" {
        finished.assert_swapped();
    }
}

macro_rules! cases {
    ($program:literal, $is_told:literal: $($name:ident = $case:literal in $budget:literal,)*) => {
        $(#[test]
        fn $name() {
            run($program, $case, $budget, $is_told);
        })*
    };
}

/// Parts of them stayed, as zeros.
#[test]
fn it_has_no_huge_pages() {
    let Some(_settings) = Settings::of_huge_shared_pages("always") else { return };
    (0..3).for_each(|_| run("shared_memory", "huge", 32, true));
}

/// Its threads had a heap without locks: one in eight ended the run.
#[test]
fn the_server_begins_each_time() {
    (0..16).for_each(|_| run("shared_memory", "little", 40, true));
}

/// What such a child had was not swapped, and in six of ten runs nothing of it was from then on.
#[test]
fn a_child_that_is_forked_as_the_server_begins_is_known() {
    (0..6).for_each(|_| run("shared_memory", "forked-at-once", 48, true));
}

cases! {
    "shared_memory", true:
    mappings_that_move_and_shrink_and_have_aliases = "moves" in 40,
    advice_and_protection = "advice" in 40,
    forked_children_have_it_too = "forks" in 40,
    what_is_given_up_makes_room_for_others = "many" in 40,
    the_kernel_reads_and_writes_it_and_waits_there = "kernel" in 40,
    no_addition_of_several_processes_is_lost = "sums" in 48,
    who_is_killed_holds_up_nobody = "killed" in 48,
    who_is_stopped_holds_up_nobody = "stopped" in 40,
    none_leaves_once_the_kernel_writes_to_it_for_others = "written-by-the-kernel" in 32,
    it_is_several_mappings_before_it_is_known = "parted" in 40,
    pages_of_it_are_mapped_in_another_order = "reordered" in 32,
    it_is_mapped_once_more_by_its_file = "opened" in 32,
    files_that_are_opened_by_number_for_direct_io = "direct" in 48,
}

cases! {
    "shared_memory", false:
    untold_of_forks_mappings_move_and_shrink_and_have_aliases = "moves" in 40,
    untold_of_forks_what_is_given_up_makes_room_for_others = "many" in 40,
    untold_of_forks_who_is_killed_holds_up_nobody = "killed" in 48,
}

cases! {
    "shared_forks", false:
    children_of_forks_that_nobody_follows_see_what_is_there_or_die = "raw" in 40,
    advice_for_forks_is_the_programs = "advised" in 40,
    children_are_alone_with_it_at_once = "orphans" in 40,
    parents_are_killed_while_they_fork = "killed" in 40,
    another_thread_maps_and_moves_while_one_forks = "threads" in 40,
    children_of_children_have_it_too = "generations" in 40,
    the_child_of_one_that_hides_its_memory_ends = "hidden" in 40,
}

cases! {
    "shared_crowd", true:
    threads_double_move_and_unmap_it_at_once = "threads" in 16,
    threads_double_move_and_unmap_it_from_the_first_moment = "early" in 16,
    threads_double_move_and_unmap_it_at_once_and_fork = "forks" in 16,
}

cases! {
    "shared_crowd", false:
    untold_of_forks_threads_double_move_and_unmap_it_at_once = "threads" in 16,
    untold_of_forks_threads_double_move_and_unmap_it_at_once_and_fork = "forks" in 16,
}

/// The kernel tells the next one of a mutex whose owner has ended only if its page is in memory: one of six such runs hung.
#[test]
fn who_waits_for_a_mutex_learns_that_its_owner_was_killed() {
    for kind in ["plain", "lending"] {
        let test = TempDir::new(&format!("robust-shared-{kind}"));
        let launch = Launch::new(&test, c_program("robust_shared")).args(["60", kind]);
        let finished = launch.time_limit(Duration::from_secs(180)).under(&Budget::mib(30)).finish();
        finished.assert_success();
        assert_eq!(finished.text(), "ok\n", "{finished}");
        finished.assert_swapped();
    }
}

/// Three processes on a store that fails; the pages that are lost, in each of them, and the lines of uswap's.
fn lossy(test: &TempDir, flags: &[&str]) -> (u64, Vec<String>, Finished) {
    let launch = Launch::new(test, c_program("lossy_shared")).args(["96", "3"]).time_limit(Duration::from_secs(180));
    let budget = Budget { quiet: false, ..Budget::mib(48) }.flag("--zpool-percent").flag("0");
    let finished = launch.under(&flags.iter().fold(budget, |budget, flag| budget.flag(flag))).finish();
    finished.assert_success();
    let lost = finished.text().trim().strip_prefix("lost ").and_then(|number| number.parse().ok());
    let lost = lost.unwrap_or_else(|| panic!("the program did not say how much it lost\n{finished}"));
    let lines = finished.stderr.lines().filter(|line| line.starts_with("uswap: ") && !line.starts_with("uswap: peak "));
    (lost, lines.map(str::to_owned).collect(), finished)
}

/// The same, where faults are injected.
fn failing(plan: &str) -> (u64, Vec<String>, Finished) {
    lossy(&TempDir::new("shared-memory-failing"), &["--fault-injection", plan])
}

/// Each lost page has its line, and there is no other.
fn assert_named(lost: u64, lines: &[String], finished: &Finished) {
    let is_named = |line: &String| line.contains(" of shared memory ") && line.ends_with("an access raises SIGBUS");
    assert!(
        lines.iter().all(is_named) && lines.len() as u64 >= lost,
        "{lost} pages lost, {} lines\n{finished}",
        lines.len()
    );
}

#[test]
fn what_cannot_be_read_back_is_lost_to_all_and_named() {
    let (lost, lines, finished) = failing("flip-bit:every=1,after=300,seed=4");
    assert_named(lost, &lines, &finished);
    assert!(lost > 0, "the plan did nothing\n{finished}");
}

/// Reading again helps, or it is said.
#[test]
fn reads_that_fail_now_and_then() {
    for plan in ["flip-bit:every=7,after=30,seed=3", "short-read:every=7,after=30", "eio-read:every=7,after=30"] {
        let (lost, lines, finished) = failing(plan);
        assert_named(lost, &lines, &finished);
    }
}

#[test]
fn writes_that_fail_lose_nothing() {
    for plan in ["eio-write:every=7", "eio-write:every=1,after=20,until=60", "short-write:every=5", "enospc:every=1"] {
        let (lost, lines, finished) = failing(plan);
        assert!(lost == 0 && !lines.is_empty(), "{plan}\n{finished}");
    }
}

#[test]
fn what_is_larger_than_all_space_stays_in_memory() {
    let test = TempDir::new("shared-memory-space");
    let area = format!("file:{},size=32M", test.path().join("area").display());
    let (lost, lines, finished) = lossy(&test, &["--swap", &area]);
    assert_eq!(
        (lost, lines),
        (0, vec!["uswap: swap space is full; shared memory goes beyond its budget".to_owned()]),
        "{finished}"
    );
    finished.assert_swapped();
}
