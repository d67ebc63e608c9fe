use alloc::collections::BTreeMap;

use super::*;
use crate::swapin_readahead::Readahead;
use crate::swapped_memory::tests::{in_order, machine};
use crate::swapped_memory::{AreaTable, Pte, SwappedMemory};
use proptest::prelude::*;
use uswap_core::units::{PageNumber, PageRange};

fn path(era: SwapoffEra, by_address: bool) -> SwapInPath {
    SwapInPath::new(era.preset(), Readahead::new(3, by_address))
}

/// One mapping whose page order is a permutation of slot order.
fn permuted(pages: u64, slot_of: impl Fn(u64) -> u64) -> SwappedMemory {
    let mut memory = machine(&[(pages + 1).max(1024)], false);
    memory.add_space();
    let mapping = memory.add_mapping(PageRange { start: PageNumber(512), pages });
    let slots: Vec<_> = (0..pages).map(|_| memory.areas_mut().alloc(0, 0, &mut ()).unwrap()).collect();
    for page in 0..pages {
        let entry = slots[slot_of(page) as usize];
        memory.swap_out_to(Place { mapping, page: PageNumber(512 + page) }, entry);
        memory.drop_from_cache(entry);
    }
    memory
}

fn scattered(pages: u64) -> SwappedMemory {
    // An odd factor and a power of two: every slot once, neighbours far apart.
    assert!(pages.is_power_of_two());
    permuted(pages, |page| page.wrapping_mul(2_654_435_761) % pages)
}

/// What a swapoff did, summed up.
#[derive(Default, Debug)]
struct Told {
    result: Option<Result<(), Errno>>,
    /// Slots of each submission.
    submissions: Vec<u32>,
    windows: BTreeMap<u32, u64>,
    slots_read: BTreeMap<SwapEntry, u32>,
    reads: u64,
    files: SearchSteps,
    searched_ptes: u64,
    scanned_ptes: u64,
    mapped: u64,
    into_files: u64,
    relocated: u64,
    freed: u64,
    passes: u64,
}

impl Told {
    fn note(&mut self, op: Op) {
        match op {
            Op::Read { area, first, slots, .. } => {
                self.reads += 1;
                *self.submissions.last_mut().unwrap() += slots;
                for slot in first..first + u64::from(slots) {
                    *self.slots_read.entry(SwapEntry { area, slot }).or_default() += 1;
                }
            }
            Op::Submit => self.submissions.push(0),
            Op::Window { pages, .. } => *self.windows.entry(pages).or_default() += 1,
            Op::SearchFiles(steps) => self.files += steps,
            Op::SearchPtes { ptes } => self.searched_ptes += ptes,
            Op::ScanPtes { ptes } => self.scanned_ptes += ptes,
            Op::Map { .. } => self.mapped += 1,
            Op::IntoFile { .. } => self.into_files += 1,
            Op::Relocate { pages } => self.relocated += pages,
            Op::Free { slots } => self.freed += slots,
            Op::PassOver { .. } => self.passes += 1,
            Op::ScanMap { .. } | Op::Lookup { .. } | Op::ReadDirect { .. } | Op::Wait { .. } => {}
        }
    }

    fn end(&mut self, result: Option<Result<(), Errno>>) {
        self.submissions.pop();
        self.result = result;
    }
}

fn take_out(memory: &mut SwappedMemory) {
    memory.areas_mut().swapoff_begin(Ok(0), true, u64::MAX).unwrap();
}

fn swapoff(memory: &mut SwappedMemory, era: SwapoffEra, by_address: bool) -> Told {
    take_out(memory);
    let mut path = path(era, by_address);
    let mut swapoff = Swapoff::new(era, 0);
    let mut told = Told { submissions: alloc::vec![0], ..Told::default() };
    while let Some(op) = swapoff.next_op(memory, &mut path) {
        told.note(op);
    }
    told.end(swapoff.result());
    told
}

fn drain(memory: &mut SwappedMemory) -> Told {
    take_out(memory);
    let mut drain = TableDrain::new(0);
    let mut told = Told { submissions: alloc::vec![0], ..Told::default() };
    while let Some(op) = drain.next_op(&mut AreaTable::new(memory, 0)) {
        told.note(op);
    }
    told.end(drain.result());
    told
}

