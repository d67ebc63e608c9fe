//! swapoff: all that this process has on one area comes in, in the order of its slots.
//!
//! Entries name their place, not the other way round: which page waits for a slot is found by going through the page
//! table, for a window of slots at a time, so that the reads that follow are in the order of the disk whatever order the
//! pages have. The kernel walks page tables in the order of addresses, and reads the area at random.
//!
//! A copy of a page that is in memory as well is given up at once. What an ancestor stored comes in like the process's
//! own: a parent cannot move what its child's books name, so each process brings in what it needs itself.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::core::Core;
use crate::defects::{Sabotage, is_on};
use crate::entry::{AreaId, EntryId, Epoch, Location};
use crate::fault::{LoadPlan, MAX_WINDOW};
use crate::owner_search::{Search, Searched};
use crate::page_table::PageState;
use crate::policies::OwnerSearch;
use crate::swap_cache::FrameUse;
use crate::units::{PageNumber, PageRange};

/// Most slots of a window: 1 GiB of an area, 2 MiB of memory.
const WINDOW_SLOTS: usize = 1 << 18;
/// And the fewest: what a parent has stored may be anywhere, and is not counted as used here.
const WINDOW_SLOTS_MIN: usize = 1 << 16;
/// Pages that are looked at under one hold of the lock.
const LOOK_PAGES: usize = 2048;
const NO_PAGE: PageNumber = PageNumber(u64::MAX);
/// The end of all addresses.
const LAST: PageNumber = PageNumber(1 << 52);

/// What is known of an area that is to become empty.
#[derive(Clone)]
pub struct Survey {
    area: AreaId,
    /// First slot of the window.
    first: u64,
    /// By slot of the window, the page whose content it has.
    pages: Box<[PageNumber]>,
    /// Where in the window to go on.
    next: usize,
    /// From which page on the table has not been looked at for this window; `None`: all has.
    from: Option<PageNumber>,
    /// The lowest slot in use behind the window.
    behind: Option<u64>,
    /// Something on the area was found since its first window was begun.
    found: bool,
    /// How often memory had been moved when that was begun: what moves may be passed by.
    moves: Option<u64>,
    /// Pages of one look.
    seen: Vec<(PageNumber, PageState)>,
    /// What comes before, for comparison.
    search: Option<Search>,
}

/// What comes next in emptying an area.
#[expect(clippy::large_enum_variant, reason = "lives on the stack of one thread")]
#[derive(Debug)]
#[must_use]
pub enum Emptying {
    /// Pages to bring in, in the order of their slots; each ends in one of the `load_…` verbs.
    Load(LoadPlan),
    /// Ask again: there was much to look at.
    Ask,
    /// Ask again later: what is left is being read or stored by others at this moment, or kept for a child.
    Later,
    /// Nothing of this process is on the area, and nothing that it may read.
    Empty,
}

impl Survey {
    /// Nothing is known of `area` yet, but that so many of its slots are `used`: mostly in one window. From now on nothing may be
    /// stored on it.
    pub fn new(area: AreaId, used: u64) -> Self {
        let slots = usize::try_from(2 * used).unwrap_or(WINDOW_SLOTS);
        Self::with_window(area, slots.clamp(WINDOW_SLOTS_MIN, WINDOW_SLOTS))
    }

    /// As [`new`](Self::new), with windows of so many slots.
    pub fn with_window(area: AreaId, slots: usize) -> Self {
        Self {
            area,
            first: 0,
            pages: alloc::vec![NO_PAGE; slots].into_boxed_slice(),
            next: 0,
            from: Some(PageNumber(0)),
            behind: None,
            found: false,
            moves: None,
            seen: Vec::with_capacity(LOOK_PAGES),
            search: None,
        }
    }

    /// With a search for the page of each slot before.
    pub fn after_search(self, how: OwnerSearch) -> Self {
        Self { search: Search::new(how), ..self }
    }

    /// The area.
    pub fn area(&self) -> AreaId {
        self.area
    }

    fn begin(&mut self, first: u64) {
        self.first = first;
        self.from = Some(PageNumber(0));
        self.behind = None;
        self.next = self.pages.len();
        self.pages.fill(NO_PAGE);
    }

