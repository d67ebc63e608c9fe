//! Help for the monitor: past the limit, handlers reclaim as well.
//!
//! A program that fills memory which is not adopted yet takes no faults, so nothing makes it wait for room. Where it fills
//! as fast as one thread reclaims, only more threads bring it back below its limit: they reclaim, and they leave it less
//! of the CPU.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};

use rustix::event::{EventfdFlags, eventfd};

use crate::engine::{Engine, Entry, Worker};

/// A call that handlers hear while they wait for faults.
pub(crate) struct Call {
    /// Readable while the monitor calls.
    event: OwnedFd,
    calls: AtomicBool,
}

impl Call {
    pub fn new() -> io::Result<Call> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Call { event, calls: AtomicBool::new(false) })
    }

    /// The monitor: help is wanted.
    pub fn make(&self) {
        if !self.calls.swap(true, AcqRel) {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Anybody: enough.
    pub fn end(&self) {
        self.calls.store(false, Release);
        // In this order: a call that is being made at this moment is heard, or made again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// To be polled.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Engine {
    /// A handler that was called: one round, so that faults wait no longer than that takes.
    pub(crate) fn assist(&self, worker: &mut Worker) {
        let helped = match self.enter() {
            Entry::Running(_guard) if self.is_over_limit() && !self.is_hopeless() => {
                let round = self.reclaim_round(worker, true);
                self.meter.freed(round.trashed);
                // What a fork shares, only the monitor can move.
                round.busy == 0 && round.moved + round.stored + round.trashed > 0
            }
            Entry::Running(_) | Entry::Frozen => false,
        };
        if !helped {
            self.call.end();
        }
    }
}
