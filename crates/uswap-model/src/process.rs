//! A process, as the kernel has it.

use std::any::Any;
use std::ops::Range;

use crate::frames::Frames;
use crate::mm::Mm;
use crate::oracle::Oracle;
use crate::scheduler::ThreadId;
use crate::userfaultfd_ctx::UserfaultId;

/// Which process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId(pub usize);

impl ProcessId {
    /// Its number for the engine.
    pub fn pid(self) -> u32 {
        100 + self.0 as u32
    }
}

/// Memory that an unfinished system call is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Whose call.
    pub thread: ThreadId,
    /// Which pages.
    pub range: Range<usize>,
    /// Only until the mappings are changed: nothing is there from then on, and anybody may map something there.
    pub until_changed: bool,
    /// Made before the call, by who is going to make it.
    pub is_ahead: bool,
}

/// A process.
pub struct Process {
    /// Which.
    pub id: ProcessId,
    /// Who forked it.
    pub parent: Option<ProcessId>,
    /// It has not been killed, and a thread of it lives.
    pub is_alive: bool,
    /// Its memory.
    pub mm: Mm,
    /// What its pages must read as.
    pub oracle: Oracle,
    /// The userfaultfd that tells of its memory.
    pub userfault: Option<UserfaultId>,
    /// What unfinished system calls are about: no thread of a right program touches the mappings there.
    pub claims: Vec<Claim>,
    /// Pages of shared memory that it has resident: the pool's, whose bytes the model does not see.
    pub shared_pages: Option<Box<dyn Fn() -> u64>>,
    /// [`Mm::changes`] when its engine last asked for its faults.
    pub asked_at: Option<u64>,
    /// The time before that.
    pub told_at: Option<u64>,
    /// What is in the process beside the program: the agent's.
    pub environment: Option<&'static dyn Any>,
}

impl Process {
    pub(crate) fn new(
        id: ProcessId,
        parent: Option<ProcessId>,
        (base, span): (usize, usize),
        frames: Frames,
    ) -> Process {
        Process {
            id,
            parent,
            is_alive: true,
            mm: Mm::new(base, span, frames),
            oracle: Oracle::new(base, span),
            userfault: None,
            claims: Vec::new(),
            shared_pages: None,
            asked_at: None,
            told_at: None,
            environment: None,
        }
    }

    /// Whether an unfinished call is about memory of `range`.
    pub fn is_claimed(&self, range: &Range<usize>) -> bool {
        self.claims.iter().any(|claim| claim.range.start < range.end && range.start < claim.range.end)
    }
}
