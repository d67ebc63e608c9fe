//! Reclaim: which pages leave the program.
//!
//! Pages are taken in blocks of 16 neighbours, in the order that the policy of the run tells (`order`); a page that was asked
//! back for since its block was queued gets a second chance, and where few blocks are left the last pages that were asked for
//! stay (`just_asked`). Taken pages rest in the swap cache before they are stored, where a touch still finds them.

mod just_asked;
pub(crate) mod order;

use alloc::vec::Vec;

use crate::core::Core;
use crate::defects::{Sabotage, is_on};
use crate::entry::EntryId;
use crate::fault::Vanished;
use crate::page_table::PageState;
use crate::swap_cache::{FrameBlock, FrameId, FrameUse, Onlooked};
use crate::units::{BLOCK_PAGES, PageNumber, PageRange};
use order::Came;

/// Blocks with refused pages that are noted at a time.
pub(crate) const REFUSED_MAX: usize = 256;

/// Pages to move out: those of `mask` in the block at `first`, each into the frame of the same index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Isolation {
    /// First page of the block.
    pub first: PageNumber,
    /// Bit `i`: page `first + i` is to be moved.
    pub mask: u16,
    /// Bit `i`: page `first + i` is swapped out, and stays so until the isolation ends: a move may run across it.
    pub gaps: u16,
    /// Where they go.
    pub frames: FrameBlock,
    /// The program has discarded memory of the block: the kernel may be free to drop some of its pages.
    pub is_lazy: bool,
}

/// What the kernel answered for the pages of an [`Isolation`]: each page of its mask is in exactly one of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IsolationOutcome {
    /// Moved into their frames. A page of a gap may be among them: it had come in beside the books, when its parent's were
    /// frozen for the fork that made this process.
    pub moved: u16,
    /// Not populated after all.
    pub missing: u16,
    /// Not movable at this moment: shared after a fork, pinned for a device, in a read-only or locked mapping.
    pub refused: u16,
    /// Those of the refused that were left alone because the kernel has swapped them out itself.
    pub kernel_swapped: u16,
}

/// What is left to do after an isolation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Isolated {
    /// Pages that a thread touched meanwhile: serve each as a fault.
    pub wanted: u16,
    /// Pages that were not there although nobody had discarded them: they are poisoned, and somebody must be told.
    pub lost: u16,
    /// Others have all of it, or the kernel has swapped it out, and it was put aside: another block's turn has come.
    pub is_put_aside: bool,
}

impl Core {
    /// A page of `page`'s block has become resident: reclaim will look at the block. One that a thread asked for must not
    /// leave just because its block is old.
    pub(crate) fn note_resident(&mut self, page: PageNumber, came: Came) {
        let first = page.block_start();
        if came != Came::Unasked {
            self.eviction.order.just_asked.note(page);
        }
        let block = self.pages.block_mut(page).expect("a resident page is adopted");
        self.eviction.order.came(block, came);
        if block.queued > 0 {
            block.referenced |= u16::from(came != Came::Unasked) << page.index_in_block();
        } else {
            self.eviction.order.enqueue(first, block);
        }
    }

    /// As [`found_present`](Self::found_present), of a scan: what the kernel may be about to drop is left alone (`recent_discards`).
    pub fn found_by_scan(&mut self, range: PageRange) -> u64 {
        if self.discards.is_empty() || is_on(Sabotage::RecentDiscardsIgnored) {
            return self.found_present(range);
        }
        let pages = (range.start.0..range.end().0).map(PageNumber);
        pages.map(|page| if self.is_being_dropped(page) { 0 } else { self.found_present(page.alone()) }).sum()
    }

    fn is_being_dropped(&self, page: PageNumber) -> bool {
        self.pages.get(page) == Some(PageState::Untouched) && self.was_discarded_of_late(page)
    }

    /// Whether the kernel may be about to drop `page`, if it is there and nobody has brought it in since.
    pub fn was_discarded_of_late(&self, page: PageNumber) -> bool {
        self.discards.covers(page)
    }

