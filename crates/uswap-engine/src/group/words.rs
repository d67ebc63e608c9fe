//! What processes of a group do at the same time: a cluster has one owner, what a forked child may read is kept, a call is
//! heard, and what was counted is counted once. Each thread is a process here.

use std::sync::Arc;
use std::sync::atomic::AtomicBool as Plain;
use std::sync::atomic::Ordering::SeqCst;

use uswap_system::atomic::Ordering::*;
use uswap_system::words::{Defect, Shuttle, finds, holds, preempt, thread};
use uswap_system::{Scope, System};

use super::{AreaConfig, Counter, Group, GroupConfig, Heirs, SlotState};

fn group() -> Arc<Group> {
    let mut config = GroupConfig { memory_limit_bytes: 1 << 20, ..GroupConfig::default() };
    config.areas[0] = AreaConfig { present: true, slots: 512 * 3, ..AreaConfig::default() };
    Arc::new(Group::create(&config).expect("there is memory").0)
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
}

/// Processes take clusters, keep the first and give the second back; the supervisor frees those of a dead one.
fn clusters_are_taken_and_given_back() {
    let group = group();
    let dead = group.allot(9).expect("a slot is free");
    assert_eq!(group.claim_cluster(0, dead), Some(0));
    let mut all: Vec<_> = (0..2)
        .map(|number| {
            let group = group.clone();
            let me = group.allot(number + 1).expect("a slot is free");
            thread::spawn(move || {
                let kept = group.claim_cluster(0, me);
                if let Some(second) = group.claim_cluster(0, me) {
                    assert_eq!(group.cluster_owner(0, second), Some(me), "a cluster has another owner");
                    assert!(group.release_cluster(0, second, me), "a cluster has another owner");
                }
                if let Some(kept) = kept {
                    preempt();
                    assert_eq!(group.cluster_owner(0, kept), Some(me), "a cluster has another owner");
                }
            })
        })
        .collect();
    let supervisor = group.clone();
    all.push(thread::spawn(move || supervisor.release_all_of(dead)));
    join(all);
    assert_eq!(group.clusters_of(0, dead).count(), 0, "a dead process has a cluster");
}

#[test]
fn a_cluster_has_one_owner() {
    holds(clusters_are_taken_and_given_back);
    finds(Defect::Torn, clusters_are_taken_and_given_back);
}

/// A process forks, its child forks at once, and each ends; the owner looks who may read its slots. `arrives` is the supervisor's
/// part of a child's hello.
fn forks_follow_each_other(arrives: fn(&Group, u32, u32), looks: fn(&Group, u32) -> Heirs) {
    let group = group();
    let owner = group.allot(1).expect("a slot is free");
    group.process(owner).fork_begins();
    // The supervisor is one thread; so it allots and retires in turn.
    let (lives, supervised) = (Arc::new(Plain::new(true)), group.clone());
    let living = lives.clone();
    let supervisor = thread::spawn(move || {
        let group = &supervised;
        let child = group.allot(2).expect("a slot is free");
        arrives(group, owner, child);
        group.process(child).inherits();
        // The child's own part: it forks, and is gone.
        group.process(child).fork_begins();
        group.retire(child);
        let grandchild = group.allot(3).expect("a slot is free");
        arrives(group, child, grandchild);
        group.process(grandchild).inherits();
        if group.process(child).has_inheritors() {
            preempt();
        }
        living.store(false, SeqCst);
        group.retire(grandchild);
    });
    for _ in 0..3 {
        let heirs = looks(&group, owner);
        assert!(heirs != Heirs::None || !lives.load(SeqCst), "an heir lives, and nobody knows of it");
    }
    join([supervisor]);
    // The dead are reaped one after the other, and then nobody can read anything.
    while let Some(dead) = group.reapable().next() {
        group.reap(dead);
    }
    assert_eq!(group.heirs_of(owner), Heirs::None);
    assert!(!group.process(owner).has_inheritors(), "somebody is waited for that is gone");
}

#[test]
fn an_owner_knows_of_its_heirs_as_long_as_one_lives() {
    holds(|| forks_follow_each_other(Group::fork_arrived, Group::heirs_of));
}

