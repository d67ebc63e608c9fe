//! Whose turn it is to fork: one thread at a time, by libc or round it.
//!
//! A thread that forks round libc may not come back for long, or never: one with CLONE_VFORK sleeps until its child executes or
//! ends, and a seccomp filter may end any in the call. So who waits looks after it, and ends its turn when the child has been made,
//! which the child itself says in shared memory, or when the thread is there no more. A handler of a signal cannot leave the
//! call, for signals that have one are held back meanwhile.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::Timespec;
use uswap_sys::futex::RawLock;
use uswap_sys::{PAGE_SIZE, last_thread, placement, thread};

/// Held by the one thread that forks, from before its preparation until it is over.
static FORKING: RawLock = RawLock::new();
/// The thread id of the holder, 0 if there is none, and above it the number of its turn: no two are alike.
pub(crate) static TURN: AtomicU64 = AtomicU64::new(0);
/// Bits of a thread id.
const ID_BITS: u32 = 32;
/// The holder called our `fork`, which learns whether there is a child.
static WRAPPED: AtomicBool = AtomicBool::new(false);
/// The holder forks round libc.
static RAW: AtomicBool = AtomicBool::new(false);
/// The signal mask of the holder, as it was before, or `NO_MASK`: it is set again when its turn is over, and in the child.
pub(crate) static MASK: AtomicU64 = AtomicU64::new(NO_MASK);
/// No mask of a thread: nobody holds SIGKILL back.
pub(crate) const NO_MASK: u64 = u64::MAX;

thread_local! {
    /// The mask of a thread that is in our `fork`, as it was before, or `NO_MASK`; in the child, too. Without a destructor.
    static MASK_BEFORE: Cell<u64> = const { Cell::new(NO_MASK) };
}

/// Shared memory, in which a child says by the number of the turn that it has been made; null before it is needed.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// The same while the holder makes a child and sleeps as long as that lives; else null.
pub(crate) static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// Who waits for its turn looks so often after who has it.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long a fork that goes round the hooks waits for one by libc. That may never end: a signal handler forks so, in a thread
/// that has a lock which the other waits for.
const RAW_PATIENCE: Duration = Duration::from_secs(15);

pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn id_in(turn: u64) -> u32 {
    turn as u32
}

/// The thread id of who forks, or 0.
pub(crate) fn holder() -> u32 {
    id_in(TURN.load(Relaxed))
}

/// Whether the holder called our `fork`.
pub(crate) fn is_wrapped() -> bool {
    WRAPPED.load(Relaxed)
}

/// For a thread that forks by libc. From here on no handler of a signal runs in it: it may fork as well, and in the child it would
/// find zeros where pages are swapped out. Gives the mask as it was.
pub(crate) fn take() -> Option<u64> {
    let mask = thread::hold_signals_back();
    while !FORKING.lock_within(LOOK_AGAIN) {
        look_after_the_holder();
    }
    mask
}

/// Notes who has taken it; `mask`: to be set again by [`let_go`].
pub(crate) fn holds(wrapped: bool, mask: Option<u64>) {
    begins(false, wrapped, mask, null_mut());
}

fn begins(raw: bool, wrapped: bool, mask: Option<u64>, mark: *mut AtomicU32) {
    RAW.store(raw, Relaxed);
    WRAPPED.store(wrapped, Relaxed);
    MASK.store(mask.unwrap_or(NO_MASK), Relaxed);
    MARK.store(mark, Relaxed);
    let number = (TURN.load(Relaxed) >> ID_BITS).wrapping_add(1);
    TURN.store(number << ID_BITS | u64::from(thread_id()), Release);
}

/// Runs `fork`, whose handlers may make threads: they are to begin with this [mask as it was](mask_before).
pub(crate) fn with_mask_before<R>(mask: Option<u64>, fork: impl FnOnce() -> R) -> R {
    let outer = MASK_BEFORE.get();
    // A handler in the child may fork in turn, with signals held back.
    if outer == NO_MASK {
        MASK_BEFORE.set(mask.unwrap_or(NO_MASK));
    }
    let result = fork();
    MASK_BEFORE.set(outer);
    result
}

/// The signal mask that the calling thread had before it began to fork, or `NO_MASK`.
pub(crate) fn mask_before() -> u64 {
    MASK_BEFORE.get()
}

/// Ends [`take`], in the parent or in the child.
pub(crate) fn let_go() {
    let mask = MASK.load(Relaxed);
    forget_holder();
    FORKING.unlock();
    let_signals_come(mask);
}

/// In a child in which the holder does not exist, nor does anybody wait.
pub(crate) fn forget_holder() {
    TURN.fetch_and(!0 << ID_BITS, Relaxed);
}

/// `mask`: as `MASK` has it.
pub(crate) fn let_signals_come(mask: u64) {
    thread::let_signals_come((mask != NO_MASK).then_some(mask));
}

