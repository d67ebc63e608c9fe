//! A machine with pages in swap, small enough to run swapoff and faults on: address spaces, files, areas, and no bytes.
//!
//! It keeps what the searches of swapoff need (who refers to a slot), which a kernel has not. Pages are in memory or in swap;
//! reclaim is whoever calls [`SwappedMemory::swap_out`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use super::do_swap_page::{AreaFacts, Caller, Read, SwapIn, SwapInPath, SwappedIn};
use super::errno::Errno;
use super::shmem::{FileId, ShmemFiles, ShmemViolation};
use super::slot_alloc::AllocHost;
use super::swap_areas::{AreasViolation, NoSlot, SwapAreas};
use super::swap_entry::SwapEntry;
use super::swap_map::Left;
use super::swapin_readahead::{Mapping, VmaReadahead};
use super::try_to_unuse::{Place, ReadaheadBooks, SlotTable, SwapoffBooks};
use uswap_core::units::PageRange;

/// A page-table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pte {
    /// Never touched.
    None,
    /// Mapped.
    Present,
    /// A marker: the page could not be read, and whoever touches it gets SIGBUS.
    Poisoned,
    /// In swap.
    Swapped(SwapEntry),
}

/// One word: the kind in the low two bits, then five bits of area, then the slot.
#[derive(Clone, Copy)]
struct PackedPte(u64);

impl PackedPte {
    fn pack(pte: Pte) -> Self {
        Self(match pte {
            Pte::None => 0,
            Pte::Present => 1,
            Pte::Poisoned => 2,
            Pte::Swapped(entry) => 3 | u64::from(entry.area) << 2 | entry.slot << 7,
        })
    }

    fn unpack(self) -> Pte {
        match self.0 & 3 {
            0 => Pte::None,
            1 => Pte::Present,
            2 => Pte::Poisoned,
            _ => Pte::Swapped(SwapEntry { area: (self.0 >> 2 & 31) as u8, slot: self.0 >> 7 }),
        }
    }
}

struct Anonymous {
    region: PageRange,
    ptes: Vec<PackedPte>,
    readahead: VmaReadahead,
}

/// Of each slot of an area: the first page that refers to it, and whether readahead brought it.
#[derive(Default)]
struct AreaIndex {
    /// Mapping and page in one word, plus 1; 0 for none.
    first_owner: Vec<u64>,
    ahead: Vec<u64>,
}

/// Bits of a page number relative to its mapping, in an owner's word.
const PAGE_BITS: u32 = 40;

/// Something does not agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryViolation {
    /// The areas.
    Areas(AreasViolation),
    /// The files.
    Files(ShmemViolation),
    /// References of page tables and files to a slot, and its count.
    Count {
        /// The slot.
        entry: SwapEntry,
        /// Page-table entries and pages of files that name it.
        named: u64,
        /// What the map says.
        count: u64,
    },
    /// An area is said to be empty and is not.
    NotOff {
        /// Its slots in use.
        in_use: u64,
        /// A slot of it that a page table or a file names.
        named: Option<SwapEntry>,
    },
}

impl fmt::Display for MemoryViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Areas(violation) => violation.fmt(f),
            Self::Files(violation) => violation.fmt(f),
            Self::Count { entry, named, count } => {
                write!(f, "slot {} of area {} is named {named} times and counts {count}", entry.slot, entry.area)
            }
            Self::NotOff { in_use, named: None } => write!(f, "swapoff left {in_use} slots in use"),
            Self::NotOff { in_use, named: Some(entry) } => {
                write!(f, "swapoff left {in_use} slots in use, and slot {} of area {} named", entry.slot, entry.area)
            }
        }
    }
}

/// The machine.
pub struct SwappedMemory {
    areas: SwapAreas,
    spaces: Vec<Range<usize>>,
    mappings: Vec<Anonymous>,
    files: ShmemFiles,
    index: BTreeMap<u8, AreaIndex>,
    /// Pages after the first that refer to a slot.
    more_owners: BTreeMap<SwapEntry, Vec<Place>>,
    /// Pages that may still be allocated.
    room_pages: u64,
}

impl SwappedMemory {
    /// No address space, no file, room for all pages.
    pub fn new(areas: SwapAreas) -> Self {
        Self {
            areas,
            spaces: Vec::new(),
            mappings: Vec::new(),
            files: ShmemFiles::default(),
            index: BTreeMap::new(),
            more_owners: BTreeMap::new(),
            room_pages: u64::MAX,
        }
    }

    /// The areas.
    pub fn areas(&self) -> &SwapAreas {
        &self.areas
    }

    /// The areas, to put one into or out of service.
    pub fn areas_mut(&mut self) -> &mut SwapAreas {
        &mut self.areas
    }

