//! Who has connected, who has said hello, and what members send.

mod welcome;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use uswap_engine::group::{Holder, ProcessSlot, SlotState};
use uswap_engine::protocol::{self, Kind, Malformed, Message, Received, Refusal};
use uswap_sys::launch;

use super::Supervisor;
use super::door::placeholder;
use crate::failure::say;

/// How long after it connected a process has time to say hello, which it does at once.
const TIME_FOR_HELLO: Duration = Duration::from_secs(5);
/// So many connections of other users may be silent at a time.
const STRANGERS_OF_OTHERS_MAX: usize = 64;

/// So many connections are taken up at a time.
const ACCEPTED_AT_ONCE: usize = 64;

/// One process of the tree, from its hello to its end.
pub(super) struct Member {
    /// Names this membership, not the process: it gets a new one with every exec.
    pub id: u64,
    pub pid: u32,
    /// Its slot, until the program image is gone.
    pub index: Option<u32>,
    pub pidfd: OwnedFd,
    pub connection: Option<OwnedFd>,
    pub uffds: Vec<OwnedFd>,
    /// In its place the userfaultfd comes, of which a program image has one at most. Without it that could be lost for want of a
    /// descriptor, and nobody would notice before missing pages read as zeros.
    room: Option<OwnedFd>,
    /// Since when its welcome cannot be sent.
    unwelcomed: Option<Instant>,
    /// Since when its agent is gone.
    pub without_agent: Option<Instant>,
}

impl Member {
    /// Userfaultfds that it has sent, and that nobody has received yet.
    fn take_what_was_sent(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        self.room = None;
        while let Ok(Received::Message(message, fds)) = protocol::receive(&connection) {
            if matches!(message, Message::KeepUffd) {
                self.uffds.extend(fds);
            }
        }
    }

    /// What its last thread reads after a kill could be zeros. There was room for what our agent sends, so this one sends more, or
    /// the system as a whole has too few.
    fn end_without_userfaultfd(&self, slot: Option<&ProcessSlot>) {
        say(format_args!(
            "process {} is ended: its userfaultfd cannot be kept, because the supervisor ran out of descriptors (ulimit -Hn)",
            self.pid
        ));
        if let Some(slot) = slot {
            slot.life.ended_by_agent.store(1, Release);
        }
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }
}

/// Somebody who has connected. The name of our socket is no secret, so it may be anybody.
pub(super) struct Stranger {
    pub id: u64,
    pub connection: OwnedFd,
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

    pub fn is_late(&self) -> bool {
        self.since.elapsed() > TIME_FOR_HELLO
    }
}

impl Supervisor {
    fn new_id(&mut self) -> u64 {
        self.tree.next_id += 1;
        self.tree.next_id
    }

    pub(super) fn accept(&mut self) {
        // No more at a time: anybody may connect, as fast as he likes, and others wait for the rest of this turn.
        for _ in 0..ACCEPTED_AT_ONCE {
            let Some(connection) = self.door.accept() else { return };
            let id = self.new_id();
            self.tree.strangers.push(Stranger::new(id, connection));
            self.make_room_for_strangers();
        }
    }

    /// The oldest of other users go when there are too many, but not before it has been looked whether they have just said
    /// hello. They are told nothing: one of ours that was stopped connects again when it goes on.
    fn make_room_for_strangers(&mut self) {
        while self.tree.strangers.iter().filter(|stranger| stranger.of_others).count() > STRANGERS_OF_OTHERS_MAX {
            let oldest = self.tree.strangers.iter().find(|stranger| stranger.of_others).map(|stranger| stranger.id);
            let Some(oldest) = oldest else { return };
            self.greet(oldest);
            self.tree.strangers.retain(|stranger| stranger.id != oldest);
        }
    }

    /// Those of other users who are late go. One of our own user may have been stopped before its hello, and does no harm.
    pub(super) fn forget_late_strangers(&mut self) {
        let late = |stranger: &Stranger| stranger.of_others && stranger.is_late();
        let ids: Vec<u64> =
            self.tree.strangers.iter().filter(|stranger| late(stranger)).map(|stranger| stranger.id).collect();
        ids.iter().for_each(|id| self.greet(*id));
        self.tree.strangers.retain(|stranger| !late(stranger));
    }