fn assert_off(memory: &SwappedMemory) {
    assert_eq!(memory.check_off(0), Ok(()));
    assert_eq!(memory.check(), Ok(()));
}

#[test]
fn t8a_in_order_the_old_code_reads_blocks_of_two_and_the_new_of_eight() {
    for (era, size, count) in [(SwapoffEra::V5_2, 2, 2044), (SwapoffEra::V5_8, 8, 511)] {
        let mut memory = in_order(4096, 8192);
        let told = swapoff(&mut memory, era, false);
        let mut expected = alloc::vec![7];
        expected.extend(core::iter::repeat_n(size, count));
        expected.push(1);
        assert_eq!(told.submissions, expected, "{}", era.name());
        assert_eq!((told.result, told.mapped, told.freed), (Some(Ok(())), 4096, 4096));
        assert_off(&memory);
    }
}

#[test]
fn t3b_windows_of_the_old_and_of_the_new_code() {
    let windows = |era| swapoff(&mut in_order(4096, 8192), era, false).windows;
    assert_eq!(windows(SwapoffEra::V5_2), BTreeMap::from([(8, 1), (4, 1), (2, 4094)]));
    assert_eq!(windows(SwapoffEra::V5_8), BTreeMap::from([(8, 513)]));
    let without_hits = BTreeMap::from([(2, 2043), (1, 1021), (8, 1), (4, 1)]);
    assert_eq!(windows(SwapoffEra::V6_18), without_hits);
}

#[test]
fn t8b_scattered_slots_leave_windows_of_one() {
    for era in [SwapoffEra::V5_2, SwapoffEra::V5_8] {
        let told = swapoff(&mut scattered(4096), era, false);
        let calls: u64 = told.windows.values().sum();
        assert!(told.windows[&1] * 10 > calls * 9, "{}: {:?}", era.name(), told.windows);
    }
}

#[test]
fn t8c_blocks_of_2_mib_read_each_slot_once_and_each_block_in_one_call() {
    let mut memory = scattered(4096);
    let told = swapoff(&mut memory, SwapoffEra::Proposed2024Blocks, true);
    assert_eq!(told.submissions.len(), 9, "slots 1 to 4096 lie in nine blocks");
    assert_eq!((told.reads, told.slots_read.len()), (9, 4096));
    assert!(told.slots_read.values().all(|&times| times == 1));
    assert_off(&memory);
}

#[test]
fn t8d_a_signal_ends_it_and_no_page_is_lost() {
    for era in SwapoffEra::ALL {
        let mut memory = in_order(64, 1024);
        let totals = memory.areas().meminfo();
        take_out(&mut memory);
        let (mut path, mut swapoff) = (path(era, false), Swapoff::new(era, 0));
        let mut mapped = 0;
        while let Some(op) = swapoff.next_op(&mut memory, &mut path) {
            mapped += u64::from(matches!(op, Op::Map { .. }));
            if mapped == 20 {
                swapoff.interrupt();
            }
        }
        assert_eq!((swapoff.result(), mapped), (Some(Err(Errno::EINTR)), 20), "{}", era.name());
        memory.areas_mut().swapoff_failed(0);
        assert_eq!(memory.areas().meminfo().0, totals.0);
        assert!(memory.areas_mut().alloc(0, 0, &mut ()).is_ok(), "the area is usable again");
        let present =
            (512..576).filter(|&page| memory.pte(Place { mapping: 0, page: PageNumber(page) }) == Pte::Present);
        assert_eq!(present.count(), 20);
        assert_eq!(memory.check(), Ok(()), "every other page is in its slot");
    }
}

#[test]
fn without_memory_for_a_page_it_ends_with_enomem() {
    for era in SwapoffEra::ALL {
        let mut memory = in_order(64, 1024);
        memory.set_room(10);
        let told = swapoff(&mut memory, era, false);
        assert_eq!(told.result, Some(Err(Errno::ENOMEM)), "{}", era.name());
        assert_eq!(told.mapped, 10, "{}: what was read is not lost", era.name());
        assert_eq!(memory.check(), Ok(()));
    }
}

