//! Schedules of the engine's core, and the checkers that watch them.

use uswap_sim::soak::coverage::HAPPENINGS;
use uswap_sim::soak::{Checker, Coverage, Happening, Sabotage, run_sabotaged, run_seed};

/// Seeds of one run of the tests.
const SEEDS: u64 = 400;

#[test]
fn no_schedule_violates_anything_and_everything_happens() {
    let mut coverage = Coverage::default();
    for seed in 0..SEEDS {
        let outcome = run_seed(seed);
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}, step {}: {violation}", outcome.steps);
        }
        coverage.merge(&outcome.coverage);
    }
    // Only where nothing tells two orders apart: in one schedule of thousands.
    assert!(coverage.count(Happening::EndedUnclear) <= 2, "so many end with a line");
    // In one schedule of a hundred or so, and then a few times; or in one of thousands.
    let rare = [Happening::CameAlong, Happening::EndedUnclear];
    let never: Vec<&str> = HAPPENINGS
        .iter()
        .filter(|(what, _)| !rare.contains(what) && coverage.count(*what) == 0)
        .map(|(_, name)| *name)
        .collect();
    assert!(never.is_empty(), "never happened: {never:?}");
}

#[test]
fn a_seed_is_a_schedule() {
    assert_eq!(run_seed(11), run_seed(11));
    assert_ne!(run_seed(11), run_seed(12));
}

/// With the bug in, one of the first seeds must find it, and the right checker must.
#[track_caller]
fn fires(sabotage: Sabotage, checker: Checker) {
    let found = (0..200).filter_map(|seed| run_sabotaged(seed, sabotage).violation).next();
    let found = found.unwrap_or_else(|| panic!("nobody notices {sabotage:?}"));
    assert_eq!(found.checker, checker, "{found}");
}

#[test]
fn no_place_has_two_owners_can_fire() {
    fires(Sabotage::GrantTwice, Checker::OneOwner);
}

#[test]
fn places_add_up_can_fire() {
    fires(Sabotage::LeakSlot, Checker::PlacesAddUp);
    fires(Sabotage::FreeObject, Checker::PlacesAddUp);
}

#[test]
fn every_page_is_recoverable_can_fire() {
    fires(Sabotage::OverwriteSlot, Checker::Recoverable);
    fires(Sabotage::MoveHeld, Checker::Recoverable);
}

#[test]
fn an_area_that_was_emptied_stays_empty_can_fire() {
    fires(Sabotage::StoreOnLeaving, Checker::Emptied);
}

#[test]
fn a_page_reads_as_what_was_written_last_can_fire() {
    fires(Sabotage::Misread, Checker::RightContent);
}

#[test]
fn an_entry_has_one_page_can_fire() {
    fires(Sabotage::ForgetEntry, Checker::OneReference);
}

#[test]
fn counters_are_what_counting_gives_can_fire() {
    fires(Sabotage::MiscountLoad, Checker::Counters);
}

#[test]
fn frames_are_as_the_books_say_can_fire() {
    fires(Sabotage::DropFrame, Checker::Frames);
}

#[test]
fn a_page_is_lost_only_for_a_reason_can_fire() {
    fires(Sabotage::LoseForNothing, Checker::LostForAReason);
}

#[test]
fn every_waiting_thread_goes_on_can_fire() {
    fires(Sabotage::ForgetWake, Checker::NoLostWakeUp);
}

#[test]
fn nothing_is_left_of_what_was_unmapped_can_fire() {
    fires(Sabotage::KeepAfterUnmap, Checker::NothingLeft);
}

#[test]
fn books_that_were_told_the_same_are_the_same_can_fire() {
    fires(Sabotage::ForgetVerb, Checker::Deterministic);
}

#[test]
fn the_books_own_assertions_can_fire() {
    fires(Sabotage::FreeTwice, Checker::Assertion);
}
