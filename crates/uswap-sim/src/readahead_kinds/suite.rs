//! The patterns that readahead is compared on.

use std::collections::{BTreeMap, BTreeSet};

use uswap_core::{LEAF_PAGES, PageNumber, PageRange};

use crate::trace::Access;

/// Pages of each pattern.
pub const PAGES: u64 = 1 << 14;
/// Pages of memory.
pub const MEMORY: usize = 1 << 12;

/// Accesses to memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Pattern {
    /// What it is called.
    pub name: String,
    /// Mappings, in ascending order. Each is a region to readahead by address.
    pub regions: Vec<PageRange>,
    /// The pages that are used, in order.
    pub accesses: Vec<u64>,
    /// Pages of regions that are not on swap.
    pub absent: BTreeSet<u64>,
}

impl Pattern {
    /// The accesses of a program. Each process has its own regions; a gap of 2 MiB or more between pages that are used ends
    /// one, and is left out. What lies in shorter gaps is not on swap.
    pub fn of(name: &str, accesses: impl Iterator<Item = Access>) -> Self {
        let accesses: Vec<(u32, u64)> = accesses.map(|access| (access.process, access.page)).collect();
        let mut places: BTreeMap<(u32, u64), u64> = accesses.iter().map(|&page| (page, 0)).collect();
        let (mut regions, mut absent) = (Vec::<PageRange>::new(), BTreeSet::new());
        let mut last = None;
        for (&(process, page), place) in &mut places {
            let gap = last.filter(|&(before, _)| before == process).map(|(_, before)| page - before);
            last = Some((process, page));
            match (gap, regions.last_mut()) {
                (Some(gap), Some(region)) if gap < LEAF_PAGES as u64 => {
                    absent.extend(region.end().0..region.end().0 + gap - 1);
                    region.pages += gap;
                }
                (_, before) => {
                    // No window of the engine reaches from one region into the next.
                    let start = before.map_or(0, |before| (before.end().0 + 1).next_multiple_of(LEAF_PAGES as u64));
                    regions.push(PageRange { start: PageNumber(start), pages: 1 });
                }
            }
            *place = regions[regions.len() - 1].end().0 - 1;
        }
        Self { name: name.to_owned(), regions, accesses: accesses.iter().map(|page| places[page]).collect(), absent }
    }

    /// Pages that are on swap at first.
    pub fn on_swap(&self) -> impl Iterator<Item = u64> + '_ {
        let pages = self.regions.iter().flat_map(|region| region.start.0..region.end().0);
        pages.filter(|page| !self.absent.contains(page))
    }

    /// The region of `page`.
    pub fn region_of(&self, page: u64) -> Option<usize> {
        let index = self.regions.partition_point(|region| region.start.0 <= page).checked_sub(1)?;
        (page < self.regions[index].end().0).then_some(index)
    }

    /// The page behind the last one.
    pub fn end(&self) -> u64 {
        self.regions.last().map_or(0, |region| region.end().0)
    }
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

fn one_region() -> Vec<PageRange> {
    vec![PageRange { start: PageNumber(0), pages: PAGES }]
}

fn pattern(name: &str, accesses: impl IntoIterator<Item = u64>) -> Pattern {
    Pattern {
        name: name.to_owned(),
        regions: one_region(),
        accesses: accesses.into_iter().collect(),
        absent: BTreeSet::new(),
    }
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
pub fn foreseeable() -> Vec<Pattern> {
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
        Pattern { name: "sequential with holes".to_owned(), regions: one_region(), accesses: present, absent },
    ]
}

/// Patterns that cannot.
pub fn unforeseeable() -> Vec<Pattern> {
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
pub fn foreseeable_in_part() -> Vec<Pattern> {
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

/// All of them.
pub fn all() -> Vec<Pattern> {
    [foreseeable(), foreseeable_in_part(), unforeseeable()].concat()
}
