//! Who gives way is woken by the last fault that asked.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use uswap_system::System;
use uswap_system::words::{Defect, Shuttle, finds, holds, preempt, thread};

use super::{Asking, GivingWay, PATIENCE};
use crate::host::Host;

fn two_ask_and_two_give_way() {
    // It is the process's own.
    Shuttle::notices().giving_way.child_begins();
    Shuttle::notices().giving_way.eager.store(0, super::Relaxed);
    let late = Shuttle::now();
    Shuttle::sleep(PATIENCE + Duration::from_micros(1));
    let served = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut all: Vec<_> = (0..2)
        .map(|_| {
            let served = served.clone();
            thread::spawn(move || {
                let mut asking = Asking::new(way());
                asking.for_fault_of(late);
                asking.for_fault_of(late);
                assert!(way().is_asked_for(), "another one's end took this one's asking along");
                preempt();
                assert!(way().is_asked_for(), "another one's end took this one's asking along");
                served.fetch_add(1, SeqCst);
            })
        })
        .collect();
    all.extend((0..2).map(|_| thread::spawn(|| way().give_way())));
    all.into_iter().for_each(|thread| thread.join().expect("it ends"));
    assert!(!way().is_asked_for(), "nobody asks any more");
}

fn way() -> &'static GivingWay<Shuttle> {
    &Shuttle::notices().giving_way
}

#[test]
fn who_gives_way_goes_on_when_no_fault_asks() {
    holds(two_ask_and_two_give_way);
}

#[test]
fn askings_that_wake_nobody_or_are_torn_are_found() {
    finds(Defect::NoWake, two_ask_and_two_give_way);
    finds(Defect::Torn, two_ask_and_two_give_way);
}