    /// Pages of `range` that are populated: those that the books did not know become resident.
    /// Pages that the books have elsewhere are left alone, except a swapped page (see below). Returns how many pages the
    /// books did not know.
    pub fn found_present(&mut self, range: PageRange) -> u64 {
        let mut found = 0;
        for number in range.start.0..range.end().0 {
            let page = PageNumber(number);
            match self.pages.get(page) {
                Some(PageState::Untouched) => {
                    self.pages.set(page, PageState::Resident { clean: None });
                    self.note_resident(page, Came::Unasked);
                }
                // The parent's handler brought it in while its books were frozen for the fork that made this process.
                Some(PageState::Swapped { entry }) => {
                    self.counts.swapped_pages -= 1;
                    self.let_go(entry);
                    self.pages.set(page, PageState::Resident { clean: None });
                    self.note_resident(page, Came::Unasked);
                }
                Some(PageState::SwappedZero) => {
                    self.counts.swapped_pages -= 1;
                    self.pages.set(page, PageState::Resident { clean: None });
                    self.note_resident(page, Came::Unasked);
                }
                _ => continue,
            }
            found += 1;
        }
        found
    }

    /// As [`Core::found_present`], of a look that may be out of date: of one page by one of several handlers, or of a scan while the
    /// program was changing its mappings. What the books have elsewhere may have been moved there since, or moved on and another
    /// page be in its place: it stays as it is, and only what they know nothing of is taken in.
    pub fn found_unknown(&mut self, range: PageRange) -> u64 {
        let mut found = 0;
        for number in range.start.0..range.end().0 {
            let page = PageNumber(number);
            if self.pages.get(page) == Some(PageState::Untouched) && !self.discards.covers(page) {
                found += self.found_present(page.alone());
            }
        }
        found
    }

    /// The next block to move out; `None` when nothing is left to take or no empty block of frames is left.
    pub fn isolate(&mut self) -> Option<Isolation> {
        let frames = self.cache.take_empty_block()?;
        let blocks = self.eviction.order.blocks();
        // Each queued block is looked at twice at most: once to take its second chance away.
        for _ in 0..blocks * 2 {
            let Some(first) = self.eviction.order.next(&mut self.pages) else { break };
            let block = self.pages.block_mut(first).expect("looked up above");
            block.queued = block.queued.saturating_sub(1);
            let referenced = core::mem::take(&mut block.referenced);
            let kept = referenced | self.eviction.order.just_asked.in_block(first);
            let (mut mask, mut gaps, mut stay) = (0u16, 0u16, 0u16);
            for index in 0..BLOCK_PAGES {
                let page = first.plus(index as u64);
                let state = self.pages.get(page);
                if matches!(state, Some(PageState::Swapped { .. } | PageState::SwappedZero)) {
                    gaps |= 1 << index;
                }
                if let Some(PageState::Resident { clean }) = state {
                    if kept >> index & 1 == 1 {
                        stay |= 1 << index;
                        continue;
                    }
                    let frame = frames.frame(index);
                    self.pages.set(page, PageState::InFrame { frame });
                    let record = self.cache.frame_mut(frame);
                    record.state = FrameUse::Isolating;
                    record.owner = Some(page);
                    record.clean = clean;
                    record.wanted = false;
                    mask |= 1 << index;
                }
            }
            let block = self.pages.block_mut(first).expect("looked up above");
            if stay & referenced != 0 {
                self.eviction.order.stays(block);
            }
            if stay != 0 && block.queued == 0 {
                self.eviction.order.enqueue(first, block);
            }
            if mask != 0 {
                self.eviction.order.leaves(block);
                block.isolating = true;
                block.wanted = 0;
                let is_lazy = block.discarded;
                return Some(Isolation { first, mask, gaps, frames, is_lazy });
            }
            if stay == 0 {
                // Its memory may have been unmapped since, or given up.
                self.pages.prune(first);
            }
        }
        self.cache.return_if_empty(frames);
        None
    }

    /// To be called now and then: who asked for a page has had a chance to use it, if nobody has asked for any since this was last
    /// called.
    pub fn asked_grow_old(&mut self) {
        self.eviction.order.just_asked.grow_old();
    }

