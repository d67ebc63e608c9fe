//! Slots of the clusters of one swap area that this process owns: which are free, which are in use.
//!
//! An area is shared by the processes of a group in clusters of 512 slots. The engine claims a cluster for this
//! process and hands it in with [`Slots::grant`]; it takes empty ones away with [`Slots::take_empty_cluster`] and
//! gives them back to the group. Between the two, nobody else touches the slots of the cluster, so nothing here is
//! shared and nothing here locks.
//!
//! Order of allocation, as in the kernel's cluster allocator: the current cluster from the current position forward,
//! then the clusters with holes, then the empty ones. The position never moves back inside a cluster: a hole behind it
//! is found when the cluster has been left and is picked again. So neighbours in time are neighbours on disk.
//!
//! Each granted cluster is in exactly one `Place`, which its number of used slots decides:
//! `Empty` holds all clusters with no slot in use but the current one, `Holes` all that have some but not all in use,
//! `Full` those without a usable free slot.
//!
//! Memory is taken from the heap by `new` and `grant` only; allocating and freeing slots never does.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Slots in a cluster. 512 slots of 4 KiB: a cluster is 2 MiB, so one read can refill a huge page.
pub const CLUSTER_SLOTS: u32 = 512;

/// 64 slots in a word of a cluster's bitmap.
const CLUSTER_WORDS: usize = CLUSTER_SLOTS as usize / 64;

/// The end of a list of clusters.
const NO_CLUSTER: u32 = u32::MAX;

/// The slot of an area's header; never handed out.
const HEADER_SLOT: u64 = 0;

/// Why no slot was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// All granted clusters are full. Claim one from the group, `grant` it and ask again; when the group has none
    /// left either, the area is full.
    NeedCluster,
}

/// What freeing a slot led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Freed {
    /// No slot of this cluster is in use any more: `take_empty_cluster` may have something to give.
    ClusterEmpty(u32),
    /// Other slots of its cluster are still in use.
    Still,
}

/// Where a granted cluster is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In `Slots::empty`.
    Empty,
    /// In `Slots::holes`.
    Holes,
    /// In no list.
    Full,
    /// In no list: it is the one slots are handed out from.
    Current,
}

/// One granted cluster.
#[derive(Clone)]
struct Cluster {
    /// One bit a slot: in use, or not to be used (bad, the header, past the end of the area).
    taken: [u64; CLUSTER_WORDS],
    /// Slots handed out and not freed.
    used: u32,
    /// Slots that may be handed out: all but bad ones.
    usable: u32,
    place: Place,
    previous: u32,
    next: u32,
}

impl Cluster {
    fn is_taken(&self, offset: u32) -> bool {
        self.taken[offset as usize / 64] & (1 << (offset % 64)) != 0
    }

    /// The first slot at or after `from` that can be handed out.
    fn first_free(&self, from: u32) -> Option<u32> {
        if from >= CLUSTER_SLOTS {
            return None;
        }
        let mut word_index = from as usize / 64;
        // Bits before `from` count as taken.
        let mut taken = self.taken[word_index] | ((1u64 << (from % 64)) - 1);
        loop {
            if taken != u64::MAX {
                return Some(word_index as u32 * 64 + taken.trailing_ones());
            }
            word_index += 1;
            if word_index == CLUSTER_WORDS {
                return None;
            }
            taken = self.taken[word_index];
        }
    }
}

/// A list of clusters, linked through `Cluster::previous` and `Cluster::next`.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
    len: usize,
}

impl List {
    const NEW: List = List { first: NO_CLUSTER, last: NO_CLUSTER, len: 0 };
}

/// The cluster that slots are handed out from, and the next slot to look at.
#[derive(Clone, Copy)]
struct Position {
    cluster: u32,
    offset: u32,
}

