//! The process's own memory, looked at and kept.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, WakeOp, WakeOpCmp};
use uswap_system::looks::Residency;

use crate::PAGE_SIZE;
use crate::pagemap::{PageMap, PopulatedRange};

/// Nobody waits on it.
static NOBODY: AtomicU32 = AtomicU32::new(0);

/// Writes to the word at `address` what is there, so that its page is dirty. Where there is no page the answer is EFAULT: this call
/// waits for no userfaultfd (futex(2), `FUTEX_WAKE_OP`).
fn write_again(address: usize) -> Result<(), Errno> {
    // SAFETY: it lies in memory of the engine, which stays mapped. Only the kernel touches it, by an atomic "or" with 0.
    let word = unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(address)) };
    futex::wake_op(&NOBODY, Flags::PRIVATE, 0, 0, word, WakeOp::Or, WakeOpCmp::Lt, 0, 0).map(|_| ())
}

impl Residency for PageMap {
    fn open() -> io::Result<Self> {
        PageMap::open_self()
    }

    #[inline]
    fn is_exact(&self) -> bool {
        self.is_exact()
    }

    fn shows_absence(&self) -> bool {
        self.is_exact() || rustix::system::sysinfo().totalswap == 0
    }

    #[inline]
    fn populated(&self, start: usize, end: usize, out: &mut [PopulatedRange]) -> io::Result<(usize, usize)> {
        self.populated(start, end, out)
    }

    #[inline]
    fn has_populated(&self, start: usize, end: usize) -> io::Result<bool> {
        self.has_populated(start, end)
    }

    fn in_common(&self, start: usize, end: usize) -> io::Result<u64> {
        self.in_common(start, end)
    }

    fn keep_lazily_freed(&self, start: usize, pages: u16) -> io::Result<u16> {
        let mut gone = 0;
        for index in (0..u16::BITS).filter(|index| pages >> index & 1 == 1) {
            match write_again(start + index as usize * PAGE_SIZE) {
                Ok(()) => {}
                Err(Errno::FAULT) => gone |= 1 << index,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(gone)
    }
}
