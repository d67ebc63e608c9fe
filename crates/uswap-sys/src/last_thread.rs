//! Which threads of a process are its program's; and the end of one whose own threads have all ended, each by exit(2) alone.
//!
//! Such a process is over for its program, but not for Linux, as long as a thread of an agent lives on. Programs end so where
//! seccomp's strict mode refuses exit_group(2).

#![allow(unsafe_code)]

use std::arch::asm;
use std::ffi::CStr;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

/// `PF_IO_WORKER` of linux/sched.h: a thread that io_uring made.
const PF_IO_WORKER: u64 = 0x10;

const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

/// What /proc/PID/task/TID/stat says of a thread.
#[derive(Debug, PartialEq, Eq)]
struct ThreadStat {
    state: u8,
    flags: u64,
    exit_code: i32,
}

/// Asked when the main thread has ended: whether no thread is left but `mine`.
pub fn is_program_over(mine: &[u32]) -> io::Result<bool> {
    Ok(others(|tid| mine.contains(&tid), 1)? == 0)
}

/// Whether the program has a single thread, beside those of which `is_ours` is true.
pub fn has_one_thread(is_ours: impl Fn(u32) -> bool) -> io::Result<bool> {
    Ok(others(is_ours, 2)? == 1)
}

/// How many threads have not ended, beside io_uring's and those of which `is_ours` is true: at most so many.
fn others(is_ours: impl Fn(u32) -> bool, most: usize) -> io::Result<usize> {
    let mut found = 0;
    for task in rustix::fs::Dir::new(crate::proc::open(c"/proc/self/task")?)? {
        let Some(tid) = task?.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if is_ours(tid) {
            continue;
        }
        match look_unless_gone(tid)? {
            Some(stat) if stat.flags & PF_IO_WORKER == 0 => found += 1,
            Some(_) | None => {}
        }
        if found == most {
            break;
        }
    }
    Ok(found)
}

/// Whether this thread of the process has ended; not if that cannot be told: in a nested pid namespace threads have other
/// numbers than in the /proc that is looked at, and a child of vfork is a thread of another process.
pub fn has_ended(tid: u32) -> bool {
    match look_at(tid) {
        Ok(stat) => is_over(&stat),
        Err(error) => {
            is_gone(&error) && is_nobody(tid) && look_at(rustix::thread::gettid().as_raw_nonzero().get() as u32).is_ok()
        }
    }
}

/// As [`has_ended`], asked by a thread of the program, whose file table has no descriptors of the agent's.
pub fn has_ended_seen_by_program(tid: u32) -> bool {
    let is_main = tid == rustix::process::getpid().as_raw_nonzero().get() as u32;
    is_nobody(tid)
        || is_main
            && read_stat(|| rustix::fs::open(c"/proc/self/stat", READ, Mode::empty())).is_ok_and(|stat| is_over(&stat))
}

fn is_over(stat: &ThreadStat) -> bool {
    matches!(stat.state, b'Z' | b'X')
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Whether no process has a thread of this number.
fn is_nobody(tid: u32) -> bool {
    let tid = rustix::process::Pid::from_raw(tid as i32);
    tid.is_some_and(|tid| rustix::process::test_kill_process(tid) == Err(rustix::io::Errno::SRCH))
}

/// None of one that has ended, whether it is still listed or not.
fn look_unless_gone(tid: u32) -> io::Result<Option<ThreadStat>> {
    match look_at(tid) {
        Ok(stat) if is_over(&stat) => Ok(None),
        Err(error) if is_gone(&error) => Ok(None),
        stat => stat.map(Some),
    }
}

/// Ends the process as the end of its last thread would have: with the status of its main thread.
pub fn end_process() -> ! {
    let status = look_at(std::process::id()).map_or(0, |stat| stat.exit_code >> 8 & 0xff);
    // SAFETY: the call does not return, and no thread of the program is left to mind it.
    unsafe {
        asm!("syscall", "ud2", in("rax") libc::SYS_exit_group, in("rdi") status, options(noreturn));
    }
}

fn look_at(tid: u32) -> io::Result<ThreadStat> {
    // Asked while another thread forks, when the heap is better left alone.
    let mut path = [0; 64];
    write!(&mut path[..], "/proc/self/task/{tid}/stat\0")?;
    let path = CStr::from_bytes_until_nul(&path).expect("it ends with a null byte");
    read_stat(|| crate::proc::open(path))
}

fn read_stat<E: Into<io::Error>>(open: impl FnOnce() -> Result<OwnedFd, E>) -> io::Result<ThreadStat> {
    let file = open().map_err(Into::into)?;
    let mut text = [0; 1024];
    let len = rustix::io::read(&file, &mut text)?;
    parse(&text[..len]).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `1 (name) S ...`; a name may have spaces and brackets of its own. See proc_pid_stat(5) for the order.
fn parse(text: &[u8]) -> Option<ThreadStat> {
    let name_end = text.iter().rposition(|&byte| byte == b')')?;
    let fields = str::from_utf8(&text[name_end + 1..]).ok()?;
    // The third is the first after the name.
    let field = |number: usize| fields.split_ascii_whitespace().nth(number - 3);
    Some(ThreadStat {
        state: *field(3)?.as_bytes().first()?,
        flags: field(9)?.parse().ok()?,
        exit_code: field(52)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let mut line = String::from("7 (a) b) Z 1 7 7 0 -1 4194316");
        for number in 10..52 {
            line += &format!(" {number}");
        }
        line += " 1792\n";
        assert_eq!(parse(line.as_bytes()), Some(ThreadStat { state: b'Z', flags: 4_194_316, exit_code: 7 << 8 }));
        assert_eq!(parse(b"7 (a) S 1"), None);
    }

    #[test]
    fn our_own_threads_are_seen() {
        let me = std::process::id();
        assert!(look_at(me).unwrap().flags & PF_IO_WORKER == 0);
        assert!(!is_program_over(&[]).unwrap());
        let all: Vec<u32> = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().ok())
            .collect();
        assert!(!is_program_over(&all[..all.len() - 1]).unwrap() || all.len() > 2, "a thread was overlooked");
    }
}
