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
//! Here is the loop; connections are in `door`, hellos and messages in `members`, signals and children in `children`, what the
//! dead leave behind in `after_the_end`, and who is left without an agent in `abandoned`.

mod abandoned;
mod after_the_end;
mod children;
mod door;
mod members;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use uswap_engine::group::Group;
use uswap_engine::protocol::Token;
use uswap_sys::launch::SignalFd;

use after_the_end::LateForks;
use door::Door;
use members::{Member, Stranger};

use super::kept_memory::{KeptMemory, let_go_of_memory};
use super::nested::Nested;
use super::outside::Outside;
use super::processes::{is_stopped, session_of};
use super::stats::Peaks;
use super::user_anchors::UserAnchors;
use super::watchdog::{self, OnStall, Watchdog, Watched};
use crate::failure::{OURS, say};
use crate::stderr;
use crate::swap_area::OpenArea;

/// How often usage is sampled.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// How often forks that never arrived are looked for.
const FORK_CHECK_EVERY: Duration = Duration::from_secs(5);
/// How long others may take to end after the main program, before they count as daemons.
const GRACE: Duration = Duration::from_millis(50);
/// How long processes that have not said hello may take to, or to end.
const GRACE_FOR_UNKNOWN: Duration = Duration::from_millis(300);
/// How soon it is looked whether a main program that has not said hello is stopped: most say it within milliseconds.
const LOOK_WHETHER_STOPPED_AFTER: Duration = Duration::from_secs(1);
/// How long the main program has time to say hello, before the user is told that it may have no budget.
const TIME_TO_JOIN: Duration = Duration::from_secs(10);

/// How the main program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
    /// It was ended, because its pages did not come.
    Stalled,
    /// By its agent, which has said why.
    EndedByUs,
}

impl Ending {
    /// As a shell would say it.
    pub fn status(self) -> i32 {
        match self {
            Ending::Exited(status) => status,
            Ending::Signaled(signal) => 128 + signal,
            Ending::Stalled | Ending::EndedByUs => i32::from(OURS),
        }
    }
}

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
    /// What proves that a process belongs here.
    pub token: Token,
    /// A child of ours that is not of the tree: it keeps the agent's path valid.
    pub anchor_pid: u32,
}

/// See the file's head.
pub struct Supervisor {
    shared: Shared,
    /// Keep the agent's path valid for users other than ours.
    pub user_anchors: UserAnchors,
    door: Door,
    /// What the agents have to say to the user. They get the other end and never hold our standard error: a
    /// daemon's agent would keep somebody's pipe open.
    messages: OwnedFd,
    messages_write: OwnedFd,
    signals: SignalFd,
    members: Vec<Member>,
    /// Of those that have ended, where somebody else still uses it.
    kept: KeptMemory,
    next_id: u64,
    /// Connected, but have not said hello.
    strangers: Vec<Stranger>,
    main: Option<u32>,
    /// When it was, as long as it has not said hello.
    main_started: Option<Instant>,
    ending: Option<Ending>,
    /// The agent of the main program says that it ends it.
    ended_by_us: bool,
    /// A signal that stops a whole job has come to us.
    job_is_to_stop: Option<Instant>,
    /// We are the leader of our session.
    leads_session: bool,
    /// The largest usage so far.
    pub peaks: Peaks,
    /// The tree as it is seen from outside.
    pub outside: Outside,
    next_fork_check: Instant,
    /// Forks in flight as they were at the last check, by slot.
    late_forks: HashMap<u32, LateForks>,
    nested: Nested,
    quiet: bool,
    on_stall: OnStall,
    watchdog: Watchdog,
    /// The tree is being ended because of a stall.
    stalled: bool,
}

/// Who has something for us.
#[derive(Clone, Copy)]
enum Source {
    Signals,
    Messages,
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
        use rustix::pipe::PipeFlags;
        // Not blocking: an agent in the middle of a fault must not wait for a terminal that is stopped.
        let (messages, messages_write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A swap file that is damaged as a whole has a line for each page, and none may be missing: room for ten thousand.
        let _ = rustix::pipe::fcntl_setpipe_size(&messages, 1 << 20);
        let nested = Nested::find(&shared.group, quiet);
        Ok(Supervisor {
            nested,
            shared,
            user_anchors,
            door: Door::new(listener)?,
            messages,
            messages_write,
            signals,
            members: Vec::new(),
            kept: KeptMemory::default(),
            next_id: 0,
            strangers: Vec::new(),
            main: None,
            main_started: None,
            ending: None,
            ended_by_us: false,
            job_is_to_stop: None,
            leads_session: session_of(std::process::id()) == Some(std::process::id()),
            peaks: Peaks::default(),
            outside: Outside::new(),
            next_fork_check: Instant::now() + FORK_CHECK_EVERY,
            late_forks: HashMap::new(),
            quiet,
            on_stall,
            watchdog: Watchdog::new(),
            stalled: false,
        })
    }

    /// The group and the areas.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Serves until the main program, our child with this pid, has ended.
    pub fn until_main_ends(&mut self, main: u32) -> Ending {
        self.main = Some(main);
        self.main_started = Some(Instant::now());
        loop {
            self.turn(SAMPLE_EVERY);
            if let Some(ending) = self.ending {
                return ending;
            }
        }
    }