    /// `page` has content in `slot`, and only there.
    fn note(&mut self, page: PageNumber, slot: u64) {
        self.found = true;
        match slot.checked_sub(self.first).map(|index| index as usize) {
            Some(index) if index < self.pages.len() => {
                self.pages[index] = page;
                self.next = self.next.min(index);
            }
            Some(_) => self.behind = Some(self.behind.map_or(slot, |behind| behind.min(slot))),
            // Brought there while an earlier window was emptied; found in the next round.
            None => {}
        }
    }
}

impl Core {
    /// The next step in emptying the area of `survey`.
    pub fn empty_area(&mut self, survey: &mut Survey) -> Emptying {
        if let Some(search) = &mut survey.search {
            match self.search_owners(survey.area, search) {
                Searched::Found(plan) => return Emptying::Load(plan),
                Searched::More => return Emptying::Ask,
                Searched::All => survey.search = None,
            }
        }
        if let Some(from) = survey.from {
            survey.moves.get_or_insert(self.counts.moves);
            self.look_for_slots(survey, from);
            return Emptying::Ask;
        }
        if let Some(plan) = self.load_in_slot_order(survey) {
            return Emptying::Load(plan);
        }
        if let Some(slot) = survey.behind {
            survey.begin(slot);
            return Emptying::Ask;
        }
        // What this process has stored itself is counted, wherever it is by now.
        let all_seen = self.table.epoch() == Epoch(0) || survey.moves == Some(self.counts.moves);
        let nothing_left = !survey.found && all_seen && self.slots(survey.area).used() == 0;
        survey.begin(0);
        (survey.found, survey.moves) = (false, None);
        // What was handed out may be on its way still.
        if nothing_left || is_on(Sabotage::AreaNotEmpty) { Emptying::Empty } else { Emptying::Later }
    }

    fn slot_on(&self, entry: EntryId, area: AreaId) -> Option<u64> {
        match self.table.location(entry) {
            Location::Slot { area: its_area, slot } if its_area == area => Some(slot),
            _ => None,
        }
    }

    /// Goes through some of the page table.
    fn look_for_slots(&mut self, survey: &mut Survey, from: PageNumber) {
        let mut seen = core::mem::take(&mut survey.seen);
        seen.clear();
        let rest = PageRange { start: from, pages: LAST.0 - from.0 };
        seen.extend(self.pages.known(rest).take(LOOK_PAGES));
        survey.from = if seen.len() == LOOK_PAGES { seen.last().map(|&(page, _)| page.plus(1)) } else { None };
        for &(page, state) in &seen {
            match state {
                PageState::Swapped { entry } => {
                    if let Some(slot) = self.slot_on(entry, survey.area) {
                        survey.note(page, slot);
                    }
                }
                PageState::ReadingIn { entry: Some(entry), .. } => {
                    survey.found |= self.slot_on(entry, survey.area).is_some();
                }
                PageState::Resident { clean: Some(entry) } if self.slot_on(entry, survey.area).is_some() => {
                    self.pages.set(page, PageState::Resident { clean: None });
                    self.let_go(entry);
                }
                PageState::InFrame { frame } => {
                    let record = self.cache.frame_mut(frame);
                    let (state, clean) = (record.state, record.clean);
                    let Some(entry) = clean.filter(|&entry| self.slot_on(entry, survey.area).is_some()) else {
                        continue;
                    };
                    if state == FrameUse::Cached {
                        self.cache.frame_mut(frame).clean = None;
                        self.let_go(entry);
                    } else {
                        // Whoever has the frame may be about to find it equal to that copy.
                        survey.found = true;
                    }
                }
                _ => {}
            }
        }
        survey.seen = seen;
    }

