//! What forking threads and the monitor say to each other, in words that they wait on.
//!
//! One fork at a time, from `IDLE` to `IDLE`: before fork(2) is called at all, a thread may ask whether there is memory for it
//! (`ASKED`; `HAS_MEMORY`, `HAS_NONE`). Then it says that it forks (`REQUESTED`), the monitor prepares that and lets it (`READY`), it says
//! whether there is a child (`FORKED`, `FAILED`), and waits until the child has been told of the rest (`TOLD`). In the child,
//! its only thread waits for a monitor of its own.
//!
//! A process for which the monitor has nothing to do is not held up at all: its thread keeps the monitor from waking instead.

use std::time::Duration;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::tuning;
use uswap_system::Waited;
use uswap_system::atomic::{AtomicBool, AtomicU32, Ordering::*};
use uswap_system::sync::{RawLock, Word};

use crate::host::Host;

const IDLE: u32 = 0;
const REQUESTED: u32 = 1;
const READY: u32 = 2;
const FORKED: u32 = 3;
const FAILED: u32 = 4;
/// The child has been told what it must know of its parent.
const TOLD: u32 = 5;
/// Before a fork is begun: is there the memory that it takes to follow it?
const ASKED: u32 = 6;
const HAS_MEMORY: u32 = 7;
const HAS_NONE: u32 = 8;

/// Who waits for the monitor looks so often whether there still is one.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Of huge pages: they are allowed as ever.
const NOT_FORBIDDEN: u32 = u32::MAX;

/// The child's monitor has not answered yet.
const CHILD_STARTING: u32 = 1;
const CHILD_READY: u32 = 2;

/// The monitor, as a thread sees it that waits for it.
pub trait Monitored {
    /// A child is about to be forked: see [`ProcessSlot::birth_begins`](crate::group::ProcessSlot::birth_begins).
    fn birth_begins(&self);
    /// Wakes it.
    fn ring(&self);
    /// It has ended, or never ran, and has said so: nobody answers.
    fn is_inert(&self) -> bool;
    /// Its thread has ended.
    fn has_ended(&self) -> bool;
    /// Whether nobody answers. Where memory is swapped that is the end of the process.
    fn is_deserted(&self) -> bool;
}

/// What forking threads and the monitor say to each other.
pub struct ForkPost<H> {
    state: Word<H>,
    child: Word<H>,
    /// Held by the monitor while it is awake, and by a thread that forks without asking it: what it was at would stay half
    /// done in the child, its locks held for ever.
    awake: RawLock<H>,
    /// The monitor need not be asked: there is no engine, and no memory that a child would need room for. Changes only
    /// while the monitor is awake.
    trivial: AtomicBool,
    /// Thread id of who last prepared a fork.
    forker: AtomicU32,
    /// The monitor was not asked about the fork under way.
    unasked: AtomicBool,
    /// There has been a child.
    has_forked: AtomicBool,
    /// Adopted memory may go to children, those of forks that go round the hooks as well.
    lifted: AtomicBool,
    /// The same of some of it, by the program's own advice, or because it was adopted while the program was changing its memory.
    some_lifted: AtomicBool,
    /// What huge pages were allowed before they were forbidden for the sake of a child; or [`NOT_FORBIDDEN`]. The child has it, too.
    huge_pages: AtomicU32,
}

impl<H: Host> ForkPost<H> {
    pub(crate) const fn new() -> ForkPost<H> {
        ForkPost {
            state: Word::new(IDLE),
            child: Word::new(0),
            awake: RawLock::new(),
            trivial: AtomicBool::new(true),
            forker: AtomicU32::new(0),
            unasked: AtomicBool::new(false),
            has_forked: AtomicBool::new(false),
            lifted: AtomicBool::new(false),
            some_lifted: AtomicBool::new(false),
            huge_pages: AtomicU32::new(NOT_FORBIDDEN),
        }
    }

    /// Monitor: from here on, forks are announced to it. `threads`: the engine's.
    pub fn monitor_wakes(&self, threads: &[u32]) {
        while !self.awake.lock_within(LOOK_AGAIN) {
            let mut has_locked = false;
            self.look_after_the_forker(threads, || {
                has_locked = self.awake.try_lock();
                !has_locked
            });
            if has_locked {
                return;
            }
        }
    }

    /// A thread that is ended in fork, as a seccomp filter may, leaves libc's locks and ours held for ever. `is_under_way`: asked
    /// after it has been seen to have ended, for it may have been through with its fork.
    fn look_after_the_forker(&self, threads: &[u32], is_under_way: impl FnOnce() -> bool) {
        let forker = self.forker.load(Relaxed);
        // The next one says who it is before it begins.
        if H::thread_has_ended(forker) && is_under_way() && self.forker.load(Relaxed) == forker {
            H::end_with_the_program(threads);
            H::end(format_args!("a thread has been ended while it forked, as by a seccomp filter"));
        }
    }

