//! The swap map: one byte for each slot of an area, which counts its references.
//!
//! | byte | means |
//! |---|---|
//! | 0 | free |
//! | 0x01 to 0x3e | so many references of page tables |
//! | 0x3f | bad: never handed out |
//! | 0x40 | a bit: the swap cache, or whoever pins the slot for I/O, holds one reference |
//! | 0x80 | a bit: the count goes on in continuation pages |
//! | 0xbf | owned by shmem: one owner, never counted up |
//!
//! A count beyond 62 is written in digits: the low one in the byte (0 to 62, each of worth 1), the others 0 to 127 in pages
//! that lie parallel to a page of the map, the first of worth 63, each next one of 128 times as much. A page of digits is
//! taken when the first slot of its 4096 needs it; nothing ever overflows silently: the reference that does not fit is
//! refused, and tried again once [`SwapMap::add_continuation`] has made room.
//!
//! A slot is free when the byte is 0: no reference and no cache. Source: Linux 6.18 (the map is gone in 7.x).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use super::errno::Errno;

/// Most references that the byte itself counts.
pub const COUNT_MAX: u8 = 0x3e;
/// A slot that must not be used.
pub const BAD: u8 = 0x3f;
/// The swap cache's reference.
pub const HAS_CACHE: u8 = 0x40;
/// The count has more digits.
pub const CONTINUED: u8 = 0x80;
/// The one reference of a shmem file.
pub const SHMEM: u8 = 0xbf;

/// Slots of a page of the map, and digits of a continuation page.
const PAGE_SLOTS: usize = 4096;
/// Largest digit of a continuation page.
const DIGIT_MAX: u8 = 0x7f;

/// Why a reference was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// The slot is bad, free, or none of the area.
    NoSuchSlot,
    /// Its owner is shmem, which holds exactly one reference.
    NotCountable,
    /// The count needs a digit that there is no page for: [`SwapMap::add_continuation`], then again.
    NeedsContinuation,
    /// The cache has its reference already: somebody else is reading or writing the slot.
    InCache,
}

impl NotTaken {
    /// What the kernel's functions answer.
    pub fn errno(self) -> Errno {
        match self {
            Self::NoSuchSlot => Errno::ENOENT,
            Self::NotCountable => Errno::EINVAL,
            Self::NeedsContinuation => Errno::ENOMEM,
            Self::InCache => Errno::EEXIST,
        }
    }
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchSlot => "the slot is free, bad or outside of the area",
            Self::NotCountable => "the slot belongs to shared memory, which counts no references",
            Self::NeedsContinuation => "the count of references needs a continuation page: add one and try again",
            Self::InCache => "the slot is in the swap cache: wait and try again",
        })
    }
}

/// What is left of a slot after a reference was given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Left {
    /// Other references of page tables, or shmem's.
    Referenced,
    /// Only the swap cache's.
    CacheOnly,
    /// Nothing: the slot is free.
    Free,
}

/// The map of one area.
pub struct SwapMap {
    bytes: Vec<u8>,
    /// By page of the map: digits of its slots, lowest first.
    continuations: BTreeMap<usize, Vec<Box<[u8; PAGE_SLOTS]>>>,
}

impl SwapMap {
    /// A map of `slots` free slots, but for the header's and those in `bad`.
    ///
    /// # Panics
    /// When a bad slot lies outside of the area.
    pub fn new(slots: usize, bad: &[u64]) -> Self {
        let mut bytes = alloc::vec![0; slots];
        for slot in bad.iter().map(|&slot| slot as usize).chain([0]) {
            bytes[slot] = BAD;
        }
        Self { bytes, continuations: BTreeMap::new() }
    }

