//! Ledger: which entries of a parent a forked child, or a child of that child, may still read.
//!
//! One bit for each entry that existed at the fork, in memory that parent and child share. The child clears the bit of an
//! entry that it needs no more; the parent frees the content when the bit is clear or all holders are dead. There is no
//! lock: kill -9 at any instruction leaves at worst some content longer than needed.
//!
//! A child that is killed before it has registered leaves its fork pending, and so does a fork that failed where libc forks by
//! itself. The group knows of both ([`Heirs`]): such a ledger ends when all who could hold it have been seen to be at work or
//! gone for a while.
//!
//! The parent may move the content of such an entry from its pool to an area, and write down here where it is by then, before it frees the
//! object ([`Ledger::tell_moved`]). Whoever reads the object meanwhile finds that it does not have its hash, and looks here once more.
//!
//! A child that forks in turn shares its ledger with its own child. From then on nobody clears bits in it, because nobody
//! knows what the other still needs: all goes when the last holder dies.

#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use uswap_core::defects::{Sabotage, is_on};
use uswap_core::{EntryId, EntrySet, Location};
use uswap_sys::placement;
use uswap_system::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

use crate::group::{Heirs, Holder};

/// Holders whose lives are watched. A ledger with more is kept as long as the group knows of any heir.
const HOLDERS_MAX: usize = 62;

/// Looks of the parent's monitor, 20 ms apart at least. The supervisor tells within seconds who is on the way, but may take a
/// child for dead whose parent was stopped in the middle of the fork: then the parent, too, has not looked.
const LOST_LOOKS: u32 = 100;

/// Ledgers in which it is written where a content has gone: a word in each, for an object of some hundred bytes.
const TOLD_MAX: usize = 32;

/// Whether a child may still read `entry`.
pub(crate) fn heirs_hold(heirs: &[Ledger], entry: EntryId) -> bool {
    heirs.iter().any(|ledger| ledger.holds(entry))
}

/// Whether the object of `entry` stays in the pool for the sake of children that may read it: one has read it since this was last asked, or
/// there are too many to be told.
pub(crate) fn heirs_keep(heirs: &[Ledger], entry: EntryId) -> bool {
    let (mut holding, mut was_read) = (0, false);
    for ledger in heirs.iter().filter(|ledger| ledger.holds(entry)) {
        holding += 1;
        was_read |= ledger.take_read(entry);
    }
    was_read || holding > TOLD_MAX
}

/// Children that may read `entry` are told that its content is at `place`.
pub(crate) fn tell_heirs(heirs: &[Ledger], entry: EntryId, place: Location) {
    if !is_on(Sabotage::HeirsNotTold) {
        heirs.iter().filter(|ledger| ledger.holds(entry)).for_each(|ledger| ledger.tell_moved(entry, place));
    }
    // Before the object is another's.
    fence(Release);
}

#[repr(C)]
struct Header {
    /// Each a [`Holder`]; 0: it is just being written, or was to be by a child that has been killed.
    holders: [AtomicU64; HOLDERS_MAX],
    /// Holders that have registered; beyond [`HOLDERS_MAX`] their number only.
    registered: AtomicU32,
    /// Forks that began and whose child has not registered.
    pending: AtomicU32,
}

/// # Invariants
/// `base` points to `len` bytes of shared memory that stay mapped as long as the process lives or until
/// [`Ledger::discard`]: a header, then for each of `entries` entries, rounded up to whole words of bits, one bit that says whether it is held,
/// one whether it was read, and one word that says where its content has gone.
pub struct Ledger {
    base: NonNull<u8>,
    len: usize,
    entries: u32,
    /// Looks in a row in which no holder was to be seen.
    lost: u32,
}

// SAFETY: the memory is accessed through atomics only.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

/// Bytes of one bit for each of so many entries.
fn bits_bytes(entries: u32) -> usize {
    (entries as usize).div_ceil(64) * 8
}

impl Ledger {
    /// A ledger for entries below `entries`, which nobody holds.
    pub fn new(entries: u32) -> io::Result<Ledger> {
        let len = size_of::<Header>() + (2 + 64) * bits_bytes(entries);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let base = placement::map(len, protection, MapFlags::SHARED | MapFlags::NORESERVE, None)?;
        Ok(Ledger { base: base.cast(), len, entries, lost: 0 })
    }

