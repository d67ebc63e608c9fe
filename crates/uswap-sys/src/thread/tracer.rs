//! Who traces the process, and must not trace the agent's threads.
//!
//! `strace -f` stops every thread at each system call, and reads the call's arguments by process_vm_readv(2), which waits for
//! what is swapped out. If it has stopped who would bring that in, both wait for ever. A thread that is made with
//! CLONE_UNTRACED is none of a tracer's. Other tracers do not wait for pages (gdb reads by /proc/PID/mem), but put breakpoints
//! into code that these threads run as well, which ends a process whose thread nobody traces: they keep them.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process_status::ProcessStatus;

/// Whether new threads are made with CLONE_UNTRACED.
static UNTRACED: AtomicBool = AtomicBool::new(false);

/// Looks who traces this process. Once, in the agent's constructor: later a filter of the program's may end who opens files.
/// A forked child is traced by whom its parent was.
pub fn look_for_tracer() {
    UNTRACED.store(is_traced_by_strace(), Ordering::Relaxed);
}

/// What [`look_for_tracer`] found.
pub(super) fn hide_from_tracer() -> bool {
    UNTRACED.load(Ordering::Relaxed)
}

fn is_traced_by_strace() -> bool {
    let Some(status) = crate::proc::open(c"/proc/self/status").ok().as_ref().and_then(ProcessStatus::read) else {
        return false;
    };
    let tracer = status.field(b"TracerPid:").and_then(|pid| pid.parse::<u32>().ok()).filter(|&pid| pid != 0);
    // With a filter of its own (`--seccomp-bpf`) it is asked at each call, which fails in a thread that it does not trace.
    let Some(tracer) = tracer.filter(|_| status.field(b"Seccomp:") == Some("0")) else { return false };
    let path = CString::new(format!("/proc/{tracer}/comm")).unwrap_or_default();
    let mut name = [0; 32];
    let read = crate::proc::open(&path).ok().and_then(|file| rustix::io::read(&file, &mut name).ok());
    read.is_some_and(|bytes| name[..bytes].trim_ascii_end() == b"strace")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn these_tests_are_not_traced_by_strace() {
        assert!(!is_traced_by_strace());
    }
}
