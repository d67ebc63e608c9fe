//! One way in for every page that comes back: faults, shared memory and swapoff.
//!
//! The 2024 thread wanted one entry point that tells what happened: *hit* (the page is in the swap cache), *bypass* (it is
//! read alone and never enters the cache, because the device is as fast as memory and nobody else will ask for the slot) or
//! *miss* (it is read with its neighbours). The kernel has this spread over three callers; here the caller says who it is and
//! the preset says what its era did.

use alloc::vec::Vec;

use super::swap_entry::SwapEntry;
use super::swapin_readahead::{Mapping, PageWindow, Preset, Readahead, SlotBlock, Window, aligned_block};
use uswap_core::units::PageNumber;

/// Who wants a page. A mapping is where the page-table entry is.
#[derive(Debug)]
pub enum Caller<'a> {
    /// A thread touched the page (`do_swap_page`).
    Fault(Mapping<'a>),
    /// A file in memory: fault, read, write, and its part of swapoff (`shmem_swapin_folio`).
    Shmem,
    /// Swapoff at a page-table entry (`unuse_pte_range`).
    Swapoff(Mapping<'a>),
}

/// What swap-in asks about an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AreaFacts {
    /// Its slots, the header's included.
    pub slots: u64,
    /// Reading is as fast as copying memory: brd, zram, pmem (`SWP_SYNCHRONOUS_IO`).
    pub synchronous: bool,
    /// Swapoff is at work on it (`SWP_WRITEOK` is gone).
    pub going_off: bool,
}

/// The books of the machine, as swap-in sees them.
pub trait SwapBooks {
    /// The area, or `None` when it is off.
    fn area(&self, area: u8) -> Option<AreaFacts>;
    /// References of page tables and files to the slot; 0 for a free or a bad one.
    fn count(&self, entry: SwapEntry) -> u32;
    /// Whether the page of the slot is in the swap cache.
    fn is_cached(&self, entry: SwapEntry) -> bool;
    /// Clears the readahead flag of a cached page; whether it was set.
    fn take_ahead(&mut self, entry: SwapEntry) -> bool;
    /// What the page-table entry of `page` names in the address space of the caller, if it is a swap entry.
    fn swap_pte(&self, page: PageNumber) -> Option<SwapEntry>;
}

/// A slot to read into the swap cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The slot.
    pub entry: SwapEntry,
    /// The page whose entry led there, when the window went by address.
    pub page: Option<PageNumber>,
    /// Nobody asked for it: the page gets the readahead flag.
    pub ahead: bool,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwappedIn {
    /// The page is in the swap cache.
    Hit,
    /// Read the slot alone, at once, and map it without adding it to the swap cache. The slot must be pinned meanwhile.
    Bypass,
    /// Read what was put into `reads`; the wanted slot is among it.
    Miss,
    /// The slot is in nobody's use any more, or its area is off: look at the page-table entry again.
    Gone,
}

/// The answer to one call.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct SwapIn {
    /// What happened.
    pub outcome: SwappedIn,
    /// The readahead window, where one was worked out. In the 5.1 to 5.7 preset that is so on a hit of swapoff too.
    pub window: Option<Window>,
}

/// The swap-in side of a machine: the rules of an era and the readahead state.
#[derive(Clone, Debug)]
pub struct SwapInPath {
    preset: Preset,
    /// The readahead state, for its counters and for areas that come and go.
    pub readahead: Readahead,
}

impl SwapInPath {
    /// The rules of `preset` on a machine that has not swapped yet.
    pub fn new(preset: Preset, readahead: Readahead) -> Self {
        Self { preset, readahead }
    }

    /// The rules it follows.
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// `caller` needs the page of `entry`. What is to be read goes to `reads`, in the order in which the kernel submits it.
    pub fn swap_in(
        &mut self,
        entry: SwapEntry,
        caller: Caller,
        books: &mut impl SwapBooks,
        reads: &mut Vec<Read>,
    ) -> SwapIn {
        let Some(area) = books.area(entry.area) else { return SwapIn { outcome: SwappedIn::Gone, window: None } };
        let swapoff = matches!(caller, Caller::Swapoff(_));
        let cached = books.is_cached(entry);
        if cached && (!swapoff || self.preset.swapoff_looks_first) {
            if !swapoff || self.preset.swapoff_counts_hits {
                let ahead = books.take_ahead(entry);
                self.readahead.found(ahead, self.mapping(caller));
            }
            return SwapIn { outcome: SwappedIn::Hit, window: None };
        }
        let may_bypass = !swapoff || self.preset.swapoff_bypasses;
        if may_bypass && area.synchronous && books.count(entry) == 1 {
            return SwapIn { outcome: SwappedIn::Bypass, window: None };
        }
        let window = self.window(entry, area, caller);
        self.read(entry, &window, books, reads);
        let outcome = match cached {
            true => SwappedIn::Hit,
            false if books.count(entry) == 0 => SwappedIn::Gone,
            false => SwappedIn::Miss,
        };
        SwapIn { outcome, window: Some(window) }
    }

    fn mapping<'a>(&self, caller: Caller<'a>) -> Option<Mapping<'a>> {
        match caller {
            Caller::Fault(mapping) => Some(mapping),
            Caller::Swapoff(mapping) => Some(mapping).filter(|_| !self.preset.swapoff_by_cluster),
            Caller::Shmem => None,
        }
    }

    fn window(&mut self, entry: SwapEntry, area: AreaFacts, caller: Caller) -> Window {
        let mapping = self.mapping(caller);
        let by_address = mapping.is_some() && self.readahead.goes_by_address();
        match self.preset.going_off_block.filter(|_| area.going_off && !by_address) {
            Some(window) => Window::Slots(SlotBlock { window, slots: aligned_block(entry.slot, window, area.slots) }),
            None => self.readahead.miss(entry.slot, area.slots, mapping),
        }
    }

    /// What of `window` is to be read: used slots that are not cached yet.
    fn read(&mut self, target: SwapEntry, window: &Window, books: &impl SwapBooks, reads: &mut Vec<Read>) {
        let first = reads.len();
        let mut consider = |entry: SwapEntry, page: Option<PageNumber>| {
            // Two pages of a mapping may name one slot, when they were merged before they left.
            let again = |read: &Read| read.entry == entry;
            if books.count(entry) == 0 || books.is_cached(entry) || (page.is_some() && reads[first..].iter().any(again))
            {
                return;
            }
            let ahead = entry != target;
            if ahead {
                self.readahead.note_ahead();
            }
            reads.push(Read { entry, page, ahead });
        };
        match window {
            Window::Slots(SlotBlock { slots, .. }) => {
                slots.clone().for_each(|slot| consider(SwapEntry { slot, ..target }, None));
            }
            Window::Pages(PageWindow { pages, .. }) => {
                for page in pages.clone().map(PageNumber) {
                    if let Some(entry) = books.swap_pte(page).filter(|entry| books.area(entry.area).is_some()) {
                        consider(entry, Some(page));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
