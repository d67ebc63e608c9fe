//! userfaultfd as this kernel does it: the facts that the engine is built on.
//!
//! Each test says why when it is skipped: the descriptor may be forbidden here.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::with_exposed_provenance_mut as at;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use uswap_sys::PAGE_SIZE as P;
use uswap_sys::pagemap::PageMap;
use uswap_sys::uffd::{
    Features, Holes, Message, Progress, RawMessage, Stop, Uffd, UffdUnavailable, Wake, make_exclusive,
};
use uswap_system::looks::Residency;

/// A descriptor by the device or by the system call, or the end of the test.
macro_rules! uffd_or_skip {
    ($features:expr) => {
        match open($features) {
            Ok(uffd) => uffd,
            Err(why @ (UffdUnavailable::NoPermission | UffdUnavailable::NotSupported(_))) => {
                println!("skipped: {why}");
                return;
            }
            Err(why) => panic!("{why}"),
        }
    };
}

fn open(features: Features) -> Result<Uffd, UffdUnavailable> {
    match File::open("/dev/userfaultfd") {
        Ok(device) => Uffd::new(Some(device.as_fd()), features),
        Err(_) => Uffd::new(None, features),
    }
}

/// Fresh anonymous memory, of small pages, never unmapped: an unmap could wait for its event's reader.
fn pages(count: usize) -> usize {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel picks an address that nothing uses.
    let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), count * P, prot, MapFlags::PRIVATE) }.unwrap();
    // SAFETY: mapped above; the advice changes no content.
    let _ = unsafe { rustix::mm::madvise(base, count * P, Advice::LinuxNoHugepage) };
    base.expose_provenance()
}

/// Memory registered with a descriptor.
fn registered(uffd: &Uffd, count: usize) -> usize {
    let start = pages(count);
    uffd.register(start, count * P).unwrap();
    start
}

fn write(address: usize, value: u8) {
    // SAFETY: the tests write to their own pages only.
    unsafe { at::<u8>(address).write_volatile(value) }
}

fn read(address: usize) -> u8 {
    // SAFETY: the tests read their own pages only.
    unsafe { at::<u8>(address).read_volatile() }
}

fn stopped(bytes: usize, stop: Stop) -> Progress {
    Progress { bytes, stop: Some(stop) }
}

fn complete(bytes: usize) -> Progress {
    Progress { bytes, stop: None }
}

/// Waits for the next message.
fn next(uffd: &Uffd) -> Message {
    loop {
        assert!(uffd.wait_readable(Some(10_000)).unwrap(), "no message came");
        let mut message = [RawMessage::default()];
        if uffd.read(&mut message).unwrap() == 1 {
            return message[0].decode();
        }
    }
}

static DATA: [u8; 4 * P] = [7; 4 * P];
/// What a page table is about.
const TABLE: usize = 512 * P;

#[test]
fn t11a_a_second_copy_finds_the_page_there() {
    let uffd = uffd_or_skip!(Features::NONE);
    let start = registered(&uffd, 1);
    assert_eq!(uffd.copy(start, DATA.as_ptr(), P, Wake::Wake), complete(P));
    assert_eq!(uffd.copy(start, DATA.as_ptr(), P, Wake::Wake), stopped(0, Stop::AlreadyThere));
    assert_eq!(read(start), 7);
}

#[test]
fn t11b_a_copy_stops_at_the_page_that_is_there() {
    let uffd = uffd_or_skip!(Features::NONE);
    let start = registered(&uffd, 4);
    assert!(uffd.copy(start + 2 * P, DATA.as_ptr(), P, Wake::Wake).is_complete());
    assert_eq!(uffd.copy(start, DATA.as_ptr(), 4 * P, Wake::Wake), stopped(2 * P, Stop::AlreadyThere));
}