/// The slots of one area that this process owns.
#[derive(Clone)]
pub struct Slots {
    area_slots: u64,
    /// Bad slots of the area in ascending order.
    bad: Vec<u64>,
    /// One entry for each cluster of the area; `Some` when it is granted.
    clusters: Vec<Option<Box<Cluster>>>,
    empty: List,
    holes: List,
    current: Option<Position>,
    used: u64,
    granted: usize,
}

impl Slots {
    /// An area of `area_slots` slots, of which those in `bad` can never be used. No cluster is granted yet.
    ///
    /// # Panics
    /// When a bad slot lies outside of the area.
    pub fn new(area_slots: u64, bad: &[u64]) -> Slots {
        let mut bad = bad.to_vec();
        bad.sort_unstable();
        bad.dedup();
        if let Some(&last) = bad.last() {
            assert!(last < area_slots, "bad slot {last} lies outside of an area of {area_slots} slots");
        }
        let cluster_count = area_slots.div_ceil(u64::from(CLUSTER_SLOTS));
        let cluster_count = u32::try_from(cluster_count).expect("an area has fewer than 2^32 clusters");
        let mut clusters = Vec::new();
        clusters.resize_with(cluster_count as usize, || None);
        Slots { area_slots, bad, clusters, empty: List::NEW, holes: List::NEW, current: None, used: 0, granted: 0 }
    }

    /// The same area, and no cluster of it is granted: for a process that has none yet.
    pub fn unclaimed(&self) -> Slots {
        Slots::new(self.area_slots, &self.bad)
    }

    /// Takes in a cluster that the group has given to this process.
    ///
    /// # Panics
    /// When the cluster lies outside of the area, or is granted already: two owners of a slot would overwrite each
    /// other's pages.
    pub fn grant(&mut self, cluster: u32) {
        let granted = self
            .clusters
            .get_mut(cluster as usize)
            .unwrap_or_else(|| panic!("cluster {cluster} lies outside of the area"));
        assert!(granted.is_none(), "cluster {cluster} is granted twice");

        let mut taken = [0u64; CLUSTER_WORDS];
        let mut usable = CLUSTER_SLOTS;
        let mut never_use = |offset: u32| {
            let bit = 1 << (offset % 64);
            if taken[offset as usize / 64] & bit == 0 {
                taken[offset as usize / 64] |= bit;
                usable -= 1;
            }
        };
        let first_slot = u64::from(cluster) * u64::from(CLUSTER_SLOTS);
        let end_slot = first_slot + u64::from(CLUSTER_SLOTS);
        if first_slot == HEADER_SLOT {
            never_use(0);
        }
        for slot in self.area_slots..end_slot {
            never_use((slot - first_slot) as u32);
        }
        let first_bad = self.bad.partition_point(|&slot| slot < first_slot);
        for &slot in self.bad[first_bad..].iter().take_while(|&&slot| slot < end_slot) {
            never_use((slot - first_slot) as u32);
        }

        *granted = Some(Box::new(Cluster {
            taken,
            used: 0,
            usable,
            place: Place::Full,
            previous: NO_CLUSTER,
            next: NO_CLUSTER,
        }));
        self.granted += 1;
        if usable == CLUSTER_SLOTS {
            self.put(cluster, Place::Empty, End::Last);
        } else if usable > 0 {
            // The kernel keeps clusters with bad slots in the list that it looks at before the one of empty clusters.
            self.put(cluster, Place::Empty, End::First);
        }
        // A cluster of bad slots only stays in `Place::Full`: there is nothing to hand out.
    }

    /// Hands out one slot.
    pub fn alloc(&mut self) -> Result<u64, Refused> {
        self.alloc_run(1).map(|(slot, _)| slot)
    }

