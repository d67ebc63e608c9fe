//! Messages to the user from where nothing may be allocated.

#![allow(unsafe_code)]

use std::arch::asm;
use std::fmt::{self, Write};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

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

/// Writes one line to standard error, on whichever thread, if messages may be written there ([`is_for_messages`]). Agent threads,
/// whose file table is not the program's, have there what leads to the user, through the supervisor: see [`set_agent_stderr`].
///
/// A pipe takes it only if it has room and a reader: the program's thread must neither wait nor get a SIGPIPE for a line of ours.
pub fn stderr_line(args: fmt::Arguments<'_>) {
    if is_for_messages() && takes_a_line(rustix::stdio::stderr()) {
        line(rustix::stdio::stderr(), args);
    }
}

/// Where that cannot be found out, because of a seccomp filter, it is taken to.
fn takes_a_line(stderr: BorrowedFd<'_>) -> bool {
    let kind = look_at(stderr).map(|stat| FileType::from_raw_mode(stat.st_mode));
    if !matches!(kind, Ok(FileType::Fifo | FileType::Socket)) {
        return true;
    }
    let mut fds = [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).is_err() || fds[0].revents() == PollFlags::OUT
}

/// What [`is_for_messages`] found last, in this process or in the parent that it is a copy of.
static WAS_FOR_MESSAGES: AtomicBool = AtomicBool::new(false);
/// Device and inode of the file with the number 2 when messages might be written to it: no more is asked of that one, for a seccomp
/// filter may end who asks.
static KNOWN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Whether messages may be written to standard error. A file that can be read, too, may have got the number 2 in a program
/// that has closed its standard error, and hold data. Where a seccomp filter does not let that be found out, it is as it was.
pub fn is_for_messages() -> bool {
    let stderr = rustix::stdio::stderr();
    let stat = match look_at(stderr) {
        Ok(stat) => stat,
        Err(Errno::BADF) => return false,
        Err(_) => return WAS_FOR_MESSAGES.load(Ordering::Relaxed),
    };
    let (found, known) = ([stat.st_dev, stat.st_ino], KNOWN.each_ref().map(|part| part.load(Ordering::Relaxed)));
    let holds_data = || matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::BlockDevice);
    let is_readable = || {
        let mode = rustix::fs::fcntl_getfl(stderr).map(|flags| flags & OFlags::RWMODE);
        mode != Ok(OFlags::WRONLY)
    };
    let is_so = found == known || !holds_data() || !is_readable();
    if is_so {
        KNOWN.iter().zip(found).for_each(|(part, value)| part.store(value, Ordering::Relaxed));
    }
    WAS_FOR_MESSAGES.store(is_so, Ordering::Relaxed);
    is_so
}

/// By the system call that libc makes for fstat(3), which filters of seccomp's that end threads know.
fn look_at(file: BorrowedFd<'_>) -> rustix::io::Result<Stat> {
    rustix::fs::statat(file, c"", AtFlags::EMPTY_PATH)
}

/// Gives the agent's threads a standard error. What std and libc have to say when they abort goes there, too.
pub fn set_agent_stderr(fd: BorrowedFd<'_>) -> io::Result<()> {
    rustix::stdio::dup2_stderr(fd)?;
    WAS_FOR_MESSAGES.store(true, Ordering::Relaxed);
    Ok(())
}

/// A word that the supervisor sees: 1 once this process was ended by its agent.
static ENDED: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Tells where the supervisor looks, or that it cannot see this process yet.
pub fn set_ended_word(word: Option<&'static AtomicU32>) {
    ENDED.store(word.map_or(std::ptr::null_mut(), |word| std::ptr::from_ref(word).cast_mut()), Ordering::Release);
}

/// How long a dying process waits for room in the pipe to its supervisor, which may be stopped.
const LAST_WORDS_PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Ends this process at once and says why: something cannot be done, and a wrong page is worse than a crash. Needs no
/// memory, no lock, and nobody else's help; what is written to the pipe outlives the process.
pub fn end(why: fmt::Arguments<'_>) -> ! {
    let (mut name, mut text, mut whole) = (LineBuffer::new(), LineBuffer::new(), LineBuffer::new());
    let _ = text.write_fmt(why);
    // A child of fork that has not joined yet has no /proc from the supervisor.
    let own = || rustix::fs::open(c"/proc/self/comm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let comm = crate::proc::open(c"/proc/thread-self/../../comm").or_else(|_| own());
    let read = comm.and_then(|comm| rustix::io::read(&comm, &mut name.bytes[..16]));
    name.used = *read.as_ref().unwrap_or(&0);
    let name = if read.is_ok() { name.text().trim_end() } else { "?" };
    let pid = rustix::process::getpid().as_raw_nonzero();
    let why = text.text();
    let _ = write!(whole, "uswap: process {pid} ({name}) is ended: {}", why.strip_prefix("uswap: ").unwrap_or(why));
    let stderr = rustix::stdio::stderr();
    if is_for_messages() && rustix::io::write(stderr, whole.finish()) == Err(Errno::AGAIN) {
        let mut fds = [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)];
        let _ = rustix::event::poll(&mut fds, Some(&LAST_WORDS_PATIENCE));
        let _ = rustix::io::write(stderr, whole.finish());
    }
    // SAFETY: null, or a word that stays mapped for ever.
    if let Some(word) = unsafe { ENDED.load(Ordering::Acquire).as_ref() } {
        word.store(1, Ordering::Release);
    }
    kill_self()
}

/// What a process that cannot be killed ends with: a shell would say so of one that was.
const STATUS_OF_KILLED: libc::c_int = 128 + libc::SIGKILL;

/// Ends this process at once, without a word.
///
/// A seccomp filter may refuse kill(2), and the first process of a pid namespace does not die of it. Either ends by
/// exit_group(2); and if that is refused as well, by an illegal instruction: its signal cannot be held back, ignored or handled in a
/// thread that blocks it, as those of the agent do.
pub fn kill_self() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // SAFETY: neither comes back, and nothing in this process is of use any more.
    unsafe {
        asm!("syscall", "ud2", in("rax") libc::SYS_exit_group, in("rdi") STATUS_OF_KILLED, options(noreturn));
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
            Some(libc::EMFILE | libc::ENFILE) => "too many open files (ulimit -n)",
            Some(libc::EFBIG) => "file too large (ulimit -f)",
            Some(libc::ECONNREFUSED) => "connection refused",
            Some(libc::EAGAIN) => "no more processes or threads may be made (ulimit -u, or a container's limit)",
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
        for byte in &mut self.bytes[..self.used] {
            if *byte == b'\n' {
                *byte = b' ';
            }
        }
        self.bytes[self.used] = b'\n';
        &self.bytes[..=self.used]
    }

    /// What is in it; a character that was cut in two is left out.
    fn text(&self) -> &str {
        let bytes = &self.bytes[..self.used];
        str::from_utf8(bytes).unwrap_or_else(|error| str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or("?"))
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
