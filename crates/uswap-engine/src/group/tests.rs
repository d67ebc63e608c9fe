//! Tests of the group.

use uswap_core::turns::Turn;
use uswap_core::{OwnerSearch, Policies, ReadaheadPolicy, ReclaimPolicy};
use uswap_system::atomic::Ordering::*;

use super::*;

fn config() -> GroupConfig {
    let mut config = GroupConfig {
        memory_limit_bytes: 512 << 20,
        zpool_percent: 35,
        accept_threshold_percent: 90,
        compressor: Compressor::Zstd,
        policies: Policies {
            reclaim: ReclaimPolicy::S3Fifo,
            readahead: ReadaheadPolicy::Vma,
            swapoff: OwnerSearch::Locate,
        },
        verbosity: 1,
        ..GroupConfig::default()
    };
    config.areas[0] =
        AreaConfig { present: true, slots: 512 * 4, priority: -2, direct: true, punch_holes: true, file: [7, 1] };
    config.areas[1] =
        AreaConfig { present: true, slots: 513, priority: 7, direct: false, punch_holes: false, file: [7, 2] };
    config
}

#[test]
fn another_mapping_sees_the_same_group() {
    let (group, fd) = Group::create(&config()).unwrap();
    let other = Group::open(&fd).unwrap();
    assert_eq!(*other.config(), config());
    let index = group.allot(77).unwrap();
    other.process(index).resident.anon_pages.store(12, Relaxed);
    other.process(index).resident.shmem_pages.store(3, Relaxed);
    assert_eq!(group.usage_pages(), 15);
    assert_eq!(other.processes().map(|(i, s)| (i, s.life.pid.load(Relaxed))).collect::<Vec<_>>(), [(index, 77)]);
}

#[test]
fn a_file_that_is_no_group_is_refused() {
    let fd = rustix::fs::memfd_create(c"x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(Group::open(&fd).is_err());
    rustix::fs::ftruncate(&fd, 1 << 24).unwrap();
    assert!(Group::open(&fd).is_err());
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    assert!(Group::open(&fd).is_err());
}

#[test]
fn clusters_have_one_owner_and_run_forward() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let (a, b) = (group.allot(1).unwrap(), group.allot(2).unwrap());
    assert_eq!(group.claim_cluster(0, a), Some(0));
    assert_eq!(group.claim_cluster(0, b), Some(1));
    assert_eq!(group.claim_cluster(0, a), Some(2));
    assert!(!group.release_cluster(0, 1, a), "not a's to give");
    assert!(group.release_cluster(0, 0, a));
    assert_eq!(group.claim_cluster(0, b), Some(3), "the hint moves on");
    assert_eq!(group.claim_cluster(0, b), Some(0));
    assert_eq!(group.claim_cluster(0, b), None);
    // 513 slots: one whole cluster and a short one.
    assert_eq!(group.claim_cluster(1, a), Some(0));
    assert_eq!(group.claim_cluster(1, a), Some(1));
    assert_eq!(group.claim_cluster(1, a), None);
    assert_eq!(group.claim_cluster(2, a), None, "an area that is not there");
    assert_eq!(group.clusters_of(0, b).collect::<Vec<_>>(), [0, 1, 3]);
    group.release_all_of(b);
    assert_eq!(group.clusters_taken(0), 1);
    assert_eq!(group.clusters_taken(1), 2);
}

#[test]
fn a_dead_owner_keeps_its_clusters_while_an_inheritor_lives() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let parent = group.allot(1).unwrap();
    group.claim_cluster(0, parent).unwrap();
    group.process(parent).fork_begins();
    assert!(group.process(parent).has_inheritors());
    // The parent dies before its child says hello.
    group.retire(parent);
    assert_eq!(group.reapable().count(), 0);
    let child = group.allot(2).unwrap();
    group.fork_arrived(parent, child);
    assert_eq!(group.reapable().count(), 0);
    // The grandchild inherits from both.
    group.process(child).fork_begins();
    let grandchild = group.allot(3).unwrap();
    group.fork_arrived(child, grandchild);
    group.retire(child);
    assert_eq!(group.reapable().count(), 0);
    assert_eq!(group.cluster_owner(0, 0), Some(parent));
    group.retire(grandchild);
    let mut reaped = group.reapable().collect::<Vec<_>>();
    reaped.sort_unstable();
    assert_eq!(reaped, [parent, child, grandchild]);
    reaped.into_iter().for_each(|index| group.reap(index));
    assert_eq!(group.clusters_taken(0), 0);
    assert_eq!(group.taken().count(), 0);
}

