//! MADV_FREE: pages that the kernel may drop until they are written to.
//!
//! *Before adoption.* The kernel reports MADV_FREE of adopted memory as an event. What the program gave up before its memory was
//! adopted is found there like any other page, and the kernel may drop it at any later time without a word: then it is zeros,
//! as the program expects, and not lost. The wrapper of madvise notes that the advice is used at all; only then is the kernel
//! asked about the memory that is adopted.
//!
//! *In the frame area.* A page that is still there takes its state along when it is moved out, and the kernel would drop it from
//! a frame that the engine is about to read. So it is written to at once, by a way that answers with an error where there is
//! nothing any more; from then on it stays. A process that has changed its user has no such way. There what is gone becomes zeros
//! first, as it would read, so that the way that is left waits only for what goes at that very moment.

use uswap_core::FrameBlock;
use uswap_core::defects::{Sabotage, is_on};
use uswap_sys::linux::Linux;

use crate::engine::Engine;
use crate::host::Host;

/// The program is about to give memory up with MADV_FREE.
pub fn note() {
    Linux::notices().lazy_free.note();
}

impl<H: Host> Engine<H> {
    /// Makes the kernel keep the pages that were moved into these frames of a block; returns which are gone already.
    pub(crate) fn hold_on_to(&self, block: FrameBlock, moved: u16) -> u16 {
        if !H::notices().lazy_free.is_noted() || moved == 0 || is_on(Sabotage::LazyFreeNotNoted) {
            return 0;
        }
        self.memory.hold_on_to(block, moved)
    }
}
