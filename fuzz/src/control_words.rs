//! What the processes of a group say to each other and to `uswap set` and `uswap swapoff`, beside a plain map of it.
//!
//! Input: steps of two bytes, what is done and with what.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use uswap_engine::group::{
    AreaConfig, CLUSTER_SLOTS, Group, GroupConfig, Heirs, PAGE_BYTES, SlotState, SwapoffProgress,
};

use crate::{Canary, Seed, Target};

/// This target.
pub const TARGET: Target = Target { name: "control_words", run, seeds, words: &[] };

const AREAS: usize = 2;
const CLUSTERS: [u32; AREAS] = [3, 2];
/// As many as are enough for each to have something to do with each other.
const PROCESSES: usize = 6;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Starting,
    Running,
    Dead,
}

/// A process as it should be.
#[derive(Clone, Debug)]
struct Process {
    life: Life,
    forks_in_flight: u32,
    is_child: bool,
    is_in_its_ledgers: bool,
    used: [u64; AREAS],
    carried_out: Option<u32>,
    waits: bool,
    /// Who may read what it owns.
    heirs: BTreeSet<u32>,
}

impl Process {
    fn new() -> Process {
        Process {
            life: Life::Starting,
            forks_in_flight: 0,
            is_child: false,
            is_in_its_ledgers: false,
            used: [0; AREAS],
            carried_out: None,
            waits: false,
            heirs: BTreeSet::new(),
        }
    }
}

/// The group as it should be.
#[derive(Default)]
struct Model {
    processes: BTreeMap<u32, Process>,
    owners: BTreeMap<(usize, u32), u32>,
    leaving: [bool; AREAS],
    off: [bool; AREAS],
    limit_bytes: u64,
    announcements: u32,
}

impl Model {
    fn forget_heir(&mut self, heir: u32) {
        for process in self.processes.values_mut() {
            process.heirs.remove(&heir);
        }
    }

    fn is_needed(process: &Process) -> bool {
        process.life != Life::Dead || process.forks_in_flight > 0 || !process.heirs.is_empty()
    }

    fn progress(&self, area: usize) -> SwapoffProgress {
        let mut progress = SwapoffProgress { used_slots: 0, unfinished: 0, waits_for_memory: false };
        for process in self.processes.values() {
            if process.life == Life::Dead {
                progress.unfinished += u32::from(process.forks_in_flight > 0);
                continue;
            }
            let is_done = process.carried_out == Some(self.announcements) && process.forks_in_flight == 0;
            progress.unfinished += u32::from(!is_done);
            progress.used_slots += process.used[area];
            progress.waits_for_memory |= process.waits;
        }
        // Who owns a part of it may write there.
        progress.unfinished += u32::from(self.owners.keys().any(|&(of, _)| of == area));
        progress
    }

    fn heirs_of(&self, owner: u32) -> Heirs {
        let of = &self.processes[&owner];
        let heirs = || of.heirs.iter().map(|heir| &self.processes[heir]);
        if of.forks_in_flight > 0 || heirs().any(|heir| heir.forks_in_flight > 0 || is_arriving(heir)) {
            return Heirs::Arriving;
        }
        if of.heirs.is_empty() { Heirs::None } else { Heirs::Present }
    }
}

fn is_arriving(child: &Process) -> bool {
    child.is_child && !child.is_in_its_ledgers
}

fn config() -> GroupConfig {
    let mut config = GroupConfig { memory_limit_bytes: 64 << 20, ..GroupConfig::default() };
    for (area, clusters) in CLUSTERS.into_iter().enumerate() {
        config.areas[area] =
            AreaConfig { present: true, slots: u64::from(clusters) * CLUSTER_SLOTS, ..AreaConfig::default() };
    }
    config
}

/// Does all the steps.
pub fn run(bytes: &[u8], canary: Canary) {
    let (group, _fd) = Group::create(&config()).expect("there is memory for a group");
    let mut model = Model { limit_bytes: 64 << 20, ..Model::default() };
    for &[what, with] in bytes.as_chunks::<2>().0.iter().take(200) {
        step(&group, &mut model, what, with);
        agree(&group, &model, canary);
    }
}

