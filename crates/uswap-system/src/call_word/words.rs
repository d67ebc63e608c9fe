//! After calls that end as they are made, the next one is heard.

use std::sync::Arc;

use super::CallWord;
use crate::atomic::{AtomicU32, Ordering::*};
use crate::words::{Defect, finds, holds, thread};

#[derive(Default)]
struct Called {
    word: CallWord,
    /// An eventfd: readable while it is not 0.
    event: AtomicU32,
}

impl Called {
    fn make(&self) {
        self.word.make(|| {
            self.event.fetch_add(1, AcqRel);
        });
    }

    fn take_back(&self) {
        self.event.swap(0, AcqRel);
    }

    fn is_heard(&self) -> bool {
        self.event.load(Acquire) > 0
    }
}

fn the_next_call_is_heard(end: impl Fn(&Called) + Copy + Send + Sync + 'static) {
    let called = Arc::new(Called::default());
    let hear = move |called: &Called| {
        if called.is_heard() {
            end(called);
        }
    };
    let maker = called.clone();
    let mut all = vec![thread::spawn(move || (0..2).for_each(|_| maker.make()))];
    all.extend((0..2).map(|_| {
        let called = called.clone();
        thread::spawn(move || hear(&called))
    }));
    all.into_iter().for_each(|thread| thread.join().expect("it ends"));
    hear(&called);
    called.make();
    assert!(called.is_heard(), "calls are not heard any more");
}

#[test]
fn calls_are_heard_after_others_have_ended() {
    holds(|| the_next_call_is_heard(|called| called.word.end(|| called.take_back())));
}

#[test]
fn a_call_that_is_taken_back_with_another_is_found() {
    finds(Defect::Own, || {
        the_next_call_is_heard(|called| {
            called.word.calls.store(false, Release);
            called.take_back();
        });
    });
}
