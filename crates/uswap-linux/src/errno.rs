//! The errors that Linux's swap code answers with.

use core::fmt;

/// An error number, by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errno {
    /// Operation not permitted.
    EPERM,
    /// No such file, or no such slot.
    ENOENT,
    /// A signal came first.
    EINTR,
    /// Input/output error.
    EIO,
    /// Out of memory.
    ENOMEM,
    /// In use.
    EBUSY,
    /// There is one already.
    EEXIST,
    /// Invalid argument.
    EINVAL,
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