    /// The next pages of the window.
    fn load_in_slot_order(&mut self, survey: &mut Survey) -> Option<LoadPlan> {
        let mut pages = [PageNumber(0); MAX_WINDOW];
        let mut count = 0;
        while count < MAX_WINDOW && survey.next < survey.pages.len() {
            let index = survey.next;
            survey.next += 1;
            let page = survey.pages[index];
            if page == NO_PAGE {
                continue;
            }
            let is_there = match self.pages.get(page) {
                Some(PageState::Swapped { entry }) => {
                    self.slot_on(entry, survey.area) == Some(survey.first + index as u64)
                }
                _ => false,
            };
            if is_there && self.is_swapped(page) {
                pages[count] = page;
                count += 1;
            }
        }
        (count > 0).then(|| self.load_scattered(&pages[..count]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CoreConfig;
    use crate::fault::FrameLeft;
    use proptest::prelude::*;

    const AREA: AreaId = AreaId(0);
    const OTHER: AreaId = AreaId(1);

    fn core(pages: u64) -> Core {
        let config = CoreConfig {
            frame_blocks: 4,
            area_slots: alloc::vec![200_000, 200_000],
            window_max: 16,
            ahead_max: 0,
            ..CoreConfig::default()
        };
        let mut core = Core::new(config);
        core.adopt(PageRange { start: PageNumber(0), pages });
        for area in [AREA, OTHER] {
            (0..390).for_each(|cluster| core.slots_mut(area).grant(cluster));
        }
        core
    }

    /// Puts the content of `page` on `area`.
    fn swapped(core: &mut Core, page: u64, area: AreaId) -> u64 {
        let slot = core.slots_mut(area).alloc().unwrap();
        let entry = core.table.insert(Location::Slot { area, slot }, u128::from(page));
        core.pages.set(PageNumber(page), PageState::Swapped { entry });
        core.counts.swapped_pages += 1;
        slot
    }

    /// Empties `AREA`; the pages in the order in which they came in.
    fn empty(core: &mut Core) -> Vec<u64> {
        let survey = Survey::new(AREA, core.slots(AREA).used());
        empty_by(core, survey)
    }

    fn empty_by(core: &mut Core, mut survey: Survey) -> Vec<u64> {
        let mut order = Vec::new();
        for _ in 0..100_000 {
            match core.empty_area(&mut survey) {
                Emptying::Load(plan) => {
                    for load in plan.pages() {
                        assert_eq!(load.hash, u128::from(load.page.0));
                        order.push(load.page.0);
                        core.load_done(load, plan.op, FrameLeft::Populated, false, false);
                    }
                }
                Emptying::Ask | Emptying::Later => {}
                Emptying::Empty => return order,
            }
        }
        panic!("no end");
    }

    #[test]
    fn pages_come_in_in_the_order_of_their_slots() {
        let mut core = core(5000);
        let order: Vec<u64> = (0..5000).map(|index| index * 2003 % 5000).collect();
        for &page in &order {
            swapped(&mut core, page, AREA);
        }
        assert_eq!(empty(&mut core), order);
        assert_eq!((core.swapped_pages(), core.loads_in_flight(), core.slots(AREA).used()), (0, 0, 0));
    }

    #[test]
    fn searches_find_each_page_in_the_order_of_the_slots() {
        for how in OwnerSearch::ALL {
            let mut core = core(700);
            core.adopt(PageRange { start: PageNumber(1000), pages: 5000 });
            let order: Vec<u64> = (0..3000)
                .map(|index| index * 2003 % 5000)
                .map(|page| if page < 700 { page } else { page + 300 })
                .collect();
            for &page in &order {
                swapped(&mut core, page, AREA);
            }
            let survey = Survey::new(AREA, 3000).after_search(how);
            assert_eq!(empty_by(&mut core, survey), order, "{how:?}");
            assert_eq!((core.swapped_pages(), core.loads_in_flight(), core.slots(AREA).used()), (0, 0, 0));
        }
    }

    #[test]
    fn what_is_elsewhere_stays() {
        let mut core = core(100);
        (0..50).for_each(|page| _ = swapped(&mut core, page, OTHER));
        swapped(&mut core, 70, AREA);
        assert_eq!(empty(&mut core), [70]);
        assert_eq!((core.swapped_pages(), core.slots(OTHER).used()), (50, 50));
    }

    #[test]
    fn an_area_is_empty_though_memory_moves_all_the_time() {
        let mut core = core(64);
        let mut survey = Survey::new(AREA, core.slots(AREA).used());
        for round in 0..20 {
            match core.empty_area(&mut survey) {
                Emptying::Empty => return,
                Emptying::Later => core.remapped(PageNumber(round % 2 * 32), PageNumber((round + 1) % 2 * 32), 8),
                Emptying::Ask => {}
                Emptying::Load(_) => unreachable!("nothing is there"),
            }
            core.remapped(PageNumber(0), PageNumber(32), 8);
        }
        panic!("it is never said to be empty");
    }

    #[test]
    fn an_area_of_several_windows_is_emptied() {
        let mut core = core(150_000);
        (0..150_000).for_each(|page| _ = swapped(&mut core, page, AREA));
        assert_eq!(empty_by(&mut core, Survey::with_window(AREA, 1 << 16)), (0..150_000).collect::<Vec<_>>());
    }

    #[test]
    fn copies_of_what_is_in_memory_are_given_up() {
        let mut core = core(100);
        swapped(&mut core, 5, AREA);
        let crate::fault::FaultPlan::Load(plan) = core.fault(PageNumber(5), false) else { panic!() };
        core.load_done(&plan.pages()[0], plan.op, FrameLeft::Populated, true, true);
        assert_eq!(core.slots(AREA).used(), 1);
        assert_eq!(empty(&mut core), []);
        assert_eq!(core.pages().get(PageNumber(5)), Some(PageState::Resident { clean: None }));
    }

    #[test]
    fn an_area_is_not_empty_while_a_page_is_read_from_it() {
        let mut core = core(100);
        swapped(&mut core, 5, AREA);
        let crate::fault::FaultPlan::Load(plan) = core.fault(PageNumber(5), false) else { panic!() };
        let mut survey = Survey::new(AREA, core.slots(AREA).used());
        for _ in 0..10 {
            assert!(matches!(core.empty_area(&mut survey), Emptying::Ask | Emptying::Later));
        }
        core.load_cancelled(&plan.pages()[0], plan.op);
        assert_eq!(empty(&mut core), [5]);
    }

    #[test]
    fn what_a_child_may_read_keeps_the_area_in_use() {
        let mut core = core(100);
        swapped(&mut core, 5, AREA);
        core.table.add_heir();
        let mut survey = Survey::new(AREA, core.slots(AREA).used());
        let mut later = 0;
        for _ in 0..20 {
            match core.empty_area(&mut survey) {
                Emptying::Load(plan) => {
                    core.load_done(&plan.pages()[0], plan.op, FrameLeft::Populated, false, false);
                }
                Emptying::Later => later += 1,
                Emptying::Ask => {}
                Emptying::Empty => panic!("an heir holds it"),
            }
        }
        assert!(later > 1);
        core.table.no_heirs();
        core.bury_unheld(|_, _| false);
        assert_eq!(empty(&mut core), []);
    }

    proptest! {
        /// Whatever happens to pages meanwhile, each is brought in once, or by others, and the area ends empty.
        #[test]
        fn model_nothing_is_lost_and_nothing_stays(
            homes in proptest::collection::vec(0u8..3, 1..200),
            steps in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..3), 0..200),
            how in proptest::sample::select(OwnerSearch::ALL.as_slice()),
        ) {
            let mut core = core(homes.len() as u64);
            for (page, &home) in homes.iter().enumerate() {
                match home {
                    0 => _ = swapped(&mut core, page as u64, AREA),
                    1 => _ = swapped(&mut core, page as u64, OTHER),
                    _ => {}
                }
            }
            let mut survey = Survey::new(AREA, core.slots(AREA).used()).after_search(how);
            let mut unfinished = Vec::new();
            for (index, what) in steps {
                let page = PageNumber(index.index(homes.len()) as u64);
                match what {
                    0 => match core.empty_area(&mut survey) {
                        Emptying::Load(plan) => unfinished.push(plan),
                        Emptying::Empty => {
                            let all = PageRange { start: PageNumber(0), pages: homes.len() as u64 };
                            let left = core.pages.known(all).any(|(_, state)| match state {
                                PageState::Swapped { entry } | PageState::ReadingIn { entry: Some(entry), .. } => {
                                    core.slot_on(entry, AREA).is_some()
                                }
                                _ => false,
                            });
                            prop_assert!(!left);
                        }
                        Emptying::Ask | Emptying::Later => {}
                    },
                    1 => {
                        if let Some(plan) = unfinished.pop() {
                            for (number, load) in plan.pages().iter().enumerate() {
                                if core.still_loading(load.page, plan.op) && number % 3 != 2 {
                                    core.load_done(load, plan.op, FrameLeft::Populated, false, false);
                                } else {
                                    core.load_cancelled(load, plan.op);
                                }
                            }
                        }
                    }
                    _ => core.removed(PageRange { start: page, pages: 1 }),
                }
            }
            for plan in unfinished {
                plan.pages().iter().for_each(|load| core.load_cancelled(load, plan.op));
            }
            let _ = empty(&mut core);
            prop_assert_eq!(core.slots(AREA).used(), 0);
            prop_assert_eq!(core.loads_in_flight(), 0);
            prop_assert_eq!(core.swapped_pages(), core.slots(OTHER).used());
        }
    }
}
