//! MREMAP_DONTUNMAP (Linux 5.7): what is moved away leaves its old range mapped, and sends no event of its unmapping.
//!
//! Which mremap does so, its event does not say. The wrapper of mremap notes the use, and no unmapping is expected any more.

use std::sync::atomic::{AtomicBool, Ordering::*};

static USED: AtomicBool = AtomicBool::new(false);

/// The program is about to use the flag.
pub fn note() {
    USED.store(true, Release);
}

pub(crate) fn is_used() -> bool {
    USED.load(Acquire)
}
