//! What the soak has found in the engine and its core, and is not mended there. Each test fails until it is; then it loses
//! its `ignore`, and the remedy in `soak/remedies.rs` goes.

use uswap_core::reclaim::IsolationOutcome;
use uswap_core::{Core, CoreConfig, FaultPlan, PageNumber, PageRange, StoreResult, Stored};
use uswap_sim::soak::{Remedies, run_with};

/// A thread touches a page whose frame is being stored, and is told to wait. Before the store ends, another thread gives
/// the page up with madvise. The store then finds that the frame is nobody's, and nobody remembers who waits.
#[test]
#[ignore = "fails: Core::stored forgets who waits for a page that was discarded while it was stored"]
fn whoever_waits_for_a_page_that_is_discarded_while_it_is_stored_is_remembered() {
    let block = PageRange { start: PageNumber(160), pages: 16 };
    let mut core = Core::new(CoreConfig { frame_blocks: 4, area_slots: Vec::new(), window_max: 16 });
    core.adopt(block);
    core.found_present(block);
    let isolation = core.isolate().unwrap();
    let outcome = IsolationOutcome { moved: isolation.mask, ..IsolationOutcome::default() };
    let _ = core.isolated(isolation, outcome);
    let job = core.next_store().unwrap();
    assert!(matches!(core.fault(block.start, false), FaultPlan::Wait));
    core.removed(block);
    assert_eq!(core.stored(job, StoreResult::Zero), Stored::Wanted(block.start));
}

#[track_caller]
fn no_seed_fails_with(remedies: Remedies) {
    for seed in 0..10_000 {
        let outcome = run_with(seed, remedies);
        assert_eq!(outcome.violation, None, "seed {seed}");
    }
}

/// The same, in whole schedules.
#[test]
#[ignore = "fails: a thread waits for ever for a page that was discarded while it was stored"]
fn nobody_waits_for_ever_although_events_wake_nobody() {
    no_seed_fails_with(Remedies { events_wake: false, ..Remedies::ALL });
}

/// The program gives pages up with MADV_FREE, then the engine adopts their memory, and its scan finds them still there. It
/// has seen no event. Later the kernel drops them, as it may, and the books call them lost: SIGBUS instead of zeros.
#[test]
#[ignore = "fails: pages given up with MADV_FREE before their memory was adopted are called lost"]
fn pages_given_up_before_they_were_adopted_are_not_lost() {
    no_seed_fails_with(Remedies { lazy_pages_are_seen: false, ..Remedies::ALL });
}

/// A window of zeros is being mapped, a thread touches its second page and is told to wait. An event makes the kernel
/// refuse (`TryLater`), the first page is tried again later by itself, and nobody wakes who waits for the second.
#[test]
#[ignore = "fails: install_zeros wakes nobody behind the page that faulted when it must try later"]
fn whoever_waits_behind_a_page_that_is_tried_again_is_woken() {
    no_seed_fails_with(Remedies { zero_windows_wake: false, ..Remedies::ALL });
}

/// A fault was read, and its page then came in by another way. Before the fault is looked at the program unmaps or moves
/// the page; the event is unread. The page is resident in the books and not there: it is called lost, with an alarm, and
/// after a mremap the books go on to call it poisoned where it is.
#[test]
#[ignore = "fails: check_present judges a page before the events that explain its absence are read"]
fn a_page_that_was_unmapped_a_moment_ago_is_not_called_lost() {
    no_seed_fails_with(Remedies { events_before_judgement: false, ..Remedies::ALL });
}