    /// Whether it can tell of entries below `entries`.
    pub fn has_room_for(&self, entries: u32) -> bool {
        self.entries >= entries
    }

    /// The child of the fork that begins will hold these, and nobody holds any yet.
    pub fn fork_begins_with(&self, held: &EntrySet) {
        for (index, &bits) in held.words().iter().enumerate().filter(|_| !is_on(Sabotage::LedgerBitNotSet)) {
            if let Some((word, _)) = self.place(EntryId(index as u32 * u64::BITS)) {
                word.store(bits, Relaxed);
            }
        }
        self.header().pending.store(1, Release);
    }

    fn header(&self) -> &Header {
        // SAFETY: by the invariant a header of atomics lies at `base`, which is page-aligned.
        unsafe { self.base.cast().as_ref() }
    }

    /// A word behind the header, if it is one of an entry that there was.
    fn word(&self, entry: EntryId, offset: usize) -> Option<&AtomicU64> {
        // SAFETY: by the invariant the words of an entry below `entries` lie inside the mapping; they are aligned, because the header's
        // size is a multiple of eight.
        (entry.0 < self.entries).then(|| unsafe { self.base.add(size_of::<Header>() + offset).cast().as_ref() })
    }

    /// The bit that follows so many bytes of bits.
    fn bit(&self, entry: EntryId, behind: usize) -> Option<(&AtomicU64, u64)> {
        Some((self.word(entry, behind + entry.0 as usize / 64 * 8)?, 1 << (entry.0 % 64)))
    }

    fn place(&self, entry: EntryId) -> Option<(&AtomicU64, u64)> {
        self.bit(entry, 0)
    }

    fn read_place(&self, entry: EntryId) -> Option<(&AtomicU64, u64)> {
        self.bit(entry, bits_bytes(self.entries))
    }

    fn moved_place(&self, entry: EntryId) -> Option<&AtomicU64> {
        self.word(entry, 2 * bits_bytes(self.entries) + entry.0 as usize * 8)
    }

    /// Where the owner has moved the content of `entry`, if it has. Whoever has read another object in its place is told of it from then on.
    pub fn moved(&self, entry: EntryId) -> Option<Location> {
        let word = self.moved_place(entry)?.load(Acquire);
        (word != 0).then(|| Location::unpack(word))
    }

    /// Owner: the content of `entry` is at `place`, a slot. Its object is freed after that.
    fn tell_moved(&self, entry: EntryId, place: Location) {
        if let Some(word) = self.moved_place(entry) {
            word.store(place.pack(), Release);
        }
    }

