//! A process that holds a memory file, which others open by /proc/PID/fd/N, also after its maker has ended.
//!
//! It shares the memory of its maker, as after vfork(2), but runs beside it: no page tables are copied when it starts and
//! given back when it ends, which is most of what a little process costs. Thread-local storage is shared too, so it makes
//! system calls and nothing else, through rustix, which leaves errno alone.
//!
//! Compiled only with the feature `launch`: none of this belongs into a foreign process.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Pid;
use rustix::thread::{CpuSet, Timespec};

use crate::launch;
use crate::thread::unshare_files_and_close;

mod named;

/// Bytes of the anchor's stack: a handful of calls.
const STACK_BYTES: usize = 32 << 10;

/// A memory file with nothing in it yet.
pub fn memory_file(name: &CStr) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Where vm.memfd_noexec is set, an executable file has to be asked for; kernels before 6.3 do not know how.
    let fd =
        rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC).or_else(|_| rustix::fs::memfd_create(name, flags))?;
    Ok(fd)
}

/// Writes a memory file, for good: nobody can change it afterwards.
pub fn fill(file: BorrowedFd<'_>, content: &[u8]) -> Result<(), Errno> {
    write_at(file, content, 0)?;
    seal(file)
}

fn write_at(file: BorrowedFd<'_>, mut content: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !content.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, content, offset))?;
        content = &content[written..];
        offset += written as u64;
    }
    Ok(())
}

fn seal(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // Nobody has mapped it for writing yet, so FUTURE_WRITE forbids as much as WRITE. WRITE fails with EBUSY while the
    // kernel itself holds a page of the file for a moment (compaction, DAMON).
    let unchangeable = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    rustix::fs::fcntl_add_seals(file, unchangeable)
}

/// What an anchor is told at its start.
pub struct Orders {
    /// What it is called.
    pub name: &'static CStr,
    /// What the file is filled with.
    pub content: &'static [u8],
    /// How long it holds the file when all who could have let it go have ended without a word.
    pub linger: Timespec,
}

/// Parts in which the file is written.
const PARTS: usize = 32;

/// Orders, and the descriptors that they are about, in the anchor's own table.
struct Task {
    orders: Orders,
    file: c_int,
    line: c_int,
    /// Parts of the file that are there.
    written: [AtomicBool; PARTS],
}

impl Task {
    /// Writes the parts that are not there, in this order. The anchor and its maker may both write the same.
    fn write(&self, file: BorrowedFd<'_>, parts: impl Iterator<Item = usize>) -> Result<(), Errno> {
        let content = self.orders.content;
        let part_bytes = content.len().div_ceil(PARTS).max(1);
        for part in parts.filter(|part| !self.written[*part].load(Acquire)) {
            let start = (part * part_bytes).min(content.len());
            let end = (start + part_bytes).min(content.len());
            write_at(file, &content[start..end], start as u64)?;
            self.written[part].store(true, Release);
        }
        Ok(())
    }
}

/// An anchor that was started.
pub struct Started {
    /// Its process.
    pub pid: u32,
    task: &'static Task,
    /// Where this process may run, and the anchor does for now only in part.
    cpus: Option<CpuSet>,
}

impl Started {
    /// Completes the file: the anchor has written most of it by now, or waits for a CPU that others use.
    pub fn complete(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        if let Some(cpus) = &self.cpus {
            let _ = rustix::thread::sched_setaffinity(Pid::from_raw(self.pid as i32), cpus);
        }
        self.task.write(file, (0..PARTS).rev())?;
        seal(file)
    }
}

/// Starts an anchor, which begins to fill `file`, from its start, and holds it, and nothing else that anybody could wait for
/// the end of, until a byte comes by `line`. Out of the terminal's reach, and of all signals but SIGKILL.
pub fn start(orders: Orders, file: &OwnedFd, line: OwnedFd) -> io::Result<Started> {
    // It lives as long as any process with this memory. Shared memory, because that stays where it is: an outer group, in
    // a nested run, swaps out what is private, and only the maker, not the anchor, has somebody who brings it back.
    // SAFETY: a new mapping at an address that the kernel chooses.
    let stack = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            STACK_BYTES,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
        )
    }?;
    let task = Task { orders, file: file.as_raw_fd(), line: line.as_raw_fd(), written: Default::default() };
    // It inherits the mask: there is no moment in which a signal ends it.
    let mask = launch::block_all();
    // SAFETY: the task lies at the low end of the stack, far from where the stack is used, and like it is never unmapped
    // once an anchor runs. The end of a mapping is aligned as a stack must be.
    let (child, task) = unsafe {
        stack.cast::<Task>().write(task);
        let child = libc::clone(hold, stack.byte_add(STACK_BYTES), libc::CLONE_VM | libc::SIGCHLD, stack);
        (child, stack.cast::<Task>())
    };
    let error = io::Error::last_os_error();
    if let Ok(mask) = mask {
        mask.restore();
    }
    if child < 0 {
        // SAFETY: nobody runs on it.
        let _ = unsafe { rustix::mm::munmap(stack, STACK_BYTES) };
        return Err(error);
    }
    let cpus = keep_from_this_cpu(Pid::from_raw(child));
    // SAFETY: as above: it stays as it is, but for the part that is atomic.
    Ok(Started { pid: child as u32, task: unsafe { &*task }, cpus })
}

