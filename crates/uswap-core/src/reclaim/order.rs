//! The order in which blocks leave, by one of several policies.
//!
//! Nobody tells of a use of a page that is in memory. What is seen is a fault: on a page in the swap cache, whose block had
//! just left and was in use; on a page that is stored, whose block had left too early, if that was not long ago; and on a
//! page beside others that are in memory, which then gets a second chance of its own. By this a policy decides which blocks
//! it *protects*. Each keeps two queues of blocks, oldest first:
//!
//! | policy | the second queue is for blocks that | who leaves |
//! | --- | --- | --- |
//! | lists | were found in the swap cache | the oldest of the first; while the second is the longer one, its oldest go over |
//! | refault | the same, or came back after fewer blocks had left than the second queue has | the same |
//! | s3fifo | the same, after fewer than memory has; or had a page that was asked for again meanwhile | the oldest of the first, if that has a tenth, else of the second |
//! | lirs | as s3fifo; and the first 99 of 100 that come | the oldest of the first; beyond 99 to 1 the oldest of the second go over |
//!
//! Papers and kernel files: mm/vmscan.c and mm/workingset.c (lists, refault); Yang and others, SOSP 2023 (s3fifo); Jiang and
//! Zhang, SIGMETRICS 2002 (lirs).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::just_asked::JustAsked;
use crate::defects::{Sabotage, is_on};
use crate::page_table::{BlockInfo, PageTable};
use crate::policies::ReclaimPolicy;
use crate::units::PageNumber;

/// S3-FIFO: of all blocks, the part that has not come back.
const SMALL_SHARE: usize = 10;
/// LIRS: protected blocks for each other one.
const WARM_TO_TRIAL: usize = 99;

/// Blocks that may be queued for nothing, beside as many as there may be for something: 2.4 MiB of the page table's, if each has 2 MiB of its
/// own. A sweep costs no more than what has made it due.
const SWEPT_FROM: u64 = 512;

/// How a page has come into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Came {
    /// No thread has asked for it, or it has not been swapped out before.
    Unasked,
    /// It had come along with another page, and a thread asks for it.
    Along,
    /// It had just left, and a thread has found it in the swap cache.
    FromCache,
    /// A thread has asked for it where it is stored.
    FromStore,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    First,
    Second,
}

/// The blocks that may have resident pages, oldest first.
#[derive(Clone)]
pub(crate) struct Order {
    policy: ReclaimPolicy,
    /// Inactive, small, or on trial.
    first: VecDeque<PageNumber>,
    /// Active, main, warm.
    second: VecDeque<PageNumber>,
    /// Blocks at the front of the first queue that leave before all others.
    soon: usize,
    /// Blocks that have left, and one.
    clock: u32,
    /// Blocks of which nothing could be moved, as others have the same pages of a fork, or the kernel has swapped them out. Each may be in
    /// a queue as well.
    aside: Vec<PageNumber>,
    /// Whether those that others have are put aside.
    pub puts_aside: bool,
    /// Pages that do not leave yet, wherever their blocks are.
    pub just_asked: JustAsked,
}

impl Order {
    pub fn new(policy: ReclaimPolicy) -> Self {
        Self {
            policy,
            first: VecDeque::new(),
            second: VecDeque::new(),
            soon: 0,
            clock: 1,
            aside: Vec::new(),
            puts_aside: false,
            just_asked: JustAsked::default(),
        }
    }

    /// Room for so many more blocks, and for all to change queues.
    pub fn make_room(&mut self, blocks: usize) -> bool {
        let (first, second) = (self.first.len(), self.second.len());
        let queues = self.first.try_reserve(second + blocks).is_ok() && self.second.try_reserve(first + blocks).is_ok();
        queues && self.aside.try_reserve(first + second + blocks).is_ok()
    }

