//! The agent as a descriptor that a static program inherits.
//!
//! Nobody wraps what such a program executes, and what root executes may be one that becomes another user first (gosu,
//! su-exec): then no path of another process opens the agent, but one of its own descriptors does. The agent in the next
//! program that has a loader closes it. Only root's programs get it, because only they can become somebody else.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::agent_path::AgentPath;
use crate::kernel;

/// Numbers that the descriptor may get, the least that suits is taken: out of the way of those who count on the lowest
/// free one, and below the usual limit.
const LEAST: [c_int; 3] = [1000, 200, 10];
/// Longest path of a program that is looked at.
const PATH_MAX: usize = 2048;
/// Head of a file with all of its program headers, if there are few.
const HEAD_BYTES: usize = 1024;

/// What is to be executed.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// The file of this path.
    File(*const c_char),
    /// As execvp(3) finds it.
    InPath(*const c_char),
    /// An open file.
    Open(c_int),
    /// Something, in another process: our descriptors would have to be given to all that is started meanwhile.
    Spawned,
}

/// A descriptor of the agent that stays open when a program is executed; closed if that fails.
pub(crate) struct Lent(OwnedFd);

impl Lent {
    /// For `target`, if it needs one.
    ///
    /// The pointers in `target` are what the caller of exec promises: strings.
    #[inline(never)]
    pub fn to(target: Target, agent: &AgentPath) -> Option<Lent> {
        if !rustix::process::geteuid().is_root() || !is_static(target) {
            return None;
        }
        let file = rustix::fs::open(agent.as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        // SAFETY: a copy of a descriptor of our own, which is not closed meanwhile.
        let copy = LEAST.into_iter().map(|least| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, least) });
        let fd = copy.into_iter().find(|fd| *fd >= 0)?;
        // SAFETY: made above, for us alone.
        Some(Lent(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// By which the loader finds it.
    pub fn path(&self) -> AgentPath {
        AgentPath::own_descriptor(self.0.as_raw_fd())
    }
}

/// The descriptor by which this program got the agent, if the path says that it was one.
pub(crate) fn number(path: &[u8]) -> Option<c_int> {
    std::str::from_utf8(path.strip_prefix(b"/proc/self/fd/")?).ok()?.parse().ok()
}

/// Closes it: the program does not know of it.
pub(crate) fn give_back(fd: c_int) {
    // SAFETY: the loader has opened this library by it, and no code of the program, whose it would be otherwise, has run.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

fn is_static(target: Target) -> bool {
    let name = |name: *const c_char| {
        // SAFETY: a string, as the caller of exec promises, or nothing that can be read.
        kernel::can_be_read(name.addr()).then(|| unsafe { CStr::from_ptr(name) })
    };
    let file = match target {
        Target::Spawned => return false,
        Target::Open(fd) => return begins_without_loader(fd),
        Target::File(path) => name(path).and_then(open),
        Target::InPath(file) => name(file).and_then(find),
    };
    file.is_some_and(|file| begins_without_loader(file.as_raw_fd()))
}

/// By what the file begins with. On small stacks: the buffer is there when [`find`]'s is gone.
#[inline(never)]
fn begins_without_loader(file: c_int) -> bool {
    let mut head = [0; HEAD_BYTES];
    // Not by libc, where this is a cancellation point: exec is none.
    // SAFETY: reads into an array of this length, from whatever the number stands for.
    let got = unsafe { kernel::ask(libc::SYS_pread64, [file as usize, head.as_mut_ptr().addr(), HEAD_BYTES, 0, 0]) };
    usize::try_from(got).is_ok_and(|length| has_no_loader(&head[..length]))
}

fn open(path: &CStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}

/// The first file of this name in PATH that can be read.
#[inline(never)]
fn find(name: &CStr) -> Option<OwnedFd> {
    if name.to_bytes().contains(&b'/') {
        return open(name);
    }
    // SAFETY: libc's own rule: nobody changes the environment while a thread uses it.
    let places = unsafe { libc::getenv(c"PATH".as_ptr()) };
    if places.is_null() {
        return None;
    }
    // SAFETY: a string of the environment.
    let places = unsafe { CStr::from_ptr(places) }.to_bytes();
    let mut path = [0; PATH_MAX];
    places.split(|&byte| byte == b':').find_map(|place| {
        let length = place.len() + 1 + name.to_bytes_with_nul().len();
        let joined = path.get_mut(..length)?;
        joined[..place.len()].copy_from_slice(place);
        joined[place.len()] = b'/';
        joined[place.len() + 1..].copy_from_slice(name.to_bytes_with_nul());
        let file = open(CStr::from_bytes_with_nul(joined).ok()?)?;
        rustix::io::pread(&file, &mut [0; 1], 0).is_ok().then_some(file)
    })
}

/// Whether this is the beginning of a 64-bit program that asks for no loader.
fn has_no_loader(head: &[u8]) -> bool {
    const EXECUTABLE: u16 = 2;
    const SHARED: u16 = 3;
    const PT_INTERP: u32 = 3;
    let half = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let look = || {
        let kind = half(16)?;
        let (first, size, count) = (word(32)? as usize, usize::from(half(54)?), usize::from(half(56)?));
        let of_interpreter = |at| Some(word(at)? == PT_INTERP);
        let mut loader = kind != EXECUTABLE && kind != SHARED;
        for number in 0..count {
            loader |= of_interpreter(first.checked_add(number * size)?)?;
        }
        Some(!loader)
    };
    head.starts_with(b"\x7fELF\x02\x01") && look().unwrap_or(false)
}
