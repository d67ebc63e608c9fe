//! Memory policy: on which node a page that comes in is put.
//!
//! The kernel places what readahead brings by the policy of whoever touched the missing page: readahead by address gives each
//! page its own interleave index in the toucher's mapping, readahead by slot gives the whole block the toucher's index,
//! whoever the pages belong to (the objection of the 2024 thread). Where a swap table tells whose content a slot holds, each
//! page can be put where its owner's policy says.

use super::do_swap_page::Read;
use super::swap_entry::SwapEntry;
use super::swapin_readahead::Mapping;
use uswap_core::units::PageNumber;

/// Nodes that a [`NodeMask`] can name.
pub const NODES_MAX: u32 = u64::BITS;

/// A node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Node(pub u8);

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeMask(u64);

impl NodeMask {
    /// The nodes whose bits are set; `None` for no node at all.
    pub fn new(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }

    /// Whether `node` is in it.
    pub fn contains(self, node: Node) -> bool {
        u32::from(node.0) < NODES_MAX && self.0 >> node.0 & 1 == 1
    }

    /// How many nodes.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// The `n`th node in order of number, round and round.
    fn nth(self, n: u64) -> Node {
        let skip = (n % u64::from(self.count())) as u32;
        let rest = (0..skip).fold(self.0, |bits, _| bits & (bits - 1));
        Node(rest.trailing_zeros() as u8)
    }

    fn first(self) -> Node {
        self.nth(0)
    }
}

/// A memory policy (`set_mempolicy(2)`), as far as the choice of a node with free memory goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The node of the CPU.
    Local,
    /// One node.
    Preferred(Node),
    /// Nodes of the set only: the CPU's if it is one of them, otherwise the first.
    Bind(NodeMask),
    /// The nodes of the set in turn, by index.
    Interleave(NodeMask),
}

impl Policy {
    /// The node for interleave index `index` on a CPU of node `local`.
    pub fn node(self, index: u64, local: Node) -> Node {
        match self {
            Self::Local => local,
            Self::Preferred(node) => node,
            Self::Bind(nodes) if nodes.contains(local) => local,
            Self::Bind(nodes) => nodes.first(),
            Self::Interleave(nodes) => nodes.nth(index),
        }
    }
}

/// A policy, and where in its range a page lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The policy.
    pub policy: Policy,
    /// The interleave index: the page's offset in its mapping or file.
    pub index: u64,
    /// The node of the CPU that the page is for.
    pub local: Node,
}

impl Place {
    /// The node.
    pub fn node(self) -> Node {
        self.policy.node(self.index, self.local)
    }
}

/// Whose policy places the pages that readahead brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// The toucher's (the kernel's rule).
    Toucher,
    /// The policy of whoever has the content.
    Owner,
}

/// Who touched what: the page that is missing, and the policy for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Toucher {
    /// Policy and index of the missing page.
    pub place: Place,
    /// The missing page in the toucher's mapping; `None` for shared memory.
    pub page: Option<PageNumber>,
}

impl Toucher {
    /// The page of `mapping`, with the policy for it.
    pub fn at(mapping: &Mapping, place: Place) -> Self {
        Self { place, page: Some(mapping.page) }
    }
}

impl Placement {
    /// The node for `read`. `owner` tells who has the content of a slot, where that is known; the kernel never asks.
    pub fn node(self, read: &Read, toucher: &Toucher, owner: impl FnOnce(SwapEntry) -> Option<Place>) -> Node {
        let place = match self {
            Self::Toucher => None,
            Self::Owner => owner(read.entry),
        };
        place.unwrap_or_else(|| toucher_place(read, toucher)).node()
    }
}

/// By address each page has its own index, counted from the touched one; by slot all have the index of the touched page.
fn toucher_place(read: &Read, toucher: &Toucher) -> Place {
    let index = match (read.page, toucher.page) {
        (Some(page), Some(touched)) => toucher.place.index.wrapping_add(page.0).wrapping_sub(touched.0),
        _ => toucher.place.index,
    };
    Place { index, ..toucher.place }
}

/// Pages that were brought to another node than their owner's policy says.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Misplaced {
    /// Pages placed.
    pub placed: u64,
    /// Those on a wrong node.
    pub wrong: u64,
}

