//! The compressed bytes themselves: objects of 1 to 4096 bytes in a region of shared memory.
//!
//! The region is one `MAP_SHARED | MAP_ANONYMOUS` mapping, so that a forked child goes on reading the objects that
//! its parent stored before the fork; it shows as RssShmem. It is cut into *slabs* of 32 KiB. A slab holds objects of
//! one *size class* (zsmalloc's word; there the slab is a zspage), with a bitmap of what is taken. An object never
//! moves and never straddles slabs.
//!
//! A slab is in exactly one [`Place`]: `Fresh` or `Returned` (no memory behind it), `Empty` (memory, no object),
//! `Partial` or `Full`. New objects go to the fullest partial slab of their class, so that the others run empty;
//! empty slabs beyond a small reserve go back to the kernel.
//!
//! Allocating and freeing takes `&mut`: the caller has a lock around the pool. Bytes are read and written without
//! it, through the [`PoolView`]: an object belongs to whoever holds its handle.
//!
//! What belongs to the pool but is not its content (slab records) is in the ordinary heap, private to the process: a
//! forked child has the content of the parent's objects but no say in their life.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, munmap};
use uswap_sys::{placement, private_memory};

/// Objects start at multiples of this, and classes are multiples of it.
const UNIT_BYTES: usize = 64;
/// The largest object: a page that did not compress.
pub const OBJECT_BYTES_MAX: usize = 4096;
/// 32 KiB: 8 objects of the largest class; smaller slabs waste more at their end, larger ones run empty less often.
pub const SLAB_BYTES: usize = 32 * 1024;
const SLAB_UNITS: usize = SLAB_BYTES / UNIT_BYTES;
const CLASS_UNITS_MAX: usize = OBJECT_BYTES_MAX / UNIT_BYTES;
const BITMAP_WORDS: usize = SLAB_UNITS / 64;
/// Partial slabs are kept by quarters of fullness: enough to fill the full ones first, few enough to search.
const FULLNESS_GROUPS: usize = 4;
/// Empty slabs that keep their memory: 512 KiB, about what one reclaim batch stores. When twice as many are empty,
/// all but these go back to the kernel in one go.
const EMPTY_RESERVE: usize = 16;
/// Slab records are allocated in chunks of this many: 32 MiB of pool.
const CHUNK_SLABS: usize = 1024;
/// What a handle can name: 2^32 units.
const REGION_BYTES_MAX: usize = UNIT_BYTES << 32;
/// The end of a list of slabs.
const NO_SLAB: u32 = u32::MAX;

/// Names an object: its distance from the start of the pool, in units of 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Handle(pub u32);

impl Handle {
    /// Distance from the start of the pool.
    pub const fn byte_offset(self) -> usize {
        self.0 as usize * UNIT_BYTES
    }

    const fn slab(self) -> usize {
        self.byte_offset() / SLAB_BYTES
    }
}

/// Where a slab is, which tells what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
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
}

/// The record of one slab.
#[derive(Clone)]
struct Slab {
    taken: [u64; BITMAP_WORDS],
    previous: u32,
    next: u32,
    place: Place,
    /// Units of an object; 0 when the slab has no class.
    class_units: u8,
    used: u16,
}

impl Slab {
    const FRESH: Slab = Slab {
        taken: [0; BITMAP_WORDS],
        previous: NO_SLAB,
        next: NO_SLAB,
        place: Place::Fresh,
        class_units: 0,
        used: 0,
    };

    fn capacity(&self) -> usize {
        SLAB_UNITS / usize::from(self.class_units)
    }

    /// Where the slab belongs by the number of its objects.
    fn place_by_use(&self) -> Place {
        let (used, capacity) = (usize::from(self.used), self.capacity());
        if used == 0 {
            Place::Empty
        } else if used == capacity {
            Place::Full
        } else {
            Place::Partial { group: (used * FULLNESS_GROUPS / capacity) as u8 }
        }
    }

