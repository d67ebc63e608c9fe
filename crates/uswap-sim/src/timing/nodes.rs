//! NUMA nodes: each process runs on one and wants its pages there; a page elsewhere costs more with each touch.

use uswap_core::PageNumber;
use uswap_linux::do_swap_page::Read;
use uswap_linux::numa::{Misplaced, Node, Place, Placement, Policy, Toucher};

/// The nodes.
pub(super) struct Nodes {
    count: u32,
    placement: Placement,
    misplaced: Misplaced,
}

impl Nodes {
    pub fn new(count: u32, placement: Placement) -> Self {
        Self { count: count.max(1), placement, misplaced: Misplaced::default() }
    }

    /// Where a process runs.
    pub fn of(&self, process: usize) -> Node {
        Node((process as u32 % self.count) as u8)
    }

    fn policy_of(&self, process: usize, page: PageNumber) -> Place {
        Place { policy: Policy::Local, index: page.0, local: self.of(process) }
    }

    /// Where the page of `owner` goes that comes in because `toucher` touched `page`.
    pub fn place(&mut self, read: &Read, (toucher, page): (usize, PageNumber), owner: (usize, PageNumber)) -> Node {
        let owner = self.policy_of(owner.0, owner.1);
        let toucher = Toucher { place: self.policy_of(toucher, page), page: Some(page) };
        let node = self.placement.node(read, &toucher, |_| Some(owner));
        self.misplaced.note(node, owner);
        node
    }

    /// Pages that readahead put on another node than their owner's.
    pub fn misplaced(&self) -> Misplaced {
        self.misplaced
    }
}
