//! Who asks for a mapping to be adopted as a whole goes on when that has been done after he asked, and is not left asleep.

use std::sync::Arc;
use std::sync::atomic::AtomicU32 as Plain;
use std::sync::atomic::Ordering::SeqCst;

use uswap_system::words::{Defect, Shuttle, finds, holds, preempt, thread};

use super::Requests;
use crate::post::Post;

struct Process {
    post: Post<Shuttle>,
    requests: Requests<Shuttle>,
    /// Rounds of adoption that have begun, and threads that have not asked yet.
    rounds: Plain,
    left: Plain,
}

/// What the monitor does for those who asked, and tells them.
fn adopt(process: &Process) {
    let Some(asked) = process.requests.asked() else { return };
    process.rounds.fetch_add(1, SeqCst);
    preempt();
    process.requests.done(asked);
}

fn threads_ask(serve: fn(&Process)) {
    let process =
        Arc::new(Process { post: Post::new(), requests: Requests::new(), rounds: Plain::new(0), left: Plain::new(2) });
    let mut all: Vec<_> = (0..2)
        .map(|_| {
            let process = process.clone();
            thread::spawn(move || {
                let before = process.rounds.load(SeqCst);
                // Or its patience is over.
                if process.requests.ask(|| process.post.ring(), || false) {
                    assert!(process.rounds.load(SeqCst) > before, "nothing has been done since this one asked");
                }
                process.left.fetch_sub(1, SeqCst);
                process.post.ring();
            })
        })
        .collect();
    all.push(thread::spawn(move || {
        loop {
            let posted = process.post.wake.load();
            serve(&process);
            if process.left.load(SeqCst) == 0 {
                return;
            }
            let _ = process.post.wake.wait(posted, None);
        }
    }));
    all.into_iter().for_each(|thread| thread.join().expect("it ends"));
}

#[test]
fn who_asks_goes_on_when_something_has_been_done_since() {
    holds(|| threads_ask(adopt));
}

#[test]
fn requests_that_wake_nobody_are_found() {
    finds(Defect::NoWake, || threads_ask(adopt));
}

/// Who asks while the monitor is at work is told that it has been done for him.
#[test]
fn a_monitor_that_looks_who_asked_when_it_is_through_is_found() {
    finds(Defect::Own, || {
        threads_ask(|process| {
            if process.requests.asked().is_some() {
                process.rounds.fetch_add(1, SeqCst);
                preempt();
                process.requests.done(process.requests.asked.load());
            }
        });
    });
}
