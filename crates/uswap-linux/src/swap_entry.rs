//! Swap entries: one word that names a slot of an area, and the narrower form that a page table holds.
//!
//! The word has 63 bits: the type (which area) in the top 5, the offset (which slot) in the low 58. Zero means "no entry":
//! it would name the header of the first area, which is never handed out.

/// Bits of the offset in the word.
const OFFSET_BITS: u32 = 58;

/// Types that the word can name.
pub const SWAP_TYPES: u8 = 32;

/// A slot of an area (`swp_entry_t`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SwapEntry {
    /// Which area (the kernel's swap type).
    pub area: u8,
    /// Which slot of it.
    pub slot: u64,
}

impl SwapEntry {
    /// The word. Never zero for a slot that can hold a page.
    ///
    /// # Panics
    /// When the area is no type, or the slot has more than 58 bits: the word would name another slot.
    pub fn to_word(self) -> u64 {
        assert!(self.area < SWAP_TYPES, "swap type {} does not fit an entry", self.area);
        assert!(self.slot < 1 << OFFSET_BITS, "slot {} does not fit an entry", self.slot);
        u64::from(self.area) << OFFSET_BITS | self.slot
    }

    /// The entry of a word; `None` for the word that means "no entry", and for more than 63 bits.
    pub fn from_word(word: u64) -> Option<Self> {
        if word == 0 || word >> (OFFSET_BITS + 5) != 0 {
            return None;
        }
        Some(Self { area: (word >> OFFSET_BITS) as u8, slot: word & ((1 << OFFSET_BITS) - 1) })
    }
}

/// What takes types away from areas: uses of page-table entries that are not present and not swapped out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReservedTypes {
    /// Page-table markers: one type.
    pub marker: bool,
    /// Pages with a memory failure: one type.
    pub hwpoison: bool,
    /// Pages on their way to another node: three types.
    pub migration: bool,
    /// Memory of a device: three types.
    pub device: bool,
}

impl ReservedTypes {
    /// All of them, as in a distribution's kernel.
    pub const ALL: Self = Self { marker: true, hwpoison: true, migration: true, device: true };

    /// Areas that there can be (`MAX_SWAPFILES`).
    pub const fn areas_max(self) -> u8 {
        SWAP_TYPES - self.marker as u8 - self.hwpoison as u8 - 3 * (self.migration as u8) - 3 * (self.device as u8)
    }
}

/// How an architecture keeps an entry in a page table: only so many bits of the offset fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PteFormat {
    offset_bits: u32,
}

impl PteFormat {
    /// Four-level and five-level x86-64.
    pub const X86_64: Self = Self { offset_bits: 50 };

    /// A format whose offsets have this many bits.
    ///
    /// # Panics
    /// When the word itself has fewer.
    pub const fn with_offset_bits(offset_bits: u32) -> Self {
        assert!(offset_bits > 0 && offset_bits <= OFFSET_BITS);
        Self { offset_bits }
    }

    /// Slots of the largest area: an offset of all ones goes into a page table and comes back, and one more is the size.
    pub const fn slots_max(self) -> u64 {
        let all_ones = (1u64 << OFFSET_BITS) - 1;
        self.round_trip(all_ones) + 1
    }

    const fn round_trip(self, offset: u64) -> u64 {
        offset & ((1 << self.offset_bits) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_its_word() {
        for entry in [
            SwapEntry { area: 0, slot: 1 },
            SwapEntry { area: 31, slot: (1 << 58) - 1 },
            SwapEntry { area: 23, slot: 0 },
        ] {
            assert_eq!(SwapEntry::from_word(entry.to_word()), Some(entry));
        }
    }

    #[test]
    fn the_header_of_the_first_area_is_no_entry() {
        assert_eq!(SwapEntry { area: 0, slot: 0 }.to_word(), 0);
        assert_eq!(SwapEntry::from_word(0), None);
        assert_eq!(SwapEntry::from_word(1 << 63), None);
    }

    #[test]
    fn twenty_four_areas_are_left_with_everything_enabled() {
        assert_eq!(ReservedTypes::ALL.areas_max(), 24);
        let none = ReservedTypes { marker: false, hwpoison: false, migration: false, device: false };
        assert_eq!(none.areas_max(), 32);
    }

    #[test]
    fn the_largest_area_is_what_survives_a_page_table() {
        assert_eq!(PteFormat::X86_64.slots_max(), 1 << 50);
        assert_eq!(PteFormat::with_offset_bits(8).slots_max(), 256);
    }
}
