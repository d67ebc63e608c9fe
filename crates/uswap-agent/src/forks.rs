//! Hooks around fork(2).

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

use uswap_engine::fork_post::Monitored;
use uswap_engine::host::notices;
use uswap_engine::protocol::Kind;
use uswap_sys::private_memory::{self, Purpose};
use uswap_sys::{PAGE_SIZE, heap, report, shared_forks, thread};

use crate::fork_turns::{self, holder, holds, let_go, take, thread_id};
use crate::real::{Real, Wrapper};
use crate::start::{POST, RENDEZVOUS};
use crate::{libc_fork, libc_handlers};

type Handler = Option<unsafe extern "C" fn()>;
type RegisterAtFork = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// Ours: before a fork, after it, and in the child.
pub(crate) static HANDLERS: [unsafe extern "C" fn(); 3] = [prepare, parent, child];

/// Hooks fork, once; returns libc's function to do so. Handlers registered first run last before a fork, and first in the
/// child, where nothing may touch memory before ours has run.
pub(crate) fn hook() -> Option<RegisterAtFork> {
    static REGISTER: OnceLock<Option<RegisterAtFork>> = OnceLock::new();
    *REGISTER.get_or_init(|| {
        let real = Real::new(c"__register_atfork").get();
        // SAFETY: null, or libc's function of this signature.
        let register = unsafe { std::mem::transmute::<*mut c_void, Option<RegisterAtFork>>(real) }?;
        let [prepare, parent, child] = HANDLERS.map(Some);
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { register(prepare, parent, child, std::ptr::null_mut()) };
        Some(register)
    })
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 2] {
    let register = hook().map_or(null_mut(), |register| register as *mut c_void);
    [REAL.wrapper(), Wrapper { name: c"__register_atfork", next: Some(register) }]
}

/// As libc's, which pthread_atfork calls: ours come first, even where a library is made ready before this one.
///
/// # Safety
/// As for pthread_atfork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> c_int {
    let Some(register) = hook() else { return libc::ENOMEM };
    // SAFETY: the caller's promise.
    let error = unsafe { register(prepare, parent, child, library) };
    if error == 0 {
        libc_handlers::count(HANDLERS);
    }
    error
}

/// A word that a fork of any kind sets to false in the child, in a page of its own.
static HERE: AtomicPtr<AtomicBool> = AtomicPtr::new(null_mut());

/// Makes the word, before there is a monitor, and looks libc's function up.
pub(crate) fn prepare_membership() -> std::io::Result<()> {
    let _ = REAL.get();
    let (page, len) = private_memory::map(PAGE_SIZE, Purpose::Tables)?.into_raw();
    // SAFETY: fresh memory of our own, with nothing in it.
    unsafe { rustix::mm::madvise(page.cast(), len, rustix::mm::Advice::LinuxWipeOnFork)? };
    HERE.store(page.cast(), Release);
    Ok(())
}

/// This process has a monitor from here on.
pub(crate) fn has_monitor() {
    if let Some(here) = here() {
        here.store(true, Release);
    }
}

fn here() -> Option<&'static AtomicBool> {
    // SAFETY: null, or a page of zeros that stays for ever.
    unsafe { HERE.load(Acquire).as_ref() }
}

/// Whether a monitor answers in this process: not before the constructor has run, and not in the child of a fork that went
/// round the hooks.
pub(crate) fn is_member() -> bool {
    RENDEZVOUS.get().is_some() && here().is_none_or(|here| here.load(Acquire))
}

fn end(forked: bool) {
    POST.fork.parent(&POST, forked);
    let_go();
}

/// A fork that goes round the hooks may happen, and there are no others that matter.
pub(crate) const RAW_GOES_ON: u8 = 0;
/// It may, and others wait until [`raw_fork_is_over`].
pub(crate) const RAW_EXCLUDES: u8 = 1;
/// It must fail.
pub(crate) const RAW_REFUSED: u8 = 2;

/// What becomes of a fork that goes round the hooks.
#[repr(C)]
pub(crate) struct RawFork {
    /// `RAW_GOES_ON`, `RAW_EXCLUDES` or `RAW_REFUSED`.
    pub answer: u8,
    /// For [`raw_fork_is_over`].
    pub mask: u64,
}

/// A fork that goes round the hooks, by a thread of the program: keeps forks by libc from happening until it is over, and signals
/// from coming. `sleeps`: the thread, until the child executes or ends.
pub(crate) fn raw_fork_begins(sleeps: bool) -> RawFork {
    let without = |answer| RawFork { answer, mask: fork_turns::NO_MASK };
    if !is_member() {
        return without(RAW_GOES_ON);
    }
    if holder() == thread_id() {
        // A handler of the program's that is not held back, or of its preparation for forks.
        return without(if POST.fork.is_lifted() { RAW_REFUSED } else { RAW_GOES_ON });
    }
    POST.birth_begins();
    // Not while the window of the last fork by libc is being closed.
    match fork_turns::take_raw(sleeps, || POST.fork.is_lifted()) {
        Some(mask) => RawFork { answer: RAW_EXCLUDES, mask },
        None => without(RAW_REFUSED),
    }
}