fn step(group: &Group, model: &mut Model, what: u8, with: u8) {
    let area = usize::from(with >> 4) % AREAS;
    let chosen = |wanted: &dyn Fn(&Process) -> bool| {
        let all: Vec<u32> =
            model.processes.iter().filter(|(_, process)| wanted(process)).map(|(&index, _)| index).collect();
        (!all.is_empty()).then(|| all[usize::from(with & 15) % all.len()])
    };
    let living = chosen(&|process| process.life != Life::Dead);
    match (what % 14, living) {
        (0, _) => drop(joins(group, model)),
        (1, Some(index)) => {
            group.process(index).running();
            model.processes.get_mut(&index).expect("chosen").life = Life::Running;
        }
        (2, Some(index)) => {
            group.process(index).fork_begins();
            model.processes.get_mut(&index).expect("chosen").forks_in_flight += 1;
        }
        (3, Some(index)) => {
            group.process(index).fork_failed();
            let process = model.processes.get_mut(&index).expect("chosen");
            process.forks_in_flight = process.forks_in_flight.saturating_sub(1);
        }
        (4, _) => arrives(group, model, chosen(&|process| process.forks_in_flight > 0)),
        (5, Some(index)) if is_arriving(&model.processes[&index]) => {
            group.process(index).inherits();
            model.processes.get_mut(&index).expect("chosen").is_in_its_ledgers = true;
        }
        (6, Some(index)) => retires(group, model, index),
        (7, _) => reaps(group, model),
        (8, _) if with & 15 == 15 => {
            assert_eq!(group.set_off(area), model.leaving[area]);
            model.off[area] |= model.leaving[area];
        }
        (8, _) => {
            if !model.off[area] {
                model.leaving[area] = with & 1 != 0;
                model.announcements += 1;
            }
            group.set_leaving(area, with & 1 != 0);
        }
        (9, _) => {
            model.limit_bytes = u64::from(with) << 20;
            model.announcements += 1;
            group.set_limit_bytes(model.limit_bytes);
        }
        (10, Some(index)) => {
            group.process(index).called.carried_out.store(group.announcements(), Relaxed);
            model.processes.get_mut(&index).expect("chosen").carried_out = Some(model.announcements);
        }
        (11, Some(index)) => {
            let process = model.processes.get_mut(&index).expect("chosen");
            (process.used[area], process.waits) = (u64::from(with), with & 64 != 0);
            group.process(index).managed.area_used_slots[area].store(u64::from(with), Relaxed);
            group.process(index).wants.waits_for_memory.store(u32::from(with & 64 != 0), Relaxed);
        }
        (12, Some(index)) => match group.claim_cluster(area, index) {
            Some(cluster) => {
                assert_eq!(model.owners.insert((area, cluster), index), None, "cluster {cluster} has two owners");
            }
            None => assert_eq!(model.owners.keys().filter(|(of, _)| *of == area).count(), CLUSTERS[area] as usize),
        },
        (13, Some(index)) => {
            let cluster = u32::from(with >> 5) % CLUSTERS[area];
            let is_its_own = model.owners.get(&(area, cluster)) == Some(&index);
            assert_eq!(group.release_cluster(area, cluster, index), is_its_own);
            if is_its_own {
                model.owners.remove(&(area, cluster));
            }
        }
        _ => {}
    }
}

fn joins(group: &Group, model: &mut Model) -> Option<u32> {
    if model.processes.len() == PROCESSES {
        return None;
    }
    let lowest = (0..).find(|index| !model.processes.contains_key(index));
    let index = group.allot(100).expect("there are more slots than processes");
    assert_eq!(Some(index), lowest);
    model.processes.insert(index, Process::new());
    Some(index)
}