    /// Hands out the next free slot and those that follow it, at most `max` of them and all in one cluster. The run is
    /// as long as the first hole allows, which may be one slot.
    ///
    /// # Panics
    /// When `max` is 0.
    pub fn alloc_run(&mut self, max: u32) -> Result<(u64, u32), Refused> {
        assert!(max > 0, "a run has at least one slot");
        loop {
            if let Some(position) = self.current {
                let cluster = self.cluster_mut(position.cluster);
                if let Some(first) = cluster.first_free(position.offset) {
                    let mut end = first;
                    while end < CLUSTER_SLOTS && end - first < max && !cluster.is_taken(end) {
                        cluster.taken[end as usize / 64] |= 1 << (end % 64);
                        end += 1;
                    }
                    let len = end - first;
                    cluster.used += len;
                    self.used += u64::from(len);
                    self.current = Some(Position { offset: end, ..position });
                    let first_slot = u64::from(position.cluster) * u64::from(CLUSTER_SLOTS);
                    return Ok((first_slot + u64::from(first), len));
                }
                self.leave(position.cluster);
            }
            // Every cluster in these lists has a usable free slot, so the loop ends with the next round.
            let next = if self.holes.first != NO_CLUSTER {
                self.holes.first
            } else if self.empty.first != NO_CLUSTER {
                self.empty.first
            } else {
                return Err(Refused::NeedCluster);
            };
            self.unlink(next);
            self.cluster_mut(next).place = Place::Current;
            self.current = Some(Position { cluster: next, offset: 0 });
        }
    }

    /// Takes a slot back.
    ///
    /// # Panics
    /// When the slot is not in use: somebody else may own it by now, and would lose a page.
    pub fn free(&mut self, slot: u64) -> Freed {
        assert!(self.is_used(slot), "slot {slot} is freed but not in use (freed twice, or never handed out)");
        let index = (slot / u64::from(CLUSTER_SLOTS)) as u32;
        let offset = (slot % u64::from(CLUSTER_SLOTS)) as u32;
        let cluster = self.cluster_mut(index);
        cluster.taken[offset as usize / 64] &= !(1 << (offset % 64));
        cluster.used -= 1;
        let (place, used) = (cluster.place, cluster.used);
        self.used -= 1;
        if used > 0 {
            if place == Place::Full {
                self.put(index, Place::Holes, End::Last);
            }
            return Freed::Still;
        }
        match place {
            Place::Holes => self.unlink(index),
            Place::Current => self.current = None,
            // A cluster with a single usable slot goes from full to empty at once.
            Place::Full => {}
            Place::Empty => unreachable!("cluster {index} had a slot in use and counted as empty"),
        }
        self.put(index, Place::Empty, End::Last);
        Freed::ClusterEmpty(index)
    }

    /// Takes one empty cluster away from this process, to be given back to the group. The last empty one is kept, or
    /// a process that swaps one page in and out would claim and release a cluster each time.
    pub fn take_empty_cluster(&mut self) -> Option<u32> {
        if self.has_spare_cluster() { self.take_last_empty_cluster() } else { None }
    }

    /// As [`take_empty_cluster`](Self::take_empty_cluster), but keeps none: the area is to be used no more.
    pub fn take_last_empty_cluster(&mut self) -> Option<u32> {
        if self.empty.len == 0 {
            return None;
        }
        // The first is the next to be used; the last is the one that costs least to miss.
        let cluster = self.empty.last;
        self.unlink(cluster);
        self.clusters[cluster as usize] = None;
        self.granted -= 1;
        Some(cluster)
    }

    /// Whether there is an empty cluster to take away.
    pub fn has_spare_cluster(&self) -> bool {
        self.empty.len >= 2
    }

    /// Whether `slot` is handed out.
    pub fn is_used(&self, slot: u64) -> bool {
        let offset = (slot % u64::from(CLUSTER_SLOTS)) as u32;
        usize::try_from(slot / u64::from(CLUSTER_SLOTS))
            .ok()
            .and_then(|index| self.clusters.get(index))
            .and_then(|cluster| cluster.as_deref())
            .is_some_and(|cluster| cluster.is_taken(offset) && !self.is_reserved(slot))
    }

