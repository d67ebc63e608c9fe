//! Small schedules of calls and reports, all of them, and long ones, some of them, against the order of events.

use uswap_core::event_order::Rule;
use uswap_sim::exhaustive::{Report, Size, run, sample};

const fn size(places: usize, pages: u64, threads: usize, calls: u8, leaves_mapped: bool) -> Size {
    Size { places, pages, threads, calls_each: 3, calls, leaves_mapped, refuses: false }
}

fn is_right(report: Report) {
    let Report { states, decisions, endings, finding, .. } = report;
    println!("{states} states, {decisions} decisions, {endings} end with a line");
    assert!(finding.is_none(), "{finding:?}");
    assert!(decisions > 10_000 && endings > 0 && endings * 5 < decisions);
}

#[test]
fn every_small_schedule_is_right_or_ends_with_a_line() {
    is_right(run(size(3, 1, 3, 2, false), None, u64::MAX));
    is_right(run(size(2, 2, 3, 2, false), None, u64::MAX));
    is_right(run(size(3, 1, 3, 2, true), None, u64::MAX));
    is_right(run(size(4, 1, 3, 3, false), None, 400_000));
}

/// The same, where the kernel refuses some unmappings after it has reported them.
#[test]
fn every_small_schedule_with_refused_unmappings_is_right_or_ends_with_a_line() {
    let refuses = |size: Size| Size { refuses: true, ..size };
    is_right(run(refuses(size(2, 2, 2, 2, false)), None, u64::MAX));
    is_right(run(refuses(size(3, 1, 2, 2, true)), None, 400_000));
    is_right(run(refuses(size(2, 2, 2, 3, false)), None, 400_000));
    is_right(run(refuses(size(3, 1, 3, 3, false)), None, 400_000));
    is_right(sample(refuses(size(3, 2, 3, 5, false)), 6, 20_000));
    is_right(sample(refuses(size(4, 1, 3, 7, false)), 8, 10_000));
}

#[test]
fn long_schedules_are_right_or_end_with_a_line() {
    is_right(sample(size(4, 1, 3, 6, false), 1, 20_000));
    is_right(sample(size(3, 2, 3, 5, false), 2, 20_000));
    is_right(sample(size(4, 1, 3, 4, true), 3, 20_000));
    is_right(sample(size(3, 1, 3, 6, true), 4, 20_000));
}

/// What one thread alone does needs no line, but where the kernel refuses an unmapping and nothing tells.
#[test]
fn schedules_of_one_thread_are_right() {
    let one = [size(3, 2, 1, 3, true), size(4, 1, 1, 3, true), size(3, 1, 1, 3, false)];
    for size in one {
        let Report { states, decisions, endings, finding, .. } = run(size, None, 150_000);
        println!("{states} states, {decisions} decisions, {endings} end with a line");
        assert!(finding.is_none(), "{finding:?}");
        assert!(decisions > 100 && endings == 0);
    }
    is_right(run(Size { refuses: true, ..one[0] }, None, 400_000));
}

/// Each rule is needed: without it a decision is wrong, or a process ends that need not.
#[test]
fn a_rule_that_is_dropped_is_missed() {
    for rule in Rule::ALL {
        let sizes = [size(3, 1, 2, 2, false), size(3, 2, 1, 3, true), size(4, 1, 3, 3, false)];
        let found = sizes.into_iter().find_map(|size| run(size, Some(rule), 2_000_000).finding);
        let found = found.unwrap_or_else(|| panic!("nobody misses {rule:?}"));
        println!("{rule:?}: {} calls and reports: {}", found.steps.len(), found.what);
    }
}
