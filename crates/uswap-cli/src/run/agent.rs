//! The agent library that travels inside this program, and the path that preloads it.
//!
//! It is put into a memory file, so that nothing is left behind, and named by /proc/PID/fd/N. That name has to
//! outlive this process when daemons outlive the main program: so PID is a little process of its own, the
//! anchor, which does nothing but hold the memory file until the last supervisor is gone.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use uswap_sys::launch::{self, Side};

static LIBRARY: &[u8] = include_bytes!(env!("USWAP_AGENT_LIBRARY"));

/// The library in a memory file that nobody can change.
pub fn library() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Where vm.memfd_noexec is set, an executable file has to be asked for; kernels before 6.3 do not know how.
    let fd = rustix::fs::memfd_create(c"uswap-agent", flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(c"uswap-agent", flags))?;
    let mut file = std::fs::File::from(fd);
    file.write_all(LIBRARY)?;
    let unchangeable = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, unchangeable)?;
    Ok(file.into())
}

/// What keeps the library's path valid. Dropping it in the last process that has it ends the anchor.
pub struct Anchor {
    /// What LD_PRELOAD gets.
    pub path: String,
    _alive: OwnedFd,
}

/// Starts the anchor. To be called while this process has few descriptors and no threads.
pub fn anchor(library: OwnedFd) -> io::Result<Anchor> {
    let (watched, alive) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let number = library.as_raw_fd();
    match launch::fork()? {
        Side::Child => {
            drop(alive);
            launch::hold_until_hangup(c"uswap-anchor", library, watched)
        }
        Side::Parent(pid) => Ok(Anchor {
            path: format!("/proc/{pid}/fd/{number}"),
            _alive: alive,
        }),
    }
}
