//! /proc as seen by an agent: its own files, also after the program has changed its root directory or mounted over /proc.
//!
//! Files are opened below a descriptor of /proc that was opened before the program started, and mostly through the calling
//! thread: the program's main thread may have ended, and then /proc/self is empty.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{CWD, Mode, OFlags};

/// Why there is nothing to learn from /proc, and what helps.
const NO_PROC: &str = "it is not there, or of another pid namespace: mount -t proc proc /proc";

/// The descriptor, or -1.
static ROOT: AtomicI32 = AtomicI32::new(-1);

/// Opens /proc, to be given to [`set_root`]. One of another pid namespace is refused: what it says of this process's id is about
/// somebody else.
pub fn open_root() -> io::Result<OwnedFd> {
    let open = || -> io::Result<OwnedFd> {
        let root = rustix::fs::open(c"/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let own = rustix::fs::readlinkat(&root, c"self", Vec::new())?;
        let is_ours = own.to_bytes() == std::process::id().to_string().as_bytes();
        if is_ours { Ok(root) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    open().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ESRCH) => io::Error::new(io::ErrorKind::NotFound, NO_PROC),
        _ => error,
    })
}

/// From here on files are opened below `root`, which stays open for ever. For agent threads, whose file table is not the
/// program's; a forked child sets its own.
pub fn set_root(root: OwnedFd) {
    ROOT.store(root.into_raw_fd(), Ordering::Release);
}

/// How many links a directory has; `path` begins with `/proc/`.
pub fn links(path: &CStr) -> io::Result<u64> {
    let (root, path) = below_root(path);
    Ok(rustix::fs::statat(root, path, rustix::fs::AtFlags::empty())?.st_nlink)
}

/// Opens a file for reading; `path` begins with `/proc/`.
pub fn open(path: &CStr) -> io::Result<OwnedFd> {
    let (root, path) = below_root(path);
    Ok(rustix::fs::openat(root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// `path`, as seen from a descriptor.
fn below_root(path: &CStr) -> (BorrowedFd<'static>, &CStr) {
    let root = ROOT.load(Ordering::Acquire);
    let relative =
        path.to_bytes_with_nul().strip_prefix(b"/proc/").and_then(|rest| CStr::from_bytes_with_nul(rest).ok());
    match relative {
        // SAFETY: `set_root` gave the descriptor away for ever.
        Some(relative) if root >= 0 => (unsafe { BorrowedFd::borrow_raw(root) }, relative),
        _ => (CWD, path),
    }
}