#[test]
fn t11c_a_move_refuses_or_skips_holes() {
    let uffd = uffd_or_skip!(Features::MOVE);
    let (source, target) = (pages(2), registered(&uffd, 2));
    write(source + P, 9);
    assert_eq!(uffd.move_pages(target, source, P, Holes::Refuse, Wake::Wake), stopped(0, Stop::Missing));
    assert_eq!(uffd.move_pages(target, source, P, Holes::Allow, Wake::Wake), complete(P));
    assert_eq!(uffd.move_pages(target, source, 2 * P, Holes::Allow, Wake::Wake), complete(2 * P));
    assert_eq!(read(target + P), 9);
    // The source page is gone: it reads as fresh memory.
    assert_eq!(read(source + P), 0);
}

#[test]
fn t11d_a_page_shared_by_fork_cannot_be_moved_until_written() {
    let uffd = uffd_or_skip!(Features::MOVE);
    let (source, target) = (pages(1), registered(&uffd, 1));
    write(source, 1);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (child_reader, child_writer) = std::io::pipe().unwrap();
    // SAFETY: the child makes system calls only, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(writer);
        drop(child_reader);
        let _ = reader.read(&mut [0]);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    drop(reader);
    drop(child_reader);
    drop(child_writer);
    let try_move = || uffd.move_pages(target, source, P, Holes::Refuse, Wake::Wake);
    assert_eq!(try_move(), stopped(0, Stop::Busy));
    drop(writer);
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(try_move(), stopped(0, Stop::Busy), "even after its exit");
    // SAFETY: our own page, present and writable.
    unsafe { make_exclusive(source) };
    assert_eq!(try_move(), complete(P));
    assert_eq!(read(target), 1);
}

/// What MADV_FREE has given up stays given up when it is moved, until it is written to: the kernel may drop it.
#[test]
fn what_was_given_up_lazily_may_be_dropped_where_it_was_moved_to() {
    let uffd = uffd_or_skip!(Features::MOVE);
    const COUNT: usize = 64;
    let pagemap = PageMap::open_self().unwrap();
    let page_out = |start: usize| {
        // SAFETY: the test's own pages; the advice changes no content but of what was given up.
        let _ = unsafe { rustix::mm::madvise(at(start), COUNT * P, Advice::LinuxPageOut) };
        (0..COUNT).filter(|index| !pagemap.has_populated(start + index * P, start + (index + 1) * P).unwrap()).count()
    };
    let dropped = |holds: bool| {
        let (source, target) = (pages(COUNT), registered(&uffd, COUNT));
        (0..COUNT).for_each(|index| write(source + index * P, 7));
        // SAFETY: the test's own pages.
        unsafe { rustix::mm::madvise(at(source), COUNT * P, Advice::LinuxFree).unwrap() };
        let moved = uffd.move_pages(target, source, COUNT * P, Holes::Refuse, Wake::DontWake);
        assert_eq!(moved, complete(COUNT * P));
        if holds {
            for first in (0..COUNT).step_by(16) {
                assert_eq!(pagemap.keep_lazily_freed(target + first * P, u16::MAX).unwrap(), 0);
            }
            (0..COUNT).for_each(|index| assert_eq!(read(target + index * P), 7));
        }
        page_out(target)
    };
    let lazy = dropped(false);
    println!("of {COUNT} pages {lazy} were dropped");
    assert_eq!(dropped(true), 0);
    // A page that is not there is gone, and nobody waits.
    let (start, mask) = (registered(&uffd, 16), 0b1010_0000_0000_0110);
    assert_eq!(pagemap.keep_lazily_freed(start, mask).unwrap(), mask);
    assert!(lazy > 0, "this kernel drops nothing of what it moved");
}

