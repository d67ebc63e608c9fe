//! The swap cache: the page in memory of each slot that has one, or what is remembered of the page that was there.
//!
//! It is the one place where the same slot meets the same memory, so swap I/O is ordered here. Whoever wants to read a slot
//! first takes the cache's reference in the swap map, its pin: the slot can then neither be freed nor handed out again. Without
//! that pin two threads could read the same slot, one of them free it and store newer data there, and the other map the old
//! data, since the page table looks unchanged (CVE-2024-26759).
//!
//! Since 6.18 it is a table of 512 words for each cluster that has anything, so a lookup is an index. A word is nothing, a page,
//! or a shadow, the memory of one that was evicted; shadows go with their slot. Source: Linux 6.18.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use super::cluster::CLUSTER_SLOTS;
use super::slot_alloc::cluster_of;
use super::swap_areas::SwapAreas;
use super::swap_entry::SwapEntry;
use super::swap_map::{Left, NotTaken};

/// A folio of the cache.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FolioId(u32);

/// What the cache knows of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CacheWord {
    /// Nothing.
    #[default]
    Empty,
    /// Its page is in memory.
    Folio(FolioId),
    /// Its page was evicted at the time that this packs.
    Shadow(u64),
}

/// A folio: one page or more, in as many slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folio {
    /// Slot of its first page.
    pub first: SwapEntry,
    /// Pages.
    pub pages: u32,
    /// Somebody holds its lock.
    pub locked: bool,
    /// It is being written to its slots.
    pub writeback: bool,
    /// Its slots do not have its content.
    pub dirty: bool,
}

/// What asking for the page of a slot that is to be read came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// It is in the cache: lock it, and look whether it is still this slot's.
    Cached(FolioId),
    /// Nobody uses the slot any more; readahead leaves it out.
    Unused,
    /// The slot is pinned for the caller, who adds a folio and reads.
    Pinned,
    /// Another party is between pin and add, or delete and unpin: sleep a tick and ask again, unless that party may be
    /// waiting for the caller (writeback of zswap gives up instead).
    Busy,
}

/// Why the slots of a folio are not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotFreed {
    /// Its lock is not held.
    Unlocked,
    /// It is being written.
    Writeback,
    /// Hibernation may be writing its image over what looks free.
    StorageSuspended,
    /// A page table still refers to a slot.
    Referenced,
}

/// Cache and map do not agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheViolation {
    /// A slot's page is in the cache, and the map says that the cache has no reference.
    NoReference(SwapEntry),
    /// A slot is free and the cache remembers something of it.
    FreeSlot(SwapEntry),
    /// A word names a folio that is not there, or whose slots are others.
    Word(SwapEntry),
}

impl fmt::Display for CacheViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entry, what) = match self {
            Self::NoReference(entry) => (entry, "is in the swap cache without a reference"),
            Self::FreeSlot(entry) => (entry, "is free and still in the swap cache"),
            Self::Word(entry) => (entry, "is another folio's in the swap cache"),
        };
        write!(f, "slot {} of area {} {what}", entry.slot, entry.area)
    }
}

type Table = [CacheWord; CLUSTER_SLOTS as usize];

/// The swap cache of a machine.
#[derive(Clone, Default)]
pub struct SwapCache {
    /// By area and cluster.
    tables: BTreeMap<(u8, u32), Box<Table>>,
    folios: Vec<Option<Folio>>,
    free_ids: Vec<FolioId>,
}

impl SwapCache {
    /// Tables that are allocated, a page each.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Pages in the cache (SwapCached of meminfo).
    pub fn cached_pages(&self) -> u64 {
        self.folios.iter().flatten().map(|folio| u64::from(folio.pages)).sum()
    }

    /// What is known of a slot. Takes no lock: whoever finds a folio locks it and asks [`belongs`](Self::belongs).
    pub fn look_up(&self, entry: SwapEntry) -> CacheWord {
        let table = self.tables.get(&(entry.area, cluster_of(entry.slot)));
        table.map_or(CacheWord::Empty, |table| table[(entry.slot % CLUSTER_SLOTS) as usize])
    }

    /// Whether a folio that was found is still the slot's.
    pub fn belongs(&self, folio: FolioId, entry: SwapEntry) -> bool {
        self.look_up(entry) == CacheWord::Folio(folio)
    }

    /// A folio.
    ///
    /// # Panics
    /// When it has left the cache.
    pub fn folio(&self, folio: FolioId) -> Folio {
        self.folios[folio.0 as usize].expect("the folio is in the swap cache")
    }

