//! Waiting for descriptors where the limit on them (RLIMIT_NOFILE) is lower than the number of those that are waited for.
//!
//! poll(2) refuses that, wherever the descriptors come from. select(2) goes by what is open.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::{FdSetElement, Timespec, fd_set_insert, fd_set_num_elements};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// Descriptors from here on are not waited for. Agent threads have the lowest ones, but for those that they brought along.
const DESCRIPTORS: usize = 1 << 16;

/// Waits until one of them can be read, or is at its end; which. `None` waits for ever. Fault path.
#[inline(never)]
pub fn readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    patience: Option<&Timespec>,
) -> rustix::io::Result<[bool; N]> {
    let numbers = fds.map(|fd| fd.as_raw_fd());
    let bound = numbers.iter().max().map_or(0, |most| most + 1);
    let mut set = [FdSetElement::default(); DESCRIPTORS / 64];
    let Some(set) = set.get_mut(..fd_set_num_elements(N, bound)) else { return Err(Errno::INVAL) };
    loop {
        set.fill(FdSetElement::default());
        numbers.iter().for_each(|&fd| fd_set_insert(set, fd));
        // SAFETY: they are open, for they are borrowed.
        match unsafe { rustix::event::select(bound, Some(&mut *set), None, None, patience) } {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => return Ok(numbers.map(|fd| is_in(set, fd))),
        }
    }
}

/// Whether the other end of a connection is gone, on which nothing is ever sent.
pub fn is_at_end(socket: BorrowedFd<'_>) -> bool {
    let mut nothing = [0; 1];
    let received = rustix::net::recv(socket, &mut nothing, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(received, Ok((_, 0)) | Err(Errno::CONNRESET))
}

fn is_in(set: &[FdSetElement], fd: i32) -> bool {
    rustix::event::FdSetIter::new(set).any(|member| member == fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

    #[test]
    fn what_can_be_read_is_told_whatever_its_number() {
        let [low, other] = [1, 0].map(|value| eventfd(value, EventfdFlags::empty()).unwrap());
        let high = rustix::io::fcntl_dupfd_cloexec(&other, 1500);
        // Where the limit is lower there is none.
        let high = high.as_ref().unwrap_or(&other);
        assert_eq!(readable([low.as_fd(), high.as_fd()], Some(&NOW)), Ok([true, false]));
        rustix::io::write(&other, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(readable([low.as_fd(), high.as_fd()], None), Ok([true, true]));
    }

    #[test]
    fn the_end_of_a_connection_is_seen() {
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(readable([here.as_fd()], Some(&NOW)), Ok([false]));
        assert!(!is_at_end(here.as_fd()));
        drop(there);
        assert_eq!(readable([here.as_fd()], Some(&NOW)), Ok([true]));
        assert!(is_at_end(here.as_fd()));
    }
}
