//! Wrappers of stat and its kin: a program that counts its threads does not count the agent's.
//!
//! The directory /proc/self/task has two links, and one more for each thread. Sandboxes look there before they let go of what
//! a second thread could keep: the zygotes of Chromium end at once when they are not alone. All other answers are passed on as
//! they are.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use uswap_sys::thread;

use crate::real::{Real, Wrapper};

/// Links of a directory in /proc without a directory in it.
const LINKS_MIN: u64 = 2;

/// What is asked of all that stat answers, to let nearly everything pass at once.
struct Answer {
    mode: u32,
    links: u64,
    bytes: u64,
    device: (u32, u32),
    inode: u64,
}

impl Answer {
    /// How many links are the agent's. Directories of file systems on disks or in memory have a size.
    fn links_of_the_agent(&self, path: Option<&CStr>) -> u64 {
        let may_be = self.mode & libc::S_IFMT == libc::S_IFDIR && self.links > LINKS_MIN + 1 && self.bytes == 0;
        let is_own = || path.is_some_and(names_own_tasks) || self.is_own_tasks();
        if !may_be || self.device.0 != 0 || !crate::forks::is_member() || !is_own() {
            return 0;
        }
        // One thread asks, whatever is counted: those of the agent come and go.
        u64::from(thread::running()).min(self.links - LINKS_MIN - 1)
    }

    fn is_own_tasks(&self) -> bool {
        let Ok(own) = rustix::fs::stat(c"/proc/self/task") else { return false };
        let device = (rustix::fs::major(own.st_dev), rustix::fs::minor(own.st_dev));
        (device, own.st_ino) == (self.device, self.inode)
    }
}

/// Whether a path ends like that of the directory. The beginning may be gone: a sandbox has an open /proc, and no way to it.
fn names_own_tasks(path: &CStr) -> bool {
    let mut names = path.to_bytes().rsplit(|&byte| byte == b'/').filter(|name| !matches!(**name, [] | [b'.']));
    let is_own = |name: &[u8]| {
        let number = str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok());
        name == b"self" || number == Some(std::process::id())
    };
    names.next() == Some(b"task") && names.next().is_some_and(is_own)
}

/// # Safety
/// `answer` is what a call that succeeded has filled in, and `path` null or its string.
unsafe fn correct(answer: *mut libc::stat, path: *const c_char) {
    // SAFETY: the caller's promise.
    let (answer, path) = unsafe { (&mut *answer, (!path.is_null()).then(|| CStr::from_ptr(path))) };
    let found = Answer {
        mode: answer.st_mode,
        links: answer.st_nlink,
        bytes: answer.st_size as u64,
        device: (rustix::fs::major(answer.st_dev), rustix::fs::minor(answer.st_dev)),
        inode: answer.st_ino,
    };
    answer.st_nlink -= found.links_of_the_agent(path);
}

/// # Safety
/// As above.
unsafe fn correct_extended(answer: *mut libc::statx, path: *const c_char) {
    // SAFETY: the caller's promise.
    let (answer, path) = unsafe { (&mut *answer, (!path.is_null()).then(|| CStr::from_ptr(path))) };
    let needed = libc::STATX_NLINK | libc::STATX_TYPE | libc::STATX_SIZE | libc::STATX_INO;
    if answer.stx_mask & needed != needed {
        return;
    }
    let found = Answer {
        mode: u32::from(answer.stx_mode),
        links: u64::from(answer.stx_nlink),
        bytes: answer.stx_size,
        device: (answer.stx_dev_major, answer.stx_dev_minor),
        inode: answer.stx_ino,
    };
    answer.stx_nlink -= found.links_of_the_agent(path) as u32;
}

/// One wrapper for each name. Where libc has no such function, or before the constructor has looked it up, the system call is
/// made that libc's function makes: it may be called by somebody who holds the loader's lock.
macro_rules! wrap {
    ($($name:ident = $real:literal ($($argument:ident: $kind:ty),*), $call:expr, $correct:ident($answer:ident, $path:expr);)*) => {
        mod real {
            use super::Real;
            $(#[expect(non_upper_case_globals, reason = "named as the functions")]
            pub(super) static $name: Real = Real::new($real);)*
        }

        /// Looks up libc's functions.
        pub(crate) fn prepare() {
            $(let _ = real::$name.get();)*
        }

        /// See [`deep_binding`](crate::deep_binding).
        pub(crate) fn wrappers() -> impl IntoIterator<Item = Wrapper, IntoIter: Clone> {
            [$(real::$name.wrapper()),*]
        }

        $(/// As libc's.
        ///
        /// # Safety
        /// As for stat(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let real = real::$name.known();
            let result = if real.is_null() {
                // SAFETY: the caller's promise.
                unsafe { $call as c_int }
            } else {
                // SAFETY: libc's function of this name and signature, and the caller's promise.
                unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> c_int>(real)($($argument),*) }
            };
            if result == 0 {
                // SAFETY: the call has succeeded, so what it was given is as it should be.
                unsafe { $correct($answer, $path) };
            }
            result
        })*
    };
}

