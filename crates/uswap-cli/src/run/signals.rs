//! Which signals `uswap run` passes on to the program, and when.
//!
//! A key on the terminal signals the whole foreground group: the program has got it already. What somebody sent
//! to us alone is passed on. What the program or its children sent (kill 0 in a script) is not: they meant their
//! group, and reached it.

use uswap_sys::launch::SignalInfo;

/// Read from a signalfd. The stop signals are not among them but for TSTP: TTIN and TTOU are about us reading the
/// terminal, which we never do.
pub const WATCHED: [i32; 17] = [
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
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGURG,
];

/// Whether a signal is to be passed on. `from_tree`: the sender is one of the processes that we run.
pub fn is_to_be_forwarded(info: &SignalInfo, from_tree: bool) -> bool {
    info.signal != libc::SIGCHLD && !info.from_kernel && !from_tree
}

/// Whether this stop of the program is one that the shell does to a whole job: then we stop as well, or the shell
/// would wait for ever.
pub fn is_job_stop(signal: i32) -> bool {
    [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_meant_for_us_is_forwarded() {
        let sent = |signal, from_kernel| SignalInfo { signal, from_kernel, sender_pid: 5 };
        assert!(is_to_be_forwarded(&sent(libc::SIGTERM, false), false));
        assert!(!is_to_be_forwarded(&sent(libc::SIGINT, true), false), "a key");
        assert!(!is_to_be_forwarded(&sent(libc::SIGUSR1, false), true), "kill 0");
        assert!(!is_to_be_forwarded(&sent(libc::SIGCHLD, false), false));
    }
}
