use super::*;
use crate::errno::Errno;
use crate::priority::FLAG_PREFER;
use crate::swap_cluster::ClusterList;
use crate::swap_extents::{Hole, SwapExtents};
use crate::swap_header::BadHeader;
use crate::swap_header::{HEADER_BYTES, SwapHeader};
use crate::swap_info::{AreaTraits, DiscardPolicy};
use crate::swapoff_area::CannotSwapoff;
use crate::swapon::*;
use alloc::collections::BTreeSet;
use core::ops::Range;
use proptest::prelude::*;

/// Lets pages go from the swap cache unless they are busy, and remembers what was asked.
#[derive(Default)]
struct Host {
    busy: BTreeSet<SwapEntry>,
    asked: Vec<SwapEntry>,
    discarded: Vec<(u8, Range<u64>)>,
}

impl AllocHost for Host {
    fn drop_cached(&mut self, entry: SwapEntry) -> bool {
        self.asked.push(entry);
        !self.busy.contains(&entry)
    }
    fn discard(&mut self, area: u8, slots: Range<u64>) {
        self.discarded.push((area, slots));
    }
}

const SSD: AreaTraits =
    AreaTraits { solid_state: true, synchronous_io: false, stable_writes: false, block_device: true };

fn header(pages: u64, bad: &[u32]) -> [u8; HEADER_BYTES] {
    let mut page = [0; HEADER_BYTES];
    SwapHeader::make(pages, bad, [0; 16], "").unwrap().write(&mut page);
    page
}

fn target(id: u64, pages: u64, first_page: &[u8]) -> SwapTarget<'_> {
    SwapTarget { discards: true, ..SwapTarget::new(id, SSD, first_page, pages) }
}

