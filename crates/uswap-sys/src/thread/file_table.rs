//! The file table of a thread: its own, so that the program cannot close the agent's descriptors and does not see them.

use std::io;
use std::os::fd::{IntoRawFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::syscall4;

fn close_range(first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    // SAFETY: whose descriptors these are is the business of unshare_files_and_close's caller.
    unsafe { syscall4(libc::SYS_close_range, first as usize, last as usize, flags as usize, 0) }?;
    Ok(())
}

/// Descriptors that can be kept by [`unshare_files_and_close`].
pub const KEEP_MAX: usize = 64;

/// Gives the calling thread a file table of its own, with nothing in it but `keep`.
///
/// Other threads' tables are not touched. Descriptors 0, 1 and 2, if not kept, become /dev/null: an
/// agent descriptor with such a number would get whatever somebody prints. For raw threads, which
/// own no descriptors yet; whoever does own one in this thread must keep it.
pub fn unshare_files_and_close(keep: &[RawFd]) -> io::Result<()> {
    let mut sorted = [0u32; KEEP_MAX];
    let Some(sorted) = sorted.get_mut(..keep.len()) else {
        return Err(Errno::INVAL.into());
    };
    for (to, &from) in sorted.iter_mut().zip(keep) {
        *to = u32::try_from(from).map_err(|_| Errno::BADF)?;
    }
    sorted.sort_unstable();

    // The uppermost stretch first, because the kernel does not even copy what is closed while the table
    // is unshared. Closing in a copied table leaves the program's record locks alone: they belong to
    // its table.
    let mut end = u32::MAX;
    let mut flags = libc::CLOSE_RANGE_UNSHARE;
    for &kept in sorted.iter().rev() {
        if kept < end {
            close_range(kept + 1, end, flags)?;
            flags = 0;
        }
        if kept == 0 {
            return Ok(fill_standard_descriptors()?);
        }
        end = end.min(kept - 1);
    }
    close_range(0, end, flags)?;
    Ok(fill_standard_descriptors()?)
}

fn fill_standard_descriptors() -> Result<(), Errno> {
    loop {
        let fd = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).or_else(|_| {
            // No /dev here; an eventfd refuses whatever text is written to it.
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
        })?;
        if std::os::fd::AsRawFd::as_raw_fd(&fd) > 2 {
            return Ok(());
        }
        let _ = fd.into_raw_fd();
    }
}
