//! What a run must not do.

use std::fmt;

/// Who found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checker {
    /// A page reads as what was written to it.
    RightContent,
    /// An access gets SIGBUS only where a fault of a store is the reason.
    LostForAReason,
    /// Whoever sleeps is woken.
    NoLostWakeUp,
    /// The program comes to its end.
    ComesToRest,
    /// The engine asks only what the kernel can be asked.
    RightUse,
    /// An assertion of the code itself.
    Assertion,
    /// A program at rest is within its budget, and its pool within its share.
    BudgetKept,
    /// A tree ends with its supervisor, and with nothing else.
    EndsWithSupervisor,
    /// A process ends itself only for a reason that there was.
    EndsForAReason,
    /// One of the world's own checkers.
    Custom,
}

/// Something that must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Who found it.
    pub checker: Checker,
    /// What it is.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}: {}", self.checker, self.detail)
    }
}
