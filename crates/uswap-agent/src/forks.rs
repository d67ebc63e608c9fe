//! Hooks around fork(2).

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};

use uswap_engine::monitor::ENGINE;
use uswap_engine::protocol::Kind;
use uswap_sys::futex::RawLock;
use uswap_sys::report;

use crate::start::{POST, RENDEZVOUS};

/// Held by the one thread that forks, from before its preparation until it is over.
static FORKING: RawLock = RawLock::new();
/// Thread id of the holder.
static HOLDER: AtomicU32 = AtomicU32::new(0);
/// The holder called the wrapper below, which learns whether there is a child.
static WRAPPED: AtomicBool = AtomicBool::new(false);

/// Hooks fork. As early as possible: handlers registered first run last before, and first after a fork.
pub(crate) fn hook() {
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn take(wrapped: bool) {
    FORKING.lock();
    HOLDER.store(thread_id(), Relaxed);
    WRAPPED.store(wrapped, Relaxed);
}

fn end(forked: bool) {
    POST.fork.parent(&POST, forked);
    HOLDER.store(0, Relaxed);
    FORKING.unlock();
}

unsafe extern "C" fn prepare() {
    if HOLDER.load(Relaxed) != thread_id() {
        take(false);
    }
    POST.fork.prepare(&POST);
    touch_streams();
}

unsafe extern "C" fn parent() {
    if !WRAPPED.load(Relaxed) {
        // Called inside libc (daemon, forkpty): whether it made a child is not known here. If it did not, some
        // swapped content is kept longer than needed.
        end(true);
    }
}

unsafe extern "C" fn child() {
    HOLDER.store(0, Relaxed);
    FORKING.unlock();
    if POST.inert.load(Relaxed) {
        return;
    }
    POST.fork.child_begins();
    let swapped = uswap_engine::fork::child_begins();
    if let Err(error) = crate::start::start_monitor(monitor_of_child) {
        report::stderr_line(format_args!("uswap: cannot follow a fork: {}", report::Reason(&error)));
        POST.inert.store(true, Release);
        if swapped {
            uswap_engine::engine::kill_self();
        }
        return;
    }
    if swapped {
        POST.fork.child_waits();
    }
}

extern "C" fn monitor_of_child(_: *mut u8) {
    let (parent, generation) = (POST.index.load(Acquire), POST.generation.load(Acquire));
    // A parent without engine has nothing to inherit, and did not announce the fork: its slot may be gone by now.
    let inherits = !ENGINE.load(Acquire).is_null();
    crate::start::run_monitor(if inherits { Kind::Fork { parent, generation } } else { Kind::Exec });
}

unsafe extern "C" {
    static _IO_list_all: *const c_void;
    fn _IO_list_lock();
    fn _IO_list_unlock();
}

/// libc resets the lock of every open stream in the child of a program with threads, before any handler of ours runs there.
/// Streams lie in the program's heap: they are brought in before the fork, and reclaim rests.
fn touch_streams() {
    /// Offsets in `struct _IO_FILE`, which is ABI: the next stream, and the stream's lock.
    const CHAIN: usize = 104;
    const LOCK: usize = 136;
    if ENGINE.load(Acquire).is_null() {
        return;
    }
    // SAFETY: libc takes the same lock around its own walks, and a fork takes it after this handler has run.
    unsafe { _IO_list_lock() };
    // SAFETY: the list is ours to read while its lock is held; links and locks lie at these offsets.
    unsafe {
        let mut stream = (&raw const _IO_list_all).read_volatile().cast::<u8>();
        while !stream.is_null() {
            let lock = stream.add(LOCK).cast::<*const u8>().read_volatile();
            if !lock.is_null() {
                let _ = lock.read_volatile();
            }
            stream = stream.add(CHAIN).cast::<*const u8>().read_volatile();
        }
        _IO_list_unlock();
    }
}

type Fork = unsafe extern "C" fn() -> libc::pid_t;
static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// As libc's, and tells the monitor whether there is a child.
///
/// # Safety
/// As for fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    let mut real = REAL.load(Relaxed);
    if real.is_null() {
        real = crate::start::real(c"fork");
        REAL.store(real, Relaxed);
    }
    // SAFETY: the symbol is libc's fork, which every libc has.
    let real = unsafe { std::mem::transmute::<*mut c_void, Fork>(real) };
    if RENDEZVOUS.get().is_none() || HOLDER.load(Relaxed) == thread_id() {
        // SAFETY: the caller's promise.
        return unsafe { real() };
    }
    take(true);
    // SAFETY: the caller's promise.
    let pid = unsafe { real() };
    if pid != 0 {
        // SAFETY: errno is this thread's own.
        let errno = unsafe { *libc::__errno_location() };
        end(pid > 0);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    pid
}
