//! The scheduler: threads, and who of them goes on.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use crate::coroutine::{Coroutine, Resumed, suspend};
use crate::coverage::Happening;
use crate::process::ProcessId;
use crate::switching::Switching;
use crate::waits::{Key, State, Woke};
use crate::world::World;

/// Steps after which one who has the highest priority all the time gets the lowest: he may be waiting for others, awake.
const RUN_MAX: u64 = 3000;
/// Steps for which a thread that is stopped stands still, at most.
const STOP_MAX: u64 = 5000;
/// Virtual nanoseconds for which it does, at most.
const STOP_MAX_NS: u64 = 60_000_000;
/// Virtual nanoseconds for which one that is within a discard now and then gets no processor: more than the engine would give it if it
/// did not count such calls (`LAZY_DISCARD_ENDS`).
const LONG_STOP_MAX_NS: u64 = 1_500_000_000;

/// Which thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ThreadId(pub usize);

impl ThreadId {
    /// Its number for the engine and the kernel.
    pub fn tid(self) -> u32 {
        1000 + self.0 as u32
    }
}

/// Whose thread it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The program's: the world is at rest when all have ended.
    Program,
    /// The engine's.
    Engine,
}

/// A thread.
pub(crate) struct Thread {
    pub process: ProcessId,
    pub name: &'static str,
    pub kind: Kind,
    pub state: State,
    /// Why its last wait ended.
    pub woke: Woke,
    priority: u64,
    /// Virtual nanoseconds in which it ran.
    pub cpu_ns: u64,
    /// Which locks of the engine's it holds.
    pub held_locks: Cell<u32>,
    /// It stands still before this step.
    stopped_until: u64,
}

/// Threads.
pub struct Scheduler {
    switching: Switching,
    threads: RefCell<Vec<Thread>>,
    coroutines: RefCell<Vec<Option<Coroutine>>>,
    running: Cell<Option<ThreadId>>,
    steps: Cell<u64>,
    /// Resumptions in which somebody got on: who waits for a lock looks again after one.
    progress: Cell<u64>,
    /// Somebody with a higher priority may be able to go on.
    preempt: Cell<bool>,
    /// The lowest priority given so far.
    lowest: Cell<u64>,
    /// Steps since the running thread was resumed.
    run: Cell<u64>,
    next_deadline: Cell<u64>,
    order: Cell<u64>,
    /// A thread has ended, and nobody has looked since.
    pub(crate) ended: Cell<bool>,
    /// Room for those who can go on.
    able: RefCell<Vec<usize>>,
}

impl Scheduler {
    pub(crate) fn new(switching: Switching) -> Scheduler {
        Scheduler {
            switching,
            threads: RefCell::new(Vec::new()),
            coroutines: RefCell::new(Vec::new()),
            running: Cell::new(None),
            steps: Cell::new(0),
            progress: Cell::new(0),
            preempt: Cell::new(false),
            lowest: Cell::new(1 << 40),
            run: Cell::new(0),
            next_deadline: Cell::new(u64::MAX),
            order: Cell::new(0),
            ended: Cell::new(false),
            able: RefCell::new(Vec::new()),
        }
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Who runs; nobody while the world itself does.
    pub fn running(&self) -> Option<ThreadId> {
        self.running.get()
    }

    pub(crate) fn threads(&self) -> std::cell::RefMut<'_, Vec<Thread>> {
        self.threads.borrow_mut()
    }

    pub(crate) fn has_program_threads(&self) -> bool {
        self.threads.borrow().iter().any(|thread| thread.kind == Kind::Program && thread.state != State::Ended)
    }

    /// Whether a process had threads of the program, and all have ended.
    pub(crate) fn has_ended(&self, process: ProcessId) -> bool {
        let threads = self.threads.borrow();
        let mut own =
            threads.iter().filter(|thread| thread.process == process && thread.kind == Kind::Program).peekable();
        own.peek().is_some() && own.all(|thread| thread.state == State::Ended)
    }

