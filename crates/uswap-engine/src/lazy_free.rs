//! MADV_FREE: pages that the kernel may drop until they are written to.
//!
//! *Before adoption.* The kernel reports MADV_FREE of adopted memory as an event. What the program gave up before its memory was
//! adopted is found there like any other page, and the kernel may drop it at any later time without a word: then it is zeros,
//! as the program expects, and not lost. The wrapper of madvise notes that the advice is used at all; only then is the kernel
//! asked about the memory that is adopted.
//!
//! *In the frame area.* A page that is still there takes its state along when it is moved out, and the kernel would drop it from
//! a frame that the engine is about to read. So it is written to at once, by a call that answers with an error where there is
//! nothing any more, and waits for nobody; from then on it stays. A process that has changed its user cannot look whether it was there:
//! what seems gone becomes zeros, as it would read.

use std::io;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::{FrameBlock, PageRange, tuning};
use uswap_sys::linux::Linux;

use crate::engine::Engine;
use crate::host::Host;
use crate::smaps;

/// The program is about to give memory up with MADV_FREE.
pub fn note() {
    Linux::notices().uses.lazy_free.note();
}

/// Mappings of which pages were given up.
fn given_up<H: Host>() -> io::Result<Vec<PageRange>> {
    let mappings = smaps::mappings::<H>()?;
    Ok(mappings.iter().filter(|mapping| mapping.lazily_freed).map(|mapping| mapping.range).collect())
}

impl<H: Host> Engine<H> {
    /// Of `fresh`, which has been adopted since the books had seen so many `moves`, the program may have given pages up before. After
    /// the registration: what it gives up from there on is reported.
    pub(crate) fn note_lazily_freed(&self, fresh: &[(usize, usize)], moves: u64) {
        if fresh.is_empty() || !H::notices().uses.lazy_free.is_noted() {
            return;
        }
        for tries in 1.. {
            let before = self.core().moves();
            let given_up = given_up::<H>();
            // Until it is noted: then it goes along with what is moved.
            let gate = self.memory.gate.pass();
            let is_still = self.has_not_moved_since(before);
            if is_still || tries == tuning::VERIFY_TRIES {
                // Also where the books have let go of it: what the kernel has registered there may come back to them.
                let mut places: Vec<PageRange> =
                    fresh.iter().map(|&(start, end)| PageRange::of_bytes(start, end)).collect();
                if !is_still || before != moves {
                    // Some of it may be where it has been moved to.
                    places.extend(self.core().pages().adopted_ranges());
                }
                // Where the kernel does not tell, it may be any page.
                let given_up = given_up.ok().filter(|_| is_still).unwrap_or_else(|| vec![PageRange::ALL]);
                for range in places {
                    given_up.iter().for_each(|&part| self.core().given_up_lazily(range.intersection(part)));
                }
                return;
            }
            drop(gate);
            self.pause_and_settle();
        }
    }

    /// Makes the kernel keep the pages that were moved into these frames of a block; returns which are gone already.
    pub(crate) fn hold_on_to(&self, block: FrameBlock, moved: u16) -> u16 {
        if !H::notices().uses.lazy_free.is_noted() || moved == 0 || is_on(Sabotage::LazyFreeNotNoted) {
            return 0;
        }
        self.memory.hold_on_to(block, moved)
    }
}