fn request(target: SwapTarget<'_>, flags: u32) -> SwaponRequest<'_> {
    SwaponRequest { flags, privileged: true, target: Ok(target) }
}

fn areas_of(cpus: usize) -> SwapAreas {
    SwapAreas::new(SwapAreasConfig::new(cpus))
}

/// Areas of so many slots each, all of priority 1.
fn equal_areas(slots: &[u64]) -> SwapAreas {
    let mut areas = areas_of(2);
    for (id, &slots) in slots.iter().enumerate() {
        let page = header(slots, &[]);
        areas.swapon(&request(target(id as u64, slots, &page), FLAG_PREFER | 1), &mut ()).unwrap();
    }
    areas
}

fn one_area(slots: u64) -> SwapAreas {
    equal_areas(&[slots])
}

fn entry(area: u8, slot: u64) -> SwapEntry {
    SwapEntry { area, slot }
}

fn alloc_slots(areas: &mut SwapAreas, cpu: usize, count: usize) -> Vec<u64> {
    (0..count).map(|_| areas.alloc(cpu, 0, &mut ()).unwrap().slot).collect()
}

/// From the swap cache into a page table, so that nothing but the page table holds the slot.
fn swap_out(areas: &mut SwapAreas, entry: SwapEntry) {
    areas.duplicate(entry).unwrap();
    let _ = areas.put_cache(entry);
}

mod swapon {
    use super::*;

    #[test]
    fn areas_get_their_sizes_and_priorities() {
        let mut areas = areas_of(1);
        let page = header(1000, &[7, 8]);
        assert_eq!(areas.swapon(&request(target(1, 1000, &page), 0), &mut ()), Ok(0));
        assert_eq!(areas.swapon(&request(target(2, 1000, &page), 0), &mut ()), Ok(1));
        assert_eq!(areas.swapon(&request(target(3, 1000, &page), FLAG_PREFER | 10), &mut ()), Ok(2));
        let priorities: Vec<_> = areas.numbers().map(|number| areas.area(number).priority()).collect();
        assert_eq!(priorities, [-2, -3, 10]);
        assert_eq!(areas.meminfo(), (3 * 997, 3 * 997));
        assert_eq!(areas.check(), Ok(()));
    }

    /// Each request has the faults of all those after it as well.
    #[test]
    fn ltp_swapon02_the_first_fault_in_the_kernels_order_is_the_one_that_is_told() {
        let mut areas = areas_of(1);
        let good = header(600, &[]);
        areas.swapon(&request(target(1, 600, &good), 0), &mut ()).unwrap();
        let no_magic = [0; HEADER_BYTES];
        let mut worst = request(target(1, 600, &no_magic), 0x8000_0000);
        worst.privileged = false;
        let bad_target = SwapTarget {
            zoned: true,
            unlinked: true,
            min_folio_order: 4,
            has_read_folio: false,
            device: AreaTraits::default(),
            map_fits: false,
            ..target(1, 600, &no_magic)
        };
        worst.target = Err(Errno::ENOENT);
        let mut told = Vec::new();
        let mut step = |request: &SwaponRequest<'_>| {
            told.push(areas.swapon(request, &mut ()).unwrap_err());
        };
        step(&worst);
        worst.flags = 0;
        step(&worst);
        worst.privileged = true;
        step(&worst);
        let mut fixed = bad_target;
        let mut with = |change: &dyn Fn(&mut SwapTarget<'_>)| {
            change(&mut fixed);
            step(&SwaponRequest { target: Ok(fixed.clone()), ..worst });
        };
        with(&|_| {});
        with(&|target| target.zoned = false);
        with(&|target| target.unlinked = false);
        with(&|target| target.id = 2);
        with(&|target| target.min_folio_order = 0);
        with(&|target| target.has_read_folio = true);
        let mut fixed = SwapTarget { first_page: &good, ..fixed };
        step(&SwaponRequest { target: Ok(fixed.clone()), ..worst });
        let one_slot = SwapExtents::whole_device(1);
        fixed.extents = Ok(&one_slot);
        step(&SwaponRequest { target: Ok(fixed.clone()), ..worst });
        let extents = SwapExtents::whole_device(600);
        fixed.extents = Ok(&extents);
        step(&SwaponRequest { target: Ok(fixed), ..worst });
        use CannotSwapon as No;
        assert_eq!(
            told,
            [
                No::UnknownFlags(0x8000_0000),
                No::NotPermitted,
                No::CannotOpen(Errno::ENOENT),
                No::Zoned,
                No::Unlinked,
                No::InUse,
                No::LargeFolios,
                No::NoReadFolio,
                No::BadHeader(BadHeader::NoMagic),
                No::Hole(Hole { block: 0 }),
                No::NoUsableSlot,
                No::NoMemory,
            ]
        );
        use Errno::{EBUSY, EINVAL, ENOENT, ENOMEM, EPERM};
        let errnos: Vec<_> = told.iter().map(CannotSwapon::errno).collect();
        assert_eq!(
            errnos,
            [EINVAL, EPERM, ENOENT, EINVAL, ENOENT, EBUSY, EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, ENOMEM]
        );
        let lines: BTreeSet<_> = told.iter().map(alloc::string::ToString::to_string).collect();
        assert_eq!(lines.len(), told.len());
        assert!(areas.check().is_ok() && areas.numbers().eq([0]));
    }

    #[test]
    fn ltp_swapon03_one_area_too_many_is_eperm() {
        let mut areas = areas_of(1);
        let page = header(600, &[]);
        for id in 0..24 {
            areas.swapon(&request(target(id, 600, &page), 0), &mut ()).unwrap();
        }
        let refused = areas.swapon(&request(target(24, 600, &page), 0), &mut ()).unwrap_err();
        assert_eq!((refused, refused.errno()), (CannotSwapon::TooManyAreas, Errno::EPERM));
    }

    #[test]
    fn a_file_is_as_large_as_its_whole_pages_on_the_device() {
        let mut areas = areas_of(1);
        let page = header(600, &[]);
        let extents = SwapExtents::whole_device(550);
        let file = SwapTarget {
            device: AreaTraits { block_device: false, ..SSD },
            extents: Ok(&extents),
            ..target(1, 600, &page)
        };
        areas.swapon(&request(file, 0), &mut ()).unwrap();
        assert_eq!(areas.area(0).usable_slots(), 549);
    }

    #[test]
    fn discards_are_both_kinds_unless_one_is_asked_for() {
        let page = header(600, &[]);
        let policy = |flags, discards| {
            let mut areas = areas_of(1);
            let mut host = Host::default();
            areas.swapon(&request(SwapTarget { discards, ..target(1, 600, &page) }, flags), &mut host).unwrap();
            let DiscardPolicy { once, pages } = areas.area(0).discard();
            assert_eq!(host.discarded, if once { alloc::vec![(0, 1..600)] } else { Vec::new() });
            (once, pages)
        };
        assert_eq!(policy(0, true), (false, false));
        assert_eq!(policy(FLAG_DISCARD, true), (true, true));
        assert_eq!(policy(FLAG_DISCARD | FLAG_DISCARD_ONCE, true), (true, false));
        assert_eq!(policy(FLAG_DISCARD | FLAG_DISCARD_PAGES, true), (false, true));
        assert_eq!(policy(FLAG_DISCARD, false), (false, false));
    }

    #[test]
    fn one_area_that_rotates_forbids_readahead_by_address_everywhere() {
        let mut areas = one_area(1024);
        assert!(areas.vma_readahead_allowed());
        let page = header(600, &[]);
        let disk = SwapTarget { device: AreaTraits { solid_state: false, ..SSD }, ..target(9, 600, &page) };
        areas.swapon(&request(disk, 0), &mut ()).unwrap();
        assert!(!areas.vma_readahead_allowed());
    }
}

