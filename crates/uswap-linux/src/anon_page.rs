//! One anonymous page through fork, swap-out, swap-in and writes: who has it, and when it must be copied.
//!
//! The page begins with one process. Each fork adds one that shares it; a process that writes either gets the page for itself
//! or a copy, and then has a page of its own that this one no longer follows. What it counts is what the 2022 thread is about:
//! copies that only the bookkeeping of the kernel made necessary.

use alloc::vec::Vec;
use core::fmt;

use super::write_reuse::{PageRefs, ReuseEra, WriteFault, by_mappings, should_try_to_free_swap, write_fault};

/// A process, in the order in which they came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Process(pub usize);

/// The page-table entry of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pte {
    /// It names the slot.
    Swapped {
        /// Nobody else had the page when it was unmapped.
        exclusive: bool,
    },
    /// It maps the page.
    Mapped {
        /// Writes go through.
        writable: bool,
    },
    /// The process has a copy, or is gone.
    Elsewhere,
}

/// What a fault did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Touched {
    /// There was no fault.
    NoFault,
    /// The page is mapped.
    Mapped,
    /// The process has a copy of its own from here on.
    Copied,
}

/// What happened to the page.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageEvents {
    /// Copies made.
    pub copies: u64,
    /// Copies made for a process that was the only one to have the page.
    pub copies_of_own: u64,
    /// Reads from the area.
    pub reads: u64,
    /// Writes to the area.
    pub writes: u64,
}

/// What its area and its machine are like.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Surroundings {
    /// The area reads as fast as memory: with one reference to the slot the swap cache is passed by.
    pub synchronous: bool,
    /// A page must not change while it is written to the area.
    pub stable_writes: bool,
    /// More than half of swap is in use.
    pub swap_is_full: bool,
}

/// The page in memory.
#[derive(Clone, Copy, Debug)]
struct Frame {
    cached: bool,
    writeback: bool,
    exclusive: bool,
    /// It differs from what the slot holds, or has no slot.
    dirty: bool,
}

/// The page.
#[derive(Clone, Debug)]
pub struct AnonPage {
    era: ReuseEra,
    around: Surroundings,
    ptes: Vec<Pte>,
    frame: Option<Frame>,
    events: PageEvents,
}

impl AnonPage {
    /// A page that process 0 has just written, under the rules of `era`.
    pub fn new(era: ReuseEra, around: Surroundings) -> Self {
        let frame = Frame { cached: false, writeback: false, exclusive: era.marks_exclusive(), dirty: true };
        Self {
            era,
            around,
            ptes: alloc::vec![Pte::Mapped { writable: true }],
            frame: Some(frame),
            events: PageEvents::default(),
        }
    }

    /// What happened so far.
    pub fn events(&self) -> PageEvents {
        self.events
    }

    /// The page-table entry of `process`.
    pub fn pte(&self, process: Process) -> Pte {
        self.ptes[process.0]
    }

    /// Whether the page is in the swap cache.
    pub fn is_cached(&self) -> bool {
        self.frame.is_some_and(|frame| frame.cached)
    }

    /// Page-table entries that name the slot.
    pub fn swap_count(&self) -> u32 {
        self.ptes.iter().filter(|pte| matches!(pte, Pte::Swapped { .. })).count() as u32
    }

    /// Page-table entries that map the page.
    pub fn mapped(&self) -> u32 {
        self.ptes.iter().filter(|pte| matches!(pte, Pte::Mapped { .. })).count() as u32
    }

    fn refs(&self, frame: Frame) -> PageRefs {
        PageRefs {
            mapped: self.mapped(),
            swap_count: self.swap_count(),
            cached: frame.cached,
            writeback: frame.writeback,
            stable_writes: self.around.stable_writes,
            exclusive: frame.exclusive,
            ..PageRefs::default()
        }
    }

    /// `process` forks; `None` when it has nothing of this page to share. Parent and child are without mark from here on.
    pub fn fork(&mut self, process: Process) -> Option<Process> {
        let shared = match self.pte(process) {
            Pte::Elsewhere => return None,
            Pte::Swapped { .. } => Pte::Swapped { exclusive: false },
            Pte::Mapped { .. } => Pte::Mapped { writable: false },
        };
        if let (Pte::Mapped { .. }, Some(frame)) = (shared, &mut self.frame) {
            frame.exclusive = false;
        }
        self.ptes[process.0] = shared;
        self.ptes.push(shared);
        Some(Process(self.ptes.len() - 1))
    }

    /// `process` ends, or unmaps the page.
    pub fn exit(&mut self, process: Process) {
        self.ptes[process.0] = Pte::Elsewhere;
        self.drop_unused();
    }

    /// Nobody names the slot or maps the page: both are free.
    fn drop_unused(&mut self) {
        if self.mapped() + self.swap_count() == 0 {
            self.frame = None;
        }
    }

    /// Reclaim unmaps the page everywhere; what the slot does not have is on its way there until [`written`](Self::written).
    pub fn swap_out(&mut self) {
        let Some(frame) = &mut self.frame else { return };
        for pte in &mut self.ptes {
            if matches!(pte, Pte::Mapped { .. }) {
                *pte = Pte::Swapped { exclusive: frame.exclusive };
            }
        }
        frame.cached = true;
        frame.exclusive = false;
        if core::mem::take(&mut frame.dirty) {
            frame.writeback = true;
            self.events.writes += 1;
        }
    }