    /// Slots of the area.
    pub fn slots(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The byte of a slot.
    pub fn byte(&self, slot: u64) -> u8 {
        self.bytes[slot as usize]
    }

    /// Whether the slot can be handed out.
    pub fn is_free(&self, slot: u64) -> bool {
        self.byte(slot) == 0
    }

    /// Whether the slot must never be used.
    pub fn is_bad(&self, slot: u64) -> bool {
        self.byte(slot) == BAD
    }

    /// Whether the swap cache, or I/O, holds a reference.
    pub fn has_cache(&self, slot: u64) -> bool {
        self.byte(slot) & HAS_CACHE != 0 && !self.is_bad(slot)
    }

    /// Whether nothing but the swap cache holds the slot.
    pub fn is_cache_only(&self, slot: u64) -> bool {
        self.byte(slot) == HAS_CACHE
    }

    /// Whether shmem owns the slot.
    pub fn is_shmem(&self, slot: u64) -> bool {
        self.byte(slot) & !HAS_CACHE == SHMEM
    }

    /// References of page tables, or 1 for shmem's. The cache's does not count.
    pub fn count(&self, slot: u64) -> u64 {
        match self.byte(slot) & !HAS_CACHE {
            BAD => 0,
            SHMEM => 1,
            byte => {
                let mut total = u64::from(byte & !CONTINUED);
                let mut worth = u64::from(COUNT_MAX) + 1;
                for digit in self.digits(slot) {
                    total += u64::from(digit) * worth;
                    worth = worth.saturating_mul(u64::from(DIGIT_MAX) + 1);
                }
                total
            }
        }
    }

    /// The digits of a slot's count after the byte's own, lowest first. Empty unless the byte is [`CONTINUED`].
    pub fn digits(&self, slot: u64) -> impl Iterator<Item = u8> {
        let byte = self.byte(slot) & !HAS_CACHE;
        let continued = byte & CONTINUED != 0 && byte != SHMEM;
        let pages = self.continuations.get(&(slot as usize / PAGE_SLOTS)).filter(|_| continued);
        pages.into_iter().flatten().map(move |page| page[slot as usize % PAGE_SLOTS])
    }

    /// Hands a free slot out to the swap cache: (count 0, cached), the state in which swap-out begins.
    ///
    /// # Panics
    /// When the slot is not free: two pages would overwrite each other.
    pub fn hand_out(&mut self, slot: u64) {
        assert!(self.is_free(slot), "slot {slot} is handed out but holds {:#04x}", self.byte(slot));
        self.bytes[slot as usize] = HAS_CACHE;
    }

    /// Takes one more reference of a page table.
    ///
    /// # Errors
    /// See [`NotTaken`]; nothing has changed then.
    pub fn duplicate(&mut self, slot: u64) -> Result<(), NotTaken> {
        let byte = self.live_byte(slot)?;
        let (count, cache) = (byte & !HAS_CACHE, byte & HAS_CACHE);
        let low = count & !CONTINUED;
        if low > COUNT_MAX {
            return Err(NotTaken::NotCountable);
        }
        if low < COUNT_MAX {
            self.bytes[slot as usize] = (count + 1) | cache;
            return Ok(());
        }
        self.carry(slot)?;
        self.bytes[slot as usize] = CONTINUED | cache;
        Ok(())
    }

    /// Gives a slot of the swap cache to shmem as its one owner.
    ///
    /// # Panics
    /// When page tables refer to the slot, or it is free.
    pub fn give_to_shmem(&mut self, slot: u64) {
        assert!(self.is_cache_only(slot), "slot {slot} goes to shmem but holds {:#04x}", self.byte(slot));
        self.bytes[slot as usize] = SHMEM | HAS_CACHE;
    }

    /// Pins a slot that is in use, before it is read: the swap cache's reference.
    ///
    /// # Errors
    /// [`NotTaken::InCache`] when somebody else has it, [`NotTaken::NoSuchSlot`] for a slot that is not in use.
    pub fn pin_cache(&mut self, slot: u64) -> Result<(), NotTaken> {
        let byte = self.live_byte(slot)?;
        if byte & HAS_CACHE != 0 {
            return Err(NotTaken::InCache);
        }
        self.bytes[slot as usize] = byte | HAS_CACHE;
        Ok(())
    }

    /// Makes room for one more digit in the counts of the slot's page of the map.
    pub fn add_continuation(&mut self, slot: u64) {
        self.continuations.entry(slot as usize / PAGE_SLOTS).or_default().push(Box::new([0; PAGE_SLOTS]));
    }

    /// Continuation pages of the area, 4 KiB each.
    pub fn continuation_pages(&self) -> usize {
        self.continuations.values().map(Vec::len).sum()
    }

    /// Gives back a reference of a page table, or shmem's.
    ///
    /// # Panics
    /// When there is none: the slot may have a new owner already, who would lose its page.
    pub fn put(&mut self, slot: u64) -> Left {
        assert!(self.count(slot) > 0, "slot {slot} has no reference to give back: {:#04x}", self.byte(slot));
        let byte = self.byte(slot);
        let (count, cache) = (byte & !HAS_CACHE, byte & HAS_CACHE);
        let count = match (count, count & !CONTINUED) {
            (SHMEM, _) => 0,
            (_, 0) => self.borrow(slot),
            _ => count - 1,
        };
        self.bytes[slot as usize] = count | cache;
        self.left(slot)
    }

    /// Gives back the swap cache's reference.
    ///
    /// # Panics
    /// When it has none.
    pub fn put_cache(&mut self, slot: u64) -> Left {
        assert!(self.has_cache(slot), "slot {slot} is not in the swap cache: {:#04x}", self.byte(slot));
        self.bytes[slot as usize] &= !HAS_CACHE;
        self.left(slot)
    }

    /// The first slot at or after `from` that is in use, as the walks of swapoff look for it.
    pub fn next_used(&self, from: u64) -> Option<u64> {
        let rest = self.bytes.get(from as usize..)?;
        rest.iter().position(|&byte| byte != 0 && byte != BAD).map(|index| from + index as u64)
    }

    /// Damages the map, for tests of checkers.
    #[cfg(test)]
    pub(super) fn set_byte(&mut self, slot: u64, byte: u8) {
        self.bytes[slot as usize] = byte;
    }

    fn left(&self, slot: u64) -> Left {
        match self.byte(slot) {
            0 => Left::Free,
            HAS_CACHE => Left::CacheOnly,
            _ => Left::Referenced,
        }
    }

    fn live_byte(&self, slot: u64) -> Result<u8, NotTaken> {
        match self.bytes.get(slot as usize) {
            None | Some(&0 | &BAD) => Err(NotTaken::NoSuchSlot),
            Some(&byte) => Ok(byte),
        }
    }

    /// Adds one to the digits, lowest first. Refused, with nothing changed, when the last digit that there is would overflow.
    fn carry(&mut self, slot: u64) -> Result<(), NotTaken> {
        let index = slot as usize % PAGE_SLOTS;
        let pages = self.continuations.get_mut(&(slot as usize / PAGE_SLOTS)).ok_or(NotTaken::NeedsContinuation)?;
        let grows = pages.iter().position(|page| page[index] < DIGIT_MAX).ok_or(NotTaken::NeedsContinuation)?;
        for page in &mut pages[..grows] {
            page[index] = 0;
        }
        pages[grows][index] += 1;
        Ok(())
    }

    /// Takes one from the digits; the byte's new count without the cache's bit.
    fn borrow(&mut self, slot: u64) -> u8 {
        let index = slot as usize % PAGE_SLOTS;
        let pages = self.continuations.get_mut(&(slot as usize / PAGE_SLOTS)).expect("a continued count has digits");
        let shrinks = pages.iter().position(|page| page[index] > 0).expect("a continued count is more than 62");
        for page in &mut pages[..shrinks] {
            page[index] = DIGIT_MAX;
        }
        pages[shrinks][index] -= 1;
        let more = pages.iter().any(|page| page[index] > 0);
        if more { COUNT_MAX | CONTINUED } else { COUNT_MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Slot 9 handed out, with so many references.
    fn referenced(count: u64) -> SwapMap {
        let mut map = SwapMap::new(64, &[]);
        map.hand_out(9);
        for _ in 0..count {
            duplicate(&mut map, 9);
        }
        map
    }

    fn duplicate(map: &mut SwapMap, slot: u64) {
        if map.duplicate(slot) == Err(NotTaken::NeedsContinuation) {
            map.add_continuation(slot);
            map.duplicate(slot).expect("there is room now");
        }
    }

    fn digits(map: &SwapMap) -> Vec<u8> {
        map.digits(9).collect()
    }

    #[test]
    fn t1_5_the_63rd_reference_goes_into_a_digit_and_comes_back() {
        let mut map = referenced(62);
        assert_eq!((map.byte(9), map.continuation_pages()), (0x3e | HAS_CACHE, 0));
        assert_eq!(map.duplicate(9), Err(NotTaken::NeedsContinuation));
        assert_eq!(NotTaken::NeedsContinuation.errno(), Errno::ENOMEM);
        map.add_continuation(9);
        map.duplicate(9).unwrap();
        assert_eq!((map.byte(9), digits(&map), map.count(9)), (CONTINUED | HAS_CACHE, alloc::vec![1], 63));
        assert_eq!(map.put(9), Left::Referenced);
        assert_eq!((map.byte(9), map.count(9)), (0x3e | HAS_CACHE, 62));
    }

    #[test]
    fn the_second_digit_is_worth_63_times_128() {
        let full = 62 + 63 * 127;
        let mut map = referenced(full);
        assert_eq!((map.byte(9) & !HAS_CACHE, digits(&map)), (0x3e | CONTINUED, alloc::vec![127]));
        assert_eq!(map.duplicate(9), Err(NotTaken::NeedsContinuation), "no silent overflow");
        assert_eq!(map.count(9), full);
        map.add_continuation(9);
        map.duplicate(9).unwrap();
        assert_eq!((map.count(9), digits(&map)), (63 * 128, alloc::vec![0, 1]));
        assert_eq!(map.put(9), Left::Referenced);
        assert_eq!((map.count(9), digits(&map)), (full, alloc::vec![127, 0]));
    }

    #[test]
    fn a_slot_is_free_when_count_and_cache_are_gone() {
        let mut map = referenced(1);
        assert_eq!(map.put_cache(9), Left::Referenced);
        assert_eq!(map.pin_cache(9), Ok(()));
        assert_eq!(map.pin_cache(9), Err(NotTaken::InCache));
        assert_eq!(map.put(9), Left::CacheOnly);
        assert!(map.is_cache_only(9));
        assert_eq!(map.put_cache(9), Left::Free);
        assert!(map.is_free(9));
        assert_eq!(map.pin_cache(9), Err(NotTaken::NoSuchSlot));
        assert_eq!(map.duplicate(9), Err(NotTaken::NoSuchSlot));
    }

    #[test]
    fn bad_slots_and_the_header_are_never_referenced() {
        let mut map = SwapMap::new(64, &[7]);
        for slot in [0, 7, 64, 1000] {
            assert_eq!(map.duplicate(slot), Err(NotTaken::NoSuchSlot));
            assert_eq!(map.pin_cache(slot), Err(NotTaken::NoSuchSlot));
        }
        assert!(map.is_bad(0) && map.is_bad(7) && !map.has_cache(7));
        assert_eq!(map.count(7), 0);
        assert_eq!(map.next_used(0), None);
    }

    #[test]
    fn shmem_holds_one_reference_and_no_more() {
        let mut map = referenced(0);
        map.give_to_shmem(9);
        assert_eq!(map.put_cache(9), Left::Referenced);
        assert_eq!((map.byte(9), map.count(9)), (0xbf, 1));
        assert_eq!(map.duplicate(9), Err(NotTaken::NotCountable));
        map.pin_cache(9).unwrap();
        assert!(map.is_shmem(9));
        assert_eq!(map.put(9), Left::CacheOnly);
        assert_eq!(map.put_cache(9), Left::Free);
    }

    #[test]
    #[should_panic(expected = "slot 9 has no reference to give back")]
    fn a_reference_that_nobody_has_is_not_given_back() {
        let _ = referenced(0).put(9);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        HandOut(u64),
        Duplicate(u64, u16),
        Shmem(u64),
        Pin(u64),
        Put(u64, u16),
        PutCache(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let slot = || prop_oneof![0u64..8, 4094u64..4100];
        // Few or many at once, so that counts cross one digit often and two now and then.
        let times = || prop_oneof![4 => 1u16..80, 1 => 1u16..9000];
        prop::collection::vec(
            prop_oneof![
                slot().prop_map(Step::HandOut),
                (slot(), times()).prop_map(|(slot, times)| Step::Duplicate(slot, times)),
                slot().prop_map(Step::Shmem),
                slot().prop_map(Step::Pin),
                (slot(), times()).prop_map(|(slot, times)| Step::Put(slot, times)),
                slot().prop_map(Step::PutCache),
            ],
            1..24,
        )
    }

    /// What a slot is, plainly.
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    struct Plain {
        bad: bool,
        shmem: bool,
        count: u64,
        cache: bool,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn model_the_map_counts_like_a_plain_number(steps in steps()) {
            let mut map = SwapMap::new(4200, &[5]);
            let mut plain = [Plain::default(); 4200];
            plain[0].bad = true;
            plain[5].bad = true;
            for step in steps {
                match step {
                    Step::HandOut(slot) => {
                        let model = &mut plain[slot as usize];
                        prop_assert_eq!(map.is_free(slot), *model == Plain::default());
                        if map.is_free(slot) {
                            map.hand_out(slot);
                            model.cache = true;
                        }
                    }
                    Step::Duplicate(slot, times) => {
                        let model = &mut plain[slot as usize];
                        for _ in 0..times {
                            let mut taken = map.duplicate(slot);
                            if taken == Err(NotTaken::NeedsContinuation) {
                                prop_assert_eq!(map.count(slot), model.count, "a refusal changes nothing");
                                map.add_continuation(slot);
                                taken = map.duplicate(slot);
                            }
                            let expected = match *model {
                                Plain { bad: true, .. } | Plain { count: 0, cache: false, .. } => {
                                    Err(NotTaken::NoSuchSlot)
                                }
                                Plain { shmem: true, .. } => Err(NotTaken::NotCountable),
                                _ => Ok(()),
                            };
                            prop_assert_eq!(taken, expected);
                            if taken.is_err() {
                                break;
                            }
                            model.count += 1;
                        }
                    }
                    Step::Shmem(slot) => {
                        let model = &mut plain[slot as usize];
                        if map.is_cache_only(slot) {
                            map.give_to_shmem(slot);
                            (model.shmem, model.count) = (true, 1);
                        }
                    }
                    Step::Pin(slot) => {
                        let model = &mut plain[slot as usize];
                        let expected = match *model {
                            Plain { bad: true, .. } | Plain { count: 0, cache: false, .. } => Err(NotTaken::NoSuchSlot),
                            Plain { cache: true, .. } => Err(NotTaken::InCache),
                            _ => Ok(()),
                        };
                        prop_assert_eq!(map.pin_cache(slot), expected);
                        model.cache |= expected.is_ok();
                    }
                    Step::Put(slot, times) => {
                        let model = &mut plain[slot as usize];
                        for _ in 0..model.count.min(times.into()) {
                            let left = map.put(slot);
                            model.count -= 1;
                            model.shmem = false;
                            let expected = match (model.count, model.cache) {
                                (0, false) => Left::Free,
                                (0, true) => Left::CacheOnly,
                                _ => Left::Referenced,
                            };
                            prop_assert_eq!(left, expected);
                        }
                    }
                    Step::PutCache(slot) => {
                        let model = &mut plain[slot as usize];
                        if map.has_cache(slot) {
                            let left = map.put_cache(slot);
                            model.cache = false;
                            prop_assert_eq!(left == Left::Free, model.count == 0);
                        }
                    }
                }
                for slot in (0..8).chain(4094..4100) {
                    let model = plain[slot as usize];
                    prop_assert_eq!(map.count(slot), model.count, "slot {}", slot);
                    prop_assert_eq!(map.has_cache(slot), model.cache);
                    prop_assert_eq!(map.is_bad(slot), model.bad);
                    prop_assert_eq!(map.is_shmem(slot), model.shmem);
                }
                let next = (0..4200u64).find(|&slot| plain[slot as usize].cache || plain[slot as usize].count > 0);
                prop_assert_eq!(map.next_used(0), next);
            }
        }
    }
}
