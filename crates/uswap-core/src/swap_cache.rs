//! Swap cache: the frames of the frame area, and whose content they hold.
//!
//! Frames come in blocks of 16 that lie side by side, like the program's blocks, so that a run of pages moves out, and a
//! readahead window moves in, with one system call. A frame is
//!
//! - *empty*: no memory behind it; the target of a move out,
//! - *free*: memory with no content; the source of a swap-in, or given back to the kernel,
//! - *isolating*, *cached*, *writing* or *restoring*: it holds the content of its owner page.
//!
//! There are no accessed bits in user space: a page rests cached for a while before it is stored, and a touch in that
//! time brings it back. So the swap cache is the reference bit.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::entry::EntryId;
use crate::units::{BLOCK_PAGES, PageNumber};

/// A page frame of the frame area, counted from its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameId(pub u32);

/// 16 frames side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameBlock(pub u32);

impl FrameBlock {
    /// Frame `index` of the block.
    pub fn frame(self, index: usize) -> FrameId {
        FrameId(self.0 * BLOCK_PAGES as u32 + index as u32)
    }
}

impl FrameId {
    /// The block that holds this frame.
    pub fn block(self) -> FrameBlock {
        FrameBlock(self.0 / BLOCK_PAGES as u32)
    }

    fn bit(self) -> u16 {
        1 << (self.0 as usize % BLOCK_PAGES)
    }
}

/// What is done with a frame at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameUse {
    /// No memory behind it.
    Empty,
    /// Memory without content.
    Free,
    /// Its owner is being moved into it.
    Isolating,
    /// Holds the content of its owner; a touch moves it back.
    Cached,
    /// Holds the content of its owner, which is being stored.
    Writing,
    /// Its owner is being moved back.
    Restoring,
    /// Taken by a swap-in, which fills it and moves it to the program.
    Loading,
}

#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub state: FrameUse,
    /// `None`: the page was unmapped or discarded meanwhile; the content is nobody's.
    pub owner: Option<PageNumber>,
    /// Stored copy that was equal when the page came in.
    pub clean: Option<EntryId>,
    /// A thread waits for the page.
    pub wanted: bool,
    /// It came along with another page, and nobody has touched it since.
    pub came_along: bool,
    /// Tells entries of the inactive list that are out of date.
    pub generation: u32,
}

/// Blocks that one search for memory to give back looks at in vain.
const MAX_SKIPPED: usize = 16;
/// Blocks of free frames that are kept for readahead: 512 KiB.
const WHOLE_KEPT: usize = 8;

#[derive(Clone, Copy, Default)]
struct Block {
    populated: u16,
    free: u16,
    listed_partial: bool,
    listed_whole: bool,
    listed_empty: bool,
}

/// What a frame is at which somebody looks from outside of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Onlooked {
    /// Nothing is done with its block, and it has no memory: it may be filled.
    Empty,
    /// It has memory.
    Populated,
    /// A thread is doing something with its block.
    InMotion,
}

/// The frames.
#[derive(Clone)]
pub struct SwapCache {
    /// Those of `blocks`. There are records of what has been in use, alone: the memory for them counts in each process.
    frames: Vec<Frame>,
    blocks: Vec<Block>,
    /// How many blocks the frame area has.
    all_blocks: u32,
    /// Those of `blocks` that are empty.
    empty_blocks: Vec<FrameBlock>,
    /// Blocks of which some frames are free; may hold blocks that have none any more.
    partial: VecDeque<FrameBlock>,
    /// Blocks of which all frames are free; may be out of date too.
    whole: Vec<FrameBlock>,
    inactive: VecDeque<(FrameId, u32)>,
    free_frames: u32,
    cached_frames: u32,
    populated_frames: u32,
}

impl SwapCache {
    /// A frame area of `blocks` blocks, all empty.
    pub fn new(blocks: u32) -> Self {
        Self {
            frames: Vec::with_capacity(blocks as usize * BLOCK_PAGES),
            blocks: Vec::with_capacity(blocks as usize),
            all_blocks: blocks,
            empty_blocks: Vec::new(),
            partial: VecDeque::new(),
            whole: Vec::new(),
            inactive: VecDeque::new(),
            free_frames: 0,
            cached_frames: 0,
            populated_frames: 0,
        }
    }