#[test]
fn a_page_that_cannot_be_read_is_poisoned_and_swapoff_goes_on() {
    for era in SwapoffEra::ALL {
        let mut memory = in_order(8, 1024);
        let file = memory.files_mut().add_file();
        memory.files_mut().add_page(file, 0);
        let of_file = memory.swap_out_file(file, 0, 0, &mut ()).unwrap();
        take_out(&mut memory);
        let (mut path, mut swapoff) = (path(era, false), Swapoff::new(era, 0));
        while let Some(op) = swapoff.next_op(&mut memory, &mut path) {
            if let Op::Wait { slot } | Op::ReadDirect { slot } = op
                && (slot == 3 || slot == of_file.slot)
            {
                swapoff.read_failed();
            }
        }
        assert_eq!(swapoff.result(), Some(Ok(())), "{}", era.name());
        let ptes: Vec<_> = (512..520).map(|page| memory.pte(Place { mapping: 0, page: PageNumber(page) })).collect();
        let poisoned: Vec<_> = (0..8).filter(|&page| ptes[page] == Pte::Poisoned).collect();
        assert_eq!((poisoned, ptes.iter().filter(|&&pte| pte == Pte::Present).count()), (alloc::vec![2], 7));
        assert_eq!(memory.files_mut().page(file, 0), Some(FilePage::Poisoned));
        assert_off(&memory);
    }
}

/// A slot that nobody on the list refers to: its address space is being taken down.
fn with_a_slot_held_by_an_exiting_space() -> SwappedMemory {
    let mut memory = in_order(8, 1024);
    let entry = memory.areas_mut().alloc(0, 0, &mut ()).unwrap();
    memory.areas_mut().duplicate(entry).unwrap();
    memory.drop_from_cache(entry);
    memory
}

#[test]
fn the_first_5_1_gives_up_after_three_passes() {
    let mut memory = with_a_slot_held_by_an_exiting_space();
    let told = swapoff(&mut memory, SwapoffEra::V5_1, false);
    assert_eq!((told.result, told.passes, told.mapped), (Some(Err(Errno::EBUSY)), 2, 8));
}

#[test]
fn later_ones_go_on_until_the_slot_is_given_back() {
    for era in [SwapoffEra::V3_0, SwapoffEra::V5_2, SwapoffEra::V6_18] {
        let mut memory = with_a_slot_held_by_an_exiting_space();
        take_out(&mut memory);
        let (mut path, mut swapoff) = (path(era, false), Swapoff::new(era, 0));
        let mut passes = 0;
        while let Some(op) = swapoff.next_op(&mut memory, &mut path) {
            passes += u64::from(matches!(op, Op::PassOver { .. }));
            if passes == 10 && matches!(op, Op::PassOver { .. }) {
                let _ = memory.areas_mut().put(SwapEntry { area: 0, slot: 9 });
            }
        }
        assert_eq!(swapoff.result(), Some(Ok(())), "{}", era.name());
        assert_off(&memory);
    }
}

#[test]
fn what_only_the_swap_cache_holds_is_found_by_the_walk_through_the_map() {
    for era in SwapoffEra::ALL {
        let mut memory = in_order(8, 1024);
        memory.areas_mut().alloc(0, 0, &mut ()).unwrap();
        let told = swapoff(&mut memory, era, false);
        assert_eq!((told.result, told.mapped, told.freed), (Some(Ok(())), 8, 9), "{}", era.name());
        assert_off(&memory);
    }
}

#[test]
fn by_slot_each_search_begins_at_the_first_page_table_entry() {
    let n = 200;
    let told = swapoff(&mut in_order(n, 1024), SwapoffEra::V3_1, false);
    assert_eq!((told.searched_ptes, told.submissions.len()), (n * (n + 1) / 2, 200));
    assert!(told.submissions.iter().all(|&slots| slots == 1), "one page at a time");
}