    /// A stranger says hello, or goes away.
    pub(super) fn greet(&mut self, id: u64) {
        let Some(at) = self.tree.strangers.iter().position(|stranger| stranger.id == id) else {
            return;
        };
        let message = match protocol::receive(&self.tree.strangers[at].connection) {
            Ok(Received::Nothing) => return,
            other => other,
        };
        // The oldest stay in front.
        let Stranger { id, connection, .. } = self.tree.strangers.remove(at);
        let refuse = |refusal| {
            let _ = protocol::send(&connection, &Message::Refused(refusal), &[]);
        };
        match message {
            Ok(Received::Message(Message::Hello { token, kind, .. }, _)) => {
                if !token.matches(&self.shared.secret.question) {
                    return refuse(Refusal::WrongToken);
                }
                // Its userfaultfds.
                let _ = launch::let_descriptors_in(connection.as_fd(), true);
                match self.admit(id, kind, &connection) {
                    Ok(member) => self.tree.members.push(Member { connection: Some(connection), ..member }),
                    Err(refusal) => refuse(refusal),
                }
            }
            Ok(Received::Message(Message::AskAgent { token }, _)) => {
                if !token.matches(&self.shared.secret.question) {
                    return refuse(Refusal::WrongToken);
                }
                // Whoever has ended is no anchor any more, and makes room for another.
                self.reap_children();
                match self.user_anchors.file_for(&connection) {
                    Ok(file) => {
                        let proof = self.shared.secret.answer;
                        let _ = protocol::send(&connection, &Message::AgentAt { file, proof }, &[]);
                    }
                    Err(refusal) => refuse(refusal),
                }
            }
            Ok(Received::EndOfFile) => {}
            Ok(Received::Malformed(Malformed::Descriptors)) | Err(_) => refuse(Refusal::Resources),
            // What our agent never says.
            Ok(Received::Message(..) | Received::Malformed(_) | Received::Nothing) => refuse(Refusal::WrongVersion),
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
        if self.tree.main.is(pid) {
            self.tree.main.joins();
        }
        // The same process with a new program, or a new process with the pid of one that has just ended. Either
        // way, what was there is no more.
        if let Some(at) = self.tree.members.iter().position(|member| member.pid == pid) {
            let mut before = self.tree.members.swap_remove(at);
            before.take_what_was_sent();
            self.tree.kept.keep(pid, before.uffds);
            if let Some(index) = before.index {
                self.retire(index);
            }
        }
        let Some(room) = placeholder(&self.shared.proc).ok() else {
            self.forget_fork(kind);
            return Err(Refusal::Resources);
        };
        let index = self.place(pid, kind)?;
        let unwelcomed = match self.welcome(index, connection) {
            Ok(()) => None,
            Err(error) if protocol::may_pass(&error) => Some(Instant::now()),
            Err(_) => {
                self.retire(index);
                return Err(Refusal::Resources);
            }
        };
        let (index, room) = (Some(index), Some(room));
        Ok(Member { id, pid, index, pidfd, connection: None, uffds: Vec::new(), room, unwelcomed, without_agent: None })
    }

    fn is_known(&self, parent: u32, generation: u32) -> bool {
        (parent as usize) < uswap_engine::group::PROCESSES_MAX && {
            let slot = self.shared.group.process(parent);
            slot.state() != SlotState::Free && slot.life.generation.load(Relaxed) == generation
        }
    }

    /// A child will not join its group.
    fn forget_fork(&self, kind: Kind) {
        if let Kind::Fork { parent, generation } = kind
            && self.is_known(parent, generation)
        {
            self.shared.group.process(parent).fork_failed();
        }
    }

    /// A slot of the group, and what the process inherits there.
    fn place(&self, pid: u32, kind: Kind) -> Result<u32, Refusal> {
        let group = &self.shared.group;
        if let Kind::Fork { parent, generation } = kind
            && !self.is_known(parent, generation)
        {
            return Err(Refusal::UnknownParent);
        }
        let Some(index) = group.allot(pid) else {
            self.forget_fork(kind);
            return Err(Refusal::Full);
        };
        if let Kind::Fork { parent, .. } = kind {
            group.fork_arrived(parent, index);
        }
        Ok(index)
    }

    /// A member has sent something, or its program image is gone.
    pub(super) fn hear(&mut self, id: u64) {
        let Some(member) = self.tree.members.iter_mut().find(|member| member.id == id) else {
            return;
        };
        member.room = None;
        loop {
            let Some(connection) = &member.connection else {
                return;
            };
            match protocol::receive(connection) {
                Ok(Received::Message(Message::KeepUffd, fds)) => member.uffds.extend(fds),
                Ok(Received::Message(
                    message @ (Message::SharedObject { .. }
                    | Message::SharedClient { .. }
                    | Message::SharedNamed { .. }
                    | Message::SharedChanged { .. }),
                    mut fds,
                )) => {
                    if let (Some(fd), Some(index)) = (fds.next(), member.index) {
                        let generation = self.shared.group.process(index).life.generation.load(Acquire);
                        self.tree.shared_memory.hand_over(message, fd, member.pid, Holder { index, generation });
                    }
                }
                Ok(Received::Message(Message::CannotJoin, _)) => say(format_args!(
                    "process {} cannot join its group, because it may have too few descriptors (ulimit -n)",
                    member.pid
                )),
                Ok(Received::Nothing) => {
                    if member.uffds.is_empty() {
                        member.room = placeholder(&self.shared.proc).ok();
                    }
                    return;
                }
                Ok(Received::Malformed(Malformed::Descriptors)) => {
                    let slot = member.index.map(|index| self.shared.group.process(index));
                    member.end_without_userfaultfd(slot);
                }
                // Nothing else is ever sent. Who does so is not our agent.
                Ok(Received::Message(..) | Received::Malformed(_)) => {}
                Ok(Received::EndOfFile) | Err(_) => {
                    member.connection = None;
                    member.without_agent = Some(Instant::now());
                    let pid = member.pid;
                    self.look_for_end_by_us(pid);
                    return self.forget_image(id);
                }
            }
        }
    }

    /// The program image of a member is gone.
    fn forget_image(&mut self, id: u64) {
        let member = self.tree.members.iter_mut().find(|member| member.id == id);
        if let Some(index) = member.and_then(|member| member.index.take()) {
            self.retire(index);
        }
    }

    /// A member has ended.
    pub(super) fn bury(&mut self, id: u64) {
        let Some(at) = self.tree.members.iter().position(|member| member.id == id) else {
            return;
        };
        self.look_for_end_by_us(self.tree.members[at].pid);
        let mut member = self.tree.members.swap_remove(at);
        member.take_what_was_sent();
        self.tree.kept.keep(member.pid, member.uffds);
        if let Some(index) = member.index {
            self.retire(index);
        }
    }
}

#[cfg(test)]
mod tests;