    pub(crate) fn frame(&self, frame: FrameId) -> &Frame {
        &self.frames[frame.0 as usize]
    }

    pub(crate) fn frame_mut(&mut self, frame: FrameId) -> &mut Frame {
        &mut self.frames[frame.0 as usize]
    }

    /// Frames with memory and no content.
    pub fn free_frames(&self) -> u32 {
        self.free_frames
    }

    /// Frames that hold a page's content and are not being stored.
    pub fn cached_frames(&self) -> u32 {
        self.cached_frames
    }

    /// Frames with memory behind them.
    pub fn populated_frames(&self) -> u32 {
        self.populated_frames
    }

    /// Blocks without memory.
    pub fn empty_blocks(&self) -> usize {
        self.empty_blocks.len() + (self.all_blocks as usize - self.blocks.len())
    }

    /// The next block that has never been in use has records from here on.
    fn begin_block(&mut self) -> Option<FrameBlock> {
        let block = FrameBlock(self.blocks.len() as u32);
        if block.0 == self.all_blocks {
            return None;
        }
        let frame =
            Frame { state: FrameUse::Empty, owner: None, clean: None, wanted: false, came_along: false, generation: 0 };
        self.frames.extend([frame; BLOCK_PAGES]);
        self.blocks.push(Block { listed_empty: true, ..Block::default() });
        Some(block)
    }

    pub(crate) fn take_empty_block(&mut self) -> Option<FrameBlock> {
        let block = self.empty_blocks.pop().or_else(|| self.begin_block())?;
        self.blocks[block.0 as usize].listed_empty = false;
        Some(block)
    }

    /// An isolation that moved nothing gives its block back.
    pub(crate) fn return_if_empty(&mut self, block: FrameBlock) {
        let frames = (0..BLOCK_PAGES).map(|index| block.frame(index));
        let record = &self.blocks[block.0 as usize];
        if record.populated == 0
            && !record.listed_empty
            && frames.clone().all(|frame| self.frame(frame).state == FrameUse::Empty)
        {
            self.blocks[block.0 as usize].listed_empty = true;
            self.empty_blocks.push(block);
        }
    }

    /// The content of `owner` has been moved into `frame`: a touch finds it there, the inactive list ends it.
    pub(crate) fn cached(&mut self, frame: FrameId, owner: PageNumber, clean: Option<EntryId>) {
        let record = self.frame_mut(frame);
        record.state = FrameUse::Cached;
        record.owner = Some(owner);
        record.clean = clean;
        record.wanted = false;
        record.came_along = false;
        record.generation = record.generation.wrapping_add(1);
        let generation = record.generation;
        self.inactive.push_back((frame, generation));
        self.cached_frames += 1;
        let block = &mut self.blocks[frame.block().0 as usize];
        if block.populated & frame.bit() == 0 {
            block.populated |= frame.bit();
            self.populated_frames += 1;
        }
    }

    /// Puts a frame whose store failed or was not wanted back at the young end of the inactive list.
    pub(crate) fn cached_again(&mut self, frame: FrameId) {
        let record = self.frame_mut(frame);
        debug_assert!(matches!(record.state, FrameUse::Writing | FrameUse::Restoring));
        record.state = FrameUse::Cached;
        record.wanted = false;
        record.generation = record.generation.wrapping_add(1);
        let generation = record.generation;
        self.inactive.push_back((frame, generation));
        self.cached_frames += 1;
    }

    /// The oldest cached frame; its state becomes [`FrameUse::Writing`].
    pub(crate) fn take_inactive(&mut self) -> Option<FrameId> {
        while let Some((frame, generation)) = self.inactive.pop_front() {
            let record = self.frame_mut(frame);
            if record.state == FrameUse::Cached && record.generation == generation {
                record.state = FrameUse::Writing;
                self.cached_frames -= 1;
                return Some(frame);
            }
        }
        None
    }

    /// Starts to move the cached `frame` back.
    pub(crate) fn restore(&mut self, frame: FrameId) {
        let record = self.frame_mut(frame);
        match record.state {
            FrameUse::Cached => {
                record.state = FrameUse::Restoring;
                self.cached_frames -= 1;
            }
            FrameUse::Writing => record.state = FrameUse::Restoring,
            other => panic!("{frame:?} is restored while {other:?}"),
        }
    }

