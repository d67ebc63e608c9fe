//! Swap table: entry -> where the content is, and its checksum.
//!
//! Page tables hold entries, never places, so content moves between the pool and the areas without anyone walking a
//! page table. An entry is free, in use, or a zombie: no longer used here, but an heir (a forked child) may still
//! read its content, so neither the index nor the place may be used again before the engine buries it.
//!
//! Pins: whoever reads or moves a content outside the lock pins its entry first. A pinned entry that is released is
//! only condemned; the last unpin releases it.
//!
//! A fork copies the table with the rest of the memory, so each entry that either side changes for its sake costs a copy of the
//! page it lies in. Which entries a fork is about stands in sets beside them, and no entry is looked at for one. Contents lie apart from what
//! changes with each use of an entry, so that a child that only reads copies a quarter of the table.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::defects::{Sabotage, is_on};
use crate::entry::{EntryId, Epoch, Location};
use crate::entry_set::EntrySet;

/// Entries of one chunk of the table. Chunks never move, so growing costs no copy.
const CHUNK: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Free,
    InUse,
    /// Let go while it was pinned.
    Condemned,
    Zombie,
}

impl Life {
    fn is_used(self) -> bool {
        matches!(self, Life::InUse | Life::Condemned)
    }
}

/// What else is known of an entry.
#[derive(Clone, Copy)]
struct Marks(u8);

impl Marks {
    /// Its content was wanted again soon after it had left.
    const WANTED_SOON: u8 = 1;

    fn has(self, mark: u8) -> bool {
        self.0 & mark != 0
    }

    fn set(&mut self, mark: u8, to: bool) {
        self.0 = if to { self.0 | mark } else { self.0 & !mark };
    }
}

/// Where the content of an entry is, and its hash.
#[derive(Clone, Copy)]
struct Content {
    location: u64,
    hash_low: u64,
    hash_high: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    epoch: Epoch,
    life: Life,
    pins: u8,
    marks: Marks,
    /// Grows each time the index is used anew, and wraps.
    generation: u8,
    /// When its content left the program.
    stamp: u16,
}

const FREE: Entry = Entry { epoch: Epoch(0), life: Life::Free, pins: 0, marks: Marks(0), generation: 0, stamp: 0 };

#[derive(Clone)]
struct Chunk {
    contents: [Content; CHUNK],
    entries: [Entry; CHUNK],
}

impl Chunk {
    fn new() -> Box<Chunk> {
        let nothing = Content { location: 0, hash_low: 0, hash_high: 0 };
        Box::new(Chunk { contents: [nothing; CHUNK], entries: [FREE; CHUNK] })
    }
}

// One of each for each swapped page.
const _: () = assert!(size_of::<Content>() == 24 && size_of::<Entry>() == 8);

/// What became of an entry that its page has let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum LetGo {
    /// Somebody reads it at this moment: it goes with the last unpin.
    Condemned,
    /// Its index is free again; its place is the caller's to release.
    Freed(Location, Epoch),
    /// An heir may need it: it stays as a zombie until it is buried.
    Zombie,
}

/// The table.
#[derive(Clone)]
pub struct SwapTable {
    chunks: Vec<Box<Chunk>>,
    free: Vec<EntryId>,
    /// Zombies of this process's ancestors, when it was forked: free here, though they do not look so yet.
    ended: Vec<EntryId>,
    entries: u32,
    /// Entries in use.
    used: EntrySet,
    /// Those that existed at the last fork, and still do: an heir may read them.
    inherited: EntrySet,
    /// How many entries are pinned.
    pinned: u32,
    zombies: u64,
    epoch: Epoch,
    /// Whether a child may still read entries of this process's own epoch.
    has_heirs: bool,
}

