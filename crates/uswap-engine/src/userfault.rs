//! The userfaultfd of a process, as long as events are held back: nothing is filled then, as if they were unread.

use std::ops::Deref;

use uswap_core::PAGE_SIZE;
use uswap_core::defects::{Sabotage, is_on};
use uswap_system::atomic::{AtomicBool, AtomicU64, Ordering::*};
use uswap_system::faults::{Faults, Holes, Progress, Stop, Wake};

/// A userfaultfd with events.
pub(crate) struct Userfault<F> {
    uffd: F,
    /// Changes only while the gate is shut.
    holds_events: AtomicBool,
    /// Pages that were ever brought in by a copy: counted before they are there.
    brought: AtomicU64,
    /// The same, counted when they are there.
    arrived: AtomicU64,
    /// Pages that were ever given back to the kernel: counted when they are gone.
    taken: AtomicU64,
    /// The same, counted before.
    leaving: AtomicU64,
}

impl<F: Faults> Userfault<F> {
    pub fn new(uffd: F) -> Userfault<F> {
        let [brought, arrived, taken, leaving] = [const { AtomicU64::new(0) }; 4];
        Userfault { uffd, holds_events: AtomicBool::new(false), brought, arrived, taken, leaving }
    }

    /// With the gate shut: whether events are held back from here on.
    pub fn hold_events(&self, hold: bool) {
        self.holds_events.store(hold, Release);
    }

    /// Whether events are held back: more may have to be read.
    pub fn holds_events(&self) -> bool {
        self.holds_events.load(Acquire)
    }

    fn unless_held(&self, fill: impl FnOnce(&F) -> Progress) -> Progress {
        if self.holds_events() && !is_on(Sabotage::FilledWhileHeld) {
            Progress { bytes: 0, stop: Some(Stop::TryLater) }
        } else {
            fill(&self.uffd)
        }
    }

    /// As [`Faults::copy`]; where the pages are of several mappings, only some of them, without a reason to stop. What is said to be there
    /// is to be looked at: `Memory::copy`.
    pub fn copy(&self, target: usize, source: *const u8, len: usize, wake: Wake) -> Progress {
        self.brought.fetch_add((len / PAGE_SIZE) as u64, Relaxed);
        let progress = self.in_one_mapping(len, |uffd, len| uffd.copy(target, source, len, wake));
        self.arrived.fetch_add((progress.bytes / PAGE_SIZE) as u64, Release);
        self.brought.fetch_sub(((len - progress.bytes) / PAGE_SIZE) as u64, Relaxed);
        progress
    }

    /// As [`Faults::zeropage`]; where the pages are of several mappings, only some of them, without a reason to stop. What is said to be there
    /// is to be looked at: `Memory::zeropage`.
    pub fn zeropage(&self, target: usize, len: usize, wake: Wake) -> Progress {
        self.in_one_mapping(len, |uffd, len| uffd.zeropage(target, len, wake))
    }

    /// The kernel fills nothing where not all of a range is of one mapping, and says that it is missing: the first page then is
    /// filled alone, so [`Stop::Missing`] is the answer only where that one is not registered.
    fn in_one_mapping(&self, len: usize, fill: impl Fn(&F, usize) -> Progress) -> Progress {
        let progress = self.unless_held(|uffd| fill(uffd, len));
        let is_whole = progress.stop != Some(Stop::Missing) || progress.bytes > 0 || len == PAGE_SIZE;
        if !is_whole && !is_on(Sabotage::OneMappingAssumed) {
            return self.unless_held(|uffd| fill(uffd, PAGE_SIZE));
        }
        progress
    }

    pub fn move_pages(&self, target: usize, source: usize, len: usize, holes: Holes, wake: Wake) -> Progress {
        self.unless_held(|uffd| uffd.move_pages(target, source, len, holes, wake))
    }

    /// Pages that were ever brought in by a copy, and those among them that are there for certain.
    pub fn brought(&self) -> (u64, u64) {
        (self.brought.load(Acquire), self.arrived.load(Acquire))
    }

    /// Pages that were ever given back to the kernel for certain, and with them those that may be.
    pub fn taken(&self) -> (u64, u64) {
        (self.taken.load(Acquire), self.leaving.load(Acquire))
    }

    /// Gives so many pages back by `drop`.
    pub fn gives_back(&self, pages: u64, drop: impl FnOnce()) {
        self.leaving.fetch_add(pages, SeqCst);
        drop();
        self.taken.fetch_add(pages, Release);
    }

    pub fn poison(&self, start: usize, len: usize) -> Progress {
        self.unless_held(|uffd| uffd.poison(start, len))
    }

    /// Whether an event is unread, held back, or its task has not gone on.
    pub fn is_changing(&self) -> bool {
        self.holds_events() || self.uffd.is_changing()
    }

    /// As [`is_changing`](Self::is_changing), of the kernel alone.
    pub fn kernel_is_changing(&self) -> bool {
        self.uffd.is_changing()
    }
}

impl<F> Deref for Userfault<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.uffd
    }
}
