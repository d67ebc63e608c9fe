//! Shared memory that has a name: System V segments, and files in memory (memfd_create, shm_open, tmpfs).

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Mutex;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use uswap_system::looks::Vma;

use crate::maps::{self, MapsOf};
use crate::shared_file::{SEGMENT_IN_MAPS, SharedFile, is_in_memory, keeps_attached};
use crate::{huge_pages, placement};

/// Less is not worth a descriptor of the server's: 1 MiB.
pub const BYTES_MIN: usize = 1 << 20;

/// The file in memory that a process has mapped at `start..end`, by its mapping. No other file is opened, nor a device.
///
/// # Errors
/// It has no such mapping there, or it may not be opened: that takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
pub fn mapped(process: u32, start: usize, end: usize) -> io::Result<SharedFile> {
    let path = format!("/proc/{process}/map_files/{start:x}-{end:x}");
    let place = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let is_file = FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) == FileType::RegularFile;
    if !is_file || !is_in_memory(&place)? {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    Ok(SharedFile::received(file))
}

/// Where attachments have been replaced, as far as they are attached still.
static REPLACED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Nothing where it is locked: in a child of a process of which another thread had locked it, it is so for ever.
fn replaced<R>(act: impl FnOnce(&mut Vec<usize>) -> R) -> Option<R> {
    REPLACED.try_lock().ok().map(|mut replaced| act(&mut replaced))
}

/// All mappings of this process that are of a segment, with their numbers.
fn of_segments(text: &[u8]) -> impl Iterator<Item = Vma<'_>> {
    maps::vmas(text).filter(|vma| vma.shared && vma.name.starts_with(SEGMENT_IN_MAPS))
}

/// Puts a mapping of its file into the place of the segment that is attached at `start`, of which nobody knows yet: the kernel registers no
/// attached segment with a userfaultfd. The attachment is kept where nobody looks, so that it counts. `is_again`: this may have been done
/// already, which the mappings do not tell.
///
/// # Errors
/// There is none, or its file may not be opened.
pub fn replace_attachment(start: usize, is_again: bool) -> io::Result<()> {
    if is_again && replaced(|replaced| replaced.contains(&start)) == Some(true) {
        return Ok(());
    }
    let mut text = Vec::new();
    maps::read_maps(MapsOf::SelfProcess, &mut text)?;
    let vma = of_segments(&text).find(|vma| vma.start == start).ok_or(io::ErrorKind::NotFound)?;
    if vma.len() < BYTES_MIN {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // Not of huge pages, which are on another file system.
    let file = mapped(std::process::id(), vma.start, vma.end)?;
    let mut access = ProtFlags::empty();
    access.set(ProtFlags::READ, vma.read);
    access.set(ProtFlags::WRITE, vma.write);
    access.set(ProtFlags::EXEC, vma.exec);
    let len = vma.end - vma.start;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping where the kernel has room.
    let mapping = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, file.as_fd(), 0) }?;
    let unmap = |at: *mut c_void| {
        // SAFETY: mapped here, and nobody knows of it.
        let _ = unsafe { rustix::mm::munmap(at, len) };
    };
    huge_pages::keep_from(mapping.addr(), len);
    let kept = match keep_attached(start, len) {
        Ok(kept) => kept,
        Err(error) => {
            unmap(mapping);
            return Err(error);
        }
    };
    let place = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the new mapping takes the place of the attachment, which is of the same memory.
    let moved = unsafe { rustix::mm::mremap_fixed(mapping, len, len, MremapFlags::MAYMOVE, place) };
    if let Err(errno) = moved {
        unmap(mapping);
        unmap(kept);
        return Err(errno.into());
    }
    replaced(|replaced| {
        replaced.retain(|&other| other != start);
        replaced.push(start);
    });
    Ok(())
}

/// Attaches what is attached at `start` once more, for nobody's use.
fn keep_attached(start: usize, len: usize) -> io::Result<*mut c_void> {
    let room = placement::map(len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE, None)?.as_ptr().cast();
    let place = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: addresses of `placement`, which nobody else knows, become a second mapping of what is there.
    let kept = unsafe { rustix::mm::mremap_fixed(place, 0, len, MremapFlags::MAYMOVE, room) };
    // SAFETY: as above.
    let is_kept = kept.and_then(|kept| unsafe { rustix::mm::mprotect(kept, len, MprotectFlags::empty()) });
    is_kept.map(|()| room).map_err(|errno| {
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::munmap(room, len) };
        errno.into()
    })
}