    /// Ends an isolation.
    pub fn isolated(&mut self, isolation: Isolation, outcome: IsolationOutcome) -> Isolated {
        let unknown = outcome.moved & isolation.gaps;
        assert_eq!(
            outcome.moved ^ unknown ^ outcome.missing ^ outcome.refused,
            isolation.mask,
            "an isolation ends for each page"
        );
        let block = self.pages.block_mut(isolation.first).expect("a block stays adopted while it is isolated");
        block.isolating = false;
        block.soon &= outcome.moved == 0;
        // What never moves must not be what always leaves next.
        block.active |= outcome.moved == 0;
        let mut wanted = core::mem::take(&mut block.wanted);
        let mut lost = 0;
        block.has_own &= outcome.moved == 0;
        let can_be = outcome.refused == isolation.mask && block.queued == 0;
        let is_in_common = self.eviction.order.puts_aside && !block.has_own;
        let is_put_aside = can_be && (outcome.kernel_swapped == isolation.mask || is_in_common);
        if is_put_aside {
            self.eviction.order.put_aside(isolation.first, block);
        }
        let passes_for_moved = is_put_aside && is_on(Sabotage::AsideIsMoved);
        for index in (0..BLOCK_PAGES).filter(|index| isolation.mask >> index & 1 == 1) {
            let page = isolation.first.plus(index as u64);
            let frame = isolation.frames.frame(index);
            let record = *self.cache.frame(frame);
            assert!(record.state == FrameUse::Isolating && record.owner == Some(page));
            if record.wanted {
                wanted |= 1 << index;
            }
            if outcome.moved >> index & 1 == 1 || passes_for_moved {
                self.cache.cached(frame, page, record.clean);
                continue;
            }
            self.cache.emptied(frame);
            self.pages.set(page, PageState::Resident { clean: record.clean });
            if outcome.missing >> index & 1 == 1 {
                lost |= u16::from(self.vanished(page) == Vanished::Lost) << index;
            } else if !is_put_aside {
                self.note_resident(page, Came::Unasked);
            }
        }
        for index in (0..BLOCK_PAGES).filter(|index| unknown >> index & 1 == 1) {
            let (page, frame) = (isolation.first.plus(index as u64), isolation.frames.frame(index));
            let range = PageRange { start: page, pages: 1 };
            // What was there is newer than the stored copy.
            self.found_present(range);
            self.pages.set(page, PageState::InFrame { frame });
            self.cache.cached(frame, page, None);
        }
        self.cache.return_if_empty(isolation.frames);
        Isolated { wanted, lost, is_put_aside }
    }

    /// The pages of `range` can be taken now: their blocks are looked at next. Returns whether any is: not those that were to be
    /// already, and could not be taken all the same, for others are behind them.
    pub fn reclaim_soon(&mut self, range: PageRange) -> bool {
        let (mut first, mut any) = (range.start.block_start(), false);
        while first < range.end() {
            if let Some(block) = self.pages.block_mut(first) {
                any |= self.eviction.order.put_first(first, block);
            }
            first = first.plus(BLOCK_PAGES as u64);
        }
        any
    }

    /// Pages of the block that begins at `first` were refused to a thread that does not end sharing: who does takes them over.
    pub fn note_refused(&mut self, first: PageNumber, refused: u16) {
        if self.eviction.refused.len() < REFUSED_MAX {
            self.eviction.refused.push((first, refused));
        }
    }

    /// Takes out what was noted.
    pub fn take_refused(&mut self, pages: &mut Vec<PageNumber>) {
        for (first, refused) in self.eviction.refused.drain(..) {
            let of_block = (0..BLOCK_PAGES).filter(|index| refused >> index & 1 == 1);
            let of_block = of_block.map(|index| first.plus(index as u64));
            pages.extend(of_block.filter(|&page| matches!(self.pages.get(page), Some(PageState::Resident { .. }))));
        }
    }

    /// Whether blocks of which nothing can be moved are put aside: others have what is in them, and may keep it.
    pub fn put_aside(&mut self, puts_aside: bool) {
        if self.eviction.order.puts_aside && !puts_aside {
            self.take_back_aside();
        }
        self.eviction.order.puts_aside = puts_aside;
    }

    /// The program may write to the block of `page`, of which it then has pages that nobody else has.
    pub fn may_be_copied(&mut self, page: PageNumber) {
        if let Some(block) = self.pages.block_mut(page) {
            self.eviction.order.take_back(page.block_start(), block);
        }
    }

    /// How many blocks are put aside.
    pub fn blocks_aside(&self) -> usize {
        self.eviction.order.blocks_aside()
    }

