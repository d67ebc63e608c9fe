//! By which path the next program can open the agent.
//!
//! The path is below /proc, which lets only the user of the process that it names in. It got this program its agent, so it
//! does the next as long as the user is the same. For another user the supervisor knows another path. Nothing is
//! allocated, as in [`crate::exec`].

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::io::Write;

use rustix::fs::{Mode, OFlags};
use uswap_engine::protocol::{AGENT_PATH_MAX, AgentFile, Client, HelloError};
use uswap_sys::process_status;
use uswap_sys::report::Reason;

use crate::start::RENDEZVOUS;

/// A path of the agent, as the loader is given it.
#[derive(Clone, Copy)]
pub(crate) struct AgentPath {
    /// Zeros follow.
    bytes: [u8; AGENT_PATH_MAX],
    len: usize,
}

impl AgentPath {
    /// `None` if it is longer than any of ours.
    pub fn new(path: &[u8]) -> Option<AgentPath> {
        let mut bytes = [0; AGENT_PATH_MAX];
        bytes[..AGENT_PATH_MAX - 1].get_mut(..path.len())?.copy_from_slice(path);
        (!path.is_empty()).then_some(AgentPath { bytes, len: path.len() })
    }

    /// The path of this process's own descriptor.
    pub fn own_descriptor(fd: i32) -> AgentPath {
        AgentPath::shown(format_args!("/proc/self/fd/{fd}"))
    }

    /// The path of this file, as the supervisor says.
    fn of(file: AgentFile) -> AgentPath {
        AgentPath::shown(format_args!("{file}"))
    }

    fn shown(path: fmt::Arguments<'_>) -> AgentPath {
        let mut bytes = [0; AGENT_PATH_MAX];
        let mut rest = &mut bytes[..AGENT_PATH_MAX - 1];
        // It fits: the numbers have at most ten digits.
        let _ = rest.write_fmt(path);
        let len = AGENT_PATH_MAX - 1 - rest.len();
        AgentPath { bytes, len }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// What this thread could open by it.
    pub fn file(&self) -> Option<File> {
        rustix::fs::stat(self.as_c_str()).ok().map(|stat| File([stat.st_dev, stat.st_ino]))
    }

    /// Whether the process in it was killed: that may end while this one executes a program.
    fn is_of_a_killed_process(&self) -> bool {
        let Some(end) = self.as_bytes().windows(4).position(|part| part == b"/fd/") else { return false };
        let mut path = [0; AGENT_PATH_MAX];
        let _ = write!(&mut path[..AGENT_PATH_MAX - 1], "{}/status", self.as_bytes()[..end].escape_ascii());
        let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
        // Not by the engine's descriptor of /proc: this is a thread of the program's, and the path is for its /proc.
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        file.is_ok_and(|file| process_status::is_killed(&file).unwrap_or(true))
    }
}

/// A file, by its device and inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct File([u64; 2]);

/// Why there is none.
pub(crate) enum NoPath {
    /// No way to the supervisor.
    Connect(std::io::Error),
    /// It has no path either.
    Answer(HelloError),
    /// It has one, but not for this root directory or these namespaces.
    Closed,
}

impl fmt::Display for NoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) | Self::Answer(HelloError::Io(error)) => {
                write!(f, "the supervisor cannot be reached: {}", Reason(error))
            }
            Self::Answer(error) => error.fmt(f),
            Self::Closed => f.write_str("/proc is another one than the supervisor's, or closed to it"),
        }
    }
}

/// What opened the path of this program: its user, as the kernel had it at the start, and one capability.
#[derive(Clone, Copy)]
pub(crate) struct Start {
    path: AgentPath,
    /// What was there. In another /proc, or when the process has ended, the same path is another process's.
    file: Option<File>,
    traces: bool,
}

impl Start {
    /// For the constructor.
    pub fn now(path: AgentPath, file: Option<File>) -> Start {
        Start { path, file, traces: may_trace() }
    }

    /// Whether this thread, and the program that it executes now, can open the agent by it.
    fn opens(&self, path: &AgentPath) -> bool {
        let there = path.file();
        there.is_some() && (self.file.is_none() || there == self.file) && !path.is_of_a_killed_process()
    }

    /// The path for what the calling thread executes now.
    pub fn for_next(&self) -> Result<AgentPath, NoPath> {
        if self.is_user() && self.opens(&self.path) {
            return Ok(self.path);
        }
        // Twice: whose it was may have been killed since the supervisor looked.
        for _ in 0..2 {
            let path = ask()?;
            if self.opens(&path) {
                return Ok(path);
            }
        }
        Err(NoPath::Closed)
    }

    /// Whether the next program will be the same user. Capabilities that this thread has kept do not count, except root's,
    /// who gets all that the bounding set has.
    fn is_user(&self) -> bool {
        // SAFETY: only reads what the kernel has told this process at its start.
        let (user, group) = unsafe { (libc::getauxval(libc::AT_EUID), libc::getauxval(libc::AT_EGID)) };
        let now = (rustix::process::geteuid(), rustix::process::getegid());
        (u64::from(now.0.as_raw()), u64::from(now.1.as_raw())) == (user, group)
            && (!now.0.is_root() || !self.traces || may_trace())
    }
}

/// Whether root, as it is here, may look into everybody: it needs nothing else that the anchor has then.
fn may_trace() -> bool {
    rustix::thread::capability_is_in_bounding_set(rustix::thread::CapabilitySet::SYS_PTRACE).unwrap_or(true)
}

/// Asks the supervisor.
pub(crate) fn ask() -> Result<AgentPath, NoPath> {
    let Some(rendezvous) = RENDEZVOUS.get() else { return Err(NoPath::Answer(HelloError::NoAnswer)) };
    let client = Client::connect(&rendezvous.name[..rendezvous.name_len]).map_err(NoPath::Connect)?;
    client.ask_agent(&rendezvous.secret).map(AgentPath::of).map_err(NoPath::Answer)
}