mod allocation {
    use super::*;

    #[test]
    fn t1_4_equal_areas_take_turns_by_the_cluster() {
        let mut areas = equal_areas(&[2048, 2048]);
        let mut expect = |area: u8, slots: Range<u64>| {
            for slot in slots {
                assert_eq!(areas.alloc(0, 0, &mut ()), Ok(entry(area, slot)));
            }
        };
        expect(0, 1..512);
        expect(1, 1..512);
        expect(0, 512..1024);
        expect(1, 512..1024);
        expect(0, 1024..1536);
    }

    #[test]
    fn t1_6a_the_position_moves_forward_past_a_hole() {
        let mut areas = one_area(2048);
        assert_eq!(alloc_slots(&mut areas, 0, 10), (1..=10).collect::<Vec<_>>());
        assert_eq!(areas.put_cache(entry(0, 5)), Left::Free);
        assert_eq!(alloc_slots(&mut areas, 0, 501), (11..512).collect::<Vec<_>>());
        // The cluster has been left, and is picked again from nonfull before any free one.
        assert_eq!(alloc_slots(&mut areas, 0, 2), [512, 513], "a cluster without a slot given back since is in frag");
        assert_eq!(areas.put_cache(entry(0, 9)), Left::Free);
        assert_eq!(alloc_slots(&mut areas, 0, 510), (514..1024).collect::<Vec<_>>());
        assert_eq!(alloc_slots(&mut areas, 0, 3), [5, 9, 1024]);
        assert_eq!(areas.check(), Ok(()));
    }

    #[test]
    fn cpus_fill_clusters_of_their_own() {
        let mut areas = one_area(4096);
        assert_eq!(alloc_slots(&mut areas, 0, 2), [1, 2]);
        assert_eq!(alloc_slots(&mut areas, 1, 2), [512, 513]);
        assert_eq!(alloc_slots(&mut areas, 0, 1), [3]);
    }

    #[test]
    fn on_a_disk_all_cpus_write_at_one_place() {
        let mut areas = areas_of(2);
        let page = header(2048, &[]);
        let disk = SwapTarget { device: AreaTraits { solid_state: false, ..SSD }, ..target(1, 2048, &page) };
        areas.swapon(&request(disk, 0), &mut ()).unwrap();
        assert_eq!(alloc_slots(&mut areas, 0, 2), [1, 2]);
        assert_eq!(alloc_slots(&mut areas, 1, 2), [3, 4]);
    }

    #[test]
    fn higher_orders_are_aligned_and_have_clusters_of_their_own() {
        let mut areas = one_area(4096);
        assert_eq!(areas.alloc(0, 0, &mut ()).unwrap().slot, 1);
        assert_eq!(areas.alloc(0, 4, &mut ()).unwrap().slot, 512);
        assert_eq!(areas.alloc(0, 4, &mut ()).unwrap().slot, 528);
        assert_eq!(areas.alloc(0, 9, &mut ()).unwrap().slot, 1024);
        assert_eq!(areas.alloc(0, 0, &mut ()).unwrap().slot, 2);
        assert_eq!((areas.area(0).clusters().order(1), areas.area(0).in_use()), (4, 2 + 32 + 512));
        assert_eq!(areas.check(), Ok(()));
    }