#[test]
fn a_pool_that_a_dead_owner_has_left_counts_until_nobody_reads_it() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let (limit, parent) = (group.limit_pages(), group.allot(1).unwrap());
    let owner = Holder { index: parent, generation: group.process(parent).life.generation.load(Relaxed) };
    group.process(parent).pool.bytes.store(100 * PAGE_BYTES, Relaxed);
    let children = [2, 3].map(|pid| {
        group.process(parent).fork_begins();
        let child = group.allot(pid).unwrap();
        group.fork_arrived(parent, child);
        child
    });
    assert_eq!((group.left_pool_pages(), group.limit_of_living_pages()), (0, limit), "it counts for its owner");
    group.retire(parent);
    assert_eq!((group.left_pool_pages(), group.limit_of_living_pages()), (100, limit - 100));
    assert_eq!((group.usage_pages(), group.resident_pages_at_least()), (100, 100));
    assert!(!group.is_only_heir(owner, children[0]), "there is another");
    group.retire(children[1]);
    assert!(group.is_only_heir(owner, children[0]) && !group.is_only_heir(owner, children[1]));
    group.process(children[0]).fork_begins();
    assert!(!group.is_only_heir(owner, children[0]), "there may be one more");
    group.process(children[0]).fork_failed();
    assert!(!group.is_only_heir(Holder { generation: owner.generation + 1, ..owner }, children[0]));
    group.process(parent).leaves_pool(40 * PAGE_BYTES);
    assert_eq!(group.left_pool_pages(), 40);
    group.process(parent).leaves_pool(2 * limit * PAGE_BYTES);
    assert_eq!(group.limit_of_living_pages(), limit / 4);
    group.retire(children[0]);
    for index in group.reapable().collect::<Vec<_>>() {
        group.reap(index);
    }
    assert_eq!((group.left_pool_pages(), group.usage_pages()), (0, 0));
}

#[test]
fn forks_that_never_arrived_are_forgotten() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let index = group.allot(1).unwrap();
    let slot = group.process(index);
    slot.fork_begins();
    slot.fork_begins();
    let seen = slot.forks_in_flight();
    slot.fork_begins();
    slot.forks_in_flight_are(seen, 0);
    assert_eq!(slot.forks_in_flight(), 3, "a fork began while the supervisor counted: not now");
    slot.forks_in_flight_are(3, 1);
    assert_eq!(slot.forks_in_flight(), 1);
    slot.fork_failed();
    slot.fork_failed();
    assert_eq!(slot.forks_in_flight(), 0);
}

#[test]
fn a_grandchild_whose_parent_died_before_its_hello_inherits_from_both() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let [parent, child] = [1, 2].map(|pid| group.allot(pid).unwrap());
    group.process(parent).fork_begins();
    group.fork_arrived(parent, child);
    group.process(child).fork_begins();
    group.retire(child);
    let grandchild = group.allot(3).unwrap();
    group.fork_arrived(child, grandchild);
    assert!(group.process(parent).is_inheritor(grandchild));
    group.retire(parent);
    assert_eq!(group.reapable().count(), 0);
    group.retire(grandchild);
    while let Some(index) = group.reapable().next() {
        group.reap(index);
    }
    assert_eq!(group.taken().count(), 0);
}

#[test]
fn heirs_arrive_until_they_are_in_their_ledgers() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let [parent, child] = [1, 2].map(|pid| group.allot(pid).unwrap());
    assert_eq!(group.heirs_of(parent), Heirs::None);
    group.process(parent).fork_begins();
    assert_eq!(group.heirs_of(parent), Heirs::Arriving);
    group.fork_arrived(parent, child);
    assert_eq!(group.heirs_of(parent), Heirs::Arriving);
    group.process(child).inherits();
    assert_eq!(group.heirs_of(parent), Heirs::Present);
    // A grandchild, whose parent dies before its hello.
    group.process(child).fork_begins();
    assert_eq!(group.heirs_of(parent), Heirs::Arriving);
    group.retire(child);
    assert_eq!(group.heirs_of(parent), Heirs::Arriving);
    let grandchild = group.allot(3).unwrap();
    group.fork_arrived(child, grandchild);
    assert_eq!(group.heirs_of(parent), Heirs::Arriving);
    group.process(grandchild).inherits();
    assert_eq!(group.heirs_of(parent), Heirs::Present);
    group.retire(grandchild);
    group.reapable().collect::<Vec<_>>().into_iter().for_each(|index| group.reap(index));
    assert_eq!(group.heirs_of(parent), Heirs::None);
}

