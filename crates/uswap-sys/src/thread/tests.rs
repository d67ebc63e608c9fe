//! Tests of raw threads: what libc and std find in one, and what is left when it ends.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;

use rustix::fs::{Mode, OFlags};

use super::local_storage::thread_id;
use super::*;

const STACK: usize = 256 << 10;

/// Runs `f` in a raw thread and waits for it.
fn in_raw_thread<F: FnMut() + Send>(mut f: F) {
    extern "C" fn main<F: FnMut() + Send>(arg: *mut u8) {
        // SAFETY: `arg` is the closure below, which waits for this thread.
        unsafe { (*arg.cast::<F>())() }
    }
    let arg = (&raw mut f).cast();
    spawn(c"raw test", STACK, FileTable::Share, main::<F>, arg).unwrap().join();
}

fn set_errno(value: i32) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = value };
}

fn errno() -> i32 {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

#[test]
fn a_raw_thread_runs_allocates_and_locks() {
    let shared = Mutex::new(Vec::new());
    in_raw_thread(|| {
        for i in 0..1000 {
            shared.lock().unwrap().push(Box::new(i));
        }
    });
    assert_eq!(shared.lock().unwrap().iter().map(|b| **b).sum::<i32>(), 499_500);
}

#[test]
fn errno_is_the_threads_own() {
    set_errno(77);
    in_raw_thread(|| {
        // SAFETY: closing no descriptor at all does nothing.
        assert_eq!(unsafe { libc::close(-1) }, -1);
        assert_eq!(errno(), libc::EBADF);
    });
    assert_eq!(errno(), 77);
}

#[test]
fn libc_finds_its_locale() {
    in_raw_thread(|| {
        // SAFETY: plain functions on characters and strings.
        unsafe {
            assert_ne!(libc::isalpha('x' as i32), 0);
            assert_eq!(libc::toupper('x' as i32), 'X' as i32);
            assert_eq!(libc::strtod(c" 2.5x".as_ptr(), std::ptr::null_mut()), 2.5);
        }
    });
}

#[test]
fn a_panic_is_caught() {
    // The test runner holds back what its own threads say, not what raw ones do.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let expected = panic.payload().downcast_ref::<String>().is_some_and(|text| text.ends_with("in a raw thread"));
        if !expected {
            hook(panic);
        }
    }));
    let mut caught = false;
    in_raw_thread(|| {
        for round in 0..3 {
            caught = std::panic::catch_unwind(|| panic!("round {round}, in a raw thread")).is_err();
            assert!(caught && !std::thread::panicking());
        }
    });
    assert!(caught);
}

#[test]
fn a_raw_thread_can_start_another() {
    let mut ran = false;
    in_raw_thread(|| in_raw_thread(|| ran = true));
    assert!(ran);
}

#[test]
fn signals_are_blocked_but_for_glibcs_two() {
    let mut status = String::new();
    in_raw_thread(|| {
        let tid = rustix::thread::gettid().as_raw_nonzero();
        status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
    });
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().to_owned()
    };
    // KILL (9) and STOP (19) cannot be blocked; 32 and 33 are not.
    let expected = AGENT_SIGNAL_MASK & !(1 << 8) & !(1 << 18);
    assert_eq!(field("SigBlk:"), format!("{expected:016x}"));
    assert!(status.starts_with("Name:\traw test\n"), "{status}");

    // The creator's mask is back.
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    assert!(own.contains("SigBlk:\t0000000000000000"), "{own}");
}

#[test]
fn the_thread_id_is_known_to_both_sides() {
    struct Seen(AtomicU32, SharedWord);
    extern "C" fn main(arg: *mut u8) {
        // SAFETY: the test's Seen, which outlives this thread.
        let seen = unsafe { &*arg.cast::<Seen>() };
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(thread_id(), tid);
        seen.0.store(tid, Ordering::Relaxed);
        seen.1.wait_while(0);
    }
    let mut seen = Seen(AtomicU32::new(0), SharedWord::new(0));
    let thread =
        spawn(c"a name of more than fifteen bytes", STACK, FileTable::Share, main, (&raw mut seen).cast()).unwrap();
    assert!(thread.is_running());
    let tid = thread.tid();
    seen.1.store_and_wake(1);
    thread.join();
    assert_eq!(seen.0.load(Ordering::Relaxed), tid);
}

