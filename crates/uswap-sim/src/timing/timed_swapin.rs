//! A thread touches a page that is not in memory.

use uswap_core::PageNumber;
use uswap_linux::do_swap_page::{Read, SwapIn, SwappedIn};
use uswap_linux::numa::Node;
use uswap_linux::swap_entry::SwapEntry;
use uswap_linux::swapped_memory::Pte;
use uswap_linux::try_to_unuse::{Place, SwapoffBooks};

use super::cgroup::Ahead;
use super::check::{Checked, Checker, violated};
use super::disk::Got;
use super::pool::Source;
use super::timed_swapout::Room;
use super::{Run, Sabotage};
use crate::page_content::Content;

/// Reads of a page before it is given up.
const ATTEMPTS: u32 = 4;

/// A page that is to be read, or has been.
struct Coming {
    read: Read,
    node: Node,
    /// `None` until the device has answered.
    ahead: Option<Ahead>,
}

impl Run<'_> {
    /// Brings page `id` of `process` in, where there is memory for it; when it is there.
    pub(super) fn fault(&mut self, process: usize, id: u32, now_ns: u64) -> Checked<Room> {
        self.land(now_ns);
        let now_ns = match self.charge(process, now_ns) {
            Room::There(now_ns) => now_ns,
            room => return Ok(room),
        };
        let cgroup = self.processes[process].cgroup;
        let end_ns = now_ns + self.costs.fault.ns;
        // Its write may have failed meanwhile, and then it is here.
        if self.cgroups[cgroup].policy.is_resident(id) {
            return Ok(Room::There(end_ns));
        }
        let place = self.place(id);
        let end_ns = match self.memory.pte(place) {
            Pte::Swapped(entry) => self.swap_in(process, place, entry, end_ns)?,
            _ => {
                self.memory.set_present(place);
                self.pages.bring(id, Content::ZERO, self.nodes.of(process));
                self.pages.write(id);
                end_ns
            }
        };
        if !self.sabotages(Sabotage::ForgetCharge, true) {
            self.cgroups[cgroup].policy.insert(id);
        }
        self.timed.faults += 1;
        if self.timed.faults.is_multiple_of(self.setup.check_every) {
            self.check()?;
        }
        Ok(Room::There(end_ns))
    }

    fn swap_in(&mut self, process: usize, place: Place, entry: SwapEntry, now_ns: u64) -> Checked<u64> {
        let id = self.slots[&entry].id;
        if let Some(content) = self.disk.in_flight(entry) {
            // It is in the swap cache until it is written; the slot is freed then.
            self.memory.map(place, false);
            self.pages.bring(id, content, self.pages.node(id));
            self.timed.cached += 1;
            if self.sabotages(Sabotage::FreeInFlight, true) {
                self.memory.drop_from_cache(entry);
                self.check()?;
            }
            return Ok(now_ns);
        }
        if self.sabotages(Sabotage::OverwriteSlot, !self.memory.is_cached(entry) && self.disk.at(entry).is_some()) {
            self.disk.overwrite(entry, Content(u64::MAX >> 2));
            self.check()?;
        }
        let mut reads = Vec::new();
        // A page that is written frees its slot at once, so that no page has two copies to keep apart.
        let hits_before = self.path.readahead.swap_ra_hit();
        let swap_in = self.memory.fault(&mut self.path, place, true, &mut reads);
        let swap_in = swap_in.or_else(|error| violated(Checker::OneOwner, format!("a fault ends with {error:?}")))?;
        self.check_readahead(process, entry, &swap_in, &reads, hits_before)?;
        let outcome = swap_in.outcome;
        let end_ns = match outcome {
            SwappedIn::Gone => return violated(Checker::OneOwner, format!("{entry:?} is named, and nobody's")),
            SwappedIn::Hit => {
                let cgroup = self.processes[process].cgroup;
                let Some(ahead) = self.cgroups[cgroup].take_ahead(entry) else {
                    return violated(
                        Checker::OneOwner,
                        format!("{entry:?} is in the swap cache, and nobody put it there"),
                    );
                };
                self.pages.bring(id, ahead.content, ahead.node);
                self.timed.cached += 1;
                ahead.ready_ns.max(now_ns)
            }
            SwappedIn::Bypass => {
                let alone = [Read { entry, page: Some(place.page), ahead: false }];
                self.read(process, place.page, entry, &alone, false, now_ns)?
            }
            SwappedIn::Miss => self.read(process, place.page, entry, &reads, true, now_ns)?,
        };
        self.settle(entry);
        Ok(end_ns)
    }

    /// What readahead did with a fault.
    fn check_readahead(
        &mut self,
        process: usize,
        entry: SwapEntry,
        swap_in: &SwapIn,
        reads: &[Read],
        hits_before: u64,
    ) -> Checked {
        let is_hit = swap_in.outcome == SwappedIn::Hit;
        let mut hits = self.path.readahead.swap_ra_hit() - hits_before;
        if hits > 0 && self.sabotages(Sabotage::CountHitTwice, is_hit) {
            hits += 1;
        }
        let mut outcome = self.rules.found(entry.slot, hits);
        if let Some(window) = &swap_in.window {
            let size = window.size() * if self.sabotages(Sabotage::OddWindow, true) { 3 } else { 1 };
            let mut reads = reads.to_vec();
            if self.sabotages(Sabotage::ReadHeader, true) {
                reads.push(Read { entry: SwapEntry { slot: 0, ..entry }, page: None, ahead: true });
            }
            let in_use = |slot| self.slots.contains_key(&SwapEntry { slot, ..entry });
            outcome = outcome.and(self.rules.missed(process, window, size, &reads, in_use));
        }
        outcome.or_else(|violation| violated(Checker::Readahead, violation.to_string()))
    }

    /// Reads a window; when the wanted page is there.
    fn read(
        &mut self,
        process: usize,
        page: PageNumber,
        wanted: SwapEntry,
        reads: &[Read],
        in_swap_cache: bool,
        now_ns: u64,
    ) -> Checked<u64> {
        let mut now_ns = now_ns;
        let mut coming = Vec::new();
        for &read in reads {
            let owner = self.slots[&read.entry].id;
            let owner = (self.process_of(owner), self.place(owner).page);
            let node = self.nodes.place(&read, (process, page), owner);
            let ahead = match self.pool.read(read.entry, in_swap_cache) {
                Source::Device => None,
                Source::Here { content, is_only_copy, was_compressed } => {
                    now_ns += if was_compressed { self.costs.decompress.ns } else { 0 };
                    Some(Ahead { ready_ns: now_ns, content, node, is_dirty: is_only_copy })
                }
            };
            coming.push(Coming { read, node, ahead });
        }
        let from_device: Vec<SwapEntry> =
            coming.iter().filter(|page| page.ahead.is_none()).map(|page| page.read.entry).collect();
        self.timed.pages_read += from_device.len() as u64;
        let mut got = self.disk.read(now_ns, &from_device).into_iter();
        let mut end_ns = now_ns;
        for Coming { read, node, ahead } in coming {
            let got = if ahead.is_none() { got.next() } else { None };
            if read.entry == wanted {
                end_ns = match (ahead, got) {
                    (Some(ahead), _) => {
                        self.pages.bring(self.slots[&wanted].id, ahead.content, node);
                        ahead.ready_ns
                    }
                    (None, Some(got)) => {
                        let end_ns = self.until_right(got, node)?;
                        self.timed.major += 1;
                        self.stalls_ns.push(end_ns - now_ns);
                        end_ns
                    }
                    (None, None) => unreachable!("the device answers for each page"),
                };
            } else {
                let read_ahead = got.and_then(|got| {
                    let content = got.content.filter(|&content| self.is_right(got.entry, content))?;
                    Some(Ahead { ready_ns: got.end_ns, content, node, is_dirty: false })
                });
                self.keep_ahead(read.entry, ahead.or(read_ahead));
            }
        }
        Ok(end_ns)
    }

    /// A page that came along stays in the swap cache. One that could not be read is read again when it is wanted.
    fn keep_ahead(&mut self, entry: SwapEntry, ahead: Option<Ahead>) {
        let cgroup = self.cgroup_of(entry);
        match ahead {
            Some(ahead) => self.cgroups[cgroup].add_ahead(entry, ahead),
            None => {
                self.rules.dropped(entry.slot);
                self.memory.drop_from_cache(entry);
            }
        }
    }

    /// Whether a content is the one that was sent to its slot, where that is checked.
    fn is_right(&self, entry: SwapEntry, content: Content) -> bool {
        !self.setup.hashes || content.hash() == self.slots[&entry].hash
    }

    /// Reads the wanted page again until it is right, or gives it up and tells its owner; when that is.
    fn until_right(&mut self, mut got: Got, node: Node) -> Checked<u64> {
        let (entry, id) = (got.entry, self.slots[&got.entry].id);
        let (mut attempts, mut was_injected) = (1, false);
        loop {
            was_injected |= got.was_injected;
            let misreads = self.sabotages(Sabotage::Misread, true);
            let gives_up = self.sabotages(Sabotage::LoseForNothing, true);
            if misreads {
                got.content = Some(Content(u64::MAX >> 2));
            }
            match got.content.filter(|&content| misreads || self.is_right(entry, content)) {
                Some(content) if !gives_up => {
                    self.pages.bring(id, content, node);
                    return Ok(got.end_ns);
                }
                _ if attempts == ATTEMPTS || gives_up => break,
                _ => {}
            }
            attempts += 1;
            self.timed.pages_read += 1;
            got = self.disk.read(got.end_ns, &[entry])[0];
        }
        if !was_injected {
            return violated(Checker::LostForAReason, format!("nothing was done to {entry:?} of page {id}"));
        }
        // SIGBUS. This program goes on with a page of its own making.
        self.timed.lost += 1;
        self.pages.bring(id, Content::ZERO, node);
        self.pages.write(id);
        Ok(got.end_ns)
    }
}
