//! The test vectors of readahead, through the one entry point.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::swapin_readahead::{HitLedger, VmaReadahead, check_reads, check_window};
use uswap_core::units::PageRange;

const FIRST_PAGE: u64 = 512;

/// One mapping whose pages are all on area 0, each once.
struct Machine {
    path: SwapInPath,
    /// Slot of each page, from `FIRST_PAGE` on.
    slots: Vec<u64>,
    facts: AreaFacts,
    counts: BTreeMap<u64, u32>,
    /// Cached slots, and whether readahead brought them.
    cache: BTreeMap<u64, bool>,
    state: VmaReadahead,
    /// Windows by size.
    windows: BTreeMap<u32, u64>,
    reads: Vec<u64>,
    /// Pages of each call that read any.
    batches: Vec<usize>,
    ranges: Vec<core::ops::Range<u64>>,
    bypassed: u64,
    hits: HitLedger,
    last_window: u32,
}

struct Books<'a> {
    slots: &'a [u64],
    facts: AreaFacts,
    counts: &'a BTreeMap<u64, u32>,
    cache: &'a mut BTreeMap<u64, bool>,
    hits: &'a mut HitLedger,
}

impl SwapBooks for Books<'_> {
    fn area(&self, area: u8) -> Option<AreaFacts> {
        (area == 0).then_some(self.facts)
    }

    fn count(&self, entry: SwapEntry) -> u32 {
        self.counts.get(&entry.slot).copied().unwrap_or(0)
    }

    fn is_cached(&self, entry: SwapEntry) -> bool {
        self.cache.contains_key(&entry.slot)
    }

    fn take_ahead(&mut self, entry: SwapEntry) -> bool {
        let ahead = self.cache.get_mut(&entry.slot).map(core::mem::take).expect("asked of cached pages only");
        if ahead {
            self.hits.hit(entry.slot).unwrap();
        }
        ahead
    }

    fn swap_pte(&self, page: PageNumber) -> Option<SwapEntry> {
        let slot = *self.slots.get(page.0.checked_sub(FIRST_PAGE)? as usize)?;
        (self.counts[&slot] > 0).then_some(SwapEntry { area: 0, slot })
    }
}

#[derive(Clone, Copy, PartialEq)]
enum By {
    Fault,
    Swapoff,
    Shmem,
}

impl Machine {
    fn new(preset: Preset, vma: bool, slots: Vec<u64>) -> Self {
        let area = slots.iter().max().unwrap() + 1;
        Self {
            path: SwapInPath::new(preset, Readahead::new(3, vma)),
            counts: slots.iter().map(|&slot| (slot, 1)).collect(),
            slots,
            facts: AreaFacts { slots: area, synchronous: false, going_off: true },
            cache: BTreeMap::new(),
            state: VmaReadahead::default(),
            windows: BTreeMap::new(),
            reads: Vec::new(),
            batches: Vec::new(),
            ranges: Vec::new(),
            bypassed: 0,
            hits: HitLedger::default(),
            last_window: 0,
        }
    }

    /// A page is wanted: reads what it must, then maps it. Swapoff frees the slot.
    fn want(&mut self, index: usize, by: By) -> SwappedIn {
        let (slot, page) = (self.slots[index], PageNumber(FIRST_PAGE + index as u64));
        let entry = SwapEntry { area: 0, slot };
        let region = PageRange { start: PageNumber(FIRST_PAGE), pages: self.slots.len() as u64 };
        let mapping = Mapping { state: &mut self.state, region, page };
        let caller = match by {
            By::Fault => Caller::Fault(mapping),
            By::Swapoff => Caller::Swapoff(mapping),
            By::Shmem => Caller::Shmem,
        };
        let mut books = Books {
            slots: &self.slots,
            facts: self.facts,
            counts: &self.counts,
            cache: &mut self.cache,
            hits: &mut self.hits,
        };
        let mut reads = Vec::new();
        let answer = self.path.swap_in(entry, caller, &mut books, &mut reads);
        if let Some(window) = &answer.window {
            *self.windows.entry(window.size()).or_default() += 1;
            self.ranges.push(window.range());
            if self.path.preset.going_off_block.is_none() {
                check_window(window.size(), 8, self.last_window).unwrap();
                self.last_window = window.size();
            }
            let in_use = |slot| self.counts.get(&slot).is_some_and(|&count| count > 0);
            let (block, asked): (_, Vec<u64>) = match window {
                Window::Slots(block) => (block.slots.clone(), reads.iter().map(|read| read.entry.slot).collect()),
                Window::Pages(pages) => {
                    let named = pages.pages.clone().map(|page| self.slots[(page - FIRST_PAGE) as usize]);
                    let named: BTreeSet<u64> = named.collect();
                    assert!(reads.iter().all(|read| named.contains(&read.entry.slot)));
                    (1..self.facts.slots, reads.iter().map(|read| read.entry.slot).collect())
                }
            };
            check_reads(&block, asked, in_use).unwrap();
        }
        self.batches.extend(Some(reads.len()).filter(|&pages| pages > 0));
        for read in reads {
            let slot = read.entry.slot;
            assert_eq!(self.cache.insert(slot, read.ahead), None, "a cached slot was read");
            self.reads.push(slot);
            if read.ahead {
                self.hits.brought(slot);
            }
        }
        self.bypassed += u64::from(answer.outcome == SwappedIn::Bypass);
        if answer.outcome != SwappedIn::Gone {
            self.cache.remove(&slot);
            self.hits.dropped(slot);
            self.counts.insert(slot, 0);
        }
        answer.outcome
    }

