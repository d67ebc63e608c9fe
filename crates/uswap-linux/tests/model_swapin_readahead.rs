//! The kernel's readahead and the way in, against plain models of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proptest::prelude::*;
use uswap_core::{PageNumber, PageRange};
use uswap_linux::do_swap_page::{AreaFacts, Caller, Read, SwapBooks, SwapInPath, SwappedIn};
use uswap_linux::swap_entry::SwapEntry;
use uswap_linux::swapin_readahead::{
    ClusterReadahead, HitLedger, Mapping, Preset, Readahead, VmaReadahead, check_reads, check_window,
};

const CASES: u32 = 10_000;

/// The window rule, counted out.
fn plain_window(previous: u64, current: u64, hits: u32, max: u32, last: u32) -> u32 {
    let mut pages = 4;
    while pages < hits + 2 {
        pages *= 2;
    }
    if hits == 0 {
        pages = if current == previous + 1 || current + 1 == previous { 2 } else { 1 };
    }
    if pages > max {
        pages = max;
    }
    if pages < last / 2 {
        pages = last / 2;
    }
    pages
}

#[derive(Clone)]
struct PlainCluster {
    page_cluster: u32,
    hits: u32,
    previous: u64,
    last: u32,
}

impl PlainCluster {
    fn miss(&mut self, slot: u64, slots: u64) -> (u32, Range<u64>) {
        if self.page_cluster == 0 {
            return (1, slot..slot + 1);
        }
        let window = plain_window(self.previous, slot, self.hits, 2u32.pow(self.page_cluster), self.last);
        if self.hits == 0 {
            self.previous = slot;
        }
        self.hits = 0;
        self.last = window;
        let start = slot / u64::from(window) * u64::from(window);
        (window, start.max(1)..(start + u64::from(window)).min(slots))
    }
}

/// Not packed: a mapping without faults has had four hits.
#[derive(Clone)]
struct PlainVma {
    hits: u32,
    previous: u64,
    last: u32,
}

impl PlainVma {
    const NEW: Self = Self { hits: 4, previous: 0, last: 0 };

    fn found(&mut self, page: u64, ahead: bool) {
        self.hits += u32::from(ahead);
        self.previous = page;
    }

    fn miss(&mut self, page: u64, region: Range<u64>, page_cluster: u32) -> (u32, Range<u64>) {
        if page_cluster == 0 {
            return (1, page..page + 1);
        }
        let window = plain_window(self.previous, page, self.hits, 2u32.pow(page_cluster.min(5)), self.last);
        let forward = page == self.previous + 1;
        let backward = page + 1 == self.previous;
        *self = Self { hits: 0, previous: page, last: window };
        let pages: Vec<u64> = (page.saturating_sub(100)..page + 100)
            .filter(|&other| {
                let (before, after) = (page.saturating_sub(other), other.saturating_sub(page));
                let window = u64::from(window);
                let inside = match (forward, backward) {
                    (true, _) => before == 0 && after < window,
                    (_, true) => after == 0 && before < window,
                    _ => before <= (window - 1) / 2 && after < window - (window - 1) / 2,
                };
                inside && region.contains(&other) && other / 512 == page / 512
            })
            .collect();
        (window, pages[0]..pages[pages.len() - 1] + 1)
    }
}

#[derive(Clone, Debug)]
enum Touch {
    Miss(u64),
    Hit,
    NoHit,
}

/// Misses are mostly near each other.
fn touches(limit: u64) -> impl Strategy<Value = Vec<Touch>> {
    let miss = (0..limit, any::<bool>());
    let touch = prop_oneof![
        2 => miss.prop_map(move |(at, near)| Touch::Miss(if near { at % 16 } else { at })),
        2 => Just(Touch::Hit),
        1 => Just(Touch::NoHit),
    ];
    proptest::collection::vec(touch, 1..60)
}

const SLOTS: u64 = 40;
const FIRST_PAGE: u64 = 500;

/// A machine with one area and one mapping that crosses a page table's end. Each page names a slot.
struct Plain {
    preset: Preset,
    by_address: bool,
    page_cluster: u32,
    cluster: PlainCluster,
    vma: PlainVma,
    facts: AreaFacts,
    slot_of: Vec<u64>,
    counts: BTreeMap<u64, u32>,
    /// Cached slots, and whether readahead brought them.
    cache: BTreeMap<u64, bool>,
    hits: HitLedger,
}

/// What happened, the window if there was one, and the slots to read.
type Answer = (SwappedIn, Option<(u32, Range<u64>)>, Vec<u64>);

