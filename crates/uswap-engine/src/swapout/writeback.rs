//! A pool that is too large: its oldest objects go to an area, as pages.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::{AreaId, PAGE_SIZE, WritebackJob};
use xxhash_rust::xxh3::xxh3_128;

use crate::engine::{BATCH, Engine};
use crate::group::Counter;
use crate::host::Host;
use crate::ledger::heirs_keep;
use crate::page_io::SlotPage;
use crate::store::IoOutcome;
use crate::worker::Worker;

impl<H: Host> Engine<H> {
    /// Writes the oldest pages of a pool that is too large to an area, or has the writer do so; returns how many were written
    /// here.
    pub(super) fn shrink_pool(&self, worker: &mut Worker) -> u64 {
        let bytes = self.content.pool_bytes();
        if self.pool_is_full(bytes, worker) && self.content.areas.any_open() {
            if worker.reclaiming.writes {
                return self.write_back(worker);
            }
            self.staff.writer.call_unless_in_vain();
        }
        0
    }

    /// Judges the pool, which has `bytes` now.
    pub(super) fn pool_is_full(&self, bytes: usize, worker: &mut Worker) -> bool {
        let limit = self.pressure.kept.pool_limit.load(Relaxed);
        let accept = u64::from(self.member.group.config().accept_threshold_percent);
        !is_on(Sabotage::PoolShareNotKept) && worker.reclaiming.pool_gate.must_shrink(bytes as u64, limit, accept)
    }

    /// Writes up to [`BATCH`] of the oldest objects of the pool to an area; returns how many have left the pool.
    pub(crate) fn write_back(&self, worker: &mut Worker) -> u64 {
        let mut jobs = [None::<WritebackJob>; BATCH];
        let mut count = 0;
        {
            let heirs = self.content.heirs.lock();
            let mut core = self.core();
            while count < BATCH {
                let Some(job) = core.next_writeback(|entry| heirs_keep(&heirs, entry)) else { break };
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
        let written = places.iter().flatten().count() as u64;
        self.count(Counter::Zswpwb, written);
        self.end_writeback(jobs.into_iter().flatten().zip(places), worker)
    }

    /// Objects leave the pool for the places that their content has now, if it has one; returns how many do.
    fn end_writeback(
        &self,
        jobs: impl Iterator<Item = (WritebackJob, Option<(AreaId, u64)>)>,
        worker: &mut Worker,
    ) -> u64 {
        let heirs = self.content.heirs.lock();
        let mut core = self.core();
        let mut left = 0;
        for (job, mut place) in jobs {
            if let Some((area, slot)) = place.filter(|_| core.may_leave_pool(&job))
                && !self.heirs_are_told(&heirs, job.entry, area, slot)
            {
                let _ = core.slots_mut(area).free(slot);
                place = None;
            }
            left += u64::from(core.written_back(job, place));
        }
        core.take_released(&mut worker.released);
        drop(core);
        drop(heirs);
        self.content.release(&mut worker.released);
        left
    }
}