    /// The memory of `frame` has been moved to the program.
    pub(crate) fn emptied(&mut self, frame: FrameId) {
        let record = self.frame_mut(frame);
        debug_assert!(matches!(record.state, FrameUse::Restoring | FrameUse::Loading | FrameUse::Isolating));
        record.state = FrameUse::Empty;
        record.owner = None;
        record.clean = None;
        record.wanted = false;
        let block_id = frame.block();
        let block = &mut self.blocks[block_id.0 as usize];
        if block.populated & frame.bit() != 0 {
            block.populated &= !frame.bit();
            self.populated_frames -= 1;
            if block.populated == 0 {
                self.return_if_empty(block_id);
            }
        }
    }

    /// The content of `frame` is stored or nobody's: the frame can serve a swap-in.
    pub(crate) fn release(&mut self, frame: FrameId) {
        let record = self.frame_mut(frame);
        match record.state {
            FrameUse::Cached => {
                record.state = FrameUse::Free;
                self.cached_frames -= 1;
            }
            FrameUse::Writing | FrameUse::Loading | FrameUse::Restoring => record.state = FrameUse::Free,
            other => panic!("{frame:?} is released while {other:?}"),
        }
        let record = self.frame_mut(frame);
        record.owner = None;
        record.clean = None;
        record.wanted = false;
        self.free_frames += 1;
        let block_id = frame.block();
        let block = &mut self.blocks[block_id.0 as usize];
        block.free |= frame.bit();
        if block.free == u16::MAX {
            if !block.listed_whole {
                block.listed_whole = true;
                self.whole.push(block_id);
            }
        } else if !block.listed_partial {
            block.listed_partial = true;
            self.partial.push_back(block_id);
        }
    }

    fn start_loading(&mut self, frame: FrameId) {
        let record = self.frame_mut(frame);
        assert!(record.state == FrameUse::Free, "{frame:?} is taken while {:?}", record.state);
        record.state = FrameUse::Loading;
        self.free_frames -= 1;
        self.blocks[frame.block().0 as usize].free &= !frame.bit();
    }

    /// A block of 16 free frames for a readahead window.
    pub(crate) fn take_block(&mut self, mask: u16) -> Option<FrameBlock> {
        while let Some(block_id) = self.whole.pop() {
            let block = &mut self.blocks[block_id.0 as usize];
            block.listed_whole = false;
            if block.free == u16::MAX {
                for index in (0..BLOCK_PAGES).filter(|index| mask >> index & 1 == 1) {
                    self.start_loading(block_id.frame(index));
                }
                let block = &mut self.blocks[block_id.0 as usize];
                if block.free != 0 && !block.listed_partial {
                    block.listed_partial = true;
                    self.partial.push_back(block_id);
                }
                return Some(block_id);
            }
            if block.free != 0 && !block.listed_partial {
                block.listed_partial = true;
                self.partial.push_back(block_id);
            }
        }
        None
    }

    /// A block none of whose frames has content, with free frames to give back to the kernel. The frames count as empty
    /// from here on, but the block is handed out again only after [`trashed`](Self::trashed).
    pub(crate) fn take_trash(&mut self) -> Option<(FrameBlock, u16)> {
        let mut skipped = 0;
        while let Some(block_id) = self.spare_whole().or_else(|| self.partial.pop_back()) {
            let block = &mut self.blocks[block_id.0 as usize];
            block.listed_whole = false;
            block.listed_partial = false;
            if block.free == 0 {
                continue;
            }
            if block.free != block.populated {
                // Content lies beside the free frames: not this one. Keep it listed, at the far end.
                block.listed_partial = true;
                self.partial.push_front(block_id);
                skipped += 1;
                if skipped > MAX_SKIPPED {
                    return None;
                }
                continue;
            }
            let mask = block.free;
            block.free = 0;
            block.populated = 0;
            self.free_frames -= mask.count_ones();
            self.populated_frames -= mask.count_ones();
            for index in (0..BLOCK_PAGES).filter(|index| mask >> index & 1 == 1) {
                self.frames[block_id.frame(index).0 as usize].state = FrameUse::Empty;
            }
            return Some((block_id, mask));
        }
        None
    }

    /// A block of free frames, unless it is one of those that readahead may need next.
    fn spare_whole(&mut self) -> Option<FrameBlock> {
        if self.whole.len() > WHOLE_KEPT { self.whole.pop() } else { None }
    }

