//! Clusters of an area: 512 slots each, in lists by how full they are and for which orders they serve.
//!
//! Each cluster is in exactly one list, or isolated while an allocation looks through it:
//!
//! - *free*: no slot in use. The first allocation fixes the cluster's order, until it is empty again.
//! - *frag* of its order: it was handed out from, and may have holes that nobody has looked for.
//! - *nonfull* of its order: a slot came back since.
//! - *full*: every slot is in use.
//! - *discard*: empty, but its device has not been told yet.
//!
//! Bad slots, the header and what lies past the end of the area count as in use, so a cluster that has any is never free: it
//! starts in nonfull of order 0. Source: Linux 6.18.

use alloc::vec::Vec;

/// Slots in a cluster when the kernel can swap huge pages out whole: 512 of 4 KiB are 2 MiB.
pub const CLUSTER_SLOTS: u64 = 512;
/// Orders of allocation: 0 (one slot) to 9 (a whole cluster).
pub const ORDERS: usize = 10;

/// The end of a list.
const NONE: u32 = u32::MAX;
/// Free, full, discard, and two for each order.
const LISTS: usize = 3 + 2 * ORDERS;

/// Where a cluster is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClusterList {
    /// In no list: an allocation looks through it.
    Isolated,
    /// Empty.
    Free,
    /// No slot to hand out.
    Full,
    /// Empty, to be discarded.
    Discard,
    /// A slot came back.
    Nonfull(u8),
    /// Handed out from.
    Frag(u8),
}

impl ClusterList {
    fn index(self) -> Option<usize> {
        match self {
            Self::Isolated => None,
            Self::Free => Some(0),
            Self::Full => Some(1),
            Self::Discard => Some(2),
            Self::Nonfull(order) => Some(3 + order as usize),
            Self::Frag(order) => Some(3 + ORDERS + order as usize),
        }
    }
}

#[derive(Clone, Copy)]
struct Cluster {
    /// Slots in use, bad ones included.
    count: u16,
    order: u8,
    list: ClusterList,
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
    len: u32,
}

/// All clusters of an area.
pub struct Clusters {
    clusters: Vec<Cluster>,
    lists: [Ends; LISTS],
}

impl Clusters {
    /// Clusters of an area of `slots` slots, in order of their number; slots for which `is_bad` says so count as in use.
    pub fn new(slots: u64, is_bad: impl Fn(u64) -> bool) -> Self {
        let count = u32::try_from(slots.div_ceil(CLUSTER_SLOTS)).expect("an area has fewer than 2^32 clusters");
        let isolated = Cluster { count: 0, order: 0, list: ClusterList::Isolated, previous: NONE, next: NONE };
        let mut clusters = Self {
            clusters: alloc::vec![isolated; count as usize],
            lists: [Ends { first: NONE, last: NONE, len: 0 }; LISTS],
        };
        for cluster in 0..count {
            let first = u64::from(cluster) * CLUSTER_SLOTS;
            let unusable = (first..first + CLUSTER_SLOTS).filter(|&slot| slot >= slots || is_bad(slot)).count();
            clusters.clusters[cluster as usize].count = unusable as u16;
            clusters.move_to(cluster, if unusable == 0 { ClusterList::Free } else { ClusterList::Nonfull(0) });
        }
        clusters
    }

    /// Clusters of the area.
    pub fn len(&self) -> u32 {
        self.clusters.len() as u32
    }