    /// The first slot at or after `from` that is handed out: how swapoff walks the area in order.
    pub fn next_used(&self, from: u64) -> Option<u64> {
        let cluster_slots = u64::from(CLUSTER_SLOTS);
        let mut slot = from;
        while slot < self.area_slots {
            match &self.clusters[(slot / cluster_slots) as usize] {
                Some(cluster) if cluster.used > 0 => {
                    if self.is_used(slot) {
                        return Some(slot);
                    }
                    slot += 1;
                }
                _ => slot = (slot / cluster_slots + 1) * cluster_slots,
            }
        }
        None
    }

    /// Slots handed out and not freed.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Clusters granted and not taken away.
    pub fn granted(&self) -> usize {
        self.granted
    }

    /// Whether the slot can never be handed out.
    fn is_reserved(&self, slot: u64) -> bool {
        slot == HEADER_SLOT || slot >= self.area_slots || self.bad.binary_search(&slot).is_ok()
    }

    /// Ends the turn of the current cluster.
    fn leave(&mut self, index: u32) {
        self.current = None;
        let cluster = self.cluster_mut(index);
        cluster.place = Place::Full;
        if cluster.used < cluster.usable {
            // Slots were freed behind the position. It cannot be empty: `free` moves it to `empty` then.
            self.put(index, Place::Holes, End::Last);
        }
    }

    fn cluster(&self, index: u32) -> &Cluster {
        self.clusters[index as usize].as_deref().expect("a linked cluster is granted")
    }

    fn cluster_mut(&mut self, index: u32) -> &mut Cluster {
        self.clusters[index as usize].as_deref_mut().expect("a linked cluster is granted")
    }

    fn list_mut(&mut self, place: Place) -> &mut List {
        match place {
            Place::Empty => &mut self.empty,
            Place::Holes => &mut self.holes,
            Place::Full | Place::Current => {
                unreachable!("full clusters and the current one are in no list")
            }
        }
    }

    /// Links a cluster that is in no list.
    fn put(&mut self, index: u32, place: Place, end: End) {
        let list = *self.list_mut(place);
        let (previous, next) = match end {
            End::First => (NO_CLUSTER, list.first),
            End::Last => (list.last, NO_CLUSTER),
        };
        let cluster = self.cluster_mut(index);
        cluster.place = place;
        cluster.previous = previous;
        cluster.next = next;
        self.join(place, previous, index);
        self.join(place, index, next);
        self.list_mut(place).len += 1;
    }

    /// Takes a cluster out of the list that it is in.
    fn unlink(&mut self, index: u32) {
        let Cluster { place, previous, next, .. } = *self.cluster(index);
        self.join(place, previous, next);
        self.list_mut(place).len -= 1;
        let cluster = self.cluster_mut(index);
        cluster.place = Place::Full;
        cluster.previous = NO_CLUSTER;
        cluster.next = NO_CLUSTER;
    }

    /// Makes `before` and `after` neighbours; `NO_CLUSTER` stands for the list's end.
    fn join(&mut self, place: Place, before: u32, after: u32) {
        match before {
            NO_CLUSTER => self.list_mut(place).first = after,
            _ => self.cluster_mut(before).next = after,
        }
        match after {
            NO_CLUSTER => self.list_mut(place).last = before,
            _ => self.cluster_mut(after).previous = before,
        }
    }
}

/// An end of a list.
enum End {
    First,
    Last,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    /// An area with all of its clusters granted in order.
    fn granted(area_slots: u64, bad: &[u64]) -> Slots {
        let mut slots = Slots::new(area_slots, bad);
        for cluster in 0..area_slots.div_ceil(512) {
            slots.grant(cluster as u32);
        }
        slots
    }

