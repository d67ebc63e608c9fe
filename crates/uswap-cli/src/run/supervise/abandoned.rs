//! Processes whose agent has ended without them, as by a seccomp filter that ends threads: nobody brings their pages in, and their
//! threads would wait for ever.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};
use uswap_sys::uffd::Uffd;

use super::Supervisor;
use super::members::Member;
use crate::failure::say;
use crate::run::kept_memory::has_managed_memory;
use crate::run::watchdog;

/// How long after its agent a process that ends, or executes, has done so: on a machine where many wait for a processor that takes seconds.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

impl Supervisor {
    /// Those whose agent is gone; and those who wait for their pages, and whose monitor is: what it had locked stays locked.
    pub(super) fn end_abandoned(&mut self) {
        let (main, stalled) = (self.tree.main.pid, self.seen.stalls.watchdog.take_abandoned());
        for member in &mut self.tree.members {
            let is_without = member.without_agent.is_some_and(|since| since.elapsed() > ENDS_WITHIN)
                // Else it is looked at again.
                && !watchdog::is_ending(member.pid);
            if is_without {
                // What it executes from now on has memory of its own.
                member.without_agent = None;
            }
            if stalled.contains(&member.id) || is_without && needs_its_agent(member) {
                say(format_args!(
                    "process {} is ended: threads of uswap's in it have been ended, as by a seccomp filter, and its memory is \
                     partly swapped out",
                    member.pid
                ));
                self.tree.main.ended_by_us |= main == Some(member.pid);
                let _ = pidfd_send_signal(&member.pidfd, Signal::KILL);
            }
        }
    }
}

/// Whether its memory is still there, and its own: a child of vfork may have that of an image that is gone.
fn needs_its_agent(member: &Member) -> bool {
    let is_there = |uffd: &OwnedFd| uffd.try_clone().is_ok_and(|uffd| Uffd::received(uffd).has_memory());
    member.uffds.iter().any(is_there) && has_managed_memory(member.pid)
}
