//! Onlookers: who reads the frame area from outside, as a debugger does that reads all mappings of a process.
//!
//! A frame without memory behind it is missing, and who reads it there (process_vm_readv(2), or a thread of the program by
//! a stray pointer) waits for a message to be answered. It gets zeros: a frame that is free. A thread of the engine never
//! reads such a frame; if one does, content is lost, and an answer would hide that.

use uswap_core::{FrameId, Onlooked, PAGE_SIZE, PageNumber};
use uswap_system::faults::{Stop, Wake};

use crate::engine::Engine;
use crate::handler::Served;
use crate::host::Host;

impl<H: Host> Engine<H> {
    /// Whether `page` lies in the frame area.
    pub(crate) fn is_frame(&self, page: PageNumber) -> bool {
        (self.frames.start()..self.frames.end()).contains(&page.address())
    }

    /// Serves a fault in memory of the engine, at which `thread` waits. The gate is held.
    pub(crate) fn serve_onlooker(&self, page: PageNumber, thread: Option<u32>) -> Served {
        let address = page.address();
        if !self.is_frame(page) || thread.is_none_or(H::is_thread_of_engine) {
            // An answer would hide that a thread of ours read memory that is not there.
            self.fatal(format_args!("uswap: fault in memory of the engine at {address:#x}"));
        }
        let frame = FrameId(((address - self.frames.start()) / PAGE_SIZE) as u32);
        // No other thread may take the block meanwhile; a page is quickly filled.
        let mut core = self.core();
        match core.onlooked(frame) {
            Onlooked::InMotion => return Served::AfterEvents,
            Onlooked::Populated if self.is_populated(page) => {}
            Onlooked::Populated => {
                drop(core);
                self.fatal(format_args!("uswap: a frame of the engine is missing at {address:#x}"));
            }
            Onlooked::Empty => match self.uffd.copy(address, self.zeros.as_ptr(), PAGE_SIZE, Wake::DontWake).stop {
                None => core.filled_for_onlooker(frame),
                Some(Stop::TryLater | Stop::NoMemory) => return Served::AfterEvents,
                Some(stop) => {
                    drop(core);
                    self.fatal(format_args!("uswap: an empty frame at {address:#x} cannot be filled: {stop:?}"));
                }
            },
        }
        drop(core);
        self.wake(page, 1);
        Served::Done
    }
}
