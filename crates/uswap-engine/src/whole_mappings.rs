//! mremap of a mapping of which a part is adopted.
//!
//! Linux takes a mapping that is registered in part for two, and refuses to resize or move both by one mremap (EFAULT).
//! Mappings are adopted as a whole, but what was read of them may be out of date before the registration: then an adopted
//! range ends in the middle of a mapping that has been made meanwhile. The wrapper of mremap has the monitor adopt the rest,
//! and tries again.

use std::sync::atomic::Ordering::AcqRel;
use std::time::Duration;

use uswap_system::System;
use uswap_system::sync::Word;

/// A refusal of the program's own making takes so long at most.
const PATIENCE: Duration = Duration::from_millis(200);

/// Those whose mremap was refused.
pub struct Requests<S> {
    /// Counts those who asked.
    asked: Word<S>,
    /// Those who have been served.
    done: Word<S>,
}

impl<S: System> Requests<S> {
    pub(crate) const fn new() -> Requests<S> {
        Requests { asked: Word::new(0), done: Word::new(0) }
    }

    /// Program thread: an mremap was refused. Waits until adopted memory does not end within a mapping; whether it is worth
    /// another try. `ring` wakes the monitor, of which `is_inert` says that it does nothing.
    pub(crate) fn ask(&self, ring: impl FnOnce(), is_inert: impl Fn() -> bool) -> bool {
        let mine = self.asked.atomic().fetch_add(1, AcqRel).wrapping_add(1);
        let begun = S::now();
        ring();
        loop {
            let done = self.done.load();
            if done.wrapping_sub(mine) as i32 >= 0 {
                return true;
            }
            let Some(left) = PATIENCE.checked_sub(S::since(begun)) else { return false };
            if is_inert() {
                return false;
            }
            let _ = self.done.wait(done, Some(left));
        }
    }

    /// Monitor: whether anybody waits, and what [`done`](Self::done) is to be told then.
    pub(crate) fn asked(&self) -> Option<u32> {
        let asked = self.asked.load();
        (asked != self.done.load()).then_some(asked)
    }

    /// Monitor: those who had asked can go on.
    pub(crate) fn done(&self, asked: u32) {
        self.done.store_and_wake(asked);
    }
}

#[cfg(all(test, uswap_words))]
mod words;
