//! Slabs: what a pool is cut into, and the record of each.

/// Objects start at multiples of this, and classes are multiples of it.
pub(super) const UNIT_BYTES: usize = 64;
/// The largest object: a page that did not compress.
pub const OBJECT_BYTES_MAX: usize = 4096;
/// 32 KiB: 8 objects of the largest class; smaller slabs waste more at their end, larger ones run empty less often.
pub const SLAB_BYTES: usize = 32 * 1024;
pub(super) const SLAB_UNITS: usize = SLAB_BYTES / UNIT_BYTES;
pub(super) const CLASS_UNITS_MAX: usize = OBJECT_BYTES_MAX / UNIT_BYTES;
pub(super) const BITMAP_WORDS: usize = SLAB_UNITS / 64;
/// Partial slabs are kept by tenths of fullness, as in zsmalloc: the fullest are filled first, the sparsest emptied first.
pub(super) const FULLNESS_GROUPS: usize = 10;
/// The end of a list of slabs.
pub(super) const NO_SLAB: u32 = u32::MAX;

/// Names an object: its distance from the start of the pool, in units of 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Handle(pub u32);

impl Handle {
    /// Distance from the start of the pool.
    pub const fn byte_offset(self) -> usize {
        self.0 as usize * UNIT_BYTES
    }

    pub(super) const fn slab(self) -> usize {
        self.byte_offset() / SLAB_BYTES
    }
}

/// Where a slab is, which tells what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Never used: no memory behind it, in no list.
    Fresh,
    /// Its memory went back to the kernel; in `Zpool::returned`.
    Returned,
    /// Memory, no object; in `Zpool::empty`.
    Empty,
    /// Some objects and some room; in the list of its class and of this fullness group.
    Partial { group: u8 },
    /// No room; in no list.
    Full,
    /// Chosen by compaction to run empty: takes no new object; in `Zpool::leaving`.
    Leaving,
}

/// The record of one slab.
#[derive(Clone)]
pub(super) struct Slab {
    pub(super) taken: [u64; BITMAP_WORDS],
    pub(super) previous: u32,
    pub(super) next: u32,
    pub(super) place: Place,
    /// Units of an object; 0 when the slab has no class.
    pub(super) class_units: u8,
    pub(super) used: u16,
}

impl Slab {
    pub(super) const FRESH: Slab = Slab {
        taken: [0; BITMAP_WORDS],
        previous: NO_SLAB,
        next: NO_SLAB,
        place: Place::Fresh,
        class_units: 0,
        used: 0,
    };

    /// Objects that it has room for; it has a class.
    pub(super) fn capacity(&self) -> usize {
        SLAB_UNITS / usize::from(self.class_units)
    }

    /// Where the slab belongs by the number of its objects.
    pub(super) fn place_by_use(&self) -> Place {
        let (used, capacity) = (usize::from(self.used), self.capacity());
        if used == 0 {
            Place::Empty
        } else if used == capacity {
            Place::Full
        } else {
            Place::Partial { group: (used * FULLNESS_GROUPS / capacity) as u8 }
        }
    }

    /// Takes a place of a slab that has room; returns which.
    pub(super) fn take_first_free(&mut self) -> usize {
        for (word_index, word) in self.taken.iter_mut().enumerate() {
            if *word != u64::MAX {
                let bit = word.trailing_ones();
                *word |= 1 << bit;
                let object = word_index * 64 + bit as usize;
                assert!(object < self.capacity(), "a slab with room has a free bit");
                self.used += 1;
                return object;
            }
        }
        unreachable!("a slab with room has a free bit")
    }
}

/// A list of slabs, linked through `Slab::previous` and `Slab::next`.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub(super) first: u32,
    pub(super) len: usize,
}

impl List {
    pub(super) const NEW: List = List { first: NO_SLAB, len: 0 };
}

/// Units of the objects in the class that serves a length. Classes with equally many objects a slab are merged into
/// the largest of them, as zsmalloc does.
pub(super) const fn class_units(len: usize) -> usize {
    let objects = SLAB_UNITS / len.div_ceil(UNIT_BYTES);
    SLAB_UNITS / objects
}
