//! Books: what each page of adopted memory is, and where its content is. They are uswap-core's, behind one lock.
//!
//! The lock is not held across I/O, a copy or a compression. The books are written before the thread is woken that waits for
//! what they say.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use uswap_core::{Core, PageNumber, PageRange, RangeSet};
use uswap_system::System;

use crate::lock_order::{Level, Lock, LockGuard};

/// The books.
pub(crate) struct Books<S: System> {
    core: Lock<Core, S>,
    /// In a forked child: memory whose swapped content may not be what is there.
    refused: Lock<RangeSet, S>,
    /// The user has been told that they cannot grow.
    said_out_of_memory: AtomicBool,
}

impl<S: System> Books<S> {
    pub fn new(core: Core) -> Self {
        Books {
            core: Lock::new(Level::Books, core),
            refused: Lock::new(Level::Refused, RangeSet::default()),
            said_out_of_memory: AtomicBool::new(false),
        }
    }

    /// Opens them.
    pub fn core(&self) -> LockGuard<'_, Core, S> {
        self.core.lock()
    }

    /// The lock itself, for who opens them again and again.
    pub fn lock(&self) -> &Lock<Core, S> {
        &self.core
    }

    /// What is in `range` may not be what the books say: whoever touches it gets SIGBUS.
    pub fn refuse(&self, range: PageRange) {
        self.refused.lock().insert(range);
    }

    /// Whether [`refuse`](Self::refuse) was told of `page`.
    pub fn is_refused(&self, page: PageNumber) -> bool {
        self.refused.lock().contains(page)
    }

    /// Whether the user is to be told that they cannot grow; once.
    pub fn say_out_of_memory(&self) -> bool {
        !self.said_out_of_memory.swap(true, Relaxed)
    }

    /// In the copy that a forked child has: they are its own from here on.
    pub fn into_core(self) -> Core {
        self.core.into_inner()
    }
}