impl SwapTable {
    /// An empty table of the first process of its line.
    pub fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: Vec::new(),
            ended: Vec::new(),
            entries: 0,
            used: EntrySet::default(),
            inherited: EntrySet::default(),
            pinned: 0,
            zombies: 0,
            epoch: Epoch(0),
            has_heirs: false,
        }
    }

    /// Room for so many more entries, and for letting all of them go.
    pub(crate) fn make_room(&mut self, entries: usize) -> bool {
        let all = self.entries as usize + entries;
        let to_free = self.free.try_reserve(all - self.free.len()).is_ok();
        let to_chunks = self.chunks.try_reserve(entries.div_ceil(CHUNK) + 1).is_ok();
        to_free && to_chunks && self.used.make_room(entries) && self.inherited.make_room(entries)
    }

    fn at(&self, id: EntryId) -> &Entry {
        &self.chunks[id.0 as usize / CHUNK].entries[id.0 as usize % CHUNK]
    }

    fn at_mut(&mut self, id: EntryId) -> &mut Entry {
        &mut self.chunks[id.0 as usize / CHUNK].entries[id.0 as usize % CHUNK]
    }

    fn content(&self, id: EntryId) -> &Content {
        &self.chunks[id.0 as usize / CHUNK].contents[id.0 as usize % CHUNK]
    }

    fn content_mut(&mut self, id: EntryId) -> &mut Content {
        &mut self.chunks[id.0 as usize / CHUNK].contents[id.0 as usize % CHUNK]
    }

    /// A new entry of this process for content with `hash` at `location`.
    pub fn insert(&mut self, location: Location, hash: u128) -> EntryId {
        let id = self.free.pop().unwrap_or_else(|| self.unused());
        self.used.insert(id);
        let epoch = self.epoch;
        let entry = self.at_mut(id);
        assert!(entry.life == Life::Free, "{id:?} was handed out twice");
        *entry = Entry { epoch, life: Life::InUse, generation: entry.generation.wrapping_add(1), ..FREE };
        let content = self.content_mut(id);
        *content = Content {
            location: location.pack(),
            hash_low: if is_on(Sabotage::StaleHash) { content.hash_low } else { hash as u64 },
            hash_high: (hash >> 64) as u64,
        };
        id
    }

    /// An index that is not in the list of free ones.
    fn unused(&mut self) -> EntryId {
        if let Some(id) = self.ended.pop() {
            let entry = self.at_mut(id);
            *entry = Entry { generation: entry.generation, ..FREE };
            return id;
        }
        let id = EntryId(self.entries);
        if (id.0 as usize).is_multiple_of(CHUNK) {
            self.chunks.push(Chunk::new());
        }
        self.used.grow_to(id);
        self.inherited.grow_to(id);
        self.entries += 1;
        id
    }

    /// Where the content of `id` is.
    pub fn location(&self, id: EntryId) -> Location {
        assert!(self.at(id).life != Life::Free, "{id:?} is free");
        self.place(id)
    }

    fn place(&self, id: EntryId) -> Location {
        Location::unpack(self.content(id).location)
    }

    /// 128-bit hash of the content of `id`.
    pub fn hash(&self, id: EntryId) -> u128 {
        let content = self.content(id);
        u128::from(content.hash_high) << 64 | u128::from(content.hash_low)
    }

    /// When the content of `id` left the program, by the clock of [`workingset`](crate::workingset).
    pub fn stamp(&self, id: EntryId) -> u16 {
        self.at(id).stamp
    }

    pub(crate) fn set_stamp(&mut self, id: EntryId, stamp: u16) {
        self.at_mut(id).stamp = stamp;
    }

    /// Whether the content of `id` was wanted again soon, when it last came in.
    pub(crate) fn is_wanted_soon(&self, id: EntryId) -> bool {
        self.at(id).marks.has(Marks::WANTED_SOON)
    }

    pub(crate) fn set_wanted_soon(&mut self, id: EntryId, wanted_soon: bool) {
        self.at_mut(id).marks.set(Marks::WANTED_SOON, wanted_soon);
    }

    /// Tells contents apart that use the index `id` one after another. It wraps, so it is no more than a hint.
    pub(crate) fn generation(&self, id: EntryId) -> u8 {
        self.at(id).generation
    }

    /// Which process of the line stored the content.
    pub fn epoch_of(&self, id: EntryId) -> Epoch {
        self.at(id).epoch
    }

    /// The epoch of this process.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the content belongs to an ancestor of this process.
    pub fn is_foreign(&self, id: EntryId) -> bool {
        self.at(id).epoch != self.epoch && !is_on(Sabotage::ForeignIsOwn)
    }

    /// Whether `id` is in use and not condemned.
    pub fn is_live(&self, id: EntryId) -> bool {
        id.0 < self.entries && self.at(id).life == Life::InUse
    }

    /// Number of readers and movers of `id` at this moment.
    pub fn pins(&self, id: EntryId) -> u8 {
        self.at(id).pins
    }

    /// Keeps `id` and its place until [`unpin`](Self::unpin).
    pub fn pin(&mut self, id: EntryId) {
        let entry = self.at_mut(id);
        assert!(entry.life.is_used(), "pin of {id:?}, which is not in use");
        entry.pins = entry.pins.checked_add(1).expect("more than 255 pins of one entry");
        let is_first = entry.pins == 1;
        self.pinned += u32::from(is_first);
    }

    /// Ends a pin; tells what became of a condemned entry with its last pin.
    #[must_use]
    pub fn unpin(&mut self, id: EntryId) -> Option<LetGo> {
        let entry = self.at_mut(id);
        assert!(entry.pins > 0, "unpin of {id:?}, which has no pin");
        entry.pins -= 1;
        let (is_last, is_condemned) = (entry.pins == 0, entry.life == Life::Condemned);
        self.pinned -= u32::from(is_last);
        (is_last && is_condemned).then(|| self.end(id))
    }

    /// The page of `id` needs it no more.
    pub fn let_go(&mut self, id: EntryId) -> LetGo {
        let entry = self.at_mut(id);
        assert!(entry.life == Life::InUse, "{id:?} is let go twice");
        if entry.pins > 0 && !is_on(Sabotage::PinIgnored) {
            entry.life = Life::Condemned;
            return LetGo::Condemned;
        }
        self.end(id)
    }

    fn end(&mut self, id: EntryId) -> LetGo {
        let epoch = self.at(id).epoch;
        let is_inherited = self.inherited.contains(id) && !is_on(Sabotage::HeirForgotten);
        if self.has_heirs && is_inherited && epoch == self.epoch {
            self.at_mut(id).life = Life::Zombie;
            self.used.remove(id);
            self.zombies += 1;
            return LetGo::Zombie;
        }
        self.clear(id);
        LetGo::Freed(self.place(id), epoch)
    }

    fn clear(&mut self, id: EntryId) {
        let entry = self.at_mut(id);
        *entry = Entry { generation: entry.generation, ..FREE };
        self.used.remove(id);
        self.inherited.remove(id);
        self.free.push(id);
    }

    /// No heir needs the zombie `id` any more: frees it and gives its place to the caller.
    pub fn bury(&mut self, id: EntryId) -> Location {
        assert!(self.at(id).life == Life::Zombie, "{id:?} is no zombie");
        self.clear(id);
        self.zombies -= 1;
        self.place(id)
    }

    /// The content of `id` is now at `location` (writeback, compaction, swapoff); returns where it was.
    pub fn relocate(&mut self, id: EntryId, location: Location) -> Location {
        assert!(self.at(id).life == Life::InUse, "{id:?} is relocated while not in use");
        let old = self.place(id);
        if !is_on(Sabotage::PlaceNotChanged) {
            self.content_mut(id).location = location.pack();
        }
        old
    }

    /// From here on a child may read every entry that exists now: none of them is freed before it is buried.
    pub fn add_heir(&mut self) {
        self.has_heirs = true;
        self.inherited.copy_from(&self.used);
    }

    /// No child reads entries of this process any more.
    pub fn no_heirs(&mut self) {
        self.has_heirs = false;
    }

    /// This table now is the child's: all its entries are foreign, and no heir of the parent's is its own.
    /// `zombies`, all that there are, were the parent's alone; their indices are free here. Whoever had pinned an entry is a thread
    /// of the parent: no unpin will follow here, so what was condemned ends at once. Those entries are returned, their places are
    /// the caller's to let go.
    #[must_use]
    pub fn become_child(&mut self, mut zombies: Vec<EntryId>) -> Vec<(EntryId, Location, Epoch)> {
        assert_eq!(zombies.len() as u64, self.zombies, "not all zombies are known");
        self.epoch = Epoch(self.epoch.0.checked_add(1).expect("more than 65535 generations of forks"));
        self.has_heirs = false;
        self.zombies = 0;
        if self.ended.is_empty() {
            self.ended = zombies;
        } else {
            self.ended.append(&mut zombies);
        }
        if core::mem::take(&mut self.pinned) > 0 { self.forget_pins() } else { Vec::new() }
    }

    /// Ends all pins; returns what was condemned.
    fn forget_pins(&mut self) -> Vec<(EntryId, Location, Epoch)> {
        let pinned: Vec<EntryId> = self.used.iter().filter(|&id| self.at(id).pins > 0).collect();
        let mut ended = Vec::new();
        for id in pinned {
            let Entry { life, epoch, .. } = *self.at(id);
            if life == Life::Condemned {
                self.clear(id);
                ended.push((id, self.place(id), epoch));
            } else {
                self.at_mut(id).pins = 0;
            }
        }
        ended
    }

    /// The entries in use.
    pub fn in_use(&self) -> &EntrySet {
        &self.used
    }

    /// Indices of all entries in use, in order.
    pub fn iter_in_use(&self) -> impl Iterator<Item = EntryId> + '_ {
        self.used.iter()
    }

    /// One more than the highest index ever used.
    #[expect(clippy::len_without_is_empty, reason = "how far the indices go, not how many entries there are")]
    pub fn len(&self) -> u32 {
        self.entries
    }

    /// Number of zombies.
    pub fn zombies(&self) -> u64 {
        self.zombies
    }
}

