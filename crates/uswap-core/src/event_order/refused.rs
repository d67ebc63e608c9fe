//! Calls that were reported and then refused.
//!
//! Since Linux 6.12, mmap(2) with `MAP_FIXED` and munmap(2) prepare their reports while they gather the mappings that are to go
//! (`vms_gather_munmap_vmas` in mm/vma.c), and send them also where the call is refused after that: for want of memory or address
//! space, or because one of the mappings is sealed. What was there is there still.

use alloc::vec::Vec;

use super::calls::Call;
use super::ground::{Ground, Part, Questions};
use super::search::Outcome;
use super::{Event, Witness};
use crate::page_table::PageState;
use crate::units::{PageNumber, PageRange};

/// What else may have been done to the memory of an unmapping before it is asked for.
pub(super) struct Others {
    /// Where other calls have brought memory, and what was adopted while the program was changing its memory: what is found there may
    /// be that.
    pub brought: Vec<PageRange>,
    /// Where other calls have taken memory or content away: what is not found there may have gone with them.
    pub taken: Vec<PageRange>,
}

/// Whether the memory of a reported unmapping is there still.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stays {
    /// The call was refused.
    Yes,
    /// It has gone through.
    No,
    /// Other calls were about all of it. Unless what these come to tells, it has gone through.
    Unknown,
}

/// Whether the memory of a reported unmapping is there still. `None` when the program has begun to change it again.
///
/// A call goes through, or is refused, as a whole: what of its range is registered has stayed, or has grown there since behind
/// what lies before. What has grown is empty, and nothing was filled meanwhile. Where that does not tell, for all of it is swapped
/// out, it has grown: programs shrink and enlarge all the time.
pub(super) fn stays(range: PageRange, others: &Others, witness: &impl Witness) -> Option<Stays> {
    let is_brought = |page| others.brought.iter().any(|other| other.contains(page));
    let is_taken = |page| others.taken.iter().any(|other| other.contains(page));
    let is_resident = |state| matches!(state, PageState::Resident { .. });
    let tells = |page| !is_brought(page) && !is_taken(page);
    let known = witness.find(range, &|page, _| tells(page));
    if let Some(known) = known
        && !witness.is_registered(known.alone())?
    {
        return Some(Stays::No);
    }
    // One whose absence tells as well, if there is one.
    let resident = witness
        .find(range, &|page, state| is_resident(state) && tells(page) && !witness.may_have_gone(page))
        .or_else(|| witness.find(range, &|page, state| is_resident(state) && !is_brought(page)));
    if let Some(resident) = resident
        && witness.is_registered(resident.alone())?
    {
        if witness.is_present(resident)? {
            return Some(Stays::Yes);
        }
        if tells(resident) && !witness.may_have_gone(resident) && witness.sees_absence() {
            return Some(Stays::No);
        }
    }
    // What other calls have taken tells if it is there: they were refused as well, or have left it mapped.
    let there = || witness.find(range, &|page, _| !is_brought(page));
    let Some(known) = known.or_else(there) else { return Some(Stays::Unknown) };
    // What has grown may have been split since, but goes on from there; or from where another call has brought memory.
    let Some(before) = range.start.0.checked_sub(1).map(PageNumber) else { return Some(Stays::Unknown) };
    let up_to_known = PageRange { start: before, pages: known.0 - before.0 + 1 };
    if is_taken(before) || others.brought.iter().any(|other| other.overlaps(up_to_known)) {
        return Some(Stays::Unknown);
    }
    let cannot_have_grown = !witness.is_registered(before.alone())?;
    Some(match cannot_have_grown && witness.is_registered(known.alone())? {
        true => Stays::Yes,
        false if tells(known) => Stays::No,
        false => Stays::Unknown,
    })
}

/// An unmapping, among calls that have to do with each other. What the books have had at its place may not tell whether it was refused,
/// for others were about all of that, or there was nothing: which outcomes are possible does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Unmapping {
    range: PageRange,
    /// When the last mremap to its place had returned before it was read, if there was one: it may have been of what that had brought.
    returned: Option<usize>,
    /// When it was read itself, the first time after that.
    read: usize,
}

/// Which of the unmappings of just the same memory were refused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Those after the mremap.
    Later,
    /// Of these all but the first: that went through before the mremap, though it was read after it.
    LaterButFirst,
    /// Those before it.
    Earlier,
    All,
}

impl Unmapping {
    fn has(&self, call: &Call, which: Which) -> bool {
        let is_later = || self.returned.is_none_or(|returned| call.read > returned);
        call.event == Event::Unmapped(self.range)
            && match which {
                Which::Later => is_later(),
                Which::LaterButFirst => is_later() && call.read != self.read,
                Which::Earlier => !is_later(),
                Which::All => true,
            }
    }
}

/// The unmappings of `calls` that are no mremap's end for certain; those of just the same memory once.
pub(super) fn unmappings(calls: &[Call]) -> Vec<Unmapping> {
    let mut found: Vec<Unmapping> = Vec::new();
    for call in calls {
        let (range, read) = match (call.event, call.end) {
            (Event::Unmapped(range), _) => (range, call.read),
            (Event::Remapped { from, .. }, Some(end)) if call.has_doubtful_end() => (from, end),
            _ => continue,
        };
        let brings = |other: &&Call| other.last < read && other.to().is_some_and(|to| to.overlaps(range));
        let returned = calls.iter().filter(brings).map(|other| other.last).max();
        match found.iter_mut().find(|other| other.range == range) {
            Some(other) if other.returned == returned => {}
            Some(other) => *other = Unmapping { range, returned, read },
            None => found.push(Unmapping { range, returned, read }),
        }
    }
    found
}

