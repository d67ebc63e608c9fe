//! Swap entries: the stable name of a swapped-out page's content, and the places where content can be.

/// Index of a swap entry in the swap table of its process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryId(pub u32);

/// A swap area, in the order in which the areas were given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AreaId(pub u8);

/// Which process of a line of forks stored a content: 0 is the first one, each fork adds one in the child.
///
/// An entry of an earlier epoch than its process's own is *foreign*: its content lies in the pool or the clusters
/// of an ancestor, may be read, and is never freed or moved by this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Epoch(pub u16);

/// Where the content of an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// A compressed object of the pool.
    Pool {
        /// Names the object inside the pool; the pool gives it out.
        handle: u32,
        /// Compressed length in bytes; [`crate::PAGE_SIZE`] when stored as it is.
        len: u16,
    },
    /// One page of a swap area.
    Slot {
        /// The area.
        area: AreaId,
        /// The slot in it.
        slot: u64,
    },
}

impl Location {
    const SLOT_BIT: u64 = 1 << 63;

    /// One word: bit 63 tells a slot (area in bits 48..56, slot below) from a pool object (length above the handle). That of a slot is never 0.
    pub fn pack(self) -> u64 {
        match self {
            Self::Pool { handle, len } => u64::from(len) << 32 | u64::from(handle),
            Self::Slot { area, slot } => {
                assert!(slot < 1 << 48, "slot {slot} is beyond what a location can name");
                Self::SLOT_BIT | u64::from(area.0) << 48 | slot
            }
        }
    }

    /// What [`pack`](Self::pack) made.
    pub fn unpack(word: u64) -> Self {
        if word & Self::SLOT_BIT == 0 {
            Self::Pool { handle: word as u32, len: (word >> 32) as u16 }
        } else {
            Self::Slot { area: AreaId((word >> 48) as u8 & 0x7f), slot: word & ((1 << 48) - 1) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_survives_packing() {
        for location in [
            Location::Pool { handle: u32::MAX, len: 4096 },
            Location::Pool { handle: 0, len: 1 },
            Location::Slot { area: AreaId(7), slot: (1 << 48) - 1 },
            Location::Slot { area: AreaId(0), slot: 1 },
        ] {
            assert_eq!(Location::unpack(location.pack()), location);
        }
    }
}
