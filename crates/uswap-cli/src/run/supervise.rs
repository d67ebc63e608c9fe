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

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FallocateFlags;
use rustix::process::WaitOptions;
use uswap_engine::group::{AREAS_MAX, CLUSTER_SLOTS, Group, PAGE_BYTES, ProcessSlot, SlotState};
use uswap_engine::protocol::{self, FDS_MAX, Kind, Malformed, Message, Received, Refusal, Token};
use uswap_sys::launch::{self, SignalFd};

use super::kept_memory::KeptMemory;
use super::nested::Nested;
use super::outside::Outside;
use super::signals;
use super::stats::Peaks;
use super::user_anchors::UserAnchors;
use super::watchdog::{OnStall, Watchdog, Watched};
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
/// How long after it connected a process has time to say hello, which it does at once.
const TIME_FOR_HELLO: Duration = Duration::from_secs(5);
/// So many connections of other users may be silent at a time.
const STRANGERS_OF_OTHERS_MAX: usize = 64;
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

/// One process of the tree, from its hello to its end.
struct Member {
    /// Names this membership, not the process: it gets a new one with every exec.
    id: u64,
    pid: u32,
    /// Its slot, until the program image is gone.
    index: Option<u32>,
    pidfd: OwnedFd,
    connection: Option<OwnedFd>,
    uffds: Vec<OwnedFd>,
}

/// Somebody who has connected. The name of our socket is no secret, so it may be anybody.
struct Stranger {
    id: u64,
    connection: OwnedFd,
    since: Instant,
    /// A process of another user than ours: one of the tree that has become somebody else, or none of it.
    of_others: bool,
}

impl Stranger {
    fn new(id: u64, connection: OwnedFd) -> Stranger {
        let ours = rustix::process::geteuid().as_raw();
        let of_others = launch::peer_user(connection.as_fd()).is_ok_and(|(user, _)| user != ours);
        Stranger { id, connection, since: Instant::now(), of_others }
    }

