//! What happened in a world, counted: a soak in which nothing happens finds nothing.

use std::cell::Cell;

use uswap_engine::group::{Counter, Group};

macro_rules! happenings {
    ($($name:ident = $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Happening { $(#[doc = $text] $name,)* }

        /// All of them, with their names.
        pub const HAPPENINGS: &[(Happening, &str)] = &[$((Happening::$name, $text),)*];
    };
}

happenings! {
    Step = "steps",
    Access = "accesses",
    Fault = "faults",
    MovedOut = "pages moved out",
    MovedIn = "pages moved in",
    Copied = "pages copied in",
    CameAlong = "pages used that nobody had waited for",
    CameForNothing = "pages that left unused",
    Zeroed = "zero pages mapped",
    CopiedOnWrite = "pages in common copied when they were written to",
    SeenInCommon = "pages seen to be in common",
    CensusHeld = "such moments in which a census held",
    SharesTold = "processes that told their share of what they have in common",
    Poisoned = "pages given up for lost",
    Discard = "discards",
    Unmap = "unmappings",
    UnmapRefused = "unmappings that were reported and refused",
    Remap = "movings of memory",
    Grow = "growings of memory",
    EventRead = "events read",
    Fork = "forks",
    ProcessEnd = "ends of a process",
    Kill = "processes killed",
    FirstKilled = "first processes killed",
    TryLater = "operations that an unread event stood in the way of",
    Busy = "moves refused as busy",
    NoMemory = "operations refused for want of memory",
    SaidToBeThere = "pages said to be there where nothing was",
    Miscount = "moves of which a page was not counted",
    ShortCount = "operations that ended early",
    RegisterRefused = "registrations refused",
    ReserveRefused = "times that nothing could be set aside",
    ThreadRefused = "threads that could not be made",
    AdviceRefused = "advice refused",
    LookRefused = "looks at mappings refused",
    LookFailed = "looks at pages or mappings that failed",
    KernelSwap = "pages that the kernel swapped out",
    LazyDrop = "pages that the kernel dropped after MADV_FREE",
    HugePage = "holes that the kernel filled for a huge page",
    ReadFromOutside = "holes that another process read",
    Spurious = "threads woken for no reason",
    Stop = "threads that stood still",
    TimeJump = "waits for time alone",
    Counted = "times that all processes had told what they have",
    SwapoffBegun = "areas told to leave",
    SwapoffEnded = "areas emptied",
    SwapoffTakenBack = "areas told to stay after all",
    BudgetSet = "budgets changed",
    SupervisorLost = "supervisors lost",
    SharedProtected = "times that shared memory was protected",
    SharedPunched = "pages of shared memory punched out",
    SharedFound = "pages of shared memory found where another process had them",
    EndedWithLine = "trees ended with a line",
}

/// How often each [`Happening`] came, and what the engine counted itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coverage {
    happenings: [u64; HAPPENINGS.len()],
    counters: [u64; Counter::COUNT],
}

impl Default for Coverage {
    fn default() -> Self {
        Self { happenings: [0; HAPPENINGS.len()], counters: [0; Counter::COUNT] }
    }
}

impl Coverage {
    /// How often it happened.
    pub fn count(&self, what: Happening) -> u64 {
        self.happenings[what as usize]
    }

    /// What the engines of a tree counted.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// All, with their names: those of the world, and then the engine's.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let happenings = HAPPENINGS.iter().map(|&(what, name)| (name, self.count(what)));
        happenings.chain(Counter::ALL.iter().map(|&counter| (counter.name(), self.counter(counter))))
    }

    /// Adds what happened elsewhere.
    pub fn merge(&mut self, other: &Coverage) {
        self.happenings.iter_mut().zip(other.happenings).for_each(|(mine, theirs)| *mine += theirs);
        self.counters.iter_mut().zip(other.counters).for_each(|(mine, theirs)| *mine += theirs);
    }

    pub(crate) fn take_counters(&mut self, group: &Group) {
        for &counter in Counter::ALL {
            self.counters[counter as usize] += group.count(counter);
        }
    }
}

/// The tally of a world that runs.
pub(crate) struct Tally([Cell<u64>; HAPPENINGS.len()]);

impl Tally {
    pub fn new() -> Tally {
        Tally([const { Cell::new(0) }; HAPPENINGS.len()])
    }

    pub fn add(&self, what: Happening, count: u64) {
        let cell = &self.0[what as usize];
        cell.set(cell.get() + count);
    }

    pub fn count(&self, what: Happening) -> u64 {
        self.0[what as usize].get()
    }

    pub fn coverage(&self) -> Coverage {
        let mut coverage = Coverage::default();
        coverage.happenings.iter_mut().zip(&self.0).for_each(|(to, from)| *to = from.get());
        coverage
    }
}
