//! What has been discarded stays recent for two turns after its report was read: no call whose report it is outlives them.

use std::sync::Arc;

use uswap_system::atomic::{AtomicU32, Ordering::SeqCst};
use uswap_system::words::{Defect, finds, holds, preempt, thread};

use super::{Counted, Discards};

const CALLS: u32 = 2;

/// Threads discard, and the monitor counts turns after the report of each that it finds in the kernel.
fn turns_end(begin: fn(&Discards) -> Counted<'_>, turn_ends: fn(&Discards) -> bool) {
    let discards = Arc::new(Discards::new());
    // Of each: 1 when it has been reported, 2 when it has taken effect.
    let reports: Arc<[AtomicU32; CALLS as usize]> = Arc::default();
    let callers: Vec<_> = (0..CALLS as usize)
        .map(|number| {
            let (discards, reports) = (discards.clone(), reports.clone());
            thread::spawn(move || {
                let _counted = begin(&discards);
                reports[number].store(1, SeqCst);
                preempt();
                reports[number].store(2, SeqCst);
            })
        })
        .collect();
    for _ in 0..2 {
        let read: Vec<usize> = (0..CALLS as usize).filter(|&number| reports[number].load(SeqCst) != 0).collect();
        if turn_ends(&discards) && turn_ends(&discards) {
            assert!(
                read.iter().all(|&number| reports[number].load(SeqCst) == 2),
                "two turns, and it is in the kernel still"
            );
        }
    }
    callers.into_iter().for_each(|thread| thread.join().expect("it ends"));
    assert!(discards.turn_ends() && discards.turn_ends(), "a call is counted that is over");
}

#[test]
fn no_call_outlives_two_turns_after_its_report() {
    holds(|| turns_end(Discards::begin, Discards::turn_ends));
}

#[test]
fn torn_counts_of_calls_are_found() {
    finds(Defect::Torn, || turns_end(Discards::begin, Discards::turn_ends));
}

/// As [`Discards::turn_ends`], but that it does not ask who is in the kernel.
#[test]
fn a_turn_that_ends_by_time_alone_is_found() {
    finds(Defect::Own, || {
        turns_end(Discards::begin, |discards| {
            discards.turn.fetch_add(1, SeqCst);
            true
        });
    });
}
