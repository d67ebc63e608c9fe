//! Calls that were reported and then refused.
//!
//! Since Linux 6.12, mmap(2) with `MAP_FIXED` and munmap(2) prepare their reports while they gather the mappings that are to go
//! (`vms_gather_munmap_vmas` in mm/vma.c), and send them also where the call is refused after that: for want of memory or address
//! space, or because one of the mappings is sealed. What was there is there still.

use alloc::vec::Vec;

use super::Witness;
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
