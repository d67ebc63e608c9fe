//! No thread of a program waits for one of uswap's without bound (docs/waits.md).

use std::time::Duration;

use uswap_e2e::{Budget, Launch, TempDir, c_program, need, script};

const MINUTE: Duration = Duration::from_secs(60);

/// Advice about fork, thousands of times, with an engine and without one that reads it.
#[test]
fn advice_for_fork_thousands_of_times() {
    let test = TempDir::new("advice-many");
    let launch = Launch::new(&test, c_program("advice")).arg("many").time_limit(MINUTE);
    let recorded = launch.bare().finish();
    recorded.assert_success();
    let finished = launch.under(&Budget::mib(64)).finish();
    assert_eq!((finished.code(), finished.text()), (0, recorded.text()), "{finished}");
    finished.assert_swapped();
    // Nothing is swapped here until late, and nobody is there to read what is posted.
    let idle = launch.env("USWAP_E2E_SWAPS", "0").under(&Budget::mib(4096)).finish();
    assert_eq!((idle.code(), idle.text()), (0, recorded.text()), "{idle}");
}

/// Memory that is given to children by the program's own advice, and taken by a clone(2) that nobody sees.
#[test]
fn memory_let_go_by_advice_is_not_zeros_in_a_raw_clone() {
    let test = TempDir::new("advice-clone");
    let launch = Launch::new(&test, c_program("advice"))
        .arg("let-go-and-cloned")
        // Else the kernel ends the child at once, because the place where it writes its CPU is missing there.
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .time_limit(MINUTE);
    let finished = launch.under(&Budget::mib(64)).finish();
    finished.assert_success();
    finished.assert_swapped();
}

/// V8 gives advice about fork for each of its pages.
#[test]
fn node_far_below_its_budget_and_far_above_it() {
    let Some(node) = need("node", "nodejs") else { return };
    let test = TempDir::new("node");
    let launch = Launch::new(&test, node).arg(script("heap.js")).time_limit(2 * MINUTE);
    let recorded = launch.bare().finish();
    recorded.assert_success();
    let idle = launch.under(&Budget::mib(4096)).finish();
    assert_eq!((idle.code(), idle.text()), (0, recorded.text()), "{idle}");
    let finished = launch.under(&Budget::mib(100)).finish();
    assert_eq!((finished.code(), finished.text()), (0, recorded.text()), "{finished}");
    finished.assert_swapped();
}
