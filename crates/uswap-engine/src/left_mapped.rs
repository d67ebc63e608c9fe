//! MREMAP_DONTUNMAP (Linux 5.7): what is moved away leaves its old range mapped, and sends no event of its unmapping.
//!
//! Which mremap does so, its event does not say. The wrapper of mremap posts where such a call moves memory from. The event is
//! read before the call returns, but only just: its thread goes on as soon as the kernel has handed it out. So a posting of a
//! call that returns while somebody reads stays until the next one begins to read, with the gate shut.

use uswap_core::defects::{Sabotage, is_on};
use uswap_system::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// Calls that are told at a time; each takes some microseconds.
const CALLS: usize = 64;

/// Such calls that are in the kernel.
pub struct LeftMapped {
    /// Where each moves memory from, with [`OVER`] if that has returned; 0: a free place.
    from: [AtomicUsize; CALLS],
    /// Somebody reads events, and has not asked about all of them.
    is_reading: AtomicBool,
    /// Some call found no room: any mremap may be one of these, from here on.
    untold: AtomicBool,
}

/// Of a page's address, which has no such bit.
const OVER: usize = 1;

/// A call in the kernel.
pub struct Posted<'a> {
    calls: &'a LeftMapped,
    slot: Option<&'a AtomicUsize>,
}

impl LeftMapped {
    pub(crate) const fn new() -> LeftMapped {
        LeftMapped {
            from: [const { AtomicUsize::new(0) }; CALLS],
            is_reading: AtomicBool::new(false),
            untold: AtomicBool::new(false),
        }
    }

    /// The program is about to use the flag, on memory at `from`. Never waits.
    pub fn post(&self, from: usize) -> Posted<'_> {
        let free = self.from.iter().find(|slot| slot.compare_exchange(0, from, SeqCst, Relaxed).is_ok());
        if free.is_none() {
            self.untold.store(true, SeqCst);
        }
        Posted { calls: self, slot: free }
    }

    /// With the gate shut, before events are read. Whatever has returned by now, its event was read before, and asked about.
    pub(crate) fn begins_reading(&self) {
        self.is_reading.store(true, SeqCst);
        for slot in &self.from {
            let from = slot.load(SeqCst);
            if from & OVER != 0 {
                slot.store(0, SeqCst);
            }
        }
    }

    /// All events that were read have been asked about.
    pub(crate) fn ends_reading(&self) {
        self.is_reading.store(false, SeqCst);
    }

    /// Whether the mremap of memory at `from` whose event has just been read may have left that mapped. That may be said of
    /// another call, which has returned, or is of another thread of a forked child's parent: that is one more doubt, and no
    /// mistake.
    pub(crate) fn may_be_one(&self, from: usize) -> bool {
        !is_on(Sabotage::LeftMappedUntold)
            && (self.untold.load(SeqCst) || self.from.iter().any(|slot| slot.load(SeqCst) & !OVER == from))
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let is_asked_about = !self.calls.is_reading.load(SeqCst) || is_on(Sabotage::LeftMappedForgotten);
            slot.store(if is_asked_about { 0 } else { slot.load(SeqCst) | OVER }, SeqCst);
        }
    }
}

#[cfg(all(test, uswap_words))]
mod words;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_returns_while_its_event_is_read_is_told() {
        let calls = LeftMapped::new();
        let posted = calls.post(0x1000);
        calls.begins_reading();
        drop(posted);
        assert!(calls.may_be_one(0x1000));
        calls.ends_reading();
        calls.begins_reading();
        assert!(!calls.may_be_one(0x1000));
        calls.ends_reading();
    }

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