/// Detaches the segment in whose place its file is at `start`. Whether there was one.
pub fn detach(start: usize) -> bool {
    let mut text = Vec::new();
    if maps::read_maps(MapsOf::SelfProcess, &mut text).is_err() {
        return false;
    }
    let is_kept = |vma: &Vma<'_>| keeps_attached(vma);
    let Some(first) = of_segments(&text).find(|vma| vma.start == start && vma.offset == 0 && !is_kept(vma)) else {
        return false;
    };
    let Some(kept) = of_segments(&text).find(|vma| vma.inode == first.inode && is_kept(vma)) else { return false };
    let is_part = |vma: &Vma<'_>| vma.inode == first.inode && vma.start.checked_sub(vma.offset as usize) == Some(start);
    for vma in of_segments(&text).filter(|vma| is_part(vma) && vma.start != kept.start) {
        // SAFETY: what the program detaches.
        let _ = unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(vma.start), vma.end - vma.start) };
    }
    replaced(|replaced| replaced.retain(|&other| other != start));
    // SAFETY: attached by `keep_attached`, and nobody knows of it.
    unsafe { libc::shmdt(std::ptr::with_exposed_provenance(kept.start)) == 0 }
}

/// A System V segment at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentState {
    /// Mappings by which it is attached.
    pub attached: u64,
    /// It is to stay in memory (SHM_LOCK).
    pub is_locked: bool,
}

/// How it is with a segment; `None` when it has been removed.
pub fn segment(id: u64) -> Option<SegmentState> {
    const SHM_LOCKED: u16 = 0o2000;
    let mut segment = MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: the kernel fills the record in.
    if unsafe { libc::shmctl(id as libc::c_int, libc::IPC_STAT, segment.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: it has been filled in; and zeros are one.
    let segment = unsafe { segment.assume_init() };
    let is_locked = segment.shm_perm.mode & SHM_LOCKED != 0;
    Some(SegmentState { attached: segment.shm_nattch, is_locked })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_file::Origin;

    fn attached(id: i32) -> Option<u64> {
        segment(id as u64).map(|state| state.attached)
    }

    #[test]
    fn what_is_mapped_is_opened_by_its_mapping() {
        // SAFETY: a new segment, attached where the kernel has room, detached and removed below.
        let (id, at) = unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, BYTES_MIN, libc::IPC_CREAT | 0o600);
            (id, libc::shmat(id, std::ptr::null(), 0))
        };
        assert_eq!(attached(id), Some(1));
        let found = mapped(std::process::id(), at as usize, at as usize + BYTES_MIN);
        match &found {
            Ok(file) => {
                assert_eq!(file.origin().unwrap(), Origin::Segment);
                assert_eq!(file.look().unwrap().number, id as u64);
            }
            Err(why) => println!("skipped: mappings cannot be opened without CAP_CHECKPOINT_RESTORE: {why}"),
        }
        if found.is_ok() {
            replace_attachment(at as usize, false).unwrap();
            replace_attachment(at as usize, true).unwrap();
            assert_eq!(attached(id), Some(1));
            let mut text = Vec::new();
            maps::read_maps(MapsOf::SelfProcess, &mut text).unwrap();
            assert_eq!(of_segments(&text).filter(|vma| vma.inode == id as u64).count(), 2);
            assert!(detach(at as usize) && !detach(at as usize));
            assert_eq!(attached(id), Some(0));
            // SAFETY: as above.
            assert_eq!(unsafe { libc::shmat(id, at, 0) }, at);
        }
        drop(found);
        // SAFETY: as above.
        let is_locked = unsafe { libc::shmctl(id, libc::SHM_LOCK, std::ptr::null_mut()) } == 0;
        assert_eq!(segment(id as u64).unwrap().is_locked, is_locked);
        // SAFETY: see above.
        unsafe {
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            assert_eq!(attached(id), Some(1));
            libc::shmdt(at);
        }
        assert_eq!(attached(id), None);
    }
}
