//! MADV_FREE before adoption.
//!
//! The kernel reports MADV_FREE of adopted memory as an event. What the program gave up before its memory was adopted is
//! found there like any other page, and the kernel may drop it at any later time without a word: then it is zeros, as the
//! program expects, and not lost. The wrapper of madvise notes that the advice is used at all; only then is the kernel
//! asked about the memory that is adopted.

use std::sync::atomic::{AtomicBool, Ordering::*};

static USED: AtomicBool = AtomicBool::new(false);

/// The program is about to give memory up with MADV_FREE.
pub fn note() {
    USED.store(true, Release);
}

pub(crate) fn is_used() -> bool {
    USED.load(Acquire)
}
