//! Swap-out: pages leave the program in blocks, rest in the swap cache, and are stored.
//!
//! A move takes a page in one atomic step: from then on its content is stable, and a touch finds it in its frame. It is
//! then found to be zeros, or equal to a copy that is still on an area, or compressed into the pool, or written to an
//! area. Its frame is free only when the new copy is complete; a failed write leaves the page in memory.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use uswap_core::reclaim::{Isolated, IsolationOutcome};
use uswap_core::sabotage::{Sabotage, is_on};
use uswap_core::tuning;
use uswap_core::{
    AreaId, BLOCK_PAGES, FrameBlock, Isolation, PAGE_SIZE, PageNumber, PageState, StoreJob, StoreResult, Stored,
    WritebackJob,
};
use uswap_sys::private_memory;
use uswap_system::faults::{Holes, Stop, Wake};
use uswap_system::looks::Residency;
use xxhash_rust::xxh3::xxh3_128;

use crate::engine::{BATCH, Engine};
use crate::giving_way::Asking;
use crate::group::{Compressor, Counter};
use crate::host::Host;
use crate::ledger::heirs_hold;
use crate::memory::BLOCK_BYTES;
use crate::page_io::SlotPage;
use crate::pending_fault::PendingFault;
use crate::store::IoOutcome;
use crate::worker::{PendingStore, Worker};

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
    /// Before a thread's fault takes more memory: past the limit, the thread waits until some is stored.
    ///
    /// For the writer those that were read together wait no longer than one.
    pub(crate) fn wait_for_room(&self, fault: &PendingFault, worker: &mut Worker) {
        if !self.pressure.is_over_limit() || self.pressure.is_hopeless() || !self.takes_memory(fault.page) {
            return;
        }
        self.count(Counter::Allocstall, 1);
        let mut waits = 0;
        let (mut asking, begun) = (Asking::<H>::new(), H::now());
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
                return;
            }
            if waits < tuning::STALL_WAITS {
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
        if self.pressure.is_hopeless() {
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

    /// Lists of the books that grow by doubling may want more at once than is set aside, so they grow before they must, and
    /// where that is refused nothing leaves the program.
    fn books_have_room(&self) -> bool {
        H::may_fail(|| self.core().make_room())
    }

    /// Nothing could be stored: the pool's address space and all areas are full, or fail. Says so once; for a while
    /// nobody waits for memory.
    fn give_up_for_a_while(&self) {
        self.pressure.lose_hope();
        if self.content.areas.have_complained() {
            return;
        }
        self.count(Counter::NoSpace, 1);
        if self.pressure.say_full() {
            self.member
                .alarm(format_args!("uswap: swap space is full; process {} goes beyond its budget", H::process_id()));
        }
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
        for _ in 0..tuning::SWAPPED_BLOCKS_MAX {
            match self.move_oldest_out(worker) {
                Oldest::None => return None,
                Oldest::KernelSwapped => {}
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
        if isolation.is_lazy {
            let gone = self.hold_on_to(isolation.frames, outcome.moved);
            outcome.moved &= !gone;
            outcome.missing |= gone & isolation.mask;
        }
        let Isolated { wanted, lost } = self.core().isolated(isolation, outcome);
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
        }
        if isolation.mask & !swapped == 0 { Oldest::KernelSwapped } else { Oldest::Moved { moved, busy } }
    }

    /// Moves the pages of an isolation, as many as possible with one call, because each call makes every other CPU that
    /// runs the process drop its TLB: gaps between resident pages are run across. Not those of `kept`.
    fn move_block(&self, isolation: Isolation, kept: u16) -> (IsolationOutcome, u64) {
        let Isolation { first, mask, gaps, frames, .. } = isolation;
        let mut outcome = IsolationOutcome::default();
        let mut busy = 0;
        let address = first.address();
        if private_memory::overlaps(address, address + BLOCK_BYTES) {
            outcome.refused = mask;
            return (outcome, busy);
        }
        let kept = kept | H::notices().control_blocks.kept(first, BLOCK_PAGES);
        let (mask, gaps) = (mask & !kept, gaps & !kept);
        // Pages that a call ran over, moved or found missing.
        let mut passed = 0u16;
        let mut index = 0;
        let mut moved = 0u16;
        // Where nobody can tell what has become of the pages of a run, they go one by one.
        let one_by_one = !self.memory.pagemap.is_exact();
        let holes = if one_by_one { Holes::Refuse } else { Holes::Allow };
        let mut single = one_by_one;
        let mut executable = None;
        while index < BLOCK_PAGES {
            if mask >> index & 1 == 0 {
                index += 1;
                continue;
            }
            let across = ((mask | gaps) >> index).trailing_ones();
            let ahead = mask >> index & ((1u32 << across) - 1) as u16;
            let run = if single { 1 } else { BLOCK_PAGES - ahead.leading_zeros() as usize };
            let target = self.memory.frame_address(frames.frame(index));
            let source = first.plus(index as u64).address();
            let progress = self.memory.uffd.move_pages(target, source, run * PAGE_SIZE, holes, Wake::DontWake);
            let done = progress.bytes / PAGE_SIZE;
            let counted = (((1u32 << done) - 1) as u16) << index;
            match holes {
                Holes::Allow => passed |= counted,
                Holes::Refuse => moved |= counted,
            }
            index += done;
            let Some(stop) = progress.stop else { continue };
            match stop {
                Stop::Busy => busy += u64::from(mask >> index & 1),
                // The run crosses from one mapping to another, or is not as the frames' mapping is.
                Stop::Invalid if run > 1 && !single => {
                    single = true;
                    continue;
                }
                // Pages move only between mappings of the same protection. That of the program's may be executable.
                Stop::Invalid if executable.is_none() => {
                    executable = Some(self.let_frames_execute(frames, true));
                    single = one_by_one || executable != Some(true);
                    continue;
                }
                // AlreadyThere: moved by the call before and not counted; looked at below. Fault: a marker without content,
                // see `presence`.
                Stop::Invalid | Stop::Missing | Stop::AlreadyThere | Stop::Fault => {}
                Stop::TryLater | Stop::NoMemory | Stop::ProcessGone => break,
                Stop::Other(_) => self.fatal(format_args!(
                    "uswap: page {:#x} cannot be moved out: {stop:?}",
                    first.plus(index as u64).address()
                )),
            }
            index += 1;
        }
        if executable == Some(true) && !self.let_frames_execute(frames, false) {
            self.fatal(format_args!("uswap: frames cannot be made as they were"));
        }
        // What is in the frames tells what was moved.
        let there = if one_by_one { moved } else { self.memory.populated(frames) };
        if there & !(mask | gaps) != 0 {
            self.fatal(format_args!("uswap: pages beside those at {address:#x} were moved out"));
        }
        outcome.moved = if is_on(Sabotage::RefusedIsMoved) { mask } else { there };
        // Whatever the kernel counted as passed, a page that is where it was has stayed there.
        let left = passed & mask & !there;
        let gone = |index: &usize| left >> index & 1 == 1 && !self.memory.is_populated(first.plus(*index as u64));
        outcome.missing = (0..BLOCK_PAGES).filter(gone).fold(0, |gone, index| gone | 1 << index);
        outcome.refused = isolation.mask & !there & !outcome.missing;
        (outcome, busy)
    }

    /// Whether the frames of a block now are executable, or now are not. What is in them leaves by a copy, or to where
    /// only the others' protection is.
    fn let_frames_execute(&self, block: FrameBlock, may_execute: bool) -> bool {
        let start = self.memory.frame_address(block.frame(0));
        H::let_execute(start, BLOCK_BYTES, may_execute)
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

    /// Whether the next stores are the writer's, who is called then.
    fn leaves_stores(&self, worker: &mut Worker) -> bool {
        if worker.reclaiming.writes {
            return false;
        }
        let leaves = worker.reclaiming.leaves_stores > 0
            || worker.reclaiming.pool_gate.is_full() && self.content.areas.any_open();
        worker.reclaiming.leaves_stores = worker.reclaiming.leaves_stores.saturating_sub(1);
        // Where nothing waits to be stored, a call would only pass for progress to come.
        if leaves && self.core().swap_cache().cached_frames() > 0 {
            self.staff.writer.call();
        }
        leaves
    }

    /// Stores up to `max` of the oldest cached pages; returns how many frames became free.
    pub(crate) fn store_some(&self, worker: &mut Worker, max: usize) -> u64 {
        if self.leaves_stores(worker) {
            return 0;
        }
        let mut stores = std::mem::take(&mut worker.reclaiming.stores);
        {
            let mut core = self.core();
            while stores.len() < max.min(BATCH) {
                let Some(job) = core.next_store() else { break };
                stores.push(PendingStore { job, result: None, hash: 0 });
            }
        }
        for store in &mut stores {
            self.store_in_memory(store, worker);
        }
        if stores.iter().any(|store| store.result.is_none()) {
            if worker.reclaiming.writes {
                self.store_elsewhere(&mut stores, worker);
            } else {
                self.leave_to_writer(&mut stores, worker);
            }
        }
        let mut done = 0;
        let mut core = self.core();
        for store in stores.drain(..) {
            let result = store.result.expect("each store has come to an end");
            match core.stored(store.job, result) {
                Stored::Done => {
                    done += 1;
                    self.count_store(result);
                }
                Stored::Kept => {}
                Stored::Wanted(page) => worker.reclaiming.wanted.push(page),
            }
        }
        core.take_released(&mut worker.released);
        drop(core);
        if worker.reclaiming.writes {
            self.content.areas.release_empty_clusters(self.books.lock(), &self.member);
        }
        self.content.release(&mut worker.released);
        worker.reclaiming.stores = stores;
        while let Some(page) = worker.reclaiming.wanted.pop() {
            self.serve_wanted(page, worker);
        }
        done
    }

    /// Writes to areas what found no place in memory.
    fn store_elsewhere(&self, stores: &mut [PendingStore], worker: &mut Worker) {
        self.store_on_areas(stores, worker);
        // What no area took goes to the pool after all, even beyond its limit: half a page in memory is less than one.
        for store in stores.iter_mut().filter(|store| store.result == Some(StoreResult::Failed)) {
            if let Some(result) = self.compress_into_pool(store.job, store.hash, worker) {
                store.result = Some(result);
            }
        }
        if stores.iter().all(|store| store.result == Some(StoreResult::Failed)) {
            self.give_up_for_a_while();
        }
    }

    /// What found no place in memory stays in the swap cache for the writer.
    fn leave_to_writer(&self, stores: &mut [PendingStore], worker: &mut Worker) {
        let mut left = 0;
        for store in stores.iter_mut().filter(|store| store.result.is_none()) {
            store.result = Some(StoreResult::Failed);
            left += 1;
        }
        if left * 2 > stores.len() {
            worker.reclaiming.leaves_stores = tuning::ROUNDS_LEFT;
        }
        self.staff.writer.call();
    }

    fn count_store(&self, result: StoreResult) {
        match result {
            StoreResult::Zero => self.count(Counter::SwpoutZero, 1),
            StoreResult::Clean => self.count(Counter::CleanDropped, 1),
            StoreResult::Pool { .. } => {
                self.count(Counter::Zswpout, 1);
                self.count(Counter::Pswpout, 1);
            }
            StoreResult::Slot { .. } => self.count(Counter::Pswpout, 1),
            StoreResult::Failed => {}
        }
        self.count(Counter::Pgsteal, 1);
    }

    /// Finds out whether the page needs a place at all, and compresses it into the pool if that takes pages.
    fn store_in_memory(&self, store: &mut PendingStore, worker: &mut Worker) {
        // SAFETY: the job made the frame's state `Writing`: populated, and nobody moves or writes it until `stored`.
        let page = unsafe { self.memory.frame_page(store.job.frame) };
        if is_zero(page) || is_on(Sabotage::NearlyZeroIsZero) && page[PAGE_SIZE - 8..] == [0; 8] {
            store.result = Some(StoreResult::Zero);
            return;
        }
        store.hash = xxh3_128(page);
        let is_clean =
            store.job.clean_hash == Some(store.hash) || is_on(Sabotage::DirtyIsClean) && store.job.clean_hash.is_some();
        if is_clean && (!store.job.wanted_soon || worker.reclaiming.pool_gate.is_full()) {
            store.result = Some(StoreResult::Clean);
            return;
        }
        if worker.reclaiming.pool_gate.is_full() && self.content.areas.any_open() {
            self.count(Counter::PoolLimitHit, 1);
            return;
        }
        store.result = self.compress_into_pool(store.job, store.hash, worker);
        if store.result.is_none() && self.member.group.config().compressor != Compressor::None {
            self.count(Counter::RejectCompressPoor, 1);
        }
    }

    fn compress_into_pool(&self, job: StoreJob, hash: u128, worker: &mut Worker) -> Option<StoreResult> {
        // SAFETY: as in `store_in_memory`.
        let page = unsafe { self.memory.frame_page(job.frame) };
        let object = worker.compression.compress(page)?;
        let len = object.len();
        let handle = self.content.pool.lock().alloc(len)?;
        // SAFETY: the object is new, and nobody else knows of it until `stored`.
        unsafe { self.content.view.slice_mut(handle, len) }.copy_from_slice(object);
        Some(StoreResult::Pool { handle: handle.0, len: len as u16, hash })
    }

    /// Writes the pages that have no place yet to areas. Those that found none end as failed.
    fn store_on_areas(&self, stores: &mut [PendingStore], worker: &mut Worker) {
        loop {
            let waiting = stores.iter().filter(|store| store.result.is_none()).count() as u32;
            if waiting == 0 {
                return;
            }
            let Ok((area, slot, count)) = self.content.areas.alloc(&mut self.core(), &self.member, waiting) else {
                for store in stores.iter_mut().filter(|store| store.result.is_none()) {
                    store.result = Some(StoreResult::Failed);
                }
                return;
            };
            let mut pages = std::mem::take(&mut worker.io.pages);
            let unplaced = stores.iter().enumerate().filter(|(_, store)| store.result.is_none());
            for ((index, store), slot) in unplaced.zip(slot..slot + u64::from(count)) {
                // The slots lie side by side, the frames mostly do not: a copy costs much less than a request.
                let target = worker.buffer_page(if is_on(Sabotage::BufferReused) { 0 } else { pages.len() });
                // SAFETY: the frame is populated and nobody moves or writes it until `stored`; the buffer page is this
                // worker's own, and holds the copy until the write is over.
                unsafe {
                    let content = self.memory.frame_page(store.job.frame);
                    (target as *mut [u8; PAGE_SIZE]).copy_from_nonoverlapping(content, 1);
                    pages.push(SlotPage::new(slot, target, index as u64));
                }
            }
            if is_on(Sabotage::SlotFreedBeforeWrite) {
                let _ = self.core().slots_mut(area).free(slot);
            }
            self.write(area, &mut pages, worker);
            for page in pages.drain(..) {
                let store = &mut stores[page.tag as usize];
                store.result = match page.outcome() {
                    outcome if outcome == IoOutcome::Done || is_on(Sabotage::FailedWriteIsDone) => {
                        Some(StoreResult::Slot { area, slot: page.slot(), hash: store.hash })
                    }
                    _ => Some(StoreResult::Failed),
                };
            }
            worker.io.pages = pages;
        }
    }

    /// Writes pages to slots of `area`; slots of failed pages are given back.
    fn write(&self, area: AreaId, pages: &mut [SlotPage], worker: &mut Worker) {
        let area = self.content.areas.get(area);
        worker.io.write::<H>(&*area.store, pages);
        let mut failure = None;
        for page in pages.iter() {
            match page.outcome() {
                IoOutcome::Done => self.count(Counter::AreaPagesWritten, 1),
                IoOutcome::Failed(error) => {
                    failure = Some(error);
                    let _ = self.core().slots_mut(area.id).free(page.slot());
                }
                IoOutcome::Pending => unreachable!("a batch ends with all transfers over"),
            }
        }
        match failure {
            Some(error) => area.write_failed::<H>(error, &self.member),
            None => area.write_succeeded::<H>(),
        }
    }

    /// Writes the oldest pages of a pool that is too large to an area, or has the writer do so; returns how many were written
    /// here.
    fn shrink_pool(&self, worker: &mut Worker) -> u64 {
        if is_on(Sabotage::PoolShareNotKept) {
            return 0;
        }
        let (bytes, limit) =
            (self.content.pool.lock().pool_bytes() as u64, self.pressure.kept.pool_limit.load(Relaxed));
        let accept = u64::from(self.member.group.config().accept_threshold_percent);
        if worker.reclaiming.pool_gate.must_shrink(bytes, limit, accept) && self.content.areas.any_open() {
            if worker.reclaiming.writes {
                return self.write_back(worker);
            }
            self.staff.writer.call_unless_in_vain();
        }
        0
    }

    /// Writes up to [`BATCH`] of the oldest objects of the pool to an area; returns how many have left the pool.
    pub(crate) fn write_back(&self, worker: &mut Worker) -> u64 {
        let mut jobs = [None::<WritebackJob>; BATCH];
        let mut count = 0;
        {
            let heirs = self.content.heirs.lock();
            let mut core = self.core();
            while count < BATCH {
                let Some(job) = core.next_writeback(|entry| heirs_hold(&heirs, entry)) else { break };
                jobs[count] = Some(job);
                count += 1;
            }
        }
        let mut places = [None::<(AreaId, u64)>; BATCH];
        let mut pages = std::mem::take(&mut worker.io.pages);
        let mut next = 0;
        while next < count {
            let Ok((area, first, run)) =
                self.content.areas.alloc(&mut self.core(), &self.member, (count - next) as u32)
            else {
                break;
            };
            for slot in first..first + u64::from(run) {
                let index = next;
                next += 1;
                let job = jobs[index].expect("filled above");
                let target = worker.buffer_page(index);
                // SAFETY: the buffer page is this worker's own.
                let page = unsafe { &mut *(target as *mut [u8; PAGE_SIZE]) };
                // SAFETY: the job pins its entry, so its object stays as it is; it is of this process's own pool.
                let object = unsafe { self.content.view.slice(crate::zpool::Handle(job.handle), job.len as usize) };
                if worker.compression.decompress(object, page).is_ok() && xxh3_128(&page[..]) == job.hash {
                    // SAFETY: the buffer page stays as it is until the write is over.
                    pages.push(unsafe { SlotPage::new(slot, target, index as u64) });
                } else {
                    // Left where it is: whoever touches the page will be told.
                    let _ = self.core().slots_mut(area).free(slot);
                }
            }
            if !pages.is_empty() {
                self.write(area, &mut pages, worker);
            }
            for page in pages.drain(..) {
                if page.outcome() == IoOutcome::Done || is_on(Sabotage::WrittenBackUnwritten) {
                    places[page.tag as usize] = Some((area, page.slot()));
                }
            }
        }
        worker.io.pages = pages;
        let mut core = self.core();
        let mut left = 0;
        for (job, place) in jobs.iter().flatten().zip(places) {
            left += u64::from(core.written_back(*job, place));
        }
        core.take_released(&mut worker.released);
        drop(core);
        self.content.release(&mut worker.released);
        let written = places.iter().flatten().count() as u64;
        self.count(Counter::Zswpwb, written);
        left
    }
}

fn is_zero(page: &[u8; PAGE_SIZE]) -> bool {
    // The last word first, as the kernel does: it tells most pages that are not zero.
    page[PAGE_SIZE - 8..] == [0; 8] && page.iter().all(|&byte| byte == 0)
}