    #[test]
    fn order_zero_steals_from_other_orders_last() {
        let mut areas = one_area(1024);
        assert_eq!(areas.alloc(0, 4, &mut ()).unwrap().slot, 512);
        assert_eq!(alloc_slots(&mut areas, 0, 511).len(), 511);
        assert_eq!(alloc_slots(&mut areas, 0, 2), [528, 529]);
        assert_eq!(areas.area(0).clusters().order(1), 4, "it stays a cluster of its order");
    }

    #[test]
    fn an_order_that_finds_no_run_is_split_though_slots_are_free() {
        let mut areas = one_area(1024);
        for slot in alloc_slots(&mut areas, 0, 1023) {
            if slot % 2 == 1 {
                let _ = areas.put_cache(entry(0, slot));
            }
        }
        assert_eq!(areas.alloc(0, 1, &mut ()), Err(NoSlot::Split));
        assert_eq!((areas.fallbacks(), areas.totals().free), (1, 512));
        assert!(areas.alloc(0, 0, &mut ()).is_ok());
    }

    #[test]
    fn files_serve_single_slots_only_and_no_slower_area_is_tried_instead() {
        let mut areas = areas_of(1);
        let page = header(1024, &[]);
        let extents = SwapExtents::whole_device(1024);
        let device = AreaTraits { block_device: false, ..SSD };
        let file = SwapTarget { device, extents: Ok(&extents), ..target(1, 1024, &page) };
        areas.swapon(&request(file, FLAG_PREFER | 2), &mut ()).unwrap();
        areas.swapon(&request(target(2, 1024, &page), FLAG_PREFER | 1), &mut ()).unwrap();
        assert_eq!(areas.alloc(0, 3, &mut ()), Err(NoSlot::Split));
        assert_eq!(areas.alloc(0, 0, &mut ()), Ok(entry(0, 1)));
    }

    #[test]
    fn a_full_area_makes_room_for_the_next_and_comes_back_with_its_first_free_slot() {
        let mut areas = areas_of(1);
        for (id, flags) in [(1, FLAG_PREFER | 2), (2, FLAG_PREFER | 1)] {
            let page = header(512, &[]);
            areas.swapon(&request(target(id, 512, &page), flags), &mut ()).unwrap();
        }
        assert_eq!(alloc_slots(&mut areas, 0, 511).len(), 511);
        assert_eq!(areas.alloc(0, 0, &mut ()), Ok(entry(1, 1)));
        let _ = areas.put_cache(entry(0, 77));
        // The CPU's cluster comes before any priority.
        assert_eq!(areas.alloc(0, 0, &mut ()), Ok(entry(1, 2)));
        assert_eq!(alloc_slots(&mut areas, 0, 509).len(), 509);
        assert_eq!(areas.alloc(0, 0, &mut ()), Ok(entry(0, 77)));
        assert_eq!(areas.alloc(0, 0, &mut ()), Err(NoSlot::Full));
        assert_eq!(areas.check(), Ok(()));
    }

    #[test]
    fn clusters_with_holes_come_before_free_ones() {
        let mut areas = equal_areas(&[2048]);
        // Two whole clusters, and the CPU in none.
        let used = alloc_slots(&mut areas, 0, 1023);
        let _ = areas.put_cache(entry(0, used[99]));
        assert_eq!(alloc_slots(&mut areas, 0, 1), [100]);
    }
}

mod reclaim {
    use super::*;

    /// 1023 slots in use, those that `cached` names by the cache only.
    fn filled(cached: impl Fn(u64) -> bool) -> SwapAreas {
        let mut areas = one_area(1024);
        for slot in alloc_slots(&mut areas, 0, 1023) {
            if !cached(slot) {
                swap_out(&mut areas, entry(0, slot));
            }
        }
        areas
    }