    /// What was put aside is to be looked at again: others may have let it go.
    pub fn take_back_aside(&mut self) {
        self.eviction.order.take_back_aside(&mut self.pages);
    }

    pub(crate) fn drop_clean(&mut self, clean: Option<EntryId>) {
        if let Some(entry) = clean {
            self.let_go(entry);
        }
    }

    /// What a frame is at which somebody looks from outside of the engine, and finds nothing.
    pub fn onlooked(&self, frame: FrameId) -> Onlooked {
        self.cache.onlooked(frame)
    }

    /// An [`Onlooked::Empty`] frame has memory from here on: it is free.
    pub fn filled_for_onlooker(&mut self, frame: FrameId) {
        self.cache.filled_for_onlooker(frame);
    }

    /// A block of free frames to give back to the kernel, and which of its frames have memory.
    pub fn take_trash(&mut self) -> Option<(FrameBlock, u16)> {
        self.cache.take_trash()
    }

    /// The memory of a block from [`take_trash`](Self::take_trash) is gone, but for that of the frames of `mask`.
    pub fn trash_refused(&mut self, block: FrameBlock, mask: u16) {
        self.cache.trash_refused(block, mask);
    }

    /// The memory of a block from [`take_trash`](Self::take_trash) is gone.
    pub fn trashed(&mut self, block: FrameBlock) {
        self.cache.trashed(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CoreConfig;
    use crate::entry::Location;
    use crate::policies::{Policies, ReclaimPolicy};

    const BLOCK: PageRange = PageRange { start: PageNumber(160), pages: BLOCK_PAGES as u64 };

    fn core() -> Core {
        let mut core = Core::new(CoreConfig {
            frame_blocks: 4,
            area_slots: Vec::new(),
            window_max: 16,
            ahead_max: 0,
            ..CoreConfig::default()
        });
        core.adopt(PageRange { start: PageNumber(0), pages: 512 });
        core
    }

    fn resident_block() -> Core {
        let mut core = core();
        assert_eq!(core.found_present(BLOCK), BLOCK.pages);
        core
    }

    fn page(index: u64) -> PageNumber {
        BLOCK.start.plus(index)
    }

    #[test]
    fn nothing_is_left_of_memory_that_was_unmapped_while_its_block_was_queued() {
        let mut core = resident_block();
        core.unmapped(PageRange { start: PageNumber(0), pages: 512 });
        assert!(core.isolate().is_none());
        assert_eq!(core.pages.leaves(), 0);
    }

    #[test]
    fn nothing_is_left_of_memory_that_was_given_up_while_its_block_was_queued() {
        let mut core = resident_block();
        core.removed(PageRange { start: PageNumber(0), pages: 512 });
        assert_eq!(core.pages.leaves(), 1);
        assert!(core.isolate().is_none());
        assert_eq!(core.pages.leaves(), 0);
    }

    #[test]
    fn a_look_that_is_out_of_date_takes_nothing_from_what_is_stored() {
        let mut core = resident_block();
        let entry = core.table.insert(Location::Pool { handle: 0, len: 9 }, 7);
        core.pages.set(page(0), PageState::Swapped { entry });
        core.counts.swapped_pages += 1;
        assert_eq!(core.found_unknown(BLOCK), 0);
        assert_eq!(core.pages.get(page(0)), Some(PageState::Swapped { entry }));
    }

    #[test]
    fn what_cannot_be_moved_keeps_nothing_else_from_leaving() {
        for reclaim in ReclaimPolicy::ALL {
            [false, true].into_iter().for_each(|is_shared| all_but_two_leave(reclaim, is_shared));
        }
    }

    fn all_but_two_leave(reclaim: ReclaimPolicy, is_shared: bool) {
        let policies = Policies { reclaim, ..Policies::default() };
        let mut core = Core::new(CoreConfig { frame_blocks: 16, policies, ..CoreConfig::default() });
        core.adopt(PageRange { start: PageNumber(0), pages: 512 });
        let first = |block: u64| PageNumber(160 + block * BLOCK_PAGES as u64);
        let is_pinned = |page: PageNumber| page == first(0) || page == first(1);
        (0..10).for_each(|block| assert_eq!(core.found_present(first(block).alone()), 1));
        let mut left = Vec::new();
        for _ in 0..40 {
            let Some(isolation) = core.isolate() else { break };
            let refused = if is_pinned(isolation.first) { isolation.mask } else { 0 };
            let moved = isolation.mask & !refused;
            let _ = core.isolated(isolation, IsolationOutcome { moved, refused, ..Default::default() });
            if refused == 0 {
                left.push(isolation.first);
                core.removed(isolation.first.alone());
            } else if is_shared {
                core.reclaim_soon(isolation.first.alone());
            }
            assert!(core.eviction.order.blocks() <= 12, "{} blocks are queued", core.eviction.order.blocks());
        }
        left.sort_unstable();
        assert_eq!(left, (2..10).map(first).collect::<Vec<_>>(), "{reclaim:?}");
    }

    /// However much of it there is, what can be moved is found at the next look.
    #[test]
    fn what_the_kernel_has_swapped_out_is_put_aside_until_it_is_looked_at_again() {
        for reclaim in ReclaimPolicy::ALL {
            let policies = Policies { reclaim, ..Policies::default() };
            let mut core = Core::new(CoreConfig { frame_blocks: 16, policies, ..CoreConfig::default() });
            core.adopt(PageRange { start: PageNumber(0), pages: 512 });
            core.found_present(PageRange { start: PageNumber(0), pages: 512 });
            let is_in_memory = |page: PageNumber| page == PageNumber(35);
            let refuse = |core: &mut Core, isolation: Isolation| {
                let swapped = |index: &usize| !is_in_memory(isolation.first.plus(*index as u64));
                let kernel_swapped = (0..BLOCK_PAGES).filter(swapped).fold(0, |mask, index| mask | 1 << index);
                let refused = isolation.mask;
                let outcome = IsolationOutcome { refused, kernel_swapped, ..Default::default() };
                core.isolated(isolation, outcome).is_put_aside
            };
            for again in 0..2 {
                let mut aside = 0;
                while aside < 31 {
                    let isolation = core.isolate().expect("no more than the others were put aside");
                    let is_put_aside = refuse(&mut core, isolation);
                    assert_eq!(is_put_aside, isolation.first != PageNumber(32), "{reclaim:?}");
                    aside += usize::from(is_put_aside);
                }
                let isolation = core.isolate().unwrap();
                assert_eq!(isolation.first, PageNumber(32), "{reclaim:?}: the one that has something, {again}");
                assert!(!refuse(&mut core, isolation));
                core.take_back_aside();
            }
        }
    }

    #[test]
    fn what_others_have_is_put_aside_until_it_is_looked_at_again() {
        for reclaim in ReclaimPolicy::ALL {
            let policies = Policies { reclaim, ..Policies::default() };
            let mut core = Core::new(CoreConfig { frame_blocks: 16, policies, ..CoreConfig::default() });
            core.adopt(PageRange { start: PageNumber(0), pages: 512 });
            core.found_present(PageRange { start: PageNumber(0), pages: 64 });
            core.put_aside(true);
            let refuse_all = |core: &mut Core| {
                let mut seen = Vec::new();
                while let Some(isolation) = core.isolate() {
                    let refused = isolation.mask;
                    seen.push(isolation.first);
                    let _ = core.isolated(isolation, IsolationOutcome { refused, ..Default::default() });
                }
                seen.sort_unstable();
                seen
            };
            let all: Vec<PageNumber> = (0..4).map(|block| PageNumber(block * 16)).collect();
            assert_eq!(refuse_all(&mut core), all, "{reclaim:?}: each once");
            assert_eq!(refuse_all(&mut core), []);
            // One of them gets a page of its own.
            core.removed(PageNumber(20).alone());
            core.found_present(PageNumber(20).alone());
            assert_eq!(refuse_all(&mut core), [PageNumber(16)]);
            core.may_be_copied(PageNumber(40));
            // Who is to write has not run yet: it is tried until that page leaves.
            for moved in [0, 1 << 8] {
                let isolation = core.isolate().unwrap();
                assert_eq!(isolation.first, PageNumber(32));
                let refused = isolation.mask & !moved;
                let _ = core.isolated(isolation, IsolationOutcome { moved, refused, ..Default::default() });
            }
            assert_eq!(refuse_all(&mut core), [PageNumber(32)]);
            core.removed(PageNumber(40).alone());
            core.found_present(PageNumber(40).alone());
            assert_eq!(refuse_all(&mut core), [PageNumber(32)]);
            core.take_back_aside();
            assert_eq!(refuse_all(&mut core), all, "{reclaim:?}");
            core.put_aside(false);
            let isolation = core.isolate().unwrap();
            let refused = isolation.mask;
            let _ = core.isolated(isolation, IsolationOutcome { refused, ..Default::default() });
            assert_eq!(core.eviction.order.blocks(), 4, "all are looked at again, and again");
        }
    }

    #[test]
    fn what_the_kernel_is_about_to_drop_is_not_taken_in() {
        let mut core = core();
        core.found_by_scan(BLOCK);
        core.removed(PageRange { start: page(2), pages: 3 });
        // The thread that discards has not come to it.
        assert_eq!((core.found_by_scan(BLOCK), core.found_unknown(BLOCK)), (0, 0));
        let isolation = core.isolate().unwrap();
        assert_eq!(isolation.mask, !0b11100);
        let _ = core.isolated(isolation, IsolationOutcome { moved: isolation.mask, ..Default::default() });
        // A touch is answered, and known.
        let crate::fault::FaultPlan::Zero { range, op } = core.fault(page(3), true) else { panic!("zeros") };
        // But the message may be an old one, and the page that is found there the one that is being dropped.
        assert!(core.was_discarded_of_late(page(3)) && !core.was_discarded_of_late(page(5)));
        core.zeros_installed(range, op, 0);
        assert_eq!(core.found_by_scan(BLOCK), 0);
        core.discards_grow_old();
        assert_eq!(core.found_by_scan(BLOCK), 0);
        // It was MADV_FREE, and the program has written to it.
        core.discards_grow_old();
        assert!(core.found_by_scan(BLOCK) > 0);
    }

    /// The kernel has refused to register it, or it could not be registered for a moment.
    #[test]
    fn what_the_kernel_is_about_to_drop_is_remembered_where_it_is_managed_no_more() {
        let mut core = core();
        core.found_by_scan(BLOCK);
        core.removed(PageRange { start: page(2), pages: 3 });
        core.manages_no_more(BLOCK);
        core.adopt(BLOCK);
        assert_eq!(core.found_by_scan(BLOCK), BLOCK.pages - 3);
    }

    #[test]
    fn what_threads_have_just_asked_for_stays_until_others_have_been_asked_for() {
        for reclaim in ReclaimPolicy::ALL {
            let policies = Policies { reclaim, ..Policies::default() };
            let mut core = Core::new(CoreConfig { frame_blocks: 64, policies, ..CoreConfig::default() });
            core.adopt(PageRange { start: PageNumber(0), pages: 512 });
            core.found_present(PageRange { start: PageNumber(0), pages: 64 });
            let asked = [PageNumber(5), PageNumber(6), PageNumber(40)];
            asked.iter().for_each(|&page| core.note_resident(page, Came::FromStore));
            let mut left = Vec::new();
            let all_that_leave = |core: &mut Core, left: &mut Vec<PageNumber>| {
                while let Some(isolation) = core.isolate() {
                    let moved = isolation.mask;
                    let pages =
                        (0..16).filter(|index| moved >> index & 1 == 1).map(|index| isolation.first.plus(index));
                    let _ = core.isolated(isolation, IsolationOutcome { moved, ..Default::default() });
                    left.extend(pages.inspect(|page| core.removed(page.alone())));
                }
            };
            all_that_leave(&mut core, &mut left);
            assert_eq!(left.len(), 61, "{reclaim:?}");
            assert!(asked.iter().all(|page| !left.contains(page)), "{reclaim:?}");
            core.found_present(PageRange { start: PageNumber(100), pages: 16 });
            (100..116).for_each(|page| core.note_resident(PageNumber(page), Came::FromCache));
            left.clear();
            all_that_leave(&mut core, &mut left);
            left.sort_unstable();
            assert_eq!(left, asked, "{reclaim:?}");
            // Or until nobody has asked for anything for a while.
            left.clear();
            core.asked_grow_old();
            all_that_leave(&mut core, &mut left);
            assert_eq!(left, []);
            core.asked_grow_old();
            all_that_leave(&mut core, &mut left);
            assert_eq!(left.len(), 16);
        }
    }

    /// Of many blocks that are left, all the others cannot be moved.
    #[test]
    fn what_has_just_been_asked_for_stays_beside_many_that_cannot_leave() {
        let mut core = Core::new(CoreConfig { frame_blocks: 64, ..CoreConfig::default() });
        core.adopt(PageRange { start: PageNumber(0), pages: 1024 });
        core.found_present(PageRange { start: PageNumber(0), pages: 640 });
        core.note_resident(PageNumber(0), Came::FromStore);
        for _ in 0..200 {
            let Some(isolation) = core.isolate() else { break };
            assert!(isolation.first != PageNumber(0) || isolation.mask & 1 == 0, "it leaves before it was used");
            let refused = isolation.mask;
            let _ = core.isolated(isolation, IsolationOutcome { refused, ..Default::default() });
        }
    }

    #[test]
    fn a_page_that_is_missing_without_reason_is_lost() {
        let mut core = resident_block();
        let isolation = core.isolate().unwrap();
        let outcome = IsolationOutcome { moved: 0xfffe, missing: 1, ..Default::default() };
        assert_eq!(core.isolated(isolation, outcome), Isolated { wanted: 0, lost: 1, is_put_aside: false });
        assert_eq!(core.pages().get(page(0)), Some(PageState::Poisoned));
    }

    #[test]
    fn where_the_program_discarded_memory_a_missing_page_is_zeros() {
        let mut core = resident_block();
        core.removed(PageRange { start: page(3), pages: 1 });
        // The kernel had not dropped it yet when a scan came by.
        assert_eq!(core.found_present(BLOCK), 1);
        let isolation = core.isolate().unwrap();
        let outcome = IsolationOutcome { moved: !(1 << 3), missing: 1 << 3, ..Default::default() };
        assert_eq!(core.isolated(isolation, outcome), Isolated { wanted: 0, lost: 0, is_put_aside: false });
        assert_eq!(core.pages().get(page(3)), Some(PageState::Untouched));
    }

    #[test]
    fn that_memory_was_discarded_is_known_after_mremap() {
        let mut core = resident_block();
        core.removed(PageRange { start: page(3), pages: 1 });
        let _ = core.found_present(BLOCK);
        core.remapped(BLOCK.start, PageNumber(320), BLOCK.pages);
        assert_eq!(core.vanished(PageNumber(323)), Vanished::Discarded);
    }

    #[test]
    fn a_scan_while_memory_is_moved_takes_nothing_from_the_books() {
        let mut core = core();
        let entry = core.table.insert(Location::Pool { handle: 1, len: 100 }, 7);
        core.zswap.object_added(entry, &core.table);
        core.pages.set(page(0), PageState::Swapped { entry });
        core.pages.set(page(1), PageState::SwappedZero);
        core.counts.swapped_pages = 2;
        // Both have been moved on, and others are in their places; the reports are not read yet.
        assert_eq!(core.found_unknown(BLOCK), BLOCK.pages - 2);
        core.remapped(page(0), PageNumber(320), 2);
        assert_eq!(core.pages().get(PageNumber(320)), Some(PageState::Swapped { entry }));
        assert_eq!(core.pages().get(PageNumber(321)), Some(PageState::SwappedZero));
    }

    #[test]
    fn a_page_that_came_in_beside_the_books_keeps_its_newest_content() {
        let mut core = core();
        let hash = 7;
        let entry = core.table.insert(Location::Pool { handle: 1, len: 100 }, hash);
        core.zswap.object_added(entry, &core.table);
        core.pages.set(page(1), PageState::Swapped { entry });
        core.counts.swapped_pages += 1;
        let _ = core.found_present(PageRange { start: page(0), pages: 1 });
        let _ = core.found_present(PageRange { start: page(2), pages: 1 });
        let isolation = core.isolate().unwrap();
        assert_eq!((isolation.mask, isolation.gaps), (0b101, 0b010));
        let outcome = IsolationOutcome { moved: 0b111, ..Default::default() };
        assert_eq!(core.isolated(isolation, outcome), Isolated { wanted: 0, lost: 0, is_put_aside: false });
        let frame = isolation.frames.frame(1);
        assert_eq!(core.pages().get(page(1)), Some(PageState::InFrame { frame }));
        assert_eq!(core.cache.frame(frame).owner, Some(page(1)));
        assert!(!core.table.is_live(entry));
        assert_eq!(core.swapped_pages(), 0);
    }
}
