//! Which of several outcomes is what has happened, by what the kernel has mapped and populated. (The first of these lemmas is
//! looked at while orders are searched: only outcomes that obey it are found.)
//!
//! - Lemma 7: *where an outcome has content, and where a call found memory or brought it, memory is registered*, until a call
//!   takes it. What the books know of is registered, so is what is reported on, a mremap keeps that, and everything
//!   that has ended it was read, and is in every outcome.
//! - Lemma 8: *a page that the books call resident is there, and one that they call swapped is not*, wherever it was moved: while
//!   a change is counted, or kept, nothing is filled and nothing is moved out. Excepted is what the kernel may drop by
//!   itself, and what is being read in. Where an outcome has nothing, nothing is there: memory that has grown in its
//!   place, or come since, is filled by us alone.
//! - Lemma 9: *outcomes are alike where a page reads the same.* Pages that are there are what they are; which of two the books
//!   take them for does not matter, but for stored copies of them, which are then dropped. And all zeros are alike, those too
//!   that what the kernel may drop is by now, where nothing is there.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::search::{Orders, Outcome, What};
use super::{Event, Rule, Witness};
use crate::page_table::PageState;
use crate::units::{PageNumber, PageRange};

/// The program is changing its memory again.
pub(super) struct Changing;

pub(super) type Asked<T> = Result<T, Changing>;

/// What a page is, in one outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Page {
    /// Zeros; whether something may be there all the same.
    Zeros { may_be_there: bool },
    /// There, unless it may have gone.
    There { may_have_gone: bool, copied: Option<PageNumber> },
    /// The content that the books have had for this page, not there.
    Away(PageNumber),
    /// The same, and it may be there already.
    Coming(PageNumber),
}

impl Page {
    fn of(page: PageNumber, state: PageState, witness: &impl Witness) -> Page {
        match state {
            PageState::Untouched => Page::Zeros { may_be_there: true },
            PageState::Resident { clean } => {
                Page::There { may_have_gone: witness.may_have_gone(page), copied: clean.map(|_| page) }
            }
            PageState::SwappedZero => Page::Zeros { may_be_there: false },
            // What is lost has a mark in its place, or none yet; or the program has discarded it, and it has been filled anew.
            PageState::ReadingIn { .. } | PageState::Poisoned => Page::Coming(page),
            PageState::Swapped { .. } | PageState::InFrame { .. } => Page::Away(page),
        }
    }

    /// Lemma 8.
    fn may_be(self, is_present: bool) -> bool {
        match self {
            Page::Zeros { may_be_there } => may_be_there || !is_present,
            Page::There { may_have_gone, .. } => is_present || may_have_gone,
            Page::Away(_) => !is_present,
            Page::Coming(_) => true,
        }
    }

    /// Lemma 9, where both may be.
    fn reads_like(self, other: Page, is_present: Option<bool>) -> bool {
        match (self, other) {
            (Page::Zeros { .. }, Page::Zeros { .. }) | (Page::There { .. }, Page::There { .. }) => true,
            // It has gone. (Of a page that is there, a discarding may not have taken effect yet: it is still to go, or to stay.)
            (Page::Zeros { .. }, Page::There { .. }) | (Page::There { .. }, Page::Zeros { .. }) => {
                is_present == Some(false)
            }
            (Page::Away(one), Page::Away(two)) | (Page::Coming(one), Page::Coming(two)) => one == two,
            _ => false,
        }
    }
}

/// The outcome that has happened, if nothing else can have.
pub(super) fn decide(orders: Orders, dropped: Option<Rule>, witness: &impl Witness) -> Asked<Option<Outcome>> {
    match orders {
        Orders::All(outcomes) => tell_apart(outcomes, dropped, witness),
        Orders::TooMany => Ok(None),
        Orders::Changing => Err(Changing),
    }
}

fn tell_apart(mut outcomes: Vec<Outcome>, dropped: Option<Rule>, witness: &impl Witness) -> Asked<Option<Outcome>> {
    let mut pages: Vec<BTreeMap<PageNumber, Page>> = Vec::new();
    let mut differing = BTreeMap::new();
    if outcomes.len() > 1 {
        pages = outcomes.iter().map(|outcome| known_pages(outcome, witness)).collect();
        for page in pages.iter().flat_map(|pages| pages.keys()) {
            if pages.iter().any(|other| other.get(page) != pages[0].get(page)) {
                differing.insert(*page, None);
            }
        }
        if dropped != Some(Rule::Present) {
            keep_what_is_there(&mut differing, &mut outcomes, &mut pages, witness)?;
        }
    }
    let Some(mut first) = outcomes.first().cloned() else { return Ok(None) };
    for (&page, &is_present) in &differing {
        let found = page_in(&first, &pages[0], page);
        let others: Vec<Page> =
            (1..outcomes.len()).map(|index| page_in(&outcomes[index], &pages[index], page)).collect();
        if !others.iter().all(|other| other.reads_like(found, is_present)) {
            return Ok(None);
        }
        if others.iter().any(|&other| other != found) && matches!(found, Page::There { .. }) {
            let range = PageRange { start: page, pages: 1 };
            first.events.push(if is_present == Some(false) { Event::Removed(range) } else { Event::Uncopied(range) });
        }
    }
    Ok(Some(first))
}

/// What is known of the pages in an outcome.
fn known_pages(outcome: &Outcome, witness: &impl Witness) -> BTreeMap<PageNumber, Page> {
    let mut pages = BTreeMap::new();
    for piece in &outcome.pieces {
        let Some(origin) = piece.origin() else { continue };
        for (page, state) in witness.known(origin) {
            let place = piece.at.plus(page.0 - origin.start.0);
            pages.insert(place, Page::of(page, state, witness));
        }
    }
    pages
}

fn page_in(outcome: &Outcome, known: &BTreeMap<PageNumber, Page>, page: PageNumber) -> Page {
    let what = outcome.pieces.iter().find(|piece| piece.range().contains(page)).map(|piece| piece.what);
    let unknown = Page::Zeros { may_be_there: !matches!(what, Some(What::Nothing | What::Left)) };
    known.get(&page).copied().unwrap_or(unknown)
}

/// Looks at the pages in which the outcomes differ, as long as they do, and keeps those that agree with which of them are there.
fn keep_what_is_there(
    differing: &mut BTreeMap<PageNumber, Option<bool>>,
    outcomes: &mut Vec<Outcome>,
    pages: &mut Vec<BTreeMap<PageNumber, Page>>,
    witness: &impl Witness,
) -> Asked<()> {
    for (&page, looked_at) in differing {
        if outcomes.len() <= 1 {
            break;
        }
        let is_present = witness.is_present(page).ok_or(Changing)?;
        if !is_present && !witness.sees_absence() {
            continue;
        }
        *looked_at = Some(is_present);
        for index in (0..outcomes.len()).rev() {
            if !page_in(&outcomes[index], &pages[index], page).may_be(is_present) {
                outcomes.remove(index);
                pages.remove(index);
            }
        }
    }
    Ok(())
}
