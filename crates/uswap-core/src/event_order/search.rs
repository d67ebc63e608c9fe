//! All orders in which calls may have happened, and what each leaves behind.
//!
//! - Lemma 3: *what touches the place of a mremap and is read before its end happened before it.* Only what the mremap has
//!   brought is there after it, until a call takes that away; this one began after the mremap had returned (Owned), so
//!   after its end was read, and so did whatever came there later. A call happens before it is read (Blocked).
//! - Lemma 4: *a discarding follows a mremap that was read before it, where both touch a page.* It is reported before it
//!   takes effect, and the mremap had happened before it was read. And where it was read before the mremap was, and touches
//!   its place, it came before: the memory that the mremap brings was not its thread's yet.
//! - Lemma 5: *a mremap finds no content at its place.* The kernel gives it free memory, or frees it by an unmapping that is
//!   reported of its own (`MREMAP_FIXED`). What the books know of memory that no call has touched is there.
//! - Lemma 6: *memory that comes unreported has grown.* A call finds registered memory: a mremap all over, an unmapping somewhere.
//!   Where nothing is, a mapping that ended just before must have grown there, at any time before: without a gap, so over
//!   all that was free up to there. What has grown is registered and empty, and stays until a call takes it. Growth as
//!   far as a call wants memory stands for that to other ends: nothing else tells these apart. Or it was adopted while the
//!   program was changing its memory: the engine tells what it has adopted so, and that may be filled.
//! - *No other order of two calls is excluded.* So the true order is among those that are found, and if all leave the same
//!   behind, that is there.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use super::calls::{Call, with_and_without_ends};
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

    /// The part of it in `range`.
    fn within(&self, range: PageRange) -> Option<Piece> {
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
}

/// What the search has found.
pub(super) enum Orders {
    /// All outcomes, the first one in an order as much like that of the reports as can be.
    All(Vec<Outcome>),
    /// There are too many.
    TooMany,
}

/// All outcomes of `calls`. A mremap that may have left its old place mapped has both ends, in turn.
pub(super) fn orders(calls: &[Call], came: &[PageRange], dropped: Option<Rule>, witness: &impl Witness) -> Orders {
    match attempt(calls, came, Rules { dropped, is_owned: true }, witness) {
        // The program has a race of its own: somebody took memory away that another thread's call was about.
        Orders::All(none) if none.is_empty() => attempt(calls, came, Rules { dropped, is_owned: false }, witness),
        found => found,
    }
}

fn attempt(calls: &[Call], came: &[PageRange], rules: Rules, witness: &impl Witness) -> Orders {
    let Some(mixtures) = with_and_without_ends(calls) else { return Orders::TooMany };
    let mut outcomes = Vec::new();
    for calls in mixtures {
        let blocks = untouched(&calls).iter().map(Piece::range).collect();
        let search = Search { calls: &calls, came, rules, witness, blocks };
        if !search.add_outcomes(&mut outcomes) {
            return Orders::TooMany;
        }
    }
    Orders::All(outcomes)
}

/// What is excluded.
#[derive(Clone, Copy)]
struct Rules {
    dropped: Option<Rule>,
    /// No thread acts on memory that another's call is about (Owned).
    is_owned: bool,
}

impl Rules {
    fn obey(self, rule: Rule) -> bool {
        self.dropped != Some(rule)
    }
}

/// A search that has come so far.
struct Node {
    left: Vec<usize>,
    pieces: Vec<Piece>,
    order: Vec<usize>,
}

struct Search<'a, W> {
    calls: &'a [Call],
    came: &'a [PageRange],
    rules: Rules,
    witness: &'a W,
    /// What happens in one of these has nothing to do with another: there is memory between them that nobody touches.
    blocks: Vec<PageRange>,
}

