//! The socket at which processes connect, and a descriptor that is kept for who comes when there is no other.
//!
//! A forked child of a process that swaps waits for its answer, and has nothing to go on with meanwhile. So nobody may be left
//! in the queue because there is no descriptor to take him out with: he is taken by the spare one, and refused.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use uswap_engine::protocol::{self, Message, Refusal};
use uswap_sys::launch;

/// See the file's head.
pub(super) struct Door {
    listener: OwnedFd,
    spare: Option<OwnedFd>,
    /// Nobody is asked for until the next turn.
    rests: bool,
}

impl Door {
    /// With a descriptor to spare.
    pub fn new(listener: OwnedFd) -> io::Result<Door> {
        let spare = Some(spare()?);
        // Strangers send none, and what they send we would have to close.
        let _ = launch::let_descriptors_in(listener.as_fd(), false);
        Ok(Door { listener, spare, rests: false })
    }

    /// To be polled, unless it has to be tried again later.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        (!self.rests).then(|| self.listener.as_fd())
    }

    /// A turn is over.
    pub fn goes_on(&mut self) {
        self.rests = false;
        if self.spare.is_none() {
            self.spare = spare().ok();
        }
    }

    /// Something else must have a descriptor, until the next turn.
    pub fn lends_spare(&mut self) {
        self.spare = None;
    }

    /// Who has connected, if there is somebody.
    pub fn accept(&mut self) -> Option<OwnedFd> {
        loop {
            match self.accept_now() {
                Ok(connection) => return Some(connection),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return None,
                Err(Errno::MFILE | Errno::NFILE) if self.refuses_one() => {}
                Err(_) => {
                    // Out of memory, or of descriptors without one to spare: tried again in the next turn.
                    self.rests = true;
                    return None;
                }
            }
        }
    }

    fn accept_now(&self) -> rustix::io::Result<OwnedFd> {
        rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    /// Whether there was somebody to refuse.
    fn refuses_one(&mut self) -> bool {
        if self.spare.take().is_none() {
            return false;
        }
        let connection = self.accept_now();
        if let Ok(connection) = &connection {
            // What lies there unread when it is closed would be told to the other side before the refusal.
            let _ = protocol::receive(connection);
            let _ = protocol::send(connection, &Message::Refused(Refusal::Resources), &[]);
        }
        let is_refused = connection.is_ok();
        drop(connection);
        self.spare = spare().ok();
        is_refused
    }
}

/// A file of its own: where the system has no more files, another descriptor of one would be no help.
fn spare() -> rustix::io::Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
}

/// A descriptor that is nothing by itself, and is closed when another is to take its place.
pub(super) fn placeholder(of: impl AsFd) -> rustix::io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(of, 0)
}
