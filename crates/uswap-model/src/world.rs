//! The world: processes, their threads, the kernel's side of them, and the loop that lets one thread after the other go on.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use uswap_system::faults::Stop;

use crate::chance::Chance;
use crate::clock::Clock;
use crate::coverage::{Coverage, Happening, Tally};
use crate::frames::Frames;
use crate::process::{Process, ProcessId};
use crate::scheduler::Scheduler;
use crate::shmem::Shmem;
use crate::userfaultfd_ctx::Userfault;
use crate::violation::{Checker, Violation};
use crate::world_config::WorldConfig;

/// The kernel's side: what system calls work on. Never borrowed while threads change.
#[derive(Default)]
pub struct Kernel {
    /// All there ever were.
    pub processes: Vec<Process>,
    /// All there ever were.
    pub userfaults: Vec<Userfault>,
    /// Where all their pages are.
    pub frames: Frames,
    /// What processes have in common.
    pub shmem: Shmem,
}

impl Kernel {
    /// A process.
    pub fn process(&self, id: ProcessId) -> &Process {
        &self.processes[id.0]
    }

    /// The same, to change it.
    pub fn process_mut(&mut self, id: ProcessId) -> &mut Process {
        &mut self.processes[id.0]
    }
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// Every thread of the program has ended.
    Rest,
    /// A process ended itself with a line.
    Ended {
        /// Which.
        process: ProcessId,
        /// The line.
        why: String,
    },
    /// A process ended itself without a word: its supervisor was gone.
    Killed(ProcessId),
    /// Something that must not be.
    Violation(Violation),
}

/// What a run came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// Steps taken.
    pub steps: u64,
    /// Virtual nanoseconds.
    pub ns: u64,
}

/// A look at the world between two steps.
pub type Check = Box<dyn FnMut(&World) -> Result<(), Violation>>;

/// The world.
pub struct World {
    /// What it is like.
    pub config: WorldConfig,
    pub(crate) chance: RefCell<Chance>,
    /// Of page tables that go.
    apart: RefCell<Chance>,
    pub(crate) clock: Clock,
    pub(crate) scheduler: Scheduler,
    kernel: RefCell<Kernel>,
    end: RefCell<Option<End>>,
    checks: RefCell<Vec<Check>>,
    lines: RefCell<Vec<String>>,
    tally: Tally,
    /// Threads of programs get no processor before this time.
    pub(crate) still_until: Cell<u64>,
    /// Somebody may have died.
    pub(crate) has_news: Cell<bool>,
    pub(crate) supervisor_is_gone: Cell<bool>,
    next_content: Cell<u64>,
}

/// Steps that a world tells of in the end, if it is asked to.
const LAST_STEPS_KEPT: usize = 60;

