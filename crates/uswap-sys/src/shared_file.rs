//! The file behind shared memory: one that takes the place of anonymous shared memory, or what the program itself has named. What is mapped
//! of it is what the program has, and whoever holds its descriptor can take pages of it away.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use uswap_system::looks::Vma;

use crate::PAGE_SIZE;

/// Up to so many bytes it is looked at each page whether it is in memory.
const PAGE_BY_PAGE: u64 = 64 * PAGE_SIZE as u64;

/// What statfs(2) calls a file system in memory.
pub const TMPFS_MAGIC: u32 = 0x0102_1994;
/// How such a file is called in /proc/PID/maps.
pub const NAME_IN_MAPS: &[u8] = b"/memfd:uswap-shared (deleted)";

/// How the kernel's own files for anonymous shared memory are called there.
const ZERO_IN_MAPS: &[u8] = b"/dev/zero (deleted)";
/// How names of files that uswap makes begin there.
const OWN_IN_MAPS: &[u8] = b"/memfd:uswap";
/// How the name of a System V segment begins there.
pub(crate) const SEGMENT_IN_MAPS: &[u8] = b"/SYSV";

/// Whether a mapping is of a file of uswap's own that every process of a run has mapped.
pub fn is_in_every_process(vma: &Vma<'_>) -> bool {
    vma.name.starts_with(OWN_IN_MAPS) && vma.name != NAME_IN_MAPS
}

/// One object of shared memory.
#[derive(Debug)]
pub struct SharedFile {
    fd: OwnedFd,
}

/// Which file something is, wherever it is open or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inode {
    /// The file system.
    pub device: u64,
    /// Of a segment its identifier.
    pub number: u64,
    /// A System V segment. They are on the same file system as memory files, and are numbered by themselves.
    pub is_segment: bool,
}

impl Inode {
    /// What is mapped there, if it is a file. Not what only keeps a segment attached (`named_memory`).
    pub fn of(vma: &Vma<'_>) -> Option<Inode> {
        let is_segment = vma.name.starts_with(SEGMENT_IN_MAPS);
        let is_mapped = vma.inode != 0 && !(is_segment && keeps_attached(vma));
        is_mapped.then_some(Inode { device: vma.device, number: vma.inode, is_segment })
    }
}

/// Whether a file is on a file system in memory.
pub(crate) fn is_in_memory(fd: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as u32 == TMPFS_MAGIC)
}

/// Nobody can do anything with it.
pub(crate) fn keeps_attached(vma: &Vma<'_>) -> bool {
    !(vma.read || vma.write || vma.exec)
}

/// Where an object comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Made by the agent, in place of anonymous shared memory: nobody else has it.
    Anonymous,
    /// A System V segment.
    Segment,
    /// A file in memory: of memfd_create, or on tmpfs.
    File,
}

/// What there is of an object at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// See [`Inode`].
    pub device: u64,
    /// See [`Inode`].
    pub number: u64,
    /// How long it is.
    pub bytes: u64,
    /// How many pages of it are in memory.
    pub pages: u64,
    /// Names that it has.
    pub links: u64,
}

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

    /// Which it is, and what there is of it.
    ///
    /// # Errors
    /// It is no file.
    pub fn look(&self) -> io::Result<Look> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok(Look {
            device: stat.st_dev,
            number: stat.st_ino,
            bytes: stat.st_size as u64,
            pages: stat.st_blocks as u64 * 512 / PAGE_SIZE as u64,
            links: stat.st_nlink,
        })
    }

    /// Where it comes from.
    ///
    /// # Errors
    /// It is no file in memory, or that cannot be told.
    pub fn origin(&self) -> io::Result<Origin> {
        if !is_in_memory(&self.fd)? {
            return Err(io::Error::other("it is no file in memory"));
        }
        // The agent's threads have descriptors of their own.
        let name = rustix::fs::readlink(format!("/proc/thread-self/fd/{}", self.fd.as_raw_fd()), Vec::new())?;
        Ok(match name.to_bytes() {
            NAME_IN_MAPS => Origin::Anonymous,
            // Anonymous shared memory of which nobody has the file, and what is uswap's own.
            name if name == ZERO_IN_MAPS || name.starts_with(OWN_IN_MAPS) => Origin::Anonymous,
            name if name.starts_with(SEGMENT_IN_MAPS) => Origin::Segment,
            _ => Origin::File,
        })
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

    /// Writes to it.
    ///
    /// # Errors
    /// It could not be written, or not all of it.
    pub fn write(&self, at: u64, content: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < content.len() {
            match rustix::io::pwrite(&self.fd, &content[done..], at + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
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
        assert_eq!(file.look().unwrap().pages, 2);
        assert_eq!(file.origin().unwrap(), Origin::Anonymous);
        file.punch(2 * PAGE, PAGE).unwrap();
        assert_eq!(file.populated(0, 8 * PAGE).unwrap(), Some((3 * PAGE, 4 * PAGE)));
        let mut both = [1; 2 * PAGE_SIZE];
        file.read(2 * PAGE, &mut both).unwrap();
        assert!(both[..PAGE_SIZE] == [0; PAGE_SIZE] && both[PAGE_SIZE..] == [7; PAGE_SIZE]);
        let look = file.look().unwrap();
        assert_eq!((look.bytes, look.pages), (8 * PAGE, 1));
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
