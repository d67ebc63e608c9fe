//! Waits: who sleeps on what, and who wakes whom.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use uswap_system::Waited;

use crate::coroutine::suspend;
use crate::process::ProcessId;
use crate::scheduler::{Kind, Thread, ThreadId};
use crate::userfaultfd_ctx::UserfaultId;
use crate::world::World;

/// Virtual nanoseconds after which a thread of the program that waits for its page, or for its event to be read, has been
/// forgotten.
const FORGOTTEN_NS: u64 = 20_000_000_000;
/// The same in steps, where these take long: a handler looks through all memory a hundred times before it goes beyond the budget.
const FORGOTTEN_STEPS: u64 = 1_000_000;

/// What a thread sleeps on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    /// A futex, by its address, which is never followed.
    Word(usize),
    /// A missing page of registered memory.
    Fault(UserfaultId, usize),
    /// An event that is to be read.
    Event,
    /// Messages, or a call.
    Poll(UserfaultId),
    /// Messages of any client of the shared-memory server, or a call.
    Clients,
    /// Whoever holds the lock of the mappings for reading.
    Mappings(ProcessId),
    /// Time.
    Sleep,
    /// A lock that another holds: tried again when somebody has got on.
    Lock,
    /// The end of a thread.
    Join(ThreadId),
}

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It can go on.
    Ready,
    /// It sleeps.
    Blocked {
        on: Key,
        /// In nanoseconds.
        until: Option<u64>,
        /// Who came first; for a lock: the progress at which it was last tried.
        order: u64,
        since: u64,
    },
    /// It is over.
    Ended,
}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woke {
    Woken,
    TimedOut,
}

impl World {
    /// The running thread sleeps.
    pub(crate) fn block(&self, on: Key, until: Option<u64>) -> Woke {
        let (thread, since) = (self.this_thread(), self.clock.now_ns());
        let order = if on == Key::Lock { self.scheduler.progress() } else { self.scheduler.next_order() };
        self.scheduler.threads()[thread.0].state = State::Blocked { on, until, order, since };
        if let Some(until) = until {
            self.scheduler.note_deadline(until);
        }
        suspend();
        self.scheduler.threads()[thread.0].woke
    }

    /// Wakes those who sleep on what `is_meant`, the first `count` that came; returns who they are.
    pub(crate) fn wake_those(&self, count: usize, is_meant: impl Fn(&Thread, Key) -> bool) -> Vec<ThreadId> {
        let mut threads = self.scheduler.threads();
        let mut sleepers: Vec<(u64, usize)> = Vec::new();
        for (index, thread) in threads.iter().enumerate() {
            if let State::Blocked { on, order, .. } = thread.state
                && is_meant(thread, on)
            {
                sleepers.push((order, index));
            }
        }
        sleepers.sort_unstable();
        sleepers.truncate(count);
        for &(_, index) in &sleepers {
            (threads[index].state, threads[index].woke) = (State::Ready, Woke::Woken);
        }
        if !sleepers.is_empty() {
            self.scheduler.note_woken();
        }
        sleepers.into_iter().map(|(_, index)| ThreadId(index)).collect()
    }

    /// Wakes one, if that is what it sleeps on.
    pub(crate) fn wake_thread(&self, thread: ThreadId, key: Key) {
        let sleeper = &mut self.scheduler.threads()[thread.0];
        if matches!(sleeper.state, State::Blocked { on, .. } if on == key) {
            (sleeper.state, sleeper.woke) = (State::Ready, Woke::Woken);
            self.scheduler.note_woken();
        }
    }

    pub(crate) fn wake_key(&self, key: Key) {
        self.wake_those(usize::MAX, |_, on| on == key);
    }

    /// Whoever reads messages of this userfaultfd.
    pub(crate) fn wake_pollers(&self, userfault: UserfaultId) {
        self.wake_those(usize::MAX, |_, on| on == Key::Poll(userfault) || on == Key::Clients);
    }