    pub fn blocks(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// `block`, whose first page is `first`, has pages in memory.
    pub fn enqueue(&mut self, first: PageNumber, block: &mut BlockInfo) {
        block.queued = 1;
        block.referenced = 0;
        let is_protected = match self.policy {
            // Sorted out when their turn comes.
            ReclaimPolicy::Lists => false,
            ReclaimPolicy::Refault | ReclaimPolicy::S3Fifo => block.active,
            ReclaimPolicy::Lirs => block.active || self.second.len() < self.first.len() * WARM_TO_TRIAL,
        };
        if is_protected { self.second.push_back(first) } else { self.first.push_back(first) }
    }

    /// Nothing of `block` could be moved: it is not in the way of others until all are looked at again, or a page of it comes in.
    pub fn put_aside(&mut self, first: PageNumber, block: &mut BlockInfo) {
        (block.active, block.soon) = (false, false);
        if !block.aside {
            block.aside = true;
            self.aside.push(first);
        }
    }

    /// `block` gets a page of its own, as soon as who waits to write to it goes on.
    pub fn take_back(&mut self, first: PageNumber, block: &mut BlockInfo) {
        block.has_own = true;
        if core::mem::take(&mut block.aside) && block.queued == 0 {
            self.enqueue(first, block);
        }
    }

    /// Blocks that are put aside.
    pub fn blocks_aside(&self) -> usize {
        self.aside.len()
    }

    /// What was put aside is to be looked at again.
    pub fn take_back_aside(&mut self, pages: &mut PageTable) {
        if is_on(Sabotage::AsideForgotten) {
            return;
        }
        for first in core::mem::take(&mut self.aside) {
            let Some(block) = pages.block_mut(first) else { continue };
            block.aside = false;
            if block.queued == 0 {
                self.enqueue(first, block);
            }
        }
    }

    /// A page of `block` has come into memory.
    pub fn came(&self, block: &mut BlockInfo, came: Came) {
        let is_within = |blocks| block.left_at != 0 && self.clock.wrapping_sub(block.left_at) as usize <= blocks;
        block.active |= match (self.policy, came) {
            (_, Came::Unasked | Came::Along) => false,
            (_, Came::FromCache) => true,
            (ReclaimPolicy::Lists, Came::FromStore) => false,
            (ReclaimPolicy::Refault, Came::FromStore) => is_within(self.second.len()),
            (ReclaimPolicy::S3Fifo | ReclaimPolicy::Lirs, Came::FromStore) => is_within(self.blocks()),
        };
    }

    /// `block` leaves, but for pages that were asked for again: it is to be queued again.
    pub fn stays(&self, block: &mut BlockInfo) {
        block.active = matches!(self.policy, ReclaimPolicy::S3Fifo | ReclaimPolicy::Lirs);
    }

    /// Pages of `block` leave.
    pub fn leaves(&mut self, block: &mut BlockInfo) {
        block.left_at = self.clock;
        // 0 is for blocks that have never left.
        self.clock = self.clock.checked_add(1).unwrap_or(1);
    }

    /// `block` is looked at next, unless it was to be before, and has not left since.
    pub fn put_first(&mut self, first: PageNumber, block: &mut BlockInfo) -> bool {
        if block.soon {
            return false;
        }
        // It may be in a queue twice; where it has nothing to take, it is passed over.
        block.queued += 1;
        block.soon = true;
        block.active = false;
        block.referenced = 0;
        self.first.push_front(first);
        self.soon += 1;
        true
    }

    /// Takes the block whose turn it is out of its queue; not one whose pages are just being moved.
    pub fn next(&mut self, pages: &mut PageTable) -> Option<PageNumber> {
        for _ in 0..self.blocks() + 1 {
            self.unprotect(pages);
            let in_its_turn = self.soon == 0;
            let Some((first, side)) = self.pop() else { break };
            match pages.block_mut(first) {
                Some(block) if block.active && side == Side::First => self.second.push_back(first),
                Some(block) if block.isolating => match side {
                    Side::First => self.first.push_back(first),
                    Side::Second => self.second.push_back(first),
                },
                Some(block) => {
                    block.active = false;
                    block.soon &= !in_its_turn;
                    return Some(first);
                }
                None => {}
            }
        }
        self.protected(pages)
    }

    /// Takes out of the queues what has no content any more, if that may be most of them: `known` pages have.
    pub fn sweep(&mut self, pages: &mut PageTable, known: u64) {
        if self.blocks() as u64 <= 2 * known + SWEPT_FROM {
            return;
        }
        let mut has_left = |first: PageNumber, was_soon: bool| {
            let is_empty = pages.is_empty_block(first);
            if is_empty && let Some(block) = pages.block_mut(first) {
                block.queued = block.queued.saturating_sub(1);
                block.soon &= !was_soon && block.queued > 0;
                block.active &= block.queued > 0;
                pages.prune(first);
            }
            is_empty
        };
        let (mut index, mut left_soon, soon) = (0, 0, self.soon);
        self.first.retain(|&first| {
            let was_soon = index < soon;
            index += 1;
            let goes = has_left(first, was_soon);
            left_soon += usize::from(goes && was_soon);
            !goes
        });
        self.soon -= left_soon;
        self.second.retain(|&first| !has_left(first, false));
    }

    /// All blocks of the first queue are being moved: one of the second has to leave.
    fn protected(&mut self, pages: &mut PageTable) -> Option<PageNumber> {
        for _ in 0..self.second.len() {
            let first = self.second.pop_front()?;
            match pages.block_mut(first) {
                Some(block) if block.isolating => self.second.push_back(first),
                Some(block) => {
                    block.active = false;
                    return Some(first);
                }
                None => {}
            }
        }
        None
    }

    /// While too many blocks are protected, the oldest of them is so no more (for lists the kernel's `inactive_is_low`, for
    /// less than 1 GiB).
    fn unprotect(&mut self, pages: &mut PageTable) {
        let most = match self.policy {
            ReclaimPolicy::Lirs => self.first.len() * WARM_TO_TRIAL,
            ReclaimPolicy::S3Fifo => return,
            _ => self.first.len(),
        };
        if self.second.len() > most
            && let Some(first) = self.second.pop_front()
            && let Some(block) = pages.block_mut(first)
        {
            block.active = false;
            self.first.push_back(first);
        }
    }

    fn pop(&mut self) -> Option<(PageNumber, Side)> {
        let small_is_low = self.first.len() * SMALL_SHARE < self.blocks();
        if self.policy == ReclaimPolicy::S3Fifo
            && self.soon == 0
            && small_is_low
            && let Some(first) = self.second.pop_front()
        {
            return Some((first, Side::Second));
        }
        self.soon = self.soon.saturating_sub(1);
        Some((self.first.pop_front()?, Side::First))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_table::PageState;
    use crate::units::{BLOCK_PAGES, PageRange};

    /// Blocks of one resident page each, and the order in which they leave.
    struct Blocks {
        pages: PageTable,
        order: Order,
    }

    fn page(block: u64) -> PageNumber {
        PageNumber(block * BLOCK_PAGES as u64)
    }

    impl Blocks {
        fn new(policy: ReclaimPolicy, blocks: u64) -> Self {
            let mut new = Self { pages: PageTable::new(), order: Order::new(policy) };
            new.pages.adopt(PageRange { start: PageNumber(0), pages: 1 << 20 });
            (0..blocks).for_each(|block| new.comes(block));
            new
        }

        fn comes(&mut self, block: u64) {
            self.pages.set(page(block), PageState::Resident { clean: None });
            self.order.enqueue(page(block), self.pages.block_mut(page(block)).unwrap());
        }

        fn comes_back(&mut self, block: u64, came: Came) {
            self.order.came(self.pages.block_mut(page(block)).unwrap(), came);
            self.comes(block);
        }

        fn leave(&mut self, count: usize) -> Vec<u64> {
            let mut left = Vec::new();
            while left.len() < count {
                let Some(first) = self.order.next(&mut self.pages) else { break };
                let block = self.pages.block_mut(first).unwrap();
                block.queued -= 1;
                self.order.leaves(block);
                left.push(first.0 / BLOCK_PAGES as u64);
            }
            left
        }
    }

    #[test]
    fn what_was_given_up_is_swept_out() {
        for policy in ReclaimPolicy::ALL {
            let mut blocks = Blocks::new(policy, 2 * SWEPT_FROM);
            let Blocks { pages, order } = &mut blocks;
            for block in [7, 8] {
                order.put_first(page(block), pages.block_mut(page(block)).unwrap());
            }
            let stay = [8, 77, SWEPT_FROM];
            for block in (0..2 * SWEPT_FROM).filter(|block| !stay.contains(block)) {
                pages.set(page(block), PageState::Untouched);
            }
            order.sweep(pages, 2 * SWEPT_FROM);
            assert_eq!(order.blocks() as u64, 2 * SWEPT_FROM + 2, "{policy:?}: they may all be there");
            order.sweep(pages, 3);
            assert_eq!((order.blocks(), order.soon, pages.leaves()), (4, 1, 3), "{policy:?}");
            pages.set(page(7), PageState::Resident { clean: None });
            order.enqueue(page(7), pages.block_mut(page(7)).unwrap());
            assert_eq!(blocks.leave(1), [8], "{policy:?}: what was to leave before all others does");
        }
    }

    #[test]
    fn each_policy_lets_all_blocks_go_and_none_twice() {
        for policy in ReclaimPolicy::ALL {
            let mut blocks = Blocks::new(policy, 300);
            let mut left = blocks.leave(100);
            left.iter().take(30).for_each(|&block| blocks.comes_back(block, Came::FromCache));
            let back: Vec<u64> = left.drain(..30).collect();
            left.extend(blocks.leave(1000));
            left.sort_unstable();
            assert_eq!(left, (0..300).collect::<Vec<_>>(), "{policy:?}: {back:?} came back");
            assert_eq!(blocks.order.blocks(), 0);
        }
    }

    #[test]
    fn what_was_found_in_the_swap_cache_outlives_what_was_not() {
        for policy in ReclaimPolicy::ALL {
            let mut blocks = Blocks::new(policy, 100);
            let wanted = blocks.leave(10);
            wanted.iter().for_each(|&block| blocks.comes_back(block, Came::FromCache));
            (200..230).for_each(|block| blocks.comes(block));
            let leave = blocks.leave(if policy == ReclaimPolicy::Lirs { 25 } else { 90 });
            assert!(wanted.iter().all(|block| !leave.contains(block)), "{policy:?}: {leave:?}");
        }
    }

    /// Whether a block that is wanted back from where it is stored, after `after` others have left, is protected.
    fn is_protected(policy: ReclaimPolicy, after: usize) -> bool {
        let mut blocks = Blocks::new(policy, 200);
        // Half of memory is active.
        for block in blocks.leave(100) {
            blocks.comes_back(block, Came::FromCache);
        }
        let first = blocks.leave(1)[0];
        for new in 0..after as u64 {
            let _ = blocks.leave(1);
            blocks.comes(1000 + new);
        }
        blocks.comes_back(first, Came::FromStore);
        blocks.pages.block_mut(page(first)).unwrap().active
    }

    #[test]
    fn a_block_that_was_stored_is_protected_if_it_comes_back_soon_enough() {
        for after in [10, 300] {
            assert!(!is_protected(ReclaimPolicy::Lists, after));
            assert_eq!(is_protected(ReclaimPolicy::Refault, after), after == 10);
            assert_eq!(is_protected(ReclaimPolicy::S3Fifo, after), after == 10);
            assert_eq!(is_protected(ReclaimPolicy::Lirs, after), after == 10);
        }
    }

    #[test]
    fn what_is_used_once_passes_through_a_tenth() {
        let mut blocks = Blocks::new(ReclaimPolicy::S3Fifo, 100);
        for block in blocks.leave(50) {
            blocks.comes_back(block, Came::FromCache);
        }
        for scanned in 1000..2000 {
            blocks.comes(scanned);
            let left = blocks.leave(1)[0];
            assert!(left >= 50, "block {left} had come back");
        }
    }

    #[test]
    fn a_block_that_is_put_first_leaves_first() {
        for policy in ReclaimPolicy::ALL {
            let mut blocks = Blocks::new(policy, 300);
            for block in blocks.leave(150) {
                blocks.comes_back(block, Came::FromCache);
            }
            blocks.order.put_first(page(200), blocks.pages.block_mut(page(200)).unwrap());
            assert_eq!(blocks.leave(1), [200], "{policy:?}");
        }
    }

    #[test]
    fn a_block_that_is_being_moved_is_passed_over() {
        for policy in ReclaimPolicy::ALL {
            let mut blocks = Blocks::new(policy, 3);
            (0..3).for_each(|block| blocks.pages.block_mut(page(block)).unwrap().isolating = true);
            assert_eq!(blocks.leave(1), [], "{policy:?}");
            blocks.pages.block_mut(page(1)).unwrap().isolating = false;
            assert_eq!(blocks.leave(1), [1], "{policy:?}");
        }
    }
}
