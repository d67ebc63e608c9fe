//! One swap area: its slots, their references, and the counts of both.
//!
//! A slot is handed out to the swap cache (count 0, cached), gets references of page tables or shmem, and is free when the
//! last of both is given back. Then its cluster moves list, and the counts follow last: whoever waits for the area to be
//! empty sees 0 only when everything else of the slot has been cleaned up. How a free slot is found is in
//! [`slot_alloc`](super::slot_alloc).

use core::fmt;

use super::slot_alloc::Position;
use super::swap_cluster::{ClusterList, Clusters, ORDERS};
use super::swap_header::AreaLayout;
use super::swap_map::{Left, NotTaken, SwapMap};

/// What policies ask about the device under an area.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AreaTraits {
    /// Nothing rotates (`SWP_SOLIDSTATE`): each CPU has its own cluster.
    pub solid_state: bool,
    /// Reads complete at once (`SWP_SYNCHRONOUS_IO`: brd, zram, pmem).
    pub synchronous_io: bool,
    /// A page must not change while it is written (`SWP_STABLE_WRITES`).
    pub stable_writes: bool,
    /// A block device, not a file (`SWP_BLKDEV`): orders above 0 are served here only.
    pub block_device: bool,
}

/// What is discarded on the device of an area.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiscardPolicy {
    /// The whole area at swapon.
    pub once: bool,
    /// Each cluster when it has become empty.
    pub pages: bool,
}

/// Slots of all areas together, bad ones never counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SwapTotals {
    /// `nr_swap_pages`: those that can be handed out. While swapoff runs, the slots that it has not emptied yet count as
    /// missing, so that this may be below zero.
    pub free: i64,
    /// `total_swap_pages`: usable ones of areas that are in service.
    pub total: u64,
}

impl SwapTotals {
    /// Whether more than half of swap is in use (`vm_swap_full`): from here on a slot whose page is in memory is better
    /// freed than kept.
    pub fn swap_full(self) -> bool {
        self.free * 2 < self.total as i64
    }
}

/// Books that do not agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AreaViolation {
    /// The clusters' counts and the area's differ.
    Count {
        /// Slots in use by the clusters, without those that can never be.
        clusters: u64,
        /// Slots in use by the area.
        in_use: u64,
        /// Slots in use by the map.
        map: u64,
    },
    /// A cluster's count is not what the map says.
    ClusterCount {
        /// The cluster.
        cluster: u32,
        /// Its own.
        count: u64,
        /// That of the map.
        map: u64,
    },
    /// A cluster is in a list that its count forbids.
    List {
        /// The cluster.
        cluster: u32,
        /// Where it is.
        list: ClusterList,
        /// Slots in use.
        count: u64,
    },
    /// A slot is counted as in use and holds neither a reference nor the cache's, or the other way round.
    Slot(u64),
}

impl fmt::Display for AreaViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { clusters, in_use, map } => {
                write!(f, "clusters count {clusters} slots in use, the area {in_use}, the map {map}")
            }
            Self::ClusterCount { cluster, count, map } => {
                write!(f, "cluster {cluster} counts {count} slots in use, the map {map}")
            }
            Self::List { cluster, list, count } => {
                write!(f, "cluster {cluster} with {count} slots in use is in {list:?}")
            }
            Self::Slot(slot) => write!(f, "slot {slot} is in use without a reference, or free with one"),
        }
    }
}

/// An area in service, or on its way out.
pub struct SwapArea {
    pub(super) map: SwapMap,
    pub(super) clusters: Clusters,
    pub(super) device: AreaTraits,
    pub(super) discard: DiscardPolicy,
    pub(super) priority: i32,
    pub(super) node: Option<usize>,
    /// Slots may be handed out: false once swapoff has begun (`SWP_WRITEOK`).
    pub(super) write_ok: bool,
    /// Allocations try it: false while it has no free slot.
    pub(super) listed: bool,
    /// Where allocations of each order go on when the position is the area's own, not a CPU's.
    pub(super) position: [Option<Position>; ORDERS],
    /// Its last slot was handed out while swap is more than half full: full clusters are worth a look.
    pub(super) reclaim_wanted: bool,
    bad: u64,
    in_use: u64,
}

