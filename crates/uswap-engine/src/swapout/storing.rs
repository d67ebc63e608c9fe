//! What rests in the swap cache is stored: as zeros, as what is on an area already, in the pool, or on an area.

#![allow(unsafe_code)]

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::{AreaId, PAGE_SIZE, StoreJob, StoreResult, Stored, tuning};
use xxhash_rust::xxh3::xxh3_128;

use crate::engine::{BATCH, Engine};
use crate::group::{Compressor, Counter};
use crate::host::Host;
use crate::page_io::SlotPage;
use crate::store::IoOutcome;
use crate::worker::{PendingStore, Worker};

impl<H: Host> Engine<H> {
    /// Whether the next stores are the writer's, who is called then.
    pub(super) fn leaves_stores(&self, worker: &mut Worker) -> bool {
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
    pub(super) fn store_elsewhere(&self, stores: &mut [PendingStore], worker: &mut Worker) {
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
    pub(super) fn leave_to_writer(&self, stores: &mut [PendingStore], worker: &mut Worker) {
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

    pub(super) fn count_store(&self, result: StoreResult) {
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
    pub(super) fn store_in_memory(&self, store: &mut PendingStore, worker: &mut Worker) {
        // SAFETY: the job made the frame's state `Writing`: populated, and nobody moves or writes it until `stored`.
        let page = unsafe { self.memory.frame_page(store.job.frame) };
        if is_zero(page) || is_on(Sabotage::NearlyZeroIsZero) && page[PAGE_SIZE - 8..] == [0; 8] {
            store.result = Some(StoreResult::Zero);
            return;
        }
        store.hash = xxh3_128(page);
        let passes_for_clean = is_on(Sabotage::DirtyIsClean)
            || is_on(Sabotage::WrittenInChildIsClean) && !self.content.ancestors.is_empty();
        let is_clean = store.job.clean_hash == Some(store.hash) || passes_for_clean && store.job.clean_hash.is_some();
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

    pub(super) fn compress_into_pool(&self, job: StoreJob, hash: u128, worker: &mut Worker) -> Option<StoreResult> {
        // SAFETY: as in `store_in_memory`.
        let page = unsafe { self.memory.frame_page(job.frame) };
        let object = worker.compression.compress(page)?;
        let len = object.len();
        let (handle, bytes) = {
            let mut pool = self.content.pool.lock();
            (pool.alloc(len)?, pool.pool_bytes())
        };
        // SAFETY: the object is new, and nobody else knows of it until `stored`.
        unsafe { self.content.view.slice_mut(handle, len) }.copy_from_slice(object);
        // At each object: many threads may store at a time.
        self.pool_is_full(bytes, worker);
        Some(StoreResult::Pool { handle: handle.0, len: len as u16, hash })
    }

    /// Writes the pages that have no place yet to areas. Those that found none end as failed.
    pub(super) fn store_on_areas(&self, stores: &mut [PendingStore], worker: &mut Worker) {
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
    pub(super) fn write(&self, area: AreaId, pages: &mut [SlotPage], worker: &mut Worker) {
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
}

fn is_zero(page: &[u8; PAGE_SIZE]) -> bool {
    // The last word first, as the kernel does: it tells most pages that are not zero.
    page[PAGE_SIZE - 8..] == [0; 8] && page.iter().all(|&byte| byte == 0)
}