#[test]
fn counts_of_the_dead_are_kept() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let index = group.allot(1).unwrap();
    let generation = group.process(index).life.generation.load(Relaxed);
    group.process(index).tally.add(Counter::Pswpin, 5);
    group.process(index).tally.latency(LatencyKind::Zswap).record(1000);
    group.process(index).resident.anon_pages.store(9, Relaxed);
    assert_eq!(group.count(Counter::Pswpin), 5);
    group.retire(index);
    assert_eq!(group.usage_pages(), 0);
    group.reap(index);
    assert_eq!(group.count(Counter::Pswpin), 5);
    assert_eq!(group.totals().latency(LatencyKind::Zswap).count(), 1);
    let again = group.allot(2).unwrap();
    assert_eq!(again, index);
    assert_ne!(group.process(again).life.generation.load(Relaxed), generation);
    assert_eq!(group.process(again).tally.get(Counter::Pswpin), 0);
    assert_eq!(group.process(again).resident.anon_pages.load(Relaxed), 0);
}

#[test]
fn shares_of_shared_memory_are_of_different_times() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let slots = [1, 2].map(|pid| group.process(group.allot(pid).unwrap()));
    let looks = |slot: &ProcessSlot, resident: u64, own: u64| {
        slot.shared.growth.store(group.shared_growth(), Relaxed);
        slot.shared.pages.store(own, Relaxed);
        slot.resident.shmem_pages.store(own, Relaxed);
        slot.shared.resident_pages.store(resident, Relaxed);
    };
    // The first has all of it for itself; then the second maps the same.
    looks(slots[0], 1000, 1000);
    group.shared_memory_grows(1000);
    looks(slots[1], 1000, 500);
    assert_eq!(group.resident_pages_at_least(), 1000, "nothing of it is counted twice");
    looks(slots[0], 1000, 500);
    assert_eq!(group.resident_pages_at_least(), 1000);
    // Another 600 that are its own, and nobody knows it at first.
    group.shared_memory_grows(600);
    looks(slots[0], 1600, 1100);
    assert_eq!(group.resident_pages_at_least(), 1600);
    slots[0].shared.resident_pages.store(0, Relaxed);
    assert_eq!(group.fixed_pages().1, 1300);
    looks(slots[1], 1000, 500);
    assert_eq!((group.resident_pages_at_least(), group.fixed_pages()), (1600, (1600, 1600)));
}

#[test]
fn what_was_seen_of_shared_memory_is_there_until_somebody_lets_go_of_some() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let indices = [1, 2].map(|pid| group.allot(pid).unwrap());
    for (index, own) in indices.into_iter().zip([500, 700]) {
        let slot = group.process(index);
        slot.shared.pages.store(own, Relaxed);
        slot.resident.shmem_pages.store(own, Relaxed);
        slot.shared.resident_pages.store(own, Relaxed);
    }
    assert_eq!(group.resident_pages_at_least(), 1200);
    // Each maps what the other has.
    group.shared_memory_grows(1000);
    assert_eq!((group.resident_pages_at_least(), group.fixed_pages().1), (1200, 700));
    group.shared_memory_shrinks(100);
    assert_eq!(group.resident_pages_at_least(), 1100);
    group.retire(indices[0]);
    assert_eq!(group.resident_pages_at_least(), 700);
}

