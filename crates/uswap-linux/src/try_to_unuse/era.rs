//! Which kernel's swapoff, or which patch's.

use core::fmt;
use core::str::FromStr;

use crate::shmem::{BATCH_ENTRIES, BATCH_ENTRIES_LATER, OwnerSearch};
use crate::swapin_readahead::Preset;

/// A span of kernels whose swapoff goes the same way, or a patch that was not merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapoffEra {
    /// Up to 3.0: by slot, one page at a time; files are searched by their swap vectors.
    V3_0,
    /// 3.1-rc: by slot; files are searched by gang lookup.
    V3_1Rc,
    /// 3.1 to 5.0: by slot; files are searched in place.
    V3_1,
    /// 5.1: through the page tables, readahead at every entry, three passes at most.
    V5_1,
    /// Later 5.1 to 5.7: the same with as many passes as it takes.
    V5_2,
    /// 5.8 to 6.17 or so: the swap cache first, hits counted.
    V5_8,
    /// The patch of January 2024: neighbours by slot only.
    Proposed2024,
    /// The same with blocks of 2 MiB.
    Proposed2024Blocks,
    /// 6.18: the swap cache first, nothing counted.
    V6_18,
}

impl SwapoffEra {
    /// All of them, oldest first.
    pub const ALL: [Self; 9] = [
        Self::V3_0,
        Self::V3_1Rc,
        Self::V3_1,
        Self::V5_1,
        Self::V5_2,
        Self::V5_8,
        Self::Proposed2024,
        Self::Proposed2024Blocks,
        Self::V6_18,
    ];

    /// What it is called, and parsed from.
    pub fn name(self) -> &'static str {
        match self {
            Self::V3_0 => "3.0",
            Self::V3_1Rc => "3.1-rc",
            Self::V3_1 => "3.1",
            Self::V5_1 => "5.1",
            Self::V5_2 => "5.2",
            Self::V5_8 => "5.8",
            Self::Proposed2024 => "2024-cluster",
            Self::Proposed2024Blocks => "2024-2M",
            Self::V6_18 => "6.18",
        }
    }

    /// The readahead rules that the machine has then. Swapoff by slot reads nothing along.
    pub fn preset(self) -> Preset {
        match self {
            Self::V3_0 | Self::V3_1Rc | Self::V3_1 | Self::V5_1 | Self::V5_2 => Preset::LINUX_5_1,
            Self::V5_8 => Preset::LINUX_5_8,
            Self::Proposed2024 => Preset::PROPOSED_2024,
            Self::Proposed2024Blocks => Preset::PROPOSED_2024_BLOCKS,
            Self::V6_18 => Preset::LINUX_6_18,
        }
    }

    /// How the file of a slot is found, where swapoff goes by slot.
    pub fn owner_search(self) -> Option<OwnerSearch> {
        match self {
            Self::V3_0 => Some(OwnerSearch::SwapVectors),
            Self::V3_1Rc => Some(OwnerSearch::GangLookup),
            Self::V3_1 => Some(OwnerSearch::LocateItem),
            Self::V5_1 | Self::V5_2 | Self::V5_8 | Self::Proposed2024 | Self::Proposed2024Blocks | Self::V6_18 => None,
        }
    }

    /// Passes after which it gives up with EBUSY.
    pub(super) fn passes_max(self) -> u64 {
        if self == Self::V5_1 { 3 } else { u64::MAX }
    }

    /// Slots of a file that are brought in together.
    pub(super) fn batch(self) -> usize {
        if self == Self::V6_18 { BATCH_ENTRIES_LATER } else { BATCH_ENTRIES }
    }
}

/// No era has that name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownEra;

impl fmt::Display for UnknownEra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown swapoff era; choose one of")?;
        SwapoffEra::ALL.iter().try_for_each(|era| write!(f, " {}", era.name()))
    }
}

impl core::error::Error for UnknownEra {}

impl FromStr for SwapoffEra {
    type Err = UnknownEra;

    fn from_str(name: &str) -> Result<Self, UnknownEra> {
        Self::ALL.into_iter().find(|era| era.name() == name).ok_or(UnknownEra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn an_era_is_parsed_from_its_name() {
        for era in SwapoffEra::ALL {
            assert_eq!(era.name().parse(), Ok(era));
        }
        let refused = "4.4".parse::<SwapoffEra>().unwrap_err().to_string();
        assert!(refused.starts_with("unknown swapoff era; choose one of 3.0 3.1-rc "), "{refused}");
    }
}