    /// The memory of a block from [`take_trash`](Self::take_trash) has been given back.
    pub(crate) fn trashed(&mut self, block: FrameBlock) {
        self.return_if_empty(block);
    }

    /// Frames of a block from [`take_trash`](Self::take_trash) that the kernel does not take back at this moment: they are
    /// free again. The others of the block are gone.
    pub(crate) fn trash_refused(&mut self, block_id: FrameBlock, mask: u16) {
        for index in (0..BLOCK_PAGES).filter(|index| mask >> index & 1 == 1) {
            self.frames[block_id.frame(index).0 as usize].state = FrameUse::Free;
        }
        self.free_frames += mask.count_ones();
        self.populated_frames += mask.count_ones();
        let block = &mut self.blocks[block_id.0 as usize];
        block.free = mask;
        block.populated = mask;
        if mask == 0 {
            return self.return_if_empty(block_id);
        }
        block.listed_partial = true;
        self.partial.push_front(block_id);
    }

    /// What a frame is at which somebody looks from outside of the engine, and finds nothing.
    pub(crate) fn onlooked(&self, frame: FrameId) -> Onlooked {
        let Some(block) = self.blocks.get(frame.block().0 as usize) else { return Onlooked::Empty };
        let is_at_rest = |frame| {
            matches!(self.frame(frame).state, FrameUse::Empty | FrameUse::Free | FrameUse::Cached | FrameUse::Writing)
        };
        let in_use = !block.listed_empty && block.populated == 0;
        if in_use || !(0..BLOCK_PAGES).all(|index| is_at_rest(frame.block().frame(index))) {
            return Onlooked::InMotion;
        }
        if self.frame(frame).state == FrameUse::Empty { Onlooked::Empty } else { Onlooked::Populated }
    }

    /// An [`Onlooked::Empty`] frame has memory from here on: it is free.
    pub(crate) fn filled_for_onlooker(&mut self, frame: FrameId) {
        let block_id = frame.block();
        while self.blocks.len() <= block_id.0 as usize {
            let block = self.begin_block().expect("the frame area has this frame");
            self.empty_blocks.push(block);
        }
        let block = &mut self.blocks[block_id.0 as usize];
        if core::mem::take(&mut block.listed_empty) {
            self.empty_blocks.retain(|&other| other != block_id);
        }
        let block = &mut self.blocks[block_id.0 as usize];
        block.populated |= frame.bit();
        self.populated_frames += 1;
        self.frame_mut(frame).state = FrameUse::Loading;
        self.release(frame);
    }

