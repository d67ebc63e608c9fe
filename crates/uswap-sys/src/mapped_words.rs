//! Memory of a program under test, as words: private, or shared with the processes that it forks.
//!
//! It is mapped by libc's function, as any program's would be. Words are atomic, because other processes may have them, too.

#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Who else has such memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nobody: a forked process has a copy.
    Private,
    /// Forked processes have it, too.
    Shared,
}

/// See the file's head.
///
/// # Invariants
/// `len` words from `start` are mapped to be read and written until drop, and are nobody else's in this process.
#[derive(Debug)]
pub struct MappedWords {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the mapping belongs to the value, and its words are atomic.
unsafe impl Send for MappedWords {}
// SAFETY: as above.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// Maps `len` words from a page boundary on: zeros, of which nothing is in memory.
    ///
    /// # Errors
    /// There is no room, or `len` is 0.
    pub fn new(len: usize, kept: Kept) -> io::Result<MappedWords> {
        let flags = match kept {
            Kept::Private => libc::MAP_PRIVATE,
            Kept::Shared => libc::MAP_SHARED,
        };
        let bytes = len.checked_mul(size_of::<u64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel has room.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags | libc::MAP_ANONYMOUS, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MappedWords { start, len })
    }
}

impl Deref for MappedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: mapped by the type's invariant; zeros are words.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has a reference to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::*;

    use super::*;

    #[test]
    fn a_forked_process_writes_to_what_is_shared_alone() {
        for (kept, seen) in [(Kept::Private, 1), (Kept::Shared, 2)] {
            let words = MappedWords::new(1024, kept).unwrap();
            assert_eq!(words.as_ptr().addr() % crate::PAGE_SIZE, 0);
            assert_eq!((words.len(), words[1023].load(Relaxed)), (1024, 0));
            words[5].store(1, Relaxed);
            // SAFETY: the child calls nothing that could be in anybody's hands.
            let child = unsafe { libc::fork() };
            if child == 0 {
                words[5].store(2, Relaxed);
                // SAFETY: it ends at once.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: a child of ours, and a word of ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!((status, words[5].load(Relaxed)), (0, seen));
        }
        assert!(MappedWords::new(0, Kept::Shared).is_err());
    }
}