#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Fault,
    Shmem,
    Swapoff,
}

impl Plain {
    fn found(&mut self, slot: u64, page: u64, by_address: bool) {
        let ahead = std::mem::take(self.cache.get_mut(&slot).unwrap());
        if by_address {
            self.vma.found(page, ahead);
        } else {
            self.cluster.hits += u32::from(ahead);
        }
    }

    /// What happens when `page` is wanted, in the words of the specification.
    fn wants(&mut self, page: u64, by: By) -> Answer {
        let slot = self.slot_of[(page - FIRST_PAGE) as usize];
        let by_address = self.by_address
            && match by {
                By::Fault => true,
                By::Shmem => false,
                By::Swapoff => !self.preset.swapoff_by_cluster,
            };
        let cached = self.cache.contains_key(&slot);
        let (looks, counts, bypasses) = match by {
            By::Fault | By::Shmem => (true, true, true),
            By::Swapoff => {
                (self.preset.swapoff_looks_first, self.preset.swapoff_counts_hits, self.preset.swapoff_bypasses)
            }
        };
        if cached && looks {
            if counts {
                self.found(slot, page, by_address);
            }
            return (SwappedIn::Hit, None, vec![]);
        }
        if bypasses && self.facts.synchronous && self.counts[&slot] == 1 {
            return (SwappedIn::Bypass, None, vec![]);
        }
        let readable = |slot: &u64| *slot != 0 && self.counts[slot] > 0 && !self.cache.contains_key(slot);
        let region = FIRST_PAGE..FIRST_PAGE + self.slot_of.len() as u64;
        let (window, range, slots): (_, _, Vec<u64>) = if by_address {
            let (window, range) = self.vma.miss(page, region, self.page_cluster);
            let named = range.clone().map(|page| self.slot_of[(page - FIRST_PAGE) as usize]);
            (window, range, named.collect())
        } else if let Some(block) = self.preset.going_off_block.filter(|_| self.facts.going_off) {
            // The area is smaller than a block.
            (block, 1..SLOTS, (1..SLOTS).collect())
        } else {
            let (window, range) = self.cluster.miss(slot, SLOTS);
            (window, range.clone(), range.collect())
        };
        let mut once = BTreeSet::new();
        let reads = slots.into_iter().filter(readable).filter(|&slot| once.insert(slot)).collect();
        let outcome = if cached {
            SwappedIn::Hit
        } else if self.counts[&slot] == 0 {
            SwappedIn::Gone
        } else {
            SwappedIn::Miss
        };
        (outcome, Some((window, range)), reads)
    }
}

struct Books<'a>(&'a mut Plain, BTreeMap<u64, bool>);

impl SwapBooks for Books<'_> {
    fn area(&self, area: u8) -> Option<AreaFacts> {
        (area == 3).then_some(self.0.facts)
    }

    fn count(&self, entry: SwapEntry) -> u32 {
        self.0.counts[&entry.slot]
    }

    fn is_cached(&self, entry: SwapEntry) -> bool {
        self.1.contains_key(&entry.slot)
    }

    fn take_ahead(&mut self, entry: SwapEntry) -> bool {
        std::mem::take(self.1.get_mut(&entry.slot).unwrap())
    }

    fn swap_pte(&self, page: PageNumber) -> Option<SwapEntry> {
        let slot = self.0.slot_of[(page.0 - FIRST_PAGE) as usize];
        Some(SwapEntry { area: 3, slot })
    }
}

