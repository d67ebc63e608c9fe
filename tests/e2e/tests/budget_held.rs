//! The budget holds, or it is said how far it was passed and why; and nothing is squeezed to death.
//!
//! What the tree has is what the kernel charges a memory cgroup without a limit for: each page once, from the first
//! instruction of `uswap run` to the end of the last process.

use std::time::Duration;

use uswap_e2e::{Budget, Finished, Launch, MIB, TempDir, bare_only, c_program, c_static_program, need_charges, sized};

/// Allowed beside the budget: 5 %, or 8 MiB where that is more. Machines on which tests run are busy.
fn allowed(budget: u64) -> u64 {
    budget + (budget / 20).max(8 * MIB)
}

fn crowd(test: &TempDir, arguments: [&str; 3]) -> Launch {
    Launch::new(test, c_program("crowd")).args(arguments).charged()
}

/// With messages and summary.
fn loud(mib: u64) -> Budget {
    Budget { quiet: false, ..Budget::mib(mib) }
}

fn report(budget_mib: u64, finished: &Finished) {
    let budget = budget_mib * MIB;
    eprintln!(
        "{:.1?}, charged for up to {} MiB of {budget_mib}, above the allowance for {:?}: {}",
        finished.wall,
        finished.charges.peak() / MIB,
        finished.charges.above(allowed(budget)),
        finished.stderr.lines().last().unwrap_or("")
    );
}

fn assert_held(budget_mib: u64, finished: &Finished) {
    report(budget_mib, finished);
    let peak = finished.charges.peak();
    assert!(bare_only() || peak <= allowed(budget_mib * MIB), "{} MiB of {budget_mib}\n{finished}", peak / MIB);
}

/// What uswap says of the peak must not be less than what was seen.
fn assert_peak_is_told(finished: &Finished) {
    let Some(stats) = &finished.stats else { return };
    let (told, seen) = (stats.number("peak_resident_bytes"), finished.charges.peak());
    assert!(told + MIB >= seen / 20 * 19, "uswap saw {} KiB, there were {}\n{finished}", told >> 10, seen >> 10);
}

/// Each of them works in memory of its own beside its parent's: they get on one after the other.
#[test]
fn forked_children_for_whom_there_is_no_room_end_within_the_budget() {
    if !need_charges() {
        return;
    }
    let test = TempDir::new("children");
    let count = sized("60", "200");
    let launch = crowd(&test, ["children", "120", count]).time_limit(Duration::from_secs(sized(90, 300)));
    let finished = launch.under(&Budget::mib(96)).finish();
    assert_held(96, &finished);
    assert_eq!((finished.code(), finished.text().as_str()), (0, "ok children\n"), "{finished}");
}

/// A process that sleeps keeps nothing from one that needs more than its fair share: what it has leaves once.
#[test]
fn who_sleeps_gives_way_to_who_works() {
    if !need_charges() {
        return;
    }
    let test = TempDir::new("sleeper");
    let launch = crowd(&test, ["sleeper", "100", "40"]).time_limit(Duration::from_secs(120));
    let finished = launch.under(&Budget::mib(140)).finish();
    assert_held(140, &finished);
    assert_eq!((finished.code(), finished.text().as_str()), (0, "ok sleeper\n"), "{finished}");
    let Some(stats) = &finished.stats else { return };
    // With half of the budget it would bring in 40 times what lacks: 300,000 pages. Both have 51,200.
    let came_in = stats.counter("pswpin") + stats.counter("swap_cache_hit");
    assert!(came_in < 100_000, "{came_in} pages came in\n{finished}");
}

/// Nothing that is driven out makes room that shared memory will never give.
#[test]
fn processes_whose_budget_is_filled_by_shared_memory_get_on_and_it_is_said_once() {
    if !need_charges() {
        return;
    }
    let test = TempDir::new("shared-fills");
    let launch = crowd(&test, ["shared", "100", sized("40000", "400000")]).time_limit(Duration::from_secs(60));
    let finished = launch.under(&loud(56).flag("--shared").flag("none")).finish();
    report(56, &finished);
    assert_eq!((finished.code(), finished.text().as_str()), (0, "ok shared\n"), "{finished}");
    // 100 MiB that are shared, four times 4 MiB, and what uswap has.
    assert!(finished.charges.peak() < 150 * MIB, "{finished}");
    assert_peak_is_told(&finished);
    let Some(stats) = &finished.stats else { return };
    let said: Vec<&str> = finished.stderr.lines().filter(|line| line.contains("cannot be swapped (")).collect();
    let [said] = said[..] else { panic!("said {} times\n{finished}", said.len()) };
    assert!(said.contains("shared memory") && said.contains("of the budget of 56 MiB"), "{said}");
    let reason = stats.json()["over_limit_reason"].as_str().unwrap_or_default();
    assert!(reason.contains("cannot be swapped"), "{:#}", stats.json());
    assert!(stats.number("over_limit_bytes") > 30 * MIB, "{:#}", stats.json());
    // Not a sum over the processes.
    assert!(stats.number("peak_resident_bytes") < 150 * MIB, "{:#}", stats.json());
}

