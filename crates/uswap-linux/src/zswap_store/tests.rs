use alloc::collections::BTreeSet;

use super::*;
use proptest::prelude::*;

const LRU: LruId = LruId { cgroup: 1, node: 0 };

fn slot(slot: u64) -> SwapEntry {
    SwapEntry { area: 0, slot }
}

fn config(ram_pages: u64) -> ZswapConfig {
    ZswapConfig::new(ram_pages)
}

/// zswap with one area of two trees and a bit.
fn zswap(config: ZswapConfig) -> Zswap {
    let mut zswap = Zswap::new(config);
    zswap.swapon(0, 2 * trees::TREE_SLOTS + 100);
    zswap
}

fn store(zswap: &mut Zswap, number: u64, bytes: u16) -> Result<(), Rejected> {
    store_in(zswap, LRU, number, bytes)
}

fn store_in(zswap: &mut Zswap, lru: LruId, number: u64, bytes: u16) -> Result<(), Rejected> {
    zswap.store(StoreRequest { first: slot(number), lru, pages: &[Compressed::Bytes(bytes)] }, &mut ())
}

fn load(zswap: &mut Zswap, number: u64) -> Result<Loaded, Errno> {
    zswap.load(slot(number), 1, true, |_| true)
}

fn check(zswap: &Zswap) {
    assert_eq!(zswap.check(|_| false), Ok(()));
}

/// Remembers what was written; some slots have a page in the swap cache.
#[derive(Default)]
struct Host {
    cached: BTreeSet<SwapEntry>,
    written: Vec<SwapEntry>,
}

impl WritebackHost for Host {
    fn add_to_swap_cache(&mut self, entry: SwapEntry) -> bool {
        !self.cached.contains(&entry)
    }
    fn write(&mut self, entry: SwapEntry, _: u16) {
        self.written.push(entry);
    }
    fn drop_from_swap_cache(&mut self, entry: SwapEntry) {
        panic!("slot {} changed while nobody else ran", entry.slot);
    }
}

#[test]
fn t6a_the_pool_refuses_at_its_limit_and_accepts_at_the_threshold() {
    let config = config(1_000_000);
    assert_eq!((config.limit_pages(), config.accept_pages()), (200_000, 180_000));
    // The same with a hundred pages: a page that does not compress takes one.
    let mut zswap = zswap(ZswapConfig { ram_pages: 500, ..config });
    for number in 1..=100 {
        store(&mut zswap, number, 4096).unwrap();
    }
    assert_eq!(store(&mut zswap, 101, 4096), Err(Rejected::PoolFull));
    for number in 1..=5 {
        load(&mut zswap, number).unwrap();
    }
    assert_eq!((zswap.pool_pages(), store(&mut zswap, 101, 4096)), (95, Err(Rejected::PoolFull)), "it was full");
    for number in 6..=9 {
        load(&mut zswap, number).unwrap();
    }
    assert_eq!((zswap.pool_pages(), store(&mut zswap, 101, 4096)), (91, Err(Rejected::PoolFull)));
    load(&mut zswap, 10).unwrap();
    assert_eq!((zswap.pool_pages(), store(&mut zswap, 101, 4096)), (90, Ok(())));
    assert_eq!(store(&mut zswap, 102, 4096), Ok(()), "and takes until it is full again");
    assert_eq!(zswap.stats().pool_limit_hit, 1);
    check(&zswap);
}

