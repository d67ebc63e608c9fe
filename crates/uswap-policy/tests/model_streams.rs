//! Readahead by streams under random touches: what it asks for is in the region and new, and its accounts are a plain tally.

use std::collections::BTreeMap;

use proptest::prelude::*;
use uswap_core::{PageNumber, PageRange};
use uswap_policy::streams::{Accuracy, Ahead, RegionStreams, Tag};

const CASES: u32 = 10_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A touch so many pages from the last one.
    Walk(i64),
    /// A touch anywhere.
    Jump(u64),
    /// Memory is short: pages that were not wanted go, the first ones first.
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => Just(Step::Walk(1)),
        2 => (-9..9i64).prop_map(Step::Walk),
        1 => any::<u64>().prop_map(Step::Jump),
        1 => (1..40usize).prop_map(Step::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn it_asks_for_pages_of_the_region_and_counts_right(
        start in 0..1000u64,
        pages in 1..3000u64,
        max in 0..600u32,
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let region = PageRange { start: PageNumber(start), pages };
        let mut streams = RegionStreams::new(region, max);
        // Pages in memory; with a tag where nobody has touched them.
        let mut memory: BTreeMap<u64, Option<Tag>> = BTreeMap::new();
        let mut tally = Accuracy::default();
        let mut at = start;
        for step in steps {
            match step {
                Step::Drop(count) => {
                    let unused = memory.iter().filter_map(|(&page, &tag)| Some((page, tag?)));
                    for (page, tag) in unused.take(count).collect::<Vec<_>>() {
                        memory.remove(&page);
                        tally.wasted += 1;
                        streams.dropped(PageNumber(page), tag);
                    }
                    continue;
                }
                Step::Walk(by) => at = at.saturating_add_signed(by).clamp(start, start + pages - 1),
                Step::Jump(to) => at = start + to % pages,
            }
            let page = PageNumber(at);
            let ahead: Option<Ahead> = match memory.insert(at, None) {
                Some(None) => None,
                Some(Some(tag)) => {
                    tally.hits += 1;
                    streams.found(page, tag)
                }
                None => streams.missed(page),
            };
            if let Some(ahead) = ahead {
                let asked: Vec<PageNumber> = ahead.pages().collect();
                prop_assert!(ahead.count() > 0 && ahead.count() <= max.min(512));
                prop_assert_eq!(asked.len(), ahead.count() as usize);
                prop_assert!(asked.windows(2).all(|pair| pair[1].0.wrapping_sub(pair[0].0) as i64 == ahead.stride()));
                for page in asked {
                    prop_assert!(region.contains(page), "{:?} is outside of {:?}", page, region);
                    prop_assert!(page.0 != at, "the missed page is read anyway");
                    memory.entry(page.0).or_insert(Some(ahead.tag));
                }
            }
            prop_assert_eq!(streams.accuracy(), tally);
            prop_assert!(streams.streams().all(|stream| stream.window <= max && stream.stride != 0));
            let each = streams.streams().map(|stream| stream.accuracy);
            let (hits, wasted) = each.fold((0, 0), |sum, each| (sum.0 + each.hits, sum.1 + each.wasted));
            prop_assert!(hits <= tally.hits && wasted <= tally.wasted);
        }
    }
}
