//! Notices: what threads of the program note for the engine, before there is one and while there is one.
//!
//! A thread of the program must be able to note something at any time: before any constructor ran, in a signal handler, in a
//! child of vfork. So all of it is words that need neither heap nor lock, in memory that is there from the beginning.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

use crate::control_blocks::ControlBlocks;
use crate::engine::Engine;
use crate::fork_advice::ForkAdvice;
use crate::giving_way::GivingWay;
use crate::host::Host;
use crate::left_mapped::LeftMapped;
use crate::whole_mappings::Requests;

/// What the threads of one process have noted.
pub struct Notices<H: Host> {
    /// The engine of the process; null before it is needed.
    pub(crate) engine: AtomicPtr<Engine<H>>,
    /// The program's own madvise for fork.
    pub fork_advice: ForkAdvice,
    /// Changes of memory that give way to faults.
    pub giving_way: GivingWay<H>,
    /// It has installed guards.
    pub guard_regions: Noted,
    /// It has given pages of its memory to a pipe or a socket.
    pub page_references: Noted,
    /// It has given memory up with MADV_FREE.
    pub lazy_free: Noted,
    /// Its mremaps that leave the old range mapped.
    pub left_mapped: LeftMapped,
    /// Its mremaps that were refused.
    pub whole_mappings: Requests<H>,
    /// Its threads' control blocks.
    pub control_blocks: ControlBlocks,
}

impl<H: Host> Notices<H> {
    /// Nothing noted.
    pub const fn new() -> Notices<H> {
        Notices {
            engine: AtomicPtr::new(std::ptr::null_mut()),
            fork_advice: ForkAdvice::new(),
            giving_way: GivingWay::new(),
            guard_regions: Noted::new(),
            page_references: Noted::new(),
            lazy_free: Noted::new(),
            left_mapped: LeftMapped::new(),
            whole_mappings: Requests::new(),
            control_blocks: ControlBlocks::new(),
        }
    }

    /// Whether there is an engine, or was one in the process that this one is a copy of.
    pub fn has_engine(&self) -> bool {
        !self.engine.load(Acquire).is_null()
    }

    /// The engine, if there is one. In a forked child it is the parent's until the child has its own.
    pub fn engine(&self) -> Option<&'static Engine<H>> {
        // SAFETY: null, or an engine, which lives as long as the process; it is there before the pointer is. That of a parent is
        // taken apart in the child by `Inherited::take`, and nobody keeps a reference to it beyond that.
        unsafe { self.engine.load(Acquire).as_ref() }
    }

    /// The only thread of a forked child: no other thread lives here.
    pub fn child_begins(&self) {
        self.fork_advice.child_begins();
        self.giving_way.child_begins();
    }
}

impl<H: Host> Default for Notices<H> {
    fn default() -> Self {
        Self::new()
    }
}

/// Something that the program has done at least once.
#[derive(Debug, Default)]
pub struct Noted(AtomicBool);

impl Noted {
    pub(crate) const fn new() -> Noted {
        Noted(AtomicBool::new(false))
    }

    /// It is about to do it.
    pub fn note(&self) {
        self.0.store(true, Release);
    }

    /// Whether it has.
    pub fn is_noted(&self) -> bool {
        self.0.load(Acquire)
    }
}
