//! Forking threads and the monitor: nobody is left asleep, an answer is taken once, and no process is copied while its
//! monitor is awake and unasked.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool as PlainBool, AtomicU32 as Plain};
use std::time::Duration;

use uswap_system::atomic::Ordering::Acquire;
use uswap_system::sync::RawLock;
use uswap_system::words::{Defect, Shuttle, Timeouts, finds, finds_with, holds, preempt, thread, thread_ends};

use crate::post::Post;

/// A process: its post, the lock that lets one thread fork at a time, and what is true of it.
struct Process {
    post: Post<Shuttle>,
    forking: RawLock<Shuttle>,
    /// Threads that have not forked yet.
    left: Plain,
    /// The monitor is at work: a copy of the process would have that half done.
    at_work: PlainBool,
    /// The process is being copied.
    copied: PlainBool,
    /// What the monitor answers next, and what is true of each that asks.
    answers: Plain,
    /// Forks of which the monitor was told, and forks that were made so.
    followed: Plain,
    made: Plain,
}

impl Process {
    fn new(threads: u32) -> Arc<Process> {
        Arc::new(Process {
            post: Post::new(),
            forking: RawLock::new(),
            left: Plain::new(threads),
            at_work: PlainBool::new(false),
            copied: PlainBool::new(false),
            answers: Plain::new(0),
            followed: Plain::new(0),
            made: Plain::new(0),
        })
    }

    /// fork, as the agent's hooks have it.
    fn fork(&self, thread: u32, asks: bool, succeeds: bool) {
        let fork = &self.post.fork;
        self.forking.lock();
        if asks && !fork.has_memory(&self.post) {
            self.forking.unlock();
            self.ends();
            return;
        }
        fork.prepare(&self.post, thread);
        self.copied.store(true, SeqCst);
        assert!(!self.at_work.load(SeqCst), "the monitor is at work while its process is copied");
        preempt();
        if succeeds && !fork.unasked.load(Acquire) {
            self.made.fetch_add(1, SeqCst);
        }
        self.copied.store(false, SeqCst);
        fork.parent(&self.post, succeeds);
        self.forking.unlock();
        self.ends();
    }

    fn ends(&self) {
        if self.left.fetch_sub(1, SeqCst) == 1 {
            // So that the monitor looks whether it is needed.
            self.post.ring();
        }
    }

    /// What the monitor does that no copy may have half done.
    fn work(&self) {
        self.at_work.store(true, SeqCst);
        assert!(!self.copied.load(SeqCst), "the process is copied while its monitor is at work");
        preempt();
        self.at_work.store(false, SeqCst);
    }

    /// The life of the monitor, as `Monitor::turn` and `follow_fork` have it. `trivial`: whether it has nothing to do for a fork.
    fn monitor(&self, trivial: fn(u32) -> bool) {
        let fork = &self.post.fork;
        fork.monitor_wakes(&[]);
        let mut turns = 0;
        loop {
            let posted = self.post.wake.load();
            if fork.is_requested() {
                self.follow();
                continue;
            }
            if self.left.load(SeqCst) == 0 {
                fork.monitor_sleeps(true);
                return;
            }
            self.work();
            turns += 1;
            fork.monitor_sleeps(trivial(turns));
            let _ = self.post.wake.wait(posted, Some(Duration::from_millis(20)));
            fork.monitor_wakes(&[]);
        }
    }

    fn follow(&self) {
        let fork = &self.post.fork;
        if fork.is_asked() {
            // Every second one is refused.
            let answer = self.answers.fetch_add(1, SeqCst).is_multiple_of(2);
            return fork.answer(answer);
        }
        self.work();
        if fork.let_fork(&[]) {
            self.followed.fetch_add(1, SeqCst);
            fork.child_is_told();
        }
        preempt();
        fork.is_over();
    }
}

/// So many threads fork, each once, and all get through.
fn forks(threads: u32, asks: fn(u32) -> bool, trivial: fn(u32) -> bool) {
    let process = Process::new(threads);
    let monitor = {
        let process = process.clone();
        thread::spawn(move || process.monitor(trivial))
    };
    let all: Vec<_> = (1..=threads)
        .map(|number| {
            let process = process.clone();
            thread::spawn(move || process.fork(number, asks(number), number != 2))
        })
        .collect();
    all.into_iter().for_each(|thread| thread.join().expect("it gets through"));
    monitor.join().expect("it ends");
    assert_eq!(process.post.fork.state.load(), super::IDLE, "an answer is left lying");
    assert_eq!(process.followed.load(SeqCst), process.made.load(SeqCst), "the monitor took something else for a fork");
}

fn every_fork_is_followed() {
    forks(3, |_| false, |_| false);
}

#[test]
fn every_fork_gets_through_and_is_followed() {
    holds(every_fork_is_followed);
}

fn every_thread_asks() {
    forks(3, |_| true, |_| false);
}

#[test]
fn who_asks_for_memory_is_answered_and_the_answer_is_taken_once() {
    holds(every_thread_asks);
}

fn some_forks_are_trivial() {
    forks(3, |number| number == 3, |turn| turn % 2 == 1);
}

