//! A call for the threads that read ahead.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use uswap_system::System;

use crate::group::ProcessSlot;

/// A call for the threads.
pub(crate) struct Ahead {
    /// There are such threads.
    present: AtomicBool,
    /// There may be something to read.
    wanted: AtomicBool,
}

impl Ahead {
    pub const fn new() -> Ahead {
        Ahead { present: AtomicBool::new(false), wanted: AtomicBool::new(false) }
    }

    /// A thread that reads ahead has begun.
    pub fn begins(&self) {
        self.present.store(true, Relaxed);
    }

    /// Whether anybody reads ahead, and empties areas that leave.
    pub fn is_present(&self) -> bool {
        self.present.load(Relaxed)
    }

    /// A handler, with the books in its hands: there is something to read.
    pub fn want(&self) {
        self.wanted.store(true, Relaxed);
    }

    /// A handler that has served its fault: calls the threads if there is something to read.
    pub fn call_if_wanted<S: System>(&self, slot: &ProcessSlot) {
        if self.wanted.load(Relaxed) && self.wanted.swap(false, Relaxed) {
            slot.call::<S>();
        }
    }
}
