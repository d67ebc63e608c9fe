//! Staff: the engine's threads beside the monitor, as others call them: readers ahead, the writer, and how many have begun.
//!
//! A call is never lost: who is called looks at what there is to be done after it has seen the call, and before it sleeps.

mod ahead_call;
mod writer_call;

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use uswap_system::System;

pub(crate) use ahead_call::Ahead;
pub(crate) use writer_call::{Progress, Writer};

/// The engine's threads beside the monitor.
pub(crate) struct Staff<S: System> {
    pub ahead: Ahead,
    pub writer: Writer<S>,
    /// Handlers, threads that read ahead and the writer, as far as they have all the memory that they need.
    ready: AtomicU32,
}

impl<S: System> Staff<S> {
    pub fn new() -> Self {
        Staff { ahead: Ahead::new(), writer: Writer::new(), ready: AtomicU32::new(0) }
    }

    /// A thread has begun, and has all that it works with.
    pub fn begins(&self) {
        self.ready.fetch_add(1, AcqRel);
    }

    /// How many have begun.
    pub fn ready(&self) -> usize {
        self.ready.load(Acquire) as usize
    }
}