/// A child says hello.
fn arrives(group: &Group, model: &mut Model, parent: Option<u32>) {
    let Some((parent, child)) = parent.and_then(|parent| Some((parent, joins(group, model)?))) else { return };
    group.fork_arrived(parent, child);
    for (&owner, process) in &mut model.processes {
        if owner == parent || process.heirs.contains(&parent) {
            process.heirs.insert(child);
        }
    }
    model.processes.get_mut(&child).expect("it is there").is_child = true;
    let of = model.processes.get_mut(&parent).expect("it is there");
    of.forks_in_flight -= 1;
    if of.life == Life::Dead && of.forks_in_flight == 0 {
        model.forget_heir(parent);
    }
}

fn retires(group: &Group, model: &mut Model, index: u32) {
    group.retire(index);
    let process = model.processes.get_mut(&index).expect("it is there");
    (process.life, process.is_child, process.used) = (Life::Dead, false, [0; AREAS]);
    if process.forks_in_flight == 0 {
        model.forget_heir(index);
    }
}

/// All that nobody needs, and what is not needed then.
fn reaps(group: &Group, model: &mut Model) {
    loop {
        let expected = model.processes.iter().find(|(_, process)| !Model::is_needed(process)).map(|(&index, _)| index);
        let found = group.reapable().next();
        assert_eq!(found, expected);
        let Some(index) = found else { return };
        group.reap(index);
        model.processes.remove(&index);
        model.forget_heir(index);
        model.owners.retain(|_, owner| *owner != index);
    }
}

fn agree(group: &Group, model: &Model, canary: Canary) {
    assert_eq!(group.limit_bytes(), model.limit_bytes);
    assert_eq!(group.limit_pages(), model.limit_bytes / PAGE_BYTES);
    assert_eq!(group.announcements(), model.announcements);
    for (area, &clusters) in CLUSTERS.iter().enumerate().take(AREAS) {
        let mut progress = group.swapoff_progress(area);
        if canary.is_planted() {
            // As if forks in flight were forgotten.
            let forgotten = |process: &&Process| {
                process.life != Life::Dead
                    && process.carried_out == Some(model.announcements)
                    && process.forks_in_flight > 0
            };
            progress.unfinished -= model.processes.values().filter(forgotten).count() as u32;
        }
        assert_eq!(progress, model.progress(area));
        assert_eq!((group.is_leaving(area), group.is_off(area)), (model.leaving[area], model.off[area]));
        for cluster in 0..clusters {
            assert_eq!(group.cluster_owner(area, cluster), model.owners.get(&(area, cluster)).copied());
        }
    }
    assert!(group.taken().map(|(index, _)| index).eq(model.processes.keys().copied()));
    for (&index, process) in &model.processes {
        let slot = group.process(index);
        let life = match slot.state() {
            SlotState::Starting => Life::Starting,
            SlotState::Running => Life::Running,
            SlotState::Dead => Life::Dead,
            SlotState::Free => panic!("slot {index} is free"),
        };
        assert_eq!((life, slot.forks_in_flight()), (process.life, process.forks_in_flight), "slot {index}");
        assert!((0..PROCESSES as u32).all(|heir| slot.is_inheritor(heir) == process.heirs.contains(&heir)));
        assert_eq!(slot.has_inheritors(), process.forks_in_flight > 0 || !process.heirs.is_empty());
        assert_eq!(group.heirs_of(index), model.heirs_of(index), "heirs of {index}");
    }
}

fn seeds() -> Vec<Seed> {
    vec![
        ("a_fork", [[0, 0], [1, 0], [2, 0], [4, 0], [5, 1], [6, 0], [7, 0], [6, 1], [7, 0]].concat()),
        ("a_fork_that_failed", [[0, 0], [2, 0], [3, 0], [6, 0], [7, 0]].concat()),
        ("clusters", [[0, 0], [0, 0], [12, 0], [12, 1], [12, 16], [13, 0], [6, 0], [7, 0]].concat()),
        ("swapoff", [[0, 0], [1, 0], [11, 9], [8, 1], [10, 0], [11, 0], [8, 0]].concat()),
        ("limits", [[0, 0], [9, 32], [10, 0], [9, 0]].concat()),
        (
            "a_grandchild",
            [[0, 0], [2, 0], [4, 0], [2, 1], [6, 1], [4, 0], [6, 0], [7, 0], [5, 0], [6, 0], [7, 0]].concat(),
        ),
    ]
}