    /// A folio, to lock it or to begin or end writing it.
    ///
    /// # Panics
    /// When it has left the cache.
    pub fn folio_mut(&mut self, folio: FolioId) -> &mut Folio {
        self.folios[folio.0 as usize].as_mut().expect("the folio is in the swap cache")
    }

    /// Adds a locked folio whose slots the caller has pinned (or was just handed out), and takes out the shadow that the first
    /// of them had.
    ///
    /// # Panics
    /// When a slot is not pinned, or has a page in the cache.
    pub fn add(&mut self, first: SwapEntry, pages: u32, areas: &SwapAreas) -> (FolioId, Option<u64>) {
        let folio = Folio { first, pages, locked: true, writeback: false, dirty: false };
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.folios.push(None);
            FolioId(self.folios.len() as u32 - 1)
        });
        self.folios[id.0 as usize] = Some(folio);
        let mut shadow = None;
        for entry in slots_of(folio) {
            assert!(areas.area(entry.area).map().has_cache(entry.slot), "slot {} is not pinned", entry.slot);
            match self.set(entry, CacheWord::Folio(id)) {
                CacheWord::Folio(_) => panic!("slot {} has a page in the swap cache already", entry.slot),
                CacheWord::Shadow(old) => shadow = shadow.or(Some(old)),
                CacheWord::Empty => {}
            }
        }
        (id, shadow)
    }

    /// Takes a locked folio out, leaving a shadow when it is evicted, and gives back the cache's reference of its slots; how
    /// many of them are free now.
    ///
    /// # Panics
    /// When it is not locked, or being written.
    pub fn delete(&mut self, id: FolioId, shadow: Option<u64>, areas: &mut SwapAreas) -> u64 {
        let folio = self.folio(id);
        assert!(folio.locked && !folio.writeback, "{folio:?} cannot leave the swap cache");
        let word = shadow.map_or(CacheWord::Empty, CacheWord::Shadow);
        let mut freed = 0;
        for entry in slots_of(folio) {
            self.set(entry, word);
            if areas.put_cache(entry) == Left::Free {
                self.slot_freed(entry);
                freed += 1;
            }
        }
        self.folios[id.0 as usize] = None;
        self.free_ids.push(id);
        freed
    }

    /// A slot is free: its shadow goes.
    pub fn slot_freed(&mut self, entry: SwapEntry) {
        let was = self.set(entry, CacheWord::Empty);
        assert!(!matches!(was, CacheWord::Folio(_)), "slot {} is freed under its page", entry.slot);
    }

    /// The page of a slot is to be read: is it there, is it worth it, may the caller read it?
    pub fn get_for_read(&self, entry: SwapEntry, areas: &mut SwapAreas) -> Got {
        if let CacheWord::Folio(folio) = self.look_up(entry) {
            return Got::Cached(folio);
        }
        if areas.area(entry.area).map().count(entry.slot) == 0 {
            return Got::Unused;
        }
        match areas.pin_cache(entry) {
            Ok(()) => Got::Pinned,
            Err(NotTaken::InCache) => Got::Busy,
            Err(_) => Got::Unused,
        }
    }

    /// Frees the slots of a folio that nobody refers to (`folio_free_swap`): it leaves the cache, and is dirty, since memory has
    /// the only copy.
    ///
    /// # Errors
    /// [`NotFreed`]; nothing has changed.
    pub fn free_swap(
        &mut self,
        id: FolioId,
        storage_suspended: bool,
        areas: &mut SwapAreas,
    ) -> Result<Folio, NotFreed> {
        let folio = self.folio(id);
        let referenced = slots_of(folio).any(|entry| areas.area(entry.area).map().count(entry.slot) > 0);
        let checks = [
            (!folio.locked, NotFreed::Unlocked),
            (folio.writeback, NotFreed::Writeback),
            (storage_suspended, NotFreed::StorageSuspended),
            (referenced, NotFreed::Referenced),
        ];
        if let Some((_, no)) = checks.into_iter().find(|(fails, _)| *fails) {
            return Err(no);
        }
        self.delete(id, None, areas);
        Ok(Folio { dirty: true, ..folio })
    }

    /// Checks the cache against the map of the areas.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self, areas: &SwapAreas) -> Result<(), CacheViolation> {
        for (&(area, cluster), table) in &self.tables {
            for (index, word) in table.iter().enumerate() {
                let entry = SwapEntry { area, slot: u64::from(cluster) * CLUSTER_SLOTS + index as u64 };
                if *word == CacheWord::Empty {
                    continue;
                }
                let map = areas.area(area).map();
                if map.is_free(entry.slot) || map.is_bad(entry.slot) {
                    return Err(CacheViolation::FreeSlot(entry));
                }
                let CacheWord::Folio(id) = *word else { continue };
                let folio = self.folios.get(id.0 as usize).copied().flatten();
                if !folio.is_some_and(|folio| slots_of(folio).any(|slot| slot == entry)) {
                    return Err(CacheViolation::Word(entry));
                }
                if !map.has_cache(entry.slot) {
                    return Err(CacheViolation::NoReference(entry));
                }
            }
        }
        Ok(())
    }

    /// Changes a word; what it was. A table comes with its first word and goes with its last.
    fn set(&mut self, entry: SwapEntry, word: CacheWord) -> CacheWord {
        let key = (entry.area, cluster_of(entry.slot));
        if word == CacheWord::Empty && !self.tables.contains_key(&key) {
            return CacheWord::Empty;
        }
        let new = || Box::new([CacheWord::Empty; CLUSTER_SLOTS as usize]);
        let table = self.tables.entry(key).or_insert_with(new);
        let was = core::mem::replace(&mut table[(entry.slot % CLUSTER_SLOTS) as usize], word);
        if word == CacheWord::Empty && table.iter().all(|&word| word == CacheWord::Empty) {
            self.tables.remove(&key);
        }
        was
    }
}

