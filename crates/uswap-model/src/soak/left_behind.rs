//! What processes of the model leave behind in this process of the machine: memory and descriptors, which nobody uses any more when
//! their world is over. Engines are never dropped, as on Linux, where the kernel clears up after them.

#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard};

use uswap_sys::{placement, private_memory};

/// Worlds that run in this process of the machine.
struct Worlds {
    running: usize,
    /// Where mappings began when the first of them did.
    from: usize,
    /// Descriptors that those which are over have left.
    descriptors: Vec<RawFd>,
}

static WORLDS: Mutex<Worlds> = Mutex::new(Worlds { running: 0, from: 0, descriptors: Vec::new() });

fn worlds() -> MutexGuard<'static, Worlds> {
    WORLDS.lock().expect("no thread panics with this lock")
}

/// A world that runs: when this is dropped, and no other runs, what was left behind goes.
pub(super) struct LeftBehind {
    descriptors: Vec<RawFd>,
}

impl LeftBehind {
    /// A world begins. In a process that runs worlds of the soak, nothing else maps memory by `placement` meanwhile.
    pub fn begin() -> LeftBehind {
        let mut worlds = worlds();
        if worlds.running == 0 {
            worlds.from = placement::next();
        }
        worlds.running += 1;
        LeftBehind { descriptors: Vec::new() }
    }

    /// These descriptors were given to processes; those that are still open refer to one of `files`.
    pub fn descriptors(&mut self, mut given: Vec<RawFd>, files: &[OwnedFd]) {
        // Who could not start has closed its own, and the next one was given the same numbers.
        given.sort_unstable();
        given.dedup();
        let inode = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let files: Vec<_> = files.iter().filter_map(|file| rustix::fs::fstat(file).ok().map(inode)).collect();
        self.descriptors.extend(given.into_iter().filter(|&given| {
            // SAFETY: it is only looked at, and a number that is no descriptor is refused.
            let found = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(given) });
            found.is_ok_and(|found| files.contains(&inode(found)))
        }));
    }
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        let mut worlds = worlds();
        worlds.descriptors.append(&mut self.descriptors);
        worlds.running -= 1;
        if worlds.running > 0 {
            return;
        }
        for descriptor in std::mem::take(&mut worlds.descriptors) {
            // SAFETY: it was given to a process of a world that is over; its owner is leaked and never dropped.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
        // SAFETY: no world runs, and what the threads and engines of those that did had mapped is leaked, not dropped.
        unsafe { private_memory::unmap_since(worlds.from) };
    }
}