#[test]
fn the_token_is_with_the_lowest_ticket_of_the_living() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let [one, two, three] = [1, 2, 3].map(|pid| group.allot(pid).unwrap());
    group.take_ticket(one);
    assert_eq!(group.turn_of(one), Turn::Open, "nobody waits");
    group.take_ticket(two);
    group.take_ticket(three);
    assert_eq!([one, two, three].map(|index| group.turn_of(index)), [Turn::Mine(2), Turn::Waits, Turn::Waits]);
    group.take_ticket(one);
    assert_eq!([one, two, three].map(|index| group.turn_of(index)), [Turn::Waits, Turn::Mine(2), Turn::Waits]);
    group.retire(two);
    assert_eq!([one, three].map(|index| group.turn_of(index)), [Turn::Waits, Turn::Mine(1)]);
    group.return_ticket(three);
    assert_eq!([one, three].map(|index| group.turn_of(index)), [Turn::Open, Turn::Open]);
    group.take_ticket(three);
    let (first, seen) = group.first_ticket().unwrap();
    assert_eq!(first, one);
    group.has_judged(one);
    assert_ne!(group.first_ticket().unwrap().1, seen);
    group.take_away(one, seen.ticket + 1);
    assert!(group.has_ticket(one), "another one than that which was seen");
    group.take_away(one, seen.ticket);
    assert!(!group.has_ticket(one));
    assert_eq!(group.first_ticket().unwrap().0, three);
    // Who comes to the place of a process that has gone has none.
    group.reap(two);
    let next = group.allot(4).unwrap();
    assert!(next == two && !group.has_ticket(next));
}

#[test]
fn a_forked_child_has_what_it_got_since_for_itself() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let [parent, child] = [1, 2].map(|pid| group.allot(pid).unwrap());
    group.process(child).is_child_of(holder(&group, parent));
    for index in [parent, child] {
        group.process(index).resident.anon_pages.store(100, Relaxed);
    }
    assert_eq!(group.resident_pages_at_least(), 100, "it has not looked yet");
    group.process(child).resident.inherited_pages.store(80, Relaxed);
    assert_eq!(group.resident_pages_at_least(), 120);
}

fn holder(group: &Group, index: u32) -> Holder {
    Holder { index, generation: group.process(index).life.generation.load(Relaxed) }
}

#[test]
fn what_a_fork_left_in_common_counts_once_as_long_as_the_parent_lives() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let [parent, one, other] = [1, 2, 3].map(|pid| group.allot(pid).unwrap());
    for index in [parent, one, other] {
        group.process(index).resident.anon_pages.store(1000, Relaxed);
    }
    assert_eq!(group.usage_pages(), 3000);
    for (child, left_out) in [(one, 900), (other, 1000)] {
        group.process(child).is_child_of(holder(&group, parent));
        group.process(child).resident.in_common.left_out.store(left_out, Relaxed);
    }
    assert_eq!(group.usage_pages(), 1100);
    assert_eq!([parent, one, other].map(|index| group.usage_pages_of(index)), [1000, 100, 0]);
    let family = group.family();
    assert_eq!([parent, one].map(|index| family.in_common(&group, index, group.process(index))), [1000, 0]);
    // What may have changed since they looked is no sign that any has let go.
    for (child, when_looked) in [(one, 980), (other, 1000)] {
        group.process(child).resident.in_common.when_looked.store(when_looked, Relaxed);
    }
    group.process(other).resident.in_common.left_out.store(950, Relaxed);
    let family = group.family();
    assert_eq!(
        (family.in_common(&group, parent, group.process(parent)), family.in_common_when_looked(parent)),
        (950, 1000)
    );
    group.process(other).resident.in_common.left_out.store(1000, Relaxed);
    // The parent may have copied or dropped so many, which its children still have.
    group.process(parent).resident.in_common.changes.store(50, Relaxed);
    assert_eq!(group.usage_pages_of(parent), 1050);
    // What it counts for them stays in common when it has dropped the most of its own.
    group.process(parent).resident.anon_pages.store(100, Relaxed);
    group.process(parent).resident.in_common.changes.store(900, Relaxed);
    assert_eq!(group.family().in_common(&group, parent, group.process(parent)), 1000);
    group.process(parent).resident.anon_pages.store(1000, Relaxed);
    group.process(parent).resident.in_common.changes.store(50, Relaxed);
    // Cannot be swapped: no more than each has of its own.
    group.process(one).resident.unmanaged_pages.store(500, Relaxed);
    assert_eq!(group.family().fixed_pages(&group, one, group.process(one)), 100);
    group.retire(parent);
    assert_eq!(group.usage_pages(), 2000);
}

