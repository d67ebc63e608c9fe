//! Children of the supervisor: their signals, their ends, and those nobody has heard of.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::Ordering::Acquire;

use rustix::process::WaitOptions;
use uswap_sys::launch;

use super::super::processes::{generations_below_us, job_of, parents_of_all_processes, session_of};
use super::super::signals;
use super::{Ending, Supervisor};

/// A program that has left our process group (`timeout`) does not get what the terminal sends to ours, though to the shell we are one.
/// Whether it has.
fn pass_to_another_job(main: u32, signal: i32) -> bool {
    let (Some((of_main, _)), Some((ours, _))) = (job_of(main), job_of(std::process::id())) else { return false };
    if of_main == ours {
        return false;
    }
    let _ = match of_main == main as i32 {
        true => launch::send_signal_to_group(main, signal),
        false => launch::send_signal(main, signal),
    };
    true
}

/// Whether our parent controls jobs, and we are one of them.
fn is_job_of_a_shell() -> bool {
    let (me, parent) = (std::process::id(), std::os::unix::process::parent_id());
    let group = |pid| job_of(pid).map(|(group, _)| group);
    let session = session_of(parent);
    session.is_some() && session == session_of(me) && group(parent) != group(me)
}

impl Supervisor {
    pub(super) fn handle_signals(&mut self) {
        while let Some(info) = self.signals.read() {
            if info.signal == libc::SIGCHLD {
                continue;
            }
            if signals::asks_for_job_stop(info.signal) {
                self.tree.main.job_is_asked_to_stop();
                if self.tree.main.is_stopped_alone() {
                    // It does not stop a second time, and the shell waits for us.
                    self.tree.main.job_goes_on();
                    launch::stop_self();
                    continue;
                }
            } else if info.signal == libc::SIGCONT {
                self.tree.main.job_goes_on();
            }
            let from_tree = info.sender_pid != 0
                && (self.tree.main.is(info.sender_pid) || self.tree.members.iter().any(|m| m.pid == info.sender_pid));
            let Some(main) = self.tree.main.pid else { continue };
            // The shell continues a job as a whole.
            let is_for_all = signals::is_from_terminal(&info) || info.signal == libc::SIGCONT;
            let is_forwarded = signals::is_to_be_forwarded(&info, from_tree, self.tree.main.leads_session);
            if !(is_for_all && pass_to_another_job(main, info.signal)) && is_forwarded {
                let _ = launch::pass_signal(main, &info);
            }
        }
    }

    /// Collects the status of every child that ended: the main program, and orphans of the tree, which became ours
    /// because we are a subreaper.
    pub(super) fn reap_children(&mut self) {
        loop {
            let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
            let Ok(Some((pid, status))) = rustix::process::wait(options) else {
                return;
            };
            let pid = pid.as_raw_nonzero().get() as u32;
            if self.tree.shared_memory.is_server(pid) && status.stopping_signal().is_none() {
                self.shared_memory_server_has_ended(status.exit_status());
                continue;
            }
            if !self.tree.main.is(pid) {
                self.user_anchors.ended(pid, status);
                continue;
            }
            if let Some(code) = status.exit_status() {
                self.tree.main.ends(Ending::Exited(code));
            } else if let Some(signal) = status.terminating_signal() {
                self.look_for_end_by_us(pid);
                self.tree.main.ends(Ending::Signaled(signal));
            } else if let Some(signal) = status.stopping_signal() {
                // Ours may have come after the last look.
                self.handle_signals();
                self.stop_with_job(pid, signal);
            }
        }
    }

    /// Ctrl-Z: the shell waits for us to stop, and SIGCONT comes to us as to the program. But one that was stopped alone, with nobody who
    /// waits at a terminal, is continued alone as well, and we have to be there when it ends.
    fn stop_with_job(&mut self, main: u32, signal: i32) {
        let foreground = || {
            let (group, foreground) = job_of(std::process::id())?;
            Some(foreground == group || job_of(main).is_some_and(|(of_main, _)| foreground == of_main))
        };
        let is_job_stop = self.tree.main.takes_stop_of_job(signal)
            // By SIGSTOP somebody else may stop it, and continue it: not where a shell sees it stop that can.
            || foreground() == Some(true) && (signal != libc::SIGSTOP || is_job_of_a_shell());
        self.tree.main.stops(!is_job_stop);
        if is_job_stop {
            launch::stop_self();
        }
    }

    /// To be asked before the slot of a process is given up.
    pub(super) fn look_for_end_by_us(&mut self, pid: u32) {
        let group = &self.shared.group;
        let mut slots = self.tree.members.iter().filter(|member| member.pid == pid).filter_map(|member| member.index);
        if self.tree.main.is(pid) && slots.any(|index| group.process(index).life.ended_by_agent.load(Acquire) != 0) {
            self.tree.main.ended_by_us = true;
        }
    }

    /// Children of ours that are neither members nor anchors.
    pub(super) fn unknown_children(&self) -> usize {
        let unknown = |pid: u32| !self.is_anchor(pid) && !self.tree.members.iter().any(|m| m.pid == pid);
        let me = std::process::id();
        match fs::read_to_string("/proc/thread-self/children") {
            Ok(list) => list.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| unknown(*pid)).count(),
            // A kernel without CONFIG_PROC_CHILDREN.
            Err(_) => parents_of_all_processes().iter().filter(|(pid, of)| *of == me && unknown(*pid)).count(),
        }
    }

    /// Ends everything that we or those below us have started, and whoever has said hello. Whoever was forked meanwhile is found when
    /// it is done again.
    pub(super) fn end_tree(&mut self, ending: Ending) {
        self.tree.main.tree_ends.get_or_insert(ending);
        let parents: HashMap<u32, u32> = parents_of_all_processes().into_iter().collect();
        let others = parents.keys().copied().filter(|pid| !self.is_anchor(*pid));
        let mut below: Vec<(usize, u32)> =
            others.filter_map(|pid| Some((generations_below_us(pid, &parents)?, pid))).collect();
        // Parents first: who waits for children is not to see them killed, for it would report it, or start others.
        below.sort_unstable();
        for (_, pid) in below {
            let _ = launch::send_signal(pid, libc::SIGKILL);
        }
        for member in &self.tree.members {
            let _ = rustix::process::pidfd_send_signal(&member.pidfd, rustix::process::Signal::KILL);
        }
    }
}
