//! S3-FIFO: three queues, and no work at a hit but counting (Yang and others, SOSP 2023).
//!
//! What comes in goes to a small queue, a tenth of memory. There it shows within a short time whether it is used again: if
//! it was so twice, it moves to the main queue; if not it leaves, and only its name is kept on the ghost queue. A page that
//! comes back while its ghost is there goes to the main queue at once. In the main queue each use is a further round, up to
//! three. So pages that are used once pass through without pushing out the others.

use alloc::vec::Vec;

use super::list::{Links, List};
use super::{PageIndex, Replacement, checked_capacity, cover, glance};

/// Uses are counted up to here.
const USES_MAX: u8 = 3;
/// Uses that take a page from the small queue to the main one.
const USES_TO_MAIN: u8 = 2;
/// The small queue's share of memory, and the main queue's, is 1 to 9; there are as many ghosts as the main queue has pages.
const SMALL_SHARE: usize = 10;

const USES: u8 = 0b0011;
const SMALL: u8 = 0b0100;
const MAIN: u8 = 0b1000;
const GHOST: u8 = 0b1_0000;

/// The policy. 9 bytes a page.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    capacity: usize,
    flags: Vec<u8>,
    links: Links,
    small: List,
    main: List,
    ghosts: List,
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
            flags: Vec::new(),
            links: Links::default(),
            small: List::new(),
            main: List::new(),
            ghosts: List::new(),
        }
    }

    fn small_pages(&self) -> usize {
        (self.capacity / SMALL_SHARE).max(1)
    }

    fn ghosts_max(&self) -> usize {
        self.capacity - self.small_pages()
    }

    fn become_ghost(&mut self, page: PageIndex) {
        self.flags[page as usize] = GHOST;
        self.ghosts.push_front(&mut self.links, page);
        self.limit_ghosts();
    }

    fn limit_ghosts(&mut self) {
        while self.ghosts.len() > self.ghosts_max() {
            let oldest = self.ghosts.pop_back(&mut self.links).expect("there are more than none");
            self.flags[oldest as usize] = 0;
        }
    }

    fn move_to_main(&mut self, page: PageIndex) {
        self.flags[page as usize] = MAIN;
        self.main.push_front(&mut self.links, page);
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
        self.flags.get(page as usize).is_some_and(|&flags| flags & (SMALL | MAIN) != 0)
    }

    fn touch(&mut self, page: PageIndex) {
        let flags = &mut self.flags[page as usize];
        if *flags & USES < USES_MAX {
            *flags += 1;
        }
    }

    fn insert(&mut self, page: PageIndex) {
        cover(&mut self.flags, page);
        self.links.cover(page);
        if self.flags[page as usize] & GHOST != 0 {
            self.ghosts.remove(&mut self.links, page);
            self.move_to_main(page);
        } else {
            self.flags[page as usize] = SMALL;
            self.small.push_front(&mut self.links, page);
        }
    }

    fn evict(&mut self) -> Option<PageIndex> {
        loop {
            if self.small.len() >= self.small_pages() || self.main.len() == 0 {
                let page = self.small.pop_back(&mut self.links)?;
                if self.flags[page as usize] & USES >= USES_TO_MAIN {
                    self.move_to_main(page);
                } else {
                    self.become_ghost(page);
                    return Some(page);
                }
            } else {
                let page = self.main.back().expect("the main queue has pages");
                let flags = &mut self.flags[page as usize];
                if *flags & USES == 0 {
                    *flags = 0;
                    self.main.remove(&mut self.links, page);
                    return Some(page);
                }
                *flags -= 1;
                self.main.rotate(&mut self.links);
            }
        }
    }

    fn forget(&mut self, page: PageIndex) {
        let Some(flags) = self.flags.get_mut(page as usize) else { return };
        let queue = match core::mem::take(flags) {
            flags if flags & SMALL != 0 => &mut self.small,
            flags if flags & MAIN != 0 => &mut self.main,
            flags if flags & GHOST != 0 => &mut self.ghosts,
            _ => return,
        };
        queue.remove(&mut self.links, page);
    }

    fn bytes(&self) -> usize {
        self.flags.len() + self.links.bytes()
    }

    fn look_ahead(&self, pages: &[PageIndex]) {
        for &page in pages {
            glance(&self.flags, page);
            self.links.glance(page);
        }
    }
}
