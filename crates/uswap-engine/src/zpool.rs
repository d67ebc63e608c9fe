//! The compressed bytes themselves: objects of 1 to 4096 bytes in a region of shared memory.
//!
//! The region is one `MAP_SHARED | MAP_ANONYMOUS` mapping, so that a forked child goes on reading the objects that
//! its parent stored before the fork; it shows as RssShmem. It is cut into *slabs* of 32 KiB. A slab holds objects of
//! one *size class* (zsmalloc's word; there the slab is a zspage), with a bitmap of what is taken. An object never
//! straddles slabs, and moves only with its owner's consent: see [`compaction`].
//!
//! A slab is in exactly one [`Place`]: `Fresh` or `Returned` (no memory behind it), `Empty` (memory, no object),
//! `Partial`, `Full`, or `Leaving` (compaction empties it). New objects go to the fullest partial slab of their class, so
//! that the others run empty; empty slabs beyond a small reserve go back to the kernel.
//!
//! Allocating and freeing takes `&mut`: the caller has a lock around the pool. Bytes are read and written without
//! it, through the [`PoolView`]: an object belongs to whoever holds its handle.
//!
//! What belongs to the pool but is not its content (slab records) is in the ordinary heap, private to the process: a
//! forked child has the content of the parent's objects but no say in their life.
#![allow(unsafe_code)]

mod compaction;
mod region;
mod slab;

use std::io;

use rustix::mm::Advice;

use region::Region;
use slab::{
    BITMAP_WORDS, CLASS_UNITS_MAX, FULLNESS_GROUPS, List, NO_SLAB, Place, SLAB_UNITS, Slab, UNIT_BYTES, class_units,
};

pub use compaction::SlabSet;
pub use region::{ForeignPool, ObjectCopy, PoolView};
pub use slab::{Handle, OBJECT_BYTES_MAX, SLAB_BYTES};

/// Empty slabs that keep their memory: 512 KiB, about what one reclaim batch stores. When twice as many are empty,
/// all but these go back to the kernel in one go.
const EMPTY_RESERVE: usize = 16;
/// Slab records are allocated in chunks of this many: 32 MiB of pool.
const CHUNK_SLABS: usize = 1024;

/// What a size class holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct ClassUse {
    slabs: usize,
    /// Of these, the slabs that compaction empties.
    leaving: usize,
    objects: usize,
}

/// Where the memory of a pool goes, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolUsage {
    /// All of it: see [`Zpool::pool_bytes`].
    pub pool_bytes: usize,
    /// The stored objects.
    pub stored_bytes: usize,
    /// What they are rounded up by, to the sizes of their classes.
    pub rounding_bytes: usize,
    /// Ends of slabs that are too short for another object.
    pub tail_bytes: usize,
    /// Room for objects in slabs that hold some.
    pub hole_bytes: usize,
    /// Slabs that hold none and are kept in reserve.
    pub empty_bytes: usize,
    /// Number of stored objects.
    pub objects: usize,
    /// Heap that the records of slabs take.
    pub metadata_bytes: usize,
}

impl PoolUsage {
    /// The share of the pool's memory in which no byte of an object lies.
    pub fn waste(&self) -> f64 {
        1.0 - self.stored_bytes as f64 / self.pool_bytes.max(1) as f64
    }
}

/// A pool of compressed objects.
pub struct Zpool {
    region: Region,
    /// Slab records. The outer vector never grows past the capacity it is made with, and a chunk never moves.
    chunks: Vec<Box<[Slab]>>,
    /// Slabs from here on are fresh.
    first_fresh: usize,
    slab_count: usize,
    /// Partial slabs by units of the class, then by fullness.
    partial: [[List; FULLNESS_GROUPS]; CLASS_UNITS_MAX + 1],
    empty: List,
    returned: List,
    leaving: List,
    /// By units of the class.
    classes: [ClassUse; CLASS_UNITS_MAX + 1],
    stored_bytes: usize,
}

