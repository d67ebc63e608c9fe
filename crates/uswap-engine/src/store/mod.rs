//! Where swapped-out pages go: one small trait, page-granular I/O on one swap area.
//!
//! A store reads and writes in batches and returns when all of a batch is over. It moves bytes and says what became of
//! each [`PageIo`]; which slot is whose, and what a failed transfer means, is decided above. Each thread brings its own
//! [`Ring`], so threads never wait for each other here.
//!
//! - [`file`]: a file or block device;
//! - [`faulty`]: wraps a store and fails on purpose.
#![allow(unsafe_code)]

use uswap_sys::ring::Ring;

pub mod faulty;
pub mod file;

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = 4096;

/// Why a transfer failed. The bytes at its destination are undefined: some of them may have been transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The kernel's error number.
    #[error("I/O error: {}", std::io::Error::from_raw_os_error(*.0))]
    Io(i32),
    /// The file system, or its quota, has no room for a slot that was never written.
    #[error("no space left for the swap area")]
    NoSpace,
    /// The transfer ended early, and going on made no progress: the file is shorter than the area.
    #[error("the swap area ended in the middle of a transfer")]
    Short,
}

/// What became of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoOutcome {
    /// Not over yet.
    Pending,
    /// All bytes are transferred.
    Done,
    /// Not all bytes are transferred.
    Failed(StoreError),
}

/// One transfer between neighbouring slots and neighbouring pages of memory.
///
/// # Invariants
/// Until the outcome has been looked at, `pages` pages of memory from `address` belong to this transfer: see
/// [`PageIo::new`].
#[derive(Debug)]
pub struct PageIo {
    slot: u64,
    address: *mut u8,
    pages: u32,
    outcome: IoOutcome,
    /// Bytes transferred so far, by all attempts.
    done_bytes: usize,
    /// Attempts that made no progress.
    retries: u32,
}

// SAFETY: by the type's invariant the memory belongs to the transfer, on whichever thread that is.
unsafe impl Send for PageIo {}

impl PageIo {
    /// A transfer of `pages` slots from `slot` on, to or from memory at `address`.
    ///
    /// The memory must not be missing pages of a range registered with userfaultfd: the kernel would fault on them for
    /// us, and the handler that should answer may be the very thread that waits for this transfer.
    ///
    /// # Safety
    /// From the call of [`Store::read`] or [`Store::write`] with this transfer until that call returns, `pages * 4096`
    /// bytes from `address` are mapped; for a read they are writable and nobody else touches them, for a write nobody
    /// changes them. The address is a multiple of 4096 if the area was opened with `O_DIRECT`.
    pub unsafe fn new(slot: u64, address: *mut u8, pages: u32) -> PageIo {
        assert!(pages > 0, "a transfer has at least one page");
        PageIo { slot, address, pages, outcome: IoOutcome::Pending, done_bytes: 0, retries: 0 }
    }

    /// The first slot.
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// Number of slots, and of pages of memory.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// The start of the memory.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// What became of it.
    pub fn outcome(&self) -> IoOutcome {
        self.outcome
    }

    /// For stores: the transfer is over, and did not succeed.
    pub fn fail(&mut self, error: StoreError) {
        self.outcome = IoOutcome::Failed(error);
    }

    fn bytes(&self) -> usize {
        self.pages as usize * SLOT_BYTES
    }

    /// The first `pages` pages of this transfer as one of its own. Must not be used beside it.
    fn first_pages(&self, pages: u32) -> PageIo {
        assert!(pages <= self.pages);
        // SAFETY: a part of memory that belongs to this transfer, by the type's invariant.
        unsafe { PageIo::new(self.slot, self.address, pages) }
    }
}

/// Keeps the pages of one swap area.
///
/// `read` and `write` take transfers that are all pending and return when none is any more. The transfers of a batch
/// run in any order and at the same time; their slots must not overlap.
pub trait Store: Send + Sync {
    /// Reads slots into memory.
    fn read(&self, ring: &mut Ring, batch: &mut [PageIo]);
    /// Writes memory to slots. What is written can be read by everybody who has the area once this returns; it need
    /// not be on a disk.
    fn write(&self, ring: &mut Ring, batch: &mut [PageIo]);
    /// Nobody needs the content of these slots any more. What they read as from here on is undefined.
    fn discard(&self, slot: u64, pages: u32);
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn read(&self, ring: &mut Ring, batch: &mut [PageIo]) {
        (**self).read(ring, batch);
    }
    fn write(&self, ring: &mut Ring, batch: &mut [PageIo]) {
        (**self).write(ring, batch);
    }
    fn discard(&self, slot: u64, pages: u32) {
        (**self).discard(slot, pages);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::store::file::FileStore;
    use std::os::fd::OwnedFd;

    /// An unlinked file in memory.
    pub(crate) fn memory_file(slots: u64) -> OwnedFd {
        let fd = rustix::fs::memfd_create("area", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, slots * SLOT_BYTES as u64).unwrap();
        fd
    }

    pub(crate) fn memory_store(slots: u64) -> FileStore {
        FileStore::new(memory_file(slots), slots, true)
    }

    /// Page-aligned pages of memory.
    pub(crate) struct Pages(Vec<Page>);
    #[derive(Clone)]
    #[repr(C, align(4096))]
    struct Page([u8; SLOT_BYTES]);

    impl Pages {
        pub(crate) fn filled(pages: usize, byte: u8) -> Pages {
            Pages(vec![Page([byte; SLOT_BYTES]); pages])
        }
        /// Each page filled with what `fill` says for its index.
        pub(crate) fn each(pages: usize, fill: impl Fn(usize) -> u8) -> Pages {
            Pages((0..pages).map(|i| Page([fill(i); SLOT_BYTES])).collect())
        }
        /// A transfer of some of these pages, which must outlive it.
        pub(crate) fn io(&mut self, slot: u64, page: usize, pages: u32) -> PageIo {
            assert!(page + pages as usize <= self.0.len());
            // From the whole vector, not from one page: the transfer may go on into the next one.
            let start = self.0.as_mut_ptr().cast::<u8>();
            // SAFETY: within these pages, by the assertion; each test keeps them and leaves them alone meanwhile.
            unsafe { PageIo::new(slot, start.add(page * SLOT_BYTES), pages) }
        }
        pub(crate) fn page(&self, page: usize) -> &[u8; SLOT_BYTES] {
            &self.0[page].0
        }
        /// Whether all of a page is this byte.
        pub(crate) fn is(&self, page: usize, byte: u8) -> bool {
            self.0[page].0.iter().all(|&b| b == byte)
        }
    }

    #[test]
    fn errors_are_one_line() {
        for error in [StoreError::Io(libc::EIO), StoreError::NoSpace, StoreError::Short] {
            assert!(!error.to_string().contains('\n'));
        }
        assert!(StoreError::Io(libc::EIO).to_string().contains("Input/output error"));
    }
}