/// Moves a process that has not run yet to another CPU, if there is one: the kernel starts it on any, and on this one it
/// would not run before this thread sleeps. Gives the CPUs that both may use.
fn keep_from_this_cpu(process: Option<Pid>) -> Option<CpuSet> {
    let all = rustix::thread::sched_getaffinity(None).ok().filter(|cpus| cpus.count() > 1)?;
    let mut others = all;
    others.unset(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(process, &others).ok()?;
    Some(all)
}

/// The anchor's life. Its argument is a [`Task`].
extern "C" fn hold(task: *mut c_void) -> c_int {
    // SAFETY: `start` passes a pointer to its own `Task`, which is never dropped or changed.
    let task = unsafe { &*task.cast::<Task>() };
    // SAFETY: this process has a table of its own, in which these are open until it ends.
    let (file, line) = unsafe { (BorrowedFd::borrow_raw(task.file), BorrowedFd::borrow_raw(task.line)) };
    // What is missing is the maker's, who sees the error.
    let _ = task.write(file, 0..PARTS);
    let _ = rustix::process::setsid();
    // Or the file system where it was started would be in use.
    let _ = rustix::process::chdir(c"/");
    let _ = rustix::thread::set_name(task.orders.name);
    let _ = unshare_files_and_close(&[task.file, task.line]);
    wait_for_the_end(line, &task.orders.linger);
    0
}

/// What is said by the line: the file may go.
pub const GOES: &[u8; 1] = b"x";
/// It may go when no process names it any more.
pub const GOES_UNNAMED: &[u8; 1] = b"n";

/// Returns when the file may go of which this process is told by `line`. Without a word from those who could have let it go it may, after
/// `linger`, when no process names it. Makes system calls and nothing else.
pub fn wait_for_the_end(line: BorrowedFd<'_>, linger: &Timespec) {
    let mut said = *GOES;
    match rustix::io::retry_on_intr(|| rustix::io::read(line, &mut said)) {
        Ok(0) => drop(rustix::thread::nanosleep(linger)),
        _ if said == *GOES_UNNAMED => {}
        _ => return,
    }
    named::wait_until_unnamed();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use rustix::process::WaitOptions;

    const CONTENT: &[u8] = b"what it holds";

    fn started(linger: Timespec) -> (u32, OwnedFd, String) {
        let file = memory_file(c"test").unwrap();
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let orders = Orders { name: c"test-anchor", content: CONTENT, linger };
        let started = start(orders, &file, theirs).unwrap();
        started.complete(file.as_fd()).unwrap();
        let pid = started.pid;
        (pid, ours, format!("/proc/{pid}/fd/{}", file.as_fd().as_raw_fd()))
    }

    fn exited(pid: u32) -> bool {
        let ended = rustix::process::waitpid(Pid::from_raw(pid as i32), WaitOptions::empty()).unwrap();
        ended.is_some_and(|(_, status)| status.exit_status() == Some(0))
    }

    #[test]
    fn it_holds_the_file_until_it_is_told() {
        let (pid, line, path) = started(Timespec { tv_sec: 60, tv_nsec: 0 });
        let mut text = Vec::new();
        std::fs::File::open(&path).unwrap().read_to_end(&mut text).unwrap();
        assert_eq!(text, CONTENT);
        assert!(
            std::fs::OpenOptions::new()
                .append(true)
                .open(&path)
                .and_then(|mut file| { std::io::Write::write(&mut file, b"more") })
                .is_err()
        );
        rustix::io::write(&line, b"x").unwrap();
        assert!(exited(pid));
        assert!(!std::path::Path::new(&path).exists());
    }

    #[test]
    fn no_signal_but_kill_ends_it() {
        let (pid, line, path) = started(Timespec { tv_sec: 60, tv_nsec: 0 });
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGABRT, libc::SIGRTMIN()] {
            launch::send_signal(pid, signal).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        std::fs::File::open(&path).unwrap();
        rustix::io::write(&line, b"x").unwrap();
        assert!(exited(pid));
    }

    /// Else who gets its number next could put a library of his own there.
    #[test]
    fn the_file_of_root_stays_as_long_as_a_process_names_it() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: only root reads everybody's environment");
        }
        let (pid, line, path) = started(Timespec { tv_sec: 0, tv_nsec: 0 });
        let mut sleep =
            std::process::Command::new("sleep").arg("60").env("LD_PRELOAD_TEST", format!("a:{path}")).spawn().unwrap();
        rustix::io::write(&line, GOES_UNNAMED).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::fs::File::open(&path).unwrap();
        sleep.kill().unwrap();
        sleep.wait().unwrap();
        assert!(exited(pid));
    }

    #[test]
    fn it_ends_by_itself_when_its_maker_has() {
        let (pid, line, _path) = started(Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
        drop(line);
        assert!(exited(pid));
    }
}
