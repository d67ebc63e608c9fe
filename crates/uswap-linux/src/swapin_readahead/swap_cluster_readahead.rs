//! Cluster readahead: the neighbours of a slot on its area (`swap_cluster_readahead`).
//!
//! There is one state for the whole machine: every process, cgroup and area shares the hit counter, the previous offset and
//! the last window. So one program that streams inflates everybody's window, and one that jumps about deflates it.

use core::ops::Range;

use super::window::window;

/// `vm.page-cluster` is at most this: windows are `u32`.
pub const PAGE_CLUSTER_MAX: u32 = 31;

/// Hits that are on the counter before anything was read.
const FIRST_HITS: u32 = 4;

/// The global state. Linux 5.1 to 7.3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterReadahead {
    page_cluster: u32,
    hits: u32,
    previous_offset: u64,
    last_window: u32,
}

/// Slots that are read together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotBlock {
    /// What the window rule said, in slots.
    pub window: u32,
    /// The slots of the block that exist, the missed one among them. Free and cached ones are skipped by whoever reads.
    pub slots: Range<u64>,
}

impl ClusterReadahead {
    /// A machine that has not swapped yet. `page_cluster` is `vm.page-cluster`: windows are at most `2^page_cluster` slots, 0
    /// turns readahead off.
    ///
    /// # Panics
    /// When `page_cluster` is larger than [`PAGE_CLUSTER_MAX`].
    pub fn new(page_cluster: u32) -> Self {
        assert!(page_cluster <= PAGE_CLUSTER_MAX, "page_cluster {page_cluster} is larger than {PAGE_CLUSTER_MAX}");
        Self { page_cluster, hits: FIRST_HITS, previous_offset: 0, last_window: 0 }
    }

    /// A page that readahead had brought was wanted.
    pub fn hit(&mut self) {
        self.hits = self.hits.saturating_add(1);
    }

    /// The block to read for a miss at slot `offset` of an area with `slots` slots, the header's included.
    pub fn miss(&mut self, offset: u64, slots: u64) -> SlotBlock {
        let window = self.window(offset);
        SlotBlock { window, slots: aligned_block(offset, window, slots) }
    }

    fn window(&mut self, offset: u64) -> u32 {
        if self.page_cluster == 0 {
            return 1;
        }
        let hits = core::mem::take(&mut self.hits);
        self.last_window = window(self.previous_offset, offset, hits, 1 << self.page_cluster, self.last_window);
        if hits == 0 {
            self.previous_offset = offset;
        }
        self.last_window
    }
}

/// The naturally aligned block of `window` slots (a power of two) around `offset`, without slot 0 and what lies beyond the
/// area's `slots`.
pub fn aligned_block(offset: u64, window: u32, slots: u64) -> Range<u64> {
    debug_assert!(window.is_power_of_two() && offset < slots);
    let within = u64::from(window) - 1;
    (offset & !within).max(1)..(offset | within).saturating_add(1).min(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t3g_page_cluster_zero_reads_one_slot_and_keeps_no_state() {
        let mut readahead = ClusterReadahead::new(0);
        let before = readahead.clone();
        assert_eq!(readahead.miss(7, 100), SlotBlock { window: 1, slots: 7..8 });
        assert_eq!(readahead, before);
    }

    #[test]
    fn the_first_block_is_full() {
        assert_eq!(ClusterReadahead::new(3).miss(21, 100), SlotBlock { window: 8, slots: 16..24 });
        assert_eq!(ClusterReadahead::new(2).miss(21, 100), SlotBlock { window: 4, slots: 20..24 });
    }

    #[test]
    fn a_block_stays_inside_the_area_and_spares_its_header() {
        assert_eq!(aligned_block(3, 8, 100), 1..8);
        assert_eq!(aligned_block(99, 8, 100), 96..100);
        assert_eq!(aligned_block(0, 1, 100), 1..1);
    }

    #[test]
    fn the_previous_offset_stays_while_there_are_hits() {
        let mut readahead = ClusterReadahead::new(3);
        let _ = readahead.miss(500, 1000);
        assert_eq!(readahead.previous_offset, 0, "the first four hits count as hits");
        let _ = readahead.miss(600, 1000);
        assert_eq!(readahead.previous_offset, 600);
        readahead.hit();
        let _ = readahead.miss(700, 1000);
        assert_eq!(readahead.previous_offset, 600);
    }
}
