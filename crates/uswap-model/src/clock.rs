//! The clock: it goes on a little with each step, and jumps to the next deadline when everybody waits.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Virtual time, in nanoseconds since the world began.
pub struct Clock {
    /// What [`Instant`]s are counted from: differences between them follow from the seed alone.
    base: Instant,
    now: Cell<u64>,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { base: Instant::now(), now: Cell::new(0) }
    }

    /// Nanoseconds since the world began.
    pub fn now_ns(&self) -> u64 {
        self.now.get()
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.base + Duration::from_nanos(self.now.get())
    }

    pub(crate) fn advance(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
    }

    pub(crate) fn advance_to(&self, ns: u64) {
        self.now.set(self.now.get().max(ns));
    }

    /// When a wait of `duration` from now ends.
    pub(crate) fn deadline(&self, duration: Duration) -> u64 {
        self.now.get().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}