impl Default for SwapTable {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::AreaId;

    fn slot(slot: u64) -> Location {
        Location::Slot { area: AreaId(0), slot }
    }

    #[test]
    fn an_entry_keeps_place_and_hash_until_it_is_let_go() {
        let mut table = SwapTable::new();
        let id = table.insert(slot(5), 7 << 64 | 9);
        assert_eq!((table.location(id), table.hash(id)), (slot(5), 7 << 64 | 9));
        assert_eq!(table.let_go(id), LetGo::Freed(slot(5), Epoch(0)));
        assert_eq!(table.insert(slot(6), 0), id, "the index is used again");
    }

    #[test]
    fn a_pinned_entry_is_only_condemned() {
        let mut table = SwapTable::new();
        let id = table.insert(slot(5), 0);
        table.pin(id);
        assert_eq!(table.let_go(id), LetGo::Condemned);
        assert_ne!(table.insert(slot(6), 0), id);
        assert_eq!(table.unpin(id), Some(LetGo::Freed(slot(5), Epoch(0))));
    }

    #[test]
    fn with_heirs_an_entry_stays_a_zombie_until_buried() {
        let mut table = SwapTable::new();
        let id = table.insert(slot(5), 0);
        table.add_heir();
        assert_eq!(table.let_go(id), LetGo::Zombie);
        assert_ne!(table.insert(slot(6), 0), id);
        assert_eq!(table.bury(id), slot(5));
        assert_eq!(table.insert(slot(7), 0), id);
    }

