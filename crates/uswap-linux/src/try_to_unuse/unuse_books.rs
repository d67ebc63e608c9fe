//! What swapoff sees of a machine, and what it changes there.

use core::ops::Range;

use crate::do_swap_page::{AreaFacts, SwapBooks};
use crate::errno::Errno;
use crate::shmem::{FileId, ShmemFiles};
use crate::swap_entry::SwapEntry;
use crate::swapin_readahead::VmaReadahead;
use uswap_core::units::{PageNumber, PageRange};

/// A page of an anonymous mapping.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The mapping, by its number.
    pub mapping: usize,
    /// The page.
    pub page: PageNumber,
}

/// The books of a machine. Mappings are numbered; those of an address space have numbers in a row, and address spaces are
/// in the order of the kernel's list of those that have pages in swap.
pub trait SwapoffBooks {
    /// The area, or `None` when it is off.
    fn area(&self, area: u8) -> Option<AreaFacts>;
    /// Slots of the area in use.
    fn in_use(&self, area: u8) -> u64;
    /// The first slot in use at or after `from`.
    fn next_used(&self, area: u8, from: u64) -> Option<u64>;
    /// References of page tables and files to a slot; 0 for a free or a bad one.
    fn count(&self, entry: SwapEntry) -> u64;
    /// Whether the page of a slot is in the swap cache.
    fn is_cached(&self, entry: SwapEntry) -> bool;
    /// Clears the readahead flag of a cached page; whether it was set.
    fn take_ahead(&mut self, entry: SwapEntry) -> bool;

    /// Address spaces.
    fn spaces(&self) -> usize;
    /// The anonymous mappings of an address space, in address order.
    fn mappings(&self, space: usize) -> Range<usize>;
    /// Where a mapping is.
    fn region(&self, mapping: usize) -> PageRange;
    /// The readahead word of a mapping.
    fn readahead(&self, mapping: usize) -> VmaReadahead;
    /// Changes the readahead word of a mapping.
    fn set_readahead(&mut self, mapping: usize, state: VmaReadahead);
    /// What the page-table entry of a page names, if it is a swap entry.
    fn swap_pte(&self, place: Place) -> Option<SwapEntry>;
    /// The first page of an address space whose page-table entry names a slot: what a walk through the page tables finds.
    /// Asked by slot-major swapoff only.
    fn first_place(&self, space: usize, entry: SwapEntry) -> Option<Place>;

    /// Files in memory.
    fn files(&self) -> &ShmemFiles;
    /// The same, to search in.
    fn files_mut(&mut self) -> &mut ShmemFiles;

    /// Allocates a page for a slot that is in use and not cached, and puts it into the swap cache.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    fn read(&mut self, entry: SwapEntry, ahead: bool) -> Result<(), Errno>;
    /// Maps the cached page of the slot that the page-table entry names, or a poison marker, and drops one reference.
    fn map(&mut self, place: Place, poisoned: bool);
    /// Puts the cached page of a file's slot into the file, or a poison marker, and drops the slot's one reference.
    fn give_to_file(&mut self, file: FileId, index: u64, poisoned: bool);
    /// Takes the page of a slot out of the swap cache when nothing refers to the slot, which frees it (`folio_free_swap`);
    /// whether it did.
    fn free_if_unused(&mut self, entry: SwapEntry) -> bool;
}

/// The books of a machine whose page tables do not name slots: a swap table is in between.
pub trait SlotTable {
    /// Slots of the area that is to be emptied.
    fn slots(&self) -> u64;
    /// The first slot in use at or after `from`.
    fn next_used(&self, from: u64) -> Option<u64>;
    /// The page of a slot is in memory: its swap table entry says so from now on, and the slot is free.
    fn relocate(&mut self, slot: u64);
}

/// The same books as readahead wants them, for a window around a page of one mapping.
pub struct ReadaheadBooks<'a, B> {
    /// The books.
    pub books: &'a mut B,
    /// The mapping.
    pub mapping: usize,
}

impl<B: SwapoffBooks> SwapBooks for ReadaheadBooks<'_, B> {
    fn area(&self, area: u8) -> Option<AreaFacts> {
        self.books.area(area)
    }
    fn count(&self, entry: SwapEntry) -> u32 {
        u32::try_from(self.books.count(entry)).unwrap_or(u32::MAX)
    }
    fn is_cached(&self, entry: SwapEntry) -> bool {
        self.books.is_cached(entry)
    }
    fn take_ahead(&mut self, entry: SwapEntry) -> bool {
        self.books.take_ahead(entry)
    }
    fn swap_pte(&self, page: PageNumber) -> Option<SwapEntry> {
        self.books.swap_pte(Place { mapping: self.mapping, page })
    }
}
