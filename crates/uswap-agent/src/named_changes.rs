//! Files in memory that are to be cut off, emptied, filled or sealed, where shared memory that has a name is swapped (`--shared files`).
//!
//! The kernel does all of that to what is in memory, and knows nothing of what has been swapped out: that would come back as it was. So
//! before, the server brings all of such a file back, and leaves it alone from then on. So it does before anonymous shared memory is mapped once
//! more, by way of /proc/PID/map_files, for nobody would serve that mapping.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::io::Write as _;

use uswap_sys::shared_file::NAME_IN_MAPS;
use uswap_system::MapShared;

use crate::advice::is_of_the_engine;
use crate::kernel;
use crate::named_memory::{File, are_asked_for, ask_until, look};
use crate::shared_advice::with_errno_kept;

/// Before ftruncate.
pub(crate) extern "C" fn is_cut(fd: c_int, len: i64) {
    tell(|| look(fd).filter(|file| len < file.bytes));
}

/// Before truncate.
pub(crate) extern "C" fn is_cut_by_path(path: *const c_char, len: i64) {
    tell(|| of_path(libc::AT_FDCWD, path).filter(|file| len < file.bytes));
}

/// Before fallocate: what it fills or punches may be swapped out.
pub(crate) extern "C" fn is_allocated(fd: c_int) {
    tell(|| look(fd));
}

/// Before it gets seals: what comes back could not be written any more.
pub(crate) extern "C" fn is_sealed(fd: c_int) {
    tell(|| look(fd));
}

/// Before it is opened, and so made empty.
pub(crate) extern "C" fn is_emptied(directory: c_int, path: *const c_char) {
    tell(|| of_path(directory, path));
}

/// Before a file in memory is mapped: it may be that of anonymous shared memory, of this process or of another.
pub(crate) fn is_mapped(fd: c_int, file: &File) {
    with_errno_kept(|| {
        if crate::forks::is_member() && is_anonymous(fd) {
            bring_back(file.device, file.number);
        }
    });
}

/// Whether a file is that of anonymous shared memory.
fn is_anonymous(fd: c_int) -> bool {
    let (mut path, mut name) = ([0; 32], [0; NAME_IN_MAPS.len() + 1]);
    if write!(&mut path[..], "/proc/thread-self/fd/{fd}").is_err() {
        return false;
    }
    let read = [libc::AT_FDCWD as usize, path.as_ptr() as usize, name.as_mut_ptr() as usize, name.len(), 0];
    // SAFETY: the path ends with a zero, and the kernel fills in what there is room for.
    let len = unsafe { kernel::ask(libc::SYS_readlinkat, read) };
    name.get(..len.max(0).cast_unsigned()) == Some(NAME_IN_MAPS)
}

/// Waits until all of a file is back, if it is one of which some may be swapped out.
fn tell(which: impl FnOnce() -> Option<File>) {
    if !are_asked_for() || is_of_the_engine() {
        return;
    }
    with_errno_kept(|| {
        if let Some(file) = which() {
            bring_back(file.device, file.number);
        }
    });
}

/// Waits until all of that file is back, also of one that is anonymous shared memory's. Where nobody answers for a minute, the program goes on.
pub(crate) fn bring_back(device: u64, number: u64) {
    ask_until(|_| MapShared::changed(device, number), |answer| answer != -libc::EAGAIN as isize);
}

fn of_path(directory: c_int, path: *const c_char) -> Option<File> {
    let open = [directory as usize, path as usize, (libc::O_PATH | libc::O_CLOEXEC) as usize, 0, 0];
    // SAFETY: the kernel says EFAULT where there is no path.
    let fd = unsafe { kernel::ask(libc::SYS_openat, open) };
    if fd < 0 {
        return None;
    }
    let file = look(fd as c_int);
    // SAFETY: opened above.
    unsafe { kernel::ask(libc::SYS_close, [fd as usize, 0, 0, 0, 0]) };
    file
}