    #[test]
    fn cached_slots_are_taken_when_swap_is_more_than_half_full() {
        let mut areas = one_area(1024);
        for slot in alloc_slots(&mut areas, 0, 511) {
            if slot != 40 {
                swap_out(&mut areas, entry(0, slot));
            }
        }
        assert!(!areas.swap_full());
        let _ = areas.put(entry(0, 41));
        for slot in alloc_slots(&mut areas, 1, 513) {
            swap_out(&mut areas, entry(0, slot));
        }
        assert!(areas.swap_full());
        // Cluster 0 comes back to nonfull with a hole behind the cached slot, and is looked through from its start.
        let _ = areas.put(entry(0, 45));
        let mut host = Host::default();
        assert_eq!(areas.alloc(0, 0, &mut host), Ok(entry(0, 40)));
        assert_eq!(host.asked, [entry(0, 40)]);
        assert_eq!(areas.check(), Ok(()));
    }

    #[test]
    fn a_busy_page_is_passed_over() {
        let mut areas = filled(|slot| slot == 40 || slot == 50);
        let _ = areas.put(entry(0, 60));
        let mut host = Host { busy: BTreeSet::from([entry(0, 40)]), ..Host::default() };
        assert_eq!(areas.alloc(0, 0, &mut host), Ok(entry(0, 50)));
        assert_eq!(host.asked, [entry(0, 40), entry(0, 50)]);
    }

    #[test]
    fn one_full_cluster_is_emptied_of_cached_pages_before_frag_is_tried() {
        let mut areas = one_area(2048);
        for slot in alloc_slots(&mut areas, 0, 1023 + 512) {
            if !matches!(slot, 520 | 530) {
                swap_out(&mut areas, entry(0, slot));
            }
        }
        let mut host = Host::default();
        // The last cluster is still free.
        assert_eq!(areas.alloc(0, 0, &mut host).unwrap().slot, 1536);
        for slot in alloc_slots(&mut areas, 0, 511) {
            swap_out(&mut areas, entry(0, slot));
        }
        let _ = areas.put_cache(entry(0, 1536));
        // A full cluster without a cached page goes to the end of the list, one at a time.
        assert_eq!(areas.alloc(0, 0, &mut host).unwrap().slot, 1536);
        assert!(host.asked.is_empty());
        assert_eq!(areas.alloc(0, 0, &mut host), Err(NoSlot::Full));
    }

    #[test]
    fn an_area_that_was_used_up_is_gone_through_in_the_background() {
        let mut areas = filled(|slot| slot % 100 == 0);
        let mut host = Host::default();
        assert_eq!(areas.reclaim_full_areas(&mut host), 10);
        assert_eq!((areas.totals().free, areas.area(0).in_use()), (10, 1013));
        assert_eq!(areas.reclaim_full_areas(&mut host), 0, "once for each time it is used up");
        assert_eq!(alloc_slots(&mut areas, 0, 1), [100]);
        assert_eq!(areas.check(), Ok(()));
    }

    #[test]
    fn a_run_is_taken_from_the_cache_as_a_whole() {
        let mut areas = one_area(1024);
        let runs: Vec<_> = (0..127).map(|_| areas.alloc(0, 3, &mut ())).map_while(Result::ok).collect();
        assert_eq!(runs.len(), 64, "cluster 0 is of order 0");
        let singles = alloc_slots(&mut areas, 0, 511);
        assert!(areas.swap_full());
        for slot in singles {
            swap_out(&mut areas, entry(0, slot));
        }
        for slot in 512..1024 {
            if !(520..528).contains(&slot) {
                swap_out(&mut areas, entry(0, slot));
            }
        }
        for slot in 600..608 {
            let _ = areas.put(entry(0, slot));
        }
        let mut host = Host { busy: BTreeSet::from([entry(0, 523)]), ..Host::default() };
        assert_eq!(areas.alloc(0, 3, &mut host).unwrap().slot, 600);
        assert_eq!(host.asked, (520..524).map(|slot| entry(0, slot)).collect::<Vec<_>>(), "up to the busy page");
        assert_eq!(areas.area(0).in_use(), 1023 - 3, "what was dropped before it stays dropped");
        assert_eq!(areas.check(), Ok(()));
    }
}

mod discard {
    use super::*;

    fn discarding(slots: u64) -> SwapAreas {
        let mut areas = areas_of(1);
        let page = header(slots, &[]);
        let flags = FLAG_DISCARD | FLAG_DISCARD_PAGES;
        areas.swapon(&request(target(1, slots, &page), flags), &mut ()).unwrap();
        areas
    }