impl Zpool {
    /// A pool that can grow to `virtual_bytes` (rounded down to slabs, at most 256 GiB). Costs no memory until objects
    /// are stored. When the address space does not have as much, the pool is made smaller: see [`Zpool::capacity`].
    pub fn new(virtual_bytes: usize) -> io::Result<Zpool> {
        let region = Region::map(virtual_bytes)?;
        let slab_count = region.len / SLAB_BYTES;
        Ok(Zpool {
            region,
            chunks: Vec::with_capacity(slab_count.div_ceil(CHUNK_SLABS)),
            first_fresh: 0,
            slab_count,
            partial: [[List::NEW; FULLNESS_GROUPS]; CLASS_UNITS_MAX + 1],
            empty: List::NEW,
            returned: List::NEW,
            leaving: List::NEW,
            classes: [ClassUse::default(); CLASS_UNITS_MAX + 1],
            stored_bytes: 0,
        })
    }

    /// Room for an object of `len` bytes, `None` when the pool's address space is used up. The bytes are not cleared.
    /// Takes heap only when it enters the next 32 MiB of the region for the first time.
    ///
    /// # Panics
    /// When `len` is 0 or more than [`OBJECT_BYTES_MAX`].
    pub fn alloc(&mut self, len: usize) -> Option<Handle> {
        assert!((1..=OBJECT_BYTES_MAX).contains(&len), "an object of {len} bytes");
        let units = class_units(len);
        if let Some(index) = self.fullest_partial(units).or_else(|| self.new_slab(units)) {
            return Some(self.take_in(index, len));
        }
        // No address space is left but in slabs that are to run empty.
        self.stop_leaving(usize::MAX);
        let index = self.fullest_partial(units).or_else(|| self.new_slab(units))?;
        Some(self.take_in(index, len))
    }

    /// Takes a place for an object of `len` bytes in a slab of its class that has room.
    fn take_in(&mut self, index: u32, len: usize) -> Handle {
        let slab = self.slab_mut(index);
        let units = usize::from(slab.class_units);
        let object = slab.take_first_free();
        self.settle(index);
        self.classes[units].objects += 1;
        self.stored_bytes += len;
        Handle(index * SLAB_UNITS as u32 + (object * units) as u32)
    }

    /// Gives an object back. `len` is the length it was allocated with.
    ///
    /// # Panics
    /// When there is no such object: freed twice, a handle of another pool, another length class.
    pub fn free(&mut self, handle: Handle, len: usize) {
        let index = handle.slab();
        assert!(index < self.first_fresh, "{handle:?} is freed but was never allocated");
        let index = index as u32;
        let slab = self.slab_mut(index);
        let units = usize::from(slab.class_units);
        assert!(
            units != 0 && (1..=OBJECT_BYTES_MAX).contains(&len) && units == class_units(len),
            "{handle:?} of {len} bytes is freed but not allocated: its slab holds objects of {units} units"
        );
        let unit = handle.0 as usize % SLAB_UNITS;
        assert!(unit.is_multiple_of(units), "{handle:?} points into an object");
        let object = unit / units;
        let (word, bit) = (object / 64, 1 << (object % 64));
        assert!(slab.taken[word] & bit != 0, "{handle:?} of {len} bytes is freed but not allocated: freed twice?");
        slab.taken[word] &= !bit;
        slab.used -= 1;
        self.settle(index);
        self.classes[units].objects -= 1;
        self.stored_bytes -= len;
        if self.empty.len >= 2 * EMPTY_RESERVE {
            self.return_empty_slabs(EMPTY_RESERVE);
        }
    }

    /// Gives the memory of all empty slabs back to the kernel, the reserve too. Says how many bytes.
    pub fn shrink(&mut self) -> usize {
        self.return_empty_slabs(0)
    }

    /// Memory behind the pool, in bytes: every slab that holds objects or is kept in reserve, counted whole. What
    /// RssShmem shows is at most this, and less while a slab has pages that were never written.
    pub fn pool_bytes(&self) -> usize {
        (self.first_fresh - self.returned.len) * SLAB_BYTES
    }

