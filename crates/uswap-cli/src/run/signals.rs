//! Which signals `uswap run` passes on to the program, and when.
//!
//! A key on the terminal signals the whole foreground group: the program has got it already, unless it has left our group
//! (`timeout`), which gets it from us then. What somebody sent
//! to us alone is passed on. What the program or its children sent (kill 0 in a script) is not: they meant their
//! group, and reached it. When a terminal is closed, the kernel tells the leader of its session alone, who is to tell the
//! others: that may be us (`xterm -e uswap run ...`, `ssh -t host uswap run ...`).

use uswap_sys::launch::SignalInfo;

/// Those that are known by name. The stop signals are not among them but for two: TSTP, and TTOU, which also has to be
/// blocked, or a line of ours would stop us on a terminal with `stty tostop`. TTIN stops us with the whole job, as it
/// should. SIGABRT is what systemd ends a service by whose watchdog has run out; abort(3) unblocks it first.
/// What our own instructions raise ends us though it is blocked; what somebody sends is for the program's handler.
const NAMED: [i32; 27] = [
    libc::SIGCHLD,
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGWINCH,
    libc::SIGALRM,
    libc::SIGPIPE,
    libc::SIGTSTP,
    libc::SIGTTOU,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGURG,
    libc::SIGABRT,
    libc::SIGXCPU,
    libc::SIGSTKFLT,
    libc::SIGSYS,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
];

/// What the terminal sends to the whole foreground group.
const OF_THE_TERMINAL: [i32; 7] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGTTOU, libc::SIGHUP, libc::SIGWINCH, libc::SIGCONT];

/// What the leader of a session gets alone when its terminal is closed.
const OF_A_HANG_UP: [i32; 2] = [libc::SIGHUP, libc::SIGCONT];

/// What is read from a signalfd: those above, and the real-time signals, which would end us as well.
pub fn watched() -> Vec<i32> {
    NAMED.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).collect()
}

/// Whether a signal is to be passed on. `from_tree`: the sender is one of the processes that we run. `leads_session`: a
/// closed terminal is for us to tell of. What comes from ourselves is the kernel's answer to our own writing (SIGPIPE).
/// What the kernel sends besides the terminal's signals is for this process alone, such as the alarm that somebody set
/// before we were executed: but a limit on CPU time (SIGXCPU)
/// counts for each process by itself.
pub fn is_to_be_forwarded(info: &SignalInfo, from_tree: bool, leads_session: bool) -> bool {
    let is_hang_up = leads_session && OF_A_HANG_UP.contains(&info.signal);
    let from_terminal = is_from_terminal(info) && !is_hang_up;
    let own_limit = info.from_kernel && info.signal == libc::SIGXCPU;
    let from_ourselves = info.sender_pid == std::process::id() && !info.from_kernel;
    info.signal != libc::SIGCHLD && !from_terminal && !own_limit && !from_ourselves && !from_tree
}

/// Whether the terminal has sent a signal, to the whole foreground group.
pub fn is_from_terminal(info: &SignalInfo) -> bool {
    info.from_kernel && OF_THE_TERMINAL.contains(&info.signal)
}

/// Whether this signal, when it comes to us, says that the whole job is to stop.
pub fn asks_for_job_stop(signal: i32) -> bool {
    [libc::SIGTSTP, libc::SIGTTOU].contains(&signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_meant_for_us_is_forwarded() {
        let sent = |signal, from_kernel| SignalInfo { signal, from_kernel, sender_pid: 5, value: None };
        let forwarded = |info, from_tree| is_to_be_forwarded(&info, from_tree, false);
        assert!(forwarded(sent(libc::SIGTERM, false), false));
        assert!(!forwarded(sent(libc::SIGINT, true), false), "a key");
        assert!(!forwarded(sent(libc::SIGUSR1, false), true), "kill 0");
        assert!(!forwarded(sent(libc::SIGCHLD, false), false));
        assert!(forwarded(sent(libc::SIGALRM, true), false), "a timer from before the exec");
        assert!(forwarded(sent(libc::SIGXCPU, false), false) && !forwarded(sent(libc::SIGXCPU, true), false));
        let ours = SignalInfo { sender_pid: std::process::id(), ..sent(libc::SIGPIPE, false) };
        assert!(!forwarded(ours, false), "nobody reads what we write");
    }

    #[test]
    fn only_the_leader_of_a_session_tells_of_a_closed_terminal() {
        for signal in [libc::SIGHUP, libc::SIGCONT, libc::SIGINT] {
            let info = SignalInfo { signal, from_kernel: true, sender_pid: 0, value: None };
            assert!(!is_to_be_forwarded(&info, false, false));
            assert_eq!(is_to_be_forwarded(&info, false, true), signal != libc::SIGINT);
        }
    }
}