#[test]
fn by_slot_the_search_begins_at_the_address_space_of_the_last_hit() {
    let mut memory = machine(&[1024], false);
    for _ in 0..2 {
        memory.add_space();
        memory.add_mapping(PageRange { start: PageNumber(0), pages: 100 });
    }
    for mapping in [1, 1, 0] {
        let free = (0..).find(|&page| memory.pte(Place { mapping, page: PageNumber(page) }) == Pte::None).unwrap();
        memory.swap_out(Place { mapping, page: PageNumber(free) }, 0, &mut ()).unwrap();
    }
    let told = swapoff(&mut memory, SwapoffEra::V3_1, false);
    // Through the first space, then the second twice from its start, then past the second to the first.
    assert_eq!(told.searched_ptes, (100 + 1) + 2 + (100 + 1));
}

/// A file with `pages` pages in slot order.
fn file_in_order(pages: u64) -> SwappedMemory {
    let mut memory = machine(&[(2 * pages).next_multiple_of(512)], false);
    let file = memory.files_mut().add_file();
    for index in 0..pages {
        memory.files_mut().add_page(file, index);
        memory.swap_out_file(file, index, 0, &mut ()).unwrap();
    }
    memory
}

#[test]
fn t7a_the_search_for_files_is_quadratic_by_slot_and_linear_by_file_and_none_for_us() {
    let n = 1000;
    for (era, visited) in [
        (SwapoffEra::V3_0, n * (n + 1) / 2),
        (SwapoffEra::V3_1Rc, n * (n + 1) / 2),
        (SwapoffEra::V3_1, n * (n + 1) / 2),
        (SwapoffEra::V5_2, n),
        (SwapoffEra::V6_18, n),
    ] {
        let mut memory = file_in_order(n);
        let told = swapoff(&mut memory, era, false);
        assert_eq!((told.files.visited, told.into_files), (visited, n), "{}", era.name());
        assert_off(&memory);
    }
    let mut memory = file_in_order(n);
    let told = drain(&mut memory);
    assert_eq!((told.files, told.relocated, told.reads), (SearchSteps::default(), n, 2));
    assert_off(&memory);
}

#[test]
fn files_are_read_by_slot_whatever_readahead_does_for_mappings() {
    let told = swapoff(&mut file_in_order(4096), SwapoffEra::V5_8, true);
    assert_eq!(told.windows, BTreeMap::from([(8, 513)]));
}

#[test]
fn by_address_each_page_is_a_read_of_its_own() {
    let told = swapoff(&mut in_order(1024, 4096), SwapoffEra::V5_8, true);
    assert_eq!(told.windows, BTreeMap::from([(8, 129), (4, 1)]));
    assert_eq!(told.reads, 1024);
    let old = swapoff(&mut in_order(1024, 4096), SwapoffEra::V5_2, true);
    assert_eq!(old.windows, BTreeMap::from([(2, 1022), (8, 1), (4, 1)]));
}

#[test]
fn ours_reads_an_area_of_any_order_in_blocks_of_2_mib_once() {
    let mut memory = scattered(4096);
    let told = drain(&mut memory);
    assert_eq!((told.reads, told.slots_read.len(), told.relocated, told.freed), (9, 4096, 4096, 4096));
    assert!(told.slots_read.values().all(|&times| times == 1));
    assert_off(&memory);
}

#[test]
fn ours_reads_over_small_holes_and_skips_large_ones() {
    let mut memory = permuted(600, |page| page);
    let mut free = |slots: core::ops::Range<u64>| {
        for slot in slots {
            let _ = memory
                .fault(
                    &mut path(SwapoffEra::V5_8, false),
                    Place { mapping: 0, page: PageNumber(511 + slot) },
                    true,
                    &mut Vec::new(),
                )
                .unwrap();
        }
    };
    free(100..108);
    free(300..309);
    for slot in 1..601 {
        // What readahead brought along to the faults above is dropped again.
        let entry = SwapEntry { area: 0, slot };
        if memory.areas().area(0).map().has_cache(slot) {
            memory.drop_from_cache(entry);
        }
    }
    let told = drain(&mut memory);
    assert_eq!(told.submissions, [299 + 203, 89], "slots 1 to 299, 309 to 511 and 512 to 600");
    assert_eq!((told.reads, told.relocated), (3, 600 - 8 - 9));
}