#[test]
fn t6b_what_a_freed_slot_costs_under_each_rule() {
    let costs = |rule, present: bool, others: bool| {
        let mut zswap = zswap(ZswapConfig { invalidate: rule, ..config(1000) });
        if present {
            store(&mut zswap, 7, 100).unwrap();
        }
        if others {
            store(&mut zswap, 8, 100).unwrap();
        }
        let TreeCosts { tests, lookups, locks, erases } = zswap.invalidate(slot(7));
        assert!(!zswap.contains(slot(7)));
        check(&zswap);
        (tests, lookups, locks, erases)
    };
    use InvalidateRule as Rule;
    for (rule, empty, sparse, present) in [
        (Rule::Locked, (0, 1, 1, 0), (0, 1, 1, 0), (0, 1, 1, 1)),
        (Rule::EmptyTest, (1, 0, 0, 0), (1, 1, 1, 0), (1, 1, 1, 1)),
        (Rule::NeverEnabled, (1, 1, 1, 0), (1, 1, 1, 0), (1, 1, 1, 1)),
        (Rule::LookupFirst, (0, 1, 0, 0), (0, 1, 0, 0), (0, 2, 1, 1)),
        (Rule::Combined, (1, 0, 0, 0), (1, 1, 0, 0), (1, 2, 1, 1)),
    ] {
        assert_eq!(costs(rule, false, false), empty, "{rule:?}, empty tree");
        assert_eq!(costs(rule, false, true), sparse, "{rule:?}, tree without the slot");
        assert_eq!(costs(rule, true, true), present, "{rule:?}, tree with the slot");
    }
}

#[test]
fn a_machine_that_never_enabled_it_does_nothing_for_a_freed_slot() {
    let off = ZswapConfig { enabled: false, invalidate: InvalidateRule::NeverEnabled, ..config(1000) };
    let mut zswap = zswap(off);
    assert_eq!(zswap.invalidate(slot(7)), TreeCosts { tests: 1, ..TreeCosts::default() });
    assert_eq!(store(&mut zswap, 7, 100), Err(Rejected::Disabled));
    zswap.set_enabled(true);
    store(&mut zswap, 7, 100).unwrap();
    zswap.set_enabled(false);
    assert_eq!(load(&mut zswap, 7), Ok(Loaded::Found { bytes: 100, exclusive: true }), "what is stored is loaded");
    assert_eq!(zswap.invalidate(slot(7)).locks, 1);
}

#[test]
fn another_tree_being_full_does_not_matter() {
    let mut zswap = zswap(config(1000));
    store(&mut zswap, trees::TREE_SLOTS, 100).unwrap();
    assert_eq!(zswap.invalidate(slot(trees::TREE_SLOTS - 1)).locks, 0);
    assert_eq!(zswap.invalidate(slot(trees::TREE_SLOTS + 1)).locks, 1);
}

#[test]
fn a_load_into_the_swap_cache_takes_the_entry_and_one_past_it_leaves_it() {
    let mut zswap = zswap(config(1000));
    store(&mut zswap, 7, 1234).unwrap();
    let past = zswap.load(slot(7), 1, false, |_| true);
    assert_eq!(past, Ok(Loaded::Found { bytes: 1234, exclusive: false }));
    assert!(zswap.contains(slot(7)));
    assert_eq!(load(&mut zswap, 7), Ok(Loaded::Found { bytes: 1234, exclusive: true }));
    assert_eq!(load(&mut zswap, 7), Ok(Loaded::NotFound));
    assert_eq!((zswap.stats().zswpin, zswap.pool_pages()), (2, 0));
}

#[test]
fn a_large_folio_and_one_that_does_not_decompress_are_errors() {
    let mut zswap = zswap(config(1000));
    store(&mut zswap, 7, 1234).unwrap();
    assert_eq!(zswap.load(slot(0), 16, true, |_| true), Err(Errno::EINVAL));
    assert_eq!(zswap.load(slot(7), 1, true, |_| false), Err(Errno::EIO));
    assert!(zswap.contains(slot(7)));
    assert_eq!(zswap.stats().decompress_fail, 1);
    let mut never = Zswap::new(ZswapConfig { enabled: false, ..config(1000) });
    assert_eq!(never.load(slot(0), 16, true, |_| true), Ok(Loaded::NotFound));
}

