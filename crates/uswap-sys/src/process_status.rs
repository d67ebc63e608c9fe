//! What /proc/PID/status says of a process, read without allocating.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// Three times what most have. Of a process in hundreds of groups, whose line comes early, what follows is not reached.
const STATUS_MAX: usize = 4096;
/// What is read at a time where the stack may be a small one. Longer lines are passed over.
const PIECE: usize = 512;

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
}

/// Whether a process was killed, though it may not have noticed yet, by its `status` file; `None` where it has ended. Not whether it has
/// ended: then it has no files. To be asked by threads on small stacks, too.
pub fn is_killed(status: &OwnedFd) -> Option<bool> {
    is_killed_by(|piece| rustix::io::retry_on_intr(|| rustix::io::read(status, &mut *piece)))
}

fn is_killed_by(mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Option<bool> {
    let (mut piece, mut kept, mut is_long) = ([0; PIECE], 0, false);
    loop {
        let end = match read(&mut piece[kept..]).ok()? {
            0 => return Some(false),
            bytes => kept + bytes,
        };
        let mut line = 0;
        while let Some(len) = piece[line..end].iter().position(|&byte| byte == b'\n') {
            if !std::mem::take(&mut is_long) && is_sigkill_pending(&piece[line..line + len]) {
                return Some(true);
            }
            line += len + 1;
        }
        piece.copy_within(line..end, 0);
        kept = end - line;
        if kept == PIECE {
            (kept, is_long) = (0, true);
        }
    }
}

fn is_sigkill_pending(line: &[u8]) -> bool {
    let mask = line.strip_prefix(b"SigPnd:").or_else(|| line.strip_prefix(b"ShdPnd:"));
    mask.and_then(|mask| std::str::from_utf8(mask).ok()).is_some_and(has_sigkill)
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
        let killed = |text: &str, at_once: usize| {
            let mut left = text.as_bytes();
            is_killed_by(|piece| {
                let bytes = left.len().min(at_once).min(piece.len());
                piece[..bytes].copy_from_slice(&left[..bytes]);
                left = &left[bytes..];
                Ok(bytes)
            })
        };
        let groups = format!("Name:\tx\nGroups:\t{}\n", "1000 ".repeat(500));
        for at_once in [1, 7, 1000] {
            for (text, expected) in [
                ("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n", true),
                ("SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n", true),
                ("SigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\n", false),
                ("", false),
            ] {
                assert_eq!(killed(text, at_once), Some(expected), "{text}");
                assert_eq!(killed(&format!("{groups}{text}"), at_once), Some(expected), "{text}");
            }
        }
        assert_eq!(is_killed_by(|_| Err(Errno::SRCH)), None);
    }
}
