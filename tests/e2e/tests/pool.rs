//! The compressed pool stays dense, and nothing of it is lost on the way.

use std::time::Duration;

use uswap_e2e::{Budget, Launch, TempDir, bare_only, c_program, repeat};

fn case(name: &str) {
    case_that_shows(name, &["compact_moved", "compact_freed"]);
}

/// Each of these counters grows in each run.
fn case_that_shows(name: &str, counters: &[&str]) {
    let test = TempDir::new(name);
    let launch = Launch::new(&test, c_program("pool")).arg(name).time_limit(Duration::from_secs(120));
    let recorded = launch.bare().finish();
    assert_eq!((recorded.code(), recorded.text().as_str()), (0, format!("ok {name}\n").as_str()), "{recorded}");
    for run in 1..=repeat() {
        // The pool has room for most of it.
        let finished = launch.under(&Budget::mib(64).flag("--zpool-percent").flag("60")).finish();
        assert_eq!(finished.code(), 0, "run {run}\n{finished}");
        assert_eq!(finished.text(), recorded.text(), "run {run}\n{finished}");
        if bare_only() {
            continue;
        }
        finished.assert_swapped();
        let stats = finished.stats.as_ref().expect("the program has ended by itself");
        for counter in counters {
            eprintln!("run {run}: {counter} {}", stats.counter(counter));
            assert!(stats.counter(counter) > 0, "{counter}: {:#}", stats.json());
        }
        assert_eq!(stats.counter("checksum_failures"), 0, "{:#}", stats.json());
    }
}

#[test]
fn a_pool_with_holes_is_compacted() {
    case("compact");
}

#[test]
fn a_pool_is_compacted_beside_a_child() {
    case("compact-fork");
}

/// What children may read of their parent's pool is written to the swap file all the same.
#[test]
fn a_pool_that_children_read_is_written_back() {
    case_that_shows("inherited", &["zswpwb"]);
}