    /// Monitor, before a fork. Until the child has registered its memory, what is swapped out is a hole in that, and the kernel's khugepaged
    /// fills holes with zeros to make a huge page: up to 511 of 512 pages (max_ptes_none).
    pub(crate) fn forbid_huge_pages(&self) {
        if !is_on(Sabotage::HugePagesAllowed) {
            self.huge_pages.store(H::forbid_huge_pages().unwrap_or(NOT_FORBIDDEN), Relaxed);
        }
    }

    /// In a forked child whose memory is no copy of its parent's, as in a model: what it would have of that.
    pub fn copies(&self, parent: &ForkPost<H>) {
        self.huge_pages.store(parent.huge_pages.load(Relaxed), Relaxed);
    }

    /// Monitor, when the fork is over; and that of the child, when its memory is registered.
    pub(crate) fn allow_huge_pages(&self) {
        let before = self.huge_pages.swap(NOT_FORBIDDEN, Relaxed);
        if before != NOT_FORBIDDEN {
            H::allow_huge_pages(before);
        }
    }

    /// Monitor, which sleeps from here on. `trivial`: it has nothing to do for a fork that comes meanwhile.
    pub(crate) fn monitor_sleeps(&self, trivial: bool) {
        self.trivial.store(trivial, Relaxed);
        self.awake.unlock();
    }

    pub(crate) fn is_requested(&self) -> bool {
        matches!(self.state.load(), REQUESTED | ASKED)
    }

    /// Nobody will answer any more: lets those go who wait.
    pub(crate) fn give_up(&self) {
        self.awake.unlock();
        self.state.store_and_wake(READY);
        self.child.store_and_wake(CHILD_READY);
    }

    /// Program thread, before it calls fork(2) at all: whether there is the memory that it takes to follow it.
    pub fn has_memory(&self, post: &impl Monitored) -> bool {
        if self.trivial.load(Relaxed) {
            return true;
        }
        // Once asked, the answer is taken, whatever has become of the monitor meanwhile.
        loop {
            if post.is_deserted() {
                return true;
            }
            match self.state.load() {
                IDLE => {
                    if self.state.atomic().compare_exchange(IDLE, ASKED, AcqRel, Acquire).is_ok() {
                        post.ring();
                    }
                }
                // The answer is in the word itself: whoever changes that has it, and no other.
                answer @ (HAS_MEMORY | HAS_NONE) => {
                    if self.state.atomic().compare_exchange(answer, IDLE, AcqRel, Acquire).is_ok() {
                        // Whoever else waits has seen another state, and would sleep on that until it looks again.
                        self.state.wake_all();
                        return answer == HAS_MEMORY;
                    }
                }
                // The window of an earlier fork is being closed, or the answer is not there yet.
                other => {
                    let _ = self.state.wait(other, Some(LOOK_AGAIN));
                }
            }
        }
    }

    /// Program thread with the id `forker`, before fork(2): returns when the process may be copied. One thread at a time.
    pub fn prepare(&self, post: &impl Monitored, forker: u32) {
        self.forker.store(forker, Relaxed);
        post.birth_begins();
        if self.unasked.load(Relaxed) {
            // A signal handler forks, in the thread that is forking.
            return;
        }
        if self.trivial.load(Relaxed) && self.awake.try_lock() {
            if self.trivial.load(Relaxed) {
                self.unasked.store(true, Relaxed);
                return;
            }
            self.awake.unlock();
        }
        loop {
            if post.is_deserted() {
                return;
            }
            match self.state.load() {
                IDLE => {
                    if self.state.atomic().compare_exchange(IDLE, REQUESTED, AcqRel, Acquire).is_ok() {
                        post.ring();
                    }
                }
                READY => return,
                // The window of an earlier fork is being closed, or this one is being prepared.
                other => {
                    let _ = self.state.wait(other, Some(LOOK_AGAIN));
                }
            }
        }
    }

    /// Program thread of the parent, after fork(2). It may end the process next, so it waits until the child knows all that
    /// it must.
    pub fn parent(&self, post: &impl Monitored, forked: bool) {
        self.has_forked.fetch_or(forked, Relaxed);
        if self.unasked.swap(false, Relaxed) {
            self.awake.unlock();
        } else if !post.is_inert() {
            let outcome = if forked { FORKED } else { FAILED };
            // It may be over: a signal handler forked meanwhile.
            if self.state.atomic().compare_exchange(READY, outcome, AcqRel, Acquire).is_err() {
                return;
            }
            self.state.wake_all();
            let begun = H::now();
            while self.state.load() == FORKED && H::since(begun) < tuning::TOLD_WITHIN && !post.is_deserted() {
                let _ = self.state.wait(FORKED, Some(LOOK_AGAIN));
            }
        }
    }

    /// Whether it has ever had a child.
    pub(crate) fn has_forked(&self) -> bool {
        self.has_forked.load(Relaxed)
    }

    /// Whether the child of a fork that goes round the hooks would have adopted memory.
    pub fn is_lifted(&self) -> bool {
        self.all_is_lifted() || self.some_lifted.load(Acquire)
    }

    /// Whether any of it may go to children.
    pub(crate) fn all_is_lifted(&self) -> bool {
        self.lifted.load(Acquire)
    }

