//! The memory of a pool, and its bytes as readers and writers see them.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, munmap};
use uswap_core::PAGE_SIZE;
use uswap_sys::{placement, private_memory};

use super::slab::{Handle, OBJECT_BYTES_MAX, SLAB_BYTES, UNIT_BYTES};

/// What a handle can name: 2^32 units.
const REGION_BYTES_MAX: usize = UNIT_BYTES << 32;
const WORD_BYTES: usize = size_of::<u64>();

/// The mapping of a pool.
///
/// # Invariants
/// `base` is page-aligned and `len` bytes from it stay mapped, readable and writable, until drop.
pub(super) struct Region {
    base: NonNull<u8>,
    pub(super) len: usize,
}

// SAFETY: a region is an address range that every thread may reach; who may touch which bytes is argued at
// `PoolView::slice` and `PoolView::slice_mut`.
unsafe impl Send for Region {}
// SAFETY: as above; nothing in a region changes after it was made.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes, or half of it, or half of that..., down to one slab.
    pub(super) fn map(len: usize) -> io::Result<Region> {
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
    pub(super) fn advise(&self, offset: usize, len: usize, advice: Advice) -> rustix::io::Result<()> {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: by the type's invariant the range is mapped, and it holds nothing but bytes of pool objects.
        let advised = || unsafe { madvise(self.base.as_ptr().add(offset).cast(), len, advice) };
        match advised() {
            // The program has locked all that is mapped.
            Err(Errno::INVAL) if private_memory::unlock(self.base.addr().get(), self.len).is_ok() => advised(),
            answer => answer,
        }
    }

    pub(super) fn view(&self) -> PoolView {
        PoolView { base: self.base, len: self.len }
    }

    /// The same memory, mapped a second time: what a forked child has.
    pub(super) fn map_again(&self) -> io::Result<Region> {
        // SAFETY: by the type's invariant so many bytes of shared memory are mapped there.
        let base = unsafe { placement::map_again(self.base, self.len)? };
        Ok(Region { base, len: self.len })
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

    /// A copy of the bytes of what may be freed meanwhile, and be another object by then.
    pub fn copy<'a>(&self, handle: Handle, len: usize, copy: &'a mut ObjectCopy) -> &'a [u8] {
        let from = self.address(handle, len.next_multiple_of(WORD_BYTES)).cast::<AtomicU64>();
        for (index, word) in copy.0[..len.div_ceil(WORD_BYTES)].iter_mut().enumerate() {
            // SAFETY: so many bytes from there are mapped, and handles name whole units, so that the word is aligned. Who writes there is
            // another process.
            *word = unsafe { from.add(index).as_ref() }.load(Relaxed);
        }
        // SAFETY: so many bytes of the words are initialized, and each of them is a u8.
        unsafe { std::slice::from_raw_parts(copy.0.as_ptr().cast(), len) }
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

/// Room for a [copy](PoolView::copy) of an object.
pub struct ObjectCopy([u64; OBJECT_BYTES_MAX / WORD_BYTES]);

impl Default for ObjectCopy {
    fn default() -> ObjectCopy {
        ObjectCopy([0; OBJECT_BYTES_MAX / WORD_BYTES])
    }
}

/// A parent's pool as its forked child sees it: the objects of before the fork, for reading.
///
/// The memory is one with the parent's: what the parent frees and reuses changes here too, and what is written here
/// changes there. So the parent must keep an object for as long as a child may read it, or tell where its content is by then.
pub struct ForeignPool {
    pub(super) region: Region,
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

    /// Gives `pages` back to the kernel, counted from the pool's first: they read as zeros from here on, in every process.
    ///
    /// # Errors
    /// As madvise(2).
    ///
    /// # Safety
    /// The owner of the pool has ended, and nobody needs an object that lies there, in no process.
    pub(crate) unsafe fn give_back(&self, pages: Range<usize>) -> io::Result<()> {
        Ok(self.region.advise(pages.start * PAGE_SIZE, pages.len() * PAGE_SIZE, Advice::LinuxRemove)?)
    }

    /// How many pages there can be.
    pub(crate) fn pages(&self) -> usize {
        self.region.len / PAGE_SIZE
    }

    /// The same pool, mapped a second time: what a forked child has.
    pub(crate) fn map_again(&self) -> io::Result<ForeignPool> {
        Ok(ForeignPool { region: self.region.map_again()? })
    }

    /// Drops our page table entries for the pool, so that what was read through it does not count as our resident
    /// memory. The content stays; the next read maps it again.
    pub fn drop_resident(&self) -> io::Result<()> {
        // DONTNEED on shared memory only unmaps.
        Ok(self.region.advise(0, self.region.len, Advice::LinuxDontNeed)?)
    }
}
