//! What a process gets when it has said hello, also where it cannot be sent to it at once.
//!
//! A forked child of a process that swaps has nothing to go on with if it is refused. Many descriptors that are under way to others at a
//! time (each welcome carries some) are too many for a user only until those have read theirs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use uswap_engine::protocol::{self, FDS_MAX, Message, Refusal, TIME_TO_SEND, may_pass};

use super::super::Supervisor;

impl Supervisor {
    pub(super) fn welcome(&self, index: u32, connection: &OwnedFd) -> io::Result<()> {
        let mut fds: Vec<BorrowedFd<'_>> = Vec::with_capacity(FDS_MAX);
        fds.push(self.shared.group_fd.as_fd());
        fds.push(self.shared.proc.as_fd());
        fds.extend(self.shared.device.as_ref().map(|device| device.as_fd()));
        fds.push(self.messages.for_agents());
        fds.extend(self.shared.areas.iter().map(|area| area.fd.as_fd()));
        let welcome = Message::Welcome {
            index,
            generation: self.shared.group.process(index).life.generation.load(Relaxed),
            device: self.shared.device.is_some(),
            areas: self.shared.areas.len() as u32,
            proof: self.shared.secret.answer,
        };
        protocol::send(connection, &welcome, &fds)
    }

    /// Those who are members, and could not be told yet.
    pub(in super::super) fn welcome_the_late(&mut self) {
        let mut refused = Vec::new();
        let mut told = Vec::new();
        for member in &self.tree.members {
            let (Some(since), Some(index), Some(connection)) = (member.unwelcomed, member.index, &member.connection)
            else {
                continue;
            };
            match self.welcome(index, connection) {
                Ok(()) => told.push(member.id),
                Err(error) if may_pass(&error) && since.elapsed() < TIME_TO_SEND => {}
                Err(_) => {
                    let _ = protocol::send(connection, &Message::Refused(Refusal::Resources), &[]);
                    told.push(member.id);
                    refused.push(member.id);
                }
            }
        }
        for member in self.tree.members.iter_mut().filter(|member| told.contains(&member.id)) {
            member.unwelcomed = None;
            if refused.contains(&member.id) {
                // The end of it tells that, too, if the refusal could not be sent either.
                member.connection = None;
            }
        }
        refused.into_iter().for_each(|id| self.forget_image(id));
    }
}