    /// The write to the area is complete.
    pub fn written(&mut self) {
        if let Some(frame) = &mut self.frame {
            frame.writeback = false;
        }
    }

    /// Reclaim drops the page from the swap cache, where the slot has it and nobody maps it.
    pub fn drop_clean(&mut self) {
        if self.mapped() == 0 && self.frame.is_some_and(|frame| frame.cached && !frame.writeback && !frame.dirty) {
            self.frame = None;
        }
    }

    /// `process` reads, or writes.
    pub fn touch(&mut self, process: Process, write: bool) -> Touched {
        match self.pte(process) {
            Pte::Mapped { writable } if writable || !write => {
                self.note_write(write);
                Touched::NoFault
            }
            Pte::Mapped { .. } => self.write_fault(process),
            Pte::Swapped { exclusive } => self.swap_in(process, exclusive, write),
            Pte::Elsewhere => Touched::NoFault,
        }
    }

    fn note_write(&mut self, write: bool) {
        if let Some(frame) = &mut self.frame {
            frame.dirty |= write;
        }
    }

    fn swap_in(&mut self, process: Process, exclusive: bool, write: bool) -> Touched {
        // 1. Find or read it.
        let fresh = self.frame.is_none() && self.around.synchronous && self.swap_count() == 1;
        let mut frame = self.frame.unwrap_or_else(|| {
            self.events.reads += 1;
            // A page that passed the cache by has no slot any more once it is mapped.
            Frame { cached: !fresh, writeback: false, exclusive: false, dirty: fresh }
        });
        // 2. Drop the reference to the slot, and perhaps the slot.
        self.ptes[process.0] = Pte::Elsewhere;
        let refs = self.refs(frame);
        let stable = !(frame.writeback && self.around.stable_writes);
        if should_try_to_free_swap(&refs, write, self.around.swap_is_full, false) && refs.may_free_swap() {
            (frame.cached, frame.dirty) = (false, true);
        }
        // 3. Map it, writable where it is known to have one owner.
        self.ptes[process.0] = Pte::Mapped { writable: false };
        let refs = self.refs(frame);
        let one_owner = match self.era {
            ReuseEra::Until5_8 | ReuseEra::From5_9 => {
                let fault = by_mappings(&refs);
                if write && fault.slot_freed() {
                    frame.cached = false;
                }
                write && !fault.copies()
            }
            // The mark does not hold while the slot may only get the page as it was.
            _ => (exclusive && stable) || fresh || refs.total() == 1,
        };
        frame.exclusive |= one_owner && self.era.marks_exclusive();
        frame.dirty |= one_owner && write;
        self.frame = Some(frame);
        self.ptes[process.0] = Pte::Mapped { writable: one_owner };
        if write && !one_owner { self.write_fault(process) } else { Touched::Mapped }
    }

    fn write_fault(&mut self, process: Process) -> Touched {
        let mut frame = self.frame.expect("a mapped page is in memory");
        let refs = self.refs(frame);
        let fault = write_fault(self.era, &refs);
        if fault.slot_freed() {
            (frame.cached, frame.dirty) = (false, true);
        }
        let outcome = match fault {
            WriteFault::Reuse { .. } => {
                frame.exclusive = self.era.marks_exclusive();
                frame.dirty = true;
                self.ptes[process.0] = Pte::Mapped { writable: true };
                Touched::Mapped
            }
            WriteFault::Copy { .. } => {
                self.events.copies += 1;
                self.events.copies_of_own += u64::from(refs.mapped + refs.swap_count == 1);
                self.ptes[process.0] = Pte::Elsewhere;
                Touched::Copied
            }
        };
        self.frame = Some(frame);
        self.drop_unused();
        outcome
    }

    /// Whoever may write, or is marked as the only owner, is the only one to have the page; and somebody holds its content.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), Violation> {
        let owners = self.mapped() + self.swap_count();
        let claims = |pte: &Pte| matches!(pte, Pte::Mapped { writable: true } | Pte::Swapped { exclusive: true });
        let marked = self.frame.is_some_and(|frame| frame.exclusive) && self.mapped() > 0;
        if owners > 1 && (marked || self.ptes.iter().any(claims)) {
            return Err(Violation::SharedButExclusive { owners });
        }
        if self.mapped() > 0 && self.frame.is_none() {
            return Err(Violation::MappedButGone);
        }
        let in_slot = self.frame.is_none_or(|frame| frame.cached);
        if self.swap_count() > 0 && !in_slot {
            return Err(Violation::NamedButFreed);
        }
        Ok(())
    }
}

/// The books of a page contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Somebody may write to a page that others have too.
    SharedButExclusive {
        /// How many have it.
        owners: u32,
    },
    /// A page-table entry maps a page that is not in memory.
    MappedButGone,
    /// A page-table entry names a slot that was freed.
    NamedButFreed,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::SharedButExclusive { owners } => {
                write!(out, "a page that {owners} processes have can be written by one")
            }
            Self::MappedButGone => out.write_str("a mapped page is not in memory"),
            Self::NamedButFreed => out.write_str("a slot that a page table names was freed"),
        }
    }
}

impl core::error::Error for Violation {}

#[cfg(test)]
mod tests;
