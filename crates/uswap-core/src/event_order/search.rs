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
//!   far as a call wants memory stands for that to other ends: nothing else tells these apart.
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
    /// What the program has discarded.
    Discarded,
    /// Nothing, and mapped: a mremap with `MREMAP_DONTUNMAP` has left it behind, or it has grown there.
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

/// All outcomes of `calls`. With `leaves_mapped`, any mremap may have left its old place mapped.
pub(super) fn orders(calls: &[Call], leaves_mapped: bool, dropped: Option<Rule>, witness: &impl Witness) -> Orders {
    match attempt(calls, leaves_mapped, dropped, witness) {
        // The program has a race of its own: somebody took memory away that another thread's mremap was about.
        Orders::All(none) if none.is_empty() => attempt(calls, leaves_mapped, Some(Rule::BeforeReturn), witness),
        found => found,
    }
}

fn attempt(calls: &[Call], leaves_mapped: bool, dropped: Option<Rule>, witness: &impl Witness) -> Orders {
    let mixtures = if leaves_mapped { with_and_without_ends(calls) } else { Some(vec![calls.to_vec()]) };
    let Some(mixtures) = mixtures else { return Orders::TooMany };
    let mut outcomes = Vec::new();
    for calls in mixtures {
        if !add_outcomes(&calls, dropped, witness, &mut outcomes) {
            return Orders::TooMany;
        }
    }
    Orders::All(outcomes)
}

/// A search that has come so far.
struct Node {
    left: Vec<usize>,
    pieces: Vec<Piece>,
    order: Vec<usize>,
}

/// Adds those of `calls` that are not there; false if there are too many.
fn add_outcomes(calls: &[Call], dropped: Option<Rule>, witness: &impl Witness, outcomes: &mut Vec<Outcome>) -> bool {
    let follows = predecessors(calls, dropped);
    // What happens in one of these has nothing to do with another: nothing is there that could grow from one to the other.
    let blocks: Vec<PageRange> = untouched(calls).iter().map(Piece::range).collect();
    let root = Node { left: (0..calls.len()).collect(), pieces: untouched(calls), order: Vec::new() };
    let mut seen = BTreeSet::new();
    let mut stack = vec![root];
    let mut steps = 0;
    while let Some(node) = stack.pop() {
        steps += 1;
        if steps > STEPS || outcomes.len() > OUTCOMES {
            return false;
        }
        if node.left.is_empty() {
            if !outcomes.iter().any(|outcome| outcome.pieces == node.pieces) {
                let mut events = Vec::with_capacity(2 * calls.len());
                node.order.iter().for_each(|&index| calls[index].append_to(&mut events));
                outcomes.push(Outcome { pieces: node.pieces, events });
                if dropped == Some(Rule::AllOrders) {
                    break;
                }
            }
            continue;
        }
        if !seen.insert((node.left.clone(), node.pieces.clone())) {
            continue;
        }
        let may_be_next = |&&index: &&usize| !follows[index].iter().any(|earlier| node.left.contains(earlier));
        let is_near = |one: &Call, other: &Call| blocks.iter().any(|&block| one.touches(block) && other.touches(block));
        let alone =
            |index: usize| !node.left.iter().any(|&other| other != index && is_near(&calls[index], &calls[other]));
        let mut next: Vec<usize> = node.left.iter().filter(may_be_next).copied().collect();
        if let Some(&index) =
            next.iter().find(|&&index| alone(index) && after(&node.pieces, &calls[index], dropped, witness).is_some())
        {
            // It has nothing to do with what is left: its place among that does not matter.
            next = vec![index];
        } else if dropped != Some(Rule::Grown) {
            let grown = grown(&node, calls);
            stack.extend(grown.map(|pieces| Node { left: node.left.clone(), pieces, order: node.order.clone() }));
        }
        // What was read first is looked at first.
        for &index in next.iter().rev() {
            if let Some(pieces) = after(&node.pieces, &calls[index], dropped, witness) {
                let left = node.left.iter().copied().filter(|&other| other != index).collect();
                let order = node.order.iter().copied().chain([index]).collect();
                stack.push(Node { left, pieces, order });
            }
        }
    }
    true
}