type Path = *const c_char;
type Stat = *mut libc::stat;
const NO_PATH: Path = std::ptr::null();

/// The system call behind all of them but one. The kernel's record is libc's on this machine.
///
/// # Safety
/// As for fstatat(2): a path that ends with a zero, or none, and room for an answer.
unsafe fn ask(directory: c_int, path: Path, answer: Stat, flags: c_int) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, answer, flags) }
}

/// # Safety
/// As for fstat(2): room for an answer.
unsafe fn ask_open(fd: c_int, answer: Stat) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_fstat, fd, answer) }
}

// Programs made for glibc before 2.33 call the second half of these, with a version of the record, of which there is one.
wrap! {
    stat = c"stat" (path: Path, answer: Stat), ask(libc::AT_FDCWD, path, answer, 0), correct(answer, path);
    stat64 = c"stat64" (path: Path, answer: Stat), ask(libc::AT_FDCWD, path, answer, 0), correct(answer, path);
    lstat = c"lstat" (path: Path, answer: Stat),
        ask(libc::AT_FDCWD, path, answer, libc::AT_SYMLINK_NOFOLLOW), correct(answer, path);
    lstat64 = c"lstat64" (path: Path, answer: Stat),
        ask(libc::AT_FDCWD, path, answer, libc::AT_SYMLINK_NOFOLLOW), correct(answer, path);
    fstat = c"fstat" (fd: c_int, answer: Stat), ask_open(fd, answer), correct(answer, NO_PATH);
    fstat64 = c"fstat64" (fd: c_int, answer: Stat), ask_open(fd, answer), correct(answer, NO_PATH);
    fstatat = c"fstatat" (directory: c_int, path: Path, answer: Stat, flags: c_int),
        ask(directory, path, answer, flags), correct(answer, path);
    fstatat64 = c"fstatat64" (directory: c_int, path: Path, answer: Stat, flags: c_int),
        ask(directory, path, answer, flags), correct(answer, path);
    statx = c"statx" (directory: c_int, path: Path, flags: c_int, mask: c_uint, answer: *mut libc::statx),
        libc::syscall(libc::SYS_statx, directory, path, flags, mask, answer), correct_extended(answer, path);
    __xstat = c"__xstat" (version: c_int, path: Path, answer: Stat),
        ask(libc::AT_FDCWD, path, answer, 0), correct(answer, path);
    __xstat64 = c"__xstat64" (version: c_int, path: Path, answer: Stat),
        ask(libc::AT_FDCWD, path, answer, 0), correct(answer, path);
    __lxstat = c"__lxstat" (version: c_int, path: Path, answer: Stat),
        ask(libc::AT_FDCWD, path, answer, libc::AT_SYMLINK_NOFOLLOW), correct(answer, path);
    __lxstat64 = c"__lxstat64" (version: c_int, path: Path, answer: Stat),
        ask(libc::AT_FDCWD, path, answer, libc::AT_SYMLINK_NOFOLLOW), correct(answer, path);
    __fxstat = c"__fxstat" (version: c_int, fd: c_int, answer: Stat),
        ask_open(fd, answer), correct(answer, NO_PATH);
    __fxstat64 = c"__fxstat64" (version: c_int, fd: c_int, answer: Stat),
        ask_open(fd, answer), correct(answer, NO_PATH);
    __fxstatat = c"__fxstatat" (version: c_int, directory: c_int, path: Path, answer: Stat, flags: c_int),
        ask(directory, path, answer, flags), correct(answer, path);
    __fxstatat64 = c"__fxstatat64" (version: c_int, directory: c_int, path: Path, answer: Stat, flags: c_int),
        ask(directory, path, answer, flags), correct(answer, path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_the_own_threads_is_known_by_its_path() {
        let own = format!("/proc/{}/task", std::process::id());
        let own = std::ffi::CString::new(own).unwrap();
        for path in [c"/proc/self/task", c"self/task/", c"/proc//self/./task/.", &own] {
            assert!(names_own_tasks(path), "{path:?}");
        }
        for path in [c"/proc/1/task", c"task", c"/proc/self", c"/proc/self/task/7", c""] {
            assert!(!names_own_tasks(path), "{path:?}");
        }
    }
}
