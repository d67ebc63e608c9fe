//! Signals around forks, threads that are gone before their maker knows of them, and what libc and the kernel look at where
//! memory may be swapped out.

use std::time::Duration;

use uswap_e2e::{Budget, Launch, TempDir, bare_only, c_program, is_root, repeat, skip};

fn interrupted(case: &str) {
    let test = TempDir::new(case);
    let launch = Launch::new(&test, c_program("interrupted")).arg(case).time_limit(Duration::from_secs(60));
    let recorded = launch.bare().finish();
    recorded.assert_success();
    if bare_only() {
        return;
    }
    for _ in 0..repeat() {
        let finished = launch.under(&Budget::mib(40)).finish();
        assert_eq!((finished.code(), finished.text()), (0, recorded.text()), "{finished}");
    }
}

fn with_namespaces(case: &str) {
    match is_root() {
        true => interrupted(case),
        false => skip("namespaces need root"),
    }
}

/// The inner fork of a thread that is in another one, at each of its steps.
#[test]
fn a_handler_that_forks_while_its_thread_forks() {
    interrupted("handler-forks");
}

/// It must not run before what is swapped out can be brought in: it would find zeros there, and leave them.
#[test]
fn a_handler_that_runs_in_the_child_at_once() {
    interrupted("handler-in-the-child");
}

/// As those of libraries do; ours must neither give back too early what they blocked nor leave blocked what they set again.
#[test]
fn handlers_for_forks_that_set_the_signal_mask_again() {
    interrupted("masks");
}

#[test]
fn a_key_for_a_process_that_forks() {
    interrupted("key-while-forking");
}

#[test]
fn threads_that_are_gone_before_their_maker_goes_on() {
    interrupted("thread-gone");
}

#[test]
fn threads_that_return_exit_and_are_cancelled() {
    interrupted("thread-ends");
}

#[test]
fn guards_over_a_range_with_a_hole() {
    interrupted("guards-over-a-hole");
}

#[test]
fn a_mapping_that_lies_low_keeps_its_size() {
    interrupted("low-mapping");
}

#[test]
fn a_fork_with_streams_in_swapped_memory() {
    interrupted("streams");
}

/// The child's agent looks for a way to the supervisor while nobody serves the child's memory.
#[test]
fn an_environment_in_the_heap_in_another_network() {
    with_namespaces("environment");
}

/// Thread ids mean other threads there.
#[test]
fn a_fork_that_takes_long_in_a_pid_namespace() {
    with_namespaces("slow-fork");
}

/// The parent and its children do not know each other by the same numbers.
#[test]
fn children_in_another_pid_namespace_keep_what_they_have() {
    with_namespaces("namespace-child");
}
