//! How a free slot of an area is found, as Linux 6.18 does it.
//!
//! An allocation of order k wants 2^k slots, aligned to their number, in one cluster. Each CPU goes on where it took its
//! last ones; the position only moves forward, so a hole behind it is found when the cluster has been left and is picked
//! again from the nonfull list. After that come, in this order: free before nonfull where clusters are discarded, else nonfull
//! before free; then one of frag; then, for single slots, the clusters of other orders.
//!
//! When more than half of swap is in use, slots that only the swap cache holds count as free: they are taken from it on the
//! way, one cluster at a time.

use core::ops::Range;

use super::swap_cluster::{CLUSTER_SLOTS, ClusterList, ORDERS};
use super::swap_entry::SwapEntry;
use super::swap_info::{SwapArea, SwapTotals};
use super::swap_map::Left;

/// Where an allocation goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The area.
    pub area: u8,
    /// The next slot to look at.
    pub slot: u64,
}

/// What an allocation needs done outside of the books. `()` does nothing: no page can be dropped.
pub trait AllocHost {
    /// Tries to drop the page of a slot that only the swap cache holds; true when the cache has let go of it. The books
    /// free the slot then.
    fn drop_cached(&mut self, entry: SwapEntry) -> bool;
    /// Tells the device that these slots of an area hold nothing.
    fn discard(&mut self, area: u8, slots: Range<u64>);
}

impl AllocHost for () {
    fn drop_cached(&mut self, _: SwapEntry) -> bool {
        false
    }
    fn discard(&mut self, _: u8, _: Range<u64>) {}
}

/// The cluster of a slot.
pub fn cluster_of(slot: u64) -> u32 {
    (slot / CLUSTER_SLOTS) as u32
}

/// The slots of a cluster; the last cluster's may lie past the area's end.
pub fn slots_of(cluster: u32) -> Range<u64> {
    let first = u64::from(cluster) * CLUSTER_SLOTS;
    first..first + CLUSTER_SLOTS
}

/// What an allocation in one area works with.
pub(super) struct Search<'a, H> {
    pub number: u8,
    pub order: u8,
    pub totals: &'a mut SwapTotals,
    pub host: &'a mut H,
}

/// The outcome of looking through one cluster.
pub(super) struct Scanned {
    pub found: Option<u64>,
    /// Where the next allocation of this order goes on; none when the cluster has been looked through.
    pub next: Option<u64>,
}

impl Scanned {
    const NOTHING: Self = Self { found: None, next: None };
}

impl SwapArea {
    /// Goes on at a position, if its cluster still serves the order.
    pub(super) fn scan_from<H: AllocHost>(&mut self, slot: u64, search: &mut Search<'_, H>) -> Scanned {
        let cluster = cluster_of(slot);
        let usable = match self.clusters.list(cluster) {
            ClusterList::Nonfull(order) | ClusterList::Frag(order) => search.order == 0 || search.order == order,
            ClusterList::Free | ClusterList::Full | ClusterList::Discard | ClusterList::Isolated => false,
        };
        if usable { self.scan(cluster, slot, search) } else { Scanned::NOTHING }
    }

    /// Picks clusters from the lists until one has what is wanted.
    pub(super) fn scan_lists<H: AllocHost>(&mut self, search: &mut Search<'_, H>) -> Scanned {
        let (free, nonfull) = (ClusterList::Free, ClusterList::Nonfull(search.order));
        // Discarded clusters spread the wear over the device; otherwise those in use are filled first.
        let scanned = if self.discard.pages {
            self.scan_first(free, search).or_else(|| self.scan_all(nonfull, u32::MAX, search))
        } else {
            self.scan_all(nonfull, u32::MAX, search).or_else(|| self.scan_first(free, search))
        };
        if let Some(scanned) = scanned {
            return scanned;
        }
        if search.totals.swap_full() {
            self.reclaim_full_clusters(1, search.number, search.totals, search.host);
        }
        self.scan_first(ClusterList::Frag(search.order), search)
            .or_else(|| self.steal(search))
            .unwrap_or(Scanned::NOTHING)
    }

    /// Order 0 takes from clusters of the others, when nothing else is left.
    fn steal<H: AllocHost>(&mut self, search: &mut Search<'_, H>) -> Option<Scanned> {
        if search.order > 0 {
            return None;
        }
        (1..ORDERS as u8).find_map(|order| {
            let frag = self.clusters.list_len(ClusterList::Frag(order));
            self.scan_all(ClusterList::Frag(order), frag, search)
                .or_else(|| self.scan_all(ClusterList::Nonfull(order), u32::MAX, search))
        })
    }

    fn scan_first<H: AllocHost>(&mut self, list: ClusterList, search: &mut Search<'_, H>) -> Option<Scanned> {
        self.scan_all(list, 1, search)
    }

