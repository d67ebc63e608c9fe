//! Help for the monitor: past the limit, handlers reclaim as well.
//!
//! A program that fills memory which is not adopted yet takes no faults, so nothing makes it wait for room. Where it fills
//! as fast as one thread reclaims, only more threads bring it back below its limit: they reclaim, and they leave it less
//! of the CPU.

use uswap_system::faults::Call as _;

use crate::engine::Engine;
use crate::host::Host;
use crate::phase::Entry;
use crate::worker::Worker;

impl<H: Host> Engine<H> {
    /// A handler that was called: one round, so that faults wait no longer than that takes.
    pub(crate) fn assist(&self, worker: &mut Worker) {
        let helped = match self.enter() {
            Entry::Running(_guard) if self.pressure.is_over_limit() && !self.pressure.is_hopeless() => {
                let round = self.reclaim_round(worker, true);
                self.pressure.freed(round.trashed);
                // What a fork shares, only the monitor can move.
                round.busy == 0 && round.achieved_something()
            }
            Entry::Running(_) | Entry::Frozen => false,
        };
        if !helped {
            self.pressure.call.end();
        }
    }
}
