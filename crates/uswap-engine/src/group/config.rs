//! What stays the same for the whole life of a group, and how it is written into the memory file.

use uswap_core::{OwnerSearch, Policies, ReadaheadPolicy, ReclaimPolicy};

use super::{AREAS_MAX, CLUSTER_SLOTS};
use crate::store::faulty::FaultPlan;

/// How stored pages are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Compressor {
    /// Pages go to the swap areas as they are.
    None = 0,
    /// LZ4: fast, about 2:1.
    #[default]
    Lz4 = 1,
    /// Zstandard at a fast level: a third slower to write, about 3:1.
    Zstd = 2,
}

impl Compressor {
    fn from_raw(raw: u32) -> Option<Compressor> {
        [Compressor::None, Compressor::Lz4, Compressor::Zstd].into_iter().find(|c| *c as u32 == raw)
    }
}

/// One swap area as all processes of the group see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaConfig {
    /// The area exists. Areas are packed: all present ones come first.
    pub present: bool,
    /// Slots, slot 0 (the header) included.
    pub slots: u64,
    /// Higher is used first.
    pub priority: i32,
    /// The descriptor was opened with O_DIRECT.
    pub direct: bool,
    /// Freed slots may be punched out of the file. False for a file that `mkswap` formatted: it must stay
    /// without holes.
    pub punch_holes: bool,
    /// Device and inode number of the file: by these it is known, whatever path names it.
    pub file: [u64; 2],
}

/// Which shared memory is swapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwappedShared {
    /// What is anonymous.
    #[default]
    Anonymous,
    /// None.
    None,
    /// What has a name, too: System V segments, and files in memory that are mapped.
    Files,
}

impl SwappedShared {
    fn from_raw(raw: u32) -> Option<SwappedShared> {
        [SwappedShared::Anonymous, SwappedShared::None, SwappedShared::Files].into_iter().find(|one| *one as u32 == raw)
    }
}

/// What stays the same for the whole life of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupConfig {
    /// The budget at the start: resident anonymous and shared memory of all processes. It may change: see
    /// [`Group::limit_bytes`].
    pub memory_limit_bytes: u64,
    /// Share of the budget that compressed pages may fill.
    pub zpool_percent: u32,
    /// After the pool was full, it takes pages again below this share of its limit.
    pub accept_threshold_percent: u32,
    /// How pages are compressed.
    pub compressor: Compressor,
    /// Which block leaves, and what comes along with a page.
    pub policies: Policies,
    /// The least distance of two watermarks in pages, in simulations of small budgets; 0: as everywhere.
    pub gap_min_pages: u32,
    /// 0 quiet, 1 warnings, 2 and more: what happens.
    pub verbosity: u8,
    /// Which shared memory is swapped.
    pub shared: SwappedShared,
    /// The swap areas.
    pub areas: [AreaConfig; AREAS_MAX],
    /// Store failures on purpose, for tests.
    pub fault_injection: FaultPlan,
}

impl GroupConfig {
    /// Clusters of an area; the last one may be short.
    pub fn clusters(&self, area: usize) -> u32 {
        let slots = if self.areas[area].present { self.areas[area].slots } else { 0 };
        u32::try_from(slots.div_ceil(CLUSTER_SLOTS)).unwrap_or(u32::MAX)
    }
}

#[repr(C)]
struct RawArea {
    slots: u64,
    file: [u64; 2],
    priority: i32,
    flags: u32,
}

const AREA_PRESENT: u32 = 1;

const AREA_DIRECT: u32 = 2;

const AREA_PUNCH: u32 = 4;

/// `GroupConfig` in integers, so that any bytes are a value.
#[repr(C)]
pub(super) struct RawConfig {
    memory_limit_bytes: u64,
    zpool_percent: u32,
    accept_threshold_percent: u32,
    compressor: u32,
    reclaim: u32,
    readahead: u32,
    gap_min_pages: u32,
    /// In its second byte which shared memory is swapped, in its third how swapoff finds pages.
    verbosity: u32,
    areas: [RawArea; AREAS_MAX],
    fault_injection: FaultPlan,
}

impl RawConfig {
    pub fn encode(config: &GroupConfig) -> RawConfig {
        RawConfig {
            memory_limit_bytes: config.memory_limit_bytes,
            zpool_percent: config.zpool_percent,
            accept_threshold_percent: config.accept_threshold_percent,
            compressor: config.compressor as u32,
            reclaim: config.policies.reclaim as u32,
            readahead: config.policies.readahead as u32,
            gap_min_pages: config.gap_min_pages,
            verbosity: u32::from(config.verbosity)
                | (config.shared as u32) << 8
                | (config.policies.swapoff as u32) << 16,
            areas: config.areas.map(|a| RawArea {
                slots: a.slots,
                file: a.file,
                priority: a.priority,
                flags: u32::from(a.present) * AREA_PRESENT
                    + u32::from(a.direct) * AREA_DIRECT
                    + u32::from(a.punch_holes) * AREA_PUNCH,
            }),
            fault_injection: config.fault_injection,
        }
    }

    pub fn decode(&self) -> Option<GroupConfig> {
        let mut areas = [AreaConfig::default(); AREAS_MAX];
        for (area, raw) in areas.iter_mut().zip(&self.areas) {
            *area = AreaConfig {
                present: raw.flags & AREA_PRESENT != 0,
                slots: raw.slots,
                priority: raw.priority,
                direct: raw.flags & AREA_DIRECT != 0,
                punch_holes: raw.flags & AREA_PUNCH != 0,
                file: raw.file,
            };
        }
        Some(GroupConfig {
            memory_limit_bytes: self.memory_limit_bytes,
            zpool_percent: self.zpool_percent,
            accept_threshold_percent: self.accept_threshold_percent,
            compressor: Compressor::from_raw(self.compressor)?,
            policies: Policies {
                reclaim: ReclaimPolicy::from_number(self.reclaim)?,
                readahead: ReadaheadPolicy::from_number(self.readahead)?,
                swapoff: OwnerSearch::from_number(self.verbosity >> 16)?,
            },
            gap_min_pages: self.gap_min_pages,
            verbosity: self.verbosity as u8,
            shared: SwappedShared::from_raw(self.verbosity >> 8 & 0xff)?,
            areas,
            fault_injection: self.fault_injection,
        })
    }
}
