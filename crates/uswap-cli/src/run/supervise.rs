//! The supervisor: one thread, one poll loop, from the start of the program to the end of the last process.
//!
//! It gives every process that says hello a slot of the group and the descriptors it needs, keeps their
//! userfaultfds until they are gone, takes back what the dead leave behind, passes signals on, and samples what
//! the tree uses.
//!
//! A process is known by its pidfd, made when it connected, so that a pid that is used again fools nobody. Two
//! signs tell its end: end of file on its connection says that the program image is gone (it ended, or it became a
//! program without an agent); the pidfd says that the process is gone. Only then are its userfaultfds closed: up
//! to the last instruction of its last thread, a missing page must not read as zero. Where another process uses the same memory,
//! they are kept still (`kept_memory.rs`).
//!
//! Here is the loop; connections are in `door`, hellos and requests in `members`, what agents say to the user in `messages`, the
//! program that was asked for in `main_program`, signals and children in `children`, what the dead leave behind in `after_the_end`,
//! children that never arrived in `lost_forks`, shared memory in `shared_memory`, who is left without an agent in `abandoned`, and who waits too long in `stalls`.

mod abandoned;
mod after_the_end;
mod children;
mod door;
mod lost_forks;
mod main_program;
mod members;
mod messages;
mod shared_memory;
mod stalls;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use uswap_engine::group::Group;
use uswap_engine::protocol::Secret;
use uswap_sys::launch::SignalFd;
use uswap_sys::select;

use door::Door;
use lost_forks::LostForks;
pub use main_program::Ending;
use main_program::MainProgram;
use members::{Member, Stranger};
use messages::Messages;
use shared_memory::SharedMemory;
use stalls::Stalls;

use super::agent::Survivors;
use super::kept_memory::KeptMemory;
use super::nested::Nested;
use super::outside::Outside;
use super::stats::Peaks;
use super::user_anchors::UserAnchors;
use super::watchdog::OnStall;
use crate::failure::say;
use crate::stderr;
use crate::swap_area::OpenArea;

/// How often usage is sampled.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// How often descriptors are asked one by one, where they cannot be waited for together.
const ASK_EVERY: Duration = Duration::from_millis(2);
/// How long others may take to end after the main program, before they count as daemons.
const GRACE: Duration = Duration::from_millis(50);
/// How long processes that have not said hello may take to, or to end.
const GRACE_FOR_UNKNOWN: Duration = Duration::from_millis(300);
/// What all processes share.
pub struct Shared {
    /// The group.
    pub group: Group,
    /// Its memory file.
    pub group_fd: OwnedFd,
    /// /proc: a process may change its root directory.
    pub proc: OwnedFd,
    /// /dev/userfaultfd, if that is the way.
    pub device: Option<OwnedFd>,
    /// The swap areas.
    pub areas: Vec<OpenArea>,
    /// What proves that a process belongs here, and that we are its supervisor.
    pub secret: Secret,
    /// A child of ours that is not of the tree: it keeps the agent's path valid.
    pub anchor_pid: u32,
}

/// See the file's head.
pub struct Supervisor {
    shared: Shared,
    /// Keep the agent's path valid for users other than ours.
    pub user_anchors: UserAnchors,
    door: Door,
    messages: Messages,
    signals: SignalFd,
    tree: Tree,
    /// How far the tree has gone.
    pub seen: Seen,
    quiet: bool,
}

/// The processes of the tree.
struct Tree {
    main: MainProgram,
    members: Vec<Member>,
    /// Connected, but have not said hello.
    strangers: Vec<Stranger>,
    next_id: u64,
    lost_forks: LostForks,
    /// Of those that have ended, where somebody else still uses it.
    kept: KeptMemory,
    shared_memory: SharedMemory,
}

/// What is looked at in each turn.
pub struct Seen {
    /// The largest usage so far.
    pub peaks: Peaks,
    /// The tree as it is seen from outside.
    pub outside: Outside,
    nested: Nested,
    stalls: Stalls,
}

