//! Onlookers: who reads the frame area from outside, as a debugger does that reads all mappings of a process.
//!
//! A frame without memory behind it is missing, and who reads it there (process_vm_readv(2), or a thread of the program by
//! a stray pointer) waits for a message to be answered. It gets zeros: a frame that is free. A thread of the engine never
//! reads such a frame; if one does, content is lost, and an answer would hide that.

use uswap_core::{Onlooked, PAGE_SIZE, PageNumber};
use uswap_system::faults::{Stop, Wake};

use crate::engine::Engine;
use crate::host::Host;
use crate::pending_fault::Served;

impl<H: Host> Engine<H> {
    /// Serves a fault in memory of the engine, at which `thread` waits. The gate is held.
    pub(crate) fn serve_onlooker(&self, page: PageNumber, thread: Option<u32>) -> Served {
        let address = page.address();
        let frame = self.memory.frame_at(page).filter(|_| thread.is_some_and(|thread| !H::is_thread_of_engine(thread)));
        let Some(frame) = frame else {
            // An answer would hide that a thread of ours read memory that is not there.
            self.fatal(format_args!("uswap: fault in memory of the engine at {address:#x}"));
        };
        // No other thread may take the block meanwhile; a page is quickly filled.
        let mut core = self.core();
        match core.onlooked(frame) {
            Onlooked::InMotion => return Served::AfterEvents,
            Onlooked::Populated if self.memory.is_populated(page) => {}
            Onlooked::Populated => {
                drop(core);
                self.fatal(format_args!("uswap: a frame of the engine is missing at {address:#x}"));
            }
            Onlooked::Empty => match self.memory.copy(address, self.memory.zeros(), PAGE_SIZE, Wake::DontWake).stop {
                None => core.filled_for_onlooker(frame),
                Some(Stop::TryLater | Stop::NoMemory) => return Served::AfterEvents,
                Some(stop) => {
                    drop(core);
                    self.fatal(format_args!("uswap: an empty frame at {address:#x} cannot be filled: {stop:?}"));
                }
            },
        }
        drop(core);
        self.memory.wake(page, 1);
        Served::Done
    }
}
