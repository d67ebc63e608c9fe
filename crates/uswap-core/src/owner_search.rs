//! How the kernel's swapoff found the page of a slot in 2011, on these books: to be measured beside [`swapoff`](crate::swapoff).
//!
//! An area was emptied slot by slot, and for each its page was searched for. Up to Linux 3.0 and since, mappings of which one had the
//! page of the slot before were tried first; a file in memory was searched by copying 16 entries at a time out of its tree (3.1-rc), and
//! then by comparing them where they are (`locate_item`, 3.1). Here the page table is what is searched, and a run of adopted memory is a
//! mapping; in the shared-memory server that is an object.
//!
//! Searches find what is only on the area. What is in memory as well, and what comes there meanwhile, is left to the survey that
//! comes after.

use alloc::vec::Vec;

use crate::core::Core;
use crate::entry::{AreaId, Location};
use crate::fault::{LoadPlan, MAX_WINDOW};
use crate::page_table::PageState;
use crate::policies::OwnerSearch;
use crate::units::{PageNumber, PageRange};

/// Pages that are copied out of the table at a time, as by the kernel's gang lookup.
const GANG_PAGES: usize = 16;
/// Pages that are looked at under one hold of the lock.
const LOOK_PAGES: usize = 2048;
const NOTHING: (PageNumber, PageState) = (PageNumber(0), PageState::Untouched);

/// Where a search is.
#[derive(Clone)]
pub(crate) struct Search {
    how: OwnerSearch,
    /// The slot whose page is searched for: all before it have been.
    slot: u64,
    /// Where the search for it has begun.
    begin: PageNumber,
    /// Where it goes on.
    at: PageNumber,
    /// It has come to the end of the table, and goes on up to where it has begun.
    wrapped: bool,
    /// Pages that were found and are to be brought in.
    found: Vec<PageNumber>,
}

/// What a step of a search has come to.
#[expect(clippy::large_enum_variant, reason = "lives on the stack of one thread")]
pub(crate) enum Searched {
    /// Pages to bring in.
    Found(LoadPlan),
    /// There is more to look at.
    More,
    /// Each slot has been searched for.
    All,
}

impl Search {
    /// Of the first slot; none where nothing is searched for.
    pub fn new(how: OwnerSearch) -> Option<Search> {
        let (begin, found) = (PageNumber(0), Vec::with_capacity(MAX_WINDOW));
        (how != OwnerSearch::Book).then_some(Search { how, slot: 0, begin, at: begin, wrapped: false, found })
    }

    fn go_to(&mut self, slot: u64) {
        self.slot = slot;
        (self.at, self.wrapped) = (self.begin, false);
    }
}

impl Core {
    /// The next step of a search.
    pub(crate) fn search_owners(&mut self, area: AreaId, search: &mut Search) -> Searched {
        let mut looked = 0;
        while search.found.len() < MAX_WINDOW && looked < LOOK_PAGES {
            match self.slots(area).next_used(search.slot) {
                Some(slot) if slot == search.slot => looked += self.search_some(area, search, LOOK_PAGES - looked),
                Some(slot) => search.go_to(slot),
                None if search.found.is_empty() => return Searched::All,
                None => break,
            }
        }
        if search.found.len() < MAX_WINDOW && looked >= LOOK_PAGES {
            return Searched::More;
        }
        // Of those that were found before others had the books, some may have been brought in.
        search.found.retain(|&page| self.is_on(page, area) && self.is_swapped(page));
        let plan = (!search.found.is_empty()).then(|| self.load_scattered(&search.found));
        search.found.clear();
        plan.map_or(Searched::More, Searched::Found)
    }

    /// Goes on searching for one slot. How many pages were looked at.
    fn search_some(&self, area: AreaId, search: &mut Search, most: usize) -> usize {
        let end = if search.wrapped { search.begin } else { PageRange::ALL.end() };
        let rest = PageRange { start: search.at, pages: end.0 - search.at.0 };
        let is_it = |state: PageState| self.slot_of(state, area) == Some(search.slot);
        let mut looked = 0;
        let mut last = search.at;
        let mut look = |&(page, state): &(PageNumber, PageState)| {
            (looked, last) = (looked + 1, page);
            is_it(state)
        };
        let (most, hit) = if search.how == OwnerSearch::Mapping {
            let mut gang = [NOTHING; GANG_PAGES];
            let copied = gang.iter_mut().zip(self.pages.known(rest)).map(|(to, from)| *to = from).count();
            (GANG_PAGES, gang[..copied].iter().find(|&found| look(found)).copied())
        } else {
            (most, self.pages.known(rest).take(most).find(look))
        };
        match hit {
            Some((page, state)) => {
                if matches!(state, PageState::Swapped { .. }) {
                    search.found.push(page);
                }
                if search.how != OwnerSearch::Table {
                    search.begin = self.pages.adopted_around(page).map_or(search.begin, |mapping| mapping.start);
                }
                search.go_to(search.slot + 1);
            }
            None if looked == most => search.at = last.plus(1),
            None if !search.wrapped && search.begin > PageNumber(0) => {
                (search.at, search.wrapped) = (PageNumber(0), true)
            }
            None => search.go_to(search.slot + 1),
        }
        // To find nothing is work, too.
        looked + 1
    }

    /// The slot of `area` that a page in this state names.
    fn slot_of(&self, state: PageState, area: AreaId) -> Option<u64> {
        let entry = match state {
            PageState::Swapped { entry } => Some(entry),
            PageState::ReadingIn { entry, .. } => entry,
            PageState::Resident { clean } => clean,
            PageState::InFrame { frame } => self.cache.frame(frame).clean,
            PageState::Untouched | PageState::SwappedZero | PageState::Poisoned => None,
        };
        match self.table.location(entry?) {
            Location::Slot { area: its_area, slot } if its_area == area => Some(slot),
            _ => None,
        }
    }

    fn is_on(&self, page: PageNumber, area: AreaId) -> bool {
        let state = self.pages.get(page);
        state.is_some_and(|state| matches!(state, PageState::Swapped { .. }) && self.slot_of(state, area).is_some())
    }
}