#[test]
fn ours_ends_at_a_signal_with_every_page_somewhere() {
    let mut memory = scattered(8192);
    take_out(&mut memory);
    let mut drain = TableDrain::new(0);
    let mut relocated = 0;
    while let Some(op) = drain.next_op(&mut AreaTable::new(&mut memory, 0)) {
        if let Op::Relocate { pages } = op {
            relocated += pages;
            drain.interrupt();
        }
    }
    assert_eq!(drain.result(), Some(Err(Errno::EINTR)));
    assert!(relocated < 8192 / 2);
    assert_eq!(memory.areas().area(0).in_use(), 8192 - relocated);
    assert_eq!(memory.check(), Ok(()));
}

/// A mapping of 8192 pages of which a quarter is in memory, after a thread has written at random for a while: each write
/// fault brings one page in and puts another one out.
fn churned() -> SwappedMemory {
    const PAGES: u64 = 8192;
    let mut memory = machine(&[10_240], false);
    memory.add_space();
    let mapping = memory.add_mapping(PageRange { start: PageNumber(512), pages: PAGES });
    let place = |page: u64| Place { mapping, page: PageNumber(512 + page) };
    let mut resident: Vec<u64> = (PAGES * 3 / 4..PAGES).collect();
    for page in 0..PAGES {
        memory.set_present(place(page));
        if page < PAGES * 3 / 4 {
            memory.swap_out(place(page), 0, &mut ()).unwrap();
        }
    }
    let mut no_readahead = SwapInPath::new(SwapoffEra::V5_8.preset(), Readahead::new(0, false));
    let mut state = 88_172_645_463_325_252u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    };
    for _ in 0..4 * PAGES {
        let page = random(PAGES);
        if matches!(memory.pte(place(page)), Pte::Swapped(_)) {
            let _ = memory.fault(&mut no_readahead, place(page), true, &mut Vec::new()).unwrap();
            let victim = random(resident.len() as u64) as usize;
            memory.swap_out(place(resident[victim]), 0, &mut ()).unwrap();
            resident[victim] = page;
        }
    }
    memory
}

#[test]
fn row_6_random_writes_leave_slots_so_that_windows_by_slot_are_one_or_two() {
    let told = swapoff(&mut churned(), SwapoffEra::V5_8, false);
    let calls: u64 = told.windows.values().sum();
    let small = told.windows[&1] + told.windows.get(&2).unwrap_or(&0);
    assert!(small * 10 > calls * 9, "{:?}", told.windows);
    assert!(told.submissions.len() > 6144 * 9 / 10, "nearly every page is a read of its own");
}

#[test]
fn rows_4_and_5_windows_by_address_stay_and_blocks_of_2_mib_are_few_reads() {
    let by_address = swapoff(&mut churned(), SwapoffEra::V5_8, true);
    assert!(by_address.submissions.len() < 6144 / 2 && by_address.reads == 6144, "many pages of a window at a time");
    let blocks = swapoff(&mut churned(), SwapoffEra::Proposed2024Blocks, true);
    assert!(blocks.submissions.len() <= 20, "an area of twenty blocks");
    let mut memory = churned();
    let ours = drain(&mut memory);
    assert_eq!((ours.submissions.len(), ours.relocated), (blocks.submissions.len(), 6144));
    assert!(ours.reads <= blocks.reads, "holes are read over: {} against {}", ours.reads, blocks.reads);
    assert_off(&memory);
}

#[derive(Clone, Debug)]
struct Scene {
    era: usize,
    by_address: bool,
    synchronous: bool,
    /// Space, mapping of it, page of it, and which slot it shares if not its own.
    pages: Vec<(usize, usize, u64, Option<usize>)>,
    file_pages: Vec<(usize, u64)>,
    /// Slots that only the cache holds.
    cached: usize,
    /// Before so many operations, a thread touches the nth page.
    faults: Vec<(usize, usize, bool)>,
    elsewhere: u64,
}

fn scenes() -> impl Strategy<Value = Scene> {
    let page = (0usize..3, 0usize..2, 0u64..40, prop::option::weighted(0.2, any::<usize>()));
    (
        0usize..SwapoffEra::ALL.len() + 1,
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::collection::vec(page, 0..60),
        prop::collection::vec((0usize..2, 0u64..20), 0..20),
        0usize..4,
        prop::collection::vec((0usize..200, any::<usize>(), any::<bool>()), 0..12),
        any::<u64>(),
    )
        .prop_map(|(era, by_address, synchronous, pages, file_pages, cached, faults, elsewhere)| Scene {
            era,
            by_address,
            synchronous,
            pages,
            file_pages,
            cached,
            faults,
            elsewhere,
        })
}