    /// A frame that holds a page's content and is not in use by a thread: the first of those from `near` on, or else of all.
    pub(crate) fn cached_from(&self, near: FrameId) -> Option<FrameId> {
        if self.cached_frames == 0 {
            return None;
        }
        let all = self.frames.len() as u32;
        let is_cached = |&frame: &FrameId| self.frame(frame).state == FrameUse::Cached;
        (near.0..all).chain(0..near.0.min(all)).map(FrameId).find(is_cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_looked_at_from_outside_is_free() {
        let mut cache = SwapCache::new(2);
        let taken = cache.take_empty_block().unwrap();
        assert_eq!(cache.onlooked(taken.frame(3)), Onlooked::InMotion);
        cache.cached(taken.frame(0), PageNumber(7), None);
        assert_eq!(cache.onlooked(taken.frame(0)), Onlooked::Populated);
        assert_eq!(cache.onlooked(taken.frame(3)), Onlooked::Empty);
        let other = FrameBlock(1 - taken.0);
        for frame in [taken.frame(3), other.frame(5)] {
            cache.filled_for_onlooker(frame);
            assert_eq!(cache.onlooked(frame), Onlooked::Populated);
        }
        assert_eq!((cache.free_frames(), cache.populated_frames(), cache.empty_blocks()), (2, 3, 0));
        // It is given back like any other.
        let (trash, mask) = cache.take_trash().unwrap();
        assert_eq!((trash, mask), (other, 1 << 5));
        assert_eq!(cache.onlooked(other.frame(5)), Onlooked::InMotion);
        cache.trashed(other);
        assert_eq!(cache.empty_blocks(), 1);
    }

    #[test]
    fn what_was_never_in_use_has_no_records() {
        let mut cache = SwapCache::new(100);
        let block = cache.take_empty_block().unwrap();
        cache.return_if_empty(block);
        assert_eq!(cache.take_empty_block(), Some(block), "what has records is taken first");
        assert_eq!((cache.empty_blocks(), cache.frames.len()), (99, BLOCK_PAGES));
        // Looked at from outside: those before it have records as well, and are still empty.
        let far = FrameBlock(block.0 + 3).frame(2);
        assert_eq!(cache.onlooked(far), Onlooked::Empty);
        cache.filled_for_onlooker(far);
        assert_eq!(
            (cache.empty_blocks(), cache.frames.len(), cache.onlooked(far)),
            (98, 4 * BLOCK_PAGES, Onlooked::Populated)
        );
        assert_eq!(core::iter::from_fn(|| cache.take_empty_block()).count(), 98);
        assert_eq!((cache.empty_blocks(), cache.frames.len()), (0, 100 * BLOCK_PAGES));
    }

    #[test]
    fn a_cached_frame_is_found_from_any_frame_on() {
        let mut cache = SwapCache::new(2);
        assert_eq!(cache.cached_from(FrameId(3)), None);
        let block = cache.take_empty_block().unwrap();
        let [first, second] = [2, 9].map(|index| block.frame(index));
        for frame in [first, second] {
            cache.cached(frame, PageNumber(u64::from(frame.0)), None);
        }
        for (near, found) in [(0, first), (first.0, first), (first.0 + 1, second), (second.0 + 1, first), (99, first)] {
            assert_eq!(cache.cached_from(FrameId(near)), Some(found));
        }
        cache.restore(second);
        assert_eq!(cache.cached_from(second), Some(first));
    }

    #[test]
    fn frames_are_recycled_from_store_to_load() {
        let mut cache = SwapCache::new(2);
        let block = cache.take_empty_block().unwrap();
        for index in 0..BLOCK_PAGES {
            cache.cached(block.frame(index), PageNumber(index as u64), None);
        }
        assert_eq!((cache.cached_frames(), cache.populated_frames()), (16, 16));
        while let Some(frame) = cache.take_inactive() {
            cache.release(frame);
        }
        assert_eq!(cache.free_frames(), 16);
        let window = cache.take_block(0x00ff).unwrap();
        assert_eq!(cache.free_frames(), 8);
        for index in 0..8 {
            cache.emptied(window.frame(index));
        }
        assert_eq!(cache.take_block(0x00ff), None, "the block is not whole any more");
        assert_eq!(cache.populated_frames(), 8);
        assert_eq!(cache.empty_blocks(), 1);
        assert_eq!(cache.take_trash(), Some((window, 0xff00)));
        cache.trashed(window);
        assert_eq!((cache.empty_blocks(), cache.populated_frames(), cache.free_frames()), (2, 0, 0));
    }

    #[test]
    fn a_touched_frame_leaves_the_inactive_list() {
        let mut cache = SwapCache::new(1);
        let block = cache.take_empty_block().unwrap();
        cache.cached(block.frame(0), PageNumber(0), None);
        cache.cached(block.frame(1), PageNumber(1), None);
        cache.restore(block.frame(0));
        cache.emptied(block.frame(0));
        assert_eq!(cache.take_inactive(), Some(block.frame(1)));
        assert_eq!(cache.take_inactive(), None);
    }

    #[test]
    fn trash_never_takes_a_block_with_content() {
        let mut cache = SwapCache::new(1);
        let block = cache.take_empty_block().unwrap();
        cache.cached(block.frame(0), PageNumber(0), None);
        cache.cached(block.frame(1), PageNumber(1), None);
        let frame = cache.take_inactive().unwrap();
        cache.release(frame);
        assert_eq!(cache.take_trash(), None);
        assert_eq!(cache.free_frames(), 1);
        let other = cache.take_inactive().unwrap();
        cache.release(other);
        assert_eq!(cache.take_trash(), Some((block, 0b11)), "and the free frames are still found");
        // The kernel takes only one of them.
        cache.trash_refused(block, 0b10);
        assert_eq!((cache.free_frames(), cache.populated_frames(), cache.empty_blocks()), (1, 1, 0));
        assert_eq!(cache.take_trash(), Some((block, 0b10)));
        cache.trash_refused(block, 0);
        assert_eq!((cache.free_frames(), cache.empty_blocks()), (0, 1));
    }
}
