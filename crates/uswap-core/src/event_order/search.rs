//! All orders in which calls may have happened, and what each leaves behind.
//!
//! - Lemma 3: *what touches the place of a mremap and is read before its end happened before it.* Only what the mremap has
//!   brought is there after it, until a call takes that away; this one began after the mremap had returned (Owned), so
//!   after its end was read, and so did whatever came there later. A call happens before it is read (Blocked).
//! - Lemma 4: *a discarding follows a mremap that was read before it, where both touch a page.* It is reported before it
//!   takes effect, and the mremap had happened before it was read. And where it was read before the mremap was, and touches
//!   its place, it came before: the memory that the mremap brings was not its thread's yet.
//! - Lemma 5: *a mremap finds no content at its place.* The kernel gives it free memory, or frees it by an unmapping that is
//!   reported of its own (`MREMAP_FIXED`). What the books know of memory that no call has touched is there, and so is what
//!   a mremap has brought. So between two mremaps to a place a call has taken it.
//! - Lemma 6: *memory that comes unreported has grown.* A call finds registered memory: a mremap all over, an unmapping somewhere.
//!   Where nothing is, a mapping that ended just before must have grown there, at any time before: without a gap, so over
//!   all that was free up to there. What ended just before what calls touch is registered still, unless another call of all
//!   that was read took it: nothing else ends a registration. What has grown is registered and empty, and stays until a
//!   call takes it. Growth as far as a call wants memory stands for that to other ends: nothing else tells these apart. A call
//!   that finds memory anyway, whatever the others do, wants none. Or it was adopted while the program was changing its
//!   memory: the engine tells what it has adopted so, and that may be filled.
//! - *No other order of two calls is excluded.* So the true order is among those that are found, and if all leave the same
//!   behind, that is there.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use super::calls::{Call, with_and_without_ends};
use super::ground::{Ground, Questions};
use super::precedence::Precedence;
use super::{Event, Rule, Witness};
use crate::units::{PageNumber, PageRange};

/// Steps of a search; more are not worth the time that the program waits.
const STEPS: usize = 60_000;
/// Different results that are worth telling apart.
const OUTCOMES: usize = 64;

/// What is at some places.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum What {
    /// What the books have had from this page on.
    From(PageNumber),
    /// Nothing, or memory that was never filled.
    Nothing,
    /// What the program has discarded, or has mapped anew: registered, and unknown to the books.
    Discarded,
    /// Registered and empty: a mremap with `MREMAP_DONTUNMAP` has left it behind, or it has grown there.
    Left,
}

impl What {
    fn plus(self, pages: u64) -> What {
        match self {
            What::From(page) => What::From(page.plus(pages)),
            other => other,
        }
    }
}

/// What is at consecutive pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Piece {
    pub at: PageNumber,
    pub pages: u64,
    pub what: What,
}

impl Piece {
    pub fn range(&self) -> PageRange {
        PageRange { start: self.at, pages: self.pages }
    }

    /// Where the books have had it.
    pub fn origin(&self) -> Option<PageRange> {
        match self.what {
            What::From(start) => Some(PageRange { start, pages: self.pages }),
            What::Nothing | What::Discarded | What::Left => None,
        }
    }

    /// Where a page is that the books have had at `page`, of what [`Piece::origin`] says.
    pub fn place_of(&self, page: PageNumber) -> PageNumber {
        match self.what {
            What::From(start) => self.at.plus(page.0 - start.0),
            What::Nothing | What::Discarded | What::Left => page,
        }
    }

    /// The part of it in `range`.
    pub fn within(&self, range: PageRange) -> Option<Piece> {
        let part = self.range().intersection(range);
        (part.pages > 0).then(|| Piece {
            at: part.start,
            pages: part.pages,
            what: self.what.plus(part.start.0 - self.at.0),
        })
    }
}

/// What all calls leave behind, in one order of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outcome {
    pub pieces: Vec<Piece>,
    /// What is applied for it.
    pub events: Vec<Event>,
    /// Whether memory must have come unreported for it, by growth or adoption.
    pub needs_more: bool,
}

impl Outcome {
    /// What is at `range`, in order.
    pub fn within(&self, range: PageRange) -> impl Iterator<Item = Piece> + '_ {
        self.pieces.iter().filter_map(move |piece| piece.within(range))
    }

    /// Whether there is nothing anywhere in `range`.
    pub fn has_nothing_at(&self, range: PageRange) -> bool {
        self.within(range).all(|piece| piece.what == What::Nothing)
    }
}

