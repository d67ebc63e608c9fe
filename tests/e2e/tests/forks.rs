//! Forks in the very moment in which other threads change the mappings, or hold what a fork waits for; and a child that looks
//! at its parent.

use std::time::Duration;

use uswap_e2e::{Budget, Finished, Launch, TempDir, bare_only, c_program, repeat};

fn forks(case: &str, budget: u64, ballast: &str) -> Option<Finished> {
    let test = TempDir::new(case);
    let launch = Launch::new(&test, c_program("forks"))
        .arg(case)
        .env("USWAP_E2E_BALLAST_MIB", ballast)
        // Else the kernel ends the child of a fork round libc at once, because the place where it writes its CPU is missing.
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .time_limit(Duration::from_secs(200));
    let recorded = launch.bare().finish();
    recorded.assert_success();
    if bare_only() {
        return None;
    }
    let run = |_| {
        let finished = launch.under(&Budget::mib(budget)).finish();
        assert_eq!((finished.code(), finished.text()), (0, recorded.text()), "{finished}");
        finished.assert_swapped();
        finished
    };
    (0..repeat()).map(run).next_back()
}

/// A child has what other threads are moving at that moment, where it is there; or it is ended, with a line.
#[test]
fn children_of_a_process_whose_other_threads_move_memory() {
    forks("moving", 24, "24");
}

/// What was mapped where adopted memory was a moment ago is in every child.
#[test]
fn children_have_what_took_the_place_of_adopted_memory() {
    forks("mapped-anew", 64, "96");
}

/// The holder of malloc's lock, which fork(2) of libc takes, touches 200,000 pages meanwhile.
#[test]
fn a_fork_that_waits_for_who_copies_hundreds_of_megabytes() {
    forks("many-faults", 32, "48");
}

/// Every mapping, uswap's own included: a hole there reads as zeros.
#[test]
fn all_mappings_are_read_from_outside() {
    forks("read-from-outside", 64, "96");
}

/// Somebody reads a child before its agent has registered anything.
#[test]
fn children_that_are_read_from_outside_at_birth() {
    forks("read-at-birth", 48, "64");
}

/// While a thread forks by libc, another that does so by syscall(2) waits: its child would read zeros.
#[test]
fn a_fork_round_libc_beside_one_by_libc() {
    forks("raw-beside", 64, "96");
}

/// What is kept for a child goes when it was killed before it could say that it has it, beside another that lives.
#[test]
fn nothing_is_kept_for_children_that_were_killed_at_once() {
    forks("killed-early", 64, "96");
}

/// Far below the budget, where the children of forks round libc run as they would.
fn beside(case: &str) {
    let test = TempDir::new(case);
    let launch = Launch::new(&test, c_program("forks")).arg(case).time_limit(Duration::from_secs(60));
    let recorded = launch.bare().finish();
    recorded.assert_success();
    if bare_only() {
        return;
    }
    for _ in 0..repeat() {
        let finished = launch.under(&Budget::mib(1024)).finish();
        assert_eq!((finished.code(), finished.text()), (0, recorded.text()), "{finished}");
    }
}

/// CLONE_VFORK without CLONE_VM: its thread sleeps as long as its child lives.
#[test]
fn a_fork_beside_one_whose_thread_is_held_up() {
    beside("held-up");
}

#[test]
fn a_fork_after_one_whose_thread_a_filter_has_ended() {
    beside("ended-in-fork");
}

#[test]
fn a_fork_after_one_that_a_signal_handler_has_left() {
    beside("left-by-a-jump");
}