    /// Whether the area has no cluster.
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty()
    }

    /// Slots in use in a cluster, bad ones included.
    pub fn count(&self, cluster: u32) -> u64 {
        self.clusters[cluster as usize].count.into()
    }

    /// The order that the cluster serves.
    pub fn order(&self, cluster: u32) -> u8 {
        self.clusters[cluster as usize].order
    }

    /// Where the cluster is.
    pub fn list(&self, cluster: u32) -> ClusterList {
        self.clusters[cluster as usize].list
    }

    /// Clusters in a list; 0 for isolated ones, which are in none.
    pub fn list_len(&self, list: ClusterList) -> u32 {
        list.index().map_or(0, |index| self.lists[index].len)
    }

    /// Takes the first cluster out of a list.
    pub fn isolate_first(&mut self, list: ClusterList) -> Option<u32> {
        let first = self.lists[list.index()?].first;
        (first != NONE).then(|| {
            self.move_to(first, ClusterList::Isolated);
            first
        })
    }

    /// Moves a cluster to the end of a list.
    pub fn move_to(&mut self, cluster: u32, list: ClusterList) {
        self.unlink(cluster);
        self.clusters[cluster as usize].list = list;
        let Some(index) = list.index() else { return };
        let last = self.lists[index].last;
        self.clusters[cluster as usize].previous = last;
        self.join(index, last, cluster);
        self.join(index, cluster, NONE);
        self.lists[index].len += 1;
    }

    /// Counts slots that were handed out for a request of this order. The first fixes the order of an empty cluster.
    pub fn took(&mut self, cluster: u32, slots: u64, order: u8) {
        let cluster = &mut self.clusters[cluster as usize];
        if cluster.count == 0 {
            cluster.order = order;
        }
        cluster.count += slots as u16;
        assert!(u64::from(cluster.count) <= CLUSTER_SLOTS, "more slots in use than a cluster has");
    }

    /// Counts a slot that came back; what is still in use.
    pub fn gave(&mut self, cluster: u32) -> u64 {
        let cluster = &mut self.clusters[cluster as usize];
        cluster.count = cluster.count.checked_sub(1).expect("a slot came back to an empty cluster");
        cluster.count.into()
    }

    /// Slots in use in all clusters, bad ones and those past the area's end included.
    pub fn total_count(&self) -> u64 {
        self.clusters.iter().map(|cluster| u64::from(cluster.count)).sum()
    }

    fn unlink(&mut self, cluster: u32) {
        let Cluster { list, previous, next, .. } = self.clusters[cluster as usize];
        let Some(index) = list.index() else { return };
        self.join(index, previous, next);
        self.lists[index].len -= 1;
        let cluster = &mut self.clusters[cluster as usize];
        (cluster.previous, cluster.next) = (NONE, NONE);
    }

    /// Makes two clusters neighbours; `NONE` stands for the list's end.
    fn join(&mut self, list: usize, before: u32, after: u32) {
        match before {
            NONE => self.lists[list].first = after,
            _ => self.clusters[before as usize].next = after,
        }
        match after {
            NONE => self.lists[list].last = before,
            _ => self.clusters[after as usize].previous = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_with_bad_slots_start_in_nonfull_and_the_others_in_free_in_order() {
        let mut clusters = Clusters::new(4 * 512 + 100, |slot| slot == 0 || slot == 600);
        let lists: Vec<_> = (0..clusters.len()).map(|cluster| clusters.list(cluster)).collect();
        use ClusterList::{Free, Nonfull};
        assert_eq!(lists, [Nonfull(0), Nonfull(0), Free, Free, Nonfull(0)]);
        assert_eq!((clusters.count(0), clusters.count(1), clusters.count(4)), (1, 1, 412));
        assert_eq!(clusters.isolate_first(Free), Some(2));
        assert_eq!(clusters.isolate_first(Free), Some(3));
        assert_eq!(clusters.isolate_first(Free), None);
        assert_eq!(clusters.list_len(Nonfull(0)), 3);
    }

    #[test]
    fn the_first_allocation_fixes_the_order_until_the_cluster_is_empty() {
        let mut clusters = Clusters::new(1024, |slot| slot == 0);
        clusters.took(1, 4, 2);
        clusters.took(1, 1, 0);
        assert_eq!((clusters.order(1), clusters.count(1)), (2, 5));
        for _ in 0..5 {
            clusters.gave(1);
        }
        clusters.took(1, 1, 0);
        assert_eq!(clusters.order(1), 0);
    }

    #[test]
    #[should_panic(expected = "came back to an empty cluster")]
    fn a_slot_never_comes_back_to_an_empty_cluster() {
        Clusters::new(1024, |slot| slot == 0).gave(1);
    }
}
