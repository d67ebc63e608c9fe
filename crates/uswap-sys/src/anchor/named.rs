//! Whether a process names the anchor in its environment.
//!
//! A program without an agent may outlive its run, and execute others with the LD_PRELOAD that it was given. When the anchor has ended, its
//! number is another process's, sooner or later, and what the loader then finds at /proc/PID/fd/N is that one's. Nobody but root could
//! open it there, so this is asked, and answered, as root only.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, RawDir};
use rustix::thread::Timespec;

/// When it is looked again for those who name the anchor: after a second, and after twice as long each time, but no more than a minute.
const LOOK_AGAIN_SECONDS: i64 = 1;
const LOOK_EVERY_SECONDS: i64 = 64;
/// So many looks in a row find nobody, before it is taken that there is nobody: a process that executes a program has no environment for a
/// moment, which is long on a busy machine.
const LOOKS_IN_VAIN: u32 = 3;
/// The time between them, in nanoseconds.
const LOOK_SOON_NS: i64 = 100_000_000;
/// Longest `/proc/PID/fd/`.
const NAME_MAX: usize = 24;

/// Returns when no process names a descriptor of this one in its environment. Makes system calls and nothing else.
pub(super) fn wait_until_unnamed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut room = [0; NAME_MAX];
    let name = name(rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(), &mut room);
    wait_until_not(|| is_named(name), |pause| drop(rustix::thread::nanosleep(&pause)));
}

fn wait_until_not(mut is_named: impl FnMut() -> bool, mut sleep: impl FnMut(Timespec)) {
    let (mut seconds, mut in_vain) = (LOOK_AGAIN_SECONDS, 0);
    loop {
        if is_named() {
            in_vain = 0;
            sleep(Timespec { tv_sec: seconds, tv_nsec: 0 });
            seconds = (2 * seconds).min(LOOK_EVERY_SECONDS);
            continue;
        }
        in_vain += 1;
        if in_vain == LOOKS_IN_VAIN {
            return;
        }
        sleep(Timespec { tv_sec: 0, tv_nsec: LOOK_SOON_NS });
    }
}

/// How descriptors of a process are named.
fn name(pid: u32, room: &mut [u8; NAME_MAX]) -> &[u8] {
    let mut digits = [0; 10];
    let mut rest = pid;
    let mut first = digits.len();
    while first == digits.len() || rest > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut end = 0;
    for part in [b"/proc/", &digits[first..], b"/fd/"] {
        room[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    &room[..end]
}

/// Whether a process has `name` in its environment.
fn is_named(name: &[u8]) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(proc) = rustix::fs::openat(CWD, c"/proc", flags | OFlags::DIRECTORY, Mode::empty()) else { return false };
    let mut room = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&proc, &mut room);
    while let Some(Ok(entry)) = entries.next() {
        let pid = entry.file_name().to_bytes();
        let mut path = [0; 32];
        let file = b"/environ";
        if !pid.iter().all(u8::is_ascii_digit) || pid.len() + file.len() > path.len() {
            continue;
        }
        path[..pid.len()].copy_from_slice(pid);
        path[pid.len()..][..file.len()].copy_from_slice(file);
        let path = &path[..pid.len() + file.len()];
        if rustix::fs::openat(&proc, path, flags, Mode::empty()).is_ok_and(|environment| has(&environment, name)) {
            return true;
        }
    }
    false
}

/// Whether `name` is in a file.
fn has(file: &OwnedFd, name: &[u8]) -> bool {
    let mut text = [0; 4096];
    let mut kept = 0;
    loop {
        let end = match rustix::io::retry_on_intr(|| rustix::io::read(file, &mut text[kept..])) {
            Ok(0) | Err(_) => return false,
            Ok(count) => kept + count,
        };
        if text[..end].windows(name.len()).any(|part| part == name) {
            return true;
        }
        // Its first part may be here, and its rest come next.
        kept = end.min(name.len() - 1);
        text.copy_within(end - kept..end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that executes a program is not to be seen for a moment.
    #[test]
    fn nobody_is_there_when_several_looks_find_nobody() {
        let seen = [false, false, true, true, false, true, false, false, false];
        let (mut looks, mut pauses) = (0, Vec::new());
        let mut look = || {
            looks += 1;
            seen[looks - 1]
        };
        wait_until_not(&mut look, |pause| pauses.push((pause.tv_sec, pause.tv_nsec / 1_000_000)));
        assert_eq!(looks, seen.len());
        assert_eq!(pauses, [(0, 100), (0, 100), (1, 0), (2, 0), (0, 100), (4, 0), (0, 100), (0, 100)]);
    }

    #[test]
    fn a_name_is_found_wherever_it_lies() {
        let mut room = [0; NAME_MAX];
        assert_eq!(name(4_194_303, &mut room), b"/proc/4194303/fd/");
        let mut room = [0; NAME_MAX];
        assert_eq!(name(u32::MAX, &mut room), b"/proc/4294967295/fd/");
        let mut room = [0; NAME_MAX];
        let name = name(7, &mut room);
        for before in [0, 1, 4090, 4096 - name.len(), 4096, 9000] {
            let file = crate::anchor::memory_file(c"test").unwrap();
            let mut text = vec![b'/'; before];
            text.extend_from_slice(name);
            rustix::io::pwrite(&file, &text, 0).unwrap();
            assert!(has(&file, name), "{before}");
            rustix::fs::ftruncate(&file, text.len() as u64 - 1).unwrap();
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
            assert!(!has(&file, name), "{before}");
        }
    }
}
