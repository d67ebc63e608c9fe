//! Messages to the user from where nothing may be allocated.

#![allow(unsafe_code)]

use std::fmt::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The longest line, newline included; what does not fit is cut off.
pub const LINE_MAX: usize = 512;

/// Writes one line to `fd`, with a newline, in one write: no allocation, no lock.
///
/// Errors are ignored: there is nobody to tell. Signals cannot be caused by it (SIGPIPE is blocked in
/// agent threads). The line is put together on the stack.
pub fn line(fd: BorrowedFd<'_>, args: fmt::Arguments<'_>) {
    let mut buffer = LineBuffer::new();
    // The buffer never refuses; a Display that fails leaves what it wrote.
    let _ = buffer.write_fmt(args);
    let _ = rustix::io::write(fd, buffer.finish());
}

/// Where agent threads find standard error: their file table is not the program's.
static AGENT_STDERR: AtomicI32 = AtomicI32::new(2);

/// Tells where agent threads find standard error.
pub fn set_agent_stderr(fd: BorrowedFd<'_>) {
    AGENT_STDERR.store(fd.as_raw_fd(), Ordering::Release);
}

/// Writes one line to standard error, on whichever thread.
pub fn stderr_line(args: fmt::Arguments<'_>) {
    let is_agent = rustix::thread::name().is_ok_and(|name| name.to_bytes().starts_with(b"uswap-"));
    if is_agent {
        // SAFETY: agent threads keep the descriptor open as long as they live.
        line(unsafe { BorrowedFd::borrow_raw(AGENT_STDERR.load(Ordering::Acquire)) }, args);
    } else {
        line(rustix::stdio::stderr(), args);
    }
}

/// What went wrong, for a thread of the agent: std asks libc for the words, and libc allocates to find them.
pub struct Reason<'a>(pub &'a std::io::Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0.raw_os_error() {
            Some(libc::EPERM) => "operation not permitted",
            Some(libc::EACCES) => "permission denied",
            Some(libc::ENOENT) => "no such file",
            Some(libc::ENOMEM) => "out of memory",
            Some(libc::EMFILE | libc::ENFILE) => "too many open files",
            Some(libc::ECONNREFUSED) => "connection refused",
            Some(libc::EIO) => "I/O error",
            Some(libc::ENOSPC) => "no space left",
            Some(number) => return write!(f, "error {number}"),
            None => return write!(f, "{:?}", self.0.kind()),
        };
        f.write_str(words)
    }
}

/// `say!(fd, "...", ...)` writes one formatted line to a descriptor without allocating.
#[macro_export]
macro_rules! say {
    ($fd:expr, $($args:tt)+) => {
        $crate::report::line(::std::os::fd::AsFd::as_fd(&$fd), ::std::format_args!($($args)+))
    };
}

struct LineBuffer {
    bytes: [u8; LINE_MAX],
    used: usize,
}

impl LineBuffer {
    fn new() -> LineBuffer {
        LineBuffer { bytes: [0; LINE_MAX], used: 0 }
    }

    fn finish(&mut self) -> &[u8] {
        self.bytes[self.used] = b'\n';
        &self.bytes[..=self.used]
    }
}

impl Write for LineBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte is kept for the newline.
        let room = LINE_MAX - 1 - self.used;
        let taken = text.len().min(room);
        self.bytes[self.used..self.used + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.used += taken;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_line_is_written_whole_and_cut_at_its_limit() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        say!(writer, "{} is {}", "answer", 42);
        say!(writer, "{}", "x".repeat(2000));
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "answer is 42");
        assert_eq!(lines[1], "x".repeat(LINE_MAX - 1));
    }
}
