//! Layout of the memory file: a header, the process slots, and the owners of the clusters of each area.

use std::mem::size_of;

use uswap_system::atomic::{AtomicU32, AtomicU64};

use super::config::RawConfig;
use super::{AREAS_MAX, GroupConfig, PAGE_BYTES, PROCESSES_MAX, ProcessSlot, Tally, WORDS};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"uswapgrp");

/// Grows with every change of the layout: a process of another uswap must not join.
pub(super) const VERSION: u32 = 11;

/// The first pages of the memory file.
#[repr(C)]
pub(super) struct Header {
    pub magic: u64,
    pub version: u32,
    pub header_bytes: u32,
    pub file_bytes: u64,
    pub config: RawConfig,
    /// One bit per process slot that is not free. Shared memory is allocated even by reading it, so nobody
    /// looks at a slot whose bit is not set.
    pub taken: [AtomicU64; WORDS],
    /// What all of them use together.
    pub budget: Budget,
    pub areas: Areas,
    pub control: Control,
    /// What those that are gone have counted.
    pub totals: Tally,
}

/// The budget, and what was seen of its use.
#[repr(C)]
pub(super) struct Budget {
    pub limit_bytes: AtomicU64,
    pub peak_resident_bytes: AtomicU64,
    /// The most that usage was above the budget of that moment.
    pub most_over_bytes: AtomicU64,
    /// Pages by which the shared memory of processes has ever grown.
    pub shared_growth: AtomicU64,
    /// Tickets for the swap token that have been taken.
    pub tickets: AtomicU64,
    /// How often shared memory that processes had already has become swapped, or has ceased to be.
    pub shared_judged: AtomicU64,
    /// Pages of shared memory that were there at the least when that was known best, less what processes have let go of since.
    pub shared_seen: AtomicU64,
    /// Censuses that have been announced.
    pub census: AtomicU64,
    /// Processes that have ever ended, and other reasons why no census holds.
    pub ended: AtomicU64,
}

/// What is said to all processes.
#[repr(C)]
pub(super) struct Control {
    pub announcements: AtomicU32,
    /// Not 0 when shared memory is swapped: who has some hands over a userfaultfd for it. 1: the kernel tells of forks; 2: children do.
    pub swaps_shared: AtomicU32,
    /// 1 when a process has mapped shared memory that has a name and is to be swapped.
    pub named: AtomicU32,
    /// 1 when a process does direct I/O, 2 when the shared-memory server knows of it.
    pub direct_io: AtomicU32,
}

/// The swap areas.
#[repr(C)]
pub(super) struct Areas {
    /// Not 0 for one that is to become empty.
    pub leaving: [AtomicU32; AREAS_MAX],
    /// Where the next free cluster may be.
    pub hint: [AtomicU32; AREAS_MAX],
}

/// Where the parts are in the file, computed from the configuration.
pub(super) struct Layout {
    pub slots: usize,
    pub clusters: [usize; AREAS_MAX],
    pub bytes: usize,
}

impl Layout {
    pub fn of(config: &GroupConfig) -> Layout {
        let page = PAGE_BYTES as usize;
        let slots = size_of::<Header>().next_multiple_of(page);
        let mut end = (slots + PROCESSES_MAX * size_of::<ProcessSlot>()).next_multiple_of(page);
        let mut clusters = [0; AREAS_MAX];
        for (area, start) in clusters.iter_mut().enumerate() {
            *start = end;
            end = (end + config.clusters(area) as usize * size_of::<AtomicU32>()).next_multiple_of(page);
        }
        Layout { slots, clusters, bytes: end }
    }
}