    /// The files, to add pages.
    pub fn files_mut(&mut self) -> &mut ShmemFiles {
        &mut self.files
    }

    /// From now on so many pages can be allocated, and then no more.
    pub fn set_room(&mut self, pages: u64) {
        self.room_pages = pages;
    }

    /// Adds an address space, at the end of the list.
    pub fn add_space(&mut self) -> usize {
        let next = self.mappings.len();
        self.spaces.push(next..next);
        self.spaces.len() - 1
    }

    /// Adds a mapping to the address space that was added last; its number.
    ///
    /// # Panics
    /// When there is no address space.
    pub fn add_mapping(&mut self, region: PageRange) -> usize {
        let ptes = alloc::vec![PackedPte::pack(Pte::None); region.pages as usize];
        self.mappings.push(Anonymous { region, ptes, readahead: VmaReadahead::default() });
        self.spaces.last_mut().expect("there is an address space").end += 1;
        self.mappings.len() - 1
    }

    /// A page-table entry.
    pub fn pte(&self, place: Place) -> Pte {
        let mapping = &self.mappings[place.mapping];
        mapping.ptes[(place.page.0 - mapping.region.start.0) as usize].unpack()
    }

    /// A page is written for the first time, or mapped by whatever way.
    pub fn set_present(&mut self, place: Place) {
        assert!(!matches!(self.pte(place), Pte::Swapped(_)), "a swapped page comes in by a fault");
        self.set_pte(place, Pte::Present);
    }

    /// A page leaves memory: a slot is found for it on a CPU, written, and its page table refers to it.
    ///
    /// # Errors
    /// When there is no slot.
    pub fn swap_out<H: AllocHost>(&mut self, place: Place, cpu: usize, host: &mut H) -> Result<SwapEntry, NoSlot> {
        let entry = self.areas.alloc(cpu, 0, host)?;
        self.swap_out_to(place, entry);
        let _ = self.areas.put_cache(entry);
        Ok(entry)
    }

    /// A page-table entry comes to name a slot that is in use or handed out. More than one may name it: fork, or merged
    /// pages.
    pub fn swap_out_to(&mut self, place: Place, entry: SwapEntry) {
        assert!(!matches!(self.pte(place), Pte::Swapped(_)), "the page is in swap already");
        self.areas.duplicate(entry).expect("the slot is in use");
        self.set_pte(place, Pte::Swapped(entry));
        let word = self.pack_owner(place);
        let slots = self.areas.area(entry.area).slots() as usize;
        let owner =
            &mut self.index.entry(entry.area).or_insert_with(|| AreaIndex::of(slots)).first_owner[entry.slot as usize];
        if *owner == 0 {
            *owner = word;
        } else {
            self.more_owners.entry(entry).or_default().push(place);
        }
    }

    /// A slot whose page was handed out to the swap cache leaves it: the page has been written and dropped.
    pub fn drop_from_cache(&mut self, entry: SwapEntry) {
        let _ = self.areas.put_cache(entry);
    }

    /// A page of a file leaves memory.
    ///
    /// # Errors
    /// When there is no slot.
    pub fn swap_out_file<H: AllocHost>(
        &mut self,
        file: FileId,
        index: u64,
        cpu: usize,
        host: &mut H,
    ) -> Result<SwapEntry, NoSlot> {
        let entry = self.areas.alloc(cpu, 0, host)?;
        self.areas.give_to_shmem(entry);
        self.files.swap_out(file, index, entry);
        let _ = self.areas.put_cache(entry);
        Ok(entry)
    }

    /// A thread touches a page that is in swap: what is read goes to `reads`, and the page is mapped. `write` frees the slot
    /// at once when nobody else has it, and so does a read while more than half of swap is in use; otherwise the slot keeps
    /// its copy.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] when no page can be allocated.
    ///
    /// # Panics
    /// When the page is not in swap.
    pub fn fault(
        &mut self,
        path: &mut SwapInPath,
        place: Place,
        write: bool,
        reads: &mut Vec<Read>,
    ) -> Result<SwapIn, Errno> {
        let Pte::Swapped(entry) = self.pte(place) else { panic!("the page is not in swap") };
        let mut state = self.mappings[place.mapping].readahead;
        let region = self.mappings[place.mapping].region;
        let mapping = Mapping { state: &mut state, region, page: place.page };
        let books = &mut ReadaheadBooks { books: self, mapping: place.mapping };
        let swap_in = path.swap_in(entry, Caller::Fault(mapping), books, reads);
        self.mappings[place.mapping].readahead = state;
        for read in &*reads {
            match SwapoffBooks::read(self, read.entry, read.ahead) {
                Err(no_memory) if read.entry == entry => return Err(no_memory),
                Ok(()) | Err(_) => {}
            }
        }
        if swap_in.outcome == SwappedIn::Bypass {
            SwapoffBooks::read(self, entry, false)?;
        }
        self.map(place, false);
        if swap_in.outcome == SwappedIn::Bypass || write || self.areas.swap_full() {
            self.free_if_unused(entry);
        }
        Ok(swap_in)
    }

