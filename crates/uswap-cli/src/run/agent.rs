//! The agent library that travels inside this program, and the path that preloads it.
//!
//! It is put into a memory file, so that nothing is left behind, and named by /proc/PID/fd/N. That name has to
//! outlive this process when daemons outlive the main program: so PID is a little process of its own, the
//! anchor, which does nothing but hold the memory file until the last supervisor is gone, and root's until no process names it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};
use rustix::thread::Timespec;
use uswap_engine::group::Compressor;
use uswap_sys::anchor::{self, Orders, Started};

/// What maps show the library as.
const NAME: &CStr = c"uswap-agent";

static AGENT: &[u8] = include_bytes!(env!("USWAP_AGENT"));
/// A third larger, for those who ask for it.
static AGENT_WITH_ZSTD: &[u8] = include_bytes!(env!("USWAP_AGENT_ZSTD"));

/// The library, with Zstandard or without.
fn content(with_zstd: bool) -> &'static [u8] {
    if with_zstd { AGENT_WITH_ZSTD } else { AGENT }
}

/// How long the anchor outlives a supervisor that was killed: programs that are just starting still find the agent,
/// which ends them when it does not find its supervisor.
pub const LINGER: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// What keeps the library's path valid, as long as one process has it.
pub struct Anchor {
    /// What LD_PRELOAD gets.
    pub path: String,
    started: Started,
    library: OwnedFd,
    holder: Holder,
}

impl Anchor {
    /// Starts the anchor, while this process has few descriptors. It begins to write the library, while this process goes
    /// on.
    pub fn start(with_zstd: bool) -> io::Result<Anchor> {
        let library = anchor::memory_file(NAME)?;
        let (line, theirs) = line()?;
        let orders = Orders { name: c"uswap-anchor", content: content(with_zstd), linger: LINGER };
        let started = anchor::start(orders, &library, theirs)?;
        let path = format!("/proc/{}/fd/{}", started.pid, library.as_raw_fd());
        let holder = Holder { pid: started.pid, line };
        Ok(Anchor { path, started, library, holder })
    }

    /// How this process itself opens the library, and one that is forked from it: whatever has become of the anchor.
    pub fn own_path(&self) -> String {
        format!("/proc/self/fd/{}", self.library.as_raw_fd())
    }

    /// A child of ours that is not of the tree.
    pub fn pid(&self) -> u32 {
        self.holder.pid
    }

    /// Returns when the library can be loaded.
    pub fn complete(&self) -> io::Result<()> {
        Ok(self.started.complete(self.library.as_fd())?)
    }

    /// Nobody needs the path any more: the anchor ends, while we do what there is left to do.
    pub fn release(&self, survivors: Survivors) {
        self.holder.release(survivors);
    }

    /// Lets it go, until it has ended. It is our child, unless this is a process that stayed behind: no zombie is left to
    /// whoever is next.
    pub fn end(self) {
        self.holder.release(Survivors::None);
        self.holder.wait();
    }
}

/// What may live of a tree when its supervisor lets the path go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// Nothing.
    None,
    /// Programs without an agent, which may execute others by the path still: a holder that is root stays as long as one names it.
    Unmanaged,
}

/// A process that holds the library's file until it is told.
pub struct Holder {
    /// Our child.
    pub pid: u32,
    /// Our end of [`line`].
    pub line: OwnedFd,
}

impl Holder {
    /// It may end.
    pub fn release(&self, survivors: Survivors) {
        let word = match survivors {
            Survivors::None => anchor::GOES,
            Survivors::Unmanaged => anchor::GOES_UNNAMED,
        };
        let _ = rustix::net::send(&self.line, word, SendFlags::NOSIGNAL);
    }

    /// Until it has ended.
    pub fn wait(&self) {
        let pid = Pid::from_raw(self.pid as i32);
        let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(pid, WaitOptions::empty()));
    }
}

/// Between us and a process that holds the library's file: our end, and its.
pub fn line() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// The library in a memory file that nobody can change.
pub fn library(compressor: Compressor) -> io::Result<OwnedFd> {
    let file = anchor::memory_file(NAME)?;
    anchor::fill(file.as_fd(), content(compressor == Compressor::Zstd))?;
    Ok(file)
}