/// Unmappings that may have been refused together.
pub(super) struct Refused([Option<(Unmapping, Which)>; 2]);

impl Refused {
    /// The calls that were not refused. A mremap that has left its old place mapped has no end then.
    pub fn others(&self, calls: &[Call]) -> Vec<Call> {
        let refused = || self.0.iter().flatten();
        let is_done = |call: &&Call| !refused().any(|(unmapping, which)| unmapping.has(call, *which));
        let left = |call: &Call| match refused().any(|(unmapping, _)| unmapping.range == call.from()) {
            true if call.has_doubtful_end() => Call { end: None, last: call.read, ..*call },
            _ => *call,
        };
        calls.iter().filter(is_done).map(left).collect()
    }
}

/// So many unmappings are thought of in pairs: the kernel seldom refuses one.
const PAIRED: usize = 6;

/// What may have been refused, the simplest first: one of the unmappings, or two.
pub(super) fn possibilities(unmappings: &[Unmapping]) -> [Vec<Refused>; 2] {
    let one = |&one: &Unmapping| {
        let ways = [Which::Later, Which::LaterButFirst, Which::Earlier, Which::All];
        ways.map(|which| Refused([Some((one, which)), None]))
    };
    let paired = &unmappings[..unmappings.len().min(PAIRED)];
    let two = |(index, &one): (usize, &Unmapping)| {
        let pair = move |&other: &Unmapping| Refused([one, other].map(|each| Some((each, Which::All))));
        paired[index + 1..].iter().map(pair)
    };
    [unmappings.iter().flat_map(one).collect(), paired.iter().enumerate().flat_map(two).collect()]
}

/// Why memory is registered where an outcome has nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// None is.
    None,
    /// It may have grown there since, or come.
    Grown,
    /// It cannot.
    Unknown,
}

/// What is registered wherever calls were.
pub(super) struct Registered<'a, W> {
    calls: &'a [Call],
    ground: Ground,
    /// Where unmappings were.
    pub unmapped: Vec<PageRange>,
    came: &'a [PageRange],
    pub questions: &'a Questions<'a, W>,
}

impl<'a, W: Witness> Registered<'a, W> {
    pub fn new(
        calls: &'a [Call],
        unmappings: &[Unmapping],
        came: &'a [PageRange],
        questions: &'a Questions<'a, W>,
    ) -> Registered<'a, W> {
        let unmapped = unmappings.iter().map(|unmapping| unmapping.range).collect();
        Registered { calls, ground: Ground::of(calls, &[], came), unmapped, came, questions }
    }

    /// Why there is more than an outcome has.
    pub fn beside(&self, outcome: &Outcome) -> Why {
        self.why(outcome, self.ground.parts.iter())
    }

    /// Why there is more than an outcome has, where unmappings were.
    pub fn beside_unmapped(&self, outcome: &Outcome) -> Why {
        self.why(outcome, self.unmapped.iter().flat_map(|&range| self.ground.parts_of(range)))
    }

    fn why<'b>(&self, outcome: &Outcome, parts: impl Iterator<Item = &'b Part>) -> Why {
        let mut why = Why::None;
        for part in parts {
            let first = part.range.start.alone();
            if !outcome.has_nothing_at(first) || !self.questions.is_registered(first, false) {
                continue;
            }
            if !self.may_have_come(part) {
                return Why::Unknown;
            }
            why = Why::Grown;
        }
        why
    }

    /// Whether memory may have come to a part after the last call took it: it was adopted, or has grown over all from where that call began,
    /// from what lies before or what others have brought there, but not here.
    fn may_have_come(&self, part: &Part) -> bool {
        let (page, by_one_thread) = (part.range.start, self.questions.by_one_thread);
        // Nothing is adopted while anything is held: what came was there before one thread's second call, which has two reports at most.
        let may_come_after = |call: &Call| !by_one_thread || call.read <= 1;
        let has_grown = |&taker: &usize| {
            let call = &self.calls[taker];
            let start = call.from().start;
            let before = PageRange { start, pages: page.0 - start.0 };
            let bringers = self.ground.parts_of(before).iter().flat_map(|part| &part.bringers);
            let grows = match by_one_thread {
                true => self.questions.may_grow_after(call),
                false => self.questions.may_grow_to(start),
            };
            grows
                || may_come_after(call) && self.came.iter().any(|came| came.overlaps(before) || came.contains(page))
                || before.pages > 0 && bringers.into_iter().any(|bringer| !part.bringers.contains(bringer))
        };
        // Of one thread it is known which was the last.
        let first = if by_one_thread { part.takers.len().saturating_sub(1) } else { 0 };
        part.takers.is_empty() || part.takers[first..].iter().any(has_grown)
    }

    /// Whether a page is there that `outcome` has, and `other` has not.
    pub fn tells_from(&self, outcome: &Outcome, other: &Outcome) -> bool {
        let witness = self.questions.witness;
        let has_come = |page| self.came.iter().any(|came| came.contains(page));
        let told = outcome.pieces.iter().find_map(|piece| {
            let tells = |page: PageNumber, state: PageState| {
                let place = piece.place_of(page);
                matches!(state, PageState::Resident { .. })
                    && !witness.may_have_gone(page)
                    && other.has_nothing_at(place.alone())
                    && !has_come(page)
                    && !has_come(place)
            };
            witness.find(piece.origin()?, &tells).map(|page| piece.place_of(page))
        });
        told.is_some_and(|place| {
            self.questions.is_registered(place.alone(), false) && self.questions.or_changing(witness.is_present(place))
        })
    }
}
