//! The main promise: the same output and the same status, in a part of the memory.

use std::io::Write;
use std::time::Duration;

use crate::{Budget, Finished, Launch, MIB, settings};

/// The part of a program's normal peak that it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// One half.
    Half,
    /// One third.
    Third,
}

impl Share {
    /// This part of `peak`.
    pub fn of(self, peak: u64) -> u64 {
        match self {
            Share::Half => peak / 2,
            Share::Third => peak / 3,
        }
    }
}

/// Runs the program without uswap, as the measure of what must come out. It must succeed.
pub fn record(launch: &Launch) -> Finished {
    let recorded = launch.bare().finish();
    recorded.assert_success();
    recorded
}

/// A shorter run may end while the sampler waits for a processor, with most of its memory unseen.
const SHORT: Duration = Duration::from_secs(2);
/// So its peak is the highest of so many runs.
const SHORT_RUNS: u32 = 4;

/// [`record`], and the peak of the program.
fn record_peak(launch: &Launch) -> (Finished, u64) {
    let mut recorded = record(launch);
    let mut peak = recorded.samples.peak_proportional;
    for _ in 1..SHORT_RUNS {
        if recorded.wall < SHORT {
            recorded = record(launch);
            peak = peak.max(recorded.samples.peak_proportional);
        }
    }
    (recorded, peak)
}

/// Runs the program without uswap, then as often as the settings say within a share of its peak. Output and status
/// must be the same each time, and pages must have been swapped out; how well the budget was kept is printed (it is
/// asserted in `budget.rs`). `verify` looks at what else the program made: after the run without uswap, for which
/// it gets no other to compare with, and after each of the others.
pub fn compare(launch: &Launch, share: Share, mut verify: impl FnMut(Option<&Finished>, &Finished)) {
    let (recorded, peak) = record_peak(launch);
    verify(None, &recorded);
    let budget = Budget::bytes(share.of(peak));
    for run in 1..=settings::repeat() {
        let finished = launch.under(&budget).finish();
        say(&format!(
            "run {run}: {:.1?} in {} MiB (peak {} MiB, {} of {} samples too high); without uswap {:.1?} in {} MiB",
            finished.wall,
            budget.memory / MIB,
            finished.samples.peak().resident() / MIB,
            finished.samples.above(budget.memory).len(),
            finished.samples.list.len(),
            recorded.wall,
            peak / MIB
        ));
        assert_eq!(finished.code(), recorded.code(), "status of run {run}\n{finished}");
        assert!(finished.stdout == recorded.stdout, "output of run {run} differs from\n{recorded}\nit is\n{finished}");
        finished.assert_swapped();
        verify(Some(&recorded), &finished);
    }
}

/// A line past the capture of test output: a long test shows that it goes on.
fn say(line: &str) {
    let thread = std::thread::current();
    let line = format!("    {}: {line}\n", thread.name().unwrap_or("test"));
    // Nobody may be listening, which is no failure.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
