//! How entries leave zswap for their slots: oldest first, with a second chance.
//!
//! An entry that is met for the first time is only marked as met and goes to the end of its list. One whose slot has a page in
//! the swap cache is in use, and goes there too. Writing takes time, in which the slot may be freed and used again: the entry is
//! looked at again before it goes ([`Zswap::finish_writeback`]), or old content would land in a new page's slot.

use super::{LruId, Zswap};
use crate::swap_entry::SwapEntry;

/// Entries that cannot be written back before the worker gives up.
const FAILURES_MAX: u32 = 16;

/// What writeback needs done. `()` lets everything be written.
pub trait WritebackHost {
    /// Makes a page of the swap cache for a slot, to decompress into; false when there is one already.
    fn add_to_swap_cache(&mut self, entry: SwapEntry) -> bool;
    /// Writes that page to the slot and lets go of it.
    fn write(&mut self, entry: SwapEntry, bytes: u16);
    /// Lets go of the page without writing it: the entry has changed.
    fn drop_from_swap_cache(&mut self, entry: SwapEntry);
}

impl WritebackHost for () {
    fn add_to_swap_cache(&mut self, _: SwapEntry) -> bool {
        true
    }
    fn write(&mut self, _: SwapEntry, _: u16) {}
    fn drop_from_swap_cache(&mut self, _: SwapEntry) {}
}

/// An entry that is about to be written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct WritebackTicket {
    /// Its slot.
    pub entry: SwapEntry,
    /// Its compressed length.
    pub bytes: u16,
    stamp: u64,
}

/// What a look at the oldest entry of a list came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Picked {
    /// The list is empty.
    Nothing,
    /// It had its second chance coming and is the youngest now.
    SecondChance,
    /// It may be written.
    Entry(WritebackTicket),
}

impl Zswap {
    /// Looks at the oldest entry of a list.
    pub fn pick_writeback(&mut self, lru: LruId) -> Picked {
        let Some((&stamp, &id)) = self.lrus.get(&lru).and_then(|lru| lru.entries.first_key_value()) else {
            return Picked::Nothing;
        };
        let entry = self.entry(id);
        if entry.referenced {
            self.entries[id as usize].as_mut().expect("the entry is live").referenced = false;
            self.rotate(lru, stamp);
            return Picked::SecondChance;
        }
        Picked::Entry(WritebackTicket { entry: entry.swap, bytes: entry.bytes, stamp })
    }

    /// The slot of a picked entry has a page in the swap cache, so it is in use: it becomes the youngest.
    pub fn writeback_is_hot(&mut self, ticket: WritebackTicket) {
        if let Some(id) = self.picked(ticket) {
            self.rotate(self.entry(id).lru, ticket.stamp);
        }
    }

    /// The page has been decompressed: true when it is still the slot's, whose entry is gone now; false when the slot was freed
    /// or stored to in between, and nothing must be written.
    #[must_use]
    pub fn finish_writeback(&mut self, ticket: WritebackTicket) -> bool {
        let same = self.picked(ticket).is_some();
        if same {
            self.erase(ticket.entry);
            self.stats.zswpwb += 1;
        }
        same
    }

    fn picked(&self, ticket: WritebackTicket) -> Option<u32> {
        self.trees.get(ticket.entry).filter(|&id| self.entry(id).stamp == ticket.stamp)
    }

    fn rotate(&mut self, lru: LruId, stamp: u64) {
        self.clock += 1;
        let clock = self.clock;
        let list = self.lrus.get_mut(&lru).expect("the entry is in a list");
        let id = list.entries.remove(&stamp).expect("the entry is in the list");
        list.entries.insert(clock, id);
        self.entries[id as usize].as_mut().expect("the entry is live").stamp = clock;
    }

    /// Looks at the oldest entry of a list and writes it if it may be; `None` when it is in use.
    fn write_back<H: WritebackHost>(&mut self, lru: LruId, host: &mut H) -> Option<bool> {
        let Picked::Entry(ticket) = self.pick_writeback(lru) else { return Some(false) };
        if !host.add_to_swap_cache(ticket.entry) {
            self.writeback_is_hot(ticket);
            return None;
        }
        let written = self.finish_writeback(ticket);
        if written {
            host.write(ticket.entry, ticket.bytes);
        } else {
            host.drop_from_swap_cache(ticket.entry);
        }
        Some(written)
    }

    fn may_write_back(&self, cgroup: u16) -> bool {
        self.cgroups.get(&cgroup).is_none_or(|(rules, _)| rules.writeback)
    }

    /// One look at the list of each node of a cgroup at its limit; whether any entry was written.
    pub(super) fn write_back_one_per_node<H: WritebackHost>(&mut self, cgroup: u16, host: &mut H) -> bool {
        if !self.may_write_back(cgroup) {
            return false;
        }
        let nodes = LruId { cgroup, node: 0 }..=LruId { cgroup, node: u16::MAX };
        let lists: alloc::vec::Vec<LruId> = self.lrus.range(nodes).map(|(&lru, _)| lru).collect();
        let mut written = false;
        for lru in lists {
            written |= self.write_back(lru, host) == Some(true);
        }
        written
    }

    /// Whether a store was turned away since the pool was full: [`run_worker`](Self::run_worker).
    pub fn worker_wanted(&self) -> bool {
        self.shrink_wanted
    }

    /// Writes back until the pool is at the accept threshold, one cgroup after the other, each node's oldest; gives up after 16
    /// rounds in vain. The entries written.
    pub fn run_worker<H: WritebackHost>(&mut self, host: &mut H) -> u64 {
        self.shrink_wanted = false;
        let before = self.stats.zswpwb;
        let mut failures = 0;
        while self.pool_pages() > self.config.accept_pages() && failures < FAILURES_MAX {
            let Some(cgroup) = self.next_cgroup() else { break };
            if !self.write_back_one_per_node(cgroup, host) {
                failures += 1;
            }
        }
        self.stats.zswpwb - before
    }

    /// The next cgroup in turn that has entries which may be written.
    fn next_cgroup(&mut self) -> Option<u16> {
        let has_entries = |(&lru, list): (&LruId, &super::Lru)| {
            (!list.entries.is_empty() && self.may_write_back(lru.cgroup)).then_some(lru)
        };
        let after = self.worker_at.map_or(0, |lru| u32::from(lru.cgroup) + 1);
        let next = self.lrus.iter().filter_map(has_entries).find(|lru| u32::from(lru.cgroup) >= after);
        let next = next.or_else(|| self.lrus.iter().find_map(has_entries))?;
        self.worker_at = Some(next);
        Some(next.cgroup)
    }
}