#[test]
fn incompressible_pages_are_kept_or_rejected_by_era_and_cgroup() {
    for page in [Compressed::Failed, Compressed::Bytes(4096), Compressed::Bytes(5000)] {
        let request = StoreRequest { first: slot(7), lru: LRU, pages: &[page] };
        let mut keeps = zswap(config(1000));
        keeps.store(request, &mut ()).unwrap();
        assert_eq!((keeps.stored_incompressible_pages(), keeps.pool_pages()), (1, 1));
        keeps.set_cgroup(1, CgroupRules { writeback: false, ..CgroupRules::default() });
        assert_eq!(keeps.store(request, &mut ()), Err(Rejected::Incompressible));
        assert_eq!((keeps.check_rejected(request), keeps.stored_incompressible_pages()), (Ok(()), 0));

        let mut rejects = zswap(ZswapConfig { incompressible: Incompressible::Reject, ..config(1000) });
        assert_eq!(rejects.store(request, &mut ()), Err(Rejected::Incompressible));
        let stats = rejects.stats();
        assert_eq!(stats.reject_compress_fail + stats.reject_compress_poor, 1);
        assert_eq!(stats.reject_compress_fail == 1, page == Compressed::Failed);
    }
}

#[test]
fn a_folio_is_stored_whole_or_not_at_all_and_leaves_no_stale_entry() {
    let reject = ZswapConfig { incompressible: Incompressible::Reject, ..config(1000) };
    let mut zswap = zswap(reject);
    let good = [Compressed::Bytes(100); 4];
    let first = StoreRequest { first: slot(16), lru: LRU, pages: &good };
    zswap.store(first, &mut ()).unwrap();
    assert_eq!((zswap.stored_pages(), zswap.cgroup_bytes(1)), (4, 400));
    let mut mixed = good;
    mixed[3] = Compressed::Failed;
    let again = StoreRequest { pages: &mixed, ..first };
    assert_eq!(zswap.store(again, &mut ()), Err(Rejected::Incompressible));
    assert_eq!((zswap.stored_pages(), zswap.check_rejected(again)), (0, Ok(())));
    check(&zswap);
}

#[test]
fn a_cgroup_at_its_limit_writes_back_its_oldest_or_is_refused() {
    let mut zswap = zswap(config(1000));
    zswap.set_cgroup(1, CgroupRules { max_bytes: Some(200), writeback: true });
    store(&mut zswap, 1, 100).unwrap();
    store(&mut zswap, 2, 100).unwrap();
    // Both have their second chance first.
    assert_eq!(store(&mut zswap, 3, 100), Err(Rejected::CgroupLimit));
    assert_eq!(store(&mut zswap, 3, 100), Err(Rejected::CgroupLimit));
    assert_eq!(store(&mut zswap, 3, 100), Ok(()));
    assert_eq!((zswap.contains(slot(1)), zswap.stats().zswpwb), (false, 1));
    zswap.set_cgroup(1, CgroupRules { max_bytes: Some(0), writeback: false });
    assert_eq!(store(&mut zswap, 4, 100), Err(Rejected::CgroupLimit));
    assert_eq!(zswap.stats().reject_reclaim_fail, 3);
    assert_eq!(store_in(&mut zswap, LruId { cgroup: 2, node: 0 }, 5, 100), Ok(()), "others are not concerned");
}

#[test]
fn the_worker_writes_the_oldest_until_the_threshold_and_each_has_a_second_chance() {
    let mut zswap = zswap(config(500));
    for number in 1..=100 {
        store(&mut zswap, number, 4096).unwrap();
    }
    assert!(!zswap.worker_wanted());
    assert_eq!(store(&mut zswap, 101, 4096), Err(Rejected::PoolFull));
    assert!(zswap.worker_wanted());
    let mut host = Host { cached: BTreeSet::from([slot(3)]), ..Host::default() };
    let mut rounds = 0;
    while zswap.pool_pages() > 90 {
        zswap.run_worker(&mut host);
        rounds += 1;
        assert!(rounds < 20);
    }
    // 100 second chances at 16 looks in vain a round, then ten are written; the one in use is not.
    assert_eq!(rounds, 7);
    assert_eq!(host.written, [1, 2, 4, 5, 6, 7, 8, 9, 10, 11].map(slot));
    assert_eq!(store(&mut zswap, 101, 4096), Ok(()));
    check(&zswap);
}

