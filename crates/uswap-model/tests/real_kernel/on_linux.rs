//! Programs on Linux, with a real userfaultfd.
//!
//! Pages are read and written by process_vm_readv(2) and its sister, of the process itself: where nothing is mapped they answer with
//! an error. The address space lies far from where the kernel puts what others map, so that nobody else gets into its holes.

#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::with_exposed_provenance_mut as at;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};
use std::sync::{MutexGuard, PoisonError};

use uswap_sys::PAGE_SIZE;
use uswap_sys::uffd::{Features, Message, RawMessage, Stop, Uffd, UffdUnavailable, Wake};

use crate::programs::{Answer, Op, Program, SPAN, Seen, Told};

const BASE: usize = 0x10_0000_0000;

static ALONE: Mutex<()> = Mutex::new(());

/// Where programs can run.
pub struct Linux {
    _alone: MutexGuard<'static, ()>,
}

fn address(page: usize) -> usize {
    BASE + page * PAGE_SIZE
}

fn page(address: usize) -> usize {
    (address - BASE) / PAGE_SIZE
}

fn open() -> Result<Uffd, UffdUnavailable> {
    let features = Features::EVENT_REMAP.with(Features::EVENT_REMOVE).with(Features::EVENT_UNMAP);
    match File::open("/dev/userfaultfd") {
        Ok(device) => Uffd::new(Some(device.as_fd()), features),
        Err(_) => Uffd::new(None, features),
    }
}

impl Linux {
    /// `None`, and why is printed, where there is no userfaultfd to be had.
    pub fn open() -> Option<Linux> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        match open() {
            Ok(_) => Some(Linux { _alone: alone }),
            Err(why @ (UffdUnavailable::NoPermission | UffdUnavailable::NotSupported(_))) => {
                println!("skipped: {why}");
                None
            }
            Err(why) => panic!("{why}"),
        }
    }

    /// Runs a program.
    pub fn run(&self, program: &Program) -> Seen {
        let uffd = open().expect("there was one a moment ago");
        program.prologue.iter().for_each(|op| drop(carry_out(op, &uffd)));
        let is_over = AtomicBool::new(false);
        let barrier = Barrier::new(program.threads.len());
        let (told, answers) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(&uffd, &is_over));
            let threads: Vec<_> = program
                .threads
                .iter()
                .map(|ops| {
                    scope.spawn(|| {
                        barrier.wait();
                        ops.iter().map(|op| carry_out(op, &uffd)).collect::<Vec<Answer>>()
                    })
                })
                .collect();
            let answers = threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect();
            is_over.store(true, SeqCst);
            (reader.join().expect("it does not panic"), answers)
        });
        // Without a userfaultfd nothing waits any more.
        drop(uffd);
        let pages = (0..SPAN).map(value_at).collect();
        // SAFETY: memory of this test alone.
        unsafe { libc::munmap(at(BASE), SPAN * PAGE_SIZE) };
        Seen { told, answers, pages }
    }
}

/// One message at a time; faults get zeros.
fn read(uffd: &Uffd, is_over: &AtomicBool) -> Vec<Told> {
    let (mut told, mut pending) = (Vec::new(), Vec::new());
    while !is_over.load(SeqCst) || uffd.wait_readable(Some(0)).expect("it is a userfaultfd") {
        uffd.wait_readable(Some(1)).expect("it is a userfaultfd");
        let mut message = [RawMessage::default()];
        if uffd.read(&mut message).expect("it is a userfaultfd") == 1 {
            told.push(match message[0].decode() {
                Message::Fault { addr, write, .. } => {
                    pending.push(addr);
                    Told::Fault { page: page(addr), write }
                }
                Message::Remap { from, to, len } => {
                    Told::Remap { from: page(from), to: page(to), pages: len / PAGE_SIZE }
                }
                Message::Remove { start, end } => Told::Remove(page(start)..page(end)),
                Message::Unmap { start, end } => Told::Unmap(page(start)..page(end)),
                Message::Other(kind) => panic!("a message of unknown kind {kind}"),
            });
        }
        pending.retain(|&addr| {
            let is_later = uffd.zeropage(addr, PAGE_SIZE, Wake::Wake).stop == Some(Stop::TryLater);
            let _ = is_later || uffd.wake(addr, PAGE_SIZE).is_ok();
            is_later
        });
    }
    told
}

/// The first word of a page; nothing where nothing is mapped. No lock, no allocation.
fn value_at(page: usize) -> Option<u64> {
    let mut value = 0u64;
    let local = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: at(address(page)), iov_len: 8 };
    // SAFETY: `local` is the variable; what cannot be read is an error.
    let done = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (done == 8).then_some(value)
}

fn set_value(page: usize, mut value: u64) -> bool {
    let local = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: at(address(page)), iov_len: 8 };
    // SAFETY: pages of this test alone are written to; what cannot be written is an error.
    let done = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    done == 8
}

fn carry_out(op: &Op, uffd: &Uffd) -> Answer {
    let bytes = |range: &Range<usize>| (address(range.start), range.len() * PAGE_SIZE);
    let answer = |is_done| if is_done { Answer::Done } else { Answer::Refused };
    match op {
        Op::Map(range) => {
            let (start, len) = bytes(range);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: addresses of this test alone.
            let mapped = unsafe { libc::mmap(at(start), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
            answer(mapped != libc::MAP_FAILED)
        }
        Op::Unmap(range) => {
            let (start, len) = bytes(range);
            // SAFETY: addresses of this test alone.
            answer(unsafe { libc::munmap(at(start), len) } == 0)
        }
        Op::Remap { old, new_pages, to, stays } => {
            let (start, len) = bytes(old);
            let mut flags = if to.is_some() { libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED } else { 0 };
            if *stays {
                flags |= libc::MREMAP_DONTUNMAP;
            }
            let target = at::<libc::c_void>(to.map_or(0, address));
            // SAFETY: addresses of this test alone.
            let moved = unsafe { libc::mremap(at(start), len, new_pages * PAGE_SIZE, flags, target) };
            answer(moved != libc::MAP_FAILED)
        }
        Op::Discard { range, lazily } => {
            let (start, len) = bytes(range);
            let advice = if *lazily { libc::MADV_FREE } else { libc::MADV_DONTNEED };
            // SAFETY: addresses of this test alone.
            answer(unsafe { libc::madvise(at(start), len, advice) } == 0)
        }
        Op::Register(range) => {
            let (start, len) = bytes(range);
            answer(uffd.register(start, len).is_ok())
        }
        Op::Read(page) => value_at(*page).map_or(Answer::Refused, Answer::Value),
        Op::Write(page, value) => answer(set_value(*page, *value)),
        Op::Fork => Answer::Child(fork()),
    }
}

/// What a child has at each page.
fn fork() -> Vec<Option<u64>> {
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let len = SPAN * 16;
    // SAFETY: a fresh mapping, where the kernel likes.
    let words = unsafe { libc::mmap(at(0), len, libc::PROT_READ | libc::PROT_WRITE, shared, -1, 0) };
    assert_ne!(words, libc::MAP_FAILED);
    let words = words.cast::<[u64; 2]>();
    // SAFETY: the child makes system calls and writes into the mapping, nothing else, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            for page in 0..SPAN {
                *words.add(page) = value_at(page).map_or([0, 0], |value| [1, value]);
            }
            libc::_exit(0);
        }
        assert!(child > 0);
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
        let pages = (0..SPAN).map(|page| {
            let [is_mapped, value] = *words.add(page);
            (is_mapped == 1).then_some(value)
        });
        let pages = pages.collect();
        libc::munmap(words.cast(), len);
        pages
    }
}