impl<W: Witness> Search<'_, W> {
    /// Adds the outcomes that are not there; false if there are too many.
    fn add_outcomes(&self, outcomes: &mut Vec<Outcome>) -> bool {
        let follows = self.predecessors();
        let (left, pieces) = ((0..self.calls.len()).collect(), untouched(self.calls));
        let mut stack = vec![Node { left, pieces, order: Vec::new() }];
        let mut seen = BTreeSet::new();
        let mut steps = 0;
        while let Some(node) = stack.pop() {
            steps += 1;
            if steps > STEPS || outcomes.len() > OUTCOMES {
                return false;
            }
            if node.left.is_empty() {
                self.add(node, outcomes);
                if !self.rules.obey(Rule::AllOrders) {
                    break;
                }
            } else if seen.insert((node.left.clone(), node.pieces.clone())) {
                let may_be_next = |&&index: &&usize| !follows[index].iter().any(|earlier| node.left.contains(earlier));
                let next: Vec<usize> = node.left.iter().filter(may_be_next).copied().collect();
                self.go_on(&node, &next, &mut stack);
            }
        }
        true
    }

    fn add(&self, node: Node, outcomes: &mut Vec<Outcome>) {
        if !outcomes.iter().any(|outcome| outcome.pieces == node.pieces) {
            let mut events = Vec::with_capacity(2 * self.calls.len());
            node.order.iter().for_each(|&index| self.calls[index].append_to(&mut events));
            outcomes.push(Outcome { pieces: node.pieces, events });
        }
    }

    /// Adds what may come of `node` by one of the calls `next`, or by growth.
    fn go_on(&self, node: &Node, next: &[usize], stack: &mut Vec<Node>) {
        let with = |index: usize, pieces: Vec<Piece>| {
            let left = node.left.iter().copied().filter(|&other| other != index).collect();
            Node { left, pieces, order: node.order.iter().copied().chain([index]).collect() }
        };
        let alone = next.iter().filter(|&&index| self.is_alone(index, &node.left));
        if let Some(node) = alone.filter_map(|&index| Some(with(index, self.after(&node.pieces, index)?))).next() {
            // It has nothing to do with what is left: its place among that does not matter.
            stack.push(node);
            return;
        }
        let without_call = |pieces| Node { left: node.left.clone(), pieces, order: node.order.clone() };
        if self.rules.obey(Rule::Grown) {
            stack.extend(self.grown(node).map(without_call));
        }
        if self.rules.obey(Rule::Came) {
            stack.extend(self.adopted(node).map(without_call));
        }
        // What was read first is looked at first.
        stack.extend(next.iter().rev().filter_map(|&index| Some(with(index, self.after(&node.pieces, index)?))));
    }

    /// Whether no other call of `left` touches memory that this one does, or that could grow from there to here.
    fn is_alone(&self, index: usize, left: &[usize]) -> bool {
        let one = &self.calls[index];
        let is_near = |other: &Call| self.blocks.iter().any(|&block| one.touches(block) && other.touches(block));
        !left.iter().any(|&other| other != index && is_near(&self.calls[other]))
    }

    /// For each call, those that happened before it for certain (Lemmas 3 and 4).
    fn predecessors(&self) -> Vec<Vec<usize>> {
        let is_before = |earlier: &Call, later: &Call| {
            let is_discarding = |call: &Call| matches!(call.event, Event::Removed(_));
            let reaches = later.to().is_some_and(|to| earlier.touches(to));
            if is_discarding(earlier) {
                return self.rules.obey(Rule::DiscardLast) && reaches && earlier.read < later.read;
            }
            if is_discarding(later) {
                let is_moved = earlier.to().is_some() && earlier.meets(later);
                return self.rules.obey(Rule::DiscardLast) && is_moved && earlier.read < later.read;
            }
            self.rules.obey(Rule::BeforeReturn) && reaches && earlier.read < later.last
        };
        let of = |index: usize| {
            let others = (0..self.calls.len()).filter(move |&other| other != index && self.rules.is_owned);
            others.filter(|&other| is_before(&self.calls[other], &self.calls[index])).collect()
        };
        (0..self.calls.len()).map(of).collect()
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
        match call.event {
            Event::Remapped { .. } => !is_free.any(|is_free| is_free),
            _ if !self.rules.is_owned => true,
            Event::Removed(_) => !is_free.any(|is_free| is_free),
            Event::Unmapped(_) | Event::Uncopied(_) => !is_free.all(|is_free| is_free),
        }
    }

    /// Lemma 5: whether there certainly is memory.
    fn has_memory(&self, piece: Piece) -> bool {
        match piece.origin() {
            Some(origin) => self.witness.knows_any(origin),
            None => matches!(piece.what, What::Left | What::Discarded),
        }
    }

    /// Lemma 6: what may be at the same places when a mapping has grown, as far as a call that is left wants memory.
    fn grown<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = Vec<Piece>> + 'a {
        let holes = node.pieces.iter().enumerate().filter(|(_, piece)| piece.what == What::Nothing);
        // Neighbours that are both free are one piece; and nobody knows what lies before the first that a call touches.
        holes.flat_map(move |(index, &hole)| {
            let ends = node.left.iter().filter_map(|&call| {
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

/// What the books have wherever a call touches, in order.
fn untouched(calls: &[Call]) -> Vec<Piece> {
    let mut ranges: Vec<PageRange> = calls.iter().flat_map(|call| [Some(call.from()), call.to()]).flatten().collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut pieces: Vec<Piece> = Vec::new();
    for range in ranges.into_iter().filter(|range| range.pages > 0) {
        match pieces.last_mut() {
            Some(last) if last.range().end() >= range.start => {
                last.pages = last.pages.max(range.end().0 - last.at.0);
            }
            _ => pieces.push(Piece { at: range.start, pages: range.pages, what: What::From(range.start) }),
        }
    }
    pieces
}

/// The parts of `pieces` that are not in `range`.
fn keep_beside(range: PageRange, pieces: &[Piece], kept: &mut Vec<Piece>) {
    for piece in pieces {
        kept.extend(piece.within(PageRange { start: PageNumber(0), pages: range.start.0 }));
        kept.extend(piece.within(PageRange { start: range.end(), pages: u64::MAX - range.end().0 }));
    }
}

/// `pieces`, of which the one of this index is a hole, with something at a part of that.
fn filled(pieces: &[Piece], index: usize, part: PageRange, what: What) -> Vec<Piece> {
    let hole = pieces[index];
    let before = PageRange { start: hole.at, pages: part.start.0 - hole.at.0 };
    let behind = PageRange { start: part.end(), pages: hole.range().end().0 - part.end().0 };
    let mut result = pieces.to_vec();
    result[index] = Piece { at: part.start, pages: part.pages, what };
    result.extend([before, behind].into_iter().filter_map(|range| hole.within(range)));
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
