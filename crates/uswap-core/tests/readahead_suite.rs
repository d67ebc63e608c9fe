//! One suite for readahead: our streams beside the kernel's two kinds, on the same accesses and the same memory.
//!
//! A region lies on one area, each page on the slot of its number, as if it had left in order: the best case for the kernel.
//! Memory is smaller than the region, and what was not used for longest leaves, be it unused readahead or not.

use std::collections::{BTreeMap, BTreeSet};

use uswap_core::readahead_streams::Tag;
use uswap_core::swap_readahead::{ReadAlong, ReadaheadKind, SwapReadahead};
use uswap_core::{PageNumber, PageRange};

const PAGES: u64 = 1 << 14;
const MEMORY: usize = 1 << 12;
const REGION: PageRange = PageRange { start: PageNumber(0), pages: PAGES };

/// What is in memory, and which of it nobody has used.
#[derive(Default)]
struct Memory {
    /// Page -> when it was used or brought, and the tag of what was brought and not used.
    pages: BTreeMap<u64, (u64, Option<Option<Tag>>)>,
    by_age: BTreeMap<u64, u64>,
    clock: u64,
    /// Pages that are not on swap at all.
    absent: BTreeSet<u64>,
}

impl Memory {
    fn on_swap(&self, page: u64) -> bool {
        page < PAGES && !self.pages.contains_key(&page) && !self.absent.contains(&page)
    }

    fn put(&mut self, page: u64, unused: Option<Option<Tag>>) {
        self.clock += 1;
        if let Some((age, _)) = self.pages.insert(page, (self.clock, unused)) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.clock, page);
    }

    fn shrink(&mut self, limit: usize) -> Option<(u64, Option<Option<Tag>>)> {
        if self.pages.len() <= limit {
            return None;
        }
        let (_, page) = self.by_age.pop_first().unwrap();
        self.pages.remove(&page).map(|(_, unused)| (page, unused))
    }
}

/// The pages of an answer.
fn pages(along: &ReadAlong) -> Vec<u64> {
    match along {
        ReadAlong::Nothing => Vec::new(),
        ReadAlong::Slots(slots) => slots.clone().map(|slot| slot - 1).collect(),
        ReadAlong::Pages(pages) => pages.clone().collect(),
        ReadAlong::Steps(ahead) => ahead.pages().map(|page| page.0).collect(),
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Score {
    misses: u64,
    hits: u64,
    wasted: u64,
}

fn run(kind: ReadaheadKind, pattern: &Pattern) -> Score {
    run_in(MEMORY, kind, pattern)
}

/// With a memory of `limit` pages.
fn run_in(limit: usize, kind: ReadaheadKind, pattern: &Pattern) -> Score {
    let mut readahead = SwapReadahead::new(kind, 3);
    let mut region = readahead.region(REGION);
    let mut memory = Memory { absent: pattern.absent.clone(), ..Memory::default() };
    let mut score = Score::default();
    for &page in &pattern.accesses {
        let number = PageNumber(page);
        let along = match memory.pages.get(&page).copied() {
            Some((_, None)) => ReadAlong::Nothing,
            Some((_, Some(tag))) => {
                score.hits += 1;
                readahead.found(&mut region, number, tag)
            }
            None => {
                score.misses += 1;
                readahead.missed(&mut region, number, page + 1, PAGES + 1)
            }
        };
        memory.put(page, None);
        for page in pages(&along) {
            assert!(page < PAGES, "page {page} is outside of the region");
            if memory.on_swap(page) {
                memory.put(page, Some(along.tag()));
            }
        }
        while let Some((page, unused)) = memory.shrink(limit) {
            if let Some(tag) = unused {
                score.wasted += 1;
                readahead.dropped(&mut region, PageNumber(page), tag);
            }
        }
    }
    score.wasted += memory.pages.values().filter(|(_, unused)| unused.is_some()).count() as u64;
    score
}

#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        for shift in [13, -7, 17] {
            self.0 ^= if shift > 0 { self.0 << shift } else { self.0 >> -shift };
        }
        (self.0 >> 11) % limit
    }
}

struct Pattern {
    name: &'static str,
    accesses: Vec<u64>,
    absent: BTreeSet<u64>,
}

fn pattern(name: &'static str, accesses: impl IntoIterator<Item = u64>) -> Pattern {
    Pattern { name, accesses: accesses.into_iter().collect(), absent: BTreeSet::new() }
}

/// Runs of up to 12 pages that are not on swap: about a third of all.
fn holes() -> BTreeSet<u64> {
    let mut random = Random(12_345);
    let mut absent = BTreeSet::new();
    let mut page = 0;
    while page < PAGES {
        page += 1 + random.below(24);
        let run = 1 + random.below(12);
        absent.extend(page..(page + run).min(PAGES));
        page += run;
    }
    absent
}

