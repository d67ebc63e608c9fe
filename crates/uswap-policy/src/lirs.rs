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

use super::list::{ELSEWHERE, List, NOWHERE, Places};
use super::{PageIndex, Replacement, checked_capacity, cover, glance};

/// The trial pages' share of memory is one in this many.
const TRIAL_SHARE: usize = 100;

/// Where a page is on the stack.
const STACK: usize = 0;
/// Where a page is among those on trial; [`WARM`] when it is warm.
const TRIAL: usize = 1;
const WARM: u32 = ELSEWHERE;

/// The policy. 8 bytes a page, and up to 8 for each on the stack.
#[derive(Clone, Debug)]
pub struct Lirs {
    capacity: usize,
    /// By page. One that is warm or on trial is in memory.
    places: Vec<Places>,
    stack: List<STACK>,
    /// Trial pages in memory, oldest at the back.
    trial: List<TRIAL>,
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
            places: Vec::new(),
            stack: List::default(),
            trial: List::default(),
            warm: 0,
        }
    }

    /// Warm pages that there may be.
    fn warm_max(&self) -> usize {
        self.capacity - (self.capacity / TRIAL_SHARE).max(1)
    }

    fn is_warm(&self, page: PageIndex) -> bool {
        self.places[page as usize][TRIAL] == WARM
    }

    fn is_stacked(&self, page: PageIndex) -> bool {
        self.places[page as usize][STACK] != NOWHERE
    }

    fn lift(&mut self, page: PageIndex) {
        if self.is_stacked(page) {
            self.stack.move_to_front(&mut self.places, page);
        } else {
            self.stack.push_front(&mut self.places, page);
        }
    }

    /// The stack ends with a warm page.
    fn prune(&mut self) {
        while self.stack.back(&self.places).is_some_and(|last| !self.is_warm(last)) {
            self.stack.pop_back(&mut self.places);
        }
    }

    /// Makes the warm page that was not used for longest a trial page.
    fn cool(&mut self) {
        let last = self.stack.pop_back(&mut self.places).expect("each warm page is on the stack");
        self.warm -= 1;
        self.trial.push_front(&mut self.places, last);
        self.prune();
    }

    /// `page`, on the stack and not on trial, is warm from here on; another may have to make room.
    fn warm_up(&mut self, page: PageIndex) {
        self.places[page as usize][TRIAL] = WARM;
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
        self.places.get(page as usize).is_some_and(|places| places[TRIAL] != NOWHERE)
    }

    fn touch(&mut self, page: PageIndex) {
        if self.is_warm(page) {
            let was_last = self.stack.is_back(&self.places, page);
            self.lift(page);
            if was_last {
                self.prune();
            }
            return;
        }
        let again_soon = self.is_stacked(page);
        self.lift(page);
        if self.warm_max() > 0 && (again_soon || self.warm < self.warm_max()) {
            self.trial.remove(&mut self.places, page);
            self.warm_up(page);
            // Without warm pages nothing has limited the stack.
            self.prune();
        } else {
            self.trial.move_to_front(&mut self.places, page);
        }
    }

    fn insert(&mut self, page: PageIndex) {
        cover(&mut self.places, page);
        let again_soon = self.is_stacked(page);
        self.lift(page);
        if self.warm_max() > 0 && (again_soon || self.warm < self.warm_max()) {
            self.warm_up(page);
            self.prune();
        } else {
            self.trial.push_front(&mut self.places, page);
        }
    }

    fn evict(&mut self) -> Option<PageIndex> {
        if self.trial.len() == 0 && self.warm > 0 {
            self.cool();
        }
        self.trial.pop_back(&mut self.places)
    }

    fn forget(&mut self, page: PageIndex) {
        match self.places.get_mut(page as usize) {
            None | Some([NOWHERE, NOWHERE]) => return,
            Some([_, WARM]) => {
                self.places[page as usize][TRIAL] = NOWHERE;
                self.warm -= 1;
            }
            Some([_, NOWHERE]) => {}
            Some(_) => self.trial.remove(&mut self.places, page),
        }
        if self.is_stacked(page) {
            self.stack.remove(&mut self.places, page);
        }
        self.prune();
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.places) + self.stack.bytes() + self.trial.bytes()
    }

    fn look_ahead(&self, pages: &[PageIndex]) {
        glance(&self.places, pages, |places| places[STACK]);
        self.stack.glance_at_oldest(&self.places, pages.len());
    }
}
