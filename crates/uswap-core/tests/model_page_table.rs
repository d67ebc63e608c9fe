//! The page table against a map from page to state.

use std::collections::BTreeMap;

use proptest::prelude::*;
use uswap_core::page_table::PageTable;
use uswap_core::swap_cache::FrameId;
use uswap_core::{EntryId, OpId, PageNumber, PageRange, PageState};

const CASES: u32 = 10_000;
/// Where ranges lie: around the ends of leaves, and far away.
const PLACES: [u64; 4] = [0, 490, 1010, 1 << 40];

/// Adopted pages only.
type Plain = BTreeMap<u64, PageState>;

#[derive(Clone, Debug)]
enum Step {
    Adopt(PageRange),
    Forget(PageRange),
    Set(u64, PageState),
    SetAll(PageRange, PageState),
}

fn page() -> impl Strategy<Value = u64> {
    (0..PLACES.len(), 0..40u64).prop_map(|(place, page)| PLACES[place] + page)
}

fn range() -> impl Strategy<Value = PageRange> {
    (page(), 0..40u64).prop_map(|(start, pages)| PageRange { start: PageNumber(start), pages })
}

fn state() -> impl Strategy<Value = PageState> {
    let entry = || (0..u32::MAX).prop_map(EntryId);
    let some = || proptest::option::of(entry());
    prop_oneof![
        Just(PageState::Untouched),
        some().prop_map(|clean| PageState::Resident { clean }),
        any::<u32>().prop_map(|frame| PageState::InFrame { frame: FrameId(frame) }),
        entry().prop_map(|entry| PageState::Swapped { entry }),
        Just(PageState::SwappedZero),
        (some(), 0..1u32 << 24).prop_map(|(entry, op)| PageState::ReadingIn { entry, op: OpId(op) }),
        Just(PageState::Poisoned),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => range().prop_map(Step::Adopt),
        2 => range().prop_map(Step::Forget),
        6 => (page(), state()).prop_map(|(page, state)| Step::Set(page, state)),
        1 => (range(), state()).prop_map(|(range, state)| Step::SetAll(range, state)),
    ]
}

fn numbers(range: PageRange) -> std::ops::Range<u64> {
    range.start.0..range.end().0
}

/// Neighbours as one range.
fn ranges(plain: &Plain) -> Vec<PageRange> {
    let mut ranges: Vec<PageRange> = Vec::new();
    for &page in plain.keys() {
        match ranges.last_mut() {
            Some(last) if last.end().0 == page => last.pages += 1,
            _ => ranges.push(PageRange { start: PageNumber(page), pages: 1 }),
        }
    }
    ranges
}

fn known(plain: &Plain, range: PageRange) -> Vec<(PageNumber, PageState)> {
    let pages = plain.range(numbers(range)).filter(|(_, state)| **state != PageState::Untouched);
    pages.map(|(&page, &state)| (PageNumber(page), state)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn the_page_table_is_a_map_of_adopted_pages(
        steps in proptest::collection::vec(step(), 1..40),
        looks in proptest::collection::vec(range(), 4),
    ) {
        let (mut real, mut plain) = (PageTable::new(), Plain::new());
        let everything = PageRange { start: PageNumber(0), pages: 1 << 41 };
        for step in steps {
            match step {
                Step::Adopt(range) => {
                    real.adopt(range);
                    numbers(range).for_each(|page| { plain.entry(page).or_insert(PageState::Untouched); });
                }
                Step::Forget(range) => {
                    for (page, state) in known(&plain, range) {
                        prop_assert_eq!(real.set(page, PageState::Untouched), state);
                    }
                    real.forget(range);
                    numbers(range).for_each(|page| { plain.remove(&page); });
                }
                Step::Set(page, state) => if let Some(old) = plain.get_mut(&page) {
                    prop_assert_eq!(real.set(PageNumber(page), state), std::mem::replace(old, state));
                }
                Step::SetAll(range, state) => for (&page, old) in plain.range_mut(numbers(range)) {
                    prop_assert_eq!(real.set(PageNumber(page), state), std::mem::replace(old, state));
                }
            }
            prop_assert_eq!(real.known_pages(), known(&plain, everything).len() as u64);
            prop_assert_eq!(real.known(everything).collect::<Vec<_>>(), known(&plain, everything));
            prop_assert_eq!(real.adopted_ranges().collect::<Vec<_>>(), ranges(&plain));
            for look in &looks {
                prop_assert_eq!(real.get(look.start), plain.get(&look.start.0).copied());
                prop_assert_eq!(real.known(*look).collect::<Vec<_>>(), known(&plain, *look));
                prop_assert_eq!(real.adopted_in(*look), plain.range(numbers(*look)).count() as u64);
                let next = ranges(&plain).into_iter().find(|range| range.end() > look.start);
                let from = |range: PageRange| {
                    let start = range.start.max(look.start);
                    PageRange { start, pages: range.end().0 - start.0 }
                };
                prop_assert_eq!(real.next_adopted_range(look.start), next.map(from));
            }
        }
    }
}
