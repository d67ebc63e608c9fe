//! What /proc tells of processes that are not ours: parents, jobs, sessions, and whether one is stopped or was killed.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use uswap_sys::process_status::has_sigkill;

/// A file of /proc. Names of processes and files may be any bytes: the kernel cuts them in the middle of a character, too.
///
/// # Errors
/// When it cannot be read; the process may have ended.
pub fn read_proc(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// All processes that we can see, with their parents.
pub fn parents_of_all_processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let look = |entry: io::Result<fs::DirEntry>| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Some((pid, parent_of(pid)?))
    };
    entries.filter_map(look).collect()
}

/// Whether a process is below us, by the parents of all.
pub fn descends_from_us(pid: u32, parents: &HashMap<u32, u32>) -> bool {
    generations_below_us(pid, parents).is_some()
}

/// How many generations lie between us and a process below us, by the parents of all. None for who is not below us.
pub fn generations_below_us(pid: u32, parents: &HashMap<u32, u32>) -> Option<usize> {
    let me = std::process::id();
    // A pid may have been used again while the list was made: no more steps than there are processes.
    let line = std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(parents.len() + 1);
    line.skip(1).position(|parent| parent == me)
}

/// The parent of a process that lives.
pub fn parent_of(pid: u32) -> Option<u32> {
    let stat = read_proc(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state ppid ...; the name may have anything in it.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z").then_some(parent)
}

/// Whether a process is stopped, by a signal or by who traces it.
pub fn is_stopped(pid: u32) -> bool {
    let stat = read_proc(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['T', 't']))
}

/// Whether a process was killed by somebody or has ended, though it may not have noticed yet.
pub fn is_killed(pid: u32) -> bool {
    let status = match read_proc(format!("/proc/{pid}/status")) {
        Ok(status) => status,
        Err(error) => return error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH),
    };
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.any(|(key, value)| match key {
        "State" => value.trim().starts_with(['Z', 'X']),
        _ => has_sigkill_pending(key, value),
    })
}

/// Whether this line of a `status` says that SIGKILL is pending.
pub fn has_sigkill_pending(key: &str, mask: &str) -> bool {
    matches!(key, "SigPnd" | "ShdPnd") && has_sigkill(mask)
}

/// The process group of a process, and the one in the foreground of its terminal, if it has one.
pub fn job_of(pid: u32) -> Option<(i32, i32)> {
    let stat = read_proc(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state ppid pgrp session tty_nr tpgid ...
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(2);
    let group = fields.next()?.parse().ok()?;
    Some((group, fields.nth(2)?.parse().ok()?))
}

/// The session of a process: 0 where its leader is outside of our pid namespace.
pub fn session_of(pid: u32) -> Option<u32> {
    let stat = read_proc(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state ppid pgrp session ...
    stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use uswap_sys::launch;

    use super::*;

    #[test]
    fn a_process_that_leads_a_session_is_known() {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new("cat");
        let mut leader = command.stdin(std::process::Stdio::piped()).process_group(0).spawn().unwrap();
        let own = session_of(std::process::id());
        assert!(own.is_some() && session_of(leader.id()) == own, "one that only leads a group is in ours");
        drop(leader.stdin.take());
        leader.wait().unwrap();
    }

    #[test]
    fn who_was_killed_is_known_at_once() {
        for _ in 0..200 {
            let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
            assert!(!is_killed(child.id()));
            child.kill().unwrap();
            assert!(is_killed(child.id()));
            child.wait().unwrap();
            assert!(is_killed(child.id()));
        }
    }

    #[test]
    fn a_process_with_any_bytes_for_a_name_is_known() {
        // A thread of this process stands for one: its directory has the same files.
        std::thread::spawn(|| {
            rustix::thread::set_name(c"caf\xe9").unwrap();
            let stat = read_proc("/proc/thread-self/stat").unwrap();
            assert!(stat.contains("(caf\u{fffd}) "), "{stat}");
            assert!(fs::read_to_string("/proc/thread-self/stat").is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn descent_is_followed_over_generations_and_never_for_ever() {
        let me = std::process::id();
        let (child, grandchild) = (me + 1, me + 2);
        let parents = HashMap::from([(child, me), (grandchild, child), (7_000_001, 7_000_002), (7_000_002, 7_000_001)]);
        assert!(descends_from_us(child, &parents) && descends_from_us(grandchild, &parents));
        assert!(generations_below_us(child, &parents) < generations_below_us(grandchild, &parents));
        assert!(!descends_from_us(7_000_001, &parents) && !descends_from_us(7_000_003, &parents));
    }

    #[test]
    fn our_own_parent_is_found() {
        let parents = parents_of_all_processes();
        let parent = std::os::unix::process::parent_id();
        assert!(parents.contains(&(std::process::id(), parent)));
    }

    #[test]
    fn a_stopped_process_is_told_from_one_that_runs() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for (signal, stopped) in [(libc::SIGSTOP, true), (libc::SIGCONT, false)] {
            launch::send_signal(child.id(), signal).unwrap();
            let until = Instant::now() + Duration::from_secs(10);
            while is_stopped(child.id()) != stopped {
                assert!(Instant::now() < until, "after signal {signal}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