/// Where the budget holds all that is shared, nobody is told that it does not.
#[test]
fn shared_memory_that_leaves_enough_is_not_spoken_of() {
    if !need_charges() {
        return;
    }
    let test = TempDir::new("shared-fits");
    let finished = crowd(&test, ["shared", "20", "20000"]).under(&loud(64)).finish();
    assert_held(64, &finished);
    finished.assert_success();
    assert!(!finished.stderr.contains("cannot be swapped"), "{finished}");
}

/// How far the budget is passed by threads that are faster than adoption depends on the machine: it is told.
#[test]
fn what_eight_threads_fill_at_once_is_seen() {
    if !need_charges() {
        return;
    }
    let test = TempDir::new("threads-fill");
    let finished = crowd(&test, ["threads", "320", "8"]).under(&loud(64)).finish();
    report(64, &finished);
    finished.assert_success();
    assert_peak_is_told(&finished);
    let Some(stats) = &finished.stats else { return };
    let over = finished.charges.peak().saturating_sub(64 * MIB);
    assert!(stats.number("over_limit_bytes") + 4 * MIB >= over, "{} KiB\n{:#}", over >> 10, stats.json());
    assert!(over < 4 * MIB || finished.stderr.contains("passed by"), "{finished}");
}

/// It has no agent, so nobody but the supervisor can see it.
#[test]
fn a_process_that_runs_unmanaged_is_named_with_what_it_had() {
    if !need_charges() {
        return;
    }
    let test = TempDir::new("unmanaged");
    let program = c_static_program("crowd");
    let launch = Launch::new(&test, "/bin/sh").args(["-c", "\"$0\" holds 90 600; :"]).arg(&program).charged();
    let finished = launch.under(&loud(64)).finish();
    report(64, &finished);
    assert_eq!(finished.text(), "ok holds\n", "{finished}");
    assert_peak_is_told(&finished);
    let Some(stats) = &finished.stats else { return };
    let over = stats.number("over_limit_bytes");
    assert!((20 * MIB..40 * MIB).contains(&over), "{:#}", stats.json());
    assert!(stats.json()["over_limit_seconds"].as_f64().is_some_and(|seconds| seconds > 0.2), "{:#}", stats.json());
    let unmanaged = &stats.json()["unmanaged_processes"][0];
    let name = unmanaged["name"].as_str().unwrap_or_default();
    assert!(name.starts_with("crowd") && unmanaged["peak_bytes"].as_u64() > Some(80 * MIB), "{:#}", stats.json());
    assert!(finished.stderr.contains("runs unmanaged and had 9"), "{finished}");
}

/// A process without descriptors for its agent runs unmanaged.
#[test]
fn a_process_that_cannot_join_is_seen_as_well() {
    if !need_charges() {
        return;
    }
    let test = TempDir::new("no-descriptors");
    let launch = Launch::new(&test, "/bin/sh").args(["-c", "ulimit -n 5; \"$0\" holds 90 600; :"]);
    let finished = launch.arg(c_program("crowd")).charged().under(&loud(64)).finish();
    report(64, &finished);
    assert_eq!(finished.text(), "ok holds\n", "{finished}");
    assert_peak_is_told(&finished);
    assert!(bare_only() || finished.stderr.contains("runs unmanaged and had 9"), "{finished}");
}

/// A process that changes its user, forks and executes stays in the budget.
#[test]
fn the_budget_holds_after_a_change_of_user_and_an_exec() {
    if !need_charges() || !uswap_e2e::is_root() {
        return;
    }
    // One that another user may execute.
    let Some(python) = uswap_e2e::need("/usr/bin/python3", "python3") else { return };
    let test = TempDir::new("other-user");
    // At no more than 1 GB/s, as the tests of budget.rs: what a faster burst does is a known issue.
    let work = "import time\nl = []\nfor i in range(120):\n  l.append(bytearray([i]) * (1 << 20))\n  time.sleep(0.001)\n\
                print(sum(b[4096] == i for i, b in enumerate(l)))";
    let become_another = "import os, sys\nos.setuid(65534)\npid = os.fork()\nif pid == 0:\n  os.execv(sys.executable, \
                          [sys.executable, '-c', sys.argv[1]])\nprint(os.waitpid(pid, 0)[1])";
    let launch = Launch::new(&test, python).args(["-c", become_another, work]).charged();
    let finished = launch.under(&Budget::mib(64)).finish();
    assert_held(64, &finished);
    assert_eq!((finished.code(), finished.text().as_str()), (0, "120\n0\n"), "{finished}");
}
