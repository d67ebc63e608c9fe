//! A call of the writer is heard: when all is quiet, whatever was called for has been written.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool as PlainBool, AtomicU32 as Plain};

use uswap_system::atomic::Ordering::*;
use uswap_system::words::{Defect, Shuttle, finds, holds, preempt, thread};

use super::Writer;

struct Work {
    writer: Writer<Shuttle>,
    wanted: Plain,
    written: Plain,
    is_over: PlainBool,
}

/// As `Engine::writer_turn`.
fn turn(work: &Work) {
    let calls = work.writer.calls.load();
    while work.written.load(SeqCst) < work.wanted.load(SeqCst) {
        work.written.fetch_add(1, SeqCst);
        preempt();
    }
    work.writer.at_work.store(false, Release);
    if !work.is_over.load(SeqCst) {
        let _ = work.writer.calls.wait(calls, None);
    }
}

fn calls_are_heard(turn: fn(&Work)) {
    let work = Arc::new(Work {
        writer: Writer::new(),
        wanted: Plain::new(0),
        written: Plain::new(0),
        is_over: PlainBool::new(false),
    });
    let writing = work.clone();
    let writer = thread::spawn(move || {
        while !writing.is_over.load(SeqCst) || writing.written.load(SeqCst) < writing.wanted.load(SeqCst) {
            turn(&writing);
        }
    });
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let work = work.clone();
            thread::spawn(move || {
                work.wanted.fetch_add(1, SeqCst);
                preempt();
                work.writer.call();
            })
        })
        .collect();
    callers.into_iter().for_each(|thread| thread.join().expect("it ends"));
    work.is_over.store(true, SeqCst);
    work.writer.call();
    writer.join().expect("it ends");
}

#[test]
fn every_call_of_the_writer_is_heard() {
    holds(|| calls_are_heard(turn));
}

#[test]
fn calls_that_wake_nobody_are_found() {
    finds(Defect::NoWake, || calls_are_heard(turn));
}

/// The count is looked at after the work.
#[test]
fn a_writer_that_looks_for_calls_too_late_is_found() {
    finds(Defect::Own, || {
        calls_are_heard(|work| {
            while work.written.load(SeqCst) < work.wanted.load(SeqCst) {
                work.written.fetch_add(1, SeqCst);
                preempt();
            }
            work.writer.at_work.store(false, Release);
            let calls = work.writer.calls.load();
            let is_over = work.is_over.load(SeqCst);
            if !is_over {
                let _ = work.writer.calls.wait(calls, None);
            }
        });
    });
}