    #[test]
    fn an_entry_made_after_the_fork_is_no_heirs() {
        let mut table = SwapTable::new();
        table.add_heir();
        for round in 0..10_000 {
            let id = table.insert(slot(round), 0);
            assert_eq!(table.let_go(id), LetGo::Freed(slot(round), Epoch(0)));
        }
        assert_eq!((table.len(), table.zombies()), (1, 0));
        let id = table.insert(slot(5), 0);
        table.add_heir();
        table.no_heirs();
        assert_eq!(table.let_go(id), LetGo::Freed(slot(5), Epoch(0)), "the heir is dead");
    }

    #[test]
    fn a_child_finds_every_entry_foreign_and_frees_no_place() {
        let mut table = SwapTable::new();
        let kept = table.insert(slot(5), 0);
        let zombie = table.insert(slot(6), 0);
        table.add_heir();
        let _ = table.let_go(zombie);
        assert_eq!(table.become_child(Vec::from([zombie])), []);
        assert!(table.is_foreign(kept));
        assert_eq!(table.let_go(kept), LetGo::Freed(slot(5), Epoch(0)));
        // Its index, and that of what it has let go, are used again.
        let own = [table.insert(slot(9), 0), table.insert(slot(10), 0)];
        assert_eq!((own, table.len()), ([kept, zombie], 2));
        assert!(own.iter().all(|&own| !table.is_foreign(own)));
        assert_eq!(table.zombies(), 0);
    }

    #[test]
    fn what_the_parent_was_about_to_let_go_ends_in_the_child() {
        let mut table = SwapTable::new();
        let (read, condemned) = (table.insert(slot(5), 0), table.insert(slot(6), 0));
        for id in [read, condemned] {
            table.pin(id);
        }
        assert_eq!(table.let_go(condemned), LetGo::Condemned);
        assert_eq!(table.become_child(Vec::new()), [(condemned, slot(6), Epoch(0))]);
        assert_eq!(table.iter_in_use().collect::<Vec<_>>(), [read]);
        assert_eq!((table.pins(read), table.insert(slot(7), 0)), (0, condemned));
    }

    #[test]
    #[should_panic(expected = "let go twice")]
    fn letting_go_twice_is_a_bug() {
        let mut table = SwapTable::new();
        let id = table.insert(slot(5), 0);
        let _ = table.let_go(id);
        let _ = table.let_go(id);
    }
}
