//! Whether somebody calls: a word beside the event by which a call is heard, so that it is raised once.

#[cfg(all(test, uswap_words))]
mod words;

use crate::atomic::{AtomicBool, Ordering::*};

/// See the file's head.
#[derive(Debug, Default)]
pub struct CallWord {
    calls: AtomicBool,
}

impl CallWord {
    /// Makes a call, by `raise`; nothing where one is made already.
    pub fn make(&self, raise: impl FnOnce()) {
        if !self.calls.swap(true, AcqRel) {
            raise();
        }
    }

    /// The call has been heard by enough: `take_back` lowers the event.
    pub fn end(&self, take_back: impl FnOnce()) {
        // In this order: a call that is made in between is not heard, and can be made again. The other way round it would be
        // taken back with the old one, and then taken for made for ever.
        take_back();
        self.calls.store(false, Release);
    }
}
