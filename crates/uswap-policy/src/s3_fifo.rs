//! S3-FIFO: three queues, and no work at a hit but counting (Yang and others, SOSP 2023).
//!
//! What comes in goes to a small queue, a tenth of memory. There it shows within a short time whether it is used again: if
//! it was so twice, it moves to the main queue; if not it leaves, and only its name is kept on the ghost queue. A page that
//! comes back while its ghost is there goes to the main queue at once. In the main queue each use is a further round, up to
//! three. So pages that are used once pass through without pushing out the others.

use alloc::vec::Vec;

use super::list::{List, Places};
use super::queue::Queue;
use super::{PageIndex, Replacement, checked_capacity, cover, glance};

/// Uses are counted up to here.
const USES_MAX: u32 = 3;
/// Uses that take a page from the small queue to the main one.
const USES_TO_MAIN: u32 = 2;
/// The small queue's share of memory, and the main queue's, is 1 to 9; there are as many ghosts as the main queue has pages.
const SMALL_SHARE: usize = 10;

/// Where a page is among the ghosts.
const GHOSTLY: usize = 0;
/// What it is, and how often it was used.
const FLAGS: usize = 1;

const USES: u32 = 0b0011;
const SMALL: u32 = 0b0100;
const MAIN: u32 = 0b1000;
const GHOST: u32 = 0b1_0000;

/// The policy. 8 bytes a page, and up to 8 for each in memory or with a ghost.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    capacity: usize,
    /// By page.
    pages: Vec<Places>,
    small: Queue,
    main: Queue,
    ghosts: List<GHOSTLY>,
}

impl S3Fifo {
    /// What it is chosen by.
    pub const NAME: &str = "s3-fifo";

    /// An empty memory of `capacity` pages.
    ///
    /// # Panics
    /// When `capacity` is 0.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: checked_capacity(capacity),
            pages: Vec::new(),
            small: Queue::default(),
            main: Queue::default(),
            ghosts: List::default(),
        }
    }

    fn small_pages(&self) -> usize {
        (self.capacity / SMALL_SHARE).max(1)
    }

    fn ghosts_max(&self) -> usize {
        self.capacity - self.small_pages()
    }

    fn become_ghost(&mut self, page: PageIndex) {
        self.pages[page as usize][FLAGS] = GHOST;
        self.ghosts.push_front(&mut self.pages, page);
        self.limit_ghosts();
    }

    fn limit_ghosts(&mut self) {
        while self.ghosts.len() > self.ghosts_max() {
            let oldest = self.ghosts.pop_back(&mut self.pages).expect("there are more than none");
            self.pages[oldest as usize][FLAGS] = 0;
        }
    }

    fn move_to_main(&mut self, page: PageIndex) {
        self.pages[page as usize][FLAGS] = MAIN;
        self.main.push_front(page);
    }
}

impl Replacement for S3Fifo {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = checked_capacity(capacity);
        self.limit_ghosts();
    }

    fn resident(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn is_resident(&self, page: PageIndex) -> bool {
        self.pages.get(page as usize).is_some_and(|words| words[FLAGS] & (SMALL | MAIN) != 0)
    }

    fn touch(&mut self, page: PageIndex) {
        let flags = &mut self.pages[page as usize][FLAGS];
        if *flags & USES < USES_MAX {
            *flags += 1;
        }
    }

    fn insert(&mut self, page: PageIndex) {
        cover(&mut self.pages, page);
        if self.pages[page as usize][FLAGS] & GHOST != 0 {
            self.ghosts.remove(&mut self.pages, page);
            self.move_to_main(page);
        } else {
            self.pages[page as usize][FLAGS] = SMALL;
            self.small.push_front(page);
        }
    }

    fn evict(&mut self) -> Option<PageIndex> {
        loop {
            if self.small.len() >= self.small_pages() || self.main.len() == 0 {
                let page = self.small.pop_back()?;
                if self.pages[page as usize][FLAGS] & USES >= USES_TO_MAIN {
                    self.move_to_main(page);
                } else {
                    self.become_ghost(page);
                    return Some(page);
                }
            } else {
                let page = self.main.pop_back().expect("the main queue has pages");
                let flags = &mut self.pages[page as usize][FLAGS];
                if *flags & USES == 0 {
                    *flags = 0;
                    return Some(page);
                }
                *flags -= 1;
                self.main.push_front(page);
            }
        }
    }

    fn forget(&mut self, page: PageIndex) {
        let Some(words) = self.pages.get_mut(page as usize) else { return };
        match core::mem::take(&mut words[FLAGS]) {
            flags if flags & SMALL != 0 => self.small.forget(page),
            flags if flags & MAIN != 0 => self.main.forget(page),
            flags if flags & GHOST != 0 => self.ghosts.remove(&mut self.pages, page),
            _ => {}
        }
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.pages) + self.small.bytes() + self.main.bytes() + self.ghosts.bytes()
    }

    fn look_ahead(&self, pages: &[PageIndex]) {
        glance(&self.pages, pages, |words| words[FLAGS]);
        // A miss in each of them lets as many pages go.
        glance(&self.pages, self.small.oldest(pages.len()), |words| words[FLAGS]);
        glance(&self.pages, self.main.oldest(pages.len()), |words| words[FLAGS]);
    }
}