fn wants() -> impl Strategy<Value = Vec<(u64, By, bool)>> {
    let by = prop_oneof![4 => Just(By::Fault), 1 => Just(By::Shmem), 4 => Just(By::Swapoff)];
    // The step to the next page: mostly the next one.
    let step = prop_oneof![6 => Just(1u64), 1 => Just(23), 2 => 0..24u64];
    proptest::collection::vec((step, by, any::<bool>()), 1..50)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn cluster_readahead_is_its_rules(page_cluster in 0..6u32, touches in touches(400)) {
        let mut real = ClusterReadahead::new(page_cluster);
        let mut plain = PlainCluster { page_cluster, hits: 4, previous: 0, last: 0 };
        for touch in touches {
            let last = plain.last;
            match touch {
                Touch::Miss(slot) => {
                    let block = real.miss(slot + 1, 300.max(slot + 2));
                    let expected = plain.miss(slot + 1, 300.max(slot + 2));
                    prop_assert_eq!((block.window, block.slots.clone()), expected);
                    prop_assert!(check_window(block.window, 1 << page_cluster, last).is_ok());
                    prop_assert!(block.slots.contains(&(slot + 1)));
                    prop_assert!(check_reads(&block.slots, block.slots.clone(), |_| true).is_ok());
                }
                Touch::Hit => {
                    real.hit();
                    plain.hits += 1;
                }
                Touch::NoHit => {}
            }
        }
    }

    #[test]
    fn vma_readahead_packs_nothing_away(page_cluster in 0..8u32, start in 0..600u64, touches in touches(700)) {
        let region = PageRange { start: PageNumber(start), pages: 700 };
        let (mut real, mut plain) = (VmaReadahead::default(), PlainVma::NEW);
        let mut at = start;
        for touch in touches {
            match touch {
                Touch::Miss(offset) => {
                    at = start + offset;
                    let last = plain.last;
                    let window = real.miss(PageNumber(at), region, page_cluster);
                    prop_assert_eq!((window.window, window.pages.clone()), plain.miss(at, start..start + 700, page_cluster));
                    prop_assert!(window.pages.contains(&at));
                    prop_assert!(check_window(window.window, 1 << page_cluster.min(5), last).is_ok());
                }
                Touch::Hit | Touch::NoHit => {
                    at = (at + 1).min(start + 699);
                    let ahead = matches!(touch, Touch::Hit);
                    real.found(PageNumber(at), ahead);
                    plain.found(at, ahead);
                }
            }
        }
    }

    #[test]
    fn the_way_in_is_its_rules(
        preset in 0..Preset::ALL.len(),
        by_address in any::<bool>(),
        page_cluster in 0..5u32,
        synchronous in any::<bool>(),
        going_off in any::<bool>(),
        slot_of in proptest::collection::vec(1..SLOTS, 24),
        wants in wants(),
    ) {
        let preset = Preset::ALL[preset];
        let mut counts: BTreeMap<u64, u32> = (0..SLOTS).map(|slot| (slot, 0)).collect();
        slot_of.iter().for_each(|slot| *counts.get_mut(slot).unwrap() += 1);
        let facts = AreaFacts { slots: SLOTS, synchronous, going_off };
        let mut plain = Plain {
            preset,
            by_address,
            page_cluster,
            cluster: PlainCluster { page_cluster, hits: 4, previous: 0, last: 0 },
            vma: PlainVma::NEW,
            facts,
            slot_of,
            counts,
            cache: BTreeMap::new(),
            hits: HitLedger::default(),
        };
        let mut real = SwapInPath::new(preset, Readahead::new(page_cluster, by_address));
        let mut state = VmaReadahead::default();
        let region = PageRange { start: PageNumber(FIRST_PAGE), pages: 24 };
        let mut at = 0;
        for (step, by, drops) in wants {
            at = (at + step) % 24;
            let page = FIRST_PAGE + at;
            let slot = plain.slot_of[at as usize];
            let before = plain.cache.clone();
            let hits_before = real.readahead.swap_ra_hit();
            let expected = plain.wants(page, by);
            let mapping = Mapping { state: &mut state, region, page: PageNumber(page) };
            let caller = match by {
                By::Fault => Caller::Fault(mapping),
                By::Shmem => Caller::Shmem,
                By::Swapoff => Caller::Swapoff(mapping),
            };
            let mut reads: Vec<Read> = Vec::new();
            let mut books = Books(&mut plain, before);
            let answer = real.swap_in(SwapEntry { area: 3, slot }, caller, &mut books, &mut reads);
            let cache = books.1;
            prop_assert_eq!(&cache, &plain.cache, "the same flags were taken");
            let window = answer.window.map(|window| (window.size(), window.range()));
            let slots: Vec<u64> = reads.iter().map(|read| read.entry.slot).collect();
            prop_assert_eq!((answer.outcome, window, slots), expected);
            if real.readahead.swap_ra_hit() > hits_before {
                prop_assert!(plain.hits.hit(slot).is_ok());
            }
            for read in reads {
                prop_assert_eq!(read.ahead, read.entry.slot != slot);
                plain.cache.insert(read.entry.slot, read.ahead);
                if read.ahead {
                    plain.hits.brought(read.entry.slot);
                }
            }
            // The page is mapped; sometimes that was the slot's last use.
            if drops && answer.outcome != SwappedIn::Gone {
                let count = plain.counts.get_mut(&slot).unwrap();
                *count = count.saturating_sub(1);
                if *count == 0 {
                    plain.cache.remove(&slot);
                    plain.hits.dropped(slot);
                }
            }
        }
    }
}
