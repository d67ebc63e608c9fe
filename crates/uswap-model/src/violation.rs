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
    /// What is on an area that leaves comes in, where there is room.
    AreasEmpty,
    /// What the kernel writes to when a thread ends stays in memory.
    ControlBlockStays,
    /// An area that passes for empty is.
    EmptyIsEmpty,
    /// What processes have in RAM counts.
    AllCounted,
    /// A tree ends with its supervisor, and with nothing else.
    EndsWithSupervisor,
    /// A process ends itself only for a reason that there was.
    EndsForAReason,
    /// One of the world's own checkers.
    Custom,
}

impl Checker {
    /// What it looks after, as a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Checker::RightContent => "a page reads as what was written to it",
            Checker::LostForAReason => "an access gets SIGBUS only where a fault of a store is the reason",
            Checker::NoLostWakeUp => "whoever sleeps is woken",
            Checker::ComesToRest => "the program comes to its end",
            Checker::RightUse => "the engine asks only what the kernel can be asked",
            Checker::Assertion => "the code's own assertions hold",
            Checker::BudgetKept => "a program at rest is within its budget, and its pool within its share",
            Checker::AreasEmpty => "what is on an area that leaves comes in where there is room",
            Checker::ControlBlockStays => "what the kernel writes to when a thread ends stays in memory",
            Checker::EmptyIsEmpty => "an area that passes for empty is",
            Checker::AllCounted => "what processes have in RAM counts",
            Checker::EndsWithSupervisor => "a tree ends with its supervisor, and with nothing else",
            Checker::EndsForAReason => "a process ends itself only for a reason that there was",
            Checker::Custom => "what the world is asked between steps holds",
        }
    }
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
        write!(out, "not true that {}: {}", self.checker.name(), self.detail)
    }
}
