//! What the agents have to say to the user.
//!
//! They get the other end of a pipe and never hold our standard error: a daemon's agent would keep somebody's pipe open.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::PipeFlags;

use crate::stderr;

/// A swap file that is damaged as a whole has a line for each page, and none may be missing: room for ten thousand.
const PIPE_BYTES: usize = 1 << 20;

/// The pipe.
pub(super) struct Messages {
    ours: OwnedFd,
    of_agents: OwnedFd,
}

impl Messages {
    /// # Errors
    ///
    /// If there can be no pipe.
    pub fn new() -> io::Result<Messages> {
        // Not blocking: an agent in the middle of a fault must not wait for a terminal that is stopped.
        let (ours, of_agents) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = rustix::pipe::fcntl_setpipe_size(&ours, PIPE_BYTES);
        Ok(Messages { ours, of_agents })
    }

    /// Where they come, to be waited for.
    pub fn arrive_at(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }

    /// What an agent writes to.
    pub fn for_agents(&self) -> BorrowedFd<'_> {
        self.of_agents.as_fd()
    }

    /// What there is no room for stays in the pipe: the agents do not wait for it.
    pub fn relay(&self) {
        let mut buffer = [0; 4096];
        while stderr::flush()
            && let Ok(count @ 1..) = rustix::io::read(&self.ours, &mut buffer)
        {
            // Who asked for quiet gets only what must be seen: the agents know.
            stderr::write(&buffer[..count]);
        }
    }
}