    fn is_late(&self) -> bool {
        self.since.elapsed() > TIME_FOR_HELLO
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

/// Forks of a process whose children have not said hello.
#[derive(Clone, Copy)]
struct LateForks {
    in_flight: u32,
    /// Those that had ever begun.
    begun: u32,
}

impl LateForks {
    fn of(slot: &ProcessSlot) -> LateForks {
        // In this order: none is in flight that is not among those that began.
        let in_flight = slot.forks_in_flight();
        LateForks { in_flight, begun: slot.forks_begun() }
    }
}

/// See the file's head.
pub struct Supervisor {
    shared: Shared,
    /// Keep the agent's path valid for users other than ours.
    pub user_anchors: UserAnchors,
    listener: OwnedFd,
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
    listening: bool,
    main: Option<u32>,
    /// When it was, as long as it has not said hello.
    main_started: Option<Instant>,
    ending: Option<Ending>,
    /// The agent of the main program says that it ends it.
    ended_by_us: bool,
    /// A signal that stops a whole job has come to us.
    job_is_to_stop: bool,
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
            listener,
            messages,
            messages_write,
            signals,
            members: Vec::new(),
            kept: KeptMemory::default(),
            next_id: 0,
            strangers: Vec::new(),
            listening: true,
            main: None,
            main_started: None,
            ending: None,
            ended_by_us: false,
            job_is_to_stop: false,
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

    fn is_anchor(&self, pid: u32) -> bool {
        pid == self.shared.anchor_pid || self.user_anchors.contains(pid)
    }

    /// Children of ours that are neither members nor anchors.
    fn unknown_children(&self) -> usize {
        let unknown = |pid: u32| !self.is_anchor(pid) && !self.members.iter().any(|m| m.pid == pid);
        let me = std::process::id();
        match fs::read_to_string("/proc/thread-self/children") {
            Ok(list) => list.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| unknown(*pid)).count(),
            // A kernel without CONFIG_PROC_CHILDREN.
            Err(_) => parents_of_all_processes().iter().filter(|(pid, of)| *of == me && unknown(*pid)).count(),
        }
    }

    /// Serves until the last process has ended. For the process that stays behind for daemons: its signals are its
    /// own.
    pub fn until_all_end(&mut self) -> io::Result<()> {
        self.signals = SignalFd::new(&signals::watched())?;
        while !self.is_alone() {
            self.turn(SAMPLE_EVERY);
        }
        Ok(())
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
            if self.listening {
                sources.push((Source::Listener, self.listener.as_fd()));
            }
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
        self.listening = true;
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
        if Instant::now() >= self.next_fork_check {
            self.next_fork_check = Instant::now() + FORK_CHECK_EVERY;
            self.forget_lost_forks();
        }
        if self.watchdog.is_due() {
            self.watch();
        }
        self.forget_late_strangers();
        self.miss_main();
    }

    // Stalls.

    fn watch(&mut self) {
        if self.stalled {
            return self.kill_tree();
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

    /// Everything that we or those below us have started, and whoever has said hello.
    fn kill_tree(&self) {
        let parents: HashMap<u32, u32> = parents_of_all_processes().into_iter().collect();
        let me = std::process::id();
        let is_below = |pid: u32| {
            let line = std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(parents.len() + 1);
            line.skip(1).any(|parent| parent == me)
        };
        for pid in parents.keys().copied().filter(|pid| is_below(*pid) && !self.is_anchor(*pid)) {
            let _ = launch::send_signal(pid, libc::SIGKILL);
        }
        for member in &self.members {
            let _ = rustix::process::pidfd_send_signal(&member.pidfd, rustix::process::Signal::KILL);
        }
    }

    // Signals.

    fn handle_signals(&mut self) {
        while let Some(info) = self.signals.read() {
            if info.signal == libc::SIGCHLD {
                continue;
            }
            self.job_is_to_stop |= signals::asks_for_job_stop(info.signal);
            let from_tree = info.sender_pid != 0
                && (Some(info.sender_pid) == self.main || self.members.iter().any(|m| m.pid == info.sender_pid));
            if let Some(main) = self.main
                && signals::is_to_be_forwarded(&info, from_tree, self.leads_session)
            {
                let _ = launch::send_signal(main, info.signal);
            }
        }
    }

    /// Collects the status of every child that ended: the main program, and orphans of the tree, which became ours
    /// because we are a subreaper.
    fn reap_children(&mut self) {
        loop {
            let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
            let Ok(Some((pid, status))) = rustix::process::wait(options) else {
                return;
            };
            let pid = pid.as_raw_nonzero().get() as u32;
            if self.main != Some(pid) {
                self.user_anchors.ended(pid, status);
                continue;
            }
            if let Some(code) = status.exit_status() {
                self.ending = Some(Ending::Exited(code));
            } else if let Some(signal) = status.terminating_signal() {
                self.look_for_end_by_us(pid);
                self.ending = Some(match (self.stalled, self.ended_by_us) {
                    (true, _) => Ending::Stalled,
                    (false, true) => Ending::EndedByUs,
                    (false, false) => Ending::Signaled(signal),
                });
            } else if status.stopping_signal().is_some_and(signals::is_job_stop) {
                self.stop_with_job(pid);
            }
        }
    }

    /// Ctrl-Z: the shell waits for us to stop, and SIGCONT comes to us as to the program. But one that was stopped alone,
    /// with nobody who waits at a terminal, is continued alone as well, and we have to be there when it ends.
    fn stop_with_job(&mut self, main: u32) {
        // Ours may have come after the last look.
        self.handle_signals();
        let foreground = || {
            let (group, foreground) = job_of(std::process::id())?;
            Some(foreground == group || job_of(main).is_some_and(|(of_main, _)| foreground == of_main))
        };
        if std::mem::take(&mut self.job_is_to_stop) || foreground() == Some(true) {
            launch::stop_self();
        }
    }

    /// To be asked before the slot of a process is given up.
    fn look_for_end_by_us(&mut self, pid: u32) {
        let group = &self.shared.group;
        let mut slots = self.members.iter().filter(|member| member.pid == pid).filter_map(|member| member.index);
        if self.main == Some(pid) && slots.any(|index| group.process(index).ended_by_agent.load(Acquire) != 0) {
            self.ended_by_us = true;
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

    // Members.

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn accept(&mut self) {
        use rustix::net::SocketFlags;
        loop {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(connection) => {
                    let id = self.new_id();
                    self.strangers.push(Stranger::new(id, connection));
                    self.make_room_for_strangers();
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => {
                    // Out of descriptors: whoever knocks waits until the next turn, and so do we.
                    self.listening = false;
                    return;
                }
            }
        }
    }

    /// The oldest of other users go when there are too many, but not before it has been looked whether they have just said
    /// hello.
    fn make_room_for_strangers(&mut self) {
        while self.strangers.iter().filter(|stranger| stranger.of_others).count() > STRANGERS_OF_OTHERS_MAX {
            let oldest = self.strangers.iter().find(|stranger| stranger.of_others).map(|stranger| stranger.id);
            let Some(oldest) = oldest else { return };
            self.greet(oldest);
            self.strangers.retain(|stranger| stranger.id != oldest);
        }
    }

    /// Those of other users who are late go. One of our own user may have been stopped before its hello, and does no harm.
    fn forget_late_strangers(&mut self) {
        let late = |stranger: &Stranger| stranger.of_others && stranger.is_late();
        let ids: Vec<u64> =
            self.strangers.iter().filter(|stranger| late(stranger)).map(|stranger| stranger.id).collect();
        ids.iter().for_each(|id| self.greet(*id));
        self.strangers.retain(|stranger| !late(stranger));
    }

    /// A stranger says hello, or goes away.
    fn greet(&mut self, id: u64) {
        let Some(at) = self.strangers.iter().position(|stranger| stranger.id == id) else {
            return;
        };
        let message = match protocol::receive(&self.strangers[at].connection) {
            Ok(Received::Nothing) => return,
            other => other,
        };
        // The oldest stay in front.
        let Stranger { id, connection, .. } = self.strangers.remove(at);
        let refuse = |refusal| {
            let _ = protocol::send(&connection, &Message::Refused(refusal), &[]);
        };
        match message {
            Ok(Received::Message(Message::Hello { token, kind, .. }, _)) => {
                if !token.matches(&self.shared.token) {
                    return refuse(Refusal::WrongToken);
                }
                match self.admit(id, kind, &connection) {
                    Ok(member) => self.members.push(Member { connection: Some(connection), ..member }),
                    Err(refusal) => refuse(refusal),
                }
            }
            Ok(Received::Message(Message::AskAgent { token }, _)) => {
                if !token.matches(&self.shared.token) {
                    return refuse(Refusal::WrongToken);
                }
                // Whoever has ended is no anchor any more.
                self.reap_children();
                match self.user_anchors.file_for(&connection) {
                    Ok(file) => drop(protocol::send(&connection, &Message::AgentAt(file), &[])),
                    Err(refusal) => refuse(refusal),
                }
            }
            Ok(Received::Malformed(Malformed::Version)) => refuse(Refusal::WrongVersion),
            _ => {}
        }
    }

    /// Gives a process its slot and its descriptors.
    fn admit(&mut self, id: u64, kind: Kind, connection: &OwnedFd) -> Result<Member, Refusal> {
        let (pid, pidfd) = launch::peer_process(connection.as_fd()).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Refusal::Invisible,
            _ => Refusal::Resources,
        })?;
        if pid == 0 {
            return Err(Refusal::Invisible);
        }
        if self.main == Some(pid) {
            self.main_started = None;
        }
        // The same process with a new program, or a new process with the pid of one that has just ended. Either
        // way, what was there is no more.
        if let Some(at) = self.members.iter().position(|member| member.pid == pid) {
            let before = self.members.swap_remove(at);
            self.kept.keep(pid, before.uffds);
            if let Some(index) = before.index {
                self.retire(index);
            }
        }
        let group = &self.shared.group;
        if let Kind::Fork { parent, generation } = kind {
            let known = (parent as usize) < uswap_engine::group::PROCESSES_MAX && {
                let slot = group.process(parent);
                slot.state() != SlotState::Free && slot.generation.load(Relaxed) == generation
            };
            if !known {
                return Err(Refusal::UnknownParent);
            }
        }
        let Some(index) = group.allot(pid) else {
            if let Kind::Fork { parent, .. } = kind {
                group.process(parent).fork_failed();
            }
            return Err(Refusal::Full);
        };
        if let Kind::Fork { parent, .. } = kind {
            group.fork_arrived(parent, index);
        }
        let mut fds: Vec<BorrowedFd<'_>> = Vec::with_capacity(FDS_MAX);
        fds.push(self.shared.group_fd.as_fd());
        fds.push(self.shared.proc.as_fd());
        fds.extend(self.shared.device.as_ref().map(|device| device.as_fd()));
        fds.push(self.messages_write.as_fd());
        fds.extend(self.shared.areas.iter().map(|area| area.fd.as_fd()));
        let welcome = Message::Welcome {
            index,
            generation: group.process(index).generation.load(Relaxed),
            device: self.shared.device.is_some(),
            areas: self.shared.areas.len() as u32,
        };
        // When it does not arrive, the process is gone; its pidfd will say so.
        let _ = protocol::send(connection, &welcome, &fds);
        Ok(Member { id, pid, index: Some(index), pidfd, connection: None, uffds: Vec::new() })
    }

    /// A member has sent something, or its program image is gone.
    fn hear(&mut self, id: u64) {
        let Some(member) = self.members.iter_mut().find(|member| member.id == id) else {
            return;
        };
        loop {
            let Some(connection) = &member.connection else {
                return;
            };
            match protocol::receive(connection) {
                Ok(Received::Message(Message::KeepUffd, fds)) => member.uffds.extend(fds),
                Ok(Received::Message(Message::CannotJoin, _)) => say(format_args!(
                    "process {} cannot join its group, because it may have too few descriptors (ulimit -n)",
                    member.pid
                )),
                Ok(Received::Nothing) => return,
                // Nothing else is ever sent. Who does so is not our agent.
                Ok(Received::Message(..) | Received::Malformed(_)) => {}
                Ok(Received::EndOfFile) | Err(_) => {
                    member.connection = None;
                    let pid = member.pid;
                    self.look_for_end_by_us(pid);
                    return self.forget_image(id);
                }
            }
        }
    }

    /// The program image of a member is gone.
    fn forget_image(&mut self, id: u64) {
        let member = self.members.iter_mut().find(|member| member.id == id);
        if let Some(index) = member.and_then(|member| member.index.take()) {
            self.retire(index);
        }
    }

    /// A member has ended.
    fn bury(&mut self, id: u64) {
        let Some(at) = self.members.iter().position(|member| member.id == id) else {
            return;
        };
        self.look_for_end_by_us(self.members[at].pid);
        let member = self.members.swap_remove(at);
        self.kept.keep(member.pid, member.uffds);
        if let Some(index) = member.index {
            self.retire(index);
        }
    }

    /// Nobody reads zeros where those who have ended had swapped out.
    fn look_after_the_ended(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let mut kept = std::mem::take(&mut self.kept);
        let may_wait = |pid: u32| !self.is_anchor(pid) && !self.members.iter().any(|member| member.pid == pid);
        kept.look(parents_of_all_processes, may_wait);
        self.kept = kept;
    }

    /// A program image is gone: its counts go to the totals, its clusters to whoever needs some, unless children
    /// still read them.
    fn retire(&mut self, index: u32) {
        self.peaks.sample(&self.shared.group);
        self.shared.group.retire(index);
        self.late_forks.remove(&index);
        self.sweep();
    }

    fn sweep(&self) {
        let group = &self.shared.group;
        loop {
            let reapable: Vec<u32> = group.reapable().collect();
            if reapable.is_empty() {
                return;
            }
            for index in reapable {
                for (number, area) in self.shared.areas.iter().enumerate().take(AREAS_MAX) {
                    settle(group, number, area, index);
                }
                group.reap(index);
            }
        }
    }

    /// A child that was killed between fork and hello will never say it. What its parent counts of forks in flight that had
    /// begun when it was last looked is compared with the children that could be meant. The children of a dead
    /// parent are ours, because we are a subreaper; but not those of the process that stays behind for daemons,
    /// which refuses a child that was so slow.
    fn forget_lost_forks(&mut self) {
        let group = &self.shared.group;
        let late: HashMap<u32, LateForks> = group
            .taken()
            .map(|(index, slot)| (index, LateForks::of(slot)))
            .filter(|(_, forks)| forks.in_flight > 0)
            .collect();
        let before = std::mem::replace(&mut self.late_forks, late);
        let suspects: Vec<(u32, LateForks, u32)> = before
            .into_iter()
            .filter_map(|(index, before)| {
                let forks = *self.late_forks.get(&index)?;
                let young = forks.begun.wrapping_sub(before.begun);
                (young < forks.in_flight).then_some((index, forks, young))
            })
            .collect();
        if suspects.is_empty() {
            return;
        }
        let processes = parents_of_all_processes();
        if !processes.iter().any(|(pid, _)| *pid == std::process::id()) {
            // It cannot be told who lives.
            return;
        }
        for (index, forks, young) in suspects {
            let slot = group.process(index);
            let parent = match slot.state() {
                SlotState::Dead => std::process::id(),
                _ => slot.pid.load(Relaxed),
            };
            let unknown = |pid: u32| {
                !self.is_anchor(pid) && !self.members.iter().any(|member| member.pid == pid && member.index.is_some())
            };
            let possible = processes.iter().filter(|(pid, of)| *of == parent && unknown(*pid)).count();
            // Those that have begun since may have no child yet.
            slot.forks_in_flight_are(forks.in_flight, young.saturating_add(possible as u32));
        }
        self.sweep();
    }

    /// Says something, if the user wants to hear it.
    pub fn tell(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            say(text);
        }
    }
}

/// Gives the space of a dead process's clusters back to the file system, and waits for writes that it had started:
/// a late one must not land in the pages of the next owner. The kernel does both in one: fallocate(2) waits for
/// direct I/O under way.
fn settle(group: &Group, number: usize, area: &OpenArea, process: u32) {
    let mode = match area.config.punch_holes {
        true => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        // The blocks have to stay, their content may go.
        false => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    };
    let cluster_bytes = CLUSTER_SLOTS * PAGE_BYTES;
    let end_of_area = area.config.slots * PAGE_BYTES;
    let mut run: Option<(u64, u64)> = None;
    let free = |(start, end): (u64, u64)| {
        // Page 0 is the header.
        let start = start.max(PAGE_BYTES);
        let end = end.min(end_of_area);
        if start < end {
            // Where the file system cannot, the blocks are simply written over later.
            let _ = rustix::fs::fallocate(&area.fd, mode, start, end - start);
        }
    };
    for cluster in group.clusters_of(number, process) {
        let start = u64::from(cluster) * cluster_bytes;
        run = match run {
            Some((first, end)) if end == start => Some((first, start + cluster_bytes)),
            before => {
                before.into_iter().for_each(free);
                Some((start, start + cluster_bytes))
            }
        };
    }
    run.into_iter().for_each(free);
}

/// All processes that we can see, with their parents.
fn parents_of_all_processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let look = |entry: io::Result<fs::DirEntry>| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Some((pid, parent_of(pid)?))
    };
    entries.filter_map(look).collect()
}