    /// Lets `thread` go on until it suspends itself. The message of a panic, if it ended with one.
    pub(crate) fn resume(&self, thread: ThreadId) -> Option<String> {
        let mut coroutine = self.coroutines.borrow_mut()[thread.0].take().expect("who is not over has a coroutine");
        let looked_for_a_lock = self.waits_for_lock(thread);
        self.running.set(Some(thread));
        self.run.set(0);
        let resumed = coroutine.resume();
        self.running.set(None);
        if !looked_for_a_lock || !self.waits_for_lock(thread) || self.run.get() > 0 {
            self.progress.set(self.progress.get() + 1);
        }
        match resumed {
            Resumed::Suspended => {
                self.coroutines.borrow_mut()[thread.0] = Some(coroutine);
                None
            }
            Resumed::Ended => {
                self.threads.borrow_mut()[thread.0].state = State::Ended;
                self.ended.set(true);
                None
            }
            Resumed::Panicked(text) => Some(text),
        }
    }

    fn waits_for_lock(&self, thread: ThreadId) -> bool {
        matches!(self.threads.borrow()[thread.0].state, State::Blocked { on: Key::Lock, .. })
    }

    pub(crate) fn progress(&self) -> u64 {
        self.progress.get()
    }

    pub(crate) fn next_order(&self) -> u64 {
        self.order.set(self.order.get() + 1);
        self.order.get()
    }

    pub(crate) fn note_deadline(&self, deadline: u64) {
        self.next_deadline.set(self.next_deadline.get().min(deadline));
    }

    pub(crate) fn note_woken(&self) {
        self.preempt.set(true);
    }

    /// The threads of a process are no more.
    pub(crate) fn abandon(&self, process: ProcessId) {
        let mut threads = self.threads.borrow_mut();
        for (index, thread) in threads.iter_mut().enumerate() {
            if thread.process == process && thread.state != State::Ended {
                thread.state = State::Ended;
                self.coroutines.borrow_mut()[index] = None;
            }
        }
    }

    pub(crate) fn abandon_all(&self) {
        self.coroutines.borrow_mut().clear();
        self.threads.borrow_mut().clear();
    }

    fn lower(&self, thread: ThreadId) {
        self.lowest.set(self.lowest.get() - 1);
        self.threads.borrow_mut()[thread.0].priority = self.lowest.get();
    }
}

impl World {
    /// A thread of `process`.
    pub fn spawn(&self, process: ProcessId, name: &'static str, kind: Kind, body: impl FnOnce() + 'static) -> ThreadId {
        let scheduler = &self.scheduler;
        let mut threads = scheduler.threads();
        let thread = ThreadId(threads.len());
        let priority = (1 << 41) + self.below(1 << 40);
        threads.push(Thread {
            process,
            name,
            kind,
            state: State::Ready,
            woke: Woke::Woken,
            priority,
            cpu_ns: 0,
            held_locks: Cell::new(0),
            stopped_until: 0,
        });
        scheduler.coroutines.borrow_mut().push(Some(Coroutine::new(body)));
        scheduler.note_woken();
        thread
    }

    /// Who runs.
    ///
    /// # Panics
    /// Outside of the model's threads.
    pub fn this_thread(&self) -> ThreadId {
        self.scheduler.running().expect("a thread of the model calls")
    }

    pub(crate) fn who_runs(&self) -> String {
        self.scheduler.running().map_or("nobody".to_owned(), |thread| {
            let threads = self.scheduler.threads();
            format!("{} {} of {}", threads[thread.0].name, thread.0, threads[thread.0].process.0)
        })
    }

    /// Whose thread runs.
    ///
    /// # Panics
    /// As for [`this_thread`](Self::this_thread).
    pub fn this_process(&self) -> ProcessId {
        self.scheduler.threads()[self.this_thread().0].process
    }

    /// Here others may go on.
    pub fn point(&self) {
        let Some(thread) = self.scheduler.running() else { return };
        if std::thread::panicking() {
            return;
        }
        self.step();
        if self.switches(thread) || self.is_over() {
            suspend();
        }
    }

    /// The running thread loses the processor for a while, in `parts` of 256 cases.
    pub(crate) fn stand_still(&self, parts: u64) {
        let Some(thread) = self.scheduler.running().filter(|_| self.happens(parts, 256)) else { return };
        self.stop(thread);
        suspend();
    }

    /// As [`stand_still`](Self::stand_still), of a thread within a discard.
    pub(crate) fn stand_still_long(&self, parts: u64) {
        self.stand_still(parts);
        if self.happens(parts, 16 * 256) {
            self.note(Happening::Stop, 1);
            self.sleep(Duration::from_nanos(self.below(LONG_STOP_MAX_NS)));
        }
    }