impl Misplaced {
    /// A page went to `node`; its owner's policy is `owner`.
    pub fn note(&mut self, node: Node, owner: Place) {
        self.placed += 1;
        self.wrong += u64::from(node != owner.node());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swapin_readahead::{ClusterReadahead, VmaReadahead};
    use uswap_core::units::PageRange;

    const TWO: NodeMask = NodeMask(0b11);

    fn interleaved(index: u64) -> Place {
        Place { policy: Policy::Interleave(TWO), index, local: Node(0) }
    }

    fn read(slot: u64, page: Option<u64>) -> Read {
        Read { entry: SwapEntry { area: 0, slot }, page: page.map(PageNumber), ahead: page != Some(100) }
    }

    fn unknown(_: SwapEntry) -> Option<Place> {
        None
    }

    #[test]
    fn t9_by_address_each_page_has_its_own_index_and_by_slot_all_have_the_same() {
        let mut state = VmaReadahead::default();
        let region = PageRange { start: PageNumber(0), pages: 512 };
        let window = state.miss(PageNumber(100), region, 3).pages;
        assert_eq!(window, 97..105);
        let index = 41;
        let toucher = Toucher { place: interleaved(index), page: Some(PageNumber(100)) };
        for page in window {
            let read = read(page, Some(page));
            assert_eq!(toucher_place(&read, &toucher).index, index + page - 100, "index i - (100 - k)");
            let node = Placement::Toucher.node(&read, &toucher, unknown);
            assert_eq!(node, Node(((index + page - 100) % 2) as u8));
        }
        for slot in ClusterReadahead::new(3).miss(100, 1000).slots {
            let read = read(slot, None);
            assert_eq!(Placement::Toucher.node(&read, &toucher, unknown), Node(1), "all of them index i");
        }
    }

    #[test]
    fn by_owner_a_block_of_strangers_goes_where_their_policies_say() {
        // Two processes took turns in being swapped out; each is bound to its node.
        let owner = |entry: SwapEntry| {
            let node = Node((entry.slot % 2) as u8);
            Place { policy: Policy::Preferred(node), index: 0, local: node }
        };
        let toucher = Toucher { place: owner(SwapEntry { area: 0, slot: 100 }), page: Some(PageNumber(100)) };
        for (placement, wrong) in [(Placement::Toucher, 4), (Placement::Owner, 0)] {
            let mut misplaced = Misplaced::default();
            for slot in ClusterReadahead::new(3).miss(100, 1000).slots {
                let read = read(slot, None);
                let node = placement.node(&read, &toucher, |entry| Some(owner(entry)));
                misplaced.note(node, owner(read.entry));
            }
            assert_eq!(misplaced, Misplaced { placed: 8, wrong });
        }
    }

    #[test]
    fn where_no_owner_is_known_the_touchers_policy_holds() {
        let toucher = Toucher { place: interleaved(1), page: None };
        assert_eq!(Placement::Owner.node(&read(5, None), &toucher, unknown), Node(1));
    }

    #[test]
    fn a_policy_chooses_its_node() {
        let nodes = NodeMask::new(0b1_0110).unwrap();
        assert_eq!(Policy::Local.node(9, Node(3)), Node(3));
        assert_eq!(Policy::Preferred(Node(2)).node(9, Node(3)), Node(2));
        assert_eq!(Policy::Bind(nodes).node(9, Node(3)), Node(1));
        assert_eq!(Policy::Bind(nodes).node(9, Node(4)), Node(4));
        let taken: alloc::vec::Vec<u8> = (0..6).map(|index| Policy::Interleave(nodes).node(index, Node(0)).0).collect();
        assert_eq!(taken, [1, 2, 4, 1, 2, 4]);
        assert_eq!(NodeMask::new(0), None);
    }

    #[test]
    fn a_toucher_is_where_its_mapping_was_touched() {
        let mut state = VmaReadahead::default();
        let region = PageRange { start: PageNumber(0), pages: 512 };
        let mapping = Mapping { state: &mut state, region, page: PageNumber(7) };
        assert_eq!(Toucher::at(&mapping, interleaved(3)).page, Some(PageNumber(7)));
    }
}
