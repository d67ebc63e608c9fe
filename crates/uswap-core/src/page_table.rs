//! Page table: the one truth about every page of adopted memory.
//!
//! A page has one state, packed into one word; leaves of 512 words exist only where memory was adopted. Only this file
//! knows the packing.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::entry::EntryId;
use crate::swap_cache::FrameId;
use crate::units::{BLOCK_PAGES, LEAF_PAGES, PageNumber, PageRange};

/// Names one swap-in, so that its end can tell whether the page still waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpId(pub u32);

impl OpId {
    /// The id after this one; ids wrap after 2^24.
    pub(crate) fn next(self) -> Self {
        Self((self.0 + 1) & 0xff_ffff)
    }
}

/// Where the newest bytes of a page are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    /// Nowhere: the page reads as zeros, or the kernel has it without our knowing (memory that was populated after
    /// the last scan). A fault is answered with zeros.
    Untouched,
    /// Mapped in the program; `clean` names a stored copy that was equal when the page came in.
    Resident {
        /// The stored copy.
        clean: Option<EntryId>,
    },
    /// In a frame of the swap cache, whose record says what is being done with it.
    InFrame {
        /// The frame.
        frame: FrameId,
    },
    /// Only `entry` has the bytes.
    Swapped {
        /// Names the content.
        entry: EntryId,
    },
    /// All bytes are zero; stored as nothing.
    SwappedZero,
    /// A thread brings the content of `entry` (all zeros: none) in; others wait.
    ReadingIn {
        /// Names the content; `None` for a page of zeros.
        entry: Option<EntryId>,
        /// The swap-in that will end this state.
        op: OpId,
    },
    /// The content is lost; an access gets SIGBUS.
    Poisoned,
}

const NO_ENTRY: u64 = 0xffff_ffff;

impl PageState {
    fn pack(self) -> u64 {
        match self {
            Self::Untouched => 0,
            Self::Resident { clean } => 1 | clean.map_or(NO_ENTRY, |entry| u64::from(entry.0)) << 4,
            Self::InFrame { frame } => 2 | u64::from(frame.0) << 4,
            Self::Swapped { entry } => 3 | u64::from(entry.0) << 4,
            Self::SwappedZero => 4,
            Self::ReadingIn { entry, op } => {
                5 | entry.map_or(NO_ENTRY, |entry| u64::from(entry.0)) << 4 | u64::from(op.0) << 36
            }
            Self::Poisoned => 6,
        }
    }

    fn unpack(word: u64) -> Self {
        let payload = word >> 4 & 0xffff_ffff;
        let entry = (payload != NO_ENTRY).then_some(EntryId(payload as u32));
        match word & 0xf {
            0 => Self::Untouched,
            1 => Self::Resident { clean: entry },
            2 => Self::InFrame { frame: FrameId(payload as u32) },
            3 => Self::Swapped { entry: EntryId(payload as u32) },
            4 => Self::SwappedZero,
            5 => Self::ReadingIn { entry, op: OpId((word >> 36) as u32) },
            6 => Self::Poisoned,
            tag => unreachable!("page table word with tag {tag}"),
        }
    }
}

/// What reclaim remembers of a block of 16 pages.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct BlockInfo {
    /// In the queue of reclaim.
    pub queued: bool,
    /// A page of it came back since reclaim last looked: its second chance.
    pub referenced: bool,
    /// Its resident pages are being moved out in one go, gaps included: nothing may be brought into it meanwhile.
    pub isolating: bool,
    /// Pages that threads wait for until that is over.
    pub wanted: u16,
    /// The program once discarded pages of it (madvise). The event comes before the kernel drops them, so a page that a
    /// scan found there in between may vanish, and so may one that the kernel was free to drop later.
    pub discarded: bool,
}

pub(crate) struct Leaf {
    words: [u64; LEAF_PAGES],
    adopted: [u64; LEAF_PAGES / 64],
    pub(crate) blocks: [BlockInfo; LEAF_PAGES / BLOCK_PAGES],
}