#[test]
fn a_raw_thread_gets_a_file_table_of_its_own() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let fd = writer.as_raw_fd();
    let (mut gone_reader, gone_writer) = std::io::pipe().unwrap();

    struct Shared {
        fd: RawFd,
        step: SharedWord,
    }
    extern "C" fn main(arg: *mut u8) {
        // SAFETY: the test's Shared, which outlives this thread.
        let shared = unsafe { &*arg.cast::<Shared>() };
        unshare_files_and_close(&[shared.fd]).unwrap();
        shared.step.store_and_wake(1);
        shared.step.wait_while(1);
        // SAFETY: kept open in this thread's table, which nobody else changes.
        let mut file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(shared.fd) };
        file.write_all(b"still here").unwrap();
        // Whatever is printed goes nowhere, and new descriptors have numbers above.
        let new = rustix::fs::open(c"/dev/null", OFlags::RDONLY, Mode::empty()).unwrap();
        assert!(new.as_raw_fd() > 2);
        assert!(rustix::io::write(rustix::stdio::stdout(), b"nowhere").is_ok());
    }
    let mut shared = Shared { fd, step: SharedWord::new(0) };
    let thread = spawn(c"files", STACK, FileTable::Share, main, (&raw mut shared).cast()).unwrap();
    shared.step.wait_while(0);
    // Closing here does not close there, and the other way round: this pipe is not held open by the
    // raw thread, so its end is seen.
    drop(writer);
    drop(gone_writer);
    assert_eq!(gone_reader.read(&mut [0; 8]).unwrap(), 0);
    shared.step.store_and_wake(2);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    thread.join();
    assert!(rustix::fs::fstat(rustix::stdio::stderr()).is_ok());
}

#[test]
fn a_joined_threads_memory_is_unmapped() {
    extern "C" fn main(_: *mut u8) {}
    let thread = spawn(c"short", STACK, FileTable::Copy, main, std::ptr::null_mut()).unwrap();
    let before = private_memory::mapped_bytes(Purpose::Stack);
    thread.join();
    // Other tests' threads come and go; this one was the only one of its kind to look at.
    assert!(before >= STACK);
}

#[test]
fn a_thread_gives_back_what_it_has_used_of_its_stack() {
    /// On the stack.
    #[inline(never)]
    fn use_much() -> usize {
        let mut much = [0_u8; STACK / 2];
        std::hint::black_box(&mut much).fill(7);
        much.as_ptr().addr()
    }
    let is_there = |at: usize| {
        let mut there = 0_u8;
        let page = std::ptr::with_exposed_provenance_mut(at.next_multiple_of(PAGE));
        // SAFETY: asks about a page of this thread's stack, into a byte.
        assert_eq!(unsafe { libc::mincore(page, PAGE, &mut there) }, 0);
        there & 1 == 1
    };
    in_raw_thread(move || {
        let stays = std::hint::black_box([9_u8; 3 * PAGE]);
        let used = use_much();
        assert!(is_there(used));
        give_back_stack();
        assert!(!is_there(used));
        assert!(stays.iter().all(|&byte| byte == 9));
        assert_ne!(use_much(), 0, "and may use it again");
    });
    // Of libc's stack nothing is known.
    let used = use_much();
    give_back_stack();
    assert!(is_there(used));
}

#[test]
fn a_thread_is_pinned_where_asked() {
    in_raw_thread(|| {
        let last = allowed_cpus().unwrap().last().unwrap();
        pin_to_cpu(last).unwrap();
        assert_eq!(allowed_cpus().unwrap().collect::<Vec<_>>(), [last]);
    });
    assert!(pin_to_cpu(1 << 20).is_err());
}

#[test]
fn a_thread_of_a_real_time_thread_can_be_put_before_it() {
    let seen = std::thread::spawn(|| {
        let mut parameter = libc::sched_param { sched_priority: 3 };
        // SAFETY: changes the policy of this thread, which ends soon.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &parameter) } != 0 {
            eprintln!("skipped: no real-time policy: {}", std::io::Error::last_os_error());
            return None;
        }
        extern "C" fn sleep(_: *mut u8) {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let thread = spawn(c"raw test", STACK, FileTable::Share, sleep, std::ptr::null_mut()).unwrap();
        precede_this_thread(thread.tid());
        // SAFETY: both ask for that thread's own.
        let policy = unsafe { libc::sched_getscheduler(thread.tid() as i32) };
        // SAFETY: as above.
        unsafe { libc::sched_getparam(thread.tid() as i32, &mut parameter) };
        thread.join();
        Some((policy, parameter.sched_priority))
    });
    assert!(matches!(seen.join().unwrap(), None | Some((libc::SCHED_RR, 4))));
}