/// What the search has found.
pub(super) enum Orders {
    /// All outcomes, the first one in an order as much like that of the reports as can be.
    All(Vec<Outcome>),
    /// There are too many.
    TooMany,
    /// The program has begun to change its memory again.
    Changing,
}

impl Orders {
    /// Whether there is no order in which all calls can have happened.
    pub fn are_none(&self) -> bool {
        matches!(self, Orders::All(outcomes) if outcomes.is_empty())
    }

    /// These and those; of the same, the first.
    pub fn and(self, others: Orders) -> Orders {
        match (self, others) {
            (Orders::All(mut outcomes), Orders::All(others)) => {
                for other in others {
                    if !outcomes.iter().any(|outcome| outcome.pieces == other.pieces) {
                        outcomes.push(other);
                    }
                }
                Orders::All(outcomes)
            }
            (Orders::All(_), other) | (other, _) => other,
        }
    }

    /// Of all outcomes, those that are so.
    pub fn keep(&mut self, is_so: impl Fn(&Outcome) -> bool) {
        if let Orders::All(outcomes) = self {
            outcomes.retain(is_so);
        }
    }
}

/// All outcomes of `calls` that what is registered allows. A mremap that may have left its old place mapped has both
/// ends, in turn. Where only one outcome is possible anyway, nobody is asked. And whether the program has no race of its own by that.
pub(super) fn orders<W: Witness>(
    calls: &[Call],
    came: &[PageRange],
    dropped: Option<Rule>,
    questions: &Questions<'_, W>,
) -> (Orders, bool) {
    let Some(mixtures) = with_and_without_ends(calls) else { return (Orders::TooMany, true) };
    for is_owned in [true, false] {
        let rules = Rules { dropped, is_owned };
        let attempt = |asks: bool, limits: Limits| attempt(&mixtures, &[], came, rules, questions, asks, limits);
        match attempt(false, Limits { steps: STEPS, outcomes: 1 }) {
            // The program has a race of its own: somebody took memory away that another thread's call was about.
            orders if orders.are_none() => {}
            Orders::TooMany => return (attempt(true, ALL), is_owned),
            found => return (found, is_owned),
        }
    }
    (Orders::All(Vec::new()), false)
}

/// The same, of a program without a race of its own; what is registered is asked for even if only one outcome is possible. What is at
/// `others` is part of each outcome, too.
pub(super) fn registered_orders<W: Witness>(
    calls: &[Call],
    others: &[PageRange],
    came: &[PageRange],
    dropped: Option<Rule>,
    questions: &Questions<'_, W>,
) -> Orders {
    let Some(mixtures) = with_and_without_ends(calls) else { return Orders::TooMany };
    let rules = Rules { dropped, is_owned: true };
    let attempt = |asks: bool, limits: Limits| attempt(&mixtures, others, came, rules, questions, asks, limits);
    match attempt(false, Limits { steps: STEPS, outcomes: 1 }) {
        // No answer makes that possible.
        orders if orders.are_none() => orders,
        Orders::Changing => Orders::Changing,
        _ => attempt(true, ALL),
    }
}

/// When a search ends.
#[derive(Clone, Copy)]
struct Limits {
    steps: usize,
    outcomes: usize,
}

const ALL: Limits = Limits { steps: STEPS, outcomes: OUTCOMES };

fn attempt<W: Witness>(
    mixtures: &[Vec<Call>],
    others: &[PageRange],
    came: &[PageRange],
    rules: Rules,
    questions: &Questions<'_, W>,
    asks: bool,
    limits: Limits,
) -> Orders {
    let mut outcomes = Vec::new();
    for calls in mixtures {
        let ground = Ground::of(calls, others, came);
        let mut search = Search { calls, came, rules, asks, questions, ground, known: Precedence::default() };
        search.known = search.precedence();
        let is_all = search.add_outcomes(&mut outcomes, limits);
        if questions.is_changing() {
            return Orders::Changing;
        }
        if !is_all {
            return Orders::TooMany;
        }
    }
    Orders::All(outcomes)
}

/// What is excluded.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    dropped: Option<Rule>,
    /// No thread acts on memory that another's call is about (Owned).
    pub is_owned: bool,
}