/// Who has something for us.
#[derive(Clone, Copy)]
enum Source {
    Signals,
    Messages,
    /// The shared-memory server.
    Server,
    Listener,
    Stranger(u64),
    Connection(u64),
    Process(u64),
}

impl Supervisor {
    /// Ready to serve; nothing has been started.
    pub fn new(
        shared: Shared,
        user_anchors: UserAnchors,
        listener: OwnedFd,
        signals: SignalFd,
        quiet: bool,
        on_stall: OnStall,
    ) -> io::Result<Supervisor> {
        let nested = Nested::find(&shared.group, quiet);
        Ok(Supervisor {
            shared,
            user_anchors,
            door: Door::new(listener)?,
            messages: Messages::new()?,
            signals,
            tree: Tree {
                main: MainProgram::new(),
                members: Vec::new(),
                strangers: Vec::new(),
                next_id: 0,
                lost_forks: LostForks::new(),
                kept: KeptMemory::default(),
                shared_memory: SharedMemory::default(),
            },
            seen: Seen { peaks: Peaks::default(), outside: Outside::new(), nested, stalls: Stalls::new(on_stall) },
            quiet,
        })
    }

    /// The group and the areas.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Serves until the main program, our child with this pid, has ended.
    pub fn until_main_ends(&mut self, main: u32) -> Ending {
        self.tree.main.begins(main);
        loop {
            self.turn(SAMPLE_EVERY);
            if let Some(ending) = self.tree.main.ending {
                return ending;
            }
        }
    }

    /// Gives the others a moment to end with the main program. True when somebody stays.
    pub fn somebody_stays(&mut self) -> bool {
        self.tree.main.pid = None;
        let main_ended = Instant::now();
        loop {
            self.reap_children();
            // Orphans are our children by now, and some may be between fork or exec and their hello.
            let unknown = !self.tree.strangers.iter().all(Stranger::is_late) || self.unknown_children() > 0;
            let nobody = self.tree.members.is_empty() && self.tree.kept.is_empty();
            let grace = match (unknown, nobody) {
                (false, true) => return false,
                (false, false) => GRACE,
                // Perhaps a program without agent, which needs nobody.
                (true, _) => GRACE_FOR_UNKNOWN,
            };
            if main_ended.elapsed() >= grace {
                return !nobody;
            }
            self.turn(Duration::from_millis(5));
        }
    }

    /// Who lives of root's tree beside members. Of another user's nobody has to know.
    pub fn survivors(&self) -> Survivors {
        let has_some = rustix::process::geteuid().is_root() && self.unknown_children() > 0;
        if has_some { Survivors::Unmanaged } else { Survivors::None }
    }

    /// Something else must have a descriptor: it gets the spare one, until the next turn.
    pub fn lend_descriptor(&mut self) {
        self.door.lends_spare();
    }

    fn is_anchor(&self, pid: u32) -> bool {
        pid == self.shared.anchor_pid || self.user_anchors.contains(pid) || self.tree.shared_memory.is_server(pid)
    }

    /// Serves until the last process has ended. For the process that stays behind for daemons. A signalfd tells the signals of
    /// who reads it, so the one that it has inherited is as good as a new one, which might not be had.
    pub fn until_all_end(&mut self) {
        while !self.is_alone() {
            self.turn(SAMPLE_EVERY);
        }
    }

    /// The last messages of the agents, and a last sample.
    pub fn finish(&mut self) {
        let until = Instant::now() + stderr::LAST_WORDS;
        self.messages.relay();
        while !stderr::flush() && stderr::drain(until.saturating_duration_since(Instant::now())) {
            self.messages.relay();
        }
        self.seen.peaks.sample(&self.shared.group);
        if let Some(line) = self.seen.outside.squeezed(&self.shared.group, true) {
            self.tell(line);
        }
    }

