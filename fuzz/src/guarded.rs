//! Buffers between pages that nobody may touch: the process dies of the first byte beside them, whoever reads or writes it, C
//! libraries too.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

pub const PAGE_BYTES: usize = 4096;

/// # Invariants
/// `base` maps `pages + 2` pages until drop: the first and the last cannot be accessed, those between can.
pub struct Guarded {
    base: NonNull<u8>,
    pages: usize,
}

// SAFETY: the memory is the value's own.
unsafe impl Send for Guarded {}

impl Guarded {
    pub fn new(pages: usize) -> Guarded {
        let len = (pages + 2) * PAGE_BYTES;
        // SAFETY: a new mapping, where the kernel likes.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)
                .expect("there is memory for a buffer")
        };
        let base = NonNull::new(base.cast::<u8>()).expect("no mapping is at 0");
        // SAFETY: inside of the mapping just made.
        unsafe {
            let inside = base.add(PAGE_BYTES).as_ptr().cast();
            rustix::mm::mprotect(inside, pages * PAGE_BYTES, MprotectFlags::READ | MprotectFlags::WRITE)
                .expect("a mapping of ours can be written");
        }
        Guarded { base, pages }
    }

    fn all(&mut self) -> &mut [u8] {
        // SAFETY: by the invariant, and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(PAGE_BYTES).as_ptr(), self.pages * PAGE_BYTES) }
    }

    /// The first page, for writing.
    pub fn page(&mut self) -> &mut [u8; PAGE_BYTES] {
        self.all().first_chunk_mut().expect("there is at least one page")
    }

    /// A copy that begins where the buffer does.
    pub fn at_start(&mut self, bytes: &[u8]) -> &[u8] {
        let place = &mut self.all()[..bytes.len()];
        place.copy_from_slice(bytes);
        place
    }

    /// A copy that ends where the buffer does.
    pub fn at_end(&mut self, bytes: &[u8]) -> &[u8] {
        let all = self.all();
        let from = all.len() - bytes.len();
        all[from..].copy_from_slice(bytes);
        &all[from..]
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: by the invariant it is our mapping, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), (self.pages + 2) * PAGE_BYTES) };
    }
}