    pub(crate) fn wake_all_pollers(&self) {
        self.wake_those(usize::MAX, |_, on| matches!(on, Key::Poll(_) | Key::Clients));
    }

    /// As futex(2).
    pub(crate) fn futex_wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Waited {
        self.point();
        if word.load(SeqCst) != expected {
            return Waited::Changed;
        }
        let until = timeout.map(|timeout| self.clock.deadline(timeout));
        match self.block(Key::Word(std::ptr::from_ref(word).addr()), until) {
            Woke::Woken => Waited::Woken,
            Woke::TimedOut => Waited::TimedOut,
        }
    }

    /// As futex(2).
    pub(crate) fn futex_wake(&self, word: &AtomicU32, count: u32) {
        if self.scheduler.running().is_some() {
            self.point();
        }
        let address = std::ptr::from_ref(word).addr();
        if !self.wake_those(count as usize, |_, on| on == Key::Word(address)).is_empty() {
            self.stand_still(self.config.woken_first);
        }
    }

    /// Gets what `attempt` gets once others have got on.
    pub(crate) fn acquire<G>(&self, mut attempt: impl FnMut() -> Option<G>) -> G {
        self.point();
        loop {
            if let Some(got) = attempt() {
                return got;
            }
            self.block(Key::Lock, None);
        }
    }

    pub(crate) fn sleep(&self, duration: Duration) {
        let until = self.clock.deadline(duration);
        self.block(Key::Sleep, Some(until));
    }

    /// Waits until a thread has ended.
    pub fn join(&self, other: ThreadId) {
        while self.scheduler.threads()[other.0].state != State::Ended {
            // Looked at again now and then: who ends wakes nobody.
            let until = self.clock.deadline(Duration::from_millis(1));
            self.block(Key::Join(other), Some(until));
        }
    }

    /// Whether a thread with this number is over.
    pub(crate) fn has_ended(&self, tid: u32) -> bool {
        let index = tid.wrapping_sub(ThreadId(0).tid()) as usize;
        self.scheduler.threads().get(index).is_none_or(|thread| thread.state == State::Ended)
    }

    /// Whether a thread with this number is the engine's.
    pub(crate) fn is_of_engine(&self, tid: u32) -> bool {
        let index = tid.wrapping_sub(ThreadId(0).tid()) as usize;
        self.scheduler.threads().get(index).is_none_or(|thread| thread.kind == Kind::Engine)
    }

    /// Whether the program of a process has never had more than one thread.
    pub(crate) fn has_had_one_thread(&self, process: ProcessId) -> bool {
        let threads = self.scheduler.threads();
        threads.iter().filter(|thread| thread.process == process && thread.kind == Kind::Program).count() == 1
    }

    /// Whether a thread of the program has waited for the engine for so long that nobody will come.
    pub(crate) fn has_waited_for_too_long(&self) -> bool {
        let (now, forgotten) = (self.clock.now_ns(), FORGOTTEN_NS.max(self.config.step_ns * FORGOTTEN_STEPS));
        self.scheduler.threads().iter().any(|thread| match thread.state {
            State::Blocked { on: Key::Fault(..) | Key::Event, since, .. } => {
                thread.kind == Kind::Program && now > since + forgotten
            }
            _ => false,
        })
    }

    /// For whom is told what nobody comes for.
    pub(crate) fn who_waits(&self) -> String {
        let now = self.clock.now_ns();
        let tell = |thread: &Thread| match thread.state {
            State::Ready => format!("{} of {:?} is ready", thread.name, thread.process),
            State::Blocked { on, since, .. } => {
                // Addresses differ from run to run.
                let on = if matches!(on, Key::Word(_)) { "a word".to_owned() } else { format!("{on:x?}") };
                format!("{} of {:?} waits on {on} for {} us", thread.name, thread.process, (now - since) / 1000)
            }
            State::Ended => String::new(),
        };
        let threads = self.scheduler.threads();
        let alive = threads.iter().filter(|thread| thread.state != State::Ended);
        alive.map(tell).collect::<Vec<_>>().join("; ")
    }
}
