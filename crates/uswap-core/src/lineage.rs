//! Fork: a child starts with a copy of its parent's books.
//!
//! The copy is made by fork itself, while the parent's engine keeps the books still. Entries of the parent are *foreign*
//! in the child: it reads their content where the parent put it, and tells when it needs one no more. The parent frees
//! nothing that an heir may still read; which entries those are is the engine's ledger.

use alloc::vec::Vec;

use crate::core::Core;
use crate::entry::{EntryId, Epoch, Location};
use crate::entry_set::EntrySet;
use crate::page_table::PageState;
use crate::reclaim::REFUSED_MAX;
use crate::slots::Slots;
use crate::swap_cache::{FrameId, SwapCache};
use crate::units::{PageNumber, PageRange};
use crate::zswap::Zswap;

impl Core {
    /// A cached page to move back before a fork, as a fault would, and its frame; `None` when the swap cache holds no content. It is
    /// looked for from the frame `near` on, and then from the first.
    pub fn cached_page(&self, near: FrameId) -> Option<(FrameId, PageNumber)> {
        let frame = self.cache.cached_from(near)?;
        Some((frame, self.cache.frame(frame).owner.expect("a cached frame has an owner")))
    }

    /// Entries that a child forked at this moment inherits.
    pub fn inherited(&self) -> &EntrySet {
        self.table.in_use()
    }

    /// Where an ancestor of this process has put what this one still needs of it.
    pub fn needed_of(&self, ancestor: Epoch) -> impl Iterator<Item = Location> + '_ {
        let entries = self.table.iter_in_use().filter(move |&entry| self.table.epoch_of(entry) == ancestor);
        entries.map(|entry| self.table.location(entry))
    }

    /// Ancestors of this process have moved some of what their objects held to where `moved` says.
    pub fn follow_ancestors(&mut self, moved: impl Fn(Epoch, EntryId) -> Option<Location>) {
        let foreign = |&entry: &EntryId| self.table.is_live(entry) && self.table.is_foreign(entry);
        let place = |entry: EntryId| moved(self.table.epoch_of(entry), entry).map(|place| (entry, place));
        let places: Vec<(EntryId, Location)> = self.table.iter_in_use().filter(foreign).filter_map(place).collect();
        for (entry, place) in places {
            self.table.relocate(entry, place);
        }
    }

    /// Entries that exist now may have to outlive their pages, because a child reads them.
    pub fn add_heir(&mut self) {
        self.table.add_heir();
    }

    /// No child reads entries of this process any more.
    pub fn no_heirs(&mut self) {
        self.table.no_heirs();
    }

    /// In a child: what is swapped out of `range` may not be what is there. An access is refused.
    pub fn doubt(&mut self, range: PageRange) {
        let swapped: Vec<(PageNumber, EntryId)> = (self.pages.known(range))
            .filter_map(|(page, state)| match state {
                PageState::Swapped { entry } => Some((page, entry)),
                _ => None,
            })
            .collect();
        for (page, entry) in swapped {
            self.counts.swapped_pages -= 1;
            self.let_go(entry);
            self.pages.set(page, PageState::Poisoned);
        }
    }

    /// These books now are the child's.
    pub fn become_child(&mut self, frame_blocks: u32) {
        let ended = self.table.become_child(core::mem::take(&mut self.leftovers.zombies));
        self.cache = SwapCache::new(frame_blocks);
        self.slots = self.slots.iter().map(Slots::unclaimed).collect();
        self.zswap = Zswap::new();
        self.counts.loads_in_flight = 0;
        self.eviction.refused = Vec::with_capacity(REFUSED_MAX);
        // What the parent was about to release is the parent's.
        self.leftovers.released.clear();
        for (entry, location, epoch) in ended {
            self.release_place(entry, location, epoch);
        }
    }
}