#[test]
fn t11e_nothing_is_filled_while_a_remove_event_is_unread() {
    let uffd = uffd_or_skip!(Features::EVENT_REMOVE);
    let start = registered(&uffd, 2);
    assert!(uffd.copy(start + P, DATA.as_ptr(), P, Wake::Wake).is_complete());
    std::thread::scope(|scope| {
        // SAFETY: throws away the content of our own page.
        scope.spawn(move || unsafe {
            rustix::mm::madvise(at(start + P), P, Advice::LinuxDontNeed).unwrap();
        });
        assert!(uffd.wait_readable(Some(10_000)).unwrap());
        assert_eq!(uffd.copy(start, DATA.as_ptr(), P, Wake::Wake), stopped(0, Stop::TryLater));
        assert!(uffd.is_changing());
        assert_eq!(next(&uffd), Message::Remove { start: start + P, end: start + 2 * P });
    });
    // The event is read and its thread has gone on.
    assert!(!uffd.is_changing());
    assert_eq!(uffd.copy(start, DATA.as_ptr(), P, Wake::Wake), complete(P));
    assert_eq!(uffd.copy(start + P, DATA.as_ptr(), P, Wake::Wake), complete(P));
}

#[test]
fn t11m_what_is_registered_can_be_asked() {
    let uffd = uffd_or_skip!(Features::EVENT_UNMAP);
    let without_events = uffd_or_skip!(Features::NONE);
    let start = registered(&uffd, 4);
    assert_eq!(uffd.is_registered(start, 4 * P), Some(true));
    assert_eq!(uffd.is_registered(start + 3 * P, P), Some(true));
    // Whatever its pages are, and nothing of them is changed.
    assert!(uffd.copy(start + P, DATA.as_ptr(), P, Wake::Wake).is_complete());
    assert_eq!(uffd.is_registered(start, 2 * P), Some(true));
    // SAFETY: our own page, populated.
    assert_eq!(unsafe { *((start + P) as *const u8) }, DATA[0]);
    uffd.unregister(start + 2 * P, P).unwrap();
    assert_eq!(uffd.is_registered(start + 2 * P, P), Some(false));
    assert_eq!(uffd.is_registered(start, 4 * P), Some(false));
    assert_eq!(uffd.is_registered(start, 2 * P), Some(true));
    std::thread::scope(|scope| {
        // SAFETY: our own mapping, not used any more.
        scope.spawn(move || unsafe { rustix::mm::munmap(at(start + 3 * P), P).unwrap() });
        assert!(uffd.wait_readable(Some(10_000)).unwrap());
        assert_eq!(uffd.is_registered(start, P), None);
        // Nor is it told of what is not registered; but by one without events.
        assert_eq!(uffd.is_registered(start + 2 * P, P), None);
        assert!(without_events.sees_registered(start, P) && !without_events.sees_registered(start + 2 * P, P));
        // So it is with filling, whosever the memory is.
        assert_eq!(uffd.zeropage(start, P, Wake::Wake).stop, Some(Stop::TryLater));
        assert_eq!(without_events.zeropage(start, P, Wake::DontWake), complete(P));
        assert_eq!(without_events.zeropage(start, P, Wake::DontWake).stop, Some(Stop::AlreadyThere));
        assert_eq!(next(&uffd), Message::Unmap { start: start + 3 * P, end: start + 4 * P });
    });
    assert_eq!(uffd.is_registered(start + 3 * P, P), Some(false));
    assert_eq!(uffd.is_registered(start, P), Some(true));
    assert!(without_events.sees_registered(start, P) && !without_events.sees_registered(start + 3 * P, P));
    // Another's is another's, and stays so; that is asked for where there may be one.
    let theirs = uffd_or_skip!(Features::NONE);
    let other = registered(&theirs, 1);
    assert_eq!(uffd.is_registered(other, P), Some(true));
    uswap_sys::uffd::HAS_OTHERS.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(uffd.is_registered(other, P), Some(false));
    assert_eq!(theirs.is_registered(other, P), Some(true));
    assert!(!without_events.sees_registered(start, P));
}