    #[test]
    fn an_empty_cluster_is_discarded_before_it_is_used_again() {
        let mut areas = discarding(2048);
        let mut host = Host::default();
        // Free clusters come first, to spread the wear.
        for slot in alloc_slots(&mut areas, 0, 512) {
            assert!(slot >= 512);
            let _ = areas.put_cache(entry(0, slot));
        }
        assert_eq!(areas.area(0).clusters().list(1), ClusterList::Discard);
        assert_eq!(areas.discard_pending(&mut host), 1);
        assert_eq!(host.discarded, [(0, 512..1024)]);
        assert_eq!(areas.area(0).clusters().list(1), ClusterList::Free);
        assert_eq!(areas.check(), Ok(()));
    }

    #[test]
    fn an_allocation_that_finds_nothing_discards_at_once_and_tries_again() {
        let mut areas = discarding(1024);
        for slot in alloc_slots(&mut areas, 0, 1023) {
            if slot >= 512 {
                let _ = areas.put_cache(entry(0, slot));
            }
        }
        let mut host = Host::default();
        assert_eq!(areas.alloc(0, 0, &mut host), Ok(entry(0, 512)));
        assert_eq!(host.discarded, [(0, 512..1024)]);
    }

    #[test]
    fn higher_orders_do_not_wait_for_a_discard() {
        let mut areas = discarding(1024);
        for slot in alloc_slots(&mut areas, 0, 1023) {
            if slot >= 512 {
                let _ = areas.put_cache(entry(0, slot));
            }
        }
        assert_eq!(areas.alloc(0, 2, &mut Host::default()), Err(NoSlot::Split));
    }
}

mod swapoff {
    use super::*;

    #[test]
    fn ltp_swapoff02_what_is_no_area_is_refused() {
        let mut areas = one_area(1024);
        let refused = |areas: &mut SwapAreas, target, privileged| {
            areas.swapoff_begin(target, privileged, u64::MAX).unwrap_err().errno()
        };
        assert_eq!(refused(&mut areas, Ok(77), true), Errno::EINVAL);
        assert_eq!(refused(&mut areas, Err(Errno::ENOENT), true), Errno::ENOENT);
        assert_eq!(refused(&mut areas, Ok(0), false), Errno::EPERM);
        let no_memory = areas.swapoff_begin(Ok(0), true, 1022);
        assert_eq!(no_memory, Err(CannotSwapoff::NoMemory { pages: 1023, room_pages: 1022 }));
        assert_eq!(areas.check(), Ok(()));
        assert!(areas.area(0).is_in_service(), "nothing has changed");
    }

    #[test]
    fn an_area_on_its_way_out_hands_nothing_out_and_its_pages_still_count() {
        let mut areas = one_area(1024);
        assert_eq!(alloc_slots(&mut areas, 0, 100).len(), 100);
        assert_eq!(areas.swapoff_begin(Ok(0), true, 1023), Ok(0));
        assert_eq!(areas.swapoff_begin(Ok(0), true, 1023), Err(CannotSwapoff::NotAnArea));
        assert_eq!(areas.alloc(0, 0, &mut ()), Err(NoSlot::Full));
        assert_eq!(areas.meminfo(), (100, 0));
        assert_eq!(areas.totals(), SwapTotals { free: -100, total: 0 });
        for slot in 1..=60 {
            let _ = areas.put_cache(entry(0, slot));
        }
        assert_eq!((areas.meminfo(), areas.check()), ((40, 0), Ok(())));
        for slot in 61..=100 {
            let _ = areas.put_cache(entry(0, slot));
        }
        areas.swapoff_finish(0);
        assert_eq!((areas.meminfo(), areas.numbers().count()), ((0, 0), 0));
        let page = header(600, &[]);
        assert_eq!(areas.swapon(&request(target(5, 600, &page), 0), &mut ()), Ok(0), "the number is free again");
        assert_eq!(alloc_slots(&mut areas, 0, 1), [1], "and no position of the old area is left");
    }

    #[test]
    fn t8d_a_swapoff_that_fails_puts_the_area_back() {
        let mut areas = one_area(1024);
        let before = areas.meminfo();
        assert_eq!(alloc_slots(&mut areas, 0, 100).len(), 100);
        areas.swapoff_begin(Ok(0), true, 1023).unwrap();
        for slot in 1..=60 {
            let _ = areas.put_cache(entry(0, slot));
        }
        areas.swapoff_failed(0);
        assert_eq!(areas.meminfo(), (before.0, before.1 - 40));
        assert_eq!((areas.area(0).priority(), areas.check()), (1, Ok(())));
        assert!(areas.alloc(0, 0, &mut ()).is_ok());
    }

