//! Page table: the one truth about every page of adopted memory.
//!
//! A page has one state, packed into one word; leaves of 512 words exist only where adopted memory has a state, so that
//! memory that was reserved and never touched costs nothing. Only this file knows the packing.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::entry::EntryId;
use crate::ranges::RangeSet;
use crate::swap_cache::FrameId;
use crate::units::{BLOCK_PAGES, LEAF_PAGES, PageNumber, PageRange};

/// Names one swap-in, so that its end can tell whether the page still waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
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
    /// How often it is in the queues of reclaim: twice if it is looked at next out of its turn.
    pub queued: u8,
    /// It was to be looked at next, and has not left or come up in its turn since.
    pub soon: bool,
    /// Pages of it were wanted back soon after they had left, as the policy judges: it belongs into the second queue.
    pub active: bool,
    /// It has been put aside, and not been looked at again since.
    pub aside: bool,
    /// The program may write to it, and has pages of its own there then, of which none has left since.
    pub has_own: bool,
    /// When it left last, in blocks that had left; 0: never.
    pub left_at: u32,
    /// Pages that a thread asked back for since reclaim last looked: their second chance.
    pub referenced: u16,
    /// Its resident pages are being moved out in one go, gaps included: nothing may be brought into it meanwhile.
    pub isolating: bool,
    /// Pages that threads wait for until that is over.
    pub wanted: u16,
    /// The program once discarded pages of it (madvise). The event comes before the kernel drops them, so a page that a
    /// scan found there in between may vanish, and so may one that the kernel was free to drop later.
    pub discarded: bool,
}

#[derive(Clone)]
pub(crate) struct Leaf {
    words: [u64; LEAF_PAGES],
    pub(crate) blocks: [BlockInfo; LEAF_PAGES / BLOCK_PAGES],
}

/// The table.
#[derive(Clone, Default)]
pub struct PageTable {
    /// Memory that is ours to answer for; only pages of it have a state other than `Untouched`.
    adopted: RangeSet,
    leaves: BTreeMap<u64, Box<Leaf>>,
    /// Numbers of the leaves in which pages were ever discarded. A leaf that is made later starts with all of its
    /// blocks marked; one that is there has the blocks in question marked.
    discarded: RangeSet,
    /// Pages with a state other than `Untouched`.
    known_pages: u64,
}

fn split(page: PageNumber) -> (u64, usize) {
    (page.0 / LEAF_PAGES as u64, page.0 as usize % LEAF_PAGES)
}

impl PageTable {
    /// A table without adopted memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// State of `page`; `None` when it is not adopted.
    pub fn get(&self, page: PageNumber) -> Option<PageState> {
        let (leaf, index) = split(page);
        match self.leaves.get(&leaf).map(|leaf| leaf.words[index]) {
            None | Some(0) => self.adopted.contains(page).then_some(PageState::Untouched),
            Some(word) => Some(PageState::unpack(word)),
        }
    }

    /// Sets the state of the adopted `page`; returns the state before.
    pub fn set(&mut self, page: PageNumber, state: PageState) -> PageState {
        let (leaf_index, index) = split(page);
        let new = state.pack();
        let old = match self.leaves.get_mut(&leaf_index) {
            Some(leaf) if leaf.words[index] != 0 => core::mem::replace(&mut leaf.words[index], new),
            _ => {
                assert!(self.adopted.contains(page), "{page:?} is not adopted and cannot become {state:?}");
                if new != 0 {
                    self.leaf_mut(leaf_index).words[index] = new;
                }
                0
            }
        };
        self.known_pages = self.known_pages - u64::from(old != 0) + u64::from(new != 0);
        PageState::unpack(old)
    }

    fn leaf_mut(&mut self, leaf_index: u64) -> &mut Leaf {
        self.leaves.entry(leaf_index).or_insert_with(|| {
            let discarded = self.discarded.contains(PageNumber(leaf_index));
            let block = BlockInfo { discarded, ..BlockInfo::default() };
            Box::new(Leaf { words: [0; LEAF_PAGES], blocks: [block; LEAF_PAGES / BLOCK_PAGES] })
        })
    }

    /// Takes `range` in; pages that are in already keep their state.
    pub fn adopt(&mut self, range: PageRange) {
        self.adopted.insert(range);
    }

    /// Lets all adopted pages of `range` go. Their states must be `Untouched`.
    pub fn forget(&mut self, range: PageRange) {
        let known = self.known(range).next();
        assert!(known.is_none(), "{known:?} is forgotten with content");
        self.adopted.remove(range);
        self.prune_all(range);
    }