#[test]
fn cgroups_take_turns_and_those_without_writeback_are_left_alone() {
    let mut zswap = zswap(config(50));
    let lists = [1, 2, 3].map(|cgroup| LruId { cgroup, node: 0 });
    for number in 0..9 {
        store_in(&mut zswap, lists[number as usize % 3], 1 + number, 4096).unwrap();
    }
    for lru in lists {
        // Second chances are used up.
        for _ in 0..3 {
            assert_eq!(zswap.pick_writeback(lru), Picked::SecondChance);
        }
    }
    zswap.set_cgroup(2, CgroupRules { writeback: false, ..CgroupRules::default() });
    store(&mut zswap, 20, 4096).unwrap();
    assert_eq!(store(&mut zswap, 21, 4096), Err(Rejected::PoolFull));
    zswap.config.accept_threshold_percent = 60;
    let mut host = Host::default();
    assert_eq!(zswap.run_worker(&mut host), 4);
    assert_eq!(host.written, [1, 3, 4, 6].map(slot));
}

#[test]
fn an_entry_that_changed_while_it_was_written_back_is_not_written() {
    let mut zswap = zswap(config(1000));
    store(&mut zswap, 7, 100).unwrap();
    assert_eq!(zswap.pick_writeback(LRU), Picked::SecondChance);
    let Picked::Entry(ticket) = zswap.pick_writeback(LRU) else { panic!("it had its chance") };
    // Meanwhile the slot is freed and its next owner's page is stored: the ticket is for old content.
    let _ = zswap.invalidate(slot(7));
    store(&mut zswap, 7, 100).unwrap();
    assert!(!zswap.finish_writeback(ticket));
    assert!(zswap.contains(slot(7)) && zswap.stats().zswpwb == 0);
    let _ = zswap.invalidate(slot(7));
    assert!(!zswap.finish_writeback(ticket), "and the same when it is just gone");
}

#[test]
#[should_panic(expected = "area 0 goes while zswap has a page of it")]
fn an_area_with_an_entry_never_goes() {
    let mut zswap = zswap(config(1000));
    store(&mut zswap, 1, 100).unwrap();
    zswap.swapoff(0);
}

#[test]
fn the_checkers_find_books_that_differ() {
    let mut zswap = zswap(config(1000));
    store(&mut zswap, 1, 100).unwrap();
    store(&mut zswap, 2, 100).unwrap();
    check(&zswap);
    assert_eq!(zswap.check(|entry| entry.slot == 2), Err(ZswapViolation::ZeroToo(slot(2))));
    let request = StoreRequest { first: slot(0), lru: LRU, pages: &[Compressed::Bytes(9); 3] };
    assert_eq!(zswap.check_rejected(request), Err(ZswapViolation::Stale(slot(1))));

    let damaged = |damage: &dyn Fn(&mut Zswap)| {
        let mut zswap = zswap.clone();
        damage(&mut zswap);
        zswap.check(|_| false).unwrap_err()
    };
    let entry = ZswapViolation::Entry(slot(1));
    assert_eq!(damaged(&|zswap| zswap.entries[0].as_mut().unwrap().bytes = 99), entry);
    assert_eq!(damaged(&|zswap| zswap.entries[0].as_mut().unwrap().stamp = 99), entry);
    assert_eq!(damaged(&|zswap| assert!(zswap.trees.erase(slot(1)).is_some())), entry);
    let number = ZswapViolation::Total("the number of entries");
    assert_eq!(damaged(&|zswap| zswap.stored = 3), number);
    assert_eq!(damaged(&|zswap| zswap.entries[0] = None), number);
    let charge = ZswapViolation::Total("the charge of a cgroup");
    assert_eq!(damaged(&|zswap| zswap.cgroups.get_mut(&1).unwrap().1 = 0), charge);
    let pools = ZswapViolation::Total("the bytes of the pools");
    assert_eq!(damaged(&|zswap| _ = zswap.pool.alloc(100)), pools);
}

