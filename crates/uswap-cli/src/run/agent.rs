//! The agent library that travels inside this program, and the path that preloads it.
//!
//! It is put into a memory file, so that nothing is left behind, and named by /proc/PID/fd/N. That name has to
//! outlive this process when daemons outlive the main program: so PID is a little process of its own, the
//! anchor, which does nothing but hold the memory file until the last supervisor is gone.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, WaitOptions};
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
    // Nobody has mapped it for writing yet, so FUTURE_WRITE forbids as much as WRITE. WRITE fails with EBUSY while the
    // kernel itself holds a page of the file for a moment (compaction, DAMON).
    let unchangeable = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    rustix::fs::fcntl_add_seals(&file, unchangeable)?;
    Ok(file.into())
}

/// How long the anchor outlives a supervisor that was killed: programs that are just starting still find the agent,
/// which ends them when it does not find its supervisor.
const LINGER: Duration = Duration::from_secs(2);

/// What keeps the library's path valid, as long as one process has it.
pub struct Anchor {
    /// What LD_PRELOAD gets.
    pub path: String,
    /// A child of ours that is not of the tree.
    pub pid: u32,
    tell: OwnedFd,
}

impl Anchor {
    /// Starts the anchor, while this process has few descriptors.
    pub fn start(library: OwnedFd) -> io::Result<Anchor> {
        let (told, tell) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let number = library.as_raw_fd();
        match launch::fork()? {
            Side::Child => {
                drop(tell);
                launch::hold_until_told(c"uswap-anchor", library, told, LINGER)
            }
            Side::Parent(pid) => Ok(Anchor { path: format!("/proc/{pid}/fd/{number}"), pid, tell }),
        }
    }

    /// Nobody needs the path any more.
    pub fn end(&self) {
        let _ = rustix::io::write(&self.tell, b"x");
        // Our child, unless this is a process that stayed behind: no zombie is left to whoever is next.
        let pid = Pid::from_raw(self.pid as i32);
        let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(pid, WaitOptions::empty()));
    }
}