    /// Nobody is left who has shared memory.
    pub fn end_shared_memory(&mut self) {
        self.tree.shared_memory.end(self.shared.group.is_named_memory_mapped());
    }

    fn look_from_outside(&mut self) {
        let members = self.tree.members.iter().filter(|member| member.index.is_some()).map(|member| member.pid);
        let Shared { group, anchor_pid, .. } = &self.shared;
        let is_server = |pid| self.tree.shared_memory.is_server(pid);
        let is_anchor = |pid| pid == *anchor_pid || self.user_anchors.contains(pid) || is_server(pid);
        self.seen.outside.look(group, members, is_anchor);
        if let Some(line) = self.seen.outside.squeezed(group, false) {
            self.tell(line);
        }
    }

    fn is_alone(&self) -> bool {
        self.tree.members.is_empty() && self.tree.strangers.iter().all(Stranger::is_late) && self.tree.kept.is_empty()
    }

    /// Waits for something to happen, and handles it.
    fn turn(&mut self, at_most: Duration) {
        let mut ready = Vec::new();
        {
            let mut sources = vec![(Source::Signals, self.signals.as_fd())];
            if stderr::flush() {
                sources.push((Source::Messages, self.messages.arrive_at()));
            }
            sources.extend(self.tree.shared_memory.line().map(|line| (Source::Server, line)));
            sources.extend(self.door.listener().map(|listener| (Source::Listener, listener)));
            sources.extend(self.tree.strangers.iter().map(|s| (Source::Stranger(s.id), s.connection.as_fd())));
            for member in &self.tree.members {
                if let Some(connection) = &member.connection {
                    sources.push((Source::Connection(member.id), connection.as_fd()));
                }
                sources.push((Source::Process(member.id), member.pidfd.as_fd()));
            }
            let mut polled: Vec<PollFd<'_>> =
                sources.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            let timeout = Timespec::try_from(at_most.min(SAMPLE_EVERY)).ok();
            match rustix::event::poll(&mut polled, timeout.as_ref()) {
                Ok(_) => {
                    let with_events = polled.iter().zip(&sources).filter(|(fd, _)| !fd.revents().is_empty());
                    ready.extend(with_events.map(|(_, (source, _))| *source));
                }
                Err(Errno::INTR) => {}
                // There are more than our limit of descriptors is by now, or a filter refuses the call: they are asked one by one.
                Err(_) => {
                    std::thread::sleep(ASK_EVERY);
                    let is_ready = |fd| select::readable([fd], Some(&Timespec::default())).is_ok_and(|[ready]| ready);
                    ready.extend(sources.iter().filter(|(_, fd)| is_ready(*fd)).map(|(source, _)| *source));
                }
            }
        }
        self.door.goes_on();
        // Before the dead are taken out of the books: their last values count.
        self.seen.peaks.sample(&self.shared.group);
        self.seen.nested.update(&self.shared.group, self.quiet);
        self.look_from_outside();
        for source in ready {
            match source {
                Source::Signals => self.handle_signals(),
                Source::Messages => self.messages.relay(),
                // Heard below.
                Source::Server => {}
                Source::Listener => self.accept(),
                Source::Stranger(id) => self.greet(id),
                Source::Connection(id) => self.hear(id),
                Source::Process(id) => self.bury(id),
            }
        }
        // In every turn: several SIGCHLD may be one, and a thread of a preloaded library may have swallowed one.
        self.reap_children();
        self.look_after_shared_memory();
        self.look_after_the_ended();
        self.settle_what_is_left_behind();
        self.forget_lost_forks();
        self.watch();
        self.welcome_the_late();
        self.end_abandoned();
        self.forget_late_strangers();
        self.tree.main.tell_if_missed();
    }

    /// Says something, if the user wants to hear it.
    pub fn tell(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            say(text);
        }
    }
}