#[test]
fn a_flight_that_ends_before_the_heir_is_noted_is_found() {
    finds(Defect::Own, || {
        let early = |group: &Group, parent: u32, child: u32| {
            group.process(parent).fork_failed();
            (0..8).for_each(|_| preempt());
            group.process(parent).fork_begins();
            group.fork_arrived(parent, child);
        };
        forks_follow_each_other(early, Group::heirs_of);
    });
}

/// Forks of several threads' children end while others begin.
fn flights_are_counted() {
    let group = group();
    let owner = group.allot(1).expect("a slot is free");
    let forks: Vec<_> = (0..3)
        .map(|number| {
            let group = group.clone();
            thread::spawn(move || {
                let slot = group.process(owner);
                slot.fork_begins();
                // The supervisor, which has counted before this one began, takes none of it away.
                if number == 0 {
                    let seen = slot.forks_in_flight();
                    slot.forks_in_flight_are(seen, seen);
                }
                assert!(slot.forks_in_flight() > 0, "a fork in flight is not counted");
                slot.fork_failed();
            })
        })
        .collect();
    join(forks);
    assert_eq!((group.process(owner).forks_in_flight(), group.process(owner).forks_begun()), (0, 3));
}

#[test]
fn forks_in_flight_are_counted_once() {
    holds(flights_are_counted);
    finds(Defect::Torn, flights_are_counted);
}

/// Who has been called does what was announced, and sleeps again. `looks` is what a process sees before it goes to work.
fn announcements_are_carried_out(looks: fn(&Group, u32) -> (u32, u32)) {
    let group = group();
    let me = group.allot(1).expect("a slot is free");
    group.process(me).running();
    let called = group.clone();
    let process = thread::spawn(move || {
        let slot = called.process(me);
        loop {
            let (calls, announced) = looks(&called, me);
            preempt();
            slot.called.carried_out.store(announced, Release);
            if called.is_leaving(0) && announced == 2 {
                return;
            }
            Shuttle::wait(&slot.called.calls, Scope::Shared, calls, None);
        }
    });
    group.announce::<Shuttle>();
    group.header().areas.leaving[0].store(1, Release);
    group.announce::<Shuttle>();
    join([process]);
    assert_eq!(group.swapoff_progress(0).unfinished, 0, "an announcement was not carried out");
}

#[test]
fn every_announcement_is_carried_out() {
    let looks = |group: &Group, me: u32| {
        let calls = group.process(me).called.calls.load(Acquire);
        (calls, group.announcements())
    };
    holds(move || announcements_are_carried_out(looks));
    finds(Defect::NoWake, move || announcements_are_carried_out(looks));
}

#[test]
fn a_process_that_looks_for_calls_after_the_announcement_is_found() {
    finds(Defect::Own, || {
        announcements_are_carried_out(|group, me| {
            let announced = group.announcements();
            (group.process(me).called.calls.load(Acquire), announced)
        });
    });
}

/// A process counts on while the supervisor, which takes it for dead, adds up.
fn counts_are_moved() {
    let group = group();
    let me = group.allot(1).expect("a slot is free");
    let counts = {
        let group = group.clone();
        thread::spawn(move || (0..3).for_each(|_| group.process(me).tally.add(Counter::Forks, 1)))
    };
    group.totals().absorb(&group.process(me).tally);
    join([counts]);
    assert_eq!(group.count(Counter::Forks), 3, "a count is lost or double");
}

#[test]
fn what_is_counted_is_counted_once() {
    holds(counts_are_moved);
    finds(Defect::Torn, counts_are_moved);
}

/// Only Starting becomes Running: who says so late, when the supervisor has seen it die, changes nothing.
fn a_process_begins_as_it_dies() {
    let group = group();
    let me = group.allot(1).expect("a slot is free");
    let begins = {
        let group = group.clone();
        thread::spawn(move || group.process(me).running())
    };
    group.retire(me);
    join([begins]);
    assert_eq!(group.process(me).state(), SlotState::Dead, "a dead process runs");
}

#[test]
fn a_dead_process_does_not_begin() {
    holds(a_process_begins_as_it_dies);
    finds(Defect::Torn, a_process_begins_as_it_dies);
}
