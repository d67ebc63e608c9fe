//! Shared memory that has a name, swapped where that is asked for: System V segments, and files in memory.

use std::time::Duration;

use uswap_e2e::{Budget, Finished, Launch, TempDir, c_program, c_static_program, is_root, skip};

fn launch(test: &TempDir, arguments: &[&str]) -> Launch {
    Launch::new(test, c_program("named_memory")).args(arguments).time_limit(Duration::from_secs(120))
}

fn budget() -> Budget {
    Budget { quiet: false, ..Budget::mib(48).flag("--shared").flag("files") }
}

/// What is said of memory that is left alone.
fn said<'a>(finished: &'a Finished, what: &str) -> Vec<&'a str> {
    finished.stderr.lines().filter(|line| line.contains(what)).collect()
}

fn run(case: &str) -> Option<Finished> {
    if !is_root() {
        skip("not root: what others have mapped cannot be opened");
        return None;
    }
    let test = TempDir::new(&format!("named-{case}"));
    let finished = launch(&test, &[case]).under(&budget()).finish();
    finished.assert_success();
    assert_eq!(finished.text(), format!("ok {case}\n"), "{finished}");
    // More than what `press` fills beside it.
    finished.assert_swapped();
    Some(finished)
}

fn run_quietly(case: &str) {
    let Some(finished) = run(case) else { return };
    assert!(said(&finished, "is not swapped").is_empty(), "{finished}");
}

macro_rules! cases {
    ($($name:ident = $case:literal,)*) => {
        $(#[test]
        fn $name() {
            run_quietly($case);
        })*
    };
}

cases! {
    a_segment_that_many_attach = "segment",
    a_segment_that_has_been_removed = "removed",
    segments_in_the_place_of_other_memory_at_fixed_places_and_moved = "places",
    a_file_that_each_process_maps_for_itself = "file",
    a_file_without_a_name = "no-name",
    what_nobody_has_mapped_any_more_can_be_read = "unmapped",
    what_has_been_removed_by_advice_is_zeros = "advised",
}

/// It could not be registered, and would see zeros.
#[test]
fn a_private_mapping_waits_until_all_is_back() {
    let Some(finished) = run("private") else { return };
    assert_eq!(said(&finished, "cannot be registered there").len(), 1, "{finished}");
}

#[test]
fn a_segment_that_is_locked_is_brought_back() {
    let Some(finished) = run("locked") else { return };
    assert_eq!(said(&finished, "it has been locked").len(), 1, "{finished}");
}

#[test]
fn a_segment_that_is_attached_while_it_is_brought_back() {
    let Some(finished) = run("meanwhile") else { return };
    assert_eq!(said(&finished, "it has been locked").len(), 1, "{finished}");
}

#[test]
fn a_file_that_grows_is_brought_back() {
    let Some(finished) = run("grows") else { return };
    assert_eq!(said(&finished, "has got another size").len(), 1, "{finished}");
}

/// What the kernel does to a file it did to what was in memory: the rest came back as it was, or the run was ended.
#[test]
fn a_file_that_is_cut_off_punched_or_sealed_is_brought_back_before() {
    for (case, files) in [("cut-off", 8), ("punched", 2), ("sealed", 1)] {
        let Some(finished) = run(case) else { return };
        assert_eq!(said(&finished, "cuts off, punches or seals its file").len(), files, "{finished}");
    }
}

/// That its mapping had grown is not reported: a part of it stayed registered, and the kernel moved it no more.
#[test]
fn a_mapping_that_has_grown_is_brought_back() {
    let Some(finished) = run("grows-again") else { return };
    assert_eq!(said(&finished, "has got another size").len(), 1, "{finished}");
}

/// Its monitor may replace no attachment, and has some that were replaced before.
#[test]
fn a_process_of_another_user_detaches_what_it_attaches() {
    let _ = run("another-user");
}

#[test]
fn what_a_stranger_attaches_is_brought_back() {
    if !is_root() {
        return skip("not root: what others have mapped cannot be opened");
    }
    let test = TempDir::new("named-stranger");
    let other = c_static_program("named_memory");
    let arguments = ["stranger", other.to_str().expect("a path of ours")];
    let finished = launch(&test, &arguments).under(&budget()).finish();
    finished.assert_success();
    assert_eq!(finished.text(), "ok strange\nok stranger\n", "{finished}");
    assert_eq!(said(&finished, "is not swapped any more").len(), 1, "{finished}");
}

#[test]
fn what_outlives_the_run_is_whole() {
    if !is_root() {
        return skip("not root: what others have mapped cannot be opened");
    }
    let test = TempDir::new("named-stays");
    let finished = launch(&test, &["stays"]).under(&budget()).finish();
    finished.assert_success();
    finished.assert_swapped();
    let text = finished.text();
    let left = text.lines().next().unwrap_or_default();
    let later = launch(&test, &["is-there", left]).bare().finish();
    later.assert_success();
}

/// Who does not ask for it has it as the kernel has it.
#[test]
fn it_is_left_alone_otherwise() {
    let test = TempDir::new("named-default");
    let finished = launch(&test, &["segment"]).under(&Budget::mib(48)).finish();
    finished.assert_success();
    assert!(said(&finished, "is not swapped").is_empty(), "{finished}");
}