/// The supervisor holds descriptors of other processes: a child puts its own in place of one of ours.
#[test]
fn t11f_a_process_that_has_ended_is_told_apart() {
    let device = File::open("/dev/userfaultfd").ok();
    let uffd = uffd_or_skip!(Features::NONE);
    let start = pages(1);
    let (mut from_child, mut to_parent) = std::io::pipe().unwrap();
    let (mut from_parent, mut to_child) = std::io::pipe().unwrap();
    // The table of descriptors is shared, memory is not.
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: the child makes system calls only, and ends without returning. It closes nothing: that would be ours, too.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if child == 0 {
        let theirs = Uffd::new(device.as_ref().map(AsFd::as_fd), Features::NONE);
        let is_registered = theirs.as_ref().is_ok_and(|theirs| theirs.register(start, P).is_ok());
        let is_ours = is_registered
            && theirs.as_ref().is_ok_and(|theirs| {
                // SAFETY: what `uffd` was is not used any more; it has nothing registered.
                unsafe { libc::dup2(theirs.as_fd().as_raw_fd(), uffd.as_fd().as_raw_fd()) >= 0 }
            });
        let _ = to_parent.write(&[u8::from(is_ours)]);
        let _ = from_parent.read(&mut [0]);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    let mut is_ours = [0];
    from_child.read_exact(&mut is_ours).unwrap();
    assert_eq!(is_ours, [1]);
    assert_eq!(uffd.copy(start, DATA.as_ptr(), P, Wake::Wake), complete(P), "into the child's memory");
    to_child.write_all(&[0]).unwrap();
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child as i32, &mut status, 0) }, child as i32);
    assert_eq!(uffd.copy(start, DATA.as_ptr(), P, Wake::Wake), stopped(0, Stop::ProcessGone));
}

#[test]
fn t11g_mremap_tells_the_new_place_and_then_the_end_of_the_old() {
    let uffd = uffd_or_skip!(Features::EVENT_REMAP | Features::EVENT_UNMAP);
    let from = registered(&uffd, 2);
    let to = pages(2);
    std::thread::scope(|scope| {
        // SAFETY: both ranges are ours; nobody uses the target's old content.
        scope.spawn(move || unsafe {
            rustix::mm::mremap_fixed(at(from), 2 * P, 2 * P, MremapFlags::MAYMOVE, at(to)).unwrap();
        });
        assert_eq!(next(&uffd), Message::Remap { from, to, len: 2 * P });
        assert_eq!(next(&uffd), Message::Unmap { start: from, end: from + 2 * P });
    });
    // Registration has moved along.
    assert_eq!(uffd.copy(to, DATA.as_ptr(), P, Wake::Wake), complete(P));
    assert_eq!(uffd.copy(from, DATA.as_ptr(), P, Wake::Wake), stopped(0, Stop::Missing));
}

#[test]
fn a_fault_waits_until_its_page_is_filled() {
    let uffd = uffd_or_skip!(Features::THREAD_ID | Features::MOVE);
    let start = registered(&uffd, 3);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || (read(start), read(start + P)));
        let write_to = scope.spawn(move || {
            write(start + 2 * P, 5);
            read(start + 2 * P)
        });
        let mut seen = Vec::new();
        for _ in 0..3 {
            let Message::Fault { addr, write, .. } = next(&uffd) else {
                panic!("not a fault");
            };
            seen.push((addr, write));
            if addr == start {
                assert!(uffd.copy(addr, DATA.as_ptr(), P, Wake::DontWake).is_complete());
                uffd.wake(addr, P).unwrap();
            } else {
                assert!(uffd.zeropage(addr, P, Wake::Wake).is_complete());
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, [(start, false), (start + P, false), (start + 2 * P, true)]);
        assert_eq!(reader.join().unwrap(), (7, 0));
        assert_eq!(write_to.join().unwrap(), 5);
    });
}

