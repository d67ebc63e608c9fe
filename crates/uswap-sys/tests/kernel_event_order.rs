//! What docs/event-order.md says that Linux does: which reports a call makes, in which order, and what is counted meanwhile.
//!
//! Each test says why when it is skipped: the descriptor may be forbidden here. One runs at a time, and holes that one makes are
//! enclosed by memory of its own: what others map, stacks of threads too, would come to lie there otherwise, and be moved over.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::with_exposed_provenance_mut as at;
use std::sync::{Mutex, MutexGuard, PoisonError};

use uswap_sys::PAGE_SIZE as P;
use uswap_sys::uffd::{Features, Message, RawMessage, Uffd, UffdUnavailable};

static ALONE: Mutex<()> = Mutex::new(());

fn uffd() -> Option<(Uffd, MutexGuard<'static, ()>)> {
    let features = Features::EVENT_REMAP.with(Features::EVENT_REMOVE).with(Features::EVENT_UNMAP);
    let opened = match File::open("/dev/userfaultfd") {
        Ok(device) => Uffd::new(Some(device.as_fd()), features),
        Err(_) => Uffd::new(None, features),
    };
    match opened {
        Ok(uffd) => Some((uffd, ALONE.lock().unwrap_or_else(PoisonError::into_inner))),
        Err(why @ (UffdUnavailable::NoPermission | UffdUnavailable::NotSupported(_))) => {
            println!("skipped: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// Fresh memory, or more of it at `place`.
fn map(place: usize, pages: usize) -> usize {
    let fixed = if place == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: an address that the kernel picks, or memory of this test.
    let mapped = unsafe { libc::mmap(at(place), pages * P, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped.expose_provenance()
}

fn registered(uffd: &Uffd, pages: usize) -> usize {
    let start = map(0, pages);
    uffd.register(start, pages * P).unwrap();
    start
}

fn unmap(start: usize, pages: usize) {
    // SAFETY: memory of this test.
    assert_eq!(unsafe { libc::munmap(at(start), pages * P) }, 0);
}

fn remap(from: usize, pages: usize, new_pages: usize, flags: i32, to: usize) -> usize {
    // SAFETY: memory of this test.
    let moved = unsafe { libc::mremap(at(from), pages * P, new_pages * P, flags, at::<libc::c_void>(to)) };
    assert_ne!(moved, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    moved.expose_provenance()
}

fn next(uffd: &Uffd) -> Message {
    loop {
        assert!(uffd.wait_readable(Some(10_000)).unwrap(), "no report came");
        let mut message = [RawMessage::default()];
        if uffd.read(&mut message).unwrap() == 1 {
            return message[0].decode();
        }
    }
}

/// The reports of `call`. It is counted until the last was read, and it has not returned before that.
fn reports_of<T: Send>(uffd: &Uffd, count: usize, call: impl FnOnce() -> T + Send) -> (Vec<String>, T) {
    std::thread::scope(|scope| {
        let called = scope.spawn(call);
        let mut reports = Vec::new();
        for _ in 0..count {
            assert!(uffd.wait_readable(Some(10_000)).unwrap(), "no report came");
            assert!(uffd.is_changing() && !called.is_finished(), "a report is unread");
            reports.push(format!("{:x?}", next(uffd)));
        }
        let returned = called.join().unwrap();
        assert!(!uffd.is_changing() && !uffd.wait_readable(Some(0)).unwrap());
        (reports, returned)
    })
}

fn unmapped(start: usize, pages: usize) -> String {
    format!("{:x?}", Message::Unmap { start, end: start + pages * P })
}

fn moved(from: usize, to: usize, pages: usize) -> String {
    format!("{:x?}", Message::Remap { from, to, len: pages * P })
}

#[test]
fn a_mremap_is_reported_at_its_new_place_and_then_at_its_old() {
    let Some((uffd, _alone)) = uffd() else { return };
    // What lies at the new place is not registered, and nothing is reported of it.
    let (from, to) = (registered(&uffd, 4), map(0, 16));
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (reports, _) = reports_of(&uffd, 2, || remap(from, 4, 4, flags, to));
    assert_eq!(reports, [moved(from, to, 4), unmapped(from, 4)]);
    // One page from the middle; and growth, with the old length.
    let next = to + 8 * P;
    let (reports, _) = reports_of(&uffd, 2, || remap(to + P, 1, 1, flags, next));
    assert_eq!(reports, [moved(to + P, next, 1), unmapped(to + P, 1)]);
    let (reports, _) = reports_of(&uffd, 2, || remap(to + 2 * P, 2, 3, flags, next + P));
    assert_eq!(reports, [moved(to + 2 * P, next + P, 2), unmapped(to + 2 * P, 2)]);
    assert_eq!(uffd.is_registered(next + P, 3 * P), Some(true));
}

#[test]
fn what_a_mremap_covers_is_reported_before_it() {
    let Some((uffd, _alone)) = uffd() else { return };
    let (from, to) = (registered(&uffd, 2), registered(&uffd, 2));
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (reports, _) = reports_of(&uffd, 3, || remap(from, 2, 2, flags, to));
    assert_eq!(reports, [unmapped(to, 2), moved(from, to, 2), unmapped(from, 2)]);
}

#[test]
fn a_mremap_that_leaves_its_old_place_is_reported_once() {
    let Some((uffd, _alone)) = uffd() else { return };
    let from = registered(&uffd, 2);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let (reports, to) = reports_of(&uffd, 1, || remap(from, 2, 2, flags, 0));
    assert_eq!(reports, [moved(from, to, 2)]);
    assert_eq!(uffd.is_registered(from, 2 * P), Some(true));
    assert_eq!(uffd.is_registered(to, 2 * P), Some(true));
}

#[test]
fn shrinking_is_reported_and_growing_in_its_place_is_not() {
    let Some((uffd, _alone)) = uffd() else { return };
    let start = map(0, 6);
    unmap(start + 2 * P, 2);
    uffd.register(start, 2 * P).unwrap();
    let (reports, _) = reports_of(&uffd, 0, || remap(start, 2, 4, 0, 0));
    assert!(reports.is_empty());
    assert_eq!(uffd.is_registered(start, 4 * P), Some(true));
    let (reports, _) = reports_of(&uffd, 1, || remap(start, 4, 1, 0, 0));
    assert_eq!(reports, [unmapped(start + P, 3)]);
}

#[test]
fn unmapping_is_reported_once_for_the_whole_call() {
    let Some((uffd, _alone)) = uffd() else { return };
    let start = map(0, 6);
    uffd.register(start, P).unwrap();
    uffd.register(start + 3 * P, P).unwrap();
    unmap(start + 5 * P, 1);
    let (reports, ()) = reports_of(&uffd, 1, || unmap(start, 6));
    assert_eq!(reports, [unmapped(start, 6)]);
    // What is mapped over it is reported alike, and is not registered.
    let start = registered(&uffd, 3);
    let (reports, _) = reports_of(&uffd, 1, || map(start + P, 2));
    assert_eq!(reports, [unmapped(start + P, 2)]);
    assert_eq!(uffd.is_registered(start + P, P), Some(false));
}

#[test]
fn protecting_is_not_reported_and_discarding_is_before_it_takes_effect() {
    let Some((uffd, _alone)) = uffd() else { return };
    let start = registered(&uffd, 3);
    let (reports, _) = reports_of(&uffd, 0, || {
        // SAFETY: memory of this test.
        assert_eq!(unsafe { libc::mprotect(at(start + P), P, libc::PROT_READ) }, 0);
    });
    assert!(reports.is_empty());
    for advice in [libc::MADV_DONTNEED, libc::MADV_FREE] {
        let (reports, ()) = reports_of(&uffd, 1, || {
            // SAFETY: memory of this test.
            assert_eq!(unsafe { libc::madvise(at(start), P, advice) }, 0);
        });
        assert_eq!(reports, [format!("{:x?}", Message::Remove { start, end: start + P })]);
    }
}