    /// Bytes of the stored objects, without the waste around them.
    pub fn stored_bytes(&self) -> usize {
        self.stored_bytes
    }

    /// Number of stored objects.
    pub fn objects(&self) -> usize {
        self.classes.iter().map(|class| class.objects).sum()
    }

    /// Where its memory goes.
    pub fn usage(&self) -> PoolUsage {
        let mut usage = PoolUsage {
            pool_bytes: self.pool_bytes(),
            stored_bytes: self.stored_bytes,
            empty_bytes: self.empty.len * SLAB_BYTES,
            objects: self.objects(),
            metadata_bytes: size_of::<Zpool>() + self.chunks.len() * CHUNK_SLABS * size_of::<Slab>(),
            ..PoolUsage::default()
        };
        let mut taken_bytes = 0;
        for (units, class) in self.classes.iter().enumerate().skip(1).filter(|(_, class)| class.slabs > 0) {
            let capacity = SLAB_UNITS / units;
            taken_bytes += class.objects * units * UNIT_BYTES;
            usage.tail_bytes += class.slabs * (SLAB_UNITS - capacity * units) * UNIT_BYTES;
            usage.hole_bytes += (class.slabs * capacity - class.objects) * units * UNIT_BYTES;
        }
        usage.rounding_bytes = taken_bytes - self.stored_bytes;
        usage
    }

    /// The most bytes that the pool can grow to.
    pub fn capacity(&self) -> usize {
        self.region.len
    }

    /// What reads and writes objects while the pool itself is locked away.
    pub fn view(&self) -> PoolView {
        self.region.view()
    }

    /// The bytes of an object.
    ///
    /// # Safety
    /// As for [`PoolView::slice`].
    pub unsafe fn slice(&self, handle: Handle, len: usize) -> &[u8] {
        // SAFETY: passed on to the caller.
        unsafe { self.view().slice(handle, len) }
    }

    /// The bytes of an object, for writing.
    ///
    /// # Safety
    /// As for [`PoolView::slice_mut`].
    pub unsafe fn slice_mut(&mut self, handle: Handle, len: usize) -> &mut [u8] {
        // SAFETY: passed on to the caller.
        unsafe { self.view().slice_mut(handle, len) }
    }

    /// For a forked child: what is left of its parent's pool, for reading.
    pub fn into_foreign(self) -> ForeignPool {
        ForeignPool { region: self.region }
    }

    /// What [`into_foreign`](Self::into_foreign) gives the child, while this pool goes on.
    ///
    /// # Errors
    /// There are no addresses for it.
    pub(crate) fn foreign(&self) -> io::Result<ForeignPool> {
        Ok(ForeignPool { region: self.region.map_again()? })
    }

    fn slab(&self, index: u32) -> &Slab {
        &self.chunks[index as usize / CHUNK_SLABS][index as usize % CHUNK_SLABS]
    }

    fn slab_mut(&mut self, index: u32) -> &mut Slab {
        &mut self.chunks[index as usize / CHUNK_SLABS][index as usize % CHUNK_SLABS]
    }

    fn fullest_partial(&self, units: usize) -> Option<u32> {
        self.partial[units].iter().rev().map(|list| list.first).find(|&first| first != NO_SLAB)
    }

    /// A slab without objects, made one of this class. It is linked when its first object is taken.
    fn new_slab(&mut self, units: usize) -> Option<u32> {
        let index = if self.empty.first != NO_SLAB {
            self.empty.first
        } else if self.returned.first != NO_SLAB {
            self.returned.first
        } else if self.first_fresh < self.slab_count {
            if self.first_fresh == self.chunks.len() * CHUNK_SLABS {
                // Made on the heap: a chunk is larger than the stack of an agent thread.
                self.chunks.push(vec![Slab::FRESH; CHUNK_SLABS].into_boxed_slice());
            }
            self.first_fresh += 1;
            (self.first_fresh - 1) as u32
        } else {
            return None;
        };
        self.unlink(index);
        let slab = self.slab_mut(index);
        slab.place = Place::Fresh;
        slab.class_units = units as u8;
        debug_assert!(slab.used == 0 && slab.taken == [0; BITMAP_WORDS]);
        self.classes[units].slabs += 1;
        Some(index)
    }

