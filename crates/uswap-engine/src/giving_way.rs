//! Changes of memory that give way to faults.
//!
//! The kernel fills nothing while it counts a change of the program's memory. Threads that do nothing but mremap, or more of them
//! that do nothing but discard, keep that count above zero nearly all the time, and a fault would wait for the rare moment in
//! which it is not: seconds. So while a fault has waited for longer than [`PATIENCE`], whoever is about to change memory, by libc's
//! function, waits a little: those changes end that are under way, and the fault is served. Nobody waits for longer than
//! [`GIVES_WAY`]; changes that go round libc (realloc's) do not wait. The same is asked for where threads that move memory
//! without a pause would make what was read and cannot be settled longer and longer, though no fault waits.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::{Duration, Instant};

use uswap_system::System;
use uswap_system::atomic::AtomicU32;
use uswap_system::sync::Word;

/// How long a fault waits for a moment without changes before it asks for one. Mostly there is one within 0.1 ms.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long a change waits: until the tasks of others have had a processor, and a handler has read a page from a disk and comes back
/// with it.
const GIVES_WAY: Duration = Duration::from_millis(20);

/// Once a fault has waited for so long, so many of the next ones that have to wait ask at once: in a program that never rests each
/// of them would.
const EAGER_FAULTS: u32 = 256;

/// Whether, and for how long, changes wait. Late faults write to it: apart from what all read.
#[repr(align(64))]
pub struct GivingWay<S> {
    /// How many of the next faults ask at once.
    eager: AtomicU32,
    /// How many handlers have a fault that asks.
    waiting: Word<S>,
}

impl<S: System> GivingWay<S> {
    pub(crate) const fn new() -> GivingWay<S> {
        GivingWay { eager: AtomicU32::new(0), waiting: Word::new(0) }
    }

    /// Whether a fault waits for changes to end.
    pub fn is_asked_for(&self) -> bool {
        self.waiting.atomic().load(Relaxed) != 0
    }

    /// A thread of the program is about to change its memory.
    pub fn give_way(&self) {
        if !self.is_asked_for() {
            return;
        }
        let begun = S::now();
        loop {
            let waiting = self.waiting.load();
            let left = GIVES_WAY.checked_sub(S::since(begun));
            let (true, Some(left)) = (waiting != 0, left) else { return };
            let _ = self.waiting.wait(waiting, Some(left));
        }
    }

    /// In a forked child: no handler is left.
    pub(crate) fn child_begins(&self) {
        self.waiting.store(0);
    }
}

/// A handler's asking, as long as it has reason to.
pub(crate) struct Asking<S: System> {
    way: &'static GivingWay<S>,
    asks: bool,
}

impl<S: System> Asking<S> {
    /// Nobody asks yet.
    pub fn new(way: &'static GivingWay<S>) -> Asking<S> {
        Asking { way, asks: false }
    }

    /// A fault that was read at `since` could not be served.
    pub fn for_fault_of(&mut self, since: Instant) {
        let is_late = S::since(since) > PATIENCE;
        if is_late && self.way.eager.load(Relaxed) == 0 {
            self.way.eager.store(EAGER_FAULTS, Relaxed);
        }
        if self.asks {
            return;
        }
        let is_eager = || self.way.eager.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if is_late || is_eager() {
            self.asks = true;
            self.way.waiting.atomic().fetch_add(1, AcqRel);
        }
    }

    /// What was read has become so much that it must be settled before there is more.
    pub fn at_once(&mut self) {
        if !std::mem::replace(&mut self.asks, true) {
            self.way.waiting.atomic().fetch_add(1, AcqRel);
        }
    }

    /// No fault waits any more.
    fn end(&mut self) {
        if std::mem::take(&mut self.asks) && self.way.waiting.atomic().fetch_sub(1, AcqRel) == 1 {
            self.way.waiting.wake_all();
        }
    }
}

impl<S: System> Drop for Asking<S> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(all(test, uswap_words))]
mod words;

#[cfg(test)]
mod tests {
    use uswap_sys::linux::Linux;

    use super::*;

    static WAY: GivingWay<Linux> = GivingWay::new();

    #[test]
    fn changes_give_way_while_a_fault_waits_and_no_longer_than_they_must() {
        let waiting = || WAY.waiting.load();
        let took = || {
            let begun = Instant::now();
            WAY.give_way();
            begun.elapsed()
        };
        let mut asking = Asking::new(&WAY);
        asking.for_fault_of(Instant::now());
        assert_eq!(waiting(), 0, "a fault that has just been read asks for nothing");
        let earlier = Instant::now() - 2 * PATIENCE;
        asking.for_fault_of(earlier);
        asking.for_fault_of(earlier);
        assert_eq!(waiting(), 1);
        assert!(took() >= GIVES_WAY);
        let served = std::thread::spawn(move || drop(asking));
        served.join().expect("it ends");
        assert_eq!(waiting(), 0);
        assert!(took() < GIVES_WAY);
        let mut next = Asking::new(&WAY);
        next.for_fault_of(Instant::now());
        assert_eq!(waiting(), 1, "the next one has learned");
        next.end();
    }
}
