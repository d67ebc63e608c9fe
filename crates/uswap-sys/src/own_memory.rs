//! The process's own memory, looked at and kept by files of /proc, as far as those may be had.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::io::Errno;

use crate::PAGE_SIZE;
use crate::call::descriptors_are_scarce;
use crate::pagemap::{PageMap, PopulatedRange};

/// An open `/proc/self/pagemap`, and `/proc/self/mem` where that may be had. Both are of the process that opened them: a child
/// opens its own.
#[derive(Debug)]
pub struct OwnMemory {
    pagemap: PageMap,
    /// Opened when it is wanted first, for few programs need it, and descriptors may be few; and kept, for a program may lower
    /// its limits later, or lock itself out of /proc.
    memory: OnceLock<Option<OwnedFd>>,
}

impl OwnMemory {
    /// Opens the calling process's.
    ///
    /// # Errors
    /// /proc cannot be used.
    pub fn open() -> io::Result<OwnMemory> {
        Ok(OwnMemory { pagemap: PageMap::open_self()?, memory: OnceLock::new() })
    }

    /// As a process that has changed its user sees it.
    pub fn without_proc() -> OwnMemory {
        OwnMemory { pagemap: PageMap::by_mincore(), memory: OnceLock::from(None) }
    }

    fn memory(&self) -> Option<&OwnedFd> {
        let open = || match descriptors_are_scarce() {
            true => None,
            false => crate::proc::open_for_writing(c"/proc/thread-self/mem").ok(),
        };
        self.memory.get_or_init(open).as_ref()
    }
}

/// Reads a word and writes it again, by system calls that a process may always make on itself. They wait for a page
/// that is missing, until another thread has filled it.
fn write_by_process_vm(address: usize) {
    let mut word = [0u8; 8];
    let local = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() };
    let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: word.len() };
    // SAFETY: asks for the number alone.
    let process = unsafe { libc::getpid() };
    // SAFETY: `local` is `word`, and what is at `address` is only read.
    let read = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
    if read == word.len() as isize {
        // SAFETY: the same bytes, to a page of the engine's that nobody else writes to. Refused, it stays as it is.
        unsafe { libc::process_vm_writev(process, &local, 1, &remote, 1, 0) };
    }
}

impl uswap_system::looks::Residency for OwnMemory {
    fn open() -> io::Result<Self> {
        OwnMemory::open()
    }

    #[inline]
    fn is_exact(&self) -> bool {
        self.pagemap.is_exact()
    }

    fn shows_absence(&self) -> bool {
        self.pagemap.is_exact() || rustix::system::sysinfo().totalswap == 0
    }

    #[inline]
    fn populated(&self, start: usize, end: usize, out: &mut [PopulatedRange]) -> io::Result<(usize, usize)> {
        self.pagemap.populated(start, end, out)
    }

    #[inline]
    fn has_populated(&self, start: usize, end: usize) -> io::Result<bool> {
        self.pagemap.has_populated(start, end)
    }

    fn in_common(&self, start: usize, end: usize) -> io::Result<u64> {
        self.pagemap.in_common(start, end)
    }

    #[inline]
    fn keeps_by_proc(&self) -> bool {
        self.memory().is_some()
    }

    /// A page is dirty once it was written to by this way, and by this way nobody waits for a page that is not there.
    fn keep_lazily_freed(&self, start: usize, pages: u16) -> io::Result<u16> {
        let mut gone = 0;
        for index in (0..u16::BITS).filter(|index| pages >> index & 1 == 1) {
            let (mut word, at) = ([0; 8], start + index as usize * PAGE_SIZE);
            let Some(memory) = self.memory() else {
                write_by_process_vm(at);
                continue;
            };
            let read = rustix::io::pread(memory, &mut word, at as u64);
            match read.and_then(|_| rustix::io::pwrite(memory, &word, at as u64)) {
                Ok(_) => {}
                Err(Errno::IO) => gone |= 1 << index,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(gone)
    }
}