    /// Holder: has read the object of `entry`.
    pub fn note_read(&self, entry: EntryId) {
        if let Some((word, bit)) = self.read_place(entry).filter(|(word, bit)| word.load(Relaxed) & bit == 0) {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// Whether that was so since the owner last asked.
    fn take_read(&self, entry: EntryId) -> bool {
        let was_read = self.read_place(entry).filter(|(word, bit)| word.load(Relaxed) & bit != 0);
        was_read.inspect(|(word, bit)| _ = word.fetch_and(!bit, Relaxed)).is_some()
    }

    /// Child: this process, which is `holder`, holds what the ledger says.
    pub fn register(&self, holder: Holder) {
        let index = self.header().registered.fetch_add(1, AcqRel) as usize;
        if let Some(place) = self.header().holders.get(index) {
            place.store(holder.word(), Release);
        }
        let _ = self.header().pending.fetch_update(AcqRel, Acquire, |pending| pending.checked_sub(1));
    }

    /// A holder is about to fork: its child will hold the same.
    pub fn fork_begins(&self) {
        self.header().pending.fetch_add(1, AcqRel);
    }

    /// The fork made no child.
    pub fn fork_failed(&self) {
        let _ = self.header().pending.fetch_update(AcqRel, Acquire, |pending| pending.checked_sub(1));
    }

    /// Holder: needs `entry` no more. Nothing happens when others may hold it too.
    pub fn give_up(&self, entry: EntryId) {
        let header = self.header();
        let alone = header.registered.load(Acquire) == 1 && header.pending.load(Acquire) == 0;
        if let Some((word, bit)) = self.place(entry).filter(|_| alone || is_on(Sabotage::GivenUpForAll)) {
            word.fetch_and(!bit, AcqRel);
        }
    }

    /// No holder can read `entry` any more.
    pub fn forget(&self, entry: EntryId) {
        if let Some((word, bit)) = self.place(entry) {
            word.fetch_and(!bit, AcqRel);
        }
    }

    /// Whether a fork has begun whose child has not registered.
    pub fn is_pending(&self) -> bool {
        self.header().pending.load(Acquire) != 0
    }

    /// Whether a holder may still read `entry`.
    pub fn holds(&self, entry: EntryId) -> bool {
        self.place(entry).is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
    }

    /// Whether a holder may be alive, `heirs` being those of the process that owns the entries, and `lives` what the group knows
    /// of one. To be asked now and then.
    pub fn is_alive(&mut self, heirs: Heirs, lives: impl Fn(Holder) -> bool) -> bool {
        let header = self.header();
        let registered = header.registered.load(Acquire);
        let (is_held, is_coming) = self.holders(registered as usize, lives);
        // In this order: the forks of a holder that has been seen dead had begun, and are pending still or registered.
        let is_pending =
            is_coming || header.pending.load(Acquire) != 0 || header.registered.load(Acquire) != registered;
        let may_be_alive = match heirs {
            Heirs::Arriving => is_held || is_pending,
            Heirs::Present => is_held,
            // Whose process runs another program holds nothing.
            Heirs::None => false,
        };
        self.lost = if may_be_alive { 0 } else { self.lost + 1 };
        (is_held || is_pending) && self.lost < LOST_LOOKS
    }

    /// Whether a holder lives, and whether one is just being written down, of so many that have registered.
    fn holders(&self, registered: usize, lives: impl Fn(Holder) -> bool) -> (bool, bool) {
        let Some(holders) = self.header().holders.get(..registered) else { return (true, false) };
        let mut found = (false, false);
        for holder in holders {
            match Holder::of_word(holder.load(Acquire)) {
                Some(holder) => found.0 |= lives(holder),
                None => found.1 = true,
            }
        }
        found
    }

    /// The same ledger, mapped a second time: what a forked child has.
    pub(crate) fn map_again(&self) -> io::Result<Ledger> {
        // SAFETY: by the invariant so many bytes of shared memory are mapped there.
        let base = unsafe { placement::map_again(self.base, self.len)? };
        Ok(Ledger { base, len: self.len, entries: self.entries, lost: 0 })
    }

    /// Unmaps the ledger.
    pub fn discard(self) {
        // SAFETY: by the invariant the range is mapped and this value's own; it is consumed.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(all(test, uswap_words))]
mod words;

#[cfg(test)]
mod tests {
    use super::*;

    const LIVING: Holder = Holder { index: 0, generation: 7 };

    /// Whoever else had the slot of the living one has ended.
    fn lives(holder: Holder) -> bool {
        holder == LIVING
    }

    #[test]
    fn a_single_holder_gives_up_entries_one_by_one() {
        let mut ledger = Ledger::new(200).unwrap();
        ledger.fork_begins_with(&EntrySet::from_iter([EntryId(3), EntryId(199)]));
        assert!(ledger.is_alive(Heirs::Arriving, lives), "the child has not registered yet");
        ledger.register(LIVING);
        assert!(ledger.holds(EntryId(3)) && ledger.holds(EntryId(199)) && !ledger.holds(EntryId(4)));
        ledger.give_up(EntryId(3));
        assert!(!ledger.holds(EntryId(3)));
        assert!(ledger.is_alive(Heirs::Present, lives));
        ledger.discard();
    }

    #[test]
    fn with_two_holders_nothing_is_given_up() {
        let ledger = Ledger::new(64).unwrap();
        ledger.fork_begins_with(&EntrySet::from_iter([EntryId(3)]));
        ledger.register(LIVING);
        ledger.fork_begins();
        ledger.give_up(EntryId(3));
        assert!(ledger.holds(EntryId(3)));
        ledger.register(LIVING);
        ledger.give_up(EntryId(3));
        assert!(ledger.holds(EntryId(3)));
        ledger.discard();
    }

    /// How often in a row, at most, it is said to be alive.
    fn looks(ledger: &mut Ledger, heirs: Heirs) -> u32 {
        (0..2 * LOST_LOOKS).take_while(|_| ledger.is_alive(heirs, lives)).count() as u32
    }

    #[test]
    fn a_child_that_died_before_it_registered_holds_nothing_for_ever() {
        let mut ledger = Ledger::new(64).unwrap();
        ledger.fork_begins_with(&EntrySet::from_iter([EntryId(3)]));
        assert_eq!(looks(&mut ledger, Heirs::Arriving), 2 * LOST_LOOKS);
        // Neither those of other forks, nor none.
        assert_eq!(looks(&mut ledger, Heirs::Present), LOST_LOOKS - 1);
        assert!(ledger.is_alive(Heirs::Arriving, lives), "what was seen before does not count");
        assert_eq!(looks(&mut ledger, Heirs::None), LOST_LOOKS - 1);
        ledger.discard();
    }

    #[test]
    fn a_child_that_died_while_it_registered_holds_nothing_for_ever() {
        let mut ledger = Ledger::new(64).unwrap();
        ledger.fork_begins_with(&EntrySet::from_iter([EntryId(3)]));
        ledger.header().registered.fetch_add(1, AcqRel);
        assert_eq!(looks(&mut ledger, Heirs::Arriving), 2 * LOST_LOOKS);
        // The parent has others, of other forks.
        assert_eq!(looks(&mut ledger, Heirs::Present), LOST_LOOKS - 1);
        ledger.discard();
    }

    #[test]
    fn a_holder_counts_while_the_group_knows_it() {
        let mut ledger = Ledger::new(64).unwrap();
        ledger.fork_begins_with(&EntrySet::from_iter([EntryId(3)]));
        ledger.register(LIVING);
        // A fork of it is lost.
        ledger.fork_begins();
        assert_eq!(looks(&mut ledger, Heirs::Present), 2 * LOST_LOOKS);
        // It runs another program.
        assert_eq!(looks(&mut ledger, Heirs::None), LOST_LOOKS - 1);
        ledger.discard();
    }

    #[test]
    fn heirs_are_told_where_content_has_gone() {
        let ledgers = [Ledger::new(200).unwrap(), Ledger::new(65).unwrap()];
        ledgers[0].fork_begins_with(&EntrySet::from_iter([EntryId(64), EntryId(199)]));
        ledgers[1].fork_begins_with(&EntrySet::from_iter([EntryId(64)]));
        let place = Location::Slot { area: uswap_core::AreaId(0), slot: 0 };
        tell_heirs(&ledgers, EntryId(199), place);
        tell_heirs(&ledgers, EntryId(64), place);
        tell_heirs(&ledgers, EntryId(3), place);
        let told = |entry| ledgers.each_ref().map(|ledger| ledger.moved(EntryId(entry)));
        assert_eq!((told(64), told(199), told(3)), ([Some(place); 2], [Some(place), None], [None; 2]));
        assert!(ledgers[0].holds(EntryId(64)) && !ledgers[0].holds(EntryId(63)), "each word has its own place");
        ledgers.into_iter().for_each(Ledger::discard);
    }

    #[test]
    fn what_a_child_reads_stays_in_the_pool_for_another_round() {
        let ledgers: Vec<Ledger> = (0..=TOLD_MAX).map(|_| Ledger::new(64).unwrap()).collect();
        ledgers[0].fork_begins_with(&EntrySet::from_iter([EntryId(7)]));
        assert!(!heirs_keep(&ledgers, EntryId(7)));
        ledgers[0].note_read(EntryId(7));
        assert_eq!([7, 7, 6].map(|entry| heirs_keep(&ledgers, EntryId(entry))), [true, false, false]);
        ledgers.iter().for_each(|ledger| ledger.fork_begins_with(&EntrySet::from_iter([EntryId(7)])));
        assert!(heirs_keep(&ledgers, EntryId(7)), "so many are not told");
        ledgers.into_iter().for_each(Ledger::discard);
    }

    #[test]
    fn a_ledger_of_the_dead_is_dead() {
        let mut ledger = Ledger::new(64).unwrap();
        ledger.fork_begins_with(&EntrySet::from_iter([EntryId(3)]));
        ledger.register(Holder { generation: 6, ..LIVING });
        assert!(!ledger.is_alive(Heirs::Arriving, lives));
        assert!(!ledger.holds(EntryId(64)), "entries made after the fork are nobody's");
        ledger.discard();
    }
}