    fn swapoff(mut self) -> Self {
        for index in 0..self.slots.len() {
            assert_ne!(self.want(index, By::Swapoff), SwappedIn::Gone);
        }
        assert!(self.counts.values().all(|&count| count == 0) && self.cache.is_empty());
        assert_eq!(self.reads.len() + self.bypassed as usize, self.slots.len(), "each slot is read once");
        self
    }

    fn calls(&self) -> u64 {
        self.windows.values().sum()
    }

    fn histogram(&self) -> Vec<(u32, u64)> {
        self.windows.iter().rev().map(|(&size, &calls)| (size, calls)).collect()
    }
}

fn in_order(pages: u64) -> Vec<u64> {
    (1..=pages).collect()
}

fn cluster(preset: Preset, slots: Vec<u64>) -> Machine {
    Machine::new(preset, false, slots).swapoff()
}

fn by_address(preset: Preset, pages: u64) -> Machine {
    Machine::new(preset, true, in_order(pages)).swapoff()
}

/// A permutation that has no neighbours left beside each other.
fn scattered(pages: u64) -> Vec<u64> {
    let mut slots = in_order(pages);
    let mut seed = 88_172_645_463_325_252u64;
    for last in (1..slots.len()).rev() {
        for shift in [13, -7, 17] {
            seed ^= if shift > 0 { seed << shift } else { seed >> -shift };
        }
        slots.swap(last, seed as usize % (last + 1));
    }
    slots
}

#[test]
fn t3a_sixty_four_slots_in_order() {
    let old = cluster(Preset::LINUX_5_1, in_order(64));
    assert_eq!(old.histogram(), [(8, 1), (4, 1), (2, 62)]);
    assert_eq!(old.calls(), 64);
    let new = cluster(Preset::LINUX_5_8, in_order(64));
    assert_eq!(new.histogram(), [(8, 9)]);
    let blocks: Vec<_> = (0..9).map(|block| (block * 8).max(1)..(block * 8 + 8).min(65)).collect();
    assert_eq!(new.ranges, blocks);
}

#[test]
fn t3b_four_thousand_slots_in_order() {
    assert_eq!(cluster(Preset::LINUX_5_1, in_order(4096)).histogram(), [(8, 1), (4, 1), (2, 4094)]);
    assert_eq!(cluster(Preset::LINUX_5_8, in_order(4096)).histogram(), [(8, 513)]);
}

#[test]
fn t3c_slots_in_reverse_order() {
    let slots = (1..=4096).rev().collect();
    assert_eq!(cluster(Preset::LINUX_5_8, slots).histogram(), [(8, 513), (4, 1)]);
}

#[test]
fn t3d_scattered_slots_collapse_the_window() {
    let slots = (0..4096).map(|index| 1 + index % 256 * 16 + index / 256).collect();
    assert_eq!(cluster(Preset::LINUX_5_8, slots).histogram(), [(8, 7), (4, 11), (2, 10), (1, 4028)]);
}

#[test]
fn t3f_a_mapping_in_order() {
    assert_eq!(by_address(Preset::LINUX_5_8, 1024).histogram(), [(8, 129), (4, 1)]);
    assert_eq!(by_address(Preset::LINUX_5_1, 1024).histogram(), [(8, 1), (4, 1), (2, 1022)]);
}

#[test]
fn t3f_prime_without_hits_windows_come_from_adjacency_alone() {
    let small = cluster(Preset::LINUX_6_18, in_order(64));
    assert_eq!(small.histogram(), [(8, 1), (4, 1), (2, 27), (1, 13)]);
    assert_eq!(small.calls(), 42);
    let large = cluster(Preset::LINUX_6_18, in_order(4096));
    assert_eq!(large.histogram(), [(8, 1), (4, 1), (2, 2043), (1, 1021)]);
    assert_eq!(large.calls(), 3066);
    assert_eq!(by_address(Preset::LINUX_6_18, 1024).histogram(), [(8, 1), (4, 1), (2, 339), (1, 338)]);
}

