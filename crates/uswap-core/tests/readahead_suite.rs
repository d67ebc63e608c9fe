//! One suite for readahead: our streams beside the kernel's two kinds, on the same accesses and the same memory.
//!
//! A region lies on one area, each page on the slot of its number, as if it had left in order: the best case for the kernel.
//! Memory is smaller than the region, and what was not used for longest leaves, be it unused readahead or not.

use std::collections::{BTreeMap, BTreeSet};

use uswap_core::linux::readahead::{Mapping, Preset, Readahead, VmaReadahead};
use uswap_core::linux::swap_entry::SwapEntry;
use uswap_core::linux::swap_in::{AreaFacts, Caller, SwapBooks, SwapInPath};
use uswap_core::readahead_streams::{Ahead, RegionStreams, Tag, WINDOW_MAX};
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

    fn shrink(&mut self) -> Option<Option<Option<Tag>>> {
        if self.pages.len() <= MEMORY {
            return None;
        }
        let (_, page) = self.by_age.pop_first().unwrap();
        self.pages.remove(&page).map(|(_, unused)| unused)
    }
}

/// Pages to bring beside the missed one, and their tags.
type Brought = Vec<(u64, Option<Tag>)>;

trait Policy {
    fn missed(&mut self, page: u64, memory: &mut Memory) -> Brought;
    fn found(&mut self, page: u64, tag: Option<Tag>, memory: &mut Memory) -> Brought;
    fn dropped(&mut self, tag: Option<Tag>);
}

struct Ours(RegionStreams);

impl Ours {
    fn new() -> Self {
        Self(RegionStreams::new(REGION, WINDOW_MAX))
    }

    fn pages(ahead: Option<Ahead>) -> Brought {
        ahead.into_iter().flat_map(|ahead| ahead.pages().map(move |page| (page.0, Some(ahead.tag)))).collect()
    }
}

impl Policy for Ours {
    fn missed(&mut self, page: u64, _memory: &mut Memory) -> Brought {
        Self::pages(self.0.missed(PageNumber(page)))
    }

    fn found(&mut self, page: u64, tag: Option<Tag>, _memory: &mut Memory) -> Brought {
        Self::pages(self.0.found(PageNumber(page), tag.unwrap()))
    }

    fn dropped(&mut self, tag: Option<Tag>) {
        self.0.dropped(tag.unwrap());
    }
}

struct Linux {
    path: SwapInPath,
    state: VmaReadahead,
}

struct Books<'a>(&'a mut Memory);

impl SwapBooks for Books<'_> {
    fn area(&self, _area: u8) -> Option<AreaFacts> {
        Some(AreaFacts { slots: PAGES + 1, synchronous: false, going_off: false })
    }

    fn count(&self, entry: SwapEntry) -> u32 {
        u32::from(self.0.on_swap(entry.slot - 1) || self.is_cached(entry))
    }

    fn is_cached(&self, entry: SwapEntry) -> bool {
        self.0.pages.get(&(entry.slot - 1)).is_some_and(|(_, unused)| unused.is_some())
    }

    fn take_ahead(&mut self, entry: SwapEntry) -> bool {
        self.is_cached(entry)
    }

    fn swap_pte(&self, page: PageNumber) -> Option<SwapEntry> {
        Some(SwapEntry { area: 0, slot: page.0 + 1 })
    }
}

impl Linux {
    fn fault(&mut self, page: u64, memory: &mut Memory) -> Brought {
        let mapping = Mapping { state: &mut self.state, region: REGION, page: PageNumber(page) };
        let entry = SwapEntry { area: 0, slot: page + 1 };
        let mut reads = Vec::new();
        let _ = self.path.swap_in(entry, Caller::Fault(mapping), &mut Books(memory), &mut reads);
        reads.into_iter().filter(|read| read.ahead).map(|read| (read.entry.slot - 1, None)).collect()
    }
}

impl Policy for Linux {
    fn missed(&mut self, page: u64, memory: &mut Memory) -> Brought {
        self.fault(page, memory)
    }

    fn found(&mut self, page: u64, _tag: Option<Tag>, memory: &mut Memory) -> Brought {
        self.fault(page, memory)
    }

    fn dropped(&mut self, _tag: Option<Tag>) {}
}

#[derive(Clone, Copy, Default, Debug)]
struct Score {
    misses: u64,
    hits: u64,
    wasted: u64,
}

fn run(policy: &mut dyn Policy, accesses: &[u64], absent: &BTreeSet<u64>) -> Score {
    let mut memory = Memory { absent: absent.clone(), ..Memory::default() };
    let mut score = Score::default();
    for &page in accesses {
        let brought = match memory.pages.get(&page).copied() {
            Some((_, None)) => Vec::new(),
            Some((_, Some(tag))) => {
                score.hits += 1;
                policy.found(page, tag, &mut memory)
            }
            None => {
                score.misses += 1;
                policy.missed(page, &mut memory)
            }
        };
        memory.put(page, None);
        for (page, tag) in brought {
            assert!(page < PAGES, "page {page} is outside of the region");
            if memory.on_swap(page) {
                memory.put(page, Some(tag));
            }
        }
        while let Some(unused) = memory.shrink() {
            if let Some(tag) = unused {
                score.wasted += 1;
                policy.dropped(tag);
            }
        }
    }
    score.wasted += memory.pages.values().filter(|(_, unused)| unused.is_some()).count() as u64;
    score
}

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

fn ours(pattern: &Pattern) -> Score {
    run(&mut Ours::new(), &pattern.accesses, &pattern.absent)
}

/// The kernel by slot and by address, in each preset.
fn linux(pattern: &Pattern) -> Vec<(&'static str, bool, Score)> {
    let kinds = Preset::ALL.into_iter().flat_map(|preset| [(preset, false), (preset, true)]);
    kinds
        .map(|(preset, by_address)| {
            let path = SwapInPath::new(preset, Readahead::new(3, by_address));
            let mut policy = Linux { path, state: VmaReadahead::default() };
            (preset.name, by_address, run(&mut policy, &pattern.accesses, &pattern.absent))
        })
        .collect()
}

fn show(pattern: &Pattern) {
    println!("{:34} ours {:?}", pattern.name, ours(pattern));
    for (preset, by_address, score) in linux(pattern).into_iter().filter(|(preset, ..)| *preset == "6.18") {
        println!("{:34} {preset} {} {score:?}", "", if by_address { "by address" } else { "by slot" });
    }
}

#[test]
fn streams_beat_the_kernel_where_the_next_page_can_be_foreseen() {
    for pattern in foreseeable() {
        show(&pattern);
        let ours = ours(&pattern);
        for (preset, by_address, theirs) in linux(&pattern) {
            let who = (pattern.name, preset, by_address);
            assert!(ours.hits > theirs.hits, "{who:?}: {ours:?}, {theirs:?}");
            assert!(ours.misses < theirs.misses, "{who:?}: {ours:?}, {theirs:?}");
            assert!(ours.wasted <= theirs.wasted, "{who:?}: {ours:?}, {theirs:?}");
        }
    }
}

#[test]
fn where_it_cannot_be_foreseen_nearly_nothing_is_read_along() {
    for pattern in unforeseeable() {
        show(&pattern);
        let ours = ours(&pattern);
        assert!((ours.hits + ours.wasted) * 200 < ours.misses, "{}: {ours:?}", pattern.name);
        for (preset, by_address, theirs) in linux(&pattern) {
            assert!(ours.wasted <= theirs.wasted, "{} {preset} {by_address}: {ours:?}, {theirs:?}", pattern.name);
        }
    }
}
