//! Phase of an engine: whether its books may change, or a fork needs them still.
//!
//! A fork stores `FREEZING`, shuts `running`, and has the books to itself when everybody who was inside has left. Then faults
//! are served beside the books (`FROZEN`), until all is `RUNNING` again.

use uswap_system::System;
use uswap_system::sync::Word;

use crate::lock_order::{Gate, Level, Passed, Shut};

/// How the books may be used at this moment.
pub(crate) enum Entry<'a, S: System> {
    /// As usual, until the guard is dropped.
    Running(Passed<'a, S>),
    /// A fork is under way: the books must stay as they are, faults are served beside them.
    Frozen,
}

const RUNNING: u32 = 0;
const FREEZING: u32 = 1;
const FROZEN: u32 = 2;

/// What an engine is at.
pub(crate) struct Phase<S> {
    /// [`RUNNING`], [`FREEZING`] or [`FROZEN`].
    state: Word<S>,
    /// Read by every thread while it may change the books; written by a fork, which needs them still.
    running: Gate<S>,
}

impl<S> Phase<S> {
    /// The books may change.
    pub const fn running() -> Self {
        Phase { state: Word::new(RUNNING), running: Gate::new(Level::Running) }
    }

    /// Nobody comes in before [`goes_on`](Self::goes_on).
    pub const fn freezing() -> Self {
        Phase { state: Word::new(FREEZING), running: Gate::new(Level::Running) }
    }
}

impl<S: System> Phase<S> {
    /// Waits out a fork that is being prepared, then tells how the books may be used.
    pub fn enter(&self) -> Entry<'_, S> {
        loop {
            match self.state.load() {
                // Not waited for: who had seen `RUNNING` before a fork was begun would sleep until it is over, and with it the
                // faults that the forking thread waits for.
                RUNNING => match self.running.try_pass() {
                    Some(guard) if self.state.load() == RUNNING => return Entry::Running(guard),
                    Some(_) => {}
                    None if self.state.load() == RUNNING => crate::pause::pause::<S>(),
                    None => {}
                },
                FREEZING => {
                    let _ = self.state.wait(FREEZING, None);
                }
                _ => return Entry::Frozen,
            }
        }
    }

    /// A thread that serves no faults: as [`Entry::Running`], and a fork is waited for.
    pub fn pass(&self) -> Passed<'_, S> {
        self.running.pass()
    }

    /// A fork begins: who comes from here on waits, and who is inside is waited for.
    pub fn freeze(&self) -> Shut<'_, S> {
        self.state.store(FREEZING);
        self.running.shut()
    }

    /// The window is open: faults are served beside the books.
    pub fn is_still(&self) {
        self.state.store_and_wake(FROZEN);
    }

    /// The books may change again.
    pub fn goes_on(&self) {
        self.state.store_and_wake(RUNNING);
    }

    /// Whether no fork is under way, and what a fork has made has begun to run.
    pub fn is_running(&self) -> bool {
        self.state.load() == RUNNING
    }

    /// Whether faults are served beside the books.
    pub fn is_frozen(&self) -> bool {
        self.state.load() == FROZEN
    }
}

#[cfg(all(test, uswap_words))]
mod words;
