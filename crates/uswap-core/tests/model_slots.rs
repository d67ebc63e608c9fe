//! The slots of a process against sets of free slots and queues of clusters, searched from end to end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use uswap_core::slots::{Freed, Refused, Slots};

const CASES: u32 = 10_000;
const CLUSTERS: u32 = 5;
/// The last cluster is not whole.
const AREA_SLOTS: u64 = 4 * 512 + 100;

/// Clusters by number, each with its free slots. Only granted ones are in it.
#[derive(Default)]
struct Plain {
    free: BTreeMap<u32, BTreeSet<u64>>,
    used: BTreeSet<u64>,
    /// Clusters with nothing in use, and those with holes, the next one first.
    empty: VecDeque<u32>,
    holes: VecDeque<u32>,
    /// The cluster that slots come from, and the slot to look at next.
    current: Option<(u32, u64)>,
}

impl Plain {
    fn grant(&mut self, cluster: u32, bad: &BTreeSet<u64>) {
        let first = u64::from(cluster) * 512;
        let usable = |slot: &u64| *slot != 0 && *slot < AREA_SLOTS && !bad.contains(slot);
        let free: BTreeSet<u64> = (first..first + 512).filter(usable).collect();
        match free.len() {
            0 => {}
            512 => self.empty.push_back(cluster),
            _ => self.empty.push_front(cluster),
        }
        self.free.insert(cluster, free);
    }

    fn alloc_run(&mut self, max: u32) -> Result<(u64, u32), Refused> {
        loop {
            if let Some((cluster, next)) = self.current {
                let free = self.free.get_mut(&cluster).unwrap();
                if let Some(&first) = free.range(next..).next() {
                    let run: Vec<u64> = (first..).take_while(|slot| free.contains(slot)).take(max as usize).collect();
                    for slot in &run {
                        free.remove(slot);
                        self.used.insert(*slot);
                    }
                    self.current = Some((cluster, first + run.len() as u64));
                    return Ok((first, run.len() as u32));
                }
                if !free.is_empty() {
                    self.holes.push_back(cluster);
                }
            }
            let next = self.holes.pop_front().or_else(|| self.empty.pop_front());
            self.current = next.map(|cluster| (cluster, 0));
            if next.is_none() {
                return Err(Refused::NeedCluster);
            }
        }
    }

    fn free(&mut self, slot: u64) -> Freed {
        let cluster = (slot / 512) as u32;
        self.used.remove(&slot);
        self.free.get_mut(&cluster).unwrap().insert(slot);
        let is_current = self.current.is_some_and(|(current, _)| current == cluster);
        if self.used.range(slot / 512 * 512..(slot / 512 + 1) * 512).next().is_some() {
            if !is_current && !self.holes.contains(&cluster) {
                self.holes.push_back(cluster);
            }
            return Freed::Still;
        }
        if is_current {
            self.current = None;
        }
        self.holes.retain(|&other| other != cluster);
        self.empty.push_back(cluster);
        Freed::ClusterEmpty(cluster)
    }

    fn take_empty_cluster(&mut self) -> Option<u32> {
        if self.empty.len() < 2 {
            return None;
        }
        let cluster = self.empty.pop_back()?;
        self.free.remove(&cluster);
        Some(cluster)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(u32),
    /// So many used slots from this one on, each `every`th.
    Free {
        from: u64,
        count: usize,
        every: usize,
    },
    Grant(u32),
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    let free = (0..AREA_SLOTS, prop_oneof![Just(1usize), 1..600usize], 1..4usize);
    prop_oneof![
        3 => (1..520u32).prop_map(Step::Alloc),
        3 => (1..4u32).prop_map(Step::Alloc),
        5 => free.prop_map(|(from, count, every)| Step::Free { from, count, every }),
        3 => (0..CLUSTERS).prop_map(Step::Grant),
        1 => Just(Step::Take),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn slots_are_sets_and_queues(
        bad in proptest::collection::btree_set(0..AREA_SLOTS, 0..4),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut real = Slots::new(AREA_SLOTS, &bad.iter().copied().collect::<Vec<_>>());
        let mut plain = Plain::default();
        for step in steps {
            match step {
                Step::Alloc(max) => prop_assert_eq!(real.alloc_run(max), plain.alloc_run(max)),
                Step::Free { from, count, every } => {
                    let some: Vec<u64> = plain.used.range(from..).step_by(every).take(count).copied().collect();
                    for slot in some {
                        prop_assert_eq!(real.free(slot), plain.free(slot));
                    }
                }
                Step::Grant(cluster) if plain.free.contains_key(&cluster) => {}
                Step::Grant(cluster) => {
                    real.grant(cluster);
                    plain.grant(cluster, &bad);
                }
                Step::Take => prop_assert_eq!(real.take_empty_cluster(), plain.take_empty_cluster()),
            }
            prop_assert_eq!((real.used(), real.granted()), (plain.used.len() as u64, plain.free.len()));
            for probe in [0, 511, 700, AREA_SLOTS - 1, AREA_SLOTS, AREA_SLOTS + 600] {
                prop_assert_eq!(real.is_used(probe), plain.used.contains(&probe));
                prop_assert_eq!(real.next_used(probe), plain.used.range(probe..).next().copied());
            }
        }
        let all: Vec<u64> = std::iter::successors(real.next_used(0), |slot| real.next_used(slot + 1)).collect();
        prop_assert_eq!(all, plain.used.into_iter().collect::<Vec<_>>());
    }
}
