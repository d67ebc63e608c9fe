//! The swap table against a map of entries, each with all that was ever said of it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use uswap_core::swap_table::{LetGo, SwapTable};
use uswap_core::{AreaId, EntryId, Epoch, Location};

const CASES: u32 = 10_000;

#[derive(Clone, Copy, PartialEq, Debug)]
struct PlainEntry {
    location: Location,
    hash: u128,
    epoch: u16,
    pins: u8,
    /// Its page has let it go while somebody read it.
    condemned: bool,
    /// Its page has let it go, and an heir may read it.
    zombie: bool,
    /// It was there at the last fork.
    inherited: bool,
}

#[derive(Default)]
struct Plain {
    entries: BTreeMap<EntryId, PlainEntry>,
    epoch: u16,
    has_heirs: bool,
    most: usize,
}

impl Plain {
    fn let_go(&mut self, id: EntryId) -> LetGo {
        let (epoch, has_heirs) = (self.epoch, self.has_heirs);
        let entry = self.entries.get_mut(&id).unwrap();
        if entry.pins > 0 {
            entry.condemned = true;
            return LetGo::Condemned;
        }
        if has_heirs && entry.inherited && entry.epoch == epoch {
            (entry.zombie, entry.condemned) = (true, false);
            return LetGo::Zombie;
        }
        let entry = self.entries.remove(&id).unwrap();
        LetGo::Freed(entry.location, Epoch(entry.epoch))
    }

    /// One of the entries of which this is true, if there is one.
    fn pick(&self, choice: usize, of: impl Fn(&PlainEntry) -> bool) -> Option<EntryId> {
        let ids: Vec<EntryId> = self.entries.iter().filter(|(_, entry)| of(entry)).map(|(&id, _)| id).collect();
        (!ids.is_empty()).then(|| ids[choice % ids.len()])
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(Location, u128),
    Pin(usize),
    Unpin(usize),
    LetGo(usize),
    Bury(usize),
    Relocate(usize, Location),
    AddHeir,
    NoHeirs,
    BecomeChild,
}

fn location() -> impl Strategy<Value = Location> {
    prop_oneof![
        (any::<u32>(), 1..=4096u16).prop_map(|(handle, len)| Location::Pool { handle, len }),
        (0..32u8, 0..1u64 << 48).prop_map(|(area, slot)| Location::Slot { area: AreaId(area), slot }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (location(), any::<u128>()).prop_map(|(location, hash)| Step::Insert(location, hash)),
        3 => any::<usize>().prop_map(Step::Pin),
        3 => any::<usize>().prop_map(Step::Unpin),
        6 => any::<usize>().prop_map(Step::LetGo),
        2 => any::<usize>().prop_map(Step::Bury),
        2 => (any::<usize>(), location()).prop_map(|(choice, location)| Step::Relocate(choice, location)),
        1 => Just(Step::AddHeir),
        1 => Just(Step::NoHeirs),
        1 => Just(Step::BecomeChild),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn the_swap_table_is_a_map_of_entries(steps in proptest::collection::vec(step(), 1..120)) {
        let (mut real, mut plain) = (SwapTable::new(), Plain::default());
        for step in steps {
            match step {
                Step::Insert(location, hash) => {
                    let id = real.insert(location, hash);
                    let entry = PlainEntry {
                        location,
                        hash,
                        epoch: plain.epoch,
                        pins: 0,
                        condemned: false,
                        zombie: false,
                        inherited: false,
                    };
                    prop_assert_eq!(plain.entries.insert(id, entry), None, "handed out twice");
                    plain.most = plain.most.max(plain.entries.len());
                    prop_assert_eq!(real.len() as usize, plain.most, "no index is wasted");
                }
                Step::Pin(choice) => if let Some(id) = plain.pick(choice, |entry| !entry.zombie && entry.pins < 255) {
                    real.pin(id);
                    plain.entries.get_mut(&id).unwrap().pins += 1;
                }
                Step::Unpin(choice) => if let Some(id) = plain.pick(choice, |entry| entry.pins > 0) {
                    let entry = plain.entries.get_mut(&id).unwrap();
                    entry.pins -= 1;
                    let goes = entry.pins == 0 && entry.condemned;
                    prop_assert_eq!(real.unpin(id), goes.then(|| plain.let_go(id)));
                }
                Step::LetGo(choice) => if let Some(id) = plain.pick(choice, |entry| !entry.zombie && !entry.condemned) {
                    prop_assert_eq!(real.let_go(id), plain.let_go(id));
                }
                Step::Bury(choice) => if let Some(id) = plain.pick(choice, |entry| entry.zombie) {
                    prop_assert_eq!(real.bury(id), plain.entries.remove(&id).unwrap().location);
                }
                Step::Relocate(choice, location) => if let Some(id) = plain.pick(choice, |entry| !entry.zombie && !entry.condemned) {
                    let entry = plain.entries.get_mut(&id).unwrap();
                    prop_assert_eq!(real.relocate(id, location), std::mem::replace(&mut entry.location, location));
                }
                Step::AddHeir => {
                    real.add_heir();
                    plain.has_heirs = true;
                    plain.entries.values_mut().for_each(|entry| entry.inherited = !entry.zombie);
                }
                Step::NoHeirs => {
                    real.no_heirs();
                    plain.has_heirs = false;
                }
                Step::BecomeChild => {
                    let condemned = plain.entries.iter().filter(|(_, entry)| entry.condemned);
                    let ended = condemned.map(|(&id, entry)| (id, entry.location, Epoch(entry.epoch)));
                    let zombies = plain.entries.iter().filter(|(_, entry)| entry.zombie).map(|(&id, _)| id).collect();
                    prop_assert_eq!(real.become_child(zombies), ended.collect::<Vec<_>>());
                    plain.entries.retain(|_, entry| !entry.condemned);
                    (plain.epoch, plain.has_heirs) = (plain.epoch + 1, false);
                    plain.entries.retain(|_, entry| !entry.zombie);
                    plain.entries.values_mut().for_each(|entry| entry.pins = 0);
                }
            }
            prop_assert_eq!(real.epoch(), Epoch(plain.epoch));
            prop_assert_eq!(real.zombies(), plain.entries.values().filter(|entry| entry.zombie).count() as u64);
            let in_use: Vec<EntryId> =
                plain.entries.iter().filter(|(_, entry)| !entry.zombie).map(|(&id, _)| id).collect();
            prop_assert_eq!(real.iter_in_use().collect::<Vec<_>>(), in_use);
            for (&id, entry) in &plain.entries {
                prop_assert_eq!((real.location(id), real.hash(id), real.pins(id)), (entry.location, entry.hash, entry.pins));
                prop_assert_eq!(real.epoch_of(id), Epoch(entry.epoch));
                prop_assert_eq!(real.is_foreign(id), entry.epoch != plain.epoch);
                prop_assert_eq!(real.is_live(id), !entry.zombie && !entry.condemned);
            }
        }
    }
}
