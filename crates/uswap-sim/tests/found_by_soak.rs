//! What the soak has found in the engine, and what is mended there: without the remedy the soak finds it again.

use uswap_sim::soak::{Remedies, run_with};

/// Schedules that are enough to find each again.
const SEEDS: u64 = 10_000;

#[track_caller]
fn some_seed_fails_with(remedies: Remedies) {
    assert!((0..SEEDS).any(|seed| run_with(seed, remedies).violation.is_some()), "the soak finds nothing");
}

/// A thread touches a page whose frame is being stored, and is told to wait. Before the store ends, another thread gives
/// the page up with madvise. The store then finds that the frame is nobody's, and nobody remembers who waits.
#[test]
fn whoever_waits_for_a_page_that_is_discarded_while_it_is_stored_is_woken() {
    some_seed_fails_with(Remedies { events_wake: false, ..Remedies::ALL });
}

/// The program gives pages up with MADV_FREE, then the engine adopts their memory, and its scan finds them still there. It
/// has seen no event. Later the kernel drops them, as it may, and the books call them lost: SIGBUS instead of zeros.
#[test]
fn pages_given_up_before_they_were_adopted_are_not_lost() {
    some_seed_fails_with(Remedies { lazy_pages_are_seen: false, ..Remedies::ALL });
}

/// A window of zeros is being mapped, a thread touches its second page and is told to wait. An event makes the kernel
/// refuse (`TryLater`), the first page is tried again later by itself, and nobody wakes who waits for the second.
#[test]
fn whoever_waits_behind_a_page_that_is_tried_again_is_woken() {
    some_seed_fails_with(Remedies { zero_windows_wake: false, ..Remedies::ALL });
}

/// A fault was read, and its page then came in by another way. Before the fault is looked at the program unmaps or moves
/// the page; the event is unread. The page is resident in the books and not there: it is called lost, with an alarm, and
/// after a mremap the books go on to call it poisoned where it is.
#[test]
fn a_page_that_was_unmapped_a_moment_ago_is_not_called_lost() {
    some_seed_fails_with(Remedies { events_before_judgement: false, ..Remedies::ALL });
}

/// A thread's mremap is reported at its new place; before its old place is reported as unmapped, another thread has moved
/// memory there, and is reported first. The books took the older unmapping for one of the new memory, and dropped it: it
/// would have read as zeros. (Found by seed 718523, in an order of messages that is rarer than today's.)
#[test]
fn memory_moved_into_a_hole_is_not_dropped_by_the_event_that_made_the_hole() {
    some_seed_fails_with(Remedies { events_in_order: false, ..Remedies::ALL });
}

/// One thread moves untouched memory away, another moves populated memory into the hole. Before either event is read, a scan
/// finds pages there. The first event then takes them along in the books, to where there are none: they are called lost.
#[test]
fn a_scan_does_not_take_what_came_for_what_has_gone() {
    some_seed_fails_with(Remedies { scans_when_still: false, ..Remedies::ALL });
}

/// A mremap waits in the books for the late event of what was at its place. Its thread has returned, and unmaps what it has
/// moved: that event was taken for the late one. The mremap was applied after it, and its content stayed in the books for
/// ever, where another mapping came to be.
#[test]
fn what_was_moved_and_unmapped_at_once_does_not_stay() {
    some_seed_fails_with(Remedies { mappings_are_asked: false, ..Remedies::ALL });
}

/// Seeds that found something in the order of events: parts of a place that are moved on, ends that were taken for those of
/// others, and three or more mremaps of several threads that pass one place on.
#[test]
fn no_order_of_events_that_was_found_is_taken_wrongly() {
    for seed in [139_100, 364_735, 399_578, 503_555, 524_578] {
        let violation = run_with(seed, Remedies::ALL).violation;
        assert!(violation.is_none(), "seed {seed}: {}", violation.expect("there is one"));
    }
}
