//! What may come of a search that has come so far: whether all calls that are left can still happen, and which of them may
//! as well be the next, because no order in which another is first leads elsewhere.

use super::calls::Call;
use super::ground::Part;
use super::search::{Node, Piece, Search, What};
use super::{Event, Rule, Witness};
use crate::units::{PageNumber, PageRange};

impl<W: Witness> Search<'_, W> {
    /// Whether no order of the calls that are left is possible.
    pub fn is_hopeless(&self, node: &Node) -> bool {
        node.left.iter().any(|&index| !self.may_find_memory(index, node)) || self.is_too_full(node)
    }

    /// Lemma 6: whether what a call is about is there, or may come.
    fn may_find_memory(&self, index: usize, node: &Node) -> bool {
        let call = &self.calls[index];
        let found = || node.pieces.iter().filter_map(|piece| piece.within(call.from()));
        if self.finds_all(call) {
            let mut holes = found().filter(|piece| piece.what == What::Nothing);
            return holes.all(|hole| self.may_come(hole.at, index, node));
        }
        let last = call.from().end().0 - 1;
        !self.finds_some(call)
            || found().any(|piece| piece.what != What::Nothing)
            || self.may_come(PageNumber(last), index, node)
    }

    /// Whether memory may come to `page`, or to one before it, before the call `index`.
    fn may_come(&self, page: PageNumber, index: usize, node: &Node) -> bool {
        let block = self.ground.block_of(page.alone());
        let way = PageRange { start: block.start, pages: page.0 + 1 - block.start.0 };
        let brings = |&other: &usize| other != index && self.calls[other].to().is_some_and(|to| to.overlaps(way));
        let is_there = || {
            let mut pieces = node.pieces.iter().filter(|piece| piece.what != What::Nothing);
            pieces.any(|piece| piece.range().overlaps(way))
        };
        node.left.iter().any(brings)
            || self.rules.obey(Rule::Came) && self.came.iter().any(|came| came.overlaps(way))
            || self.rules.obey(Rule::Grown) && (is_there() || self.may_grow_to(block.start))
    }

    /// Lemmas 5 and 7: whether there is memory somewhere, or will be, that too few calls are left to take away. All of it but
    /// the last must be taken before the next can come, and the last, too, where nothing is registered.
    fn is_too_full(&self, node: &Node) -> bool {
        let is_left = |call: &&usize| node.left.binary_search(call).is_ok();
        self.ground.parts.iter().any(|part| {
            let brought = part.bringers.iter().filter(is_left).count();
            let Some(piece) = node.at(part.range) else { return false };
            let mut filled = brought + usize::from(self.has_memory(piece));
            if !self.rules.obey(Rule::FreePlace) {
                filled = filled.min(1);
            }
            let taken = part.takers.iter().filter(is_left).count();
            if taken >= filled {
                return false;
            }
            let only_known = brought == 0 && matches!(piece.what, What::From(origin) if origin == piece.at);
            let may_stay =
                || !self.rules.obey(Rule::Registered) || self.questions.is_registered(part.range, only_known);
            taken + 1 < filled || self.asks && !may_stay()
        })
    }

    /// Whether the call may be the next one for all orders. Those that meet it come later, and it takes nothing from what others
    /// need that has grown. So in each order it may change places with the one before it, until it is the next.
    pub fn comes_first(&self, index: usize, node: &Node) -> bool {
        let one = &self.calls[index];
        let is_near = |other: &Call| self.ground.blocks.iter().any(|&block| one.touches(block) && other.touches(block));
        let near = || node.left.iter().copied().filter(|&other| other != index && is_near(&self.calls[other]));
        if near().next().is_none() {
            return true;
        }
        let has_come = || {
            self.came
                .iter()
                .any(|came| self.ground.blocks.iter().any(|&block| one.touches(block) && came.overlaps(block)))
        };
        if self.rules.obey(Rule::Came) && has_come() {
            return false;
        }
        near().all(|other| {
            let later = &self.calls[other];
            let is_apart = !one.meets(later) || self.known.is_before(index, other);
            is_apart && (self.is_beyond(one, later.from()) || !self.may_need_growth(other, node))
        })
    }

    /// Whether all that a call touches in the block of `range` lies behind that: what grows up to its end does not reach it.
    fn is_beyond(&self, call: &Call, range: PageRange) -> bool {
        let block = self.ground.block_of(range);
        let up_to = PageRange { start: block.start, pages: range.end().0 - block.start.0 };
        !call.touches(up_to)
    }

    /// Whether the call may find what it is about only if memory grows there.
    pub fn may_need_growth(&self, index: usize, node: &Node) -> bool {
        let call = &self.calls[index];
        let mut parts = self.ground.parts_of(call.from()).iter();
        let is_left = |call: &&usize| node.left.binary_search(call).is_ok();
        let is_certain = |part: &Part| {
            let takers = part.takers.iter().filter(is_left);
            let others = || takers.clone().filter(|&&taker| taker != index && !self.known.is_before(index, taker));
            let is_there = node.at(part.range).is_some_and(|piece| piece.what != What::Nothing);
            // The last of them first: where one thread has moved it all, that is the one.
            let mut coming =
                part.bringers.iter().rev().filter(is_left).filter(|&&other| self.known.is_before(other, index));
            is_there && others().next().is_none()
                || coming.any(|&bringer| others().all(|&taker| self.known.is_before(taker, bringer)))
        };
        if self.finds_all(call) { !parts.all(is_certain) } else { self.finds_some(call) && !parts.any(is_certain) }
    }

    /// Lemma 6: whether a mapping may have grown into the beginning of a block.
    pub fn may_grow_to(&self, start: PageNumber) -> bool {
        !self.asks || self.questions.may_grow_to(start)
    }

    /// Lemma 6: whether the call is about nothing but memory.
    pub fn finds_all(&self, call: &Call) -> bool {
        match call.event {
            Event::Remapped { .. } => true,
            Event::Removed(_) => self.rules.is_owned,
            Event::Unmapped(_) | Event::Uncopied(_) => false,
        }
    }

    /// Lemma 6: whether there was memory somewhere in what the call is about.
    pub fn finds_some(&self, call: &Call) -> bool {
        self.rules.is_owned || self.finds_all(call)
    }

    /// Lemma 5: whether there certainly is memory.
    pub fn has_memory(&self, piece: Piece) -> bool {
        match piece.what {
            What::From(origin) => origin != piece.at || self.questions.knows_any(piece.range()),
            What::Left | What::Discarded => true,
            What::Nothing => false,
        }
    }
}
