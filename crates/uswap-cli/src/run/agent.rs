//! The agent library that travels inside this program, and the path that preloads it.
//!
//! It is put into a memory file, so that nothing is left behind, and named by /proc/PID/fd/N. That name has to
//! outlive this process when daemons outlive the main program: so PID is a little process of its own, the
//! anchor, which does nothing but hold the memory file until the last supervisor is gone.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};
use rustix::thread::Timespec;
use uswap_engine::group::Compressor;
use uswap_sys::anchor::{self, Orders};

/// What maps show the library as.
const NAME: &CStr = c"uswap-agent";

static AGENT: &[u8] = include_bytes!(env!("USWAP_AGENT"));
/// A third larger, for those who ask for it.
static AGENT_WITH_ZSTD: &[u8] = include_bytes!(env!("USWAP_AGENT_ZSTD"));

/// The library for a group that compresses in this way.
fn content(compressor: Compressor) -> &'static [u8] {
    match compressor {
        Compressor::Zstd => AGENT_WITH_ZSTD,
        Compressor::Lz4 | Compressor::None => AGENT,
    }
}

/// How long the anchor outlives a supervisor that was killed: programs that are just starting still find the agent,
/// which ends them when it does not find its supervisor.
pub const LINGER: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// What keeps the library's path valid, as long as one process has it.
pub struct Anchor {
    /// What LD_PRELOAD gets.
    pub path: String,
    /// A child of ours that is not of the tree.
    pub pid: u32,
    line: OwnedFd,
}

impl Anchor {
    /// Starts the anchor, while this process has few descriptors. It writes the library itself, while this process goes
    /// on.
    pub fn start(compressor: Compressor) -> io::Result<Anchor> {
        let library = anchor::memory_file(NAME)?;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let orders = Orders { name: c"uswap-anchor", content: content(compressor), linger: LINGER };
        let pid = anchor::start(orders, &library, theirs)?;
        Ok(Anchor { path: format!("/proc/{pid}/fd/{}", library.as_raw_fd()), pid, line: ours })
    }

    /// Until the library can be loaded.
    pub fn ready(&self) -> io::Result<()> {
        let mut errno = [0; 4];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.line, &mut errno))? {
            4 if errno == [0; 4] => Ok(()),
            4 => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            // It was killed.
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Nobody needs the path any more: the anchor ends, while we do what there is left to do.
    pub fn release(&self) {
        let _ = rustix::net::send(&self.line, b"x", SendFlags::NOSIGNAL);
    }

    /// Until it has ended. It is our child, unless this is a process that stayed behind: no zombie is left to whoever
    /// is next.
    pub fn wait(self) {
        let pid = Pid::from_raw(self.pid as i32);
        let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(pid, WaitOptions::empty()));
    }
}

/// The library in a memory file that nobody can change.
pub fn library(compressor: Compressor) -> io::Result<OwnedFd> {
    let file = anchor::memory_file(NAME)?;
    anchor::fill(file.as_fd(), content(compressor))?;
    Ok(file)
}