/// The parent of a process that lives.
pub fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state ppid ...; the name may have anything in it.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z").then_some(parent)
}

/// Whether a process is stopped, by a signal or by who traces it.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['T', 't']))
}

/// The process group of a process, and the one in the foreground of its terminal, if it has one.
fn job_of(pid: u32) -> Option<(i32, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state ppid pgrp session tty_nr tpgid ...
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(2);
    let group = fields.next()?.parse().ok()?;
    Some((group, fields.nth(2)?.parse().ok()?))
}

/// The session of a process: 0 where its leader is outside of our pid namespace.
fn session_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state ppid pgrp session ...
    stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_leads_a_session_is_known() {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new("cat");
        let mut leader = command.stdin(std::process::Stdio::piped()).process_group(0).spawn().unwrap();
        let own = session_of(std::process::id());
        assert!(own.is_some() && session_of(leader.id()) == own, "one that only leads a group is in ours");
        drop(leader.stdin.take());
        leader.wait().unwrap();
    }

    #[test]
    fn our_own_parent_is_found() {
        let parents = parents_of_all_processes();
        let parent = std::os::unix::process::parent_id();
        assert!(parents.contains(&(std::process::id(), parent)));
    }

    #[test]
    fn a_stopped_process_is_told_from_one_that_runs() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for (signal, stopped) in [(libc::SIGSTOP, true), (libc::SIGCONT, false)] {
            launch::send_signal(child.id(), signal).unwrap();
            let until = Instant::now() + Duration::from_secs(10);
            while is_stopped(child.id()) != stopped {
                assert!(Instant::now() < until, "after signal {signal}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
