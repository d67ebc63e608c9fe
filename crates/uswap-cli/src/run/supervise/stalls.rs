//! Faults that are not answered: who is told, and what is done.

use super::super::kept_memory::let_go_of_memory;
use super::super::watchdog::{self, OnStall, Watchdog, Watched};
use super::{Ending, Supervisor};
use crate::failure::say;
use crate::stderr;

/// The watchdog, and what it is for.
pub(super) struct Stalls {
    pub watchdog: Watchdog,
    on_stall: OnStall,
}

impl Stalls {
    pub fn new(on_stall: OnStall) -> Stalls {
        Stalls { watchdog: Watchdog::new(), on_stall }
    }
}

impl Supervisor {
    /// Looks for stalls, if it is time for that.
    pub(super) fn watch(&mut self) {
        if !self.seen.stalls.watchdog.is_due() {
            return;
        }
        if let Some(ending) = self.tree.main.tree_ends {
            self.end_tree(ending);
            return self.let_go_of_the_killed();
        }
        let group = &self.shared.group;
        let watched = self.tree.members.iter().filter_map(|member| {
            let slot = group.process(member.index?);
            Some(Watched { id: member.id, pid: member.pid, uffds: &member.uffds, slot })
        });
        let Stalls { watchdog, on_stall } = &mut self.seen.stalls;
        let server = self.tree.shared_memory.watched(group);
        let Some(text) = watchdog.look(watched, server.as_ref(), *on_stall == OnStall::Dump) else { return };
        // Also for who asked for quiet: nothing else will be said.
        stderr::write(text.as_bytes());
        if *on_stall == OnStall::Kill {
            say("the tree is ended, because its pages do not come (--on-stall kill)");
            self.end_tree(Ending::Stalled);
        }
    }

    /// Of a tree that has been killed: who waits for a page of a process that is over, its tracer perhaps, without which that
    /// process cannot be reaped, waits no longer.
    fn let_go_of_the_killed(&self) {
        for member in self.tree.members.iter().filter(|member| watchdog::is_over(member.pid)) {
            let_go_of_memory(member.pid, &member.uffds);
        }
    }
}
