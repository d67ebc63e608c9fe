//! The raw lock and the words that everything else waits by.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Plain;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::{Defect, Shuttle, finds, holds, preempt, thread};
use crate::atomic::Ordering;
use crate::sync::{RawLock, SharedWord, Word};

/// Who is where only one may be. Its own words are none that others are let in at.
#[derive(Default)]
struct Room(Plain);

impl Room {
    fn enter(&self) {
        assert_eq!(self.0.fetch_add(1, SeqCst), 0, "two are inside");
        preempt();
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Runs `each` in so many threads.
fn together(threads: usize, each: impl Fn(usize) + Send + Sync + 'static) {
    let each = Arc::new(each);
    let all: Vec<_> = (0..threads)
        .map(|number| {
            let each = each.clone();
            thread::spawn(move || each(number))
        })
        .collect();
    all.into_iter().for_each(|thread| thread.join().expect("it ends"));
}

fn raw_lock_excludes() {
    let (lock, room) = (RawLock::<Shuttle>::new(), Room::default());
    together(3, move |_| {
        for _ in 0..2 {
            lock.lock();
            room.enter();
            lock.unlock();
        }
    });
}

#[test]
fn the_raw_lock_lets_one_in_and_all_in_the_end() {
    holds(raw_lock_excludes);
}

#[test]
fn a_raw_lock_that_wakes_nobody_is_found() {
    finds(Defect::NoWake, raw_lock_excludes);
}

#[test]
fn a_raw_lock_whose_swap_is_torn_is_found() {
    finds(Defect::Torn, raw_lock_excludes);
}

fn raw_lock_with_patience() {
    let (lock, room) = (RawLock::<Shuttle>::new(), Room::default());
    together(3, move |number| {
        // As the monitor takes `awake`: again and again; others try once, or wait.
        let has_it = match number {
            0 => {
                while !lock.lock_within(Duration::from_millis(100)) {}
                true
            }
            1 => lock.try_lock(),
            _ => {
                lock.lock();
                true
            }
        };
        if has_it {
            room.enter();
            lock.unlock();
        }
    });
}

#[test]
fn the_raw_lock_lets_who_waits_with_patience_in() {
    holds(raw_lock_with_patience);
}

#[test]
fn patience_does_not_make_up_for_a_torn_swap_or_a_lost_wake() {
    finds(Defect::Torn, raw_lock_with_patience);
    finds(Defect::NoWake, raw_lock_with_patience);
}

/// As [`RawLock`], but for one step: it goes to sleep without having said that it waits.
#[test]
fn a_lock_that_does_not_say_that_it_is_waited_for_is_found() {
    finds(Defect::Own, || {
        let word = Word::<Shuttle>::new(0);
        together(3, move |_| {
            while word.atomic().compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                word.wait(1, None);
            }
            if word.atomic().swap(0, Ordering::Release) == 2 {
                word.wake_one();
            }
        });
    });
}

fn each_step_of_a_word_is_heard() {
    let word = SharedWord::<Shuttle>::new(0);
    together(3, move |number| match number {
        0 => {
            word.store_and_wake(1);
            word.wait_while(1);
            word.store_and_wake(3);
        }
        1 => {
            while word.load() != 1 {
                word.wait_while(0);
            }
            word.store_and_wake(2);
        }
        _ => {
            while word.load() != 3 {
                let seen = word.load();
                if seen != 3 {
                    word.wait(seen, Some(Duration::from_millis(1)));
                }
            }
        }
    });
}

#[test]
fn who_waits_on_a_word_hears_of_every_value_it_waits_for() {
    holds(each_step_of_a_word_is_heard);
}

#[test]
fn a_word_that_wakes_nobody_is_found() {
    finds(Defect::NoWake, each_step_of_a_word_is_heard);
}

/// The value is looked at before the wait, not by it.
#[test]
fn a_wake_between_a_look_and_a_wait_for_another_value_is_found() {
    finds(Defect::Own, || {
        let word = Word::<Shuttle>::new(0);
        together(2, move |number| match number {
            0 => word.store_and_wake(1),
            _ => {
                if word.load() == 0 {
                    let seen = word.load();
                    word.wait(seen, None);
                }
            }
        });
    });
}

fn one_wake_for_each() {
    let (word, left) = (Word::<Shuttle>::new(0), Plain::new(2));
    together(3, move |number| match number {
        0 => {
            for _ in 0..2 {
                word.atomic().fetch_add(1, Ordering::AcqRel);
                word.wake_one();
            }
        }
        _ => {
            // Takes one of what was given.
            loop {
                let there = word.load();
                let taken = there > 0
                    && word.atomic().compare_exchange(there, there - 1, Ordering::AcqRel, Ordering::Acquire).is_ok();
                if taken {
                    assert!(left.fetch_sub(1, SeqCst) > 0, "one was taken twice");
                    return;
                }
                if there == 0 {
                    word.wait(0, None);
                }
            }
        }
    });
}

#[test]
fn a_wake_of_one_lets_one_go() {
    holds(one_wake_for_each);
}

#[test]
fn a_wake_of_none_or_a_torn_count_is_found() {
    finds(Defect::NoWake, one_wake_for_each);
    finds(Defect::Torn, one_wake_for_each);
}