    /// xorshift64*: chance from a seed.
    struct Chance(u64);
    impl Chance {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
        }
    }

    #[test]
    fn t1_6a_the_position_moves_forward_past_a_hole() {
        let mut slots = granted(2048, &[]);
        for expected in 1..=10 {
            assert_eq!(slots.alloc(), Ok(expected));
        }
        assert_eq!(slots.free(5), Freed::Still);
        assert_eq!(slots.alloc(), Ok(11));
        // The hole is found when the cluster has been left and is picked again, before any empty cluster.
        for expected in 12..512 {
            assert_eq!(slots.alloc(), Ok(expected));
        }
        assert_eq!(slots.alloc(), Ok(5));
        assert_eq!(slots.alloc(), Ok(512));
    }

    #[test]
    fn the_cluster_with_the_header_is_used_first_and_the_header_never() {
        let mut slots = Slots::new(2048, &[]);
        slots.grant(2);
        slots.grant(0);
        assert_eq!(slots.alloc_run(1000), Ok((1, 511)));
        assert_eq!(slots.alloc_run(1000), Ok((1024, 512)));
        assert_eq!(slots.alloc(), Err(Refused::NeedCluster));
    }

    #[test]
    fn bad_slots_and_the_end_of_the_area_are_never_handed_out() {
        let bad = [3, 4, 512, 700, 4];
        let mut slots = granted(800, &bad);
        let mut seen = BTreeSet::new();
        while let Ok(slot) = slots.alloc() {
            assert!(seen.insert(slot));
        }
        let expected: BTreeSet<u64> = (1..800).filter(|slot| !bad.contains(slot)).collect();
        assert_eq!(seen, expected);
        assert_eq!(slots.used(), 799 - 4);
    }

    #[test]
    fn a_cluster_of_bad_slots_only_gives_nothing() {
        let bad: Vec<u64> = (512..1024).collect();
        let mut slots = Slots::new(2048, &bad);
        slots.grant(1);
        assert_eq!(slots.alloc(), Err(Refused::NeedCluster));
        slots.grant(2);
        assert_eq!(slots.alloc(), Ok(1024));
    }

    #[test]
    fn a_run_ends_at_a_used_slot_and_at_the_end_of_the_cluster() {
        let mut slots = granted(1024, &[20]);
        assert_eq!(slots.alloc_run(8), Ok((1, 8)));
        assert_eq!(slots.alloc_run(64), Ok((9, 11)));
        assert_eq!(slots.alloc_run(600), Ok((21, 491)));
        assert_eq!(slots.alloc_run(600), Ok((512, 512)));
        assert_eq!(slots.alloc_run(1), Err(Refused::NeedCluster));
        assert_eq!(slots.used(), 8 + 11 + 491 + 512);
    }

    #[test]
    fn one_empty_cluster_is_kept() {
        let mut slots = granted(2048, &[]);
        assert_eq!(slots.granted(), 4);
        assert_eq!(slots.take_empty_cluster(), Some(3));
        assert_eq!(slots.take_empty_cluster(), Some(2));
        assert!(slots.has_spare_cluster());
        assert_eq!(slots.take_empty_cluster(), Some(1));
        assert!(!slots.has_spare_cluster());
        assert_eq!(slots.take_empty_cluster(), None);
        // The same cluster may come back later.
        slots.grant(3);
        assert_eq!(slots.alloc(), Ok(1));
        assert_eq!(slots.free(1), Freed::ClusterEmpty(0));
        assert_eq!(slots.take_empty_cluster(), Some(0));
        assert_eq!(slots.alloc(), Ok(3 * 512));
    }

    #[test]
    fn used_slots_are_walked_in_order() {
        let mut slots = granted(4096, &[9]);
        slots.alloc_run(511).unwrap();
        slots.alloc_run(511).unwrap();
        slots.alloc_run(511).unwrap();
        for slot in 2..1000 {
            if slot != 9 && slots.is_used(slot) {
                let _ = slots.free(slot);
            }
        }
        assert_eq!(slots.next_used(0), Some(1));
        assert_eq!(slots.next_used(2), Some(1000));
        assert_eq!(slots.next_used(4096), None);
    }

    #[test]
    #[should_panic(expected = "slot 7 is freed but not in use")]
    fn freeing_a_slot_twice_panics() {
        let mut slots = granted(512, &[]);
        slots.alloc_run(20).unwrap();
        let _ = slots.free(7);
        let _ = slots.free(7);
    }

    #[test]
    #[should_panic(expected = "slot 0 is freed but not in use")]
    fn freeing_the_header_panics() {
        let _ = granted(512, &[]).free(0);
    }

    #[test]
    #[should_panic(expected = "slot 5000 is freed but not in use")]
    fn freeing_a_slot_of_a_foreign_cluster_panics() {
        let _ = Slots::new(100_000, &[]).free(5000);
    }

    #[test]
    #[should_panic(expected = "cluster 1 is granted twice")]
    fn granting_a_cluster_twice_panics() {
        let mut slots = granted(1024, &[]);
        slots.grant(1);
    }

    /// The real thing beside three plain sets, compared after every step.
    #[test]
    fn slots_behave_like_plain_sets() {
        for seed in 1..=8u64 {
            let mut chance = Chance(0x9E37_79B9_7F4A_7C15 ^ seed);
            let area_slots = 512 * 12 + 100;
            let bad: Vec<u64> = (0..20).map(|_| chance.below(area_slots)).collect();
            let usable = |slot: u64| slot != HEADER_SLOT && slot < area_slots && !bad.contains(&slot);
            let mut slots = Slots::new(area_slots, &bad);
            let mut model_used: BTreeSet<u64> = BTreeSet::new();
            let mut model_granted: BTreeSet<u32> = BTreeSet::new();
            for step in 0..10_000 {
                // Phases of growing and of shrinking, so that full and empty are both reached.
                let grow = step / 1500 % 2 == 0;
                match chance.below(10) {
                    0..=1 => {
                        let max = 1 + chance.below(70) as u32;
                        match slots.alloc_run(max) {
                            Ok((first, len)) => {
                                assert!(len >= 1 && len <= max);
                                assert_eq!(first / 512, (first + u64::from(len) - 1) / 512);
                                for slot in first..first + u64::from(len) {
                                    assert!(usable(slot) && model_used.insert(slot));
                                    assert!(model_granted.contains(&((slot / 512) as u32)));
                                }
                            }
                            Err(Refused::NeedCluster) => {
                                let capacity: usize = model_granted
                                    .iter()
                                    .map(|&c| {
                                        let first = u64::from(c) * 512;
                                        (first..first + 512).filter(|&s| usable(s)).count()
                                    })
                                    .sum();
                                assert_eq!(model_used.len(), capacity, "refused with slots free");
                                if let Some(cluster) = (0..13).find(|cluster| !model_granted.contains(cluster)) {
                                    slots.grant(cluster);
                                    model_granted.insert(cluster);
                                }
                            }
                        }
                    }
                    2..=4 if grow => {
                        if let Ok(slot) = slots.alloc() {
                            assert!(usable(slot) && model_used.insert(slot));
                        }
                    }
                    9 => {
                        if let Some(cluster) = slots.take_empty_cluster() {
                            assert!(model_granted.remove(&cluster));
                            let first = u64::from(cluster) * 512;
                            assert_eq!(model_used.range(first..first + 512).next(), None);
                        }
                    }
                    _ => {
                        let burst = if grow { 1 } else { 12 };
                        for _ in 0..burst {
                            let from = chance.below(area_slots);
                            let Some(&slot) = model_used.range(from..).next() else {
                                break;
                            };
                            model_used.remove(&slot);
                            let first = slot / 512 * 512;
                            let expected = if model_used.range(first..first + 512).next().is_none() {
                                Freed::ClusterEmpty((slot / 512) as u32)
                            } else {
                                Freed::Still
                            };
                            assert_eq!(slots.free(slot), expected);
                        }
                    }
                }
                assert_eq!(slots.used(), model_used.len() as u64);
                assert_eq!(slots.granted(), model_granted.len());
                let probe = chance.below(area_slots + 600);
                assert_eq!(slots.is_used(probe), model_used.contains(&probe));
                assert_eq!(slots.next_used(probe), model_used.range(probe..).next().copied());
            }
        }
    }
}
