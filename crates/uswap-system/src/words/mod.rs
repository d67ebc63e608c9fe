//! Production code under shuttle: a scheduler decides, at each access to a word, who goes on.
//!
//! `cargo xtask words` builds with `--cfg uswap_words`. Then [`crate::atomic`] has words like std's, in the same layout, that
//! ask shuttle before each access, and [`Shuttle`] is a [`System`](crate::System) with nothing but threads, words to wait on,
//! and time. A test states an invariant and [`holds`] runs it in many schedules; [`finds`] runs the same test with a
//! [`Defect`] that is in all words, and fails if no schedule shows it: so no test is one that cannot fail.
//!
//! As shuttle has it, all accesses are in one order: what a weaker ordering allows beyond that is not seen here.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

pub mod atomic;
mod system;
#[cfg(test)]
mod tests;

pub use shuttle::thread;
pub use system::{NoSystem, Shuttle, thread_ends};

/// Schedules of a test, in each of the three ways.
const SCHEDULES: usize = 500;
/// Schedules in which a defect must show.
const SCHEDULES_OF_DEFECT: usize = 3_000;
/// Changes of thread that the second scheduler makes at places of its choice.
const DEPTH: usize = 3;
/// Steps after which a schedule goes nowhere.
const STEPS: usize = 50_000;

/// Whether waits with a timeout end by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeouts {
    /// Never: who is not woken sleeps for ever, so a wake that was forgotten is a deadlock, whatever would have looked again.
    Never,
    /// At any time.
    Any,
}

/// What is wrong with all words of a test that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A wake wakes nobody.
    NoWake,
    /// A change that depends on the value before it is not one step.
    Torn,
    /// Nothing is wrong with the words: the test has a defect of its own.
    Own,
}

/// What the words of the calling test are like.
#[derive(Clone, Copy)]
struct Rules {
    timeouts: Timeouts,
    defect: Option<Defect>,
}

thread_local! {
    // Shuttle runs the threads of a test one after the other on the thread that began it.
    static RULES: Cell<Rules> = const { Cell::new(Rules { timeouts: Timeouts::Any, defect: None }) };
}

fn rules() -> Rules {
    RULES.get()
}

fn config() -> Config {
    let mut config = Config::new();
    config.silence_warnings = true;
    config.stack_size = 1 << 18;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config
}

/// Lets others go on. Nothing outside of a test, nor while one fails.
pub fn preempt() {
    if !std::thread::panicking() && shuttle::current::try_get_current_task().is_some() {
        let _ = shuttle::sync::atomic::AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
    }
}

/// Runs the test in many schedules, with timeouts and without; it must hold in all of them.
pub fn holds(test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    for timeouts in [Timeouts::Never, Timeouts::Any] {
        RULES.set(Rules { timeouts, defect: None });
        let test = test.clone();
        let run = move || {
            system::begin();
            test();
        };
        Runner::new(RandomScheduler::new(SCHEDULES), config()).run(run.clone());
        Runner::new(PctScheduler::new(DEPTH, SCHEDULES), config()).run(run);
    }
}

/// Runs the test with words that have a defect, or with one of its own: some schedule must show it.
pub fn finds(defect: Defect, test: impl Fn() + Send + Sync + 'static) {
    finds_with(Timeouts::Never, defect, test);
}

/// As [`finds`], where timeouts are as given.
pub fn finds_with(timeouts: Timeouts, defect: Defect, test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    RULES.set(Rules { timeouts, defect: Some(defect) });
    let mut config = config();
    config.failure_persistence = FailurePersistence::None;
    let run = move || {
        system::begin();
        test();
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        Runner::new(RandomScheduler::new(SCHEDULES_OF_DEFECT), config.clone()).run(run.clone());
        Runner::new(PctScheduler::new(DEPTH, SCHEDULES_OF_DEFECT), config).run(run);
    }));
    assert!(outcome.is_err(), "no schedule of {} shows {defect:?}: the test cannot fail", 2 * SCHEDULES_OF_DEFECT);
}