impl Rules {
    pub fn obey(self, rule: Rule) -> bool {
        self.dropped != Some(rule)
    }
}

/// A search that has come so far.
pub(super) struct Node {
    /// In order.
    pub left: Vec<usize>,
    pub pieces: Vec<Piece>,
    order: Vec<usize>,
    /// Whether memory has come unreported.
    has_more: bool,
}

impl Node {
    /// What is at `part`, of which every call touches all or none.
    pub fn at(&self, part: PageRange) -> Option<Piece> {
        let behind = self.pieces.partition_point(|piece| piece.at <= part.start);
        self.pieces[..behind].last()?.within(part)
    }
}

pub(super) struct Search<'a, W> {
    pub calls: &'a [Call],
    pub came: &'a [PageRange],
    pub rules: Rules,
    /// Whether it asks what is registered, or takes everything for possible that this excludes.
    pub asks: bool,
    pub questions: &'a Questions<'a, W>,
    pub ground: Ground,
    /// What happened before what for certain.
    pub known: Precedence,
}

impl<W: Witness> Search<'_, W> {
    /// Adds the outcomes that are not there; false if there are too many.
    fn add_outcomes(&self, outcomes: &mut Vec<Outcome>, limits: Limits) -> bool {
        let (left, pieces) = ((0..self.calls.len()).collect(), self.untouched());
        let mut stack = vec![Node { left, pieces, order: Vec::new(), has_more: false }];
        let mut seen = BTreeSet::new();
        let mut steps = 0;
        while let Some(node) = stack.pop() {
            steps += 1;
            if steps > limits.steps || outcomes.len() > limits.outcomes || self.questions.is_changing() {
                return false;
            }
            if self.is_hopeless(&node) {
                continue;
            }
            if node.left.is_empty() {
                self.add(node, outcomes);
                if !self.rules.obey(Rule::AllOrders) {
                    break;
                }
            } else if seen.insert((node.left.clone(), node.pieces.clone())) {
                let may_be_next = |&&index: &&usize| !node.left.iter().any(|&other| self.known.is_before(other, index));
                let next: Vec<usize> = node.left.iter().filter(may_be_next).copied().collect();
                self.go_on(&node, &next, &mut stack);
            }
        }
        outcomes.len() <= limits.outcomes
    }

    fn add(&self, node: Node, outcomes: &mut Vec<Outcome>) {
        if let Some(outcome) = outcomes.iter_mut().find(|outcome| outcome.pieces == node.pieces) {
            outcome.needs_more &= node.has_more;
        } else {
            let mut events = Vec::with_capacity(2 * self.calls.len());
            node.order.iter().for_each(|&index| self.calls[index].append_to(&mut events));
            outcomes.push(Outcome { pieces: node.pieces, events, needs_more: node.has_more });
        }
    }

    /// Adds what may come of `node` by one of the calls `next`, or by growth.
    fn go_on(&self, node: &Node, next: &[usize], stack: &mut Vec<Node>) {
        let with = |index: usize, pieces: Vec<Piece>| {
            let left = node.left.iter().copied().filter(|&other| other != index).collect();
            let order = node.order.iter().copied().chain([index]).collect();
            Node { left, pieces, order, has_more: node.has_more }
        };
        let first = next.iter().filter(|&&index| self.comes_first(index, node));
        if let Some(node) = first.filter_map(|&index| Some(with(index, self.after(&node.pieces, index)?))).next() {
            stack.push(node);
            return;
        }
        let without_call = |pieces| Node { left: node.left.clone(), pieces, order: node.order.clone(), has_more: true };
        if self.rules.obey(Rule::Grown) {
            stack.extend(self.grown(node).map(without_call));
        }
        if self.rules.obey(Rule::Came) {
            stack.extend(self.adopted(node).map(without_call));
        }
        // What was read first is looked at first.
        stack.extend(next.iter().rev().filter_map(|&index| Some(with(index, self.after(&node.pieces, index)?))));
    }

    /// What the books have wherever a call touches, in order.
    fn untouched(&self) -> Vec<Piece> {
        let piece = |block: &PageRange| Piece { at: block.start, pages: block.pages, what: What::From(block.start) };
        self.ground.blocks.iter().map(piece).collect()
    }

    /// What a call makes of `pieces`; `None` if it cannot be.
    fn after(&self, pieces: &[Piece], index: usize) -> Option<Vec<Piece>> {
        let call = &self.calls[index];
        let from = call.from();
        let found: Vec<Piece> = pieces.iter().filter_map(|piece| piece.within(from)).collect();
        if !self.finds_memory(call, &found) {
            return None;
        }
        let mut result: Vec<Piece> = Vec::with_capacity(pieces.len() + 4);
        keep_beside(from, pieces, &mut result);
        let what = match call.event {
            Event::Removed(_) => What::Discarded,
            Event::Remapped { .. } if call.end.is_none() => What::Left,
            _ => What::Nothing,
        };
        result.push(Piece { at: from.start, pages: from.pages, what });
        if let Some(place) = call.to() {
            let is_taken = pieces.iter().filter_map(|piece| piece.within(place)).any(|piece| self.has_memory(piece));
            if is_taken && self.rules.obey(Rule::FreePlace) {
                return None;
            }
            let mut others = Vec::with_capacity(result.len() + 4);
            keep_beside(place, &result, &mut others);
            let moved = found.into_iter();
            others.extend(
                moved.map(|piece| Piece { at: PageNumber(piece.at.0 - from.start.0 + place.start.0), ..piece }),
            );
            result = others;
        }
        result.sort_unstable();
        Some(joined(result))
    }

    /// Lemma 6: whether a call can be about what it finds. An unmapping may be of more than what is there, but not of nothing.
    fn finds_memory(&self, call: &Call, found: &[Piece]) -> bool {
        let mut is_free = found.iter().map(|piece| piece.what == What::Nothing);
        if self.finds_all(call) {
            !is_free.any(|is_free| is_free)
        } else {
            !self.finds_some(call) || !is_free.all(|is_free| is_free)
        }
    }

    /// Lemma 6: what may be at the same places when a mapping has grown, as far as a call that is left wants memory.
    fn grown<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = Vec<Piece>> + 'a {
        let holes = node.pieces.iter().enumerate().filter(|(_, piece)| piece.what == What::Nothing);
        // Neighbours that are both free are one piece. What lies before the first that a call touches no call has taken.
        let may_grow = |hole: &Piece| self.ground.block_of(hole.range()).start != hole.at || self.may_grow_to(hole.at);
        let holes = holes.filter(move |(_, hole)| may_grow(hole));
        holes.flat_map(move |(index, &hole)| {
            let needy = node.left.iter().filter(|&&call| self.may_need_growth(call, node));
            let ends = needy.filter_map(|&call| {
                let part = self.calls[call].from().intersection(hole.range());
                (part.pages > 0).then(|| part.end())
            });
            let ends: BTreeSet<PageNumber> = ends.collect();
            ends.into_iter().map(move |end| {
                let grown = PageRange { start: hole.at, pages: end.0 - hole.at.0 };
                filled(&node.pieces, index, grown, What::Left)
            })
        })
    }

    /// Lemma 6: what may be at the same places when memory that had come there was adopted. It may have been filled before.
    fn adopted<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = Vec<Piece>> + 'a {
        let holes = node.pieces.iter().enumerate().filter(|(_, piece)| piece.what == What::Nothing);
        holes.flat_map(move |(index, hole)| {
            let parts = self.came.iter().map(|came| came.intersection(hole.range())).filter(|part| part.pages > 0);
            parts.map(move |part| filled(&node.pieces, index, part, What::Discarded))
        })
    }
}

/// The parts of `pieces` that are not in `range`.
fn keep_beside(range: PageRange, pieces: &[Piece], kept: &mut Vec<Piece>) {
    for piece in pieces {
        kept.extend(piece.range().outside(range).filter_map(|part| piece.within(part)));
    }
}

/// `pieces`, of which the one of this index is a hole, with something at a part of that.
fn filled(pieces: &[Piece], index: usize, part: PageRange, what: What) -> Vec<Piece> {
    let hole = pieces[index];
    let mut result = pieces.to_vec();
    result[index] = Piece { at: part.start, pages: part.pages, what };
    result.extend(hole.range().outside(part).filter_map(|range| hole.within(range)));
    result.sort_unstable();
    joined(result)
}

/// Neighbours that belong together, as one.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.range().end() == piece.at && last.what.plus(last.pages) == piece.what => {
                last.pages += piece.pages;
            }
            _ => joined.push(piece),
        }
    }
    joined
}
