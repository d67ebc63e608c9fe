//! A call that is in the kernel is found by whoever reads its event, whatever others come and go.

use std::sync::Arc;

use uswap_system::atomic::{AtomicU32, Ordering::SeqCst};
use uswap_system::words::{Defect, finds, holds, preempt, thread};

use super::LeftMapped;

fn calls_come_and_go(is_told: fn(&LeftMapped, usize) -> bool) {
    let calls = Arc::new(LeftMapped::new());
    let all: Vec<_> = (1..=3)
        .map(|number| {
            let calls = calls.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let _posted = calls.post(number << 12);
                    preempt();
                    assert!(is_told(&calls, number << 12), "a call in the kernel is not told");
                }
            })
        })
        .collect();
    all.into_iter().for_each(|thread| thread.join().expect("it ends"));
    assert!(!(1..=3).any(|number| calls.may_be_one(number << 12)), "a call that is over is told");
}

#[test]
fn every_call_is_told_as_long_as_it_is_in_the_kernel() {
    holds(|| calls_come_and_go(LeftMapped::may_be_one));
}

#[test]
fn two_calls_in_one_place_are_found() {
    finds(Defect::Torn, || calls_come_and_go(LeftMapped::may_be_one));
}

/// Two threads make such a call each, and a third reads their events, as the kernel hands them out. A call whose event nobody
/// reads for long is none.
fn events_are_read(says: fn(&LeftMapped, bool)) {
    const CALLERS: usize = 2;
    let calls = Arc::new(LeftMapped::new());
    // The event of each: odd when it has happened, and even when it has been read.
    let events: Arc<[AtomicU32; CALLERS]> = Arc::default();
    let is_read = |event: &AtomicU32, happened| event.compare_exchange(happened, happened + 1, SeqCst, SeqCst).is_ok();
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            let (calls, events) = (calls.clone(), events.clone());
            thread::spawn(move || {
                for happened in [1, 3] {
                    let _posted = calls.post((number + 1) << 12);
                    events[number].store(happened, SeqCst);
                    for _ in 0..4 {
                        preempt();
                    }
                    let _ = is_read(&events[number], happened);
                }
            })
        })
        .collect();
    for _ in 0..4 {
        says(&calls, true);
        for (number, event) in events.iter().enumerate() {
            let happened = event.load(SeqCst);
            if happened % 2 == 1 && is_read(event, happened) {
                // From here on the caller goes on.
                preempt();
                assert!(calls.may_be_one((number + 1) << 12), "a call whose event was read is not told");
            }
        }
        says(&calls, false);
        preempt();
    }
    callers.into_iter().for_each(|thread| thread.join().expect("it ends"));
}

fn tells(calls: &LeftMapped, reads: bool) {
    if reads { calls.begins_reading() } else { calls.ends_reading() }
}

#[test]
fn a_call_is_told_to_whoever_has_read_its_event() {
    holds(|| events_are_read(tells));
}

#[test]
#[should_panic(expected = "is not told")]
fn who_does_not_say_that_he_reads_is_found() {
    holds(|| events_are_read(|_, _| ()));
}