/// For a thread that forks round libc: whether it is its turn, and then its mask as it was; not if others do not come to an
/// end. `sleeps`: until its child executes or ends. `waits_on`: what else is to be over first.
pub(crate) fn take_raw(sleeps: bool, waits_on: impl Fn() -> bool) -> Option<u64> {
    let mark = if sleeps { page()? } else { null_mut() };
    let begun = Instant::now();
    let mask = loop {
        let mask = thread::hold_signals_back();
        if FORKING.try_lock() {
            break mask;
        }
        thread::let_signals_come(mask);
        if begun.elapsed() >= RAW_PATIENCE {
            return None;
        }
        look_after_the_holder();
        let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 100_000 });
    };
    begins(true, true, mask, mark);
    let mask = mask.unwrap_or(NO_MASK);
    while waits_on() {
        if begun.elapsed() >= RAW_PATIENCE {
            let_go_raw(mask);
            return None;
        }
        let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 100_000 });
    }
    Some(mask)
}

/// Ends [`take_raw`], in the parent; another thread may have done so. `mask`: what that gave, for the next holder has its own.
pub(crate) fn let_go_raw(mask: u64) {
    let turn = TURN.load(Relaxed);
    if id_in(turn) == thread_id() {
        end(turn);
    }
    let_signals_come(mask);
}

/// In the child of a thread that has [taken its turn](take_raw).
pub(crate) fn begin_in_raw_child() {
    // SAFETY: null, or the page, which the child has inherited.
    if let Some(mark) = unsafe { MARK.load(Relaxed).as_ref() } {
        mark.store(number_of(TURN.load(Relaxed)), Release);
    }
    let_signals_come(MASK.load(Relaxed));
}

fn number_of(turn: u64) -> u32 {
    (turn >> ID_BITS) as u32
}

/// Ends this turn, if nobody has: whether it did.
fn end(turn: u64) -> bool {
    let is_ours = TURN.compare_exchange(turn, turn & !0 << ID_BITS, AcqRel, Relaxed).is_ok();
    if is_ours {
        FORKING.unlock();
    }
    is_ours
}

/// Ends the turn of a thread that needs it no more and does not say so. Not of one that was ended in a fork by libc: that has left
/// libc's own locks held, and the monitor ends the process.
fn look_after_the_holder() {
    let turn = TURN.load(Acquire);
    // If it is over meanwhile, what is read here is the next one's, and `end` does nothing.
    if id_in(turn) != 0
        && RAW.load(Relaxed)
        && (has_a_child(turn) || last_thread::has_ended_seen_by_program(id_in(turn)))
    {
        end(turn);
    }
}

/// Whether who sleeps has been copied. Only the child of this very turn writes its number, and who made it wakes after that or
/// when there is no child any more: an older one never writes later.
fn has_a_child(turn: u64) -> bool {
    // SAFETY: null, or a page that stays as long as this process.
    unsafe { PAGE.load(Acquire).as_ref() }.is_some_and(|page| page.load(Acquire) == number_of(turn))
}

/// The page, which is made when it is first needed; `None` if it cannot be had.
fn page() -> Option<*mut AtomicU32> {
    let known = PAGE.load(Acquire);
    if !known.is_null() {
        return Some(known);
    }
    let made = placement::map(PAGE_SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, None).ok()?;
    match PAGE.compare_exchange(null_mut(), made.as_ptr().cast(), AcqRel, Acquire) {
        Ok(_) => Some(made.as_ptr().cast()),
        Err(other) => {
            unmap(made.as_ptr().cast());
            Some(other)
        }
    }
}

/// In a child of a fork by libc: the page is its parent's.
pub(crate) fn forget_page() {
    let page = PAGE.swap(null_mut(), Relaxed);
    if !page.is_null() {
        unmap(page);
    }
}

fn unmap(page: *mut AtomicU32) {
    // SAFETY: a mapping of `page`'s making, to which nobody has a reference.
    let _ = unsafe { rustix::mm::munmap(page.cast(), PAGE_SIZE) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, Mutex};

    /// There is one turn in a process.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn who_waits_ends_the_turn_of_a_thread_that_has_ended() {
        let _alone = ALONE.lock();
        std::thread::spawn(|| {
            let mask = take_raw(false, || false).unwrap();
            let_signals_come(mask);
        })
        .join()
        .unwrap();
        let mask = take();
        holds(false, mask);
        let_go();
        assert_eq!(holder(), 0);
    }

    #[test]
    fn who_waits_ends_the_turn_of_a_thread_whose_child_has_been_made() {
        let _alone = ALONE.lock();
        let mask = take_raw(true, || false).unwrap();
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mask = take();
                holds(false, mask);
                let_go();
            });
            std::thread::sleep(LOOK_AGAIN * 10);
            assert!(!waits.is_finished(), "it has not been made");
            begin_in_raw_child();
            waits.join().unwrap();
            // It comes back when the turn is another's.
            let next = scope.spawn(|| {
                let mask = take();
                holds(false, mask);
                let turn = TURN.load(Relaxed);
                both.wait();
                both.wait();
                assert_eq!(TURN.load(Relaxed), turn);
                let_go();
            });
            both.wait();
            let_go_raw(mask);
            both.wait();
            next.join().unwrap();
        });
        assert!(FORKING.try_lock());
        FORKING.unlock();
    }
}