/// Patterns that can be foreseen.
fn foreseeable() -> Vec<Pattern> {
    let quarter = PAGES / 4;
    let absent = holes();
    let present = (0..PAGES).filter(|page| !absent.contains(page)).collect();
    vec![
        pattern("sequential", (0..2 * PAGES).map(|index| index % PAGES)),
        pattern("reverse", (0..2 * PAGES).map(|index| PAGES - 1 - index % PAGES)),
        pattern("stride 2", (0..PAGES).step_by(2)),
        pattern("stride 7", (0..PAGES).step_by(7)),
        pattern("stride 64", (0..PAGES).step_by(64)),
        pattern("stride -7", (0..PAGES).rev().step_by(7)),
        pattern("4 sequences", (0..PAGES).map(|index| index % 4 * quarter + index / 4)),
        pattern(
            "2 forward, 1 backward, 1 stride 3",
            (0..quarter)
                .flat_map(|index| [index, quarter + index, 3 * quarter - 1 - index, 3 * quarter + index * 3 % quarter]),
        ),
        Pattern { name: "sequential with holes", accesses: present, absent },
    ]
}

/// Patterns that cannot.
fn unforeseeable() -> Vec<Pattern> {
    let (mut random, mut ranks) = (Random(88_172_645_463_325_252), Random(362_436_069));
    let zipf = move || {
        let scale = 1 << ranks.below(14);
        (scale - 1 + ranks.below(scale)).wrapping_mul(0x9e37_79b1) % PAGES
    };
    vec![
        pattern("random", std::iter::repeat_with(move || random.below(PAGES)).take(50_000)),
        pattern("zipf", std::iter::repeat_with(zipf).take(50_000)),
    ]
}

/// Patterns of which a part can be foreseen: streams that pass pages by, and short ones.
fn foreseeable_in_part() -> Vec<Pattern> {
    let mut random = Random(1_234_567);
    let mut coin = move |limit| random.below(limit);
    let skips = (0..PAGES).filter(|_| coin(8) > 0).collect::<Vec<_>>();
    let mut random = Random(7_654_321);
    let runs = move |pages: u64| {
        let start = random.below(PAGES - pages);
        start..start + pages
    };
    let runs = |pages: u64, count: usize| {
        let mut run = runs.clone();
        (0..count).flat_map(move |_| run(pages)).collect::<Vec<_>>()
    };
    vec![
        pattern("sequential, one in eight passed by", skips),
        pattern("runs of 8", runs(8, 4000)),
        pattern("runs of 32", runs(32, 1000)),
        pattern("runs of 200", runs(200, 200)),
    ]
}

/// Ours, and the kernel's by slot and by address. On faults all versions of the kernel follow the same rules.
fn scores(pattern: &Pattern) -> (Score, [Score; 2]) {
    let ours = run(ReadaheadKind::Streams, pattern);
    let theirs = [ReadaheadKind::LinuxCluster, ReadaheadKind::LinuxVma].map(|kind| run(kind, pattern));
    println!("{}: ours {ours:?}, by slot {:?}, by address {:?}", pattern.name, theirs[0], theirs[1]);
    (ours, theirs)
}

#[test]
fn streams_beat_the_kernel_where_the_next_page_can_be_foreseen() {
    for pattern in foreseeable() {
        let (ours, theirs) = scores(&pattern);
        for theirs in theirs {
            assert!(ours.hits > theirs.hits && ours.misses < theirs.misses, "{}", pattern.name);
            assert!(ours.wasted <= theirs.wasted, "{}", pattern.name);
        }
    }
}

#[test]
fn where_it_cannot_be_foreseen_nearly_nothing_is_read_along() {
    for pattern in unforeseeable() {
        let (ours, theirs) = scores(&pattern);
        assert!((ours.hits + ours.wasted) * 200 < ours.misses, "{}", pattern.name);
        assert!(theirs.iter().all(|theirs| ours.wasted <= theirs.wasted), "{}", pattern.name);
    }
}

#[test]
fn streams_that_stop_or_pass_pages_by_miss_less_and_waste_a_fifth_at_most() {
    for pattern in foreseeable_in_part() {
        let (ours, theirs) = scores(&pattern);
        assert!(ours.wasted * 5 <= ours.hits + ours.wasted, "{}", pattern.name);
        assert!(theirs.iter().all(|theirs| ours.misses < theirs.misses), "{}", pattern.name);
    }
}

#[test]
fn without_readahead_each_first_touch_is_a_miss() {
    let pattern = pattern("sequential", 0..PAGES);
    let Score { misses, hits, wasted } = run(ReadaheadKind::None, &pattern);
    assert_eq!((misses, hits, wasted), (PAGES, 0, 0));
}

#[test]
fn windows_that_do_not_fit_memory_shrink_until_they_do() {
    for limit in [64, 128, 256, 1024] {
        for pattern in foreseeable() {
            let ours = run_in(limit, ReadaheadKind::Streams, &pattern);
            println!("{limit} pages, {}: {ours:?}", pattern.name);
            assert!(ours.wasted * 10 <= ours.hits + ours.wasted, "{limit} pages, {}", pattern.name);
            for kind in [ReadaheadKind::LinuxCluster, ReadaheadKind::LinuxVma] {
                assert!(ours.misses < run_in(limit, kind, &pattern).misses, "{limit} pages, {}", pattern.name);
            }
        }
    }
}
