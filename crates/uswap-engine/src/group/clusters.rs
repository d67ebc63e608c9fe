//! Clusters: which process each of every swap area belongs to.

use uswap_system::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::{AREAS_MAX, Group, SlotState};

/// Owner of clusters that are nobody's and not free.
const WITHHELD: u32 = u32::MAX;

impl Group {
    fn owners(&self, area: usize) -> &[AtomicU32] {
        // SAFETY: inside the mapping by the layout, page-aligned; any bytes are a value.
        unsafe {
            let start = self.base.add(self.layout.clusters[area]).cast::<AtomicU32>();
            std::slice::from_raw_parts(start.as_ptr(), self.config.clusters(area) as usize)
        }
    }

    /// Takes a free cluster of an area for process `me`, next to the one taken last. None when there is none.
    pub fn claim_cluster(&self, area: usize, me: u32) -> Option<u32> {
        let owners = self.owners(area);
        if owners.is_empty() {
            return None;
        }
        let hint = &self.header().areas.hint[area];
        let start = hint.load(Relaxed) as usize % owners.len();
        for cluster in (start..owners.len()).chain(0..start) {
            if owners[cluster].load(Relaxed) == 0
                && owners[cluster].compare_exchange(0, me + 1, AcqRel, Relaxed).is_ok()
            {
                hint.store(cluster as u32 + 1, Relaxed);
                return Some(cluster as u32);
            }
        }
        None
    }

    /// Gives a cluster back. False when it was not `me`'s.
    #[must_use]
    pub fn release_cluster(&self, area: usize, cluster: u32, me: u32) -> bool {
        self.owners(area)[cluster as usize].compare_exchange(me + 1, 0, AcqRel, Relaxed).is_ok()
    }

    /// Takes a cluster for nobody: it has pages that must not be used.
    pub fn withhold_cluster(&self, area: usize, cluster: u32) {
        self.owners(area)[cluster as usize].store(WITHHELD, Release);
    }

    /// The process that owns a cluster.
    pub fn cluster_owner(&self, area: usize, cluster: u32) -> Option<u32> {
        self.owners(area)[cluster as usize].load(Acquire).checked_sub(1).filter(|me| *me + 1 != WITHHELD)
    }

    /// The clusters of an area that a process owns, ascending.
    pub fn clusters_of(&self, area: usize, process: u32) -> impl Iterator<Item = u32> {
        let owned =
            move |(cluster, owner): (usize, &AtomicU32)| (owner.load(Acquire) == process + 1).then_some(cluster as u32);
        self.owners(area).iter().enumerate().filter_map(owned)
    }

    /// Clusters of an area that somebody owns.
    pub fn clusters_taken(&self, area: usize) -> u64 {
        self.owners(area).iter().filter(|owner| owner.load(Relaxed) != 0).count() as u64
    }

    /// Clusters of an area whose owners have ended: children of theirs may have something there.
    pub fn clusters_of_the_ended(&self, area: usize) -> u64 {
        let owners = (0..self.owners(area).len()).filter_map(|cluster| self.cluster_owner(area, cluster as u32));
        owners.filter(|&index| self.process(index).state() == SlotState::Dead).count() as u64
    }

    /// Whether a process, also one that has ended, owns a cluster of an area.
    pub(super) fn is_owned(&self, area: usize) -> bool {
        self.owners(area).iter().any(|owner| ![0, WITHHELD].contains(&owner.load(Acquire)))
    }

    /// Processes that have ended, and own clusters of an area that is to become empty, which nobody reads any more.
    pub fn left_behind(&self, area: usize) -> impl Iterator<Item = u32> {
        let has_left = move |&index: &u32| {
            self.process(index).state() == SlotState::Dead
                && self.clusters_of(area, index).next().is_some()
                && self.heirs_have_left(index, area)
        };
        self.taken().map(|(index, _)| index).filter(has_left)
    }

    /// Frees every cluster of an area that a process owns.
    pub fn release_all_on(&self, area: usize, process: u32) {
        for owner in self.owners(area) {
            let _ = owner.compare_exchange(process + 1, 0, AcqRel, Relaxed);
        }
    }

    /// Frees every cluster that a process owns.
    pub fn release_all_of(&self, process: u32) {
        (0..AREAS_MAX).for_each(|area| self.release_all_on(area, process));
    }
}
