//! Whether it is known what a client has mapped.
//!
//! A call that changes mappings is reported after the change, and Linux may report the calls of several threads in another order than
//! they were done in. It counts them: as long as one is under way, or its report is unread, the client is changing. So at a moment when
//! it is not (it *rests*) all of them are known; those between two such moments may have come in any order. Where their order makes no
//! difference, because no two are about the same addresses, what was reported is what is mapped. Where it does, there is *doubt*, and
//! nothing is done by what is known of the client until its mappings have been looked at
//! ([`Kernel::mapped`](crate::kernel::Kernel::mapped)).
//!
//! A child has what its parent had at the moment of the copy. If its parent has done nothing else between two rests, that is known; until
//! the second of them it is not known whether it has.

use std::ops::Range;

use uswap_core::defects::{Sabotage, is_on};

/// Children of which it is not known yet. Of older ones there is doubt, which costs a look.
const CHILDREN_MAX: usize = 64;

/// What of a client can be relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// What is known of it was so when it rested last, or the order of what it has done since makes no difference.
    #[default]
    Known,
    /// If its parent has done nothing else than fork when it rests.
    WithParent,
    /// Not at all.
    Doubt,
}

/// What a client has done since it was last seen to rest.
#[derive(Debug, Default)]
pub struct Changes {
    trust: Trust,
    /// Addresses that calls were about.
    ranges: Vec<Range<usize>>,
    /// What was moved away. Next it is reported as unmapped, by the same call.
    left: Vec<Range<usize>>,
    /// What it has no more, of windows: a child may have it of which nothing was read yet.
    gone: Vec<Range<usize>>,
    /// The children that it has forked, by their numbers.
    children: Vec<u64>,
}

/// Children of which there is doubt from here on, by their numbers.
pub type Doubted = Vec<u64>;

impl Changes {
    /// Of a child that was just forked.
    pub fn of_child() -> Changes {
        Changes { trust: Trust::WithParent, ..Changes::default() }
    }

    /// What can be relied on.
    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// There is doubt.
    pub fn doubt(&mut self) {
        if !is_on(Sabotage::DoubtIsTrust) {
            self.trust = Trust::Doubt;
        }
    }

    /// It was looked what it has, while it rested.
    #[must_use]
    pub fn are_known(&mut self) -> Doubted {
        let children = self.rest();
        self.trust = Trust::Known;
        children
    }

    /// Its parent has rested, and had done nothing else.
    pub fn are_those_of_its_parent(&mut self) {
        if self.trust == Trust::WithParent {
            self.trust = Trust::Known;
        }
    }

    /// Whether nothing was read since it rested.
    pub fn is_quiet(&self) -> bool {
        self.ranges.is_empty() && self.children.is_empty()
    }

    /// What was at these places of windows was unmapped, or moved.
    pub fn have_gone(&mut self, windows: impl Iterator<Item = Range<usize>>) {
        self.gone.extend(windows);
    }

    /// Whether a child may have something of a window that it has no more.
    pub fn may_have_been_inherited(&self, window: &Range<usize>) -> bool {
        self.gone.iter().any(|gone| gone.start < window.end && window.start < gone.end)
    }

    /// It rests. The children of which nothing else is to be known.
    #[must_use]
    pub fn rest(&mut self) -> Vec<u64> {
        if !self.left.is_empty() {
            // It is mapped there still (MREMAP_DONTUNMAP).
            self.doubt();
        }
        self.ranges.clear();
        self.left.clear();
        self.gone.clear();
        std::mem::take(&mut self.children)
    }

    /// Something was mapped, or unmapped, at these addresses.
    #[must_use]
    pub fn changes(&mut self, range: Range<usize>) -> Doubted {
        if self.ranges.iter().any(|other| other.start < range.end && range.start < other.end) {
            self.doubt();
        }
        self.ranges.push(range);
        std::mem::take(&mut self.children)
    }