    /// Looks through a list from its head, at most so many clusters. Each leaves it: to frag, to full, or back to its end.
    fn scan_all<H: AllocHost>(&mut self, list: ClusterList, most: u32, search: &mut Search<'_, H>) -> Option<Scanned> {
        for _ in 0..most {
            let cluster = self.clusters.isolate_first(list)?;
            let scanned = self.scan(cluster, slots_of(cluster).start, search);
            if scanned.found.is_some() {
                return Some(scanned);
            }
        }
        None
    }

    /// Looks for room in one cluster, from a slot on, hands it out, and puts the cluster where it belongs now.
    fn scan<H: AllocHost>(&mut self, cluster: u32, from: u64, search: &mut Search<'_, H>) -> Scanned {
        let wanted = 1u64 << search.order;
        let end = slots_of(cluster).end.min(self.slots());
        let mut slot = from.next_multiple_of(wanted);
        let mut scanned = Scanned::NOTHING;
        while slot + wanted <= end && self.clusters.count(cluster) + wanted <= CLUSTER_SLOTS {
            match self.room_at(slot, wanted, search.totals.swap_full()) {
                Room::Taken => {}
                Room::Free => {
                    scanned.found = Some(slot);
                    break;
                }
                Room::Cached => {
                    self.drop_cached_run(slot..slot + wanted, search);
                    if self.clusters.list(cluster) == ClusterList::Discard {
                        break;
                    }
                    if self.room_at(slot, wanted, false) == Room::Free {
                        scanned.found = Some(slot);
                        break;
                    }
                }
            }
            slot += wanted;
        }
        if let Some(first) = scanned.found {
            for slot in first..first + wanted {
                self.map.hand_out(slot);
            }
            self.clusters.took(cluster, wanted, search.order);
            self.count_handed_out(wanted);
            search.totals.free -= wanted as i64;
            let next = first + wanted;
            let stays = next + wanted <= end && self.clusters.count(cluster) < CLUSTER_SLOTS;
            scanned.next = stays.then_some(next);
        }
        self.relocate(cluster);
        scanned
    }

    /// Puts a cluster that was looked through into the list of what it has become.
    fn relocate(&mut self, cluster: u32) {
        let list = self.clusters.list(cluster);
        if list == ClusterList::Discard {
            return;
        }
        let fits = match self.clusters.count(cluster) {
            0 => ClusterList::Free,
            CLUSTER_SLOTS => ClusterList::Full,
            _ => ClusterList::Frag(self.clusters.order(cluster)),
        };
        if fits != list {
            self.clusters.move_to(cluster, fits);
        }
    }

    fn room_at(&self, slot: u64, wanted: u64, cached_counts: bool) -> Room {
        let mut room = Room::Free;
        for slot in slot..slot + wanted {
            if self.map.is_free(slot) {
                continue;
            }
            if !cached_counts || !self.map.is_cache_only(slot) {
                return Room::Taken;
            }
            room = Room::Cached;
        }
        room
    }

    /// Frees what only the cache holds in a run of slots, up to the first page that cannot be dropped.
    fn drop_cached_run<H: AllocHost>(&mut self, run: Range<u64>, search: &mut Search<'_, H>) {
        for slot in run {
            if self.map.is_cache_only(slot) && !self.drop_cached(slot, search.number, search.totals, search.host) {
                return;
            }
        }
    }

    fn drop_cached<H: AllocHost>(&mut self, slot: u64, number: u8, totals: &mut SwapTotals, host: &mut H) -> bool {
        let dropped = host.drop_cached(SwapEntry { area: number, slot });
        if dropped {
            let left = self.put_cache(slot);
            assert!(left == Left::Free, "slot {slot} was held by the swap cache only");
            totals.free += 1;
        }
        dropped
    }

    /// Walks so many full clusters and frees what only the cache holds; the slots that were freed. A cluster without any
    /// goes to the end of the list.
    pub(super) fn reclaim_full_clusters<H: AllocHost>(
        &mut self,
        most: u32,
        number: u8,
        totals: &mut SwapTotals,
        host: &mut H,
    ) -> u64 {
        let mut freed = 0;
        for _ in 0..most {
            let Some(cluster) = self.clusters.isolate_first(ClusterList::Full) else { break };
            let slots = slots_of(cluster);
            for slot in slots.start..slots.end.min(self.slots()) {
                if self.map.is_cache_only(slot) && self.drop_cached(slot, number, totals, host) {
                    freed += 1;
                }
            }
            if self.clusters.list(cluster) == ClusterList::Isolated {
                self.relocate(cluster);
            }
        }
        freed
    }

    /// Discards the clusters that wait for it; how many there were.
    pub(super) fn discard_pending<H: AllocHost>(&mut self, number: u8, host: &mut H) -> u32 {
        let mut discarded = 0;
        while let Some(cluster) = self.clusters.isolate_first(ClusterList::Discard) {
            let slots = slots_of(cluster);
            host.discard(number, slots.start..slots.end.min(self.slots()));
            self.clusters.move_to(cluster, ClusterList::Free);
            discarded += 1;
        }
        discarded
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Taken,
    Free,
    /// Free once the swap cache has let go of it.
    Cached,
}
