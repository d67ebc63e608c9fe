//! What each page of each process holds, and what its program wrote last: the two must be the same.

use uswap_linux::numa::Node;

use super::check::{Checked, Checker, violated};
use crate::chance::Chance;
use crate::page_content::Content;

#[derive(Clone, Copy, Debug)]
struct Page {
    /// What its program wrote last, or was told to go on with.
    wrote: Content,
    /// What is in its frame, while it is in memory.
    holds: Content,
    node: Node,
}

pub(super) struct Pages {
    pages: Vec<Page>,
    chance: Chance,
    /// Of a hundred contents, so many are zeros.
    zero_percent: u64,
    versions: u64,
}

impl Pages {
    pub fn new(pages: u64, zero_percent: u64, seed: u64) -> Self {
        let page = Page { wrote: Content::ZERO, holds: Content::ZERO, node: Node(0) };
        Self { pages: vec![page; pages as usize], chance: Chance::stream(seed, 5), zero_percent, versions: 0 }
    }

    /// The program writes to a page in memory.
    pub fn write(&mut self, id: u32) {
        self.versions += 1;
        let content = if self.chance.happens(self.zero_percent, 100) { Content::ZERO } else { Content(self.versions) };
        let page = &mut self.pages[id as usize];
        (page.wrote, page.holds) = (content, content);
    }

    /// The program reads a page in memory. A content that was tampered with may be wrong where nobody checks
    /// (`is_checked` is false): then it is what the program has from here on, and the answer is false.
    ///
    /// # Errors
    /// The page is wrong.
    pub fn read(&mut self, id: u32, is_checked: bool) -> Checked<bool> {
        let page = &mut self.pages[id as usize];
        if page.holds == page.wrote {
            return Ok(true);
        }
        if page.holds.is_garbage() && !is_checked {
            page.wrote = page.holds;
            return Ok(false);
        }
        violated(Checker::RightContent, format!("page {id} holds {:?} instead of {:?}", page.holds, page.wrote))
    }

    /// A page comes into memory with a content, on a node.
    pub fn bring(&mut self, id: u32, content: Content, node: Node) {
        let page = &mut self.pages[id as usize];
        (page.holds, page.node) = (content, node);
    }

    /// What is in the frame of a page in memory.
    pub fn holds(&self, id: u32) -> Content {
        self.pages[id as usize].holds
    }

    /// What its program wrote last.
    pub fn wrote(&self, id: u32) -> Content {
        self.pages[id as usize].wrote
    }

    /// The node of a page in memory.
    pub fn node(&self, id: u32) -> Node {
        self.pages[id as usize].node
    }
}