    /// Checks the areas, the files, and every count against who names the slot.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self) -> Result<(), MemoryViolation> {
        self.areas.check().map_err(MemoryViolation::Areas)?;
        self.files.check().map_err(MemoryViolation::Files)?;
        let mut named: BTreeMap<SwapEntry, u64> = BTreeMap::new();
        for pte in self.mappings.iter().flat_map(|mapping| &mapping.ptes) {
            if let Pte::Swapped(entry) = pte.unpack() {
                *named.entry(entry).or_default() += 1;
            }
        }
        for number in self.areas.numbers() {
            let map = self.areas.area(number).map();
            for slot in 1..map.slots() {
                let entry = SwapEntry { area: number, slot };
                let by_file = u64::from(self.files.owner(entry).is_some());
                let named = named.remove(&entry).unwrap_or(0) + by_file;
                if named != map.count(slot) {
                    return Err(MemoryViolation::Count { entry, named, count: map.count(slot) });
                }
            }
        }
        match named.first_key_value() {
            Some((&entry, &named)) => Err(MemoryViolation::Count { entry, named, count: 0 }),
            None => Ok(()),
        }
    }

    /// Checks what must hold once swapoff has returned 0: no slot in use, and nothing that names one.
    ///
    /// # Errors
    /// [`MemoryViolation::NotOff`].
    pub fn check_off(&self, area: u8) -> Result<(), MemoryViolation> {
        let in_use = self.areas.area(area).in_use();
        let in_ptes = self.mappings.iter().flat_map(|mapping| &mapping.ptes).find_map(|pte| match pte.unpack() {
            Pte::Swapped(entry) if entry.area == area => Some(entry),
            _ => None,
        });
        let slots = || (1..self.areas.area(area).slots()).map(|slot| SwapEntry { area, slot });
        let named = in_ptes.or_else(|| slots().find(|&entry| self.files.owner(entry).is_some()));
        if in_use > 0 || named.is_some() { Err(MemoryViolation::NotOff { in_use, named }) } else { Ok(()) }
    }

    fn set_pte(&mut self, place: Place, pte: Pte) {
        let mapping = &mut self.mappings[place.mapping];
        mapping.ptes[(place.page.0 - mapping.region.start.0) as usize] = PackedPte::pack(pte);
    }

    fn pack_owner(&self, place: Place) -> u64 {
        let page = place.page.0 - self.mappings[place.mapping].region.start.0;
        ((place.mapping as u64) << PAGE_BITS | page) + 1
    }

    fn unpack_owner(&self, word: u64) -> Option<Place> {
        let word = word.checked_sub(1)?;
        let mapping = (word >> PAGE_BITS) as usize;
        let page = self.mappings[mapping].region.start.plus(word & ((1 << PAGE_BITS) - 1));
        Some(Place { mapping, page })
    }

    /// Everybody whose page table refers to a slot.
    fn owners(&self, entry: SwapEntry) -> impl Iterator<Item = Place> {
        let first = self.index.get(&entry.area).and_then(|index| index.first_owner.get(entry.slot as usize));
        let more = self.more_owners.get(&entry).into_iter().flatten().copied();
        first.and_then(|&word| self.unpack_owner(word)).into_iter().chain(more)
    }

    fn forget_owner(&mut self, place: Place, entry: SwapEntry) {
        let word = self.pack_owner(place);
        let mut rest = self.more_owners.remove(&entry).unwrap_or_default();
        let next = rest.last().map_or(0, |&last| self.pack_owner(last));
        let index = self.index.get_mut(&entry.area).expect("the slot has an owner");
        let first = &mut index.first_owner[entry.slot as usize];
        if *first == word {
            *first = next;
            rest.pop();
        } else {
            rest.retain(|&other| other != place);
        }
        if !rest.is_empty() {
            self.more_owners.insert(entry, rest);
        }
    }
}

impl AreaIndex {
    fn of(slots: usize) -> Self {
        Self { first_owner: alloc::vec![0; slots], ahead: alloc::vec![0; slots.div_ceil(64)] }
    }
}

