//! Readahead of all kinds on the same accesses and the same memory: who misses least, and what is read for nothing.
//!
//! Everything lies on one area, each page on the slot of its number, as if it had left in order: the best case for the kernel.
//! Memory is smaller than that. Under the kernel's kinds and our streams what was not used for longest leaves, be it
//! unused readahead or not; the engine's own way decides that by itself, too.

mod kind_memory;
pub mod kinds;
mod our_way;
pub mod suite;

use crate::readahead_kinds::kinds::ReadaheadKind;

pub use suite::Pattern;

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One of the kernel's, of uswap-policy, or none.
    Policy(ReadaheadKind),
    /// What the engine does.
    Engine,
}

impl Kind {
    /// All.
    pub fn all() -> impl Iterator<Item = Self> {
        ReadaheadKind::ALL.into_iter().map(Self::Policy).chain([Self::Engine])
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Policy(kind) => kind.name(),
            Self::Engine => "engine",
        }
    }
}

/// What a run came to, in pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Score {
    /// Were waited for.
    pub misses: u64,
    /// Came along, and were used.
    pub hits: u64,
    /// Came along, and were not used before they left, or at all.
    pub wasted: u64,
}

/// `pattern` under readahead of one kind, in a memory of `limit` pages.
pub fn run(kind: Kind, limit: usize, pattern: &Pattern) -> Score {
    match kind {
        Kind::Policy(kind) => kind_memory::run(kind, limit, pattern),
        Kind::Engine => our_way::run(limit, pattern),
    }
}

#[cfg(test)]
mod tests;
