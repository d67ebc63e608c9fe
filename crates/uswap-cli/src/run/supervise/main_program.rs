//! The main program: our child that `uswap run` was asked to run.

use std::time::{Duration, Instant};

use super::super::processes::{is_stopped, session_of};
use crate::failure::{OURS, say};

/// How soon it is looked whether a main program that has not said hello is stopped: most say it within milliseconds.
const LOOK_WHETHER_STOPPED_AFTER: Duration = Duration::from_secs(1);
/// How long the main program has time to say hello, before the user is told that it may have no budget.
const TIME_TO_JOIN: Duration = Duration::from_secs(10);
/// How long after a key has asked the job to stop a program may take to stop itself by SIGSTOP: some put the terminal in order
/// before (`top`).
const STOPS_WITHIN: Duration = Duration::from_secs(5);

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

/// What is known of it.
pub(super) struct MainProgram {
    /// Until it has ended.
    pub pid: Option<u32>,
    /// When it was, as long as it has not said hello.
    started: Option<Instant>,
    pub ending: Option<Ending>,
    /// The whole tree is being ended, for this reason.
    pub tree_ends: Option<Ending>,
    /// Its agent says that it ends it.
    pub ended_by_us: bool,
    /// A signal that stops a whole job has come to us.
    job_is_to_stop: Option<Instant>,
    /// When it stopped last, we did not.
    stopped_alone: bool,
    /// We are the leader of our session.
    pub leads_session: bool,
}

impl MainProgram {
    /// Not started yet.
    pub fn new() -> MainProgram {
        let me = std::process::id();
        MainProgram {
            pid: None,
            started: None,
            ending: None,
            tree_ends: None,
            ended_by_us: false,
            job_is_to_stop: None,
            stopped_alone: false,
            leads_session: session_of(me) == Some(me),
        }
    }

    pub fn begins(&mut self, pid: u32) {
        self.pid = Some(pid);
        self.started = Some(Instant::now());
    }

    /// Whether it is this process.
    pub fn is(&self, pid: u32) -> bool {
        self.pid == Some(pid)
    }

    /// It has ended in this way, as its parent sees it. What one says whose tree was being ended is no result: it may have seen its children
    /// killed.
    pub fn ends(&mut self, seen: Ending) {
        let ending = match seen {
            Ending::Signaled(_) if self.ended_by_us => Ending::EndedByUs,
            seen => seen,
        };
        self.ending = Some(self.tree_ends.unwrap_or(ending));
    }

    /// It has said hello.
    pub fn joins(&mut self) {
        self.started = None;
    }

    /// Says once that it has never joined, also to who asked for quiet: nothing bounds its memory. Its loader may have been unable to
    /// load the agent, which is a line of its own, and no reason for it not to go on. One that is stopped says hello when it goes on,
    /// and has as much time for it as at its start.
    pub fn tell_if_missed(&mut self) {
        let (Some(pid), Some(started)) = (self.pid, self.started) else { return };
        if started.elapsed() > LOOK_WHETHER_STOPPED_AFTER && is_stopped(pid) {
            self.started = Some(Instant::now());
        } else if started.elapsed() > TIME_TO_JOIN {
            self.started = None;
            say("the program has not joined its group: it runs without a budget (see uswap doctor)");
        }
    }

    /// A signal has come that stops the whole job.
    pub fn job_is_asked_to_stop(&mut self) {
        self.job_is_to_stop = Some(Instant::now());
    }

    /// The job has been continued.
    pub fn job_goes_on(&mut self) {
        self.job_is_to_stop = None;
    }

    /// Whether it has stopped by this signal because the job was asked to.
    pub fn takes_stop_of_job(&mut self, signal: i32) -> bool {
        self.job_is_to_stop.take().is_some_and(|asked| signal != libc::SIGSTOP || asked.elapsed() < STOPS_WITHIN)
    }

    /// It has stopped, and we do not if `alone`.
    pub fn stops(&mut self, alone: bool) {
        self.stopped_alone = alone;
    }

    /// Whether it stands, and we go on.
    pub fn is_stopped_alone(&self) -> bool {
        self.stopped_alone && self.pid.is_some_and(is_stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(seen: Ending, tree_ends: Option<Ending>, ended_by_us: bool) -> i32 {
        let mut main = MainProgram::new();
        (main.tree_ends, main.ended_by_us) = (tree_ends, ended_by_us);
        main.ends(seen);
        main.ending.expect("it has ended").status()
    }

    #[test]
    fn who_sees_his_children_killed_because_the_run_is_ended_has_no_say_in_its_status() {
        for seen in [Ending::Exited(0), Ending::Exited(99), Ending::Signaled(libc::SIGKILL)] {
            for tree_ends in [Ending::Stalled, Ending::EndedByUs] {
                assert_eq!(ending(seen, Some(tree_ends), false), 125, "{seen:?} {tree_ends:?}");
            }
        }
        assert_eq!(ending(Ending::Signaled(libc::SIGKILL), None, true), 125);
        assert_eq!(ending(Ending::Exited(3), None, true), 3);
        assert_eq!(ending(Ending::Signaled(libc::SIGKILL), None, false), 137);
    }
}
