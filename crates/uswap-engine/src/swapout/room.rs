//! Room for faults: who takes more memory near the limit reclaims, calls for the monitor, or waits.

use std::time::Instant;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::{PageNumber, PageState, tuning};

use crate::engine::Engine;
use crate::giving_way::Asking;
use crate::group::Counter;
use crate::host::Host;
use crate::pending_fault::PendingFault;
use crate::worker::Worker;

impl<H: Host> Engine<H> {
    /// Before a thread's fault takes more memory: past the limit, the thread waits until some is stored.
    ///
    /// For the writer those that were read together wait no longer than one.
    pub(crate) fn wait_for_room(&self, fault: &PendingFault, worker: &mut Worker) {
        if is_on(Sabotage::BudgetNotKept)
            || is_on(Sabotage::CopiedWithoutRoom) && fault.protected
            || !self.pressure.is_over_limit()
            || self.pressure.is_hopeless()
            || !(fault.protected || self.takes_memory(fault.page))
        {
            return;
        }
        self.count(Counter::Allocstall, 1);
        let mut waits = 0;
        let (mut asking, begun) = (Asking::new(&H::notices().giving_way), H::now());
        while self.pressure.is_over_limit() {
            // Nothing can be moved out while the program changes its memory. Else it is left alone: it may be giving memory back.
            if self.memory.uffd.is_changing() {
                asking.for_fault_of(begun);
            }
            if self.reclaim_a_little(worker, true) {
                continue;
            }
            // Only the monitor adopts memory and ends the sharing of a fork. If it cannot either, the program goes on:
            // over its budget is better than not at all.
            if self.pressure.is_fruitless() || self.pressure.is_hopeless() {
                // Others may let go of what is in common meanwhile: not at the speed of memory.
                if fault.protected {
                    H::sleep(tuning::COPY_REST);
                }
                return;
            }
            if waits < tuning::STALL_WAITS && H::since(begun) < tuning::STALL {
                waits += 1;
                self.forking.post.ring();
                crate::pause::pause::<H>();
            } else if self.has_writer_to_wait_for(fault.since) {
                H::sleep(tuning::WRITER_LOOK);
            } else {
                return;
            }
        }
    }

    /// What comes back from its frame, or has come back, takes none.
    fn takes_memory(&self, page: PageNumber) -> bool {
        !matches!(self.core().pages().get(page), Some(PageState::InFrame { .. } | PageState::Resident { .. }))
    }

    /// Whether a fault that was read at `since` goes on waiting, for a write. Not while an event or a fork needs the handler.
    fn has_writer_to_wait_for(&self, since: Instant) -> bool {
        self.staff.writer.is_getting_on()
            && H::since(since) < tuning::WRITER_AWAITED
            && !self.memory.uffd.is_changing()
            && !self.forking.post.fork.is_requested()
    }

    /// After a fault has been served: near the limit the monitor is called, which reclaims while the program goes on; where
    /// it does not keep up, more leaves here than came. Other faults that the handler has read wait meanwhile, so it does
    /// not go on for long.
    pub(crate) fn keep_room(&self, worker: &mut Worker) {
        if self.pressure.is_hopeless() || is_on(Sabotage::BudgetNotKept) {
            return;
        }
        if self.pressure.needs_monitor() {
            self.forking.post.ring();
        }
        for _ in 0..tuning::ROUNDS_AFTER_FAULT {
            if !self.pressure.needs_handlers() || !self.reclaim_a_little(worker, false) {
                return;
            }
        }
    }

    /// A handler's round of reclaim; whether it achieved something.
    fn reclaim_a_little(&self, worker: &mut Worker, urgent: bool) -> bool {
        let round = self.reclaim_round(worker, urgent);
        self.pressure.freed(round.trashed);
        round.achieved_something()
    }
}