#[test]
fn t8a_slots_in_order_are_read_in_blocks_of_two_and_since_the_fix_of_eight() {
    let blocks = |first: usize, size: usize, count: usize| {
        let mut batches = vec![first];
        batches.extend(core::iter::repeat_n(size, count));
        batches.push(1);
        batches
    };
    assert_eq!(cluster(Preset::LINUX_5_1, in_order(4096)).batches, blocks(7, 2, 2044));
    assert_eq!(cluster(Preset::LINUX_5_8, in_order(4096)).batches, blocks(7, 8, 511));
}

#[test]
fn t8b_a_random_permutation_leaves_nearly_all_windows_at_one() {
    for preset in [Preset::LINUX_5_1, Preset::LINUX_5_8] {
        let machine = cluster(preset, scattered(4096));
        assert!(machine.windows[&1] * 10 > machine.calls() * 9, "{}: {:?}", preset.name, machine.histogram());
    }
}

#[test]
fn t8c_blocks_of_2_mib_read_each_slot_once_and_each_block_in_one_call() {
    let machine = Machine::new(Preset::PROPOSED_2024_BLOCKS, true, scattered(4096)).swapoff();
    assert_eq!(machine.histogram(), [(512, 9)], "slots 1 to 4096 lie in nine blocks");
    assert_eq!(machine.reads.len(), 4096);
}

#[test]
fn a_hit_a_bypass_and_a_miss_are_told_apart() {
    let mut machine = Machine::new(Preset::LINUX_5_8, true, in_order(64));
    assert_eq!(machine.want(0, By::Fault), SwappedIn::Miss);
    assert_eq!(machine.want(1, By::Fault), SwappedIn::Hit);
    machine.facts.synchronous = true;
    assert_eq!(machine.want(40, By::Fault), SwappedIn::Bypass);
    assert_eq!(machine.want(40, By::Fault), SwappedIn::Gone, "the slot is free");
    machine.counts.insert(machine.slots[50], 2);
    assert_eq!(machine.want(50, By::Fault), SwappedIn::Miss, "somebody else will ask for it too");
    assert_eq!(machine.want(30, By::Shmem), SwappedIn::Bypass);
}

#[test]
fn swapoff_reads_synchronous_areas_with_readahead_except_as_proposed_in_2024() {
    for (preset, expected) in [
        (Preset::LINUX_5_1, SwappedIn::Miss),
        (Preset::LINUX_5_8, SwappedIn::Miss),
        (Preset::LINUX_6_18, SwappedIn::Miss),
        (Preset::PROPOSED_2024, SwappedIn::Bypass),
    ] {
        let mut machine = Machine::new(preset, true, in_order(64));
        machine.facts.synchronous = true;
        assert_eq!(machine.want(20, By::Swapoff), expected, "{}", preset.name);
    }
}

#[test]
fn faults_count_their_hits_in_every_era() {
    for preset in Preset::ALL {
        let mut machine = Machine::new(preset, true, in_order(64));
        (0..5).for_each(|index| assert_ne!(machine.want(index, By::Fault), SwappedIn::Gone));
        assert_eq!(machine.path.readahead.swap_ra_hit(), 4, "{}", preset.name);
        assert_eq!(machine.path.readahead.swap_ra(), 4);
    }
}

#[test]
fn an_area_that_is_off_and_a_free_slot_are_gone() {
    let mut machine = Machine::new(Preset::LINUX_5_8, false, in_order(64));
    machine.counts.insert(9, 0);
    assert_eq!(machine.want(8, By::Fault), SwappedIn::Gone);
    let mut books = Books {
        slots: &machine.slots,
        facts: machine.facts,
        counts: &machine.counts,
        cache: &mut machine.cache,
        hits: &mut machine.hits,
    };
    let entry = SwapEntry { area: 1, slot: 9 };
    let answer = machine.path.swap_in(entry, Caller::Shmem, &mut books, &mut vec![]);
    assert_eq!(answer, SwapIn { outcome: SwappedIn::Gone, window: None });
}

#[test]
fn pages_that_share_a_slot_read_it_once() {
    let mut machine = Machine::new(Preset::LINUX_5_8, true, vec![5, 6, 6, 7]);
    machine.counts.insert(6, 2);
    let _ = machine.want(0, By::Fault);
    assert_eq!(machine.reads, [5, 6, 7]);
}
