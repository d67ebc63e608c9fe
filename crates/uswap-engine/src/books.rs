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
    /// Pages of which the user has been told that they are lost, or may be.
    told: Lock<RangeSet, S>,
    /// The user has been told that they cannot grow.
    said_out_of_memory: AtomicBool,
}

impl<S: System> Books<S> {
    pub fn new(core: Core) -> Self {
        Books {
            core: Lock::new(Level::Books, core),
            told: Lock::new(Level::Told, RangeSet::default()),
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

    /// Whether the user is to be told that `page` is lost, or may be; once.
    pub fn say_lost(&self, page: PageNumber) -> bool {
        let mut told = self.told.lock();
        let is_news = !told.contains(page);
        if is_news {
            told.insert(page.alone());
        }
        is_news
    }

    /// Something else is at `range` from here on: what was told of it counts no more.
    pub fn begins_anew(&self, range: PageRange) {
        self.told.lock().remove(range);
    }

    /// Whether the user is to be told that they cannot grow; once.
    pub fn say_out_of_memory(&self) -> bool {
        !self.said_out_of_memory.swap(true, Relaxed)
    }

    /// In the copy that a forked child has: they are its own from here on. What the user was told may have been in another thread's
    /// hands at the moment of the fork, and is left alone.
    pub fn into_core(self) -> Core {
        let Books { core, told, .. } = self;
        std::mem::forget(told);
        core.into_inner()
    }
}
