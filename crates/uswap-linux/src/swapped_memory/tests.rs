use super::*;
use crate::swap_areas::SwapAreasConfig;
use crate::swap_header::{HEADER_BYTES, SwapHeader};
use crate::swap_info::AreaTraits;
use crate::swapin_readahead::{Preset, Readahead};
use crate::swapon::{SwapTarget, SwaponRequest};
use uswap_core::units::PageNumber;

/// A machine of four CPUs with areas of so many slots, on solid-state devices.
pub(crate) fn machine(areas: &[u64], synchronous_io: bool) -> SwappedMemory {
    let mut all = SwapAreas::new(SwapAreasConfig::new(4));
    for (id, &pages) in areas.iter().enumerate() {
        let mut first_page = [0; HEADER_BYTES];
        SwapHeader::make(pages, &[], [0; 16], "").unwrap().write(&mut first_page);
        let device = AreaTraits { solid_state: true, synchronous_io, stable_writes: false, block_device: true };
        let target = SwapTarget::new(id as u64, device, &first_page, pages);
        all.swapon(&SwaponRequest { flags: 0, privileged: true, target: Ok(target) }, &mut ()).unwrap();
    }
    SwappedMemory::new(all)
}

/// One address space with one mapping whose pages are in slots 1, 2, 3 and so on of the first area.
pub(crate) fn in_order(pages: u64, slots: u64) -> SwappedMemory {
    let mut memory = machine(&[slots], false);
    memory.add_space();
    let mapping = memory.add_mapping(PageRange { start: PageNumber(512), pages });
    for page in 512..512 + pages {
        memory.swap_out(Place { mapping, page: PageNumber(page) }, 0, &mut ()).unwrap();
    }
    memory
}

fn place(page: u64) -> Place {
    Place { mapping: 0, page: PageNumber(page) }
}

fn entry(slot: u64) -> SwapEntry {
    SwapEntry { area: 0, slot }
}

fn path(preset: Preset) -> SwapInPath {
    SwapInPath::new(preset, Readahead::new(3, false))
}

#[test]
fn a_pte_survives_packing() {
    for pte in [Pte::None, Pte::Present, Pte::Poisoned, Pte::Swapped(SwapEntry { area: 23, slot: 1 << 40 })] {
        assert_eq!(PackedPte::pack(pte).unpack(), pte);
    }
}

#[test]
fn a_read_fault_keeps_the_slot_and_a_write_fault_frees_it() {
    let mut memory = in_order(64, 1024);
    let mut path = path(Preset::LINUX_5_8);
    let mut reads = Vec::new();
    let swap_in = memory.fault(&mut path, place(512 + 8), false, &mut reads).unwrap();
    assert_eq!(swap_in.outcome, SwappedIn::Miss);
    assert_eq!(reads.len(), 8, "slots 8 to 15");
    assert!(memory.areas().area(0).map().is_cache_only(9));
    assert_eq!(memory.pte(place(512 + 8)), Pte::Present);
    reads.clear();
    let hit = memory.fault(&mut path, place(512 + 9), true, &mut reads).unwrap();
    assert_eq!((hit.outcome, path.readahead.swap_ra_hit()), (SwappedIn::Hit, 1));
    assert!(reads.is_empty() && memory.areas().area(0).map().is_free(10));
    assert_eq!(memory.check(), Ok(()));
}

#[test]
fn t4a_a_read_fault_frees_the_slot_when_swap_is_more_than_half_full() {
    let mut memory = in_order(640, 1024);
    let _ = memory.fault(&mut path(Preset::LINUX_5_8), place(600), false, &mut Vec::new()).unwrap();
    assert!(memory.areas().area(0).map().is_free(600 - 511));
}

