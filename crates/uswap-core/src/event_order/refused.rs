//! Calls that were reported and then refused.
//!
//! Since Linux 6.12, mmap(2) with `MAP_FIXED` and munmap(2) prepare their reports while they gather the mappings that are to go
//! (`vms_gather_munmap_vmas` in mm/vma.c), and send them also where the call is refused after that: for want of memory or address
//! space, or because one of the mappings is sealed. What was there is there still.

use super::Witness;
use crate::page_table::PageState;
use crate::units::{PageNumber, PageRange};

/// Whether the memory of a reported unmapping is there still. `others`: what other calls touch, and what was adopted while the
/// program was changing its memory; there, what is found tells nothing. `None` when the program has begun to change it again.
///
/// A call goes through, or is refused, as a whole: what of its range is registered has stayed, or has grown there since behind
/// what lies before. What has grown is empty, and nothing was filled meanwhile. Where that does not tell, for all of it is swapped
/// out, it has grown: programs shrink and enlarge all the time.
pub(super) fn is_there_still(range: PageRange, others: &[PageRange], witness: &impl Witness) -> Option<bool> {
    let is_of_others = |page| others.iter().any(|other| other.contains(page));
    let Some(known) = witness.find(range, &|page, _| !is_of_others(page)) else { return Some(false) };
    if !witness.is_registered(PageRange { start: known, pages: 1 })? {
        return Some(false);
    }
    let tells = |page, state| {
        matches!(state, PageState::Resident { .. }) && !is_of_others(page) && !witness.may_have_gone(page)
    };
    if let Some(resident) = witness.find(range, &tells) {
        if witness.is_present(resident)? {
            return Some(true);
        }
        if witness.sees_absence() {
            return Some(false);
        }
    }
    // What has grown may have been split since, but goes on from there; or from where another call has brought memory.
    let Some(before) = range.start.0.checked_sub(1).map(PageNumber) else { return Some(true) };
    let up_to_known = PageRange { start: before, pages: known.0 - before.0 + 1 };
    if others.iter().any(|other| other.overlaps(up_to_known)) {
        return Some(false);
    }
    Some(!witness.is_registered(PageRange { start: before, pages: 1 })?)
}