impl SwapArea {
    pub(super) fn new(layout: &AreaLayout, device: AreaTraits, discard: DiscardPolicy) -> Self {
        let slots = usize::try_from(layout.slots).expect("an area's map fits the address space");
        let map = SwapMap::new(slots, &layout.bad);
        Self {
            clusters: Clusters::new(layout.slots, |slot| map.is_bad(slot)),
            map,
            device,
            discard,
            priority: 0,
            node: None,
            write_ok: false,
            listed: false,
            position: [None; ORDERS],
            reclaim_wanted: false,
            bad: layout.bad.len() as u64,
            in_use: 0,
        }
    }

    /// Slots, that of the header and bad ones included.
    pub fn slots(&self) -> u64 {
        self.map.slots()
    }

    /// Slots that can hold a page.
    pub fn usable_slots(&self) -> u64 {
        self.map.slots() - 1 - self.bad
    }

    /// Slots that hold a page, or are about to.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// The references of its slots.
    pub fn map(&self) -> &SwapMap {
        &self.map
    }

    /// The lists of its clusters.
    pub fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    /// What it lies on.
    pub fn device(&self) -> AreaTraits {
        self.device
    }

    /// What is discarded there.
    pub fn discard(&self) -> DiscardPolicy {
        self.discard
    }

    /// As given by the user, or negative.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Whether slots may be handed out.
    pub fn is_in_service(&self) -> bool {
        self.write_ok
    }

    /// Whether a swap-in skips the swap cache and readahead: the device answers at once, and one page table refers to it.
    pub fn reads_directly(&self, slot: u64) -> bool {
        self.device.synchronous_io && self.map.count(slot) == 1
    }

    /// Whether every slot that can hold a page does.
    pub(super) fn is_used_up(&self) -> bool {
        self.in_use == self.usable_slots()
    }

    /// Counts slots that were handed out.
    pub(super) fn count_handed_out(&mut self, slots: u64) {
        self.in_use += slots;
    }

    pub(super) fn duplicate(&mut self, slot: u64) -> Result<(), NotTaken> {
        self.map.duplicate(slot)
    }

    /// Gives back a reference of a page table or of shmem.
    pub(super) fn put(&mut self, slot: u64) -> Left {
        let left = self.map.put(slot);
        self.freed_if(slot, left)
    }

    /// Gives back the swap cache's reference.
    pub(super) fn put_cache(&mut self, slot: u64) -> Left {
        let left = self.map.put_cache(slot);
        self.freed_if(slot, left)
    }

    fn freed_if(&mut self, slot: u64, left: Left) -> Left {
        if left == Left::Free {
            let cluster = super::slot_alloc::cluster_of(slot);
            if self.clusters.gave(cluster) == 0 {
                self.cluster_became_empty(cluster);
            } else {
                let order = self.clusters.order(cluster);
                if self.clusters.list(cluster) != ClusterList::Nonfull(order) {
                    self.clusters.move_to(cluster, ClusterList::Nonfull(order));
                }
            }
            self.in_use -= 1;
        }
        left
    }

    pub(super) fn cluster_became_empty(&mut self, cluster: u32) {
        let waits = self.discard.pages && self.write_ok;
        self.clusters.move_to(cluster, if waits { ClusterList::Discard } else { ClusterList::Free });
    }

