//! The agent's path for programs that run as another user than we do, or when the first anchor has been killed.
//!
//! /proc/PID/fd/N is closed to all but the user of that process, and a root that has given up capabilities counts as
//! another user. So each user that a process of the tree becomes gets an anchor of its own. It must not share our memory,
//! as the first does: its user may look into it. It is this program, executed again with an empty environment, and it
//! becomes the user after that.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{DumpableBehavior, Gid, Uid, WaitStatus};
use rustix::thread::{CapabilitySet, CapabilitySets};
use uswap_engine::protocol::{AgentFile, Refusal};
use uswap_sys::launch;

use super::agent::{self, Holder, LINGER, Survivors};
use super::processes::is_killed;
use crate::failure::{reason, say};

/// More users than a tree has, if nobody plays with us.
const ANCHORS_MAX: usize = 256;
/// How long an anchor may take to get ready. It takes a millisecond.
const READY_WITHIN: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// One of them.
struct UserAnchor {
    user: u32,
    group: u32,
    holder: Holder,
}

/// All of them.
pub struct UserAnchors {
    /// By which we can open the agent: a descriptor of our own, which nobody else's end closes.
    agent: PathBuf,
    anchors: Vec<UserAnchor>,
}

impl UserAnchors {
    /// None yet. `agent` is how this process itself opens the agent.
    pub fn new(agent: PathBuf) -> UserAnchors {
        UserAnchors { agent, anchors: Vec::new() }
    }

    /// Whether a process is one of them.
    pub fn contains(&self, pid: u32) -> bool {
        self.anchors.iter().any(|anchor| anchor.holder.pid == pid)
    }

    /// The agent's file for the user at the other end of a connection.
    pub fn file_for(&mut self, connection: &OwnedFd) -> Result<AgentFile, Refusal> {
        let (user, group) = launch::peer_user(connection.as_fd()).map_err(|_| Refusal::Resources)?;
        let is_its = |anchor: &&UserAnchor| (anchor.user, anchor.group) == (user, group);
        // One that its user has just killed opens nothing any more, also before we can wait for it.
        let known = self.anchors.iter().filter(is_its).find(|anchor| !is_killed(anchor.holder.pid));
        let pid = match known {
            Some(anchor) => anchor.holder.pid,
            None if !may_become(user, group) => return Err(Refusal::OtherUser),
            None if self.anchors.len() >= ANCHORS_MAX => return Err(Refusal::Resources),
            None => {
                let anchor = start(File::open(&self.agent), user, group).map_err(|error| {
                    // What the process says of it names but one of the reasons.
                    say(format_args!("cannot keep the agent open for programs of user {user}: {}", reason(&error)));
                    Refusal::Resources
                })?;
                let pid = anchor.holder.pid;
                self.anchors.push(anchor);
                pid
            }
        };
        // Standard input, see `start`.
        Ok(AgentFile { pid, fd: 0 })
    }

    /// A child of ours has changed its state; perhaps it is one of them, and its user has killed it.
    pub fn ended(&mut self, pid: u32, status: WaitStatus) {
        if !status.stopped() {
            self.anchors.retain(|anchor| anchor.holder.pid != pid);
        }
    }

    /// Nobody needs the path any more.
    pub fn release(&self, survivors: Survivors) {
        for anchor in &self.anchors {
            anchor.holder.release(survivors);
        }
    }

    /// Until all have ended, who are our children.
    pub fn wait(&mut self) {
        for anchor in self.anchors.drain(..) {
            anchor.holder.wait();
        }
    }
}

/// Starts an anchor: its standard input is the agent, its standard output our line to it.
fn start(file: io::Result<File>, user: u32, group: u32) -> io::Result<UserAnchor> {
    let (line, theirs) = agent::line()?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("uswap-anchor")
        .args(["anchor", &user.to_string(), &group.to_string()])
        .env_clear()
        .current_dir("/")
        .stdin(file?)
        .stdout(theirs)
        .stderr(Stdio::null())
        .spawn()?;
    let mut ready = [PollFd::new(&line, PollFlags::IN)];
    let answered = rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, Some(&READY_WITHIN)));
    if !matches!(answered, Ok(1..)) || rustix::io::read(&line, &mut [0; 1]) != Ok(1) {
        child.kill()?;
        child.wait()?;
        return Err(io::Error::other("its anchor did not get ready"));
    }
    Ok(UserAnchor { user, group, holder: Holder { pid: child.id(), line } })
}

/// `uswap anchor`.
#[derive(clap::Args)]
pub struct AnchorOptions {
    user: u32,
    group: u32,
}

/// The anchor's life: it becomes its user, says so, and holds its standard input until it is told, or its supervisor has
/// ended.
pub fn main(options: &AnchorOptions) -> ExitCode {
    let line = rustix::stdio::stdout();
    if launch::block_all().is_err() || become_user(options).is_err() || rustix::io::write(line, b"x").is_err() {
        return ExitCode::FAILURE;
    }
    uswap_sys::anchor::wait_for_the_end(line, &LINGER);
    ExitCode::SUCCESS
}

/// Whether an anchor can belong to this user: root's to any, others' to themselves.
fn may_become(user: u32, group: u32) -> bool {
    let (own_user, own_group) = (rustix::process::geteuid(), rustix::process::getegid());
    own_user.is_root() || (own_user.as_raw(), own_group.as_raw()) == (user, group)
}

fn become_user(options: &AnchorOptions) -> rustix::io::Result<()> {
    // An id that is no id would mean: stay as you are.
    if [options.user, options.group].contains(&u32::MAX) {
        return Err(rustix::io::Errno::INVAL);
    }
    let (user, group) = (Uid::from_raw(options.user), Gid::from_raw(options.group));
    let _ = rustix::process::setsid();
    rustix::thread::set_name(c"uswap-anchor")?;
    // A root that may not change its groups (a user namespace, a container) is the user that it would become.
    if (rustix::process::geteuid(), rustix::process::getegid()) != (user, group) {
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
    }
    // A capability that the other lacks would close the path to it.
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    // Or the path belongs to root.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)
}
