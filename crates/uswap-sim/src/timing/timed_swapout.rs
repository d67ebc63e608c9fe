//! Pages leave memory: to the bits of zero pages, to the compressed pool, to the device; and what becomes of a failed write.

use uswap_linux::memory_high::{OverHigh, Throttle, penalty_jiffies};
use uswap_linux::memory_max::Charge;
use uswap_linux::swap_entry::SwapEntry;
use uswap_linux::try_to_unuse::SwapoffBooks;
use uswap_linux::writeout::Writeout;

use super::Sabotage;
use super::disk::Write;
use super::{Run, Slot};
use crate::page_content::Content;

/// Pages that leave at a time (SWAP_CLUSTER_MAX).
const BATCH: u64 = 32;
/// Pages that a task takes at a time: it pays for so many past `memory.high`.
const CHARGE_BATCH: u64 = 64;
/// Jiffies of a second.
const HZ: u64 = 1000;

/// Whether there is memory for a page.
pub(super) enum Room {
    /// There is, at this time.
    There(u64),
    /// At this time there may be: pages are being written.
    Later(u64),
    /// Nothing can be freed.
    None,
}

impl Run<'_> {
    /// Makes room for a page of `process`, as far as that can be done without waiting. After a wait it goes on.
    pub(super) fn charge(&mut self, process: usize, mut now_ns: u64) -> Room {
        let cgroup = self.processes[process].cgroup;
        let (mut charging, mut before) = self.processes[process].charging.take().unwrap_or_default();
        loop {
            // What others took meanwhile was freed all the same.
            let freed = before.map(|before: u64| self.cgroups[cgroup].freed - before);
            match charging.attempt(self.cgroups[cgroup].limits, self.usage(cgroup), 1, freed) {
                Charge::Fits | Charge::PastHigh => return Room::There(now_ns),
                Charge::OutOfMemory => return Room::None,
                Charge::Reclaim(pages) => {
                    before = Some(self.cgroups[cgroup].freed);
                    now_ns = self.reclaim(cgroup, pages, now_ns);
                }
            }
            self.land(now_ns);
            if before == Some(self.cgroups[cgroup].freed)
                && let Some(end_ns) = self.disk.next_end_ns()
            {
                self.processes[process].charging = Some((charging, before));
                return Room::Later(end_ns);
            }
        }
    }

    /// Past `memory.high` a task frees and sleeps before it goes on; when it does.
    pub(super) fn pay(&mut self, process: usize, mut now_ns: u64) -> u64 {
        let cgroup = self.processes[process].cgroup;
        let limits = self.cgroups[cgroup].limits;
        // What is being written is as good as gone.
        let usage = |run: &Self| run.usage(cgroup) - run.cgroups[cgroup].in_flight;
        if usage(self) <= limits.high {
            return now_ns;
        }
        let past_high = &mut self.processes[process].past_high;
        *past_high += 1;
        if *past_high < CHARGE_BATCH {
            return now_ns;
        }
        *past_high = 0;
        let mut task = OverHigh::default();
        loop {
            let before = usage(self);
            now_ns = self.reclaim(cgroup, before.saturating_sub(limits.high), now_ns);
            let after = usage(self);
            let penalty = penalty_jiffies(&[limits.against_high(after)], &[], CHARGE_BATCH, HZ);
            match task.next(after < before, penalty, HZ) {
                Throttle::Reclaim => {}
                Throttle::Go => return now_ns,
                Throttle::Sleep(jiffies) => {
                    let sleep_ns = jiffies * (1_000_000_000 / HZ);
                    self.timed.throttled_ns += sleep_ns;
                    return now_ns + sleep_ns;
                }
            }
        }
    }

    /// Pages that a cgroup is charged for.
    pub(super) fn usage(&self, cgroup: usize) -> u64 {
        self.cgroups[cgroup].pages() + self.pool.charged_pages(cgroup)
    }

    /// Lets pages of a cgroup go, `pages` or a batch. They are charged for until they are written.
    fn reclaim(&mut self, cgroup: usize, pages: u64, mut now_ns: u64) -> u64 {
        let mut writes = Vec::new();
        for _ in 0..pages.max(BATCH.min(self.usage(cgroup) / 8)) {
            let group = &mut self.cgroups[cgroup];
            let victim = if group.has_too_many_ahead() { None } else { group.policy.evict() };
            match victim {
                Some(id) => now_ns = self.swap_out(id, now_ns, &mut writes),
                None => match group.oldest_ahead() {
                    Some((entry, ahead)) if ahead.is_dirty => {
                        self.rules.dropped(entry.slot);
                        now_ns = self.write_out(
                            Write { entry, content: ahead.content, is_charged: true },
                            now_ns,
                            &mut writes,
                        );
                    }
                    Some((entry, _)) => {
                        group.freed += 1;
                        self.rules.dropped(entry.slot);
                        self.memory.drop_from_cache(entry);
                    }
                    None => break,
                },
            }
        }
        self.submit(now_ns, &writes);
        let shrunk = self.pool.shrink(&mut self.memory);
        now_ns += shrunk.len() as u64 * self.costs.decompress.ns;
        self.submit(now_ns, &shrunk);
        now_ns
    }

    /// A page that the policy let go gets a slot; where there is none it stays.
    fn swap_out(&mut self, id: u32, now_ns: u64, writes: &mut Vec<Write>) -> u64 {
        let Ok(entry) = self.memory.areas_mut().alloc(0, 0, &mut ()) else {
            self.timed.no_slot += 1;
            let cgroup = self.processes[self.process_of(id)].cgroup;
            self.cgroups[cgroup].policy.insert(id);
            return now_ns;
        };
        self.memory.swap_out_to(self.place(id), entry);
        let content = self.pages.holds(id);
        self.slots.insert(entry, Slot { id, hash: content.hash() });
        self.write_out(Write { entry, content, is_charged: true }, now_ns, writes)
    }

    /// A page of the swap cache goes where it goes; a page for the device joins `writes` and is in memory until it is there.
    fn write_out(&mut self, write: Write, now_ns: u64, writes: &mut Vec<Write>) -> u64 {
        let cgroup = self.cgroup_of(write.entry);
        let tries_pool = self.setup.zswap_percent > 0 && write.content != Content::ZERO;
        match self.pool.write(write, cgroup) {
            Writeout::Zeros | Writeout::Pool => {
                self.cgroups[cgroup].freed += 1;
                self.memory.drop_from_cache(write.entry);
            }
            Writeout::Device => {
                self.cgroups[cgroup].in_flight += 1;
                writes.push(write);
            }
            Writeout::Dropped | Writeout::Kept => unreachable!("the page is wanted and may reach the device"),
        }
        if tries_pool { now_ns + self.costs.compress.ns } else { now_ns }
    }

    fn submit(&mut self, now_ns: u64, writes: &[Write]) {
        self.timed.pages_written += writes.len() as u64;
        self.disk.write(now_ns, writes);
    }

    /// Writes that have ended by `now_ns` take effect.
    pub(super) fn land(&mut self, now_ns: u64) {
        while let Some(landed) = self.disk.landed(now_ns) {
            let Write { entry, content, is_charged } = landed.write;
            let cgroup = self.cgroup_of(entry);
            self.cgroups[cgroup].in_flight -= u64::from(is_charged);
            let is_wanted = self.memory.count(entry) > 0;
            if landed.failed {
                self.timed.failed_writes += 1;
            }
            if landed.failed && is_wanted {
                // The page in memory is the only copy: it stays, and is dirty.
                let id = self.slots[&entry].id;
                let (node, place) = (self.pages.node(id), self.place(id));
                self.memory.map(place, false);
                self.pages.bring(id, content, node);
                self.cgroups[cgroup].policy.insert(id);
            } else {
                self.cgroups[cgroup].freed += u64::from(is_charged);
            }
            self.memory.drop_from_cache(entry);
            self.settle(entry);
        }
    }

    /// After somebody has let a slot go: if it is free, nothing is left of what it held.
    pub(super) fn settle(&mut self, entry: SwapEntry) {
        if !self.memory.areas().area(entry.area).map().is_free(entry.slot) {
            return;
        }
        self.slots.remove(&entry);
        if !self.sabotages(Sabotage::KeepCompressed, self.pool.content(entry).is_some()) {
            self.pool.freed(entry);
        }
    }
}
