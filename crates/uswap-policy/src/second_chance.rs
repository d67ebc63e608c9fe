//! Second chance: a queue of pages; one that was used since it was queued goes round once more.

use alloc::vec::Vec;

use super::queue::Queue;
use super::{PageIndex, Replacement, checked_capacity, cover, glance};

const RESIDENT: u8 = 1;
const REFERENCED: u8 = 2;

/// The policy. A byte a page, and 4 for each in memory.
#[derive(Clone, Debug)]
pub struct SecondChance {
    capacity: usize,
    flags: Vec<u8>,
    queue: Queue,
}

impl SecondChance {
    /// What it is chosen by.
    pub const NAME: &str = "second-chance";

    /// An empty memory of `capacity` pages.
    ///
    /// # Panics
    /// When `capacity` is 0.
    pub fn new(capacity: usize) -> Self {
        let capacity = checked_capacity(capacity);
        Self { capacity, flags: Vec::new(), queue: Queue::default() }
    }
}

impl Replacement for SecondChance {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = checked_capacity(capacity);
    }

    fn resident(&self) -> usize {
        self.queue.len()
    }

    fn is_resident(&self, page: PageIndex) -> bool {
        self.flags.get(page as usize).is_some_and(|&flags| flags & RESIDENT != 0)
    }

    fn touch(&mut self, page: PageIndex) {
        self.flags[page as usize] |= REFERENCED;
    }

    fn insert(&mut self, page: PageIndex) {
        cover(&mut self.flags, page);
        self.flags[page as usize] = RESIDENT;
        self.queue.push_front(page);
    }

    fn evict(&mut self) -> Option<PageIndex> {
        loop {
            let page = self.queue.pop_back()?;
            let flags = &mut self.flags[page as usize];
            if *flags & REFERENCED == 0 {
                *flags = 0;
                return Some(page);
            }
            *flags = RESIDENT;
            self.queue.push_front(page);
        }
    }

    fn forget(&mut self, page: PageIndex) {
        if self.is_resident(page) {
            self.flags[page as usize] = 0;
            self.queue.forget(page);
        }
    }

    fn bytes(&self) -> usize {
        self.flags.len() + self.queue.bytes()
    }

    fn look_ahead(&self, pages: &[PageIndex]) {
        glance(&self.flags, pages, |&flags| flags.into());
    }
}
