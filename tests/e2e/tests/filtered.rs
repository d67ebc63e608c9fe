//! Processes that have put a seccomp filter on themselves, by which their children's agents can do nothing.

use std::time::Duration;

use uswap_e2e::{Budget, Launch, TempDir, bare_only, c_program, is_root, repeat, skip};

fn filtered(case: &str, budget_mib: u64, expected: &[&str]) {
    let test = TempDir::new(case);
    let launch = Launch::new(&test, c_program("filtered")).arg(case).time_limit(Duration::from_secs(60));
    let recorded = launch.bare().finish();
    let right = if case.starts_with("killed") { "right\nright" } else { "right" };
    assert_eq!(recorded.text(), format!("{right}\nok {case}\n"), "{recorded}");
    if bare_only() {
        return;
    }
    for _ in 0..repeat() {
        let finished = launch.under(&Budget::mib(budget_mib)).finish();
        finished.assert_success();
        let said = finished.text();
        assert!(expected.iter().any(|how| said == format!("{how}\nok {case}\n")), "{finished}");
        if said.starts_with("ended") {
            finished.assert_swapped();
            assert!(finished.stderr.contains("its memory is partly swapped out, and"), "{finished}");
        }
    }
}

#[test]
fn the_child_of_a_small_process_with_a_filter_runs_unmanaged() {
    filtered("far", 1024, &["right"]);
}

#[test]
fn a_child_whose_agent_may_do_nothing_reads_no_zeros() {
    filtered("swapped", 64, &["ended"]);
}

/// Nor do they wait for an agent that has been ended.
#[test]
fn the_children_of_a_small_process_go_on_where_the_filter_ends_the_agent() {
    filtered("killed-far", 1024, &["right\nright"]);
}

#[test]
fn a_child_whose_agent_the_filter_ends_neither_waits_for_it_nor_reads_zeros() {
    filtered("killed", 64, &["ended"]);
}

#[test]
fn the_first_process_of_a_namespace_whose_agent_may_do_nothing_ends_too() {
    match is_root() {
        true => filtered("namespace", 64, &["ended"]),
        false => skip("a pid namespace needs root"),
    }
}