    #[test]
    fn automatic_areas_below_move_up() {
        let mut areas = areas_of(1);
        let page = header(600, &[]);
        for id in 0..3 {
            areas.swapon(&request(target(id, 600, &page), 0), &mut ()).unwrap();
        }
        areas.swapoff_begin(Ok(1), true, 10_000).unwrap();
        assert_eq!((areas.area(0).priority(), areas.area(2).priority()), (-2, -3));
        areas.swapoff_finish(1);
        areas.swapon(&request(target(9, 600, &page), 0), &mut ()).unwrap();
        assert_eq!(areas.area(1).priority(), -4);
    }

    #[test]
    #[should_panic(expected = "area 0 still has 1 slots in use")]
    fn an_area_with_a_page_never_goes() {
        let mut areas = one_area(1024);
        alloc_slots(&mut areas, 0, 1);
        areas.swapoff_begin(Ok(0), true, 1023).unwrap();
        areas.swapoff_finish(0);
    }
}

#[test]
fn the_checker_finds_totals_that_differ_and_names_the_area() {
    let mut areas = one_area(1024);
    areas.totals.free -= 1;
    assert!(matches!(areas.check(), Err(AreasViolation::Totals { .. })));
    areas.totals.free += 1;
    areas.area_mut(0).map.hand_out(9);
    let found = areas.check().unwrap_err();
    assert_eq!(alloc::format!("{found}"), "swap area 0: cluster 0 counts 1 slots in use, the map 2");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc { cpu: usize, order: u8 },
    Duplicate(usize),
    Put(usize),
    PutCache(usize),
    Pin(usize),
    Busy(usize),
    Background,
    Swapoff(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let order = prop_oneof![6 => Just(0u8), 2 => 1u8..5, 1 => 5u8..10];
    let any = || any::<usize>();
    prop::collection::vec(
        prop_oneof![
            8 => (0usize..2, order).prop_map(|(cpu, order)| Step::Alloc { cpu, order }),
            3 => any().prop_map(Step::Duplicate),
            3 => any().prop_map(Step::Put),
            5 => any().prop_map(Step::PutCache),
            1 => any().prop_map(Step::Pin),
            1 => any().prop_map(Step::Busy),
            1 => Just(Step::Background),
            1 => (0u8..2).prop_map(Step::Swapoff),
        ],
        1..60,
    )
}

/// What each slot in use is held by: references and the cache.
type Held = alloc::collections::BTreeMap<SwapEntry, (u32, bool)>;

/// Drops from the model what it lets the allocator have.
struct ModelHost<'a> {
    held: &'a mut Held,
    busy: &'a BTreeSet<SwapEntry>,
    wrong: Option<SwapEntry>,
}