    /// Gives the others a moment to end with the main program. True when somebody stays.
    pub fn somebody_stays(&mut self) -> bool {
        self.main = None;
        let main_ended = Instant::now();
        loop {
            self.reap_children();
            // Orphans are our children by now, and some may be between fork or exec and their hello.
            let unknown = !self.strangers.iter().all(Stranger::is_late) || self.unknown_children() > 0;
            let nobody = self.members.is_empty() && self.kept.is_empty();
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

    /// Says once that the main program has never joined, also to who asked for quiet: nothing bounds its memory. Its loader
    /// may have been unable to load the agent, which is a line of its own, and no reason for it not to go on. One that is
    /// stopped says hello when it goes on, and has as much time for it as at its start.
    fn miss_main(&mut self) {
        let (Some(main), Some(started)) = (self.main, self.main_started) else { return };
        if started.elapsed() > LOOK_WHETHER_STOPPED_AFTER && is_stopped(main) {
            self.main_started = Some(Instant::now());
        } else if started.elapsed() > TIME_TO_JOIN {
            self.main_started = None;
            say("the program has not joined its group: it runs without a budget (see uswap doctor)");
        }
    }

    /// Something else must have a descriptor: it gets the spare one, until the next turn.
    pub fn lend_descriptor(&mut self) {
        self.door.lends_spare();
    }

    fn is_anchor(&self, pid: u32) -> bool {
        pid == self.shared.anchor_pid || self.user_anchors.contains(pid)
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
        self.relay_messages();
        while !stderr::flush() && stderr::drain(until.saturating_duration_since(Instant::now())) {
            self.relay_messages();
        }
        self.peaks.sample(&self.shared.group);
        if let Some(line) = self.outside.squeezed(&self.shared.group, true) {
            self.tell(line);
        }
    }

    fn look_from_outside(&mut self) {
        let members = self.members.iter().filter(|member| member.index.is_some()).map(|member| member.pid);
        let Shared { group, anchor_pid, .. } = &self.shared;
        let is_anchor = |pid| pid == *anchor_pid || self.user_anchors.contains(pid);
        self.outside.look(group, members, is_anchor);
        if let Some(line) = self.outside.squeezed(group, false) {
            self.tell(line);
        }
    }

    fn is_alone(&self) -> bool {
        self.members.is_empty() && self.strangers.iter().all(Stranger::is_late) && self.kept.is_empty()
    }

    /// Waits for something to happen, and handles it.
    fn turn(&mut self, at_most: Duration) {
        let mut ready = Vec::new();
        {
            let mut sources = vec![(Source::Signals, self.signals.as_fd())];
            if stderr::flush() {
                sources.push((Source::Messages, self.messages.as_fd()));
            }
            sources.extend(self.door.listener().map(|listener| (Source::Listener, listener)));
            sources.extend(self.strangers.iter().map(|s| (Source::Stranger(s.id), s.connection.as_fd())));
            for member in &self.members {
                if let Some(connection) = &member.connection {
                    sources.push((Source::Connection(member.id), connection.as_fd()));
                }
                sources.push((Source::Process(member.id), member.pidfd.as_fd()));
            }
            let mut polled: Vec<PollFd<'_>> =
                sources.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            let timeout = Timespec::try_from(at_most.min(SAMPLE_EVERY)).ok();
            if rustix::event::poll(&mut polled, timeout.as_ref()).is_ok() {
                let with_events = polled.iter().zip(&sources).filter(|(fd, _)| !fd.revents().is_empty());
                ready.extend(with_events.map(|(_, (source, _))| *source));
            }
        }
        self.door.goes_on();
        // Before the dead are taken out of the books: their last values count.
        self.peaks.sample(&self.shared.group);
        self.nested.update(&self.shared.group, self.quiet);
        self.look_from_outside();
        for source in ready {
            match source {
                Source::Signals => self.handle_signals(),
                Source::Messages => self.relay_messages(),
                Source::Listener => self.accept(),
                Source::Stranger(id) => self.greet(id),
                Source::Connection(id) => self.hear(id),
                Source::Process(id) => self.bury(id),
            }
        }
        // In every turn: several SIGCHLD may be one, and a thread of a preloaded library may have swallowed one.
        self.reap_children();
        self.look_after_the_ended();
        self.settle_what_is_left_behind();
        if Instant::now() >= self.next_fork_check {
            self.next_fork_check = Instant::now() + FORK_CHECK_EVERY;
            self.forget_lost_forks();
        }
        if self.watchdog.is_due() {
            self.watch();
        }
        self.welcome_the_late();
        self.end_abandoned();
        self.forget_late_strangers();
        self.miss_main();
    }

    // Stalls.

    fn watch(&mut self) {
        if self.stalled {
            self.kill_tree();
            return self.let_go_of_the_killed();
        }
        let group = &self.shared.group;
        let watched = self.members.iter().filter_map(|member| {
            let slot = group.process(member.index?);
            Some(Watched { id: member.id, pid: member.pid, uffds: &member.uffds, slot })
        });
        let Some(text) = self.watchdog.look(watched, self.on_stall == OnStall::Dump) else { return };
        // Also for who asked for quiet: nothing else will be said.
        stderr::write(text.as_bytes());
        if self.on_stall == OnStall::Kill {
            say("the tree is ended, because its pages do not come (--on-stall kill)");
            self.stalled = true;
            self.kill_tree();
        }
    }

    /// Of a stalled tree that has been killed: who waits for a page of a process that is over, its tracer perhaps, without which that
    /// process cannot be reaped, waits no longer.
    fn let_go_of_the_killed(&self) {
        for member in self.members.iter().filter(|member| watchdog::is_over(member.pid)) {
            let_go_of_memory(member.pid, &member.uffds);
        }
    }

    // Messages.

    /// What there is no room for stays in the pipe: the agents do not wait for it.
    fn relay_messages(&self) {
        let mut buffer = [0; 4096];
        while stderr::flush()
            && let Ok(count @ 1..) = rustix::io::read(&self.messages, &mut buffer)
        {
            // Who asked for quiet gets only what must be seen: the agents know.
            stderr::write(&buffer[..count]);
        }
    }

    /// Says something, if the user wants to hear it.
    pub fn tell(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            say(text);
        }
    }
}
