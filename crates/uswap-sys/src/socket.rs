//! Sockets between the supervisor and the agents: unix, abstract name, whole messages, descriptors.
//!
//! SOCK_SEQPACKET keeps messages apart like datagrams and tells when the peer is gone like a stream.
//! A message is never empty, so that a length of 0 is the end.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// The most descriptors that one message carries.
pub const FDS_MAX: usize = 16;

/// A socket that others connect to. Its name goes with it: no file is left behind.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
}

/// Who is at the other end, by the kernel's word at the time of connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// Process id, in our pid namespace; 0 if it has none there.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

fn socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Listens on an abstract name (without the leading zero byte, at most 107 bytes).
///
/// Abstract names have no permissions: whoever accepts asks for [`Connection::peer_cred`], and for a
/// secret.
pub fn listen(name: &[u8]) -> io::Result<Listener> {
    let fd = socket()?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&fd, 128)?;
    Ok(Listener { fd })
}

/// Connects to a listener by its abstract name. Needs no heap.
pub fn connect(name: &[u8]) -> io::Result<Connection> {
    let fd = socket()?;
    let address = SocketAddrUnix::new_abstract_name(name)?;
    again(|| rustix::net::connect(&fd, &address))?;
    Ok(Connection { fd })
}

/// Two connected ends.
pub fn pair() -> io::Result<(Connection, Connection)> {
    let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((Connection { fd: one }, Connection { fd: other }))
}

impl Listener {
    /// Waits for the next connection.
    pub fn accept(&self) -> io::Result<Connection> {
        let fd = again(|| rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC))?;
        Ok(Connection { fd })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Connection {
    /// Takes a connected socket.
    pub fn from_fd(fd: OwnedFd) -> Connection {
        Connection { fd }
    }

    /// Gives the socket away.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Sends one message, not empty, with at most [`FDS_MAX`] descriptors. Needs no heap, raises no
    /// SIGPIPE.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if message.is_empty() || fds.len() > FDS_MAX {
            return Err(Errno::INVAL.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL.into());
        }
        let sent = again(|| {
            let message = [IoSlice::new(message)];
            rustix::net::sendmsg(&self.fd, &message, &mut control, SendFlags::NOSIGNAL)
        })?;
        if sent != message.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    /// Receives one message: its length, 0 when the peer is gone. Descriptors are added to `fds`,
    /// closed on exec; with room for [`FDS_MAX`] in it, nothing is allocated.
    ///
    /// A message that does not fit is an error (`InvalidData`), and lost.
    pub fn recv(&self, message: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = again(|| {
            let mut into = [IoSliceMut::new(message)];
            rustix::net::recvmsg(&self.fd, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let received = match received {
            // The peer closed with something of ours unread: gone all the same.
            Err(Errno::CONNRESET) => return Ok(0),
            other => other?,
        };
        let before = fds.len();
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
                fds.extend(rights);
            }
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            fds.truncate(before);
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(received.bytes)
    }

    /// Who is at the other end.
    pub fn peer_cred(&self) -> io::Result<PeerCred> {
        // Not rustix's: its Pid cannot be 0, which a peer in a foreign pid namespace has.
        peer_cred(self.fd.as_fd())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[allow(unsafe_code)]
fn peer_cred(fd: BorrowedFd<'_>) -> io::Result<PeerCred> {
    use std::os::fd::AsRawFd;
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `cred`, plain data, and the length to `len`.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &raw mut len)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCred { pid: u32::try_from(cred.pid).unwrap_or(0), uid: cred.uid, gid: cred.gid })
}

/// Repeats a call that a signal interrupted.
fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    #[test]
    fn messages_stay_apart_and_carry_descriptors() {
        let name = format!("uswap-sys-test-{}", std::process::id());
        let listener = listen(name.as_bytes()).unwrap();
        assert!(listen(name.as_bytes()).is_err(), "the name is taken");
        let client = connect(name.as_bytes()).unwrap();
        let server = listener.accept().unwrap();
        assert_eq!(server.peer_cred().unwrap().pid, std::process::id());

        let (mut reader, writer) = io::pipe().unwrap();
        client.send(b"first", &[]).unwrap();
        client.send(b"second", &[writer.as_fd(), writer.as_fd()]).unwrap();
        drop(writer);
        let mut buffer = [0; 64];
        let mut fds = Vec::new();
        assert_eq!(server.recv(&mut buffer, &mut fds).unwrap(), 5);
        assert!(fds.is_empty());
        assert_eq!(server.recv(&mut buffer, &mut fds).unwrap(), 6);
        assert_eq!((&buffer[..6], fds.len()), (&b"second"[..], 2));
        File::from(fds.pop().unwrap()).write_all(b"x").unwrap();
        fds.clear();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");

        drop(client);
        assert_eq!(server.recv(&mut buffer, &mut fds).unwrap(), 0);
    }

    #[test]
    fn what_does_not_fit_is_an_error_and_leaks_nothing() {
        let (one, other) = pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        one.send(&[1; 100], &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut fds = Vec::new();
        let error = other.recv(&mut [0; 10], &mut fds).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(fds.is_empty());
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the descriptor is closed");
        assert!(one.send(b"", &[]).is_err());
        drop(other);
        assert_eq!(one.send(b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
