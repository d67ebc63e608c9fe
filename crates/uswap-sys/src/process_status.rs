//! What /proc/PID/status says of a process, read without allocating.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// Three times what most have. Of a process in hundreds of groups, whose line comes early, the signals are not reached: it passes for one
/// that was not killed.
const STATUS_MAX: usize = 4096;

/// A `status` file as it was read.
pub struct ProcessStatus {
    bytes: [u8; STATUS_MAX],
    len: usize,
}

impl ProcessStatus {
    /// Reads it; `None` where the process has ended.
    pub fn read(file: &OwnedFd) -> Option<ProcessStatus> {
        let mut status = ProcessStatus { bytes: [0; STATUS_MAX], len: 0 };
        while status.len < STATUS_MAX {
            match rustix::io::read(file, &mut status.bytes[status.len..]) {
                Ok(0) => break,
                Ok(bytes) => status.len += bytes,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        Some(status)
    }

    /// The value of a line, whose key is given with its colon.
    pub fn field(&self, key: &[u8]) -> Option<&str> {
        field(&self.bytes[..self.len], key)
    }

    /// Whether the process was killed, though it may not have noticed yet. Not whether it has ended: then it has no files.
    pub fn is_killed(&self) -> bool {
        ["SigPnd:", "ShdPnd:"].iter().any(|key| self.field(key.as_bytes()).is_some_and(has_sigkill))
    }
}

/// Whether SIGKILL is in a mask as `status` writes it. Among the signals that are pending for a process it stays until that is
/// waited for.
pub fn has_sigkill(mask: &str) -> bool {
    u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask >> (libc::SIGKILL - 1) & 1 == 1)
}

fn field<'a>(status: &'a [u8], key: &[u8]) -> Option<&'a str> {
    let value = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(key))?;
    std::str::from_utf8(value.trim_ascii()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &[u8]) -> ProcessStatus {
        let mut status = ProcessStatus { bytes: [0; STATUS_MAX], len: text.len() };
        status.bytes[..text.len()].copy_from_slice(text);
        status
    }

    #[test]
    fn lines_are_found_by_their_keys() {
        let status = status(b"Name:\tTracerPid: 7\nTracerPid:\t4711\nSeccomp:\t0\nSeccomp_filters:\t1\n");
        assert_eq!(status.field(b"TracerPid:"), Some("4711"));
        assert_eq!(status.field(b"Seccomp:"), Some("0"));
        assert_eq!(status.field(b"Pid:"), None);
    }

    #[test]
    fn who_is_killed_has_the_signal_pending_for_a_thread_or_for_the_process() {
        assert!(status(b"SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n").is_killed());
        assert!(status(b"SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n").is_killed());
        assert!(!status(b"SigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\n").is_killed());
        assert!(!status(b"").is_killed());
    }
}
