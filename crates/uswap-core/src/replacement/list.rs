//! Lists of pages that take 8 bytes a page: two links in an array indexed by page.
//!
//! A list is a circle with a mark between its ends, so that its oldest page becomes its newest without a link being changed:
//! policies that send pages round once more do nothing oftener.

use alloc::vec::Vec;

use super::PageIndex;

/// No page: an empty list.
const NONE: PageIndex = PageIndex::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    /// Towards the front; of the front, the back.
    newer: PageIndex,
    /// Towards the back; of the back, the front.
    older: PageIndex,
}

/// The links of all pages. Lists that share them must not share pages.
#[derive(Clone, Default, Debug)]
pub(crate) struct Links(Vec<Link>);

impl Links {
    /// Makes room for `page`.
    pub fn cover(&mut self, page: PageIndex) {
        assert!(page != NONE, "page {page} is beyond what a list can name");
        if self.0.len() <= page as usize {
            self.0.resize(page as usize + 1, Link { newer: NONE, older: NONE });
        }
    }

    /// Bytes that the links take.
    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<Link>()
    }

    /// Reads the links of `page`, see [`Replacement::look_ahead`](super::Replacement::look_ahead).
    pub fn glance(&self, page: PageIndex) {
        super::glance(&self.0, page);
    }

    fn at(&mut self, page: PageIndex) -> &mut Link {
        &mut self.0[page as usize]
    }
}

/// One list, newest page in front.
#[derive(Clone, Debug)]
pub(crate) struct List {
    front: PageIndex,
    back: PageIndex,
    pages: usize,
}

impl List {
    pub const fn new() -> Self {
        Self { front: NONE, back: NONE, pages: 0 }
    }

    pub fn len(&self) -> usize {
        self.pages
    }

    pub fn back(&self) -> Option<PageIndex> {
        Some(self.back).filter(|&page| page != NONE)
    }

    /// `page` is in no list that shares `links`.
    pub fn push_front(&mut self, links: &mut Links, page: PageIndex) {
        if self.pages == 0 {
            *links.at(page) = Link { newer: page, older: page };
            self.back = page;
        } else {
            *links.at(page) = Link { newer: self.back, older: self.front };
            links.at(self.front).newer = page;
            links.at(self.back).older = page;
        }
        self.front = page;
        self.pages += 1;
    }

    /// `page` is in this list.
    pub fn remove(&mut self, links: &mut Links, page: PageIndex) {
        self.pages -= 1;
        if self.pages == 0 {
            (self.front, self.back) = (NONE, NONE);
            return;
        }
        let Link { newer, older } = *links.at(page);
        links.at(newer).older = older;
        links.at(older).newer = newer;
        if self.front == page {
            self.front = older;
        }
        if self.back == page {
            self.back = newer;
        }
    }

    /// The page at the back is the one in front from here on. The list is not empty.
    pub fn rotate(&mut self, links: &mut Links) {
        (self.front, self.back) = (self.back, links.at(self.back).newer);
    }

    pub fn pop_back(&mut self, links: &mut Links) -> Option<PageIndex> {
        let page = self.back()?;
        self.remove(links, page);
        Some(page)
    }

    /// `page` is in this list.
    pub fn move_to_front(&mut self, links: &mut Links, page: PageIndex) {
        if self.back == page {
            self.rotate(links);
        } else if self.front != page {
            self.remove(links, page);
            self.push_front(links, page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;

    /// Two lists over the same links, against plain queues.
    #[test]
    fn lists_behave_like_plain_queues() {
        const PAGES: PageIndex = 12;
        let mut links = Links::default();
        links.cover(PAGES - 1);
        let mut lists = [List::new(), List::new()];
        let mut plain = [VecDeque::new(), VecDeque::new()];
        let mut random = 88_172_645_463_325_252u64;
        for _ in 0..20_000 {
            for shift in [13, -7, 17] {
                random ^= if shift > 0 { random << shift } else { random >> -shift };
            }
            let (page, which) = (random as PageIndex % PAGES, (random >> 32) as usize % 2);
            match plain.iter().position(|queue| queue.contains(&page)) {
                None => {
                    lists[which].push_front(&mut links, page);
                    plain[which].push_front(page);
                }
                Some(owner) if random >> 40 & 1 == 0 => {
                    lists[owner].remove(&mut links, page);
                    plain[owner].retain(|&other| other != page);
                }
                Some(owner) if random >> 41 & 1 == 0 => {
                    lists[owner].move_to_front(&mut links, page);
                    plain[owner].retain(|&other| other != page);
                    plain[owner].push_front(page);
                }
                Some(_) => assert_eq!(lists[which].pop_back(&mut links), plain[which].pop_back()),
            }
            for (list, queue) in lists.iter().zip(&plain) {
                assert_eq!((list.len(), list.back()), (queue.len(), queue.back().copied()));
                assert_eq!(list.front, queue.front().copied().unwrap_or(NONE));
            }
        }
    }
}
