//! LIRS: pages are judged by how much lay between their last two uses, not by how long ago the last one was
//! (Jiang and Zhang, SIGMETRICS 2002).
//!
//! A *warm* page (LIR) has shown a short distance between uses; warm pages fill memory but for a hundredth. The rest is for
//! *trial* pages (HIR), which leave in the order in which they came. The stack orders pages by their last use, newest on
//! top, and always ends with a warm page: a trial page that is used while it is on the stack has a shorter distance than
//! that page, and takes its place. A loop that is larger than memory keeps all but a hundredth of memory warm, where an order
//! by age alone would miss every time.
//!
//! Pages that have left stay on the stack as names until the stack's end passes them. They are not limited further: they take
//! no more than the array does.

use alloc::vec::Vec;

use super::list::{Links, List};
use super::{PageIndex, Replacement, checked_capacity, cover, glance};

/// The trial pages' share of memory is one in this many.
const TRIAL_SHARE: usize = 100;

const RESIDENT: u8 = 1;
const WARM: u8 = 2;
const STACKED: u8 = 4;

/// The policy. 17 bytes a page.
#[derive(Clone, Debug)]
pub struct Lirs {
    capacity: usize,
    flags: Vec<u8>,
    stack: List,
    stack_links: Links,
    /// Trial pages in memory, oldest at the back.
    trial: List,
    trial_links: Links,
    warm: usize,
}

impl Lirs {
    /// What it is chosen by.
    pub const NAME: &str = "lirs";

    /// An empty memory of `capacity` pages.
    ///
    /// # Panics
    /// When `capacity` is 0.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: checked_capacity(capacity),
            flags: Vec::new(),
            stack: List::new(),
            stack_links: Links::default(),
            trial: List::new(),
            trial_links: Links::default(),
            warm: 0,
        }
    }

    /// Warm pages that there may be.
    fn warm_max(&self) -> usize {
        self.capacity - (self.capacity / TRIAL_SHARE).max(1)
    }

    fn is(&self, page: PageIndex, flag: u8) -> bool {
        self.flags[page as usize] & flag != 0
    }

    fn lift(&mut self, page: PageIndex) {
        if self.is(page, STACKED) {
            self.stack.move_to_front(&mut self.stack_links, page);
        } else {
            self.flags[page as usize] |= STACKED;
            self.stack.push_front(&mut self.stack_links, page);
        }
    }

    fn unstack(&mut self, page: PageIndex) {
        self.flags[page as usize] &= !STACKED;
        self.stack.remove(&mut self.stack_links, page);
    }

    /// The stack ends with a warm page.
    fn prune(&mut self) {
        while let Some(last) = self.stack.back().filter(|&last| !self.is(last, WARM)) {
            self.unstack(last);
        }
    }

    /// Makes the warm page that was not used for longest a trial page.
    fn cool(&mut self) {
        let last = self.stack.back().expect("each warm page is on the stack");
        self.unstack(last);
        self.flags[last as usize] &= !WARM;
        self.warm -= 1;
        self.trial.push_front(&mut self.trial_links, last);
        self.prune();
    }

    /// `page`, on the stack and not on trial, is warm from here on; another may have to make room.
    fn warm_up(&mut self, page: PageIndex) {
        self.flags[page as usize] |= WARM;
        self.warm += 1;
        if self.warm > self.warm_max() {
            self.cool();
        }
    }
}

impl Replacement for Lirs {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = checked_capacity(capacity);
        while self.warm > self.warm_max() {
            self.cool();
        }
    }

    fn resident(&self) -> usize {
        self.warm + self.trial.len()
    }

    fn is_resident(&self, page: PageIndex) -> bool {
        self.flags.get(page as usize).is_some_and(|&flags| flags & RESIDENT != 0)
    }

    fn touch(&mut self, page: PageIndex) {
        if self.is(page, WARM) {
            let was_last = self.stack.back() == Some(page);
            self.lift(page);
            if was_last {
                self.prune();
            }
            return;
        }
        let again_soon = self.is(page, STACKED);
        self.lift(page);
        if self.warm_max() > 0 && (again_soon || self.warm < self.warm_max()) {
            self.trial.remove(&mut self.trial_links, page);
            self.warm_up(page);
            // Without warm pages nothing has limited the stack.
            self.prune();
        } else {
            self.trial.move_to_front(&mut self.trial_links, page);
        }
    }

    fn insert(&mut self, page: PageIndex) {
        cover(&mut self.flags, page);
        self.stack_links.cover(page);
        self.trial_links.cover(page);
        let again_soon = self.is(page, STACKED);
        self.flags[page as usize] |= RESIDENT;
        self.lift(page);
        if self.warm_max() > 0 && (again_soon || self.warm < self.warm_max()) {
            self.warm_up(page);
            self.prune();
        } else {
            self.trial.push_front(&mut self.trial_links, page);
        }
    }

    fn evict(&mut self) -> Option<PageIndex> {
        if self.trial.len() == 0 && self.warm > 0 {
            self.cool();
        }
        let page = self.trial.pop_back(&mut self.trial_links)?;
        self.flags[page as usize] &= !RESIDENT;
        Some(page)
    }

    fn forget(&mut self, page: PageIndex) {
        if self.flags.get(page as usize).is_none_or(|&flags| flags == 0) {
            return;
        }
        if self.is(page, WARM) {
            self.warm -= 1;
        } else if self.is(page, RESIDENT) {
            self.trial.remove(&mut self.trial_links, page);
        }
        if self.is(page, STACKED) {
            self.unstack(page);
        }
        self.flags[page as usize] = 0;
        self.prune();
    }

    fn bytes(&self) -> usize {
        self.flags.len() + self.stack_links.bytes() + self.trial_links.bytes()
    }

    fn look_ahead(&self, pages: &[PageIndex]) {
        for &page in pages {
            glance(&self.flags, page);
            self.stack_links.glance(page);
            self.trial_links.glance(page);
        }
    }
}