#[test]
fn a_poisoned_page_refuses_to_be_filled_with_zeros() {
    let uffd = uffd_or_skip!(Features::POISON);
    let start = registered(&uffd, 2);
    assert_eq!(uffd.poison(start, 2 * P), complete(2 * P));
    assert_eq!(uffd.zeropage(start, P, Wake::Wake), stopped(0, Stop::AlreadyThere));
    // A copy overwrites the marker.
    assert_eq!(uffd.copy(start, DATA.as_ptr(), P, Wake::Wake), complete(P));
    assert_eq!(read(start), 7);
}

/// Fills of a page that only one thread fills and drops, refused while others drop these parts of its 2 MiB.
fn refused_while_others_drop(uffd: &Uffd, parts: impl Fn(usize) -> Vec<(usize, usize)>) -> usize {
    const FILLS: usize = 60_000;
    /// More than there are CPUs: it takes that who fills is not running for a moment.
    const DROPPERS: usize = 6;
    let start = registered(uffd, 2 * TABLE / P).next_multiple_of(TABLE);
    let page = start + TABLE / 2;
    let drop_all = |parts: &[(usize, usize)]| {
        for &(from, to) in parts {
            // SAFETY: private memory of this test's, in which nobody has a reference.
            unsafe { rustix::mm::madvise(at(from), to - from, Advice::LinuxDontNeed) }.unwrap();
        }
    };
    let parts = parts(start);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..DROPPERS {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    drop_all(&parts);
                }
            });
        }
        let fills = (0..FILLS).filter(|_| {
            drop_all(&[(page, page + P)]);
            !uffd.copy(page, DATA.as_ptr(), P, Wake::Wake).is_complete()
        });
        let refused = fills.count();
        is_over.store(true, Relaxed);
        refused
    })
}

/// Since 6.14 a page table goes where all 2 MiB that it is about are dropped in one call, and then nothing may be filled for a moment
/// (EAGAIN), or it is said to be there (EEXIST). So of private memory a fill is never refused for a page that nobody drops.
#[test]
fn a_page_table_stays_where_not_all_of_it_is_dropped_at_once() {
    let uffd = uffd_or_skip!(Features::NONE);
    let all = refused_while_others_drop(&uffd, |start| vec![(start, start + TABLE)]);
    println!("{all} fills were refused where all was dropped at once");
    let all_else = |start| vec![(start, start + TABLE / 2), (start + TABLE / 2 + P, start + TABLE)];
    assert_eq!(refused_while_others_drop(&uffd, all_else), 0);
}

#[test]
fn what_the_kernel_lacks_is_named() {
    let _ = uffd_or_skip!(Features::NONE);
    let unheard_of = Features::from_bits(1 << 50);
    match open(unheard_of | Features::EVENT_REMAP) {
        Err(UffdUnavailable::NotSupported(lacking)) => assert_eq!(lacking, unheard_of),
        other => panic!("{other:?}"),
    }
}

#[test]
fn bad_requests_are_told_apart() {
    let uffd = uffd_or_skip!(Features::MOVE);
    let start = registered(&uffd, 1);
    let plain = pages(1);
    write(plain, 1);
    let data = DATA.as_ptr();
    assert_eq!(uffd.copy(start + 1, data, P, Wake::Wake), stopped(0, Stop::Invalid));
    assert_eq!(uffd.copy(plain, data, P, Wake::Wake), stopped(0, Stop::Missing));
    assert_eq!(uffd.copy(start, std::ptr::without_provenance(64), P, Wake::Wake), stopped(0, Stop::Fault));
    // Moving out to memory that is not registered is refused.
    assert_eq!(uffd.move_pages(pages(1), plain, P, Holes::Refuse, Wake::Wake), stopped(0, Stop::Invalid));
    uffd.unregister(start, P).unwrap();
    assert_eq!(uffd.copy(start, data, P, Wake::Wake), stopped(0, Stop::Missing));
    assert_eq!(uffd.read(&mut [RawMessage::default(); 4]).unwrap(), 0);
    assert!(!uffd.wait_readable(Some(1)).unwrap());
}