    fn take_first_free(&mut self) -> usize {
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
struct List {
    first: u32,
    len: usize,
}

impl List {
    const NEW: List = List { first: NO_SLAB, len: 0 };
}

/// Units of the objects in the class that serves a length. Classes with equally many objects a slab are merged into
/// the largest of them, as zsmalloc does.
const fn class_units(len: usize) -> usize {
    let objects = SLAB_UNITS / len.div_ceil(UNIT_BYTES);
    SLAB_UNITS / objects
}

/// The mapping of a pool.
///
/// # Invariants
/// `base` is page-aligned and `len` bytes from it stay mapped, readable and writable, until drop.
struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is an address range that every thread may reach; who may touch which bytes is argued at
// `PoolView::slice` and `PoolView::slice_mut`.
unsafe impl Send for Region {}
// SAFETY: as above; nothing in a region changes after it was made.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes, or half of it, or half of that..., down to one slab.
    fn map(len: usize) -> io::Result<Region> {
        let mut len = len.clamp(SLAB_BYTES, REGION_BYTES_MAX) / SLAB_BYTES * SLAB_BYTES;
        loop {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            match placement::map(len, protection, MapFlags::SHARED | MapFlags::NORESERVE, None) {
                Ok(base) => {
                    let region = Region { base, len };
                    // With huge pages in shared memory, the first byte of a slab would cost 2 MiB of RAM. A kernel
                    // without huge pages refuses the advice and needs none.
                    let _ = region.advise(0, len, Advice::LinuxNoHugepage);
                    return Ok(region);
                }
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory && len > SLAB_BYTES => {
                    len = (len / 2).next_multiple_of(SLAB_BYTES);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Advises on a part of the region. The caller answers for what the advice does to objects there.
    fn advise(&self, offset: usize, len: usize, advice: Advice) -> rustix::io::Result<()> {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: by the type's invariant the range is mapped, and it holds nothing but bytes of pool objects.
        let advised = || unsafe { madvise(self.base.as_ptr().add(offset).cast(), len, advice) };
        match advised() {
            // The program has locked all that is mapped.
            Err(Errno::INVAL) if private_memory::unlock(self.base.addr().get(), self.len).is_ok() => advised(),
            answer => answer,
        }
    }

    fn view(&self) -> PoolView {
        PoolView { base: self.base, len: self.len }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is ours by the type's invariant, and views must not be used any more: see `PoolView`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Reads and writes objects without the pool's lock. Copies freely; must not be used after its pool is dropped.
#[derive(Clone, Copy)]
pub struct PoolView {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a view is an address; its two methods state what makes a use of it sound, on whichever thread.
unsafe impl Send for PoolView {}
// SAFETY: as above.
unsafe impl Sync for PoolView {}

impl PoolView {
    fn address(&self, handle: Handle, len: usize) -> NonNull<u8> {
        let offset = handle.byte_offset();
        assert!(
            len <= OBJECT_BYTES_MAX && offset <= self.len && len <= self.len - offset,
            "object at {offset} of {len} bytes lies outside of a pool of {} bytes",
            self.len
        );
        // SAFETY: the offset was checked against the length of the mapping.
        unsafe { self.base.add(offset) }
    }

    /// The bytes of an object.
    ///
    /// # Safety
    /// The pool of this view is not dropped, `handle` was allocated with at least `len` bytes, and until the slice is
    /// gone nobody frees the object or writes to it, in this process or in one that shares the pool by fork.
    pub unsafe fn slice<'a>(&self, handle: Handle, len: usize) -> &'a [u8] {
        let address = self.address(handle, len);
        // SAFETY: mapped memory, whose bytes are stable by the contract above.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), len) }
    }

    /// The bytes of an object, for writing.
    ///
    /// # Safety
    /// As for [`PoolView::slice`], and nobody else reads the object either.
    pub unsafe fn slice_mut<'a>(&self, handle: Handle, len: usize) -> &'a mut [u8] {
        let address = self.address(handle, len);
        // SAFETY: mapped memory, which is the caller's alone by the contract above.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), len) }
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
    stored_bytes: usize,
    objects: usize,
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
            stored_bytes: 0,
            objects: 0,
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
        let index = match self.fullest_partial(units) {
            Some(index) => index,
            None => self.new_slab(units)?,
        };
        let slab = self.slab_mut(index);
        let object = slab.take_first_free();
        self.settle(index);
        self.stored_bytes += len;
        self.objects += 1;
        Some(Handle(index * SLAB_UNITS as u32 + (object * units) as u32))
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
        self.stored_bytes -= len;
        self.objects -= 1;
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
        self.objects
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
        Some(index)
    }

    /// Puts a slab where it belongs after the number of its objects has changed.
    fn settle(&mut self, index: u32) {
        let slab = self.slab(index);
        let place = slab.place_by_use();
        if slab.place == place {
            return;
        }
        self.unlink(index);
        self.link(index, place);
        if place == Place::Empty {
            self.slab_mut(index).class_units = 0;
        }
    }

    fn list_mut(&mut self, place: Place, units: u8) -> Option<&mut List> {
        match place {
            Place::Fresh | Place::Full => None,
            Place::Returned => Some(&mut self.returned),
            Place::Empty => Some(&mut self.empty),
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

/// A parent's pool as its forked child sees it: the objects of before the fork, for reading.
///
/// The memory is one with the parent's: what the parent frees and reuses changes here too, and what is written here
/// changes there. So the parent must keep an object for as long as a child may read it.
pub struct ForeignPool {
    region: Region,
}

impl ForeignPool {
    /// The bytes of an object.
    ///
    /// # Safety
    /// As for [`PoolView::slice`]: the owner of the pool has promised to keep the object.
    pub unsafe fn slice(&self, handle: Handle, len: usize) -> &[u8] {
        // SAFETY: passed on to the caller.
        unsafe { self.region.view().slice(handle, len) }
    }

    /// What reads objects without a reference to this.
    pub fn view(&self) -> PoolView {
        self.region.view()
    }

    /// Drops our page table entries for the pool, so that what was read through it does not count as our resident
    /// memory. The content stays; the next read maps it again.
    pub fn drop_resident(&self) -> io::Result<()> {
        // DONTNEED on shared memory only unmaps.
        Ok(self.region.advise(0, self.region.len, Advice::LinuxDontNeed)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// xorshift64*: chance from a seed.
    struct Chance(u64);
    impl Chance {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
        }
    }

    /// A byte pattern that differs between objects and along one object.
    fn pattern(tag: u32) -> impl Iterator<Item = u8> {
        (0u32..).map(move |i| (tag.wrapping_mul(0x9E37_79B9).wrapping_add(i * 7) >> 5) as u8)
    }

    fn store(pool: &mut Zpool, tag: u32, len: usize) -> Handle {
        let handle = pool.alloc(len).expect("the pool has room");
        // SAFETY: the object was allocated on the line above and only this thread has its handle.
        let bytes = unsafe { pool.slice_mut(handle, len) };
        bytes.iter_mut().zip(pattern(tag)).for_each(|(b, p)| *b = p);
        handle
    }

    fn check(bytes: &[u8], tag: u32) -> bool {
        bytes.iter().zip(pattern(tag)).all(|(b, p)| *b == p)
    }

    /// RssShmem of this process, in bytes.
    fn rss_shmem() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssShmem:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    /// Runs `test` in a forked child, where no other test changes the resident memory. Says whether it returned.
    fn passes_in_a_child(test: impl FnOnce()) -> bool {
        // SAFETY: glibc makes malloc usable in the child of a process with threads; the child runs `test` and exits.
        match unsafe { libc::fork() } {
            0 => {
                let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).is_ok();
                // SAFETY: ends the child without running anything of the test harness.
                unsafe { libc::_exit(if passed { 0 } else { 1 }) }
            }
            child => {
                let mut status = 0;
                // SAFETY: `child` is ours, `status` outlives the call.
                let waited = unsafe { libc::waitpid(child, &mut status, 0) };
                assert_eq!(waited, child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }

    const MIB: usize = 1 << 20;

    #[test]
    fn classes_hold_their_lengths_and_fill_their_slabs() {
        for len in 1..=OBJECT_BYTES_MAX {
            let units = class_units(len);
            assert!(units * UNIT_BYTES >= len && units <= CLASS_UNITS_MAX);
            assert!(units == len.div_ceil(UNIT_BYTES) || (SLAB_UNITS % units) * 8 < SLAB_UNITS, "{len}");
        }
        assert_eq!(class_units(1), 1);
        assert_eq!(class_units(64), 1);
        assert_eq!(class_units(65), 2);
        // 15 objects a slab either way.
        assert_eq!(class_units(33 * 64), 34);
        assert_eq!(class_units(3840), 64);
        assert_eq!(class_units(4096), 64);
    }

    #[test]
    fn contents_never_overlap() {
        for seed in 1..=4u64 {
            let mut chance = Chance(0x9E37_79B9_7F4A_7C15 ^ seed);
            let mut pool = Zpool::new(64 * MIB).unwrap();
            let mut model: BTreeMap<Handle, (u32, usize)> = BTreeMap::new();
            for step in 0..20_000u32 {
                let grow = step / 4000 % 2 == 0;
                if chance.below(10) < if grow { 7 } else { 3 } {
                    // Sizes of one phase lie together, so that slabs change their class between phases.
                    let len = match step / 3000 % 3 {
                        0 => 1 + chance.below(4096),
                        1 => 1 + chance.below(300),
                        _ => 2000 + chance.below(2097),
                    };
                    let handle = store(&mut pool, step, len);
                    assert!(model.insert(handle, (step, len)).is_none());
                } else if !model.is_empty() {
                    let from = Handle(chance.below(pool.capacity() / UNIT_BYTES) as u32);
                    let (&handle, &(tag, len)) =
                        model.range(from..).next().or_else(|| model.first_key_value()).unwrap();
                    // SAFETY: the model says that the object is live, and this is the only thread.
                    assert!(check(unsafe { pool.slice(handle, len) }, tag));
                    pool.free(handle, len);
                    model.remove(&handle);
                }
                if step % 5000 == 4999 {
                    pool.shrink();
                    for (&handle, &(tag, len)) in &model {
                        // SAFETY: as above.
                        assert!(check(unsafe { pool.slice(handle, len) }, tag));
                    }
                }
                assert_eq!(pool.objects(), model.len());
            }
            let stored: usize = model.values().map(|&(_, len)| len).sum();
            assert_eq!(pool.stored_bytes(), stored);
            assert!(pool.pool_bytes() >= stored);
            for (handle, (tag, len)) in model {
                // SAFETY: as above.
                assert!(check(unsafe { pool.slice(handle, len) }, tag));
                pool.free(handle, len);
            }
            pool.shrink();
            assert_eq!((pool.pool_bytes(), pool.stored_bytes()), (0, 0));
        }
    }

    #[test]
    fn the_fullest_slab_is_filled_first() {
        let mut pool = Zpool::new(MIB).unwrap();
        let objects: Vec<Handle> = (0..24).map(|tag| store(&mut pool, tag, 4096)).collect();
        // Three slabs of 8. Leave 1 object in the first, 7 in the second, 4 in the third.
        for &handle in objects[1..8].iter().chain(&objects[8..9]).chain(&objects[20..24]) {
            pool.free(handle, 4096);
        }
        let slabs: Vec<usize> = (0..6).map(|tag| store(&mut pool, tag, 4000).slab()).collect();
        assert_eq!(slabs, [1, 2, 2, 2, 2, 0]);
    }

    #[test]
    fn a_full_pool_refuses() {
        let mut pool = Zpool::new(2 * SLAB_BYTES).unwrap();
        let objects: Vec<Handle> = std::iter::from_fn(|| pool.alloc(4096)).collect();
        assert_eq!(objects.len(), 16);
        assert_eq!(pool.alloc(1), None);
        pool.free(objects[3], 4096);
        assert_eq!(pool.alloc(4096), Some(objects[3]));
    }

    #[test]
    fn a_pool_larger_than_the_address_space_is_made_smaller() {
        assert!(passes_in_a_child(|| {
            let limit = libc::rlimit { rlim_cur: 4 << 30, rlim_max: 4 << 30 };
            // SAFETY: `limit` outlives the call.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
            let mut pool = Zpool::new(64 << 30).unwrap();
            assert!(pool.capacity() < 4 << 30 && pool.capacity() >= 1 << 30);
            store(&mut pool, 1, 100);
        }));
    }

    #[test]
    #[should_panic(expected = "freed twice?")]
    fn freeing_an_object_twice_panics() {
        let mut pool = Zpool::new(MIB).unwrap();
        let handle = store(&mut pool, 1, 1000);
        let _other = store(&mut pool, 2, 1000);
        pool.free(handle, 1000);
        pool.free(handle, 1000);
    }

    #[test]
    #[should_panic(expected = "freed but not allocated")]
    fn freeing_with_another_length_class_panics() {
        let mut pool = Zpool::new(MIB).unwrap();
        let handle = store(&mut pool, 1, 1000);
        pool.free(handle, 2000);
    }

    #[test]
    #[should_panic(expected = "freed but not allocated")]
    fn freeing_the_last_object_of_a_slab_twice_panics() {
        let mut pool = Zpool::new(MIB).unwrap();
        let handle = store(&mut pool, 1, 1000);
        pool.free(handle, 1000);
        pool.free(handle, 1000);
    }

    #[test]
    #[should_panic(expected = "never allocated")]
    fn freeing_a_handle_of_a_fresh_slab_panics() {
        Zpool::new(MIB).unwrap().free(Handle(0), 10);
    }

    #[test]
    #[should_panic(expected = "points into an object")]
    fn freeing_the_middle_of_an_object_panics() {
        let mut pool = Zpool::new(MIB).unwrap();
        let handle = store(&mut pool, 1, 1000);
        pool.free(Handle(handle.0 + 1), 1000);
    }

    #[test]
    #[should_panic(expected = "outside of a pool")]
    fn a_handle_past_the_end_is_refused() {
        let pool = Zpool::new(SLAB_BYTES).unwrap();
        // SAFETY: the call panics before it makes a slice: that is the test.
        unsafe { pool.slice(Handle(SLAB_UNITS as u32 - 1), 65) };
    }

    #[test]
    fn empty_slabs_go_back_to_the_kernel() {
        assert!(passes_in_a_child(|| {
            let mut pool = Zpool::new(256 * MIB).unwrap();
            let before = rss_shmem();
            let objects: Vec<Handle> = (0..8192).map(|tag| store(&mut pool, tag, 4096)).collect();
            let full = rss_shmem() - before;
            assert_eq!(pool.pool_bytes(), 32 * MIB);
            assert!(full.abs_diff(32 * MIB) < MIB, "{full}");
            // The second half: `free` itself keeps no more than the reserve.
            for &handle in &objects[4096..] {
                pool.free(handle, 4096);
            }
            let half = rss_shmem() - before;
            assert!(pool.pool_bytes() <= 16 * MIB + 2 * EMPTY_RESERVE * SLAB_BYTES);
            assert!(half.abs_diff(pool.pool_bytes()) < MIB, "{half}");
            // `shrink` gives the reserve back too.
            assert!(pool.shrink() > 0);
            assert_eq!(pool.pool_bytes(), 16 * MIB);
            assert!((rss_shmem() - before).abs_diff(16 * MIB) < MIB);
            // What is left is unharmed, and what went back can be used again.
            for (tag, &handle) in objects[..4096].iter().enumerate() {
                // SAFETY: these objects are live, and this is the only thread.
                assert!(check(unsafe { pool.slice(handle, 4096) }, tag as u32));
            }
            for tag in 0..4096 {
                store(&mut pool, tag, 4096);
            }
            assert_eq!(pool.pool_bytes(), 32 * MIB);
        }));
    }

    #[test]
    fn a_forked_child_reads_its_parents_objects() {
        let mut pool = Zpool::new(256 * MIB).unwrap();
        let objects: Vec<(Handle, usize)> = (0..6000)
            .map(|tag| {
                let len = 1500 + tag % 2500;
                (store(&mut pool, tag as u32, len), len)
            })
            .collect();
        let bytes = pool.pool_bytes();
        assert!(passes_in_a_child(|| {
            // SAFETY: the parent waits for this child and uses its own `pool` only afterwards; here the copy of the
            // value is the only one.
            let foreign = unsafe { std::ptr::read(&pool) }.into_foreign();
            let read_all = || {
                objects.iter().enumerate().all(|(tag, &(handle, len))| {
                    // SAFETY: the parent keeps its objects until this child is gone.
                    check(unsafe { foreign.slice(handle, len) }, tag as u32)
                })
            };
            let before = rss_shmem();
            assert!(read_all());
            let read = rss_shmem();
            assert!(read - before > bytes * 3 / 4, "{before} {read} {bytes}");
            foreign.drop_resident().unwrap();
            let dropped = rss_shmem();
            assert!(dropped < read - bytes * 3 / 4, "{read} {dropped}");
            assert!(read_all());
            std::mem::forget(foreign);
        }));
        // The child's end and its `drop_resident` did no harm here.
        for (tag, &(handle, len)) in objects.iter().enumerate() {
            // SAFETY: the object is live, and this is the only thread that has its handle.
            assert!(check(unsafe { pool.slice(handle, len) }, tag as u32));
            pool.free(handle, len);
        }
    }

    #[test]
    fn a_view_is_used_while_the_pool_is_locked() {
        let pool = std::sync::Mutex::new(Zpool::new(16 * MIB).unwrap());
        let view = pool.lock().unwrap().view();
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..2000u32 {
                        let tag = thread << 16 | round;
                        let len = 1 + (tag as usize * 37) % 4096;
                        let handle = pool.lock().unwrap().alloc(len).unwrap();
                        // SAFETY: this thread alone has the handle.
                        let bytes = unsafe { view.slice_mut(handle, len) };
                        bytes.iter_mut().zip(pattern(tag)).for_each(|(b, p)| *b = p);
                        // SAFETY: as above.
                        assert!(check(unsafe { view.slice(handle, len) }, tag));
                        pool.lock().unwrap().free(handle, len);
                    }
                });
            }
        });
        assert_eq!(pool.lock().unwrap().objects(), 0);
    }
}