    /// Whether a report that these addresses were unmapped ends that of a move: nothing else has been unmapped.
    #[must_use]
    pub fn ends_move(&mut self, range: &Range<usize>) -> bool {
        let at = self.left.iter().position(|left| left == range);
        at.map(|at| self.left.swap_remove(at)).is_some()
    }

    /// So many bytes were moved. How long what was mapped once more is (a length of 0) is not reported.
    #[must_use]
    pub fn moves(&mut self, from: usize, to: usize, len: usize) -> Doubted {
        let doubted = self.changes(from..from + len.max(1));
        let _none = self.changes(to..to + len.max(1));
        match len {
            0 => self.doubt(),
            _ => self.left.push(from..from + len),
        }
        doubted
    }

    /// A child was forked.
    #[must_use]
    pub fn forks(&mut self, child: u64) -> Doubted {
        if !self.ranges.is_empty() || self.trust != Trust::Known {
            return vec![child];
        }
        self.children.push(child);
        let old = self.children.len().saturating_sub(CHILDREN_MAX);
        self.children.drain(..old).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_about_other_addresses_are_in_any_order() {
        let mut changes = Changes::default();
        assert!(changes.changes(10..20).is_empty() && changes.changes(20..30).is_empty());
        assert!(changes.moves(40, 60, 10).is_empty());
        assert!(changes.ends_move(&(40..50)) && !changes.ends_move(&(40..50)));
        assert_eq!((changes.trust(), changes.is_quiet()), (Trust::Known, false));
        // Somebody else has unmapped what was moved away from there, or to there.
        assert!(changes.changes(40..50).is_empty());
        assert_eq!(changes.trust(), Trust::Doubt);
        assert!(changes.rest().is_empty());
        assert_eq!((changes.trust(), changes.is_quiet()), (Trust::Doubt, true), "rest alone tells nothing");
        assert!(changes.are_known().is_empty());
        assert_eq!(changes.trust(), Trust::Known);
        assert!(changes.moves(40, 60, 0).is_empty());
        assert_eq!(changes.trust(), Trust::Doubt, "how long it is is not known");
    }

    #[test]
    fn what_is_moved_and_not_unmapped_is_there_still() {
        let mut changes = Changes::default();
        assert!(changes.moves(40, 60, 10).is_empty() && changes.rest().is_empty());
        assert_eq!(changes.trust(), Trust::Doubt);
    }

    #[test]
    fn a_child_has_what_its_parent_has_if_nothing_else_was_done() {
        let mut parent = Changes::default();
        assert!(parent.forks(1).is_empty() && parent.forks(2).is_empty());
        assert_eq!(parent.rest(), [1, 2]);
        assert!(parent.forks(3).is_empty());
        assert_eq!(parent.changes(10..20), [3], "unmapped before the fork, or after it");
        assert_eq!(parent.forks(4), [4]);
        assert!(parent.rest().is_empty());
        parent.doubt();
        assert_eq!(parent.forks(5), [5]);

        let mut child = Changes::of_child();
        assert_eq!(child.trust(), Trust::WithParent);
        assert_eq!(child.forks(6), [6], "of whose parent it is not known");
        child.are_those_of_its_parent();
        assert_eq!(child.trust(), Trust::Known);
        child.doubt();
        child.are_those_of_its_parent();
        assert_eq!(child.trust(), Trust::Doubt);
    }

    #[test]
    fn what_is_gone_may_be_in_a_child_until_it_rests() {
        let mut changes = Changes::default();
        changes.have_gone(std::iter::once(100..200));
        assert!(changes.may_have_been_inherited(&(199..300)) && !changes.may_have_been_inherited(&(200..300)));
        assert!(changes.rest().is_empty());
        assert!(!changes.may_have_been_inherited(&(0..1000)));
    }

    #[test]
    fn children_of_a_client_that_never_rests_are_not_remembered_for_ever() {
        let mut changes = Changes::default();
        let doubted: Vec<u64> = (0..200).flat_map(|child| changes.forks(child)).collect();
        assert_eq!(doubted, (0..200 - CHILDREN_MAX as u64).collect::<Vec<_>>());
    }
}
