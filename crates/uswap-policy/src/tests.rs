//! One suite for all policies.

use alloc::collections::BTreeSet;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::*;

fn policies(capacity: usize) -> Vec<Box<dyn Replacement>> {
    NAMES.into_iter().map(|name| by_name(name, capacity).unwrap()).collect()
}

/// Numbers that look random, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        for shift in [13, -7, 17] {
            self.0 ^= if shift > 0 { self.0 << shift } else { self.0 >> -shift };
        }
        (self.0 >> 11) % limit
    }

    /// Page `n` with a chance near `1 / (n + 1)`.
    fn zipf(&mut self, pages: u64) -> PageIndex {
        let bits = u64::BITS - pages.leading_zeros();
        let scale = 1 << self.below(u64::from(bits));
        (scale - 1 + self.below(scale)).min(pages - 1) as PageIndex
    }
}

fn zipf(accesses: usize, pages: u64) -> Vec<PageIndex> {
    let mut random = Random(88_172_645_463_325_252);
    (0..accesses).map(|_| random.zipf(pages)).collect()
}

fn misses(policy: &mut dyn Replacement, trace: &[PageIndex]) -> u64 {
    trace.iter().filter(|&&page| policy.access(page) != Access::Hit).count() as u64
}

#[test]
fn a_policy_is_chosen_by_name() {
    for name in NAMES {
        assert_eq!(by_name(name, 10).unwrap().name(), name);
    }
    let refused = by_name("fifo", 10).err().unwrap().to_string();
    assert_eq!(refused, "unknown replacement policy; choose one of second-chance s3-fifo lirs linux-lru");
}

#[test]
fn what_is_resident_is_what_came_and_did_not_leave() {
    for capacity in [1, 2, 3, 10, 64] {
        for mut policy in policies(capacity) {
            let mut resident = BTreeSet::new();
            let mut random = Random(7);
            for _ in 0..5000 {
                let page = random.zipf(200);
                if random.below(50) == 0 {
                    policy.forget(page);
                    resident.remove(&page);
                    continue;
                }
                match policy.access(page) {
                    Access::Hit => assert!(resident.contains(&page)),
                    Access::Miss { evicted } => {
                        assert_eq!(evicted.is_some(), resident.len() == capacity);
                        assert!(evicted.is_none_or(|victim| resident.remove(&victim)), "{evicted:?} was not there");
                        assert!(resident.insert(page));
                    }
                }
                assert_eq!(policy.resident(), resident.len());
                assert!((0..200).all(|page| policy.is_resident(page) == resident.contains(&page)));
            }
            let mut left = BTreeSet::new();
            while let Some(page) = policy.evict() {
                assert!(left.insert(page), "{page} left twice");
            }
            assert_eq!(left, resident, "{}", policy.name());
        }
    }
}

#[test]
fn no_policy_misses_less_than_the_optimum() {
    for capacity in [1, 7, 50, 300] {
        let trace = zipf(20_000, 500);
        let optimum = belady_misses(&trace, capacity);
        for mut policy in policies(capacity) {
            assert!(misses(&mut *policy, &trace) >= optimum, "{} beats the optimum", policy.name());
        }
    }
}

#[test]
fn what_fits_is_missed_once() {
    for mut policy in policies(100) {
        let trace: Vec<PageIndex> = (0..100).cycle().take(1000).collect();
        assert_eq!(misses(&mut *policy, &trace), 100, "{}", policy.name());
    }
}

#[test]
fn pages_that_are_used_often_survive_a_scan() {
    for mut policy in policies(100) {
        let hot: Vec<PageIndex> = (0..60).collect();
        for _ in 0..20 {
            let _ = misses(&mut *policy, &hot);
        }
        // One page in four is of the scan, the others are used on and on.
        let mut scan = 1000..;
        for round in 0..40 {
            let missed = misses(&mut *policy, &hot);
            assert!(round < 5 || missed <= 6, "{}: the scan pushed {missed} of 60 pages out", policy.name());
            let scanned: Vec<PageIndex> = scan.by_ref().take(20).collect();
            assert_eq!(misses(&mut *policy, &scanned), 20);
        }
    }
}

#[test]
fn lirs_keeps_most_of_a_loop_that_does_not_fit() {
    let trace: Vec<PageIndex> = (0..125).cycle().take(125 * 100).collect();
    let optimum = belady_misses(&trace, 100);
    let hits = |misses: u64| trace.len() as u64 - misses;
    let mut lirs = Lirs::new(100);
    let found = hits(misses(&mut lirs, &trace));
    assert!(found * 100 >= hits(optimum) * 95, "{found} hits where the optimum has {}", hits(optimum));
    let mut second_chance = SecondChance::new(100);
    assert_eq!(hits(misses(&mut second_chance, &trace)), 0, "an order by age misses all");
}

#[test]
fn a_smaller_memory_is_filled_again_up_to_its_new_size() {
    for mut policy in policies(100) {
        let trace = zipf(5000, 300);
        let _ = misses(&mut *policy, &trace);
        policy.resize(30);
        while policy.resident() > 30 {
            assert!(policy.evict().is_some());
        }
        let _ = misses(&mut *policy, &trace);
        assert_eq!(policy.resident(), 30);
        policy.resize(200);
        let _ = misses(&mut *policy, &trace);
        assert_eq!(policy.resident(), 200, "{}", policy.name());
    }
}

#[test]
fn no_policy_keeps_more_than_the_bound_for_a_page() {
    for mut policy in policies(1000) {
        let trace: Vec<PageIndex> = (0..20_000).collect();
        let _ = misses(&mut *policy, &trace);
        assert!(policy.bytes() <= 20_000 * BYTES_PER_PAGE_MAX, "{}", policy.name());
    }
}

#[test]
fn a_forgotten_page_has_no_history() {
    for mut policy in policies(20) {
        let trace = zipf(2000, 60);
        let _ = misses(&mut *policy, &trace);
        (0..60).for_each(|page| policy.forget(page));
        assert_eq!(policy.resident(), 0);
        let mut fresh = by_name(policy.name(), 20).unwrap();
        for &page in &trace {
            assert_eq!(policy.access(page), fresh.access(page), "{}", policy.name());
        }
    }
}
