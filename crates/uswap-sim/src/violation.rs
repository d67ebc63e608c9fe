//! What checkers find.

use std::fmt;

/// What a checker looks after.
pub trait Rule: Copy {
    /// Its name, as a sentence.
    fn name(self) -> &'static str;
}

/// A rule does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation<R> {
    /// Which one.
    pub checker: R,
    /// What is there instead.
    pub detail: String,
}

impl<R: Rule> fmt::Display for Violation<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not true that {}: {}", self.checker.name(), self.detail.replace('\n', " "))
    }
}

/// A violation, as an error.
pub(crate) fn violated<T, R>(checker: R, detail: String) -> Result<T, Violation<R>> {
    Err(Violation { checker, detail })
}

/// Ends a step when `holds` is false.
pub(crate) fn ensure<R>(holds: bool, checker: R, detail: impl FnOnce() -> String) -> Result<(), Violation<R>> {
    if holds { Ok(()) } else { violated(checker, detail()) }
}