#[test]
fn of_very_many_parents_the_children_of_some_count_in_full() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let families = 40;
    for family in 0..families {
        let [parent, child] = [1, 2].map(|pid| group.allot(1000 + 2 * family + pid).unwrap());
        group.process(child).is_child_of(holder(&group, parent));
        group.process(child).resident.in_common.left_out.store(10, Relaxed);
        for index in [parent, child] {
            group.process(index).resident.anon_pages.store(10, Relaxed);
        }
    }
    assert_eq!(group.usage_pages(), 400 + 8 * 10);
}

#[test]
fn all_slots_can_be_taken_and_no_more() {
    let (group, _fd) = Group::create(&config()).unwrap();
    for n in 0..PROCESSES_MAX as u32 {
        assert_eq!(group.allot(n + 1), Some(n));
    }
    assert_eq!(group.allot(9999), None);
    group.retire(500);
    group.reap(500);
    assert_eq!(group.allot(9999), Some(500));
}

#[test]
fn a_killed_process_leaves_a_group_that_works() {
    // Two processes claim and release clusters without pause; one is killed in the middle of it.
    let (group, _fd) = Group::create(&config()).unwrap();
    let index = group.allot(1).unwrap();
    // SAFETY: the child calls nothing but prctl and atomic operations on shared memory, and is killed.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // Also when the test fails or is killed.
        // SAFETY: changes only what becomes of this process when its parent ends.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        loop {
            if let Some(cluster) = group.claim_cluster(0, index) {
                group.process(index).tally.add(Counter::Pswpout, 1);
                if cluster % 2 == 0 {
                    let _ = group.release_cluster(0, cluster, index);
                }
            } else {
                group.release_all_of(index);
            }
        }
    }
    let me = group.allot(2).unwrap();
    let mut mine = 0;
    while mine == 0 || group.process(index).tally.get(Counter::Pswpout) < 10_000 {
        if let Some(cluster) = group.claim_cluster(0, me) {
            assert_eq!(group.cluster_owner(0, cluster), Some(me));
            mine += 1;
            assert!(group.release_cluster(0, cluster, me));
        }
    }
    // SAFETY: our own child, not waited for yet.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    group.retire(index);
    assert_eq!(group.reapable().collect::<Vec<_>>(), [index]);
    group.reap(index);
    assert_eq!(group.clusters_taken(0), 0);
    assert!(group.count(Counter::Pswpout) >= 10_000);
}

#[test]
fn what_a_dead_parent_had_is_not_off_its_area_while_a_child_is_on_its_way() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let parent = group.allot(1).unwrap();
    group.process(parent).fork_begins();
    group.retire(parent);
    assert_eq!(group.swapoff_progress(0).unfinished, 1);
    group.process(parent).fork_failed();
    assert_eq!(group.swapoff_progress(0).unfinished, 0);
}

/// Whoever is told that an area is empty may put his own data there, and nobody gives its blocks back after that.
#[test]
fn what_a_dead_parent_owned_is_given_back_before_its_area_is_empty() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let (parent, child) = (group.allot(1).unwrap(), group.allot(2).unwrap());
    let cluster = group.claim_cluster(0, parent).unwrap();
    group.process(parent).fork_begins();
    group.fork_arrived(parent, child);
    group.process(child).inherits();
    group.retire(parent);
    group.set_leaving(0, true);
    assert_eq!(group.left_behind(0).count(), 0, "the child may read it");
    group.process(child).called.carried_out.store(group.announcements(), Release);
    assert_eq!(group.swapoff_progress(0), SwapoffProgress { used_slots: 0, unfinished: 1, waits_for_memory: false });
    assert_eq!(group.left_behind(0).collect::<Vec<_>>(), [parent]);
    group.release_all_on(0, parent);
    assert_eq!(group.cluster_owner(0, cluster), None);
    assert_eq!(group.swapoff_progress(0).unfinished, 0);
    group.withhold_cluster(0, cluster);
    assert_eq!(group.swapoff_progress(0).unfinished, 0, "nobody's");
}