    /// Compares the books: a slot is free if and only if nothing refers to it, clusters count what the map says, and are in
    /// the list that fits.
    ///
    /// # Errors
    /// The first difference. Takes a look at every slot.
    pub fn check(&self) -> Result<(), AreaViolation> {
        let mut in_use = 0;
        for cluster in 0..self.clusters.len() {
            let slots = super::slot_alloc::slots_of(cluster);
            let count = self.clusters.count(cluster);
            let mut taken = 0;
            for slot in slots {
                if slot >= self.slots() || self.map.is_bad(slot) {
                    taken += 1;
                    continue;
                }
                if self.map.is_free(slot) {
                    continue;
                }
                if self.map.count(slot) == 0 && !self.map.has_cache(slot) {
                    return Err(AreaViolation::Slot(slot));
                }
                taken += 1;
                in_use += 1;
            }
            if taken != count {
                return Err(AreaViolation::ClusterCount { cluster, count, map: taken });
            }
            let list = self.clusters.list(cluster);
            let fits = match list {
                ClusterList::Free | ClusterList::Discard => count == 0,
                ClusterList::Full => count == super::swap_cluster::CLUSTER_SLOTS,
                // A cluster of bad slots only is in nonfull until the first allocation looks at it.
                ClusterList::Nonfull(order) | ClusterList::Frag(order) => {
                    count > 0 && order == self.clusters.order(cluster)
                }
                ClusterList::Isolated => false,
            };
            if !fits {
                return Err(AreaViolation::List { cluster, list, count });
            }
        }
        let never = u64::from(self.clusters.len()) * super::swap_cluster::CLUSTER_SLOTS - self.usable_slots();
        let clusters = self.clusters.total_count() - never;
        if clusters != self.in_use || in_use != self.in_use {
            return Err(AreaViolation::Count { clusters, in_use: self.in_use, map: in_use });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap_map::HAS_CACHE;

    fn area(slots: u64) -> SwapArea {
        let layout = AreaLayout { slots, bad: alloc::vec![3], truncated: false };
        let mut area = SwapArea::new(&layout, AreaTraits::default(), DiscardPolicy::default());
        area.write_ok = true;
        area
    }

    /// What an allocation does to the books for slot 700.
    fn hand_out_700(area: &mut SwapArea) {
        area.map.hand_out(700);
        area.clusters.took(1, 1, 0);
        area.clusters.move_to(1, ClusterList::Frag(0));
        area.count_handed_out(1);
    }

    #[test]
    fn t1_6b_swap_is_full_when_less_than_half_is_free() {
        assert!(SwapTotals { total: 1000, free: 499 }.swap_full());
        assert!(!SwapTotals { total: 1000, free: 500 }.swap_full());
    }

    #[test]
    fn usable_slots_are_all_but_the_header_and_bad_ones() {
        assert_eq!(area(1024).usable_slots(), 1022);
        assert_eq!(area(1024).check(), Ok(()));
    }

    #[test]
    fn a_slot_that_comes_back_leads_its_cluster_to_nonfull_and_the_last_one_to_free() {
        let mut area = area(1024);
        hand_out_700(&mut area);
        area.map.hand_out(701);
        area.clusters.took(1, 1, 0);
        area.count_handed_out(1);
        assert_eq!(area.put_cache(701), Left::Free);
        assert_eq!(area.clusters.list(1), ClusterList::Nonfull(0));
        assert_eq!(area.put_cache(700), Left::Free);
        assert_eq!((area.clusters.list(1), area.in_use()), (ClusterList::Free, 0));
        assert_eq!(area.check(), Ok(()));
    }

    #[test]
    fn an_empty_cluster_waits_for_its_discard_unless_swapoff_has_begun() {
        for (write_ok, list) in [(true, ClusterList::Discard), (false, ClusterList::Free)] {
            let mut area = area(1024);
            area.discard.pages = true;
            hand_out_700(&mut area);
            area.write_ok = write_ok;
            assert_eq!(area.put_cache(700), Left::Free);
            assert_eq!(area.clusters.list(1), list);
        }
    }

    #[test]
    fn the_checker_finds_books_that_differ() {
        let mut lost = area(1024);
        hand_out_700(&mut lost);
        assert_eq!(lost.check(), Ok(()));
        lost.in_use = 0;
        assert_eq!(lost.check(), Err(AreaViolation::Count { clusters: 1, in_use: 0, map: 1 }));

        let mut slot = area(1024);
        hand_out_700(&mut slot);
        slot.map.hand_out(701);
        assert_eq!(slot.check(), Err(AreaViolation::ClusterCount { cluster: 1, count: 1, map: 2 }));

        let mut list = area(1024);
        hand_out_700(&mut list);
        list.clusters.move_to(1, ClusterList::Free);
        assert_eq!(list.check(), Err(AreaViolation::List { cluster: 1, list: ClusterList::Free, count: 1 }));

        let mut left_isolated = area(1024);
        left_isolated.clusters.isolate_first(ClusterList::Free);
        assert!(matches!(left_isolated.check(), Err(AreaViolation::List { .. })));
    }

    #[test]
    fn the_checker_finds_a_slot_that_is_in_use_for_nobody() {
        let mut area = area(1024);
        hand_out_700(&mut area);
        // The cache's bit alone is gone, as if a race had cleared it without freeing the slot.
        area.map.set_byte(700, crate::swap_map::CONTINUED);
        assert_eq!(area.check(), Err(AreaViolation::Slot(700)));
        area.map.set_byte(700, HAS_CACHE);
        assert_eq!(area.check(), Ok(()));
    }

    #[test]
    fn only_single_references_on_synchronous_devices_are_read_directly() {
        let mut area = area(1024);
        hand_out_700(&mut area);
        area.duplicate(700).unwrap();
        assert!(!area.reads_directly(700));
        area.device.synchronous_io = true;
        assert!(area.reads_directly(700));
        area.duplicate(700).unwrap();
        assert!(!area.reads_directly(700));
    }
}