    fn stop(&self, thread: ThreadId) {
        self.note(Happening::Stop, 1);
        let steps = STOP_MAX.min(2 * STOP_MAX_NS / self.config.step_ns);
        self.scheduler.threads()[thread.0].stopped_until = self.scheduler.steps() + self.below(steps);
    }

    fn step(&self) {
        let scheduler = &self.scheduler;
        scheduler.steps.set(scheduler.steps.get() + 1);
        scheduler.run.set(scheduler.run.get() + 1);
        let ns = self.below(self.config.step_ns);
        self.clock.advance(ns);
        scheduler.threads()[self.this_thread().0].cpu_ns += ns;
        if self.clock.now_ns() >= scheduler.next_deadline.get() {
            self.end_waits_in_time();
        }
        self.in_the_background();
    }

    fn switches(&self, thread: ThreadId) -> bool {
        let scheduler = &self.scheduler;
        if self.happens(self.config.stops, 100_000) {
            self.stop(thread);
            return true;
        }
        match scheduler.switching {
            Switching::Random { parts } => self.happens(parts, 256) || scheduler.run.get() > RUN_MAX,
            Switching::Priorities { one_in } => {
                let lower = self.happens(1, one_in) || scheduler.run.get() > RUN_MAX;
                if lower {
                    scheduler.lower(thread);
                }
                lower || scheduler.preempt.replace(false)
            }
        }
    }

    /// Who goes on.
    pub(crate) fn choose(&self) -> Option<ThreadId> {
        let scheduler = &self.scheduler;
        let (steps, progress) = (scheduler.steps(), scheduler.progress());
        let mut threads = scheduler.threads();
        let is_still = self.clock.now_ns() < self.still_until.get();
        let can_go_on = |thread: &Thread| match thread.state {
            _ if is_still && thread.kind == Kind::Program => false,
            State::Ready => true,
            State::Blocked { on: Key::Lock, order: seen, .. } => progress > seen,
            State::Blocked { .. } | State::Ended => false,
        };
        let mut able = scheduler.able.borrow_mut();
        able.clear();
        able.extend((0..threads.len()).filter(|&index| can_go_on(&threads[index])));
        if able.iter().all(|&index| threads[index].stopped_until > steps) {
            // Nobody else can go on: no time passes by which a stop would end.
            able.iter().for_each(|&index| threads[index].stopped_until = 0);
        }
        able.retain(|&index| threads[index].stopped_until <= steps);
        let chosen = match scheduler.switching {
            _ if able.is_empty() => return None,
            Switching::Random { .. } => able[self.chance.borrow_mut().index(able.len())],
            Switching::Priorities { .. } => {
                *able.iter().max_by_key(|&&index| threads[index].priority).expect("there is one")
            }
        };
        Some(ThreadId(chosen))
    }

    /// Time goes on to the next deadline; false when there is none, or somebody of the program waits for too long.
    pub(crate) fn jump(&self) -> bool {
        if self.has_waited_for_too_long() {
            return false;
        }
        self.end_waits_in_time();
        let (now, still_until) = (self.clock.now_ns(), self.still_until.get());
        let next = self.scheduler.next_deadline.get().min(if still_until > now { still_until } else { u64::MAX });
        if next == u64::MAX {
            return false;
        }
        self.clock.advance_to(next);
        self.end_waits_in_time();
        true
    }

    /// Waits whose time is over end.
    fn end_waits_in_time(&self) {
        let (now, mut next, mut woken) = (self.clock.now_ns(), u64::MAX, false);
        for thread in self.scheduler.threads().iter_mut() {
            let State::Blocked { until: Some(until), .. } = thread.state else { continue };
            if until <= now {
                (thread.state, thread.woke) = (State::Ready, Woke::TimedOut);
                woken = true;
            } else {
                next = next.min(until);
            }
        }
        self.scheduler.next_deadline.set(next);
        if woken {
            self.scheduler.note_woken();
        }
    }

    /// The running thread never goes on: its process has ended.
    pub(crate) fn stop_for_ever(&self) -> ! {
        loop {
            suspend();
        }
    }

    fn is_over(&self) -> bool {
        let kernel = self.kernel();
        self.has_end() || !kernel.process(self.this_process()).is_alive
    }
}
