//! Standard error, as a supervisor has to write to it: without ever waiting for who reads it.
//!
//! A pipe that nobody reads, or a terminal that is stopped, would hold up the only thread there is, and with it every
//! process of the tree that needs the supervisor. So once a program runs, what is said goes to a queue, and from there as far
//! as there is room.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

/// How long the last lines wait for somebody to read them.
pub const LAST_WORDS: Duration = Duration::from_secs(1);
/// More is dropped: nobody has read for a long time.
const QUEUE_BYTES: usize = 1 << 20;
/// So much goes into a pipe whole or not at all (PIPE_BUF).
const PIECE_BYTES: usize = 4096;

/// What waits for room; `None` as long as nobody but the user waits for us.
static QUEUE: Mutex<Option<VecDeque<u8>>> = Mutex::new(None);

/// From now on others wait for this process.
pub fn never_wait() {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default();
}

/// Writes, or has it written when there is room.
pub fn write(bytes: &[u8]) {
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    match queue.as_mut() {
        None => drop(rustix::io::write(rustix::stdio::stderr(), bytes)),
        Some(queue) => {
            if queue.len() + bytes.len() <= QUEUE_BYTES {
                queue.extend(bytes);
            }
            flush_queue(queue);
        }
    }
}

/// Writes what there is room for. True when nothing waits any more.
pub fn flush() -> bool {
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    queue.as_mut().is_none_or(flush_queue)
}

/// Waits so long for the last of it. True when it has been written.
pub fn drain(at_most: Duration) -> bool {
    let until = Instant::now() + at_most;
    while !flush() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        wait_for_room(left);
    }
    true
}

fn flush_queue(queue: &mut VecDeque<u8>) -> bool {
    while !queue.is_empty() {
        let bytes = queue.make_contiguous();
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        // Whole lines, as far as one fits.
        let end = piece.iter().rposition(|byte| *byte == b'\n').map_or(piece.len(), |at| at + 1);
        match write_now(&piece[..end]) {
            Ok(written) => drop(queue.drain(..written)),
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR) => {}
            // Closed, or nobody will ever read it.
            Err(_) => queue.clear(),
        }
    }
    true
}

/// One write that does not wait. Others have the same open file, so the flag that would say so must not be set on it: a pipe
/// or a terminal is opened once more.
fn write_now(bytes: &[u8]) -> Result<usize, Errno> {
    let stderr = rustix::stdio::stderr();
    let stat = rustix::fs::fstat(stderr)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => rustix::net::send(stderr, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        FileType::Fifo | FileType::CharacterDevice => match opened_again(stat.st_rdev) {
            Some(own) => rustix::io::write(own, bytes),
            None if wait_for_room(Duration::ZERO) => rustix::io::write(stderr, bytes),
            None => Err(Errno::AGAIN),
        },
        _ => rustix::io::write(stderr, bytes),
    }
}

fn opened_again(device: u64) -> Option<OwnedFd> {
    // Whoever opens this one gets a new terminal.
    const PTMX: (u32, u32) = (5, 2);
    if (rustix::fs::major(device), rustix::fs::minor(device)) == PTMX {
        return None;
    }
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open("/proc/self/fd/2", flags, Mode::empty()).ok()
}

/// Waits until something can be written, or never can be again.
fn wait_for_room(at_most: Duration) -> bool {
    let stderr = rustix::stdio::stderr();
    let mut polled = [PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::OUT)];
    let timeout = Timespec::try_from(at_most).ok();
    rustix::event::poll(&mut polled, timeout.as_ref()).is_ok_and(|ready| ready > 0)
}