    /// Puts a slab where it belongs after the number of its objects has changed.
    fn settle(&mut self, index: u32) {
        let slab = self.slab(index);
        let place = slab.place_by_use();
        if slab.place == place || slab.place == Place::Leaving && place != Place::Empty {
            return;
        }
        self.put(index, place);
    }

    /// Moves a slab that has a class to another place.
    fn put(&mut self, index: u32, place: Place) {
        let Slab { place: before, class_units, .. } = *self.slab(index);
        let class = &mut self.classes[usize::from(class_units)];
        class.leaving -= usize::from(before == Place::Leaving);
        class.leaving += usize::from(place == Place::Leaving);
        self.unlink(index);
        self.link(index, place);
        if place == Place::Empty {
            let units = std::mem::take(&mut self.slab_mut(index).class_units);
            self.classes[usize::from(units)].slabs -= 1;
        }
    }

    fn list_mut(&mut self, place: Place, units: u8) -> Option<&mut List> {
        match place {
            Place::Fresh | Place::Full => None,
            Place::Returned => Some(&mut self.returned),
            Place::Empty => Some(&mut self.empty),
            Place::Leaving => Some(&mut self.leaving),
            Place::Partial { group } => Some(&mut self.partial[usize::from(units)][usize::from(group)]),
        }
    }

    /// Puts a slab that is in no list at the head of the one that `place` says.
    fn link(&mut self, index: u32, place: Place) {
        let units = self.slab(index).class_units;
        let mut next = NO_SLAB;
        if let Some(list) = self.list_mut(place, units) {
            next = list.first;
            list.first = index;
            list.len += 1;
        }
        if next != NO_SLAB {
            self.slab_mut(next).previous = index;
        }
        let slab = self.slab_mut(index);
        slab.place = place;
        slab.previous = NO_SLAB;
        slab.next = next;
    }

    /// Takes a slab out of its list, if it is in one. The caller gives it a new place.
    fn unlink(&mut self, index: u32) {
        let Slab { previous, next, place, class_units, .. } = *self.slab(index);
        if let Some(list) = self.list_mut(place, class_units) {
            list.len -= 1;
            if list.first == index {
                list.first = next;
            }
        }
        if previous != NO_SLAB {
            self.slab_mut(previous).next = next;
        }
        if next != NO_SLAB {
            self.slab_mut(next).previous = previous;
        }
        let slab = self.slab_mut(index);
        slab.previous = NO_SLAB;
        slab.next = NO_SLAB;
    }

    /// Gives empty slabs back until about `keep` of them are left; neighbours go in one call.
    fn return_empty_slabs(&mut self, keep: usize) -> usize {
        let mut returned_bytes = 0;
        while self.empty.len > keep {
            let mut start = self.empty.first;
            while start > 0 && self.slab(start - 1).place == Place::Empty {
                start -= 1;
            }
            let mut end = start;
            while (end as usize) < self.first_fresh
                && self.slab(end).place == Place::Empty
                && (end - start) as usize + keep < self.empty.len
            {
                end += 1;
            }
            let bytes = (end - start) as usize * SLAB_BYTES;
            // REMOVE, not DONTNEED: the pages are shared memory, and would stay in it for who maps it after us.
            if self.region.advise(start as usize * SLAB_BYTES, bytes, Advice::LinuxRemove).is_err() {
                // Out of kernel memory, or interrupted by a fatal signal: they stay in reserve.
                break;
            }
            for index in start..end {
                self.unlink(index);
                self.link(index, Place::Returned);
            }
            returned_bytes += bytes;
        }
        returned_bytes
    }
}

#[cfg(test)]
mod tests;
