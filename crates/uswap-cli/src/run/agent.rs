//! The agent library that travels inside this program, and the path that preloads it.
//!
//! It is put into a memory file, so that nothing is left behind, and named by /proc/PID/fd/N. That name has to
//! outlive this process when daemons outlive the main program: so PID is a little process of its own, the
//! anchor, which does nothing but hold the memory file until the last supervisor is gone.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};
use uswap_sys::launch::{self, Side};

static LIBRARY: &[u8] = include_bytes!(env!("USWAP_AGENT_LIBRARY"));

/// How long the anchor outlives a supervisor that was killed: programs that are just starting still find the agent,
/// which ends them when it does not find its supervisor.
const LINGER: Duration = Duration::from_secs(2);

/// What keeps the library's path valid, as long as one process has it.
pub struct Anchor {
    /// What LD_PRELOAD gets.
    pub path: String,
    /// A child of ours that is not of the tree.
    pub pid: u32,
    line: OwnedFd,
}

impl Anchor {
    /// Starts the anchor, while this process has few descriptors and little memory to copy. It writes the library
    /// itself, while this process goes on.
    pub fn start() -> io::Result<Anchor> {
        let library = memory_file()?;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        match launch::fork()? {
            Side::Child => {
                drop(ours);
                let errno = fill(&library).err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
                let _ = rustix::io::write(&theirs, &errno.to_ne_bytes());
                launch::hold_until_told(c"uswap-anchor", library.into(), theirs, LINGER)
            }
            Side::Parent(pid) => {
                let path = format!("/proc/{pid}/fd/{}", library.as_raw_fd());
                Ok(Anchor { path, pid, line: ours })
            }
        }
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
pub fn library() -> io::Result<OwnedFd> {
    let file = memory_file()?;
    fill(&file)?;
    Ok(file.into())
}

fn memory_file() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Where vm.memfd_noexec is set, an executable file has to be asked for; kernels before 6.3 do not know how.
    let fd = rustix::fs::memfd_create(c"uswap-agent", flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(c"uswap-agent", flags))?;
    Ok(fd.into())
}

/// Writes the library, for good: nobody can change it afterwards.
fn fill(mut file: &File) -> io::Result<()> {
    file.write_all(LIBRARY)?;
    // Nobody has mapped it for writing yet, so FUTURE_WRITE forbids as much as WRITE. WRITE fails with EBUSY while the
    // kernel itself holds a page of the file for a moment (compaction, DAMON).
    let unchangeable = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    Ok(rustix::fs::fcntl_add_seals(file, unchangeable)?)
}