    /// As [`prune`](Self::prune), of all leaves that have something of `range`.
    pub(crate) fn prune_all(&mut self, range: PageRange) {
        let leaves = Self::leaves_of(range);
        let mut next = leaves.start.0;
        while let Some((&leaf_index, _)) = self.leaves.range(next..leaves.end().0).next() {
            next = leaf_index + 1;
            self.prune(PageNumber(leaf_index * LEAF_PAGES as u64));
        }
    }

    /// Lets the leaf of `page` go, if nothing is in it, and no queue has a block of it: its memory was unmapped, or given up.
    pub(crate) fn prune(&mut self, page: PageNumber) {
        let (leaf_index, _) = split(page);
        let Some(leaf) = self.leaves.get(&leaf_index) else { return };
        let in_use = leaf.blocks.iter().any(|block| block.queued > 0 || block.isolating);
        if !in_use && leaf.words.iter().all(|&word| word == 0) {
            self.leaves.remove(&leaf_index);
        }
    }

    /// The pages of `range` whose state is not `Untouched`, in order.
    pub fn known(&self, range: PageRange) -> impl Iterator<Item = (PageNumber, PageState)> + '_ {
        let leaves = Self::leaves_of(range);
        self.leaves.range(leaves.start.0..leaves.end().0).flat_map(move |(&leaf_index, leaf)| {
            let base = leaf_index * LEAF_PAGES as u64;
            let start = range.start.0.max(base) - base;
            let stop = range.end().0.min(base + LEAF_PAGES as u64) - base;
            let words = leaf.words[start as usize..stop as usize].iter().enumerate().filter(|&(_, &word)| word != 0);
            words.map(move |(index, &word)| (PageNumber(base + start + index as u64), PageState::unpack(word)))
        })
    }

    /// The next page that [`known`](Self::known) gives. It becomes `Untouched`, and `range` what is left behind it.
    pub(crate) fn take_known(&mut self, range: &mut PageRange) -> Option<(PageNumber, PageState)> {
        let (page, state) = self.known(*range).next()?;
        *range = PageRange { start: page.plus(1), pages: range.end().0 - page.0 - 1 };
        self.set(page, PageState::Untouched);
        Some((page, state))
    }

    /// How many pages of `range` are adopted.
    pub fn adopted_in(&self, range: PageRange) -> u64 {
        self.adopted.within(range).map(|part| part.pages).sum()
    }

    /// Whether any page of `range` is adopted.
    pub fn has_adopted(&self, range: PageRange) -> bool {
        self.adopted.within(range).next().is_some()
    }

    /// All adopted ranges, in order, neighbours merged.
    pub fn adopted_ranges(&self) -> impl Iterator<Item = PageRange> + '_ {
        self.adopted.within(PageRange::ALL)
    }

    /// The parts of `range` that are adopted.
    pub fn adopted_within(&self, range: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        self.adopted.within(range)
    }

    /// The first run of adopted pages at or after `from`.
    pub fn next_adopted_range(&self, from: PageNumber) -> Option<PageRange> {
        self.adopted.next(from)
    }

    /// The parts of `range` that are not adopted.
    pub fn not_adopted(&self, range: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        self.adopted.outside(range)
    }

    /// The run of adopted pages that `page` is in.
    pub(crate) fn adopted_around(&self, page: PageNumber) -> Option<PageRange> {
        self.adopted.around(page)
    }

    /// Number of adopted pages with content, or on their way: all but untouched ones.
    pub fn known_pages(&self) -> u64 {
        self.known_pages
    }

    /// Whether the block of `page` is being moved out.
    pub(crate) fn is_isolating(&self, page: PageNumber) -> bool {
        let (leaf, index) = split(page);
        self.leaves.get(&leaf).is_some_and(|leaf| leaf.blocks[index / BLOCK_PAGES].isolating)
    }

    /// Whether pages of the block of `page` were discarded.
    pub fn was_discarded(&self, page: PageNumber) -> bool {
        let (leaf_index, index) = split(page);
        match self.leaves.get(&leaf_index) {
            Some(leaf) => leaf.blocks[index / BLOCK_PAGES].discarded,
            None => self.discarded.contains(PageNumber(leaf_index)),
        }
    }

    /// Whether pages of the leaves in which `range` lies were discarded.
    pub(crate) fn was_any_discarded(&self, range: PageRange) -> bool {
        self.discarded.within(Self::leaves_of(range)).next().is_some()
    }

    /// Remembers for all blocks of `range` that pages were discarded.
    pub(crate) fn note_discarded(&mut self, range: PageRange) {
        let leaves = Self::leaves_of(range);
        self.discarded.insert(leaves);
        for (&leaf_index, leaf) in self.leaves.range_mut(leaves.start.0..leaves.end().0) {
            let base = leaf_index * LEAF_PAGES as u64;
            let first = (range.start.0.max(base) - base) as usize / BLOCK_PAGES;
            let end = ((range.end().0 - base).min(LEAF_PAGES as u64) as usize).div_ceil(BLOCK_PAGES);
            for block in &mut leaf.blocks[first..end] {
                block.discarded = true;
            }
        }
    }

    /// Numbers of the leaves in which `range` lies.
    fn leaves_of(range: PageRange) -> PageRange {
        let start = range.start.0 / LEAF_PAGES as u64;
        let end = range.end().0.div_ceil(LEAF_PAGES as u64);
        PageRange { start: PageNumber(start), pages: end - start }
    }

    #[cfg(test)]
    pub(crate) fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Whether nothing is in the block that begins with `first`, and nothing is on its way.
    pub(crate) fn is_empty_block(&self, first: PageNumber) -> bool {
        let (leaf, index) = split(first);
        self.leaves.get(&leaf).is_none_or(|leaf| {
            !leaf.blocks[index / BLOCK_PAGES].isolating
                && leaf.words[index..][..BLOCK_PAGES].iter().all(|&word| word == 0)
        })
    }

    /// What reclaim remembers of the block of `page`.
    pub(crate) fn block_mut(&mut self, page: PageNumber) -> Option<&mut BlockInfo> {
        let (leaf, index) = split(page);
        Some(&mut self.leaves.get_mut(&leaf)?.blocks[index / BLOCK_PAGES])
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
    fn what_was_given_up_takes_no_room_and_is_remembered() {
        let mut table = PageTable::new();
        table.adopt(range(0, 2048));
        for page in [3, 700, 701] {
            table.set(PageNumber(page), PageState::Poisoned);
        }
        assert_eq!(table.leaves(), 2);
        table.note_discarded(range(0, 701));
        for page in [3, 700] {
            table.set(PageNumber(page), PageState::Untouched);
        }
        table.prune_all(range(0, 701));
        assert_eq!((table.leaves(), table.get(PageNumber(3))), (1, Some(PageState::Untouched)));
        assert!(table.was_discarded(PageNumber(3)));
        table.set(PageNumber(3), PageState::Poisoned);
        assert!(table.was_discarded(PageNumber(3)), "where it comes back");
        table.block_mut(PageNumber(3)).unwrap().queued = 1;
        table.set(PageNumber(3), PageState::Untouched);
        table.prune_all(range(0, 2048));
        assert_eq!(table.leaves(), 2, "a queue has a block of it");
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
        table.forget(range(512, 1));
        assert_eq!(table.adopted_ranges().collect::<Vec<_>>(), [range(510, 2), range(513, 1)]);
        assert_eq!((table.adopted_in(range(0, 1000)), table.adopted_in(range(511, 3))), (3, 2));
    }

    #[test]
    fn untouched_memory_costs_no_leaf() {
        let mut table = PageTable::new();
        table.adopt(range(0, 1 << 34));
        assert_eq!(table.get(PageNumber(1 << 33)), Some(PageState::Untouched));
        table.set(PageNumber(5), PageState::Untouched);
        assert_eq!((table.leaves.len(), table.known_pages()), (0, 0));
        table.set(PageNumber(1 << 33), PageState::SwappedZero);
        assert_eq!((table.leaves.len(), table.known_pages()), (1, 1));
        table.set(PageNumber(1 << 33), PageState::Untouched);
        table.forget(range(0, 1 << 34));
        assert_eq!((table.leaves.len(), table.known_pages(), table.adopted_in(range(0, 1 << 34))), (0, 0, 0));
    }

    #[test]
    fn discarding_is_remembered_where_nothing_was_known() {
        let mut table = PageTable::new();
        table.adopt(range(0, 4096));
        table.note_discarded(range(600, 10));
        assert!(table.was_discarded(PageNumber(605)) && !table.was_discarded(PageNumber(100)));
        table.set(PageNumber(605), PageState::SwappedZero);
        assert!(table.was_discarded(PageNumber(605)));
        table.set(PageNumber(100), PageState::SwappedZero);
        table.note_discarded(range(96, 1));
        assert!(table.was_discarded(PageNumber(100)) && !table.was_discarded(PageNumber(120)));
        assert!(table.was_any_discarded(range(90, 20)) && !table.was_any_discarded(range(2048, 100)));
    }

    #[test]
    fn adopting_again_keeps_states() {
        let mut table = PageTable::new();
        table.adopt(range(0, 2));
        table.set(PageNumber(1), PageState::SwappedZero);
        table.adopt(range(0, 4));
        assert_eq!(table.get(PageNumber(1)), Some(PageState::SwappedZero));
        assert_eq!(table.adopted_in(range(0, 9)), 4);
    }

    #[test]
    #[should_panic(expected = "not adopted")]
    fn a_page_that_is_not_adopted_has_no_state_to_set() {
        PageTable::new().set(PageNumber(1), PageState::SwappedZero);
    }
}
