//! The process's own memory, looked at and kept by files of /proc.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::PAGE_SIZE;
use crate::pagemap::{PageMap, PopulatedRange};

/// An open `/proc/self/pagemap`, and `/proc/self/mem` where that may be had. Both are of the process that opened them: a child
/// opens its own.
///
/// They are opened once, for a program may lower its limits later, or lock itself out of /proc.
#[derive(Debug)]
pub struct OwnMemory {
    pagemap: PageMap,
    memory: Option<OwnedFd>,
}

impl OwnMemory {
    /// Opens the calling process's.
    ///
    /// # Errors
    /// /proc cannot be used.
    pub fn open() -> io::Result<OwnMemory> {
        let pagemap = PageMap::open_self()?;
        Ok(OwnMemory { pagemap, memory: crate::proc::open_for_writing(c"/proc/thread-self/mem").ok() })
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

    #[inline]
    fn can_keep(&self) -> bool {
        self.memory.is_some()
    }

    /// A page is dirty once it was written to by this way, and by this way nobody waits for a page that is not there.
    fn keep_lazily_freed(&self, start: usize, pages: u16) -> io::Result<u16> {
        let memory = self.memory.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let mut gone = 0;
        for index in (0..u16::BITS).filter(|index| pages >> index & 1 == 1) {
            let (mut word, at) = ([0; 8], (start + index as usize * PAGE_SIZE) as u64);
            let read = rustix::io::pread(memory, &mut word, at);
            match read.and_then(|_| rustix::io::pwrite(memory, &word, at)) {
                Ok(_) => {}
                Err(Errno::IO) => gone |= 1 << index,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(gone)
    }
}
