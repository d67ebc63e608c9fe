//! Forking: whether the books may change at this moment, and what stands beside them while they may not.
//!
//! The window is open exactly while the phase is frozen: then its journal is written by whoever has shut the gate of
//! [`Memory`](crate::memory::Memory), and the books are read only.

use uswap_system::System;

use crate::fork_journal::Window;
use crate::host::Host;
use crate::phase::Phase;
use crate::post::Post;

/// What an engine has for forks.
pub(crate) struct Forking<H: Host> {
    pub phase: Phase<H>,
    pub window: Window<H>,
    /// What the program's threads and the monitor say to each other.
    pub post: &'static Post<H>,
}

impl<H: Host + System> Forking<H> {
    pub fn new(phase: Phase<H>, post: &'static Post<H>) -> Self {
        Forking { phase, window: Window::new(), post }
    }
}
