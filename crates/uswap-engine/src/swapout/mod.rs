//! Swap-out: pages leave the program in blocks, rest in the swap cache, and are stored.
//!
//! A move takes a page in one atomic step: from then on its content is stable, and a touch finds it in its frame. It is
//! then found to be zeros, or equal to a copy that is still on an area, or compressed into the pool, or written to an
//! area. Its frame is free only when the new copy is complete; a failed write leaves the page in memory.

mod all_full;
mod moving;
mod room;
mod storing;
mod writeback;

use std::sync::atomic::Ordering::Relaxed;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::reclaim::Isolated;
use uswap_core::{BLOCK_PAGES, PageNumber, tuning};

use crate::engine::{BATCH, Engine};
use crate::group::Counter;
use crate::host::Host;
use crate::pending_fault::PendingFault;
use crate::worker::Worker;

/// What a round of reclaim achieved, in pages.
#[derive(Default, Clone, Copy)]
pub(crate) struct Round {
    /// Moved out of the program.
    pub moved: u64,
    /// Could not be moved: shared after a fork, or pinned.
    pub busy: u64,
    /// Stored, their frames free.
    pub stored: u64,
    /// Written from the pool to an area.
    pub written_back: u64,
    /// Memory given back to the kernel.
    pub trashed: u64,
}

/// What became of the oldest block.
enum Oldest {
    /// There is none, or no frames for it.
    None,
    /// It stays: the kernel has swapped out all of it.
    KernelSwapped,
    /// It stays: others have all of it.
    InCommon,
    /// So many of its pages have left, and so many could not.
    Moved { moved: u64, busy: u64 },
}

impl Round {
    /// Whether it brought the budget nearer.
    pub fn achieved_something(&self) -> bool {
        self.moved + self.stored + self.written_back + self.trashed > 0
    }
}

impl<H: Host> Engine<H> {
    /// Lists of the books that grow by doubling may want more at once than is set aside, so they grow before they must, and
    /// where that is refused nothing leaves the program.
    fn books_have_room(&self) -> bool {
        H::may_fail(|| self.core().make_room())
    }

    /// One round of reclaim: moves some pages out, stores as many, gives back what is free. `urgent`: the swap cache is
    /// not kept filled.
    pub(crate) fn reclaim_round(&self, worker: &mut Worker, urgent: bool) -> Round {
        let mut round = Round::default();
        if self.is_out_of_memory() || !self.books_have_room() {
            round.trashed = self.trash_free_frames(self.pressure.kept.reserve.load(Relaxed));
            self.pressure.lose_hope();
            return round;
        }
        self.settle_what_is_held();
        round.written_back = self.shrink_pool(worker);
        let keep = if urgent { 0 } else { self.pressure.kept.inactive.load(Relaxed) };
        // The writer has enough to do: more pages in the swap cache would only be missed.
        let waits = !worker.reclaiming.writes
            && tuning::writer_has_enough(u64::from(self.core().swap_cache().cached_frames()), keep);
        for _ in 0..if waits { 0 } else { BATCH / BLOCK_PAGES } {
            let Some((moved, busy)) = self.move_out(worker) else { break };
            round.moved += moved;
            round.busy += busy;
        }
        let cached = u64::from(self.core().swap_cache().cached_frames());
        if cached > keep || round.moved == 0 {
            round.stored = self.store_some(worker, BATCH);
        }
        let reserve = self.pressure.kept.reserve.load(Relaxed);
        let free = u64::from(self.core().swap_cache().free_frames());
        if tuning::gives_frames_back(free, reserve, urgent) {
            round.trashed = self.trash_free_frames(reserve);
        }
        round
    }

    /// Moves the oldest block that takes memory out of the program; `None` when there is none. Returns moved and busy pages.
    fn move_out(&self, worker: &mut Worker) -> Option<(u64, u64)> {
        let (mut swapped, mut in_common) = (0, 0);
        while swapped < tuning::SWAPPED_BLOCKS_MAX && in_common < tuning::IN_COMMON_BLOCKS_MAX {
            match self.move_oldest_out(worker) {
                Oldest::None => return None,
                Oldest::KernelSwapped => swapped += 1,
                Oldest::InCommon => in_common += 1,
                Oldest::Moved { moved, busy } => return Some((moved, busy)),
            }
        }
        Some((0, 0))
    }

    fn move_oldest_out(&self, worker: &mut Worker) -> Oldest {
        let gate = (!is_on(Sabotage::MoveOutWithoutGate)).then(|| self.memory.gate.pass());
        let isolation = self.core().isolate();
        let Some(isolation) = isolation else { return Oldest::None };
        // What the kernel has swapped out takes no memory: moved out, it would be read, and stored a second time.
        let swapped = self.kernel_swapped(isolation.first);
        let (mut outcome, busy) = self.move_block(isolation, swapped);
        outcome.kernel_swapped = swapped & outcome.refused;
        if isolation.is_lazy {
            let gone = self.hold_on_to(isolation.frames, outcome.moved);
            outcome.moved &= !gone;
            outcome.missing |= gone & isolation.mask;
        }
        for index in (0..BLOCK_PAGES).filter(|index| H::PAGES_ARE_GIVEN_UP && outcome.missing >> index & 1 == 1) {
            self.core().given_up_lazily(isolation.first.plus(index as u64).alone());
        }
        let Isolated { wanted, lost, is_put_aside } = self.core().isolated(isolation, outcome);
        // Of what has been told since it was looked up.
        let wanted = wanted | (outcome.moved & moving::must_stay::<H>(isolation.first));
        for index in (0..BLOCK_PAGES).filter(|index| lost >> index & 1 == 1) {
            self.page_is_missing(isolation.first.plus(index as u64));
        }
        drop(gate);
        self.take_and_release(worker);
        for index in (0..BLOCK_PAGES).filter(|index| wanted >> index & 1 == 1) {
            self.serve_wanted(isolation.first.plus(index as u64), worker);
        }
        let moved = u64::from(outcome.moved.count_ones());
        self.count(Counter::Pgscan, u64::from(isolation.mask.count_ones()));
        self.count(Counter::MoveBusy, busy);
        if busy > 0 && worker.reclaiming.collects_busy {
            let refused = (0..BLOCK_PAGES).filter(|index| outcome.refused >> index & 1 == 1);
            worker.reclaiming.busy.extend(refused.map(|index| isolation.first.plus(index as u64)));
        } else if busy > 0 {
            self.core().note_refused(isolation.first, outcome.refused);
        }
        match isolation.mask & !swapped {
            0 => Oldest::KernelSwapped,
            _ if is_put_aside => Oldest::InCommon,
            _ => Oldest::Moved { moved, busy },
        }
    }

    /// A page that a thread waits for is in the swap cache: brings it back. A handler does so itself; elsewhere an
    /// unread event may stand in the way, and then the thread is woken to fault again.
    pub(crate) fn serve_wanted(&self, page: PageNumber, worker: &mut Worker) {
        if self.serve(&PendingFault::wanted::<H>(page), worker) != crate::pending_fault::Served::Done {
            self.memory.wake(page, 1);
        }
    }

    pub(crate) fn take_and_release(&self, worker: &mut Worker) {
        self.core().take_released(&mut worker.released);
        self.content.release(&mut worker.released);
    }
}
