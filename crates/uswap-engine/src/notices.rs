//! Notices: what threads of the program note for the engine, before there is one and while there is one.
//!
//! A thread of the program must be able to note something at any time: before any constructor ran, in a signal handler, in a
//! child of vfork. So all of it is words that need neither heap nor lock, in memory that is there from the beginning.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

use uswap_system::System;

use crate::control_blocks::ControlBlocks;
use crate::discards::Discards;
use crate::fork_advice::{Advice, ForkAdvice};
use crate::giving_way::GivingWay;
use crate::left_mapped::LeftMapped;
use crate::whole_mappings::Requests;

/// What the threads of one process have noted.
pub struct Notices<S: System> {
    /// Where the engine of the process is (`Engine::of_process`); null before it is needed.
    engine: AtomicPtr<()>,
    /// The program's own madvise for fork.
    pub fork_advice: ForkAdvice,
    /// Changes of memory that give way to faults.
    pub giving_way: GivingWay<S>,
    /// What it has used.
    pub uses: Uses,
    /// Its discards that are in the kernel.
    pub discards: Discards,
    /// Its mremaps that leave the old range mapped.
    pub left_mapped: LeftMapped,
    /// Its mremaps that were refused.
    pub whole_mappings: Requests<S>,
    /// Its threads' control blocks.
    pub control_blocks: ControlBlocks,
}

impl<S: System> Notices<S> {
    /// Nothing noted.
    pub const fn new() -> Notices<S> {
        Notices {
            engine: AtomicPtr::new(std::ptr::null_mut()),
            fork_advice: ForkAdvice::new(),
            giving_way: GivingWay::new(),
            uses: Uses::new(),
            discards: Discards::new(),
            left_mapped: LeftMapped::new(),
            whole_mappings: Requests::new(),
            control_blocks: ControlBlocks::new(),
        }
    }

    /// Whether there is an engine, or was one in the process that this one is a copy of.
    pub fn has_engine(&self) -> bool {
        !self.engine.load(Acquire).is_null()
    }

    /// Where the engine is, or null. In a forked child it is the parent's until the child has its own.
    pub(crate) fn engine_at(&self) -> *mut () {
        self.engine.load(Acquire)
    }

    /// There is an engine from here on, or none any more; where it was before.
    pub(crate) fn set_engine(&self, engine: *mut ()) -> *mut () {
        self.engine.swap(engine, AcqRel)
    }

    /// Any thread, after the kernel has taken the program's advice about forks. Takes no lock and waits for nobody.
    pub fn advise_for_forks(&self, advice: Advice, start: usize, len: usize) {
        self.fork_advice.post(advice, start, len, || self.has_engine());
    }

    /// The only thread of a forked child: no other thread lives here.
    pub fn child_begins(&self) {
        self.fork_advice.child_begins();
        self.giving_way.child_begins();
        self.discards.child_begins();
        self.uses.threads.forget();
    }
}

impl<S: System> Default for Notices<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// What the program has used at least once.
#[derive(Debug, Default)]
pub struct Uses {
    /// Guards: it has installed some.
    pub guard_regions: Noted,
    /// It has given pages of its memory to a pipe or a socket.
    pub page_references: Noted,
    /// It has given memory up with MADV_FREE.
    pub lazy_free: Noted,
    /// It has made a thread, or another process that shares its memory and does not hold up its maker meanwhile.
    pub threads: Noted,
}

impl Uses {
    const fn new() -> Uses {
        Uses {
            guard_regions: Noted::new(),
            page_references: Noted::new(),
            lazy_free: Noted::new(),
            threads: Noted::new(),
        }
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

    /// In a forked child, which has not.
    fn forget(&self) {
        self.0.store(false, Release);
    }

    /// Whether it has.
    pub fn is_noted(&self) -> bool {
        self.0.load(Acquire)
    }
}
