//! What an engine runs on: a system, and what a process's threads have noted.
//!
//! There is one implementation for Linux, where a process is a process. A model of Linux has several of them, each with its
//! notices.

use uswap_sys::linux::Linux;
use uswap_system::System;

use crate::notices::Notices;

/// A system that an engine runs on.
pub trait Host: System {
    /// What threads of the calling thread's process have noted.
    fn notices() -> &'static Notices<Self>;
}

static NOTICES: Notices<Linux> = Notices::new();

impl Host for Linux {
    #[inline]
    fn notices() -> &'static Notices<Linux> {
        &NOTICES
    }
}

/// What the threads of this process have noted, on Linux.
#[inline]
pub fn notices() -> &'static Notices<Linux> {
    &NOTICES
}