#[derive(Clone, Debug)]
enum Step {
    Store { first: u64, lengths: Vec<u16>, cgroup: u16, node: u16 },
    Load { slot: u64, cached: bool },
    Invalidate(u64),
    Worker,
    Hot(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slot = || 1u64..24;
    let length = prop_oneof![6 => 1u16..3000, 1 => Just(4096u16)];
    prop::collection::vec(
        prop_oneof![
            8 => (slot(), prop::collection::vec(length, 1..4), 0u16..3, 0u16..2)
                .prop_map(|(first, lengths, cgroup, node)| Step::Store { first, lengths, cgroup, node }),
            4 => (slot(), any::<bool>()).prop_map(|(slot, cached)| Step::Load { slot, cached }),
            4 => slot().prop_map(Step::Invalidate),
            3 => Just(Step::Worker),
            1 => slot().prop_map(Step::Hot),
        ],
        1..40,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Beside a plain map from slot to length: nothing is found that was not stored, and what has gone went to disk or to
    /// whoever asked.
    #[test]
    fn model_zswap_is_a_map_from_slot_to_the_last_page_stored(
        steps in steps(),
        rule in prop::sample::select(&InvalidateRule::ALL),
        reject in any::<bool>(),
        ram_pages in 10u64..100,
    ) {
        let incompressible = if reject { Incompressible::Reject } else { Incompressible::Keep };
        let mut zswap = zswap(ZswapConfig { incompressible, invalidate: rule, ..config(ram_pages) });
        zswap.set_cgroup(1, CgroupRules { max_bytes: Some(5000), writeback: true });
        zswap.set_cgroup(2, CgroupRules { max_bytes: None, writeback: false });
        let mut plain: BTreeMap<SwapEntry, (u16, LruId)> = BTreeMap::new();
        let mut host = Host::default();
        for step in steps {
            host.written.clear();
            match step {
                Step::Store { first, lengths, cgroup, node } => {
                    let lru = LruId { cgroup, node };
                    let pages: Vec<_> = lengths.iter().map(|&bytes| Compressed::Bytes(bytes)).collect();
                    let request = StoreRequest { first: slot(first), lru, pages: &pages };
                    let stored = zswap.store(request, &mut host);
                    // A slot may be written to make room for its own next page.
                    for written in host.written.drain(..) {
                        prop_assert_eq!(plain.remove(&written).map(|(_, lru)| lru.cgroup), Some(cgroup));
                    }
                    for (entry, &bytes) in (first..).map(slot).zip(&lengths) {
                        plain.remove(&entry);
                        if stored.is_ok() {
                            plain.insert(entry, (bytes, lru));
                        }
                    }
                    if stored.is_err() {
                        prop_assert_eq!(zswap.check_rejected(request), Ok(()));
                    }
                }
                Step::Load { slot: number, cached } => {
                    let entry = slot(number);
                    let loaded = zswap.load(entry, 1, cached, |_| true).unwrap();
                    let expected = plain.get(&entry).map_or(Loaded::NotFound, |&(bytes, _)| {
                        Loaded::Found { bytes, exclusive: cached }
                    });
                    prop_assert_eq!(loaded, expected);
                    if cached {
                        plain.remove(&entry);
                    }
                }
                Step::Invalidate(number) => {
                    let costs = zswap.invalidate(slot(number));
                    prop_assert_eq!(costs.erases == 1, plain.remove(&slot(number)).is_some());
                    host.cached.remove(&slot(number));
                }
                Step::Worker => {
                    zswap.run_worker(&mut host);
                }
                Step::Hot(number) => {
                    host.cached.insert(slot(number));
                }
            }
            for written in &host.written {
                prop_assert!(plain.remove(written).is_some() && !host.cached.contains(written));
            }
            prop_assert_eq!(zswap.check(|_| false), Ok(()));
            prop_assert_eq!(zswap.stored_pages(), plain.len() as u64);
            for number in 1..30 {
                prop_assert_eq!(zswap.contains(slot(number)), plain.contains_key(&slot(number)));
            }
        }
    }
}
