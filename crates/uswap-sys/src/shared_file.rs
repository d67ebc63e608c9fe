//! A memory file that takes the place of anonymous shared memory: what is mapped of it is what the program has, and whoever holds
//! its descriptor can take pages of it away.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;

use crate::PAGE_SIZE;

/// Up to so many bytes it is looked at each page whether it is in memory.
const PAGE_BY_PAGE: u64 = 64 * PAGE_SIZE as u64;

/// How such a file is called in /proc/PID/maps.
pub const NAME_IN_MAPS: &[u8] = b"/memfd:uswap-shared (deleted)";

/// One object of shared memory.
#[derive(Debug)]
pub struct SharedFile {
    fd: OwnedFd,
}

/// Which file something is, wherever it is open or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inode(pub u64);

impl SharedFile {
    /// Makes one of `len` bytes, all of them zero, and none in memory.
    ///
    /// # Errors
    /// No descriptor is to be had, the file may not be so large (RLIMIT_FSIZE), or a filter refuses the call.
    pub fn new(len: usize) -> io::Result<SharedFile> {
        let fd = rustix::fs::memfd_create(c"uswap-shared", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        Ok(SharedFile { fd })
    }

    /// One that another process has made.
    pub fn received(fd: OwnedFd) -> SharedFile {
        SharedFile { fd }
    }

    /// The descriptor.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Which it is, how long in bytes, and how many pages of it are in memory.
    ///
    /// # Errors
    /// It is no file.
    pub fn look(&self) -> io::Result<(Inode, u64, u64)> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok((Inode(stat.st_ino), stat.st_size as u64, stat.st_blocks as u64 * 512 / PAGE_SIZE as u64))
    }

    /// Whether anybody has it mapped. Where nobody has, nobody can write to it again: it is to be given up then.
    ///
    /// A file that is mapped writable cannot be sealed against writes.
    pub fn is_mapped(&self) -> bool {
        rustix::fs::fcntl_add_seals(&self.fd, SealFlags::WRITE).is_err()
    }

    /// The first page at `from` or after that is in memory, wherever the kernel has put it, and the first after that one that is not; both
    /// as bytes. `None` when there is none before `end`.
    ///
    /// # Errors
    /// It is no file of memory.
    pub fn populated(&self, from: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
        let Some(start) = self.data_from(from)?.filter(|&start| start < end) else { return Ok(None) };
        if end - start > PAGE_BY_PAGE {
            let hole = rustix::fs::seek(&self.fd, SeekFrom::Hole(start))?;
            return Ok(Some((start, hole.min(end))));
        }
        // For a hole the kernel goes through all pages up to the next one, which may be the end of a large file.
        let mut at = start;
        while at < end && self.data_from(at)? == Some(at) {
            at = (at | (PAGE_SIZE as u64 - 1)) + 1;
        }
        Ok(Some((start, at.min(end))))
    }

    /// The first byte from `from` on that is in memory. The place of a descriptor is one, and several threads may look: it is used only for
    /// what does not depend on it.
    fn data_from(&self, from: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.fd, SeekFrom::Data(from)) {
            Ok(start) => Ok(Some(start)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads what is in memory. Holes read as zeros.
    ///
    /// # Errors
    /// It could not be read, or not all of it.
    pub fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            match rustix::io::pread(&self.fd, &mut out[done..], at + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Takes pages away: gone from every mapping, and zeros from here on.
    ///
    /// # Errors
    /// It is refused.
    pub fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.fd, flags, at, len))?)
    }
}

impl From<SharedFile> for OwnedFd {
    fn from(file: SharedFile) -> OwnedFd {
        file.fd
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags};

    use super::*;

    const PAGE: u64 = PAGE_SIZE as u64;

    #[test]
    fn what_is_in_memory_is_seen_read_and_taken_away() {
        let file = SharedFile::new(8 * PAGE_SIZE).unwrap();
        assert_eq!(file.populated(0, 8 * PAGE).unwrap(), None);
        rustix::io::pwrite(&file.fd, &[7; 2 * PAGE_SIZE], 2 * PAGE).unwrap();
        assert_eq!(file.populated(0, 8 * PAGE).unwrap(), Some((2 * PAGE, 4 * PAGE)));
        assert_eq!(file.populated(3 * PAGE, 8 * PAGE).unwrap(), Some((3 * PAGE, 4 * PAGE)));
        assert_eq!(file.populated(0, 3 * PAGE).unwrap(), Some((2 * PAGE, 3 * PAGE)));
        assert_eq!(file.populated(0, 2 * PAGE).unwrap(), None);
        assert_eq!(file.look().unwrap().2, 2);
        file.punch(2 * PAGE, PAGE).unwrap();
        assert_eq!(file.populated(0, 8 * PAGE).unwrap(), Some((3 * PAGE, 4 * PAGE)));
        let mut both = [1; 2 * PAGE_SIZE];
        file.read(2 * PAGE, &mut both).unwrap();
        assert!(both[..PAGE_SIZE] == [0; PAGE_SIZE] && both[PAGE_SIZE..] == [7; PAGE_SIZE]);
        assert_eq!((file.look().unwrap().1, file.look().unwrap().2), (8 * PAGE, 1));
    }

    #[test]
    fn whether_it_is_mapped_is_known() {
        let file = SharedFile::new(PAGE_SIZE).unwrap();
        let map = |prot| {
            // SAFETY: a new mapping where the kernel has room.
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE_SIZE, prot, MapFlags::SHARED, &file.fd, 0) }.unwrap()
        };
        let unmap = |at| {
            // SAFETY: mapped by `map`, and not used.
            unsafe { rustix::mm::munmap(at, PAGE_SIZE) }.unwrap();
        };
        let (first, second) = (map(ProtFlags::READ | ProtFlags::WRITE), map(ProtFlags::READ));
        assert!(file.is_mapped());
        unmap(first);
        // Who may only read it for now may write later.
        assert!(file.is_mapped());
        unmap(second);
        assert!(!file.is_mapped());
    }
}
