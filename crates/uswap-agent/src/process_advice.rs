//! A wrapper of process_madvise, by which a process gives its own memory advice of any kind, too (Linux 6.13).
//!
//! The kernel has the first word: which advice it takes, and for whom. What it has taken is then given once more, piece by piece,
//! by the wrapper of madvise, which does what that advice takes besides.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use crate::advice::{self, madvise};
use crate::kernel;
use crate::real::Wrapper;

/// `PIDFD_SELF_THREAD` and `PIDFD_SELF_THREAD_GROUP`, Linux 6.14.
const OWN: [c_int; 2] = [-10000, -10001];
/// `PIDFD_GET_INFO`, Linux 6.13.
const GET_INFO: usize = 0xc040_ff0b;
/// `PIDFD_INFO_PID`.
const INFO_PID: u64 = 1;
/// The most bytes that the kernel takes at once.
const BYTES_MAX: usize = 0x7fff_f000;

/// `struct pidfd_info`, as it was at first.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    pid: u32,
    process: u32,
    others: [u32; 10],
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 1] {
    [Wrapper { name: c"process_madvise", next: None }]
}

/// As libc's, which has it since glibc 2.36.
///
/// # Safety
/// As for process_madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    pieces: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    advice::announce(advice);
    let arguments = [pidfd as usize, pieces as usize, count, advice as usize, flags as usize];
    let counted = advice::counted(advice);
    // SAFETY: the caller's promise.
    let done = unsafe { kernel::ask(libc::SYS_process_madvise, arguments) };
    drop(counted);
    // SAFETY: errno is this thread's own, here and below.
    let errno = unsafe { *libc::__errno_location() };
    // With ENOMEM, a part of the first piece has been advised.
    if advice::takes_more(advice) && (done >= 0 || errno == libc::ENOMEM) && !is_of_another(pidfd) {
        // SAFETY: the kernel has read them; and the caller's promise.
        unsafe { advise_again((0..count).map(|piece| pieces.add(piece).read()), done.max(0) as usize, advice) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    done
}

/// Of these pieces the kernel has advised so many bytes.
///
/// # Safety
/// As for madvise(2).
unsafe fn advise_again(pieces: impl Iterator<Item = libc::iovec>, bytes: usize, advice: c_int) {
    let mut left = bytes;
    for piece in pieces {
        let len = match piece.iov_len {
            len if len <= left => len,
            // An error, before which a part of it may have been advised; or it has been cut.
            len if left == 0 && bytes != BYTES_MAX => len,
            _ => left,
        };
        // SAFETY: the caller's promise: the kernel has been asked for just this.
        unsafe { madvise(piece.iov_base, len, advice) };
        if len < piece.iov_len || len > left {
            return;
        }
        left -= len;
    }
}

/// Whether a descriptor that the kernel has taken names another process. So far it takes such advice from the memory's owner alone,
/// and says who that is.
fn is_of_another(pidfd: c_int) -> bool {
    let mut info = Info { mask: INFO_PID, ..Info::default() };
    let arguments = [pidfd as usize, GET_INFO, &raw mut info as usize, 0, 0];
    // SAFETY: the kernel writes as many bytes as the number of the request has.
    let is_known = !OWN.contains(&pidfd) && unsafe { kernel::ask(libc::SYS_ioctl, arguments) } == 0;
    is_known && info.process != rustix::process::getpid().as_raw_nonzero().get() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_tells_whose_it_is() {
        let open = |pid: u32| {
            // SAFETY: a new descriptor, no memory.
            unsafe { kernel::ask(libc::SYS_pidfd_open, [pid as usize, 0, 0, 0, 0]) as c_int }
        };
        assert!(OWN.into_iter().chain([open(std::process::id())]).all(|own| !is_of_another(own)));
        assert!(is_of_another(open(std::os::unix::process::parent_id())));
    }
}
