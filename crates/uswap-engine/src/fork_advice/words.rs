//! What the program keeps from its children is known to the engine: it was posted, or is seen when the engine begins.

use std::sync::Arc;
use std::sync::atomic::AtomicBool as Plain;
use std::sync::atomic::Ordering::SeqCst;

use uswap_system::words::{Defect, finds, holds, thread};

use super::{Advice, ForkAdvice, engine_begins};

const ADDRESS: usize = 0x7000;

/// A thread gives advice while the engine begins. `begins` makes the engine seen, and says whether it saw that there is advice.
fn the_engine_begins(begins: fn(&ForkAdvice, &Plain) -> bool) {
    let said = Arc::new((ForkAdvice::new(), Plain::new(false)));
    let says = said.clone();
    let program = thread::spawn(move || says.0.post(Advice::DontFork, ADDRESS, 1, || says.1.load(SeqCst)));
    let is_seen = begins(&said.0, &said.1);
    program.join().expect("it ends");
    let posted = said.0.postings.take();
    assert!(is_seen || posted.is_some(), "advice is lost: it was neither posted nor seen");
    assert!(posted.is_none_or(|posting| (posting.start, posting.len) == (ADDRESS, 4096)));
}

#[test]
fn advice_is_seen_or_posted_when_the_engine_begins() {
    holds(|| {
        the_engine_begins(|said, engine| {
            engine.store(true, SeqCst);
            engine_begins();
            said.is_used()
        });
    });
}

#[test]
fn an_engine_that_looks_before_it_is_seen_is_found() {
    finds(Defect::Own, || {
        the_engine_begins(|said, engine| {
            let is_used = said.is_used();
            engine_begins();
            engine.store(true, SeqCst);
            is_used
        });
    });
}
