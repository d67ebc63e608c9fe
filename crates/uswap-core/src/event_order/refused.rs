//! Calls that were reported and then refused.
//!
//! Since Linux 6.12, mmap(2) with `MAP_FIXED` and munmap(2) prepare their reports while they gather the mappings that are to go
//! (`vms_gather_munmap_vmas` in mm/vma.c), and send them also where the call is refused after that: for want of memory or address
//! space, or because one of the mappings is sealed. What was there is there still.

use alloc::vec::Vec;

use super::calls::Call;
use super::ground::Questions;
use super::search::{Outcome, Piece, What};
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

/// Whether the memory of a reported unmapping is there still. `None` when the program has begun to change it again.
///
/// A call goes through, or is refused, as a whole: what of its range is registered has stayed, or has grown there since behind
/// what lies before. What has grown is empty, and nothing was filled meanwhile. Where that does not tell, for all of it is swapped
/// out, it has grown: programs shrink and enlarge all the time.
pub(super) fn is_there_still(range: PageRange, others: &Others, witness: &impl Witness) -> Option<bool> {
    let is_brought = |page| others.brought.iter().any(|other| other.contains(page));
    let is_taken = |page| others.taken.iter().any(|other| other.contains(page));
    let is_resident = |state| matches!(state, PageState::Resident { .. });
    let tells = |page| !is_brought(page) && !is_taken(page);
    let known = witness.find(range, &|page, _| tells(page));
    if let Some(known) = known
        && !witness.is_registered(PageRange { start: known, pages: 1 })?
    {
        return Some(false);
    }
    // One whose absence tells as well, if there is one.
    let resident = witness
        .find(range, &|page, state| is_resident(state) && tells(page) && !witness.may_have_gone(page))
        .or_else(|| witness.find(range, &|page, state| is_resident(state) && !is_brought(page)));
    if let Some(resident) = resident
        && witness.is_registered(PageRange { start: resident, pages: 1 })?
    {
        if witness.is_present(resident)? {
            return Some(true);
        }
        if tells(resident) && !witness.may_have_gone(resident) && witness.sees_absence() {
            return Some(false);
        }
    }
    let Some(known) = known else { return Some(false) };
    // What has grown may have been split since, but goes on from there; or from where another call has brought memory.
    let Some(before) = range.start.0.checked_sub(1).map(PageNumber) else { return Some(true) };
    let up_to_known = PageRange { start: before, pages: known.0 - before.0 + 1 };
    if is_taken(before) || others.brought.iter().any(|other| other.overlaps(up_to_known)) {
        return Some(false);
    }
    Some(!witness.is_registered(PageRange { start: before, pages: 1 })?)
}

/// An unmapping that was read after a mremap to its place had returned, and so may have been of what that had brought. Where all of it
/// was brought, what the books have had there does not tell whether it was refused: only which outcomes are possible does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct OfBrought {
    range: PageRange,
    /// When the last such mremap had returned.
    returned: usize,
    /// When it was read itself, the last time.
    read: usize,
}

impl OfBrought {
    /// Whether the call is this one, or one of just the same memory that came after the mremap, too: refused with it.
    pub fn is_like(&self, call: &Call) -> bool {
        call.event == Event::Unmapped(self.range) && call.read > self.returned
    }

    /// Whether the call is one of just the same memory, before the last: of these one can have gone through.
    pub fn was_before(&self, call: &Call) -> bool {
        self.is_like(call) && call.read < self.read
    }
}

/// The unmappings of `calls` that may have been of what mremaps had brought.
pub(super) fn unmappings_of_what_was_brought(calls: &[Call]) -> Vec<OfBrought> {
    let mut found: Vec<OfBrought> = Vec::new();
    for call in calls {
        let Event::Unmapped(range) = call.event else { continue };
        let brings = |other: &&Call| other.last < call.read && other.to().is_some_and(|to| to.overlaps(range));
        let Some(returned) = calls.iter().filter(brings).map(|other| other.last).max() else { continue };
        // What an earlier one of the same memory has left another mremap could not have come to.
        found.retain(|other| other.range != range);
        found.push(OfBrought { range, returned, read: call.read });
    }
    found
}

/// Whether an unmapping has left what was brought to its place: that is what is found there by the outcome `without` it, and `with` it
/// is not. `None` when the program has begun to change its memory again.
pub(super) fn has_left<W: Witness>(
    unmapping: &OfBrought,
    without: &Outcome,
    with: Option<&Outcome>,
    came: &[PageRange],
    questions: &Questions<'_, W>,
) -> Option<bool> {
    let (range, witness) = (unmapping.range, questions.witness);
    let is_taken = |page: PageNumber| {
        let mut there = with.into_iter().flat_map(|outcome| outcome.within(page.alone()));
        there.all(|piece| piece.what == What::Nothing)
    };
    let known = |piece: Piece| {
        let pages = piece.origin().map(|origin| witness.known(origin)).unwrap_or_default();
        pages.into_iter().map(move |(page, state)| (piece.place_of(page), page, state))
    };
    let contents: Vec<(PageNumber, PageNumber, PageState)> =
        without.within(range).flat_map(known).filter(|&(place, ..)| is_taken(place)).collect();
    let Some(&(first, ..)) = contents.first() else { return Some(false) };
    if !witness.is_registered(first.alone())? {
        return Some(false);
    }
    let tells = |&&(_, page, state): &&(PageNumber, PageNumber, PageState)| {
        matches!(state, PageState::Resident { .. }) && !witness.may_have_gone(page)
    };
    if let Some(&(resident, ..)) = contents.iter().find(tells)
        && witness.is_registered(resident.alone())?
    {
        let is_present = witness.is_present(resident)?;
        if is_present || witness.sees_absence() {
            return Some(is_present);
        }
    }
    // All of it is swapped out. It has grown there since if it can have: over all from where the unmapping began.
    let way = PageRange { start: range.start, pages: first.0 + 1 - range.start.0 };
    let mut before = without.within(way).take_while(|piece| !piece.range().contains(first));
    let may_have_grown = questions.may_grow_to(range.start)
        || before.any(|piece| piece.what != What::Nothing)
        || came.iter().any(|came| came.overlaps(way));
    (!questions.is_changing()).then_some(!may_have_grown)
}
