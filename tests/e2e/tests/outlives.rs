//! Memory that outlives its process: who has it in common never reads zeros where pages are swapped out.

use std::time::Duration;

use uswap_e2e::{Budget, Finished, Launch, TempDir, bare_only, c_program, repeat};

fn outlives(case: &str, expected: &str) -> Vec<Finished> {
    let test = TempDir::new(case);
    let launch = Launch::new(&test, c_program("outlives")).arg(case).time_limit(Duration::from_secs(60));
    let recorded = launch.bare().finish();
    assert_eq!(recorded.text(), format!("right\nok {case}\n"), "{recorded}");
    if bare_only() {
        return Vec::new();
    }
    let run = |_| {
        let finished = launch.under(&Budget::mib(64)).finish();
        assert_eq!(finished.text(), format!("{expected}\nok {case}\n"), "{finished}");
        finished.assert_success();
        finished.assert_swapped();
        finished
    };
    (0..repeat()).map(run).collect()
}

fn is_ended_with_a_line(case: &str) {
    for finished in outlives(case, "ended") {
        assert!(finished.stderr.contains("had its memory in common with process"), "{finished}");
    }
}

#[test]
fn a_process_made_by_clone_is_ended_when_it_asks_for_what_its_maker_swapped_out() {
    is_ended_with_a_line("cloned");
}

#[test]
fn a_process_made_by_clone_is_ended_when_its_maker_was_killed() {
    is_ended_with_a_line("cloned-killed");
}

#[test]
fn a_child_of_vfork_is_ended_when_its_maker_was_killed() {
    is_ended_with_a_line("vforked");
}

#[test]
fn a_child_of_vfork_that_executes_something_goes_on() {
    outlives("vforked-executes", "right");
}
