//! A system on which an engine gets threads beside the monitor: handlers, readers ahead, the writer.

use std::io;

use crate::engine::Engine;
use crate::group::Compressor;
use crate::host::Host;

/// A system that makes an engine's threads.
pub trait Staffed: Host {
    /// How they are made.
    type Threads: Threads<Self>;
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