fn slots_of(folio: Folio) -> impl Iterator<Item = SwapEntry> {
    let Folio { first, pages, .. } = folio;
    (0..u64::from(pages)).map(move |index| SwapEntry { slot: first.slot + index, ..first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::swapped_memory::tests::machine;

    const SHADOW: u64 = 77;

    fn entry(slot: u64) -> SwapEntry {
        SwapEntry { area: 0, slot }
    }

    /// One slot in use by so many page tables, whose page was evicted.
    fn evicted(references: u32) -> (SwapCache, SwapAreas, SwapEntry) {
        let (mut cache, mut areas, slot) = cached(references);
        let CacheWord::Folio(folio) = cache.look_up(slot) else { panic!("it was just added") };
        cache.delete(folio, Some(SHADOW), &mut areas);
        (cache, areas, slot)
    }

    /// One slot whose page is in the cache, and in so many page tables a swap entry.
    fn cached(references: u32) -> (SwapCache, SwapAreas, SwapEntry) {
        let mut areas = machine(&[1024], false).into_areas();
        let mut cache = SwapCache::default();
        let slot = areas.alloc(0, 0, &mut ()).unwrap();
        cache.add(slot, 1, &areas);
        for _ in 0..references {
            areas.duplicate(slot).unwrap();
        }
        (cache, areas, slot)
    }

    fn state(cache: &SwapCache, areas: &SwapAreas, slot: SwapEntry) -> (u64, bool, char) {
        let map = areas.area(0).map();
        let word = match cache.look_up(slot) {
            CacheWord::Empty => '-',
            CacheWord::Folio(_) => 'F',
            CacheWord::Shadow(SHADOW) => 's',
            CacheWord::Shadow(_) => '?',
        };
        (map.count(slot.slot), map.has_cache(slot.slot), word)
    }

    #[test]
    fn the_life_of_a_slot_goes_through_the_documented_states() {
        let mut areas = machine(&[1024], false).into_areas();
        let mut cache = SwapCache::default();
        let slot = areas.alloc(0, 0, &mut ()).unwrap();
        assert_eq!(state(&cache, &areas, slot), (0, true, '-'), "allocated for swap-out");
        let (folio, _) = cache.add(slot, 1, &areas);
        assert_eq!(state(&cache, &areas, slot), (0, true, 'F'), "added");
        areas.duplicate(slot).unwrap();
        areas.duplicate(slot).unwrap();
        assert_eq!(state(&cache, &areas, slot), (2, true, 'F'), "unmapped twice");
        assert_eq!(cache.delete(folio, Some(SHADOW), &mut areas), 0);
        assert_eq!(state(&cache, &areas, slot), (2, false, 's'), "written and evicted");
        assert_eq!(cache.get_for_read(slot, &mut areas), Got::Pinned);
        assert_eq!(state(&cache, &areas, slot), (2, true, 's'), "pinned for swap-in");
        let (folio, shadow) = cache.add(slot, 1, &areas);
        assert_eq!((state(&cache, &areas, slot), shadow), ((2, true, 'F'), Some(SHADOW)));
        let _ = (areas.put(slot), areas.put(slot));
        assert_eq!(state(&cache, &areas, slot), (0, true, 'F'), "mapped everywhere");
        assert!(cache.free_swap(folio, false, &mut areas).unwrap().dirty);
        assert_eq!(state(&cache, &areas, slot), (0, false, '-'), "free");
        assert_eq!((cache.tables(), areas.check()), (0, Ok(())));
    }

    #[test]
    fn t2a_the_second_reader_of_a_slot_waits_and_then_finds_the_page_table_changed() {
        let (mut cache, mut areas, slot) = evicted(1);
        // A reads past the cache.
        assert_eq!(cache.get_for_read(slot, &mut areas), Got::Pinned);
        assert_eq!(areas.pin_cache(slot), Err(NotTaken::InCache));
        for _ in 0..3 {
            assert_eq!(cache.get_for_read(slot, &mut areas), Got::Busy, "B tries again and again");
        }
        // A maps the page and lets go: reference, then pin.
        assert_eq!(areas.put(slot), Left::CacheOnly);
        assert_eq!(cache.get_for_read(slot, &mut areas), Got::Unused, "no page table refers to it any more");
        assert_eq!(areas.put_cache(slot), Left::Free);
        cache.slot_freed(slot);
        assert_eq!(cache.check(&areas), Ok(()));
    }

    #[test]
    fn a_pinned_slot_is_not_handed_out_again() {
        let (_, mut areas, slot) = evicted(1);
        areas.pin_cache(slot).unwrap();
        let _ = areas.put(slot);
        for _ in 0..1022 {
            assert_ne!(areas.alloc(0, 0, &mut ()), Ok(slot));
        }
        assert!(areas.alloc(0, 0, &mut ()).is_err());
    }

    #[test]
    fn t2b_slots_are_freed_only_when_nobody_refers_to_them_and_nothing_is_written() {
        let (mut cache, mut areas, slot) = cached(1);
        let CacheWord::Folio(folio) = cache.look_up(slot) else { panic!("it was just added") };
        assert_eq!(cache.free_swap(folio, false, &mut areas), Err(NotFreed::Referenced));
        let _ = areas.put(slot);
        cache.folio_mut(folio).writeback = true;
        assert_eq!(cache.free_swap(folio, false, &mut areas), Err(NotFreed::Writeback));
        cache.folio_mut(folio).writeback = false;
        assert_eq!(cache.free_swap(folio, true, &mut areas), Err(NotFreed::StorageSuspended));
        cache.folio_mut(folio).locked = false;
        assert_eq!(cache.free_swap(folio, false, &mut areas), Err(NotFreed::Unlocked));
        cache.folio_mut(folio).locked = true;
        assert!(cache.free_swap(folio, false, &mut areas).unwrap().dirty);
        assert!(areas.area(0).map().is_free(slot.slot));
    }

    #[test]
    fn a_folio_that_was_found_may_have_left_its_slot() {
        let (mut cache, mut areas, slot) = cached(0);
        let CacheWord::Folio(folio) = cache.look_up(slot) else { panic!("it was just added") };
        assert!(cache.belongs(folio, slot));
        cache.free_swap(folio, false, &mut areas).unwrap();
        let other = areas.alloc(0, 0, &mut ()).unwrap();
        assert_eq!(cache.add(other, 1, &areas).0, folio, "the same memory for another slot");
        assert!(!cache.belongs(folio, slot) && cache.belongs(folio, other));
    }

    #[test]
    fn a_large_folio_has_a_word_for_each_slot() {
        let mut areas = machine(&[2048], false).into_areas();
        let mut cache = SwapCache::default();
        let first = areas.alloc(0, 4, &mut ()).unwrap();
        let (folio, _) = cache.add(first, 16, &areas);
        assert!((0..16).all(|index| cache.belongs(folio, entry(first.slot + index))));
        assert_eq!((cache.cached_pages(), cache.tables(), cache.check(&areas)), (16, 1, Ok(())));
        assert_eq!(cache.delete(folio, None, &mut areas), 16);
        assert_eq!((cache.tables(), areas.area(0).in_use()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "slot 1 is not pinned")]
    fn nothing_is_added_without_a_pin() {
        let (mut cache, areas, slot) = evicted(1);
        cache.add(slot, 1, &areas);
    }

    #[test]
    fn the_checker_finds_words_that_are_wrong() {
        let (cache, areas, slot) = cached(1);
        assert_eq!(cache.check(&areas), Ok(()));

        let (unpinned, mut without) = (cache.clone(), cached(1).1);
        let _ = without.put_cache(slot);
        assert_eq!(unpinned.check(&without), Err(CacheViolation::NoReference(slot)));
        let _ = without.put(slot);
        assert_eq!(unpinned.check(&without), Err(CacheViolation::FreeSlot(slot)));

        let mut moved = cache;
        moved.folios[0].as_mut().unwrap().first = entry(9);
        assert_eq!(moved.check(&areas), Err(CacheViolation::Word(slot)));
    }
}