thread_local! {
    static LAST_STEPS: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
    static CURRENT: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// The world that runs on this thread of the machine.
///
/// # Panics
/// When there is none.
pub fn current() -> Rc<World> {
    CURRENT.with_borrow(|world| world.clone()).expect("a world runs on this thread")
}

/// The last steps of the world that ran last on this thread of the machine, if it kept them.
pub fn last_steps() -> Vec<String> {
    LAST_STEPS.with_borrow(|steps| steps.iter().cloned().collect())
}

/// While this lives, its world is the one of this thread of the machine.
struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

impl World {
    /// The world of `seed`.
    pub fn new(seed: u64) -> Rc<World> {
        let mut chance = Chance::new(seed);
        let config = WorldConfig::draw(&mut chance);
        Self::with(config, chance)
    }

    /// A world like that, with everything that comes by chance drawn from `chance`.
    pub fn with(config: WorldConfig, chance: Chance) -> Rc<World> {
        Rc::new(World {
            scheduler: Scheduler::new(config.switching),
            config,
            apart: RefCell::new(chance.apart()),
            chance: RefCell::new(chance),
            clock: Clock::new(),
            kernel: RefCell::new(Kernel::default()),
            end: RefCell::new(None),
            checks: RefCell::new(Vec::new()),
            lines: RefCell::new(Vec::new()),
            tally: Tally::new(),
            still_until: Cell::new(0),
            has_news: Cell::new(true),
            supervisor_is_gone: Cell::new(false),
            next_content: Cell::new(0),
        })
    }

    /// The kernel's side.
    pub fn kernel(&self) -> Ref<'_, Kernel> {
        self.kernel.borrow()
    }

    /// The same, to change it.
    pub fn kernel_mut(&self) -> RefMut<'_, Kernel> {
        self.kernel.borrow_mut()
    }

    /// The time.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.scheduler.steps()
    }

    /// No thread of a program gets a processor before this time, in nanoseconds.
    pub fn programs_stand_still(&self, until: u64) {
        self.still_until.set(until);
    }

    /// True in `parts` of `of` cases.
    pub fn happens(&self, parts: u64, of: u64) -> bool {
        self.chance.borrow_mut().happens(parts, of)
    }

    /// A number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.chance.borrow_mut().below(bound)
    }

    /// A content that nothing has had before.
    pub fn new_content(&self) -> crate::Content {
        self.next_content.set(self.next_content.get() + 1);
        let number = self.next_content.get();
        crate::Content(self.config.content_kind.map_or(number, |kind| 4 * number + kind))
    }

    /// Has the world looked at between steps.
    pub fn add_check(&self, check: Check) {
        self.checks.borrow_mut().push(check);
    }

    /// A process without memory or threads.
    pub fn new_process(&self) -> ProcessId {
        let id = ProcessId(self.kernel().processes.len());
        let frames = self.kernel().frames.clone();
        let process = Process::new(id, None, (self.config.base, self.config.span), frames);
        self.kernel_mut().processes.push(process);
        id
    }

    /// What has been said to the user.
    pub fn lines(&self) -> Ref<'_, Vec<String>> {
        self.lines.borrow()
    }

    pub(crate) fn say(&self, line: fmt::Arguments<'_>) {
        self.lines.borrow_mut().push(line.to_string());
    }

    /// Tells what is done to a page of `pages`, if it is the one that is asked about.
    pub(crate) fn trace(&self, pages: &std::ops::Range<usize>, what: fmt::Arguments<'_>) {
        let is_asked_about = self.config.trace.is_some_and(|page| pages.contains(&page));
        if !is_asked_about && !self.config.keeps_last_steps {
            return;
        }
        let (ns, steps) = (self.clock.now_ns(), self.scheduler.steps());
        let line =
            format!("{steps:>8} {:>9} us {}: {what} {:x}..{:x}", ns / 1000, self.who_runs(), pages.start, pages.end);
        if is_asked_about {
            eprintln!("{line}");
        }
        if self.config.keeps_last_steps {
            LAST_STEPS.with_borrow_mut(|steps| {
                if steps.len() == LAST_STEPS_KEPT {
                    steps.pop_front();
                }
                steps.push_back(line);
            });
        }
    }

    /// Something has happened so often.
    pub(crate) fn note(&self, what: Happening, count: usize) {
        self.tally.add(what, count as u64);
    }

    /// A page that is missing may not be filled now: its page table has just gone.
    pub(crate) fn has_a_table(&self) -> Result<(), Stop> {
        let mut apart = self.apart.borrow_mut();
        if !apart.happens(self.config.tables_go, 1000) {
            return Ok(());
        }
        let is_said_to_be_there = apart.happens(1, 2);
        self.note(Happening::SaidToBeThere, usize::from(is_said_to_be_there));
        Err(if is_said_to_be_there { Stop::AlreadyThere } else { Stop::TryLater })
    }

    /// Whether a request of the engine is refused.
    pub(crate) fn refuses(&self, what: Happening) -> bool {
        let is_so = self.happens(self.config.refusals, 1000);
        self.note(what, usize::from(is_so));
        is_so
    }

    /// What has happened so far.
    pub fn coverage(&self) -> Coverage {
        self.tally.coverage()
    }

    /// How often it has happened so far.
    pub fn happened(&self, what: Happening) -> u64 {
        self.tally.count(what)
    }

    /// The world ends, as soon as the running thread suspends itself.
    pub fn end(&self, end: End) {
        self.end.borrow_mut().get_or_insert(end);
    }

    pub(crate) fn has_end(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// The world ends with a violation.
    pub fn violate(&self, checker: Checker, detail: impl Into<String>) {
        self.end(End::Violation(Violation { checker, detail: detail.into() }));
    }

    /// The supervisor ends.
    pub fn end_supervisor(&self) {
        self.supervisor_is_gone.set(true);
        self.wake_all_pollers();
    }

    /// Lets threads go on until every thread of the program has ended, or something else ends the world.
    pub fn run(self: &Rc<World>) -> Outcome {
        assert!(CURRENT.with_borrow(Option::is_none), "one world at a time runs on a thread");
        CURRENT.set(Some(self.clone()));
        LAST_STEPS.with_borrow_mut(VecDeque::clear);
        let _entered = Entered;
        let end = loop {
            if let Some(end) = self.end.borrow_mut().take() {
                break end;
            }
            if let Err(violation) = self.check() {
                break End::Violation(violation);
            }
            if let Some(end) = self.go_on() {
                break end;
            }
        };
        self.note(Happening::Step, self.scheduler.steps() as usize);
        self.scheduler.abandon_all();
        self.give_memory_back();
        Outcome { end, steps: self.scheduler.steps(), ns: self.clock.now_ns() }
    }

    fn check(&self) -> Result<(), Violation> {
        self.checks.borrow_mut().iter_mut().try_for_each(|check| check(self))
    }

    /// One thread goes on; or how the world ends.
    fn go_on(&self) -> Option<End> {
        if self.has_news.take() | self.scheduler.ended.take() {
            self.bury_the_dead();
        }
        if !self.scheduler.has_program_threads() {
            return Some(End::Rest);
        }
        let violation = |checker, detail| Some(End::Violation(Violation { checker, detail }));
        if self.scheduler.steps() > self.config.steps_max {
            return violation(Checker::ComesToRest, format!("still running after many steps: {}", self.who_waits()));
        }
        if let Some(thread) = self.choose() {
            if let Some(panic) = self.scheduler.resume(thread) {
                return violation(Checker::Assertion, panic);
            }
            return None;
        }
        self.note(Happening::TimeJump, 1);
        if self.jump() { None } else { violation(Checker::NoLostWakeUp, self.who_waits()) }
    }

    /// Processes whose last thread of the program has ended, or that were killed, are gone with all their threads.
    fn bury_the_dead(&self) {
        let count = self.kernel().processes.len();
        for id in (0..count).map(ProcessId) {
            let is_alive = self.kernel().process(id).is_alive;
            if is_alive && self.scheduler.has_ended(id) {
                self.kill(id);
            }
            if !self.kernel().process(id).is_alive {
                self.scheduler.abandon(id);
            }
        }
    }

    /// Memory that calls of others have filled in processes since these ended goes: Linux frees it when the last such call is over.
    pub fn clear_the_dead(&self) {
        for process in &mut self.kernel_mut().processes {
            if !process.is_alive && process.mm.resident() > 0 {
                process.mm.clear();
            }
        }
    }

    /// Nobody reads the engines' frames any more.
    fn give_memory_back(&self) {
        for process in &mut self.kernel_mut().processes {
            process.mm.clear();
        }
    }

    /// Ends a process where its threads stand. Its memory goes; what it has in shared memory stays as it is.
    pub fn kill(&self, id: ProcessId) {
        let mut kernel = self.kernel_mut();
        let process = kernel.process_mut(id);
        self.note(Happening::ProcessEnd, usize::from(std::mem::replace(&mut process.is_alive, false)));
        self.has_news.set(true);
        process.mm.clear();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.scheduler.abandon_all();
    }
}
