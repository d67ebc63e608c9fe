//! What is checked.

use crate::violation::{self, Rule};
pub(super) use crate::violation::{ensure, violated};

/// The checkers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checker {
    /// A slot, or an object of the pool, belongs to one entry, and a cluster to one process.
    OneOwner,
    /// A slot is free exactly when no entry and no write in flight has it.
    PlacesAddUp,
    /// The content of every page can be had from where the books say it is.
    Recoverable,
    /// A page reads as what was written to it last.
    RightContent,
    /// An entry has one page, and a page's entry is in use.
    OneReference,
    /// The counters of the books are what counting gives.
    Counters,
    /// Frames with memory are those that the books think have memory.
    Frames,
    /// A page is given up as lost only when a fault was injected into its content.
    LostForAReason,
    /// Every thread that waits for a page goes on at some time.
    NoLostWakeUp,
    /// After everything has been unmapped nothing is left in the books.
    NothingLeft,
    /// Books that were told the same are the same.
    Deterministic,
    /// An area that a process has emptied has nothing of it.
    Emptied,
    /// Not a violation: nothing tells what is where, and the process ends and says so.
    EndsWithALine,
    /// An assertion of the books themselves.
    Assertion,
}

impl Rule for Checker {
    fn name(self) -> &'static str {
        match self {
            Self::OneOwner => "no place has two owners",
            Self::PlacesAddUp => "places add up",
            Self::Recoverable => "every page is recoverable",
            Self::RightContent => "a page reads as what was written last",
            Self::OneReference => "an entry has one page",
            Self::Counters => "counters are what counting gives",
            Self::Frames => "frames are as the books say",
            Self::LostForAReason => "a page is lost only for a reason",
            Self::NoLostWakeUp => "every waiting thread goes on",
            Self::NothingLeft => "nothing is left of what was unmapped",
            Self::Deterministic => "books that were told the same are the same",
            Self::Emptied => "an area that was emptied stays empty",
            Self::EndsWithALine => "it can be told what is where",
            Self::Assertion => "the books' own assertions hold",
        }
    }
}

/// One of these does not hold.
pub type Violation = violation::Violation<Checker>;

/// What checked steps return.
pub(super) type Checked<T = ()> = Result<T, Violation>;