/// The table.
pub struct PageTable {
    leaves: BTreeMap<u64, Box<Leaf>>,
    adopted_pages: u64,
}

fn split(page: PageNumber) -> (u64, usize) {
    (page.0 / LEAF_PAGES as u64, page.0 as usize % LEAF_PAGES)
}

impl PageTable {
    /// A table without adopted memory.
    pub fn new() -> Self {
        Self { leaves: BTreeMap::new(), adopted_pages: 0 }
    }

    /// State of `page`; `None` when it is not adopted.
    pub fn get(&self, page: PageNumber) -> Option<PageState> {
        let (leaf, index) = split(page);
        let leaf = self.leaves.get(&leaf)?;
        (leaf.adopted[index / 64] >> (index % 64) & 1 == 1).then(|| PageState::unpack(leaf.words[index]))
    }

    /// Sets the state of the adopted `page`; returns the state before.
    pub fn set(&mut self, page: PageNumber, state: PageState) -> PageState {
        let (leaf, index) = split(page);
        let leaf = self.leaves.get_mut(&leaf).filter(|leaf| leaf.adopted[index / 64] >> (index % 64) & 1 == 1);
        let leaf = leaf.unwrap_or_else(|| panic!("{page:?} is not adopted and cannot become {state:?}"));
        PageState::unpack(core::mem::replace(&mut leaf.words[index], state.pack()))
    }

    /// Takes `range` in; pages that are in already keep their state.
    pub fn adopt(&mut self, range: PageRange) {
        let mut number = range.start.0;
        while number < range.end().0 {
            let (leaf_index, index) = split(PageNumber(number));
            let leaf = self.leaves.entry(leaf_index).or_insert_with(|| {
                Box::new(Leaf {
                    words: [0; LEAF_PAGES],
                    adopted: [0; LEAF_PAGES / 64],
                    blocks: [BlockInfo::default(); LEAF_PAGES / BLOCK_PAGES],
                })
            });
            let end = ((leaf_index + 1) * LEAF_PAGES as u64).min(range.end().0);
            for index in index..index + (end - number) as usize {
                let bit = 1 << (index % 64);
                self.adopted_pages += u64::from(leaf.adopted[index / 64] & bit == 0);
                leaf.adopted[index / 64] |= bit;
            }
            number = end;
        }
    }

    /// Lets the adopted page go. Its state must be `Untouched`.
    pub fn forget(&mut self, page: PageNumber) {
        let (leaf_index, index) = split(page);
        let Some(leaf) = self.leaves.get_mut(&leaf_index) else { return };
        let bit = 1 << (index % 64);
        if leaf.adopted[index / 64] & bit == 0 {
            return;
        }
        assert!(leaf.words[index] == 0, "{page:?} is forgotten with content");
        leaf.adopted[index / 64] &= !bit;
        self.adopted_pages -= 1;
        if leaf.adopted.iter().all(|&word| word == 0) && leaf.blocks.iter().all(|block| !block.queued) {
            self.leaves.remove(&leaf_index);
        }
    }

    /// Lets all adopted pages of `range` go. Their states must be `Untouched`.
    pub fn forget_range(&mut self, range: PageRange) {
        let leaves = range.start.0 / LEAF_PAGES as u64..range.end().0.div_ceil(LEAF_PAGES as u64);
        let mut next = leaves.start;
        while let Some((&leaf_index, _)) = self.leaves.range(next..leaves.end).next() {
            let first = PageNumber((leaf_index * LEAF_PAGES as u64).max(range.start.0));
            let last = ((leaf_index + 1) * LEAF_PAGES as u64).min(range.end().0);
            for page in first.0..last {
                self.forget(PageNumber(page));
            }
            next = leaf_index + 1;
        }
    }

