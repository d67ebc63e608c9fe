//! What an engine runs on: a system, what a process's threads have noted, and threads of its own.
//!
//! There is one implementation for Linux, where a process is a process. A model of Linux has several of them, each with its
//! notices.

use std::io;

use uswap_sys::linux::Linux;
use uswap_system::System;

use crate::engine::Engine;
use crate::engine_threads::EngineThreads;
use crate::group::Compressor;
use crate::notices::Notices;

/// A system that an engine runs on.
pub trait Host: System {
    /// How the engine's threads beside the monitor are made.
    type Threads: Threads<Self>;

    /// What threads of the calling thread's process have noted.
    fn notices() -> &'static Notices<Self>;
}

/// The engine's threads beside the monitor: handlers, readers ahead, the writer.
pub trait Threads<H: Host>: Sized {
    /// Makes at least one handler, which waits for its engine; it ends when this is dropped. Where no thread can be made,
    /// nothing has happened yet that could not be undone.
    ///
    /// # Errors
    /// There is no memory for it, or no thread.
    fn prepare(compressor: Compressor) -> io::Result<Self>;

    /// The engine has come: the handler begins, and the others are started, as far as they can be. Returns their ids when each
    /// has begun ([`Engine::thread_begins`]).
    fn begin(self, engine: &'static Engine<H>) -> Vec<u32>;
}

static NOTICES: Notices<Linux> = Notices::new();

impl Host for Linux {
    type Threads = EngineThreads;

    #[inline]
    fn notices() -> &'static Notices<Linux> {
        &NOTICES
    }
}