/// The child of a child that has ended before the supervisor heard of that one's child.
#[test]
fn an_heir_that_has_ended_holds_up_no_area() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let [owner, parent, child] = [1, 2, 3].map(|pid| group.allot(pid).unwrap());
    group.process(owner).fork_begins();
    group.fork_arrived(owner, parent);
    group.process(parent).fork_begins();
    group.retire(parent);
    assert!(group.process(owner).is_inheritor(parent), "its child has not arrived");
    group.fork_arrived(parent, child);
    assert!(!group.process(owner).is_inheritor(parent) && group.process(owner).is_inheritor(child));
    group.process(child).inherits();
    group.set_leaving(0, true);
    assert!(!group.heirs_have_left(owner, 0), "the child may have something there");
    group.process(child).called.carried_out.store(group.announcements(), Release);
    assert!(group.heirs_have_left(owner, 0));
}

/// Its user has been told, and may have put his own data there.
#[test]
fn an_area_that_is_off_is_never_used_again() {
    let (group, _fd) = Group::create(&config()).unwrap();
    assert!(!group.set_off(0), "it is in use");
    group.set_leaving(0, true);
    group.set_leaving(0, false);
    assert!(!group.is_leaving(0) && !group.set_off(0), "another has taken it back");
    group.set_leaving(0, true);
    assert!(group.set_off(0) && group.is_off(0));
    for leaving in [false, true, false] {
        group.set_leaving(0, leaving);
        assert!(group.is_leaving(0) && group.is_off(0));
    }
}

/// The shared-memory server may still be about what a process has said that has been killed since.
#[test]
fn no_answer_comes_to_who_has_the_slot_next() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let index = group.allot(1).unwrap();
    let of_the_first = || group.process(index).called.shared_known.load(Acquire);
    let before = of_the_first();
    group.retire(index);
    group.reap(index);
    assert_eq!(group.allot(2), Some(index));
    assert_ne!(of_the_first(), before);
}

/// A parent with 100 pages, and two children that have 60 of them and nothing else.
#[test]
fn a_census_holds_until_one_forks_or_ends_or_cannot_tell() {
    let (group, _fd) = Group::create(&config()).unwrap();
    let all = [1, 2, 3].map(|pid| group.allot(pid).unwrap());
    let slots = all.map(|index| group.process(index));
    for (slot, pages) in slots.iter().zip([100, 60, 60]) {
        slot.resident.anon_pages.store(pages, Relaxed);
    }
    slots[1..].iter().for_each(|slot| slot.is_child_of(holder(&group, all[0])));
    let counted = |pages| Some(ByCensus { most: pages, least: pages - 3 });
    let enter = |census: u64| {
        for (slot, (share, resident)) in slots.iter().zip([(60u64, 100), (20, 60), (20, 60)]) {
            assert_eq!(group.last_census(), None, "one has not entered");
            group.enter(slot, census, group.mark(slot, 0).kin, share.wrapping_sub(resident), (share, resident));
        }
    };
    assert!(!group.announce_census(1), "one was born since that was counted");
    assert!(group.announce_census(0));
    assert_eq!(group.by_census(), None);
    enter(1);
    assert_eq!((group.last_census(), group.by_census()), (counted(100), counted(100)));
    slots[1].resident.anon_pages.store(70, Relaxed);
    assert_eq!(group.by_census(), counted(110), "it has ten pages more");
    assert!(group.announce_census(0));
    assert_eq!((group.last_census(), group.by_census()), (None, counted(110)), "until all have entered");
    slots[1].resident.in_common.changes.store(uswap_core::in_common::UNKNOWN, Relaxed);
    assert_eq!(group.by_census(), None);
    slots[1].resident.in_common.changes.store(0, Relaxed);
    slots[2].birth_begins();
    assert_eq!(group.by_census(), None);
    assert!(!group.announce_census(0) && group.announce_census(group.births()));
    enter(3);
    assert_eq!(group.by_census(), counted(110));
    assert_eq!(group.resident_pages_at_least(), 107);
    // What it may have copied or dropped counts, but is not there for certain.
    slots[1].resident.in_common.changes.store(5, Relaxed);
    assert_eq!(group.by_census(), Some(ByCensus { most: 115, least: 107 }));
    group.retire(all[2]);
    assert_eq!(group.by_census(), None);
}