impl AllocHost for ModelHost<'_> {
    fn drop_cached(&mut self, entry: SwapEntry) -> bool {
        if self.busy.contains(&entry) {
            return false;
        }
        if self.held.remove(&entry) != Some((0, true)) {
            self.wrong = Some(entry);
        }
        true
    }
    fn discard(&mut self, area: u8, slots: Range<u64>) {
        // The device is never told to forget a slot that somebody holds.
        let held = self.held.range(entry(area, slots.start)..entry(area, slots.end)).next();
        self.wrong = self.wrong.or(held.map(|(entry, _)| *entry));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn model_slots_have_one_owner_and_the_books_agree(
        steps in steps(),
        discard in any::<bool>(),
        filled in any::<bool>(),
    ) {
        let mut areas = areas_of(2);
        let flags = if discard { FLAG_DISCARD } else { 0 };
        for (id, (pages, bad)) in [(700, alloc::vec![9, 600]), (1100, alloc::vec![])].into_iter().enumerate() {
            let page = header(pages, &bad);
            areas.swapon(&request(target(id as u64, pages, &page), flags | FLAG_PREFER), &mut ()).unwrap();
        }
        let mut held = Held::new();
        let mut busy = BTreeSet::new();
        if filled {
            while let Ok(slot) = areas.alloc(held.len() / 300 % 2, 0, &mut ()) {
                held.insert(slot, (0, true));
            }
            // A pattern of holes, cached slots and slots in use.
            let all: Vec<SwapEntry> = held.keys().copied().collect();
            for (index, slot) in all.into_iter().enumerate() {
                match index % 11 {
                    0 => { held.remove(&slot); let _ = areas.put_cache(slot); }
                    1..4 => {}
                    _ => { held.insert(slot, (1, false)); swap_out(&mut areas, slot); }
                }
            }
        }
        for step in steps {
            let pick = |index: usize, held: &Held| held.keys().nth(index % held.len().max(1)).copied();
            match step {
                Step::Alloc { cpu, order } => {
                    let mut host = ModelHost { held: &mut held, busy: &busy, wrong: None };
                    let got = areas.alloc(cpu, order, &mut host);
                    prop_assert_eq!(host.wrong, None);
                    if let Ok(first) = got {
                        prop_assert!(first.slot.is_multiple_of(1 << order) && areas.area(first.area).is_in_service());
                        for slot in first.slot..first.slot + (1 << order) {
                            let slots = areas.area(first.area).slots();
                            prop_assert!(slot > 0 && slot < slots && !areas.area(first.area).map().is_bad(slot));
                            prop_assert_eq!(held.insert(entry(first.area, slot), (0, true)), None, "two owners");
                        }
                    } else if order == 0 {
                        let free: u64 = areas.numbers().map(|number| areas.area(number))
                            .filter(|area| area.is_in_service())
                            .map(|area| area.usable_slots() - area.in_use()).sum();
                        // What was dropped from full clusters on the way is found by the next allocation.
                        prop_assert!(free == 0 || areas.alloc(cpu, 0, &mut ()).map(|e| held.insert(e, (0, true))).is_ok());
                    }
                }
                Step::Duplicate(index) => if let Some(slot) = pick(index, &held) {
                    prop_assert_eq!(areas.duplicate(slot), Ok(()));
                    held.get_mut(&slot).unwrap().0 += 1;
                },
                Step::Put(index) => if let Some(slot) = pick(index, &held).filter(|slot| held[slot].0 > 0) {
                    let left = areas.put(slot);
                    held.get_mut(&slot).unwrap().0 -= 1;
                    prop_assert_eq!(left == Left::Free, held[&slot] == (0, false));
                    if left == Left::Free { held.remove(&slot); }
                },
                Step::PutCache(index) => if let Some(slot) = pick(index, &held).filter(|slot| held[slot].1) {
                    let left = areas.put_cache(slot);
                    held.get_mut(&slot).unwrap().1 = false;
                    prop_assert_eq!(left == Left::Free, held[&slot].0 == 0);
                    busy.remove(&slot);
                    if left == Left::Free { held.remove(&slot); }
                },
                Step::Pin(index) => if let Some(slot) = pick(index, &held) {
                    prop_assert_eq!(areas.pin_cache(slot).is_ok(), !held[&slot].1);
                    held.get_mut(&slot).unwrap().1 = true;
                },
                Step::Busy(index) => if let Some(slot) = pick(index, &held).filter(|slot| held[slot].1) {
                    busy.insert(slot);
                },
                Step::Background => {
                    let mut host = ModelHost { held: &mut held, busy: &busy, wrong: None };
                    areas.reclaim_full_areas(&mut host);
                    areas.discard_pending(&mut host);
                    prop_assert_eq!(host.wrong, None);
                }
                Step::Swapoff(number) => match areas.swapoff_begin(Ok(number.into()), true, u64::MAX) {
                    Ok(number) => prop_assert!(!areas.area(number).is_in_service()),
                    Err(_) => areas.swapoff_failed(number),
                },
            }
        }
        prop_assert_eq!(areas.check(), Ok(()));
        let in_use: u64 = areas.numbers().map(|number| areas.area(number).in_use()).sum();
        prop_assert_eq!(in_use, held.len() as u64);
        for (slot, &(references, cache)) in &held {
            let map = areas.area(slot.area).map();
            prop_assert_eq!((map.count(slot.slot), map.has_cache(slot.slot)), (references.into(), cache));
        }
    }
}