unsafe extern "C" fn prepare() {
    if !is_member() {
        // A thread that was forking while the parent forked round the hooks does not exist here.
        fork_turns::forget_holder();
        return;
    }
    if holder() != thread_id() {
        holds(false, take());
    }
    POST.fork.prepare(&POST, thread_id());
    // That takes a while, in which another thread may have made handlers.
    let _ = thread::hold_signals_back();
    if notices().has_engine() {
        libc_fork::touch_streams();
        libc_fork::touch_threads();
        libc_handlers::touch();
    }
}

unsafe extern "C" fn parent() {
    if is_member() && !fork_turns::is_wrapped() {
        // Called inside libc (daemon, forkpty): whether it made a child is not known here. If it did not, some
        // swapped content is kept longer than needed.
        end(true);
    }
}

unsafe extern "C" fn child() {
    if holder() == 0 {
        return;
    }
    fork_turns::forget_page();
    if !POST.inert.load(Relaxed) {
        begin_in_child();
    }
    let_go();
}

/// Returns when the child's memory is served, or the child does without.
fn begin_in_child() {
    heap::begin_anew_after_fork();
    POST.fork.child_begins();
    POST.shared_mappings.child_begins();
    let swapped = uswap_engine::fork_copy::child_begins() || shared_forks::are_followed();
    if let Err(error) = crate::start::start_monitor(monitor_of_child) {
        let why = report::Reason(&error);
        if swapped {
            report::end(format_args!("its memory is partly swapped out, and the agent cannot start in it: {why}"));
        }
        report::stderr_line(format_args!("uswap: a forked child runs unmanaged: {why}"));
        POST.inert.store(true, Release);
        return;
    }
    has_monitor();
    if swapped && !POST.fork.child_waits(&POST) {
        // What ended it may end this thread, too, in any other system call than this write.
        report::stderr_line(format_args!(
            "uswap: a forked child is ended: its memory is partly swapped out, and the agent's thread in it has been ended, as \
             by a seccomp filter"
        ));
        report::kill_self();
    }
}

extern "C" fn monitor_of_child(_: *mut u8) {
    let (parent, generation) = (POST.index.load(Acquire), POST.generation.load(Acquire));
    // A parent without engine has nothing to inherit, and did not announce the fork: its slot may be gone by now.
    let inherits = notices().has_engine();
    crate::start::run_monitor(if inherits { Kind::Fork { parent, generation } } else { Kind::Exec });
}

type Fork = unsafe extern "C" fn() -> libc::pid_t;
static REAL: Real = Real::new(c"fork");

/// As libc's, and tells the monitor whether there is a child. Fails with ENOMEM where there is no memory to follow it.
///
/// # Safety
/// As for fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    // SAFETY: the symbol is libc's fork, which every libc has.
    let real = unsafe { std::mem::transmute::<*mut c_void, Fork>(REAL.get()) };
    if !is_member() {
        // SAFETY: the caller's promise.
        return unsafe { real() };
    }
    if holder() == thread_id() {
        // A signal handler, in a thread that forks round libc.
        // SAFETY: the caller's promise.
        let pid = unsafe { real() };
        if pid != 0 {
            keep_errno(|| POST.fork.parent(&POST, pid > 0));
        }
        return pid;
    }
    // Not before all is over: handlers of the program's for forks may have kept the mask, to set it again.
    let mask = take();
    holds(true, None);
    // SAFETY: the caller's promise.
    let pid = fork_turns::with_mask_before(mask, || unsafe { followed(real) });
    keep_errno(|| thread::let_signals_come(mask));
    pid
}

/// A fork by `real`, which is libc's, with signals held back.
///
/// # Safety
/// As for fork(2).
unsafe fn followed(real: Fork) -> libc::pid_t {
    if !POST.fork.has_memory(&POST) {
        let_go();
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return -1;
    }
    let parent = holder();
    // SAFETY: the caller's promise.
    let pid = unsafe { real() };
    if pid != 0 {
        keep_errno(|| end(pid > 0));
    } else if holder() == parent {
        has_no_handlers();
    }
    pid
}

/// In a child in which libc has not called [`child`]: [`libc_handlers`] did not find its list of handlers, which is in its heap when
/// there are many, and what is swapped out reads as zeros here.
fn has_no_handlers() {
    if notices().has_engine() {
        report::end(format_args!("libc has not called the agent in it, and its memory may be partly swapped out"));
    }
    fork_turns::forget_page();
    POST.inert.store(true, Release);
    let_go();
}

pub(crate) fn keep_errno(f: impl FnOnce()) {
    // SAFETY: errno is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    f();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
