//! Fork: a child starts with a copy of its parent's books.
//!
//! The copy is made by fork itself, while the parent's engine keeps the books still. Entries of the parent are *foreign*
//! in the child: it reads their content where the parent put it, and tells when it needs one no more. The parent frees
//! nothing that an heir may still read; which entries those are is the engine's ledger.

use crate::core::Core;
use crate::entry::EntryId;
use crate::page_table::PageState;
use crate::reclaim::Reclaim;
use crate::slots::Slots;
use crate::swap_cache::{FrameUse, SwapCache};
use crate::units::{PageNumber, PageRange};
use crate::zswap::Zswap;

impl Core {
    /// A cached page to move back before a fork, as a fault would; `None` when the swap cache holds no content.
    pub fn cached_page(&self) -> Option<PageNumber> {
        let frame = self.cache.iter_cached().next()?;
        Some(self.cache.frame(frame).owner.expect("a cached frame has an owner"))
    }

    /// All cached pages.
    pub fn cached_pages(&self) -> impl Iterator<Item = PageNumber> + '_ {
        self.cache.iter_cached().filter_map(|frame| {
            let record = self.cache.frame(frame);
            debug_assert!(record.state == FrameUse::Cached);
            record.owner
        })
    }

    /// Entries that a child forked at this moment inherits.
    pub fn inherited(&self) -> impl Iterator<Item = EntryId> + '_ {
        self.table.iter_in_use()
    }

    /// Whether entries of this process may have to outlive their pages, because children read them.
    pub fn set_heirs(&mut self, has_heirs: bool) {
        self.table.set_heirs(has_heirs);
    }

    /// These books now are the child's.
    pub fn become_child(&mut self, frame_blocks: u32) {
        self.table.become_child();
        self.cache = SwapCache::new(frame_blocks);
        self.slots = self.config.area_slots.iter().map(|&slots| Slots::new(slots, &[])).collect();
        self.zswap = Zswap::new();
        self.zombies.clear();
        self.config.frame_blocks = frame_blocks;
        self.loads_in_flight = 0;
    }

    /// Pages that are adopted in the books but not mapped in this process: [`unmapped`](Self::unmapped) by name.
    pub fn forget_unmapped(&mut self, range: PageRange) {
        self.unmapped(range);
    }

    /// Empties the queue of reclaim and fills it anew from the page table.
    pub fn requeue_all(&mut self) {
        self.reclaim = Reclaim::new();
        let mut from = PageNumber(0);
        let end = PageNumber(u64::MAX >> 12);
        while let Some((page, state)) = self.pages.next_with_state(from, end) {
            from = page.plus(1);
            if matches!(state, PageState::Resident { .. }) {
                if let Some(block) = self.pages.block_mut(page) {
                    block.queued = false;
                }
                self.note_resident(page, false);
                from = page.block_start().plus(crate::units::BLOCK_PAGES as u64);
            }
        }
    }
}