    /// The first adopted page in `from..end` whose state is not `Untouched`.
    pub fn next_with_state(&self, from: PageNumber, end: PageNumber) -> Option<(PageNumber, PageState)> {
        let leaves = from.0 / LEAF_PAGES as u64..end.0.div_ceil(LEAF_PAGES as u64);
        self.leaves.range(leaves).find_map(|(&leaf_index, leaf)| {
            let base = leaf_index * LEAF_PAGES as u64;
            let start = from.0.max(base) - base;
            let stop = end.0.min(base + LEAF_PAGES as u64) - base;
            let index = (start..stop).find(|&index| leaf.words[index as usize] != 0)?;
            Some((PageNumber(base + index), PageState::unpack(leaf.words[index as usize])))
        })
    }

    /// Adopted pages of `range`, in order, with their states. Skips whole missing leaves at once.
    pub fn iter(&self, range: PageRange) -> impl Iterator<Item = (PageNumber, PageState)> + '_ {
        let (start, end) = (range.start.0, range.end().0);
        let leaves = start / LEAF_PAGES as u64..end.div_ceil(LEAF_PAGES as u64);
        self.leaves.range(leaves).flat_map(move |(&leaf_index, leaf)| {
            (0..LEAF_PAGES).filter_map(move |index| {
                let page = PageNumber(leaf_index * LEAF_PAGES as u64 + index as u64);
                let wanted = page.0 >= start && page.0 < end && leaf.adopted[index / 64] >> (index % 64) & 1 == 1;
                wanted.then(|| (page, PageState::unpack(leaf.words[index])))
            })
        })
    }

    /// How many pages of `range` are adopted.
    pub fn adopted_in(&self, range: PageRange) -> u64 {
        let leaves = range.start.0 / LEAF_PAGES as u64..range.end().0.div_ceil(LEAF_PAGES as u64);
        let count = |leaf_index: u64, leaf: &Leaf| {
            let base = leaf_index * LEAF_PAGES as u64;
            let start = (range.start.0.max(base) - base) as usize;
            let end = (range.end().0 - base).min(LEAF_PAGES as u64) as usize;
            let bits = leaf.adopted.iter().enumerate().map(|(index, word)| {
                let below = |limit: usize| match limit.saturating_sub(index * 64) {
                    64.. => u64::MAX,
                    bits => (1 << bits) - 1,
                };
                word & below(end) & !below(start)
            });
            bits.map(|word| u64::from(word.count_ones())).sum::<u64>()
        };
        self.leaves.range(leaves).map(|(&index, leaf)| count(index, leaf)).sum()
    }

    /// All adopted ranges, in order, neighbours merged.
    pub fn adopted_ranges(&self) -> impl Iterator<Item = PageRange> + '_ {
        let mut pages = self
            .leaves
            .iter()
            .flat_map(|(&leaf_index, leaf)| {
                (0..LEAF_PAGES)
                    .filter(|index| leaf.adopted[index / 64] >> (index % 64) & 1 == 1)
                    .map(move |index| leaf_index * LEAF_PAGES as u64 + index as u64)
            })
            .peekable();
        core::iter::from_fn(move || {
            let start = pages.next()?;
            let mut end = start + 1;
            while pages.next_if_eq(&end).is_some() {
                end += 1;
            }
            Some(PageRange { start: PageNumber(start), pages: end - start })
        })
    }

    /// The first run of adopted pages inside one leaf at or after `from`.
    pub fn next_adopted_range(&self, from: PageNumber) -> Option<PageRange> {
        self.leaves.range(from.0 / LEAF_PAGES as u64..).find_map(|(&leaf_index, leaf)| {
            let is_adopted = |index: &usize| leaf.adopted[index / 64] >> (index % 64) & 1 == 1;
            let base = leaf_index * LEAF_PAGES as u64;
            let start = (from.0.max(base) - base) as usize;
            let first = (start..LEAF_PAGES).find(is_adopted)?;
            let pages = (first..LEAF_PAGES).take_while(is_adopted).count() as u64;
            Some(PageRange { start: PageNumber(base + first as u64), pages })
        })
    }

    /// Number of adopted pages.
    pub fn adopted_pages(&self) -> u64 {
        self.adopted_pages
    }

    /// Whether the block of `page` is being moved out.
    pub(crate) fn is_isolating(&self, page: PageNumber) -> bool {
        let (leaf, index) = split(page);
        self.leaves.get(&leaf).is_some_and(|leaf| leaf.blocks[index / BLOCK_PAGES].isolating)
    }

    /// Whether pages of the block of `page` were discarded.
    pub(crate) fn was_discarded(&self, page: PageNumber) -> bool {
        let (leaf, index) = split(page);
        self.leaves.get(&leaf).is_some_and(|leaf| leaf.blocks[index / BLOCK_PAGES].discarded)
    }

    /// Remembers for all blocks of `range` that pages were discarded.
    pub(crate) fn note_discarded(&mut self, range: PageRange) {
        let leaves = range.start.0 / LEAF_PAGES as u64..range.end().0.div_ceil(LEAF_PAGES as u64);
        for (&leaf_index, leaf) in self.leaves.range_mut(leaves) {
            let base = leaf_index * LEAF_PAGES as u64;
            let first = (range.start.0.max(base) - base) as usize / BLOCK_PAGES;
            let end = ((range.end().0 - base).min(LEAF_PAGES as u64) as usize).div_ceil(BLOCK_PAGES);
            for block in &mut leaf.blocks[first..end] {
                block.discarded = true;
            }
        }
    }

    /// What reclaim remembers of the block of `page`.
    pub(crate) fn block_mut(&mut self, page: PageNumber) -> Option<&mut BlockInfo> {
        let (leaf, index) = split(page);
        Some(&mut self.leaves.get_mut(&leaf)?.blocks[index / BLOCK_PAGES])
    }
}

