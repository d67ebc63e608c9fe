//! A ledger lives as long as somebody who holds it, and an entry as long as somebody may read it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool as Plain;
use std::sync::atomic::Ordering::SeqCst;

use uswap_core::{AreaId, EntryId, EntrySet, Location};
use uswap_system::atomic::Ordering::*;
use uswap_system::atomic::{AtomicU64, fence};
use uswap_system::words::{Defect, finds, holds, preempt, thread};

use super::{Heirs, Holder, Ledger};

/// Where content goes.
const SLOT: Location = Location::Slot { area: AreaId(0), slot: 5 };
const FIRST: Holder = Holder { index: 0, generation: 1 };
const SECOND: Holder = Holder { index: 1, generation: 1 };

/// A ledger that is unmapped in the end.
struct Mapped(Option<Ledger>);

impl Mapped {
    fn new() -> Mapped {
        Mapped(Some(Ledger::new(64).expect("there is memory")))
    }

    /// As another process has it.
    fn again(&self) -> Mapped {
        Mapped(Some(self.get().map_again().expect("there is memory")))
    }

    fn get(&self) -> &Ledger {
        self.0.as_ref().expect("it is mapped until it is dropped")
    }

    fn get_mut(&mut self) -> &mut Ledger {
        self.0.as_mut().expect("it is mapped until it is dropped")
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Ledger::discard);
    }
}

/// A child forks and dies, while the parent looks: as long as one of the two lives, the ledger does.
fn a_holder_forks(register: fn(&Ledger, Holder), is_alive: fn(&mut Ledger, &dyn Fn(Holder) -> bool) -> bool) {
    let mut ledger = Mapped::new();
    ledger.get().fork_begins_with(&EntrySet::from_iter([EntryId(3)]));
    let first_lives = Arc::new(Plain::new(true));
    let child = {
        let (ledger, first_lives) = (ledger.again(), first_lives.clone());
        thread::spawn(move || {
            register(ledger.get(), FIRST);
            ledger.get().fork_begins();
            let of_second = ledger.again();
            let second = thread::spawn(move || register(of_second.get(), SECOND));
            first_lives.store(false, SeqCst);
            second.join().expect("it ends");
        })
    };
    for _ in 0..3 {
        let lives = |holder: Holder| holder == SECOND || (holder == FIRST && first_lives.load(SeqCst));
        assert!(is_alive(ledger.get_mut(), &lives), "a holder lives, and its ledger is taken for dead");
        preempt();
    }
    child.join().expect("it ends");
    assert!(is_alive(ledger.get_mut(), &|holder| holder == SECOND));
    assert!(!is_alive(ledger.get_mut(), &|_| false), "all holders are dead");
}

fn look(ledger: &mut Ledger, lives: &dyn Fn(Holder) -> bool) -> bool {
    ledger.is_alive(Heirs::Arriving, lives)
}

#[test]
fn a_ledger_lives_as_long_as_a_holder() {
    holds(|| a_holder_forks(Ledger::register, look));
}

#[test]
fn a_holder_that_ends_its_flight_before_it_is_written_down_is_found() {
    finds(Defect::Own, || {
        let early = |ledger: &Ledger, holder: Holder| {
            ledger.fork_failed();
            ledger.register(holder);
        };
        a_holder_forks(early, look);
    });
}

#[test]
fn a_look_at_flights_before_the_holders_is_found() {
    finds(Defect::Own, || {
        let early = |ledger: &mut Ledger, lives: &dyn Fn(Holder) -> bool| {
            let registered = ledger.header().registered.load(Acquire);
            let is_pending = ledger.header().pending.load(Acquire) != 0;
            preempt();
            is_pending || ledger.holders(registered as usize, lives).0
        };
        a_holder_forks(Ledger::register, early);
    });
}

/// Two children of one fork's child come at the same time.
fn two_come() {
    let mut ledger = Mapped::new();
    ledger.get().fork_begins_with(&EntrySet::from_iter([EntryId(3)]));
    ledger.get().fork_begins();
    let come = [FIRST, SECOND].map(|holder| {
        let ledger = ledger.again();
        thread::spawn(move || ledger.get().register(holder))
    });
    come.into_iter().for_each(|thread| thread.join().expect("it ends"));
    for one in [FIRST, SECOND] {
        assert!(ledger.get_mut().is_alive(Heirs::Present, |holder| holder == one), "a holder is not in its ledger");
    }
    assert_eq!(ledger.get().header().pending.load(Acquire), 0, "a flight has not ended");
}

#[test]
fn each_holder_has_a_place_of_its_own() {
    holds(two_come);
    finds(Defect::Torn, two_come);
}

/// One holder gives entries of one word up while the owner looks: each bit goes once, and no other with it.
fn entries_are_given_up() {
    let ledger = Mapped::new();
    ledger.get().fork_begins_with(&(0..4).map(EntryId).collect());
    ledger.get().register(FIRST);
    // Threads of one holder.
    let give_up = [0, 1].map(|entry| {
        let ledger = ledger.again();
        thread::spawn(move || ledger.get().give_up(EntryId(entry)))
    });
    for entry in 2..4 {
        assert!(ledger.get().holds(EntryId(entry)), "an entry that nobody gave up is free");
    }
    give_up.into_iter().for_each(|thread| thread.join().expect("it ends"));
    let held: Vec<bool> = (0..4).map(|entry| ledger.get().holds(EntryId(entry))).collect();
    assert_eq!(held, [false, false, true, true], "what was given up is held, or what was not is free");
}

#[test]
fn a_bit_is_given_up_once_and_alone() {
    holds(entries_are_given_up);
    finds(Defect::Torn, entries_are_given_up);
}

/// The owner moves a content to a slot while an heir reads it: the heir finds it in one of the two. `leaves` is what the owner does when the slot has
/// the content.
fn content_moves(leaves: fn(&Ledger, &AtomicU64)) {
    const CONTENT: u64 = 7;
    let ledger = Mapped::new();
    ledger.get().fork_begins_with(&EntrySet::from_iter([EntryId(3)]));
    let object = Arc::new(AtomicU64::new(CONTENT));
    let heir = {
        let (ledger, object) = (ledger.again(), object.clone());
        thread::spawn(move || {
            let moved = || ledger.get().moved(EntryId(3));
            if moved().is_none() && object.load(Relaxed) != CONTENT {
                fence(Acquire);
                assert_eq!(moved(), Some(SLOT), "an heir finds content nowhere");
            }
        })
    };
    leaves(ledger.get(), &object);
    heir.join().expect("it ends");
}

#[test]
fn an_heir_finds_content_that_moves() {
    holds(|| {
        content_moves(|ledger, object| {
            ledger.tell_moved(EntryId(3), SLOT);
            object.store(0, Relaxed);
        });
    });
    finds(Defect::Own, || {
        content_moves(|ledger, object| {
            object.store(0, Relaxed);
            ledger.tell_moved(EntryId(3), SLOT);
        });
    });
}
