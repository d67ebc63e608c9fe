//! A call that is in the kernel is found by whoever reads its event, whatever others come and go.

use std::sync::Arc;

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
