//! Reading beside moving.
//!
//! What clients report of their mappings is taken in while pages are on their way out. Whoever moves them notes first how much has been
//! taken in ([`Reports::seen`]), and protects them where they are known to be; and when he takes them away, with the door passed, nothing
//! may have been taken in since. Else they stay: a fork may have brought a process in which they were not protected. Where pages are
//! filled by what is known of a client, nothing is taken in until they are.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use uswap_core::defects::{Sabotage, is_on};
use uswap_system::System;
use uswap_system::sync::{Gate, Passed, Shut};

/// See the file's head.
pub struct Reports<K> {
    /// Shut by who reads; passed by who relies on what was read.
    door: Gate<K>,
    taken_in: AtomicU64,
    /// A page could not leave because it is not known who has it.
    doubts: AtomicBool,
}

/// How much has been taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen(u64);

impl<K: System> Reports<K> {
    /// Nothing has been read.
    pub fn new() -> Reports<K> {
        Reports { door: Gate::new(), taken_in: AtomicU64::new(0), doubts: AtomicBool::new(false) }
    }

    /// Nobody else reads, and nobody relies on what was read, until this is dropped.
    pub fn alone(&self) -> Shut<'_> {
        self.door.shut()
    }

    /// With the door shut: something is taken in, or has been.
    pub fn take_in(&self) {
        self.taken_in.fetch_add(1, AcqRel);
    }

    /// Before it is looked who has what.
    pub fn seen(&self) -> Seen {
        Seen(self.taken_in.load(Acquire))
    }

    /// Nothing is read until this is dropped.
    pub fn pass(&self) -> Passed<'_> {
        self.door.pass()
    }

    /// The same, if nothing was taken in since then.
    pub fn pass_if(&self, seen: Seen) -> Option<Passed<'_>> {
        let passed = self.door.pass();
        (self.seen() == seen || is_on(Sabotage::ReportsMissed)).then_some(passed)
    }

    /// It is not known who has what. Whether nobody has said so since it was asked last.
    pub fn are_doubted(&self) -> bool {
        !self.doubts.swap(true, AcqRel)
    }

    /// Whether somebody has said so since.
    pub fn takes_doubts(&self) -> bool {
        self.doubts.load(Relaxed) && self.doubts.swap(false, AcqRel)
    }
}

impl<K: System> Default for Reports<K> {
    fn default() -> Self {
        Reports::new()
    }
}
