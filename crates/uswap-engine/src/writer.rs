//! The writer: a thread that reclaims what needs a disk.
//!
//! The monitor must see what the program fills at each moment, and a write takes milliseconds, now and then many. So it
//! never waits for one: it moves pages out and compresses them, and what belongs on an area it leaves to this thread, which
//! does whole rounds of reclaim beside it.

use uswap_sys::call::descriptors_are_scarce;

use crate::engine::Engine;
use crate::host::Host;
use crate::phase::Entry;
use crate::worker::Worker;

/// Whether a process gets a writer.
pub(crate) fn is_affordable() -> bool {
    !descriptors_are_scarce()
}

impl<H: Host> Engine<H> {
    /// The life of the writer.
    pub fn write_when_called(&self, mut worker: Worker) -> ! {
        self.writer_begins();
        loop {
            self.writer_turn(&mut worker);
        }
    }

    /// The writer has begun.
    pub fn writer_begins(&self) {
        self.staff.writer.starts();
        self.thread_begins();
    }

    /// Writes what there is to be written, and waits for a call.
    pub fn writer_turn(&self, worker: &mut Worker) {
        let heard = self.staff.writer.heard();
        while let Entry::Running(_guard) = self.enter() {
            self.content.areas.release_empty_clusters(self.books.lock(), &self.member);
            if !self.write_a_little(worker) {
                break;
            }
        }
        self.staff.writer.rests(heard);
    }

    /// One round of reclaim; whether there may be more to do.
    fn write_a_little(&self, worker: &mut Worker) -> bool {
        if self.pressure.is_hopeless() || self.pressure.is_low() {
            return false;
        }
        self.staff.writer.begins();
        let round = self.reclaim_round(worker, self.pressure.is_over_limit());
        self.pressure.freed(round.trashed);
        self.staff.writer.has_done(round.stored + round.written_back + round.trashed);
        if !round.achieved_something() {
            self.staff.writer.was_in_vain();
        }
        round.achieved_something()
    }
}
