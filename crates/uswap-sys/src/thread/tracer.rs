//! Who traces the process, and must not trace the agent's threads.
//!
//! `strace -f` stops every thread at each system call, and reads the call's arguments by process_vm_readv(2), which waits for
//! what is swapped out. If it has stopped who would bring that in, both wait for ever. A thread that is made with
//! CLONE_UNTRACED is none of a tracer's. Other tracers do not wait for pages (gdb reads by /proc/PID/mem), but put breakpoints
//! into code that these threads run as well, which ends a process whose thread nobody traces: they keep them.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

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
    let mut buffer = [0; 4096];
    let Some(status) = read(c"/proc/self/status", &mut buffer) else { return false };
    // With a filter of its own (`--seccomp-bpf`) it is asked at each call, which fails in a thread that it does not trace.
    let Some(tracer) = tracer(status).filter(|_| has_no_filter(status)) else { return false };
    let mut name = [0; 32];
    let path = CString::new(format!("/proc/{tracer}/comm")).unwrap_or_default();
    read(&path, &mut name).is_some_and(|name| name.trim_ascii_end() == b"strace")
}

/// The process that traces the one of this /proc/PID/status.
fn tracer(status: &[u8]) -> Option<u32> {
    field(status, b"TracerPid:")?.parse().ok().filter(|&pid| pid != 0)
}

fn has_no_filter(status: &[u8]) -> bool {
    field(status, b"Seccomp:") == Some("0")
}

fn field<'a>(status: &'a [u8], key: &[u8]) -> Option<&'a str> {
    let value = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(key))?;
    std::str::from_utf8(value.trim_ascii()).ok()
}

fn read<'a>(path: &std::ffi::CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = crate::proc::open(path).ok()?;
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(&file, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(&buffer[..filled])
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &[u8] = b"Name:\tTracerPid: 7\nTracerPid:\t4711\nSeccomp:\t0\nSeccomp_filters:\t0\n";

    #[test]
    fn the_tracer_and_a_filter_are_read_from_the_status() {
        assert_eq!(tracer(STATUS), Some(4711));
        assert!(has_no_filter(STATUS));
        assert_eq!(tracer(b"TracerPid:\t0\n"), None);
        assert!(!has_no_filter(b"Seccomp:\t2\n"));
        assert!(!has_no_filter(b""));
    }

    #[test]
    fn these_tests_are_not_traced_by_strace() {
        assert!(!is_traced_by_strace());
    }
}