#[test]
fn a_synchronous_area_is_read_without_the_cache() {
    let mut memory = machine(&[1024], true);
    memory.add_space();
    let mapping = memory.add_mapping(PageRange { start: PageNumber(0), pages: 4 });
    let place = Place { mapping, page: PageNumber(2) };
    memory.swap_out(place, 0, &mut ()).unwrap();
    let swap_in = memory.fault(&mut path(Preset::LINUX_6_18), place, false, &mut Vec::new()).unwrap();
    assert_eq!((swap_in.outcome, memory.areas().area(0).in_use()), (SwappedIn::Bypass, 0));
}

#[test]
fn without_room_a_fault_fails_and_nothing_is_lost() {
    let mut memory = in_order(64, 1024);
    memory.set_room(0);
    let failed = memory.fault(&mut path(Preset::LINUX_5_8), place(520), false, &mut Vec::new());
    assert_eq!(failed, Err(Errno::ENOMEM));
    assert_eq!(memory.pte(place(520)), Pte::Swapped(entry(9)));
    assert_eq!(memory.check(), Ok(()));
}

#[test]
fn owners_of_a_shared_slot_are_forgotten_one_by_one() {
    let mut memory = in_order(4, 1024);
    for _ in 0..2 {
        memory.add_space();
        let mapping = memory.add_mapping(PageRange { start: PageNumber(512), pages: 4 });
        memory.swap_out_to(Place { mapping, page: PageNumber(514) }, entry(1));
    }
    assert_eq!(memory.check(), Ok(()));
    let owners = |memory: &SwappedMemory| memory.owners(entry(1)).map(|place| place.mapping).collect::<Vec<_>>();
    assert_eq!(owners(&memory), [0, 1, 2]);
    memory.map(place(512), false);
    assert_eq!(owners(&memory), [2, 1]);
    memory.map(Place { mapping: 1, page: PageNumber(514) }, false);
    assert_eq!(owners(&memory), [2]);
    memory.map(Place { mapping: 2, page: PageNumber(514) }, false);
    assert_eq!((owners(&memory), memory.areas().area(0).in_use()), (Vec::new(), 3));
}

#[test]
fn the_checkers_find_a_slot_that_is_named_by_nobody_or_once_too_often() {
    let mut lost = in_order(4, 1024);
    lost.set_pte(place(513), Pte::Present);
    assert_eq!(lost.check(), Err(MemoryViolation::Count { entry: entry(2), named: 0, count: 1 }));

    let mut twice = in_order(4, 1024);
    twice.set_pte(place(513), Pte::Swapped(entry(1)));
    assert_eq!(twice.check(), Err(MemoryViolation::Count { entry: entry(1), named: 2, count: 1 }));

    let mut beyond = in_order(4, 1024);
    beyond.set_pte(place(513), Pte::Swapped(SwapEntry { area: 7, slot: 2 }));
    assert!(matches!(beyond.check(), Err(MemoryViolation::Count { named: 0, count: 1, .. })));
}

#[test]
fn the_checker_finds_what_swapoff_left() {
    let memory = in_order(1, 1024);
    assert_eq!(memory.check_off(0), Err(MemoryViolation::NotOff { in_use: 1, named: Some(entry(1)) }));

    // A slot in use that nobody names, and a page table that names a slot that is free.
    let mut held = in_order(1, 1024);
    held.set_pte(place(512), Pte::Present);
    assert_eq!(held.check_off(0), Err(MemoryViolation::NotOff { in_use: 1, named: None }));
    let mut dangling = in_order(1, 1024);
    let _ = dangling.areas.put(entry(1));
    assert_eq!(dangling.check_off(0), Err(MemoryViolation::NotOff { in_use: 0, named: Some(entry(1)) }));

    let mut file = machine(&[1024], false);
    let id = file.files_mut().add_file();
    file.files_mut().add_page(id, 0);
    file.swap_out_file(id, 0, 0, &mut ()).unwrap();
    let _ = file.areas.put(entry(1));
    assert_eq!(file.check_off(0), Err(MemoryViolation::NotOff { in_use: 0, named: Some(entry(1)) }));
    assert_eq!(in_order(0, 1024).check_off(0), Ok(()));
}