impl Default for PageTable {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange { start: PageNumber(start), pages }
    }

    #[test]
    fn every_state_survives_packing() {
        for state in [
            PageState::Untouched,
            PageState::Resident { clean: None },
            PageState::Resident { clean: Some(EntryId(0)) },
            PageState::InFrame { frame: FrameId(12345) },
            PageState::Swapped { entry: EntryId(0xffff_fffe) },
            PageState::SwappedZero,
            PageState::ReadingIn { entry: Some(EntryId(7)), op: OpId(0xff_ffff) },
            PageState::ReadingIn { entry: None, op: OpId(1) },
            PageState::Poisoned,
        ] {
            assert_eq!(PageState::unpack(state.pack()), state);
        }
    }

    #[test]
    fn only_adopted_pages_have_a_state() {
        let mut table = PageTable::new();
        table.adopt(range(510, 4));
        assert_eq!(table.get(PageNumber(509)), None);
        assert_eq!(table.get(PageNumber(513)), Some(PageState::Untouched));
        assert_eq!(table.get(PageNumber(514)), None);
        assert_eq!(table.adopted_ranges().collect::<Vec<_>>(), [range(510, 4)]);
        table.forget(PageNumber(512));
        assert_eq!(table.adopted_ranges().collect::<Vec<_>>(), [range(510, 2), range(513, 1)]);
        assert_eq!(table.adopted_pages(), 3);
    }

    #[test]
    fn adopted_pages_are_counted_in_any_range() {
        let mut table = PageTable::new();
        table.adopt(range(100, 30));
        table.adopt(range(500, 600));
        for (start, pages) in
            [(0, 2000), (100, 30), (99, 2), (110, 1), (127, 2), (510, 4), (0, 100), (1099, 5), (512, 512)]
        {
            let expected = table.iter(range(start, pages)).count() as u64;
            assert_eq!(table.adopted_in(range(start, pages)), expected, "{start}+{pages}");
        }
    }

    #[test]
    fn adopting_again_keeps_states() {
        let mut table = PageTable::new();
        table.adopt(range(0, 2));
        table.set(PageNumber(1), PageState::SwappedZero);
        table.adopt(range(0, 4));
        assert_eq!(table.get(PageNumber(1)), Some(PageState::SwappedZero));
        assert_eq!(table.adopted_pages(), 4);
    }

    #[test]
    #[should_panic(expected = "not adopted")]
    fn a_page_that_is_not_adopted_has_no_state_to_set() {
        PageTable::new().set(PageNumber(1), PageState::SwappedZero);
    }
}
