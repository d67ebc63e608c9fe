//! MREMAP_DONTUNMAP (Linux 5.7): what is moved away leaves its old range mapped, and sends no event of its unmapping.
//!
//! Which mremap does so, its event does not say. The wrapper of mremap posts where such a call moves memory from, for as long
//! as that is in the kernel. Its event is read before it returns, so whoever reads that finds the posting.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// Calls that are told at a time; each takes some microseconds.
const CALLS: usize = 64;

static FROM: [AtomicUsize; CALLS] = [const { AtomicUsize::new(0) }; CALLS];
/// Some call found no room: any mremap may be one of these, from here on.
static UNTOLD: AtomicBool = AtomicBool::new(false);

/// A call in the kernel.
pub struct Posted(Option<&'static AtomicUsize>);

/// The program is about to use the flag, on memory at `from`. Never waits.
pub fn post(from: usize) -> Posted {
    let free = FROM.iter().find(|slot| slot.compare_exchange(0, from, SeqCst, Relaxed).is_ok());
    if free.is_none() {
        UNTOLD.store(true, SeqCst);
    }
    Posted(free)
}

impl Drop for Posted {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(0, SeqCst);
        }
    }
}

/// Whether the mremap of memory at `from` whose event has just been read may have left that mapped. In a forked child that may be
/// said of a call of another thread of its parent: that is one more doubt, and no mistake.
pub(crate) fn may_be_one(from: usize) -> bool {
    UNTOLD.load(SeqCst) || FROM.iter().any(|slot| slot.load(SeqCst) == from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_as_long_as_it_is_in_the_kernel() {
        assert!(!may_be_one(0x1000));
        let posted = post(0x1000);
        assert!(may_be_one(0x1000) && !may_be_one(0x2000));
        drop(posted);
        assert!(!may_be_one(0x1000));
        let all: Vec<Posted> = (0..=CALLS).map(|call| post((call + 1) << 12)).collect();
        drop(all);
        // One of them found no room.
        assert!(may_be_one(0x7000));
    }
}