/// The machine of a scene; its first area is to go off, a fifth of the pages is on the second.
fn built(scene: &Scene) -> (SwappedMemory, Vec<Place>) {
    let mut memory = machine(&[1024, 1024], scene.synchronous);
    for _ in 0..3 {
        memory.add_space();
        for mapping in 0..2 {
            memory.add_mapping(PageRange { start: PageNumber(mapping * 600 + 500), pages: 40 });
        }
    }
    // Automatic priorities: the first area is filled first. So the second is filled by hand.
    let mut slots: Vec<SwapEntry> = Vec::new();
    let mut places = Vec::new();
    for (index, &(space, mapping, page, shared)) in scene.pages.iter().enumerate() {
        let number = space * 2 + mapping;
        let place = Place { mapping: number, page: PageNumber(mapping as u64 * 600 + 500 + page) };
        if memory.pte(place) != Pte::None {
            continue;
        }
        match shared.filter(|_| !slots.is_empty()) {
            Some(shared) => memory.swap_out_to(place, slots[shared % slots.len()]),
            None => {
                let other = scene.elsewhere >> (index % 64) & 7 == 0;
                if other {
                    memory.areas_mut().swapoff_begin(Ok(0), true, u64::MAX).unwrap();
                }
                slots.push(memory.swap_out(place, 0, &mut ()).unwrap());
                if other {
                    memory.areas_mut().swapoff_failed(0);
                }
            }
        }
        places.push(place);
    }
    let files = [memory.files_mut().add_file(), memory.files_mut().add_file()];
    for &(file, index) in &scene.file_pages {
        if memory.files_mut().page(files[file], index).is_none() {
            memory.files_mut().add_page(files[file], index);
            memory.swap_out_file(files[file], index, 0, &mut ()).unwrap();
        }
    }
    for _ in 0..scene.cached {
        memory.areas_mut().alloc(0, 0, &mut ()).unwrap();
    }
    (memory, places)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Whatever the era and whoever faults meanwhile: all pages come home, and other areas are left alone.
    #[test]
    fn model_every_page_of_the_area_comes_home(scene in scenes()) {
        let (mut memory, places) = built(&scene);
        prop_assert_eq!(memory.check(), Ok(()));
        take_out(&mut memory);
        let era = SwapoffEra::ALL.get(scene.era).copied();
        let mut path = path(era.unwrap_or(SwapoffEra::V6_18), scene.by_address);
        let mut swapoff = era.map(|era| Swapoff::new(era, 0));
        let mut drain = TableDrain::new(0);
        let mut faults = scene.faults.clone();
        for operation in 0.. {
            prop_assert!(operation < 20_000, "it does not end");
            let op = match &mut swapoff {
                Some(swapoff) => swapoff.next_op(&mut memory, &mut path),
                None => drain.next_op(&mut AreaTable::new(&mut memory, 0)),
            };
            if op.is_none() {
                break;
            }
            faults.retain(|&(before, page, write)| {
                if before != operation || places.is_empty() {
                    return true;
                }
                let place = places[page % places.len()];
                if matches!(memory.pte(place), Pte::Swapped(_)) {
                    let _ = memory.fault(&mut path, place, write, &mut Vec::new()).unwrap();
                }
                false
            });
        }
        let result = swapoff.map_or(drain.result(), |swapoff| swapoff.result());
        prop_assert_eq!(result, Some(Ok(())));
        prop_assert_eq!(memory.check_off(0), Ok(()));
        prop_assert_eq!(memory.check(), Ok(()));
        for place in places {
            let there = match memory.pte(place) {
                Pte::Present => true,
                Pte::Swapped(entry) => entry.area == 1,
                Pte::None | Pte::Poisoned => false,
            };
            prop_assert!(there, "{:?} is {:?}", place, memory.pte(place));
        }
    }
}
