//! Nobody changes the books while a fork has them still, and nobody waits for ever.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use uswap_system::words::{Defect, Shuttle, finds, holds, preempt, thread};

use super::{Entry, Phase};

/// The books, and who is at them.
struct Books {
    phase: Phase<Shuttle>,
    changing: AtomicU32,
    still: AtomicU32,
}

impl Books {
    fn new(phase: Phase<Shuttle>) -> Arc<Books> {
        Arc::new(Books { phase, changing: AtomicU32::new(0), still: AtomicU32::new(0) })
    }

    fn change(&self) {
        self.changing.fetch_add(1, SeqCst);
        assert_eq!(self.still.load(SeqCst), 0, "the books change while a fork has them still");
        preempt();
        self.changing.fetch_sub(1, SeqCst);
    }

    fn be_still(&self) {
        self.still.store(1, SeqCst);
        assert_eq!(self.changing.load(SeqCst), 0, "somebody is at the books");
        preempt();
        self.still.store(0, SeqCst);
    }

    /// A handler: until its fault is served the usual way. It must be told of the window, for the forking thread waits for that.
    fn serve(&self) {
        loop {
            match self.phase.enter() {
                Entry::Running(_guard) => return self.change(),
                Entry::Frozen => thread::yield_now(),
            }
        }
    }

    fn fork(&self) {
        let shut = self.phase.freeze();
        self.be_still();
        self.phase.is_still();
        assert!(self.phase.is_frozen());
        self.be_still();
        self.phase.goes_on();
        drop(shut);
    }
}

/// Two handlers, a thread that only passes, and one that forks.
fn with_a_fork(fork: fn(&Books)) {
    let books = Books::new(Phase::running());
    let mut threads: Vec<_> = (0..2)
        .map(|_| {
            let books = books.clone();
            thread::spawn(move || (0..2).for_each(|_| books.serve()))
        })
        .collect();
    let passing = books.clone();
    threads.push(thread::spawn(move || {
        let _passed = passing.phase.pass();
        passing.change();
    }));
    (0..2).for_each(|_| fork(&books));
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
}

#[test]
fn the_books_are_still_while_a_fork_has_them() {
    holds(|| with_a_fork(Books::fork));
}

#[test]
fn a_fork_that_wakes_nobody_is_found() {
    finds(Defect::NoWake, || with_a_fork(Books::fork));
}

#[test]
fn a_fork_that_waits_for_nobody_inside_is_found() {
    finds(Defect::Own, || {
        with_a_fork(|books| {
            books.phase.is_still();
            books.be_still();
            books.phase.goes_on();
        });
    });
}

#[test]
fn a_fork_that_lets_in_before_it_is_through_is_found() {
    finds(Defect::Own, || {
        with_a_fork(|books| {
            drop(books.phase.freeze());
            books.phase.goes_on();
            books.be_still();
        });
    });
}

/// A forked child: readers ahead wait until it is told what it has.
fn child(takes_over: fn(&Books)) {
    let books = Books::new(Phase::freezing());
    books.still.store(1, SeqCst);
    let serving = books.clone();
    let thread = thread::spawn(move || serving.serve());
    preempt();
    takes_over(&books);
    thread.join().expect("it ends");
}

#[test]
fn nobody_comes_in_before_a_child_has_taken_over() {
    let takes_over = |books: &Books| {
        books.still.store(0, SeqCst);
        books.phase.goes_on();
    };
    holds(move || child(takes_over));
    finds(Defect::NoWake, move || child(takes_over));
}

#[test]
fn a_child_that_lets_in_too_early_is_found() {
    finds(Defect::Own, || {
        child(|books| {
            books.phase.goes_on();
            preempt();
            books.still.store(0, SeqCst);
        });
    });
}