    /// The only thread of the child, before its monitor is started.
    pub fn child_begins(&self) {
        self.unasked.store(false, Relaxed);
        self.has_forked.store(false, Relaxed);
        self.lifted.store(false, Relaxed);
        self.some_lifted.store(false, Relaxed);
        self.awake.unlock();
        self.state.store(IDLE);
        self.child.store(CHILD_STARTING);
        if !H::notices().has_engine() {
            // As in any process that has just begun.
            self.trivial.store(true, Relaxed);
        }
    }

    /// The only thread of the child: waits until its memory is served. Whether it is; if not, the child's monitor has ended.
    pub fn child_waits(&self, post: &impl Monitored) -> bool {
        while self.child.load() == CHILD_STARTING && !is_on(Sabotage::ChildDoesNotWait) {
            if post.has_ended() {
                return self.child.load() != CHILD_STARTING;
            }
            let _ = self.child.wait(CHILD_STARTING, Some(LOOK_AGAIN));
        }
        true
    }

    // The monitor's side of a fork.

    /// Whether a thread asks for memory before it forks; otherwise it is forking.
    pub(crate) fn is_asked(&self) -> bool {
        self.state.load() == ASKED
    }

    /// Answers who has asked.
    pub(crate) fn answer(&self, has_memory: bool) {
        self.state.store_and_wake(if has_memory { HAS_MEMORY } else { HAS_NONE });
    }

    /// Lets the thread fork and waits until it has. Returns whether there is a child. `threads`: the engine's.
    pub(crate) fn let_fork(&self, threads: &[u32]) -> bool {
        self.state.store_and_wake(READY);
        loop {
            match self.state.load() {
                READY => {
                    if self.state.wait(READY, Some(LOOK_AGAIN)) == Waited::TimedOut {
                        self.look_after_the_forker(threads, || self.state.load() == READY);
                    }
                }
                other => return other == FORKED,
            }
        }
    }

    /// The parent may go on.
    pub(crate) fn child_is_told(&self) {
        self.state.store_and_wake(TOLD);
    }

    /// The next one may fork.
    pub(crate) fn is_over(&self) {
        self.state.store_and_wake(IDLE);
    }

    /// Notes whether adopted memory may go to children.
    pub(crate) fn lift(&self, lifted: bool) {
        self.lifted.store(lifted, Release);
    }

    /// Notes whether some of it may.
    pub(crate) fn lift_some(&self, lifted: bool) {
        self.some_lifted.store(lifted, Release);
    }

    /// The child's monitor: whether the program waits until its memory is served.
    pub(crate) fn child_is_waited_for(&self) -> bool {
        self.child.load() == CHILD_STARTING
    }

    /// The child's monitor: its memory is served.
    pub(crate) fn child_is_ready(&self) {
        self.child.store_and_wake(CHILD_READY);
    }
}

#[cfg(all(test, uswap_words))]
mod words;

#[cfg(test)]
mod tests {
    use uswap_sys::linux::Linux;

    use super::*;
    use crate::post::Post;

    #[test]
    fn a_trivial_fork_keeps_the_monitor_asleep() {
        let post = Post::<Linux>::new();
        post.fork.prepare(&post, 1);
        assert!(!post.fork.awake.try_lock());
        // From a signal handler.
        post.fork.prepare(&post, 1);
        post.fork.parent(&post, true);
        assert!(post.fork.awake.try_lock());
        post.fork.parent(&post, true);
        assert_eq!(post.fork.state.load(), IDLE);
    }

    #[test]
    fn a_child_is_waited_for_until_its_memory_is_served() {
        let post = Post::<Linux>::new();
        assert!(!post.fork.child_is_waited_for(), "it is nobody's child");
        post.fork.child_begins();
        assert!(post.fork.child_is_waited_for());
        post.fork.child_is_ready();
        assert!(!post.fork.child_is_waited_for());
    }

    /// A process that shrinks while it is asked about needs nothing any more, but its answer must not be left lying: the next
    /// fork would wait for it to go.
    #[test]
    fn who_has_asked_for_memory_takes_the_answer() {
        let post = Post::<Linux>::new();
        post.fork.trivial.store(false, Relaxed);
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| post.fork.has_memory(&post));
            while !post.fork.is_requested() {
                std::thread::yield_now();
            }
            post.fork.trivial.store(true, Relaxed);
            post.fork.state.wake_all();
            std::thread::sleep(Duration::from_millis(20));
            post.fork.answer(false);
            assert!(!asks.join().expect("it ends"));
        });
        assert_eq!(post.fork.state.load(), IDLE);
    }

    #[test]
    fn a_fork_that_is_not_trivial_waits_for_the_monitor() {
        let post = Post::<Linux>::new();
        post.fork.monitor_wakes(&[]);
        std::thread::scope(|scope| {
            scope.spawn(|| post.fork.prepare(&post, 1));
            while !post.fork.is_requested() {
                std::thread::yield_now();
            }
            post.fork.state.store_and_wake(READY);
        });
        post.fork.parent(&post, false);
        assert_eq!(post.fork.state.load(), FAILED);
        post.fork.state.store(IDLE);
        post.fork.monitor_sleeps(false);
        assert!(post.fork.awake.try_lock());
    }
}
