//! Whether the kernel may make transparent huge pages: in this process (prctl(PR_SET_THP_DISABLE), which a child of fork inherits, and what is
//! executed, too), and of shared memory.
//!
//! A part of a huge page of shared memory cannot be taken out for certain. Where somebody else refers to it at that moment, the kernel fills the
//! part with zeros and leaves it there. So what is to be swapped has none.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs;

use libc::{PR_GET_THP_DISABLE, PR_SET_THP_DISABLE, c_ulong, prctl};

/// PR_GET_THP_DISABLE answers two bits: none is made; and none but where MADV_HUGEPAGE asks for them (Linux 6.18), which PR_SET_THP_DISABLE
/// takes as a flag of its own.
const DISABLED: u32 = 1;
const EXCEPT_ADVISED: u32 = 2;

/// None from here on. What was allowed before; `None` where nothing was, or it is refused.
pub fn forbid() -> Option<u32> {
    // SAFETY: it only answers a number.
    let before = u32::try_from(unsafe { prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) }).ok().filter(|&now| now != DISABLED)?;
    set(true, 0).then_some(before)
}

/// As [`forbid`] found it.
pub fn allow(before: u32) {
    set(before & DISABLED != 0, before & EXCEPT_ADVISED);
}

fn set(disabled: bool, flags: u32) -> bool {
    let zero: c_ulong = 0;
    // SAFETY: huge pages make memory faster, and are not to be told otherwise.
    unsafe { prctl(PR_SET_THP_DISABLE, c_ulong::from(disabled), c_ulong::from(flags), zero, zero) == 0 }
}

/// None in this mapping from here on, wherever the kernel makes them. What had been mapped before keeps those that it has.
pub fn keep_from(start: usize, len: usize) {
    // A kernel that makes none refuses.
    // SAFETY: huge pages make memory faster, and are not to be told otherwise.
    let _ = unsafe { rustix::mm::madvise(start as *mut c_void, len, rustix::mm::Advice::LinuxNoHugepage) };
}

const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";

/// The word in brackets.
fn chosen(setting: &str) -> Option<&str> {
    setting.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

/// Whether the kernel makes them where nobody has asked for them.
fn is_unasked(word: &str) -> bool {
    matches!(word, "always" | "within_size" | "force")
}

/// Whether files in memory of the file system `device` get some of which nobody has said that they are wanted.
pub fn are_made_of_files(device: u64) -> bool {
    let read = |path: String| fs::read_to_string(path).ok();
    let Some(of_all) = read(format!("{SETTINGS}/shmem_enabled")) else { return false };
    let of_all = chosen(&of_all).unwrap_or("always").to_owned();
    match of_all.as_str() {
        "deny" => return false,
        "force" => return true,
        _ => {}
    }
    if let Some(mounts) = read("/proc/thread-self/mountinfo".to_owned())
        && let Some(options) = options_of(&mounts, device)
    {
        return options.split(',').filter_map(|option| option.strip_prefix("huge=")).any(is_unasked);
    }
    // The kernel's own file system, for what has no path.
    let sizes = fs::read_dir(SETTINGS).into_iter().flatten().flatten();
    let mut settings = sizes.filter_map(|size| read(format!("{}/shmem_enabled", size.path().display())));
    is_unasked(&of_all)
        || settings.any(|setting| chosen(&setting).is_some_and(|word| word != "inherit" && is_unasked(word)))
}

/// The file system's own options.
fn options_of(mounts: &str, device: u64) -> Option<&str> {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mount = mounts.lines().find(|mount| mount.split(' ').nth(2) == Some(&number))?;
    mount.split_once(" - ")?.1.split(' ').nth(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> libc::c_int {
        // SAFETY: as above.
        unsafe { prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) }
    }

    #[test]
    fn they_are_as_they_were() {
        assert_eq!(now(), 0);
        let before = forbid();
        assert_eq!((before, now()), (Some(0), 1));
        assert_eq!(forbid(), None, "nothing to forbid");
        allow(before.unwrap());
        assert_eq!(now(), 0);
    }

    #[test]
    fn settings_are_read() {
        assert_eq!(chosen("always within_size [advise] never deny force"), Some("advise"));
        assert!(is_unasked("always") && !is_unasked("advise") && !is_unasked("never"));
        let mounts = "21 1 0:20 / /proc rw - proc proc rw\n25 1 0:24 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw,size=9k,huge=always\n";
        assert_eq!(options_of(mounts, libc::makedev(0, 24)), Some("rw,size=9k,huge=always"));
        assert_eq!(options_of(mounts, libc::makedev(0, 2)), None);
    }
}
