//! MREMAP_DONTUNMAP (Linux 5.7): what is moved away leaves its old range mapped, and sends no event of its unmapping.
//!
//! Which mremap does so, its event does not say. The wrapper of mremap posts where such a call moves memory from, for as long
//! as that is in the kernel. Its event is read before it returns, so whoever reads that finds the posting.

use uswap_core::defects::{Sabotage, is_on};
use uswap_system::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// Calls that are told at a time; each takes some microseconds.
const CALLS: usize = 64;

/// Such calls that are in the kernel.
pub struct LeftMapped {
    /// Where each moves memory from; 0: a free place.
    from: [AtomicUsize; CALLS],
    /// Some call found no room: any mremap may be one of these, from here on.
    untold: AtomicBool,
}

/// A call in the kernel.
pub struct Posted<'a>(Option<&'a AtomicUsize>);

impl LeftMapped {
    pub(crate) const fn new() -> LeftMapped {
        LeftMapped { from: [const { AtomicUsize::new(0) }; CALLS], untold: AtomicBool::new(false) }
    }

    /// The program is about to use the flag, on memory at `from`. Never waits.
    pub fn post(&self, from: usize) -> Posted<'_> {
        let free = self.from.iter().find(|slot| slot.compare_exchange(0, from, SeqCst, Relaxed).is_ok());
        if free.is_none() {
            self.untold.store(true, SeqCst);
        }
        Posted(free)
    }

    /// Whether the mremap of memory at `from` whose event has just been read may have left that mapped. In a forked child
    /// that may be said of a call of another thread of its parent: that is one more doubt, and no mistake.
    pub(crate) fn may_be_one(&self, from: usize) -> bool {
        !is_on(Sabotage::LeftMappedUntold)
            && (self.untold.load(SeqCst) || self.from.iter().any(|slot| slot.load(SeqCst) == from))
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(0, SeqCst);
        }
    }
}

#[cfg(all(test, uswap_words))]
mod words;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_as_long_as_it_is_in_the_kernel() {
        let calls = LeftMapped::new();
        assert!(!calls.may_be_one(0x1000));
        let posted = calls.post(0x1000);
        assert!(calls.may_be_one(0x1000) && !calls.may_be_one(0x2000));
        drop(posted);
        assert!(!calls.may_be_one(0x1000));
        let all: Vec<Posted<'_>> = (0..=CALLS).map(|call| calls.post((call + 1) << 12)).collect();
        drop(all);
        // One of them found no room.
        assert!(calls.may_be_one(0x7000));
    }
}
