//! MADV_FREE: pages that the kernel may drop until they are written to.
//!
//! *Before adoption.* The kernel reports MADV_FREE of adopted memory as an event. What the program gave up before its memory was
//! adopted is found there like any other page, and the kernel may drop it at any later time without a word: then it is zeros,
//! as the program expects, and not lost. The wrapper of madvise notes that the advice is used at all; only then is the kernel
//! asked about the memory that is adopted.
//!
//! *In the frame area.* A page that is still there takes its state along when it is moved out, and the kernel would drop it from
//! a frame that the engine is about to read. So it is written to at once, by a way that answers with an error where there is
//! nothing any more; from then on it stays.

use std::sync::atomic::{AtomicBool, Ordering::*};

use uswap_core::{BLOCK_PAGES, FrameBlock};
use uswap_sys::proc;

use crate::engine::Engine;

static USED: AtomicBool = AtomicBool::new(false);

/// The program is about to give memory up with MADV_FREE.
pub fn note() {
    USED.store(true, Release);
}

pub(crate) fn is_used() -> bool {
    USED.load(Acquire)
}

impl Engine {
    /// Makes the kernel keep the pages that were moved into these frames of a block; returns which are gone already.
    pub(crate) fn hold_on_to(&self, block: FrameBlock, moved: u16) -> u16 {
        if !is_used() || moved == 0 {
            return 0;
        }
        let Ok(memory) = proc::open_for_writing(c"/proc/thread-self/mem") else { return 0 };
        let mut gone = 0;
        for index in (0..BLOCK_PAGES).filter(|index| moved >> index & 1 == 1) {
            let (mut word, at) = ([0; 8], self.frame_address(block.frame(index)) as u64);
            let read = rustix::io::pread(&memory, &mut word, at);
            let is_kept = read == Ok(word.len()) && rustix::io::pwrite(&memory, &word, at) == Ok(word.len());
            gone |= u16::from(!is_kept) << index;
        }
        gone
    }
}