/// For each call, those that happened before it for certain.
fn predecessors(calls: &[Call], dropped: Option<Rule>) -> Vec<Vec<usize>> {
    let is_before = |earlier: &Call, later: &Call| {
        let is_discarding = |call: &Call| matches!(call.event, Event::Removed(_));
        let reaches = later.to().is_some_and(|to| earlier.touches(to));
        if is_discarding(earlier) {
            return dropped != Some(Rule::DiscardLast) && reaches && earlier.read < later.read;
        }
        if is_discarding(later) {
            let is_moved = earlier.to().is_some() && earlier.meets(later);
            return dropped != Some(Rule::DiscardLast) && is_moved && earlier.read < later.read;
        }
        dropped != Some(Rule::BeforeReturn) && reaches && earlier.read < later.last
    };
    let of = |index: usize| {
        let others = (0..calls.len()).filter(move |&other| other != index);
        others.filter(|&other| is_before(&calls[other], &calls[index])).collect()
    };
    (0..calls.len()).map(of).collect()
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

/// What `call` makes of `pieces`; `None` if it cannot be.
fn after(pieces: &[Piece], call: &Call, dropped: Option<Rule>, witness: &impl Witness) -> Option<Vec<Piece>> {
    let from = call.from();
    let is_nothing = |piece: &Piece| piece.what == What::Nothing;
    let mut found = pieces.iter().filter_map(|piece| piece.within(from));
    // Lemma 6. An unmapping may be of more than what is there, but not of nothing; what a discarding does to nothing is nothing.
    let is_possible = match call.event {
        Event::Unmapped(_) => !found.all(|piece| is_nothing(&piece)),
        Event::Remapped { .. } => !found.any(|piece| is_nothing(&piece)),
        Event::Removed(_) | Event::Uncopied(_) => true,
    };
    if !is_possible {
        return None;
    }
    let mut result: Vec<Piece> = Vec::with_capacity(pieces.len() + 4);
    keep_beside(from, pieces, &mut result);
    match call.event {
        Event::Removed(_) => {
            let found = pieces.iter().filter_map(|piece| piece.within(from));
            result.extend(
                found.map(|piece| Piece {
                    what: if is_nothing(&piece) { piece.what } else { What::Discarded },
                    ..piece
                }),
            );
        }
        event => {
            let is_left = matches!(event, Event::Remapped { .. }) && call.end.is_none();
            let what = if is_left { What::Left } else { What::Nothing };
            result.push(Piece { at: from.start, pages: from.pages, what });
        }
    }
    if let Some(place) = call.to() {
        let is_mapped = |piece: Piece| match piece.origin() {
            Some(origin) => witness.knows_any(origin),
            None => piece.what == What::Left || piece.what == What::Discarded,
        };
        let is_taken = pieces.iter().filter_map(|piece| piece.within(place)).any(is_mapped);
        if is_taken && dropped != Some(Rule::FreePlace) {
            return None;
        }
        let mut others = Vec::with_capacity(result.len() + 4);
        keep_beside(place, &result, &mut others);
        let moved = pieces.iter().filter_map(|piece| piece.within(from));
        others.extend(moved.map(|piece| Piece { at: PageNumber(piece.at.0 - from.start.0 + place.start.0), ..piece }));
        result = others;
    }
    result.sort_unstable();
    Some(joined(result))
}

/// The parts of `pieces` that are not in `range`.
fn keep_beside(range: PageRange, pieces: &[Piece], kept: &mut Vec<Piece>) {
    for piece in pieces {
        kept.extend(piece.within(PageRange { start: PageNumber(0), pages: range.start.0 }));
        kept.extend(piece.within(PageRange { start: range.end(), pages: u64::MAX - range.end().0 }));
    }
}

/// Lemma 6: what may be at the same places when a mapping has grown, as far as a call that is left wants memory.
fn grown<'a>(node: &'a Node, calls: &'a [Call]) -> impl Iterator<Item = Vec<Piece>> + 'a {
    let holes = node.pieces.iter().enumerate().filter(|(_, piece)| piece.what == What::Nothing);
    // Neighbours that are both free are one piece; and nobody knows what lies before the first that a call touches.
    holes.flat_map(move |(index, &hole)| {
        let wanted = |call: &Call| {
            let part = call.from().intersection(hole.range());
            (part.pages > 0 && !matches!(call.event, Event::Removed(_))).then(|| part.end())
        };
        let ends: BTreeSet<PageNumber> = node.left.iter().filter_map(|&call| wanted(&calls[call])).collect();
        ends.into_iter().map(move |end| {
            let mut pieces = node.pieces.clone();
            let pages = end.0 - hole.at.0;
            pieces[index] = Piece { pages, what: What::Left, ..hole };
            if pages < hole.pages {
                pieces.insert(index + 1, Piece { at: end, pages: hole.pages - pages, what: What::Nothing });
            }
            joined(pieces)
        })
    })
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
