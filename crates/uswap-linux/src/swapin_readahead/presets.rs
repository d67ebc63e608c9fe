//! Which kernel: what swapoff did about readahead, era by era. Faults and shared memory kept one rule all the time.

use core::fmt;
use core::str::FromStr;

use uswap_core::units::LEAF_PAGES;

/// The readahead rules of a span of kernels, or of patches that were proposed and not merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preset {
    /// What it is called, and parsed from.
    pub name: &'static str,
    /// Swapoff looks into the swap cache before it works out a window, instead of for each PTE.
    pub swapoff_looks_first: bool,
    /// What swapoff finds in the swap cache counts as a readahead hit.
    pub swapoff_counts_hits: bool,
    /// Swapoff reads a slot with one owner on a synchronous area without the swap cache, as faults do.
    pub swapoff_bypasses: bool,
    /// Swapoff reads neighbours on the area only, never neighbours in the mapping: it has a policy and no fault at hand.
    pub swapoff_by_cluster: bool,
    /// Slots that cluster readahead takes at a time from an area that is going off, whatever its window rule says.
    pub going_off_block: Option<u32>,
}

impl Preset {
    /// Swapoff asks for readahead at each PTE, also where an earlier window has brought the page: no hit is ever noted, and
    /// the window rule runs once a page.
    pub const LINUX_5_1: Self = Self {
        name: "5.1-5.7",
        swapoff_looks_first: false,
        swapoff_counts_hits: false,
        swapoff_bypasses: false,
        swapoff_by_cluster: false,
        going_off_block: None,
    };
    /// Swapoff looks into the swap cache first and counts what it finds (the fix of the 2020 thread).
    pub const LINUX_5_8: Self =
        Self { name: "5.8-6.12", swapoff_looks_first: true, swapoff_counts_hits: true, ..Self::LINUX_5_1 };
    /// Swapoff looks first, but by a lookup that counts nothing: windows come from adjacency alone. Read in the source of 6.18
    /// and 7.3, not measured; 6.13 to 6.17 were not read.
    pub const LINUX_6_18: Self = Self { name: "6.18", swapoff_looks_first: true, ..Self::LINUX_5_1 };
    /// The proposal of the 2024 thread: one helper for all, which has only a policy in swapoff. Not merged.
    pub const PROPOSED_2024: Self =
        Self { name: "2024-cluster", swapoff_bypasses: true, swapoff_by_cluster: true, ..Self::LINUX_5_8 };
    /// The same with blocks of 2 MiB from an area that is going off. Not merged.
    pub const PROPOSED_2024_BLOCKS: Self =
        Self { name: "2024-2M", going_off_block: Some(LEAF_PAGES as u32), ..Self::PROPOSED_2024 };

    /// All of them, oldest first.
    pub const ALL: [Self; 5] =
        [Self::LINUX_5_1, Self::LINUX_5_8, Self::PROPOSED_2024, Self::PROPOSED_2024_BLOCKS, Self::LINUX_6_18];
}

/// No preset has that name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownPreset;

impl fmt::Display for UnknownPreset {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("unknown readahead preset; choose one of")?;
        Preset::ALL.iter().try_for_each(|preset| write!(out, " {}", preset.name))
    }
}

impl core::error::Error for UnknownPreset {}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        Self::ALL.into_iter().find(|preset| preset.name == name).ok_or(UnknownPreset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_preset_is_parsed_from_its_name() {
        for preset in Preset::ALL {
            assert_eq!(preset.name.parse(), Ok(preset));
        }
        assert_eq!("5.1-5.7".parse(), Ok(Preset::LINUX_5_1));
        assert_eq!("5.8-6.12".parse(), Ok(Preset::LINUX_5_8));
        assert_eq!("6.18".parse(), Ok(Preset::LINUX_6_18));
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let refused = "5.9".parse::<Preset>().unwrap_err().to_string();
        assert_eq!(refused, "unknown readahead preset; choose one of 5.1-5.7 5.8-6.12 2024-cluster 2024-2M 6.18");
    }
}