#[test]
fn no_process_is_copied_while_its_monitor_is_at_work() {
    holds(some_forks_are_trivial);
}

#[test]
fn forks_without_wakes_are_found() {
    finds(Defect::NoWake, every_fork_is_followed);
    finds(Defect::NoWake, every_thread_asks);
    finds(Defect::NoWake, some_forks_are_trivial);
}

#[test]
fn torn_changes_are_found_where_forks_are_trivial() {
    finds(Defect::Torn, some_forks_are_trivial);
}

/// The monitor goes to work without keeping trivial forks out.
#[test]
fn a_monitor_that_wakes_without_a_word_is_found() {
    finds(Defect::Own, || {
        let process = Process::new(1);
        let forking = process.clone();
        let thread = thread::spawn(move || forking.fork(1, false, true));
        process.work();
        thread.join().expect("it gets through");
    });
}

/// Threads ask, and none of them takes turns with the others.
fn all_ask_at_a_time() {
    let process = Process::new(3);
    let monitor = {
        let process = process.clone();
        thread::spawn(move || process.monitor(|_| false))
    };
    let asks = |process: Arc<Process>| {
        thread::spawn(move || {
            if process.post.fork.has_memory(&process.post) {
                process.made.fetch_add(1, SeqCst);
            }
            process.ends();
        })
    };
    let all = [process.clone(), process.clone(), process.clone()].map(asks);
    all.into_iter().for_each(|thread| thread.join().expect("it is answered"));
    monitor.join().expect("it ends");
    // Those that were trivial, before the monitor had first slept, have asked nobody.
    let (answers, made) = (process.answers.load(SeqCst), process.made.load(SeqCst));
    assert_eq!(made, 3 - answers / 2, "an answer was taken twice, or by nobody");
    assert_eq!(process.post.fork.state.load(), super::IDLE, "an answer is left lying");
}

#[test]
fn all_that_ask_at_a_time_have_an_answer_each() {
    holds(all_ask_at_a_time);
}

#[test]
fn an_answer_that_two_take_or_that_wakes_nobody_is_found() {
    finds(Defect::Torn, all_ask_at_a_time);
    finds(Defect::NoWake, all_ask_at_a_time);
}

/// A monitor that ends lets all go, whatever they wait for.
fn monitor_ends(gives_up: fn(&Post<Shuttle>)) {
    let process = Process::new(2);
    process.post.fork.monitor_wakes(&[]);
    let all: Vec<_> = (1..=2)
        .map(|number| {
            let process = process.clone();
            thread::spawn(move || process.fork(number, number == 1, true))
        })
        .collect();
    preempt();
    gives_up(&process.post);
    all.into_iter().for_each(|thread| thread.join().expect("it gets through"));
}

#[test]
fn who_waits_for_a_monitor_that_ends_goes_on() {
    let leaves = |post: &Post<Shuttle>| {
        post.inert.store(true, super::Release);
        post.fork.give_up();
    };
    holds(move || monitor_ends(leaves));
    finds(Defect::NoWake, move || monitor_ends(leaves));
}

#[test]
fn a_monitor_that_ends_without_a_word_is_found() {
    finds(Defect::Own, || monitor_ends(|post| post.inert.store(true, super::Release)));
}

/// The only thread of a child, and its monitor.
fn child(monitor: fn(&Post<Shuttle>, &Plain)) {
    let child = Arc::new((Post::<Shuttle>::new(), Plain::new(0)));
    child.0.fork.child_begins();
    let of_monitor = child.clone();
    let thread = thread::spawn(move || monitor(&of_monitor.0, &of_monitor.1));
    assert!(child.0.fork.child_waits(&child.0));
    assert_eq!(child.1.load(SeqCst), 1, "its memory is not served yet");
    thread.join().expect("it ends");
}

#[test]
fn a_child_waits_until_its_memory_is_served() {
    let serves = |post: &Post<Shuttle>, served: &Plain| {
        preempt();
        served.store(1, SeqCst);
        post.fork.child_is_ready();
    };
    holds(move || child(serves));
    finds(Defect::NoWake, move || child(serves));
}

#[test]
fn a_child_that_is_let_go_too_early_is_found() {
    finds(Defect::Own, || {
        child(|post, served| {
            post.fork.child_is_ready();
            preempt();
            served.store(1, SeqCst);
        });
    });
}

/// A thread is ended while it forks, unasked, or when it is through.
fn a_thread_is_ended(in_fork: bool) {
    let process = Process::new(1);
    let forking = process.clone();
    let thread = thread::spawn(move || {
        let fork = &forking.post.fork;
        fork.prepare(&forking.post, 7);
        if in_fork && fork.unasked.load(Acquire) {
            return thread_ends(7);
        }
        fork.parent(&forking.post, true);
        thread_ends(7);
        forking.ends();
    });
    process.monitor(|_| true);
    thread.join().expect("it ends");
}

#[test]
fn a_thread_that_is_through_with_its_fork_may_end() {
    holds(|| a_thread_is_ended(false));
}

#[test]
fn a_thread_that_is_ended_in_fork_ends_the_process() {
    finds_with(Timeouts::Any, Defect::Own, || a_thread_is_ended(true));
}
