//! An engine's words on shuttle's threads: see `uswap_system::words`. The tests are beside what they test (`words.rs` there).

use std::io;

use uswap_system::words::{NoSystem, Shuttle};

use crate::engine::Engine;
use crate::group::Compressor;
use crate::host::{Host, Threads};
use crate::notices::Notices;

static NOTICES: Notices<Shuttle> = Notices::new();

impl Host for Shuttle {
    type Threads = NoThreads;

    fn notices() -> &'static Notices<Shuttle> {
        &NOTICES
    }
}

/// No engine is ever started.
pub struct NoThreads(NoSystem);

impl Threads<Shuttle> for NoThreads {
    fn prepare(_: Compressor) -> io::Result<Self> {
        panic!("there is no engine")
    }

    fn begin(self, _: &'static Engine<Shuttle>) -> Vec<u32> {
        match self.0 {}
    }
}
