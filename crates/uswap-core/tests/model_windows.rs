//! The engine's readahead against its rules, told one by one on a list of sixteen streams.

use proptest::prelude::*;
use uswap_core::PageNumber;
use uswap_core::readahead::{Readahead, Window};

const CASES: u32 = 10_000;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Stream {
    /// A fault that belongs to nothing yet.
    Alone { page: i64 },
    /// Pages at equal distances.
    Moving { expected: i64, step: i64, window: u32, along: u32 },
}

/// A stream and when it was used last; in the order in which places were filled.
#[derive(Default)]
struct Plain {
    places: [Option<(u64, Stream)>; 16],
    clock: u64,
}

impl Plain {
    fn alone(&self, at: i64) -> Option<usize> {
        self.places.iter().position(|place| matches!(place, Some((_, Stream::Alone { page })) if *page == at))
    }

    /// The fault alone that `page` makes a stream with: beside it, or the second of three at equal distances.
    fn partner(&self, page: i64) -> Option<(usize, i64)> {
        self.places.iter().enumerate().find_map(|(index, place)| {
            let Some((_, Stream::Alone { page: before })) = *place else { return None };
            let step = page - before;
            let three = self.alone(before - step).is_some();
            (step != 0 && step.abs() <= 64 && (step.abs() == 1 || three)).then_some((index, step))
        })
    }

    /// The place of the stream that a fault at `page` goes on with, and what it is now; the hits.
    fn window(&mut self, page: i64, max: u32) -> Window {
        self.clock += 1;
        let goes_on = self.places.iter().enumerate().find_map(|(index, place)| match *place {
            Some((_, Stream::Moving { expected, step, window, along })) if expected == page => {
                Some((index, step, window, along))
            }
            _ => None,
        });
        let (index, step, window, hits) = if let Some((index, step, window, along)) = goes_on {
            (index, step, (window * 2).min(max), along)
        } else if let Some((index, step)) = self.partner(page) {
            let Some((_, Stream::Alone { page: before })) = self.places[index] else { unreachable!() };
            if let Some(first) = self.alone(before - step) {
                self.places[first] = None;
            }
            (index, step, 2.min(max), 0)
        } else {
            let idle = |&index: &usize| self.places[index].map_or(0, |(used, _)| used);
            // Streams keep their places while half of all are there for faults alone.
            let alone = |index: &usize| !matches!(self.places[*index], Some((_, Stream::Moving { .. })));
            let only_alone = (0..16).filter(alone).count() >= 8;
            let oldest = (0..16).filter(|index| alone(index) || !only_alone).min_by_key(idle).unwrap();
            self.places[oldest] = Some((self.clock, Stream::Alone { page }));
            return Window { step: 1, pages: 1, hits: 0 };
        };
        self.places[index] = Some((self.clock, Stream::moved(page, step, window, window)));
        Window { step, pages: window, hits }
    }

    /// Only so many pages of the last window, for `page`, came.
    fn brought(&mut self, page: i64, pages: u32) {
        for (used, stream) in self.places.iter_mut().flatten() {
            if let (true, Stream::Moving { step, window, .. }) = (*used == self.clock, *stream) {
                *stream = Stream::moved(page, step, window, pages);
            }
        }
    }
}

impl Stream {
    fn moved(page: i64, step: i64, window: u32, pages: u32) -> Stream {
        let expected = (page + step * i64::from(pages)).max(0);
        Stream::Moving { expected, step, window, along: pages.saturating_sub(1) }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A fault where the last window ended, `stray` pages off.
    On { stray: i64 },
    /// A fault so many pages from the last one.
    Near(i64),
    /// A fault at one of a few places, where other streams are.
    Elsewhere(i64),
    /// The last window could not be brought in whole.
    Cut(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::On { stray: 0 }),
        1 => (-2..3i64).prop_map(|stray| Step::On { stray }),
        2 => (-70..71i64).prop_map(Step::Near),
        2 => (-3..4i64).prop_map(Step::Near),
        2 => (0..30i64).prop_map(|place| Step::Elsewhere(place * 17 % 30 * 100)),
        1 => any::<u32>().prop_map(Step::Cut),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn windows_follow_from_the_faults_before(max in 0..20u32, steps in proptest::collection::vec(step(), 1..120)) {
        let (mut real, mut plain) = (Readahead::new(max, 0), Plain::default());
        let max = max.max(1);
        let mut at = 1000;
        let mut last = Window { step: 1, pages: 1, hits: 0 };
        for step in steps {
            at = match step {
                Step::On { stray } => at + last.step * i64::from(last.pages) + stray,
                Step::Near(by) => at + by,
                Step::Elsewhere(page) => page,
                Step::Cut(pages) => {
                    let pages = 1 + pages % last.pages;
                    real.brought(PageNumber(at as u64), last, pages);
                    plain.brought(at, pages);
                    last.pages = pages;
                    continue;
                }
            }
            .max(0);
            last = real.window(PageNumber(at as u64));
            prop_assert_eq!(last, plain.window(at, max), "at page {}", at);
            real.brought(PageNumber(at as u64), last, last.pages);
            prop_assert!((1..=max).contains(&last.pages) && last.step != 0);
        }
    }
}