impl SwapoffBooks for SwappedMemory {
    fn area(&self, number: u8) -> Option<AreaFacts> {
        self.areas.numbers().any(|there| there == number).then(|| {
            let area = self.areas.area(number);
            let synchronous = area.device().synchronous_io;
            AreaFacts { slots: area.slots(), synchronous, going_off: !area.is_in_service() }
        })
    }
    fn in_use(&self, area: u8) -> u64 {
        self.areas.area(area).in_use()
    }
    fn next_used(&self, area: u8, from: u64) -> Option<u64> {
        self.areas.area(area).map().next_used(from)
    }
    fn count(&self, entry: SwapEntry) -> u64 {
        self.areas.area(entry.area).map().count(entry.slot)
    }
    fn is_cached(&self, entry: SwapEntry) -> bool {
        self.areas.area(entry.area).map().has_cache(entry.slot)
    }
    fn take_ahead(&mut self, entry: SwapEntry) -> bool {
        let Some(index) = self.index.get_mut(&entry.area) else { return false };
        let (word, bit) = (entry.slot as usize / 64, 1 << (entry.slot % 64));
        let was = index.ahead[word] & bit != 0;
        index.ahead[word] &= !bit;
        was
    }
    fn spaces(&self) -> usize {
        self.spaces.len()
    }
    fn mappings(&self, space: usize) -> Range<usize> {
        self.spaces[space].clone()
    }
    fn region(&self, mapping: usize) -> PageRange {
        self.mappings[mapping].region
    }
    fn readahead(&self, mapping: usize) -> VmaReadahead {
        self.mappings[mapping].readahead
    }
    fn set_readahead(&mut self, mapping: usize, state: VmaReadahead) {
        self.mappings[mapping].readahead = state;
    }
    fn swap_pte(&self, place: Place) -> Option<SwapEntry> {
        match self.pte(place) {
            Pte::Swapped(entry) => Some(entry),
            Pte::None | Pte::Present | Pte::Poisoned => None,
        }
    }
    fn first_place(&self, space: usize, entry: SwapEntry) -> Option<Place> {
        self.owners(entry).filter(|place| self.spaces[space].contains(&place.mapping)).min()
    }
    fn files(&self) -> &ShmemFiles {
        &self.files
    }
    fn files_mut(&mut self) -> &mut ShmemFiles {
        &mut self.files
    }
    fn read(&mut self, entry: SwapEntry, ahead: bool) -> Result<(), Errno> {
        self.room_pages = self.room_pages.checked_sub(1).ok_or(Errno::ENOMEM)?;
        self.areas.pin_cache(entry).expect("the slot is in use and not cached");
        let slots = self.areas.area(entry.area).slots() as usize;
        let index = self.index.entry(entry.area).or_insert_with(|| AreaIndex::of(slots));
        let (word, bit) = (entry.slot as usize / 64, 1 << (entry.slot % 64));
        if ahead {
            index.ahead[word] |= bit;
        } else {
            index.ahead[word] &= !bit;
        }
        Ok(())
    }
    fn map(&mut self, place: Place, poisoned: bool) {
        let Pte::Swapped(entry) = self.pte(place) else { panic!("only a swapped page is mapped") };
        self.set_pte(place, if poisoned { Pte::Poisoned } else { Pte::Present });
        self.forget_owner(place, entry);
        let _ = self.areas.put(entry);
    }
    fn give_to_file(&mut self, file: FileId, index: u64, poisoned: bool) {
        let entry = if poisoned { self.files.poison(file, index) } else { self.files.swap_in(file, index) };
        let _ = self.areas.put(entry);
    }
    fn free_if_unused(&mut self, entry: SwapEntry) -> bool {
        if self.is_cached(entry) && self.count(entry) == 0 {
            self.take_ahead(entry);
            return self.areas.put_cache(entry) == Left::Free;
        }
        false
    }
}

/// One area of the machine, as swapoff by table sees it: the owners that the kernel searches for are known.
pub struct AreaTable<'a> {
    memory: &'a mut SwappedMemory,
    area: u8,
}

impl<'a> AreaTable<'a> {
    /// The area with this number.
    pub fn new(memory: &'a mut SwappedMemory, area: u8) -> Self {
        Self { memory, area }
    }
}

impl SlotTable for AreaTable<'_> {
    fn slots(&self) -> u64 {
        self.memory.areas.area(self.area).slots()
    }
    fn next_used(&self, from: u64) -> Option<u64> {
        SwapoffBooks::next_used(self.memory, self.area, from)
    }
    fn relocate(&mut self, slot: u64) {
        let entry = SwapEntry { area: self.area, slot };
        if !self.memory.is_cached(entry) {
            self.memory.areas.pin_cache(entry).expect("the slot is in use");
        }
        if let Some((file, index)) = self.memory.files.owner(entry) {
            self.memory.give_to_file(file, index, false);
        }
        let owners: Vec<_> = self.memory.owners(entry).collect();
        for place in owners {
            self.memory.map(place, false);
        }
        assert!(self.memory.free_if_unused(entry), "slot {slot} is still referred to");
    }
}

#[cfg(test)]
pub(crate) mod tests;
