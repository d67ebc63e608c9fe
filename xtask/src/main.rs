//! Chores of this repository.
//!
//!     cargo xtask ci             everything that must hold before a change goes in; what CI runs
//!     cargo xtask e2e [FILTER]   the end-to-end tests alone
//!     cargo xtask soak [N]       the end-to-end tests at full length: each program N times (default 10), 200 kills
//!     cargo xtask fuzz SECONDS    model tests and soak seeds that nobody has tried, for so long
//!     cargo xtask fuzz bytes SECONDS [TARGET]
//!                                the fuzz targets of fuzz/ under libFuzzer, each for so long
//!     cargo xtask fuzz canaries  whether libFuzzer finds the defect that is planted in each of them
//!     cargo xtask battery ...    real programs under uswap, and the table docs/battery.md
//!     cargo xtask churn [--seeds N] [--seconds S] [--first-seed N] [--swap none,zram,file]
//!                                threads that churn memory, beside the kernel's own swap and without: 50 seeds of 8 masks
//!     cargo xtask policies ...    real programs under each policy, and the table docs/policies.md
//!     cargo xtask performance [FILE]...
//!                                takes what `uswap bench --json` wrote into docs/performance.md
//!     cargo xtask exhaustive     all schedules of mremap, munmap, mmap and madvise by three threads, against the order of events
//!     cargo xtask words          words that threads share without a lock, under shuttle: many schedules, and defects that must show
//!     cargo xtask sabotage [--seeds N] [NAME]...
//!                                plants defects in the engine: docs/sabotage.md says which the soak on the model finds, and how
//!     cargo xtask sabotage quick a few of them, at the seeds that are known to find them; CI runs it
//!     cargo xtask coverage       which lines of the engine the soak on the model runs, into docs/simulator.md
//!     cargo xtask docs           whether the documents agree with the repository and the binary
//!     cargo xtask overhead       what uswap costs a program that does not need it
#![forbid(unsafe_code)]

mod battery;
mod byte_fuzz;
mod churn;
mod ci;
mod coverage;
mod docs;
mod exhaustive;
mod failures;
mod fuzz;
mod overhead;
mod performance;
mod policies;
mod run;
mod sabotage;
mod summary;
mod waits;
mod words;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask ci | docs | e2e [FILTER] | soak [N] | fuzz SECONDS | fuzz bytes SECONDS [TARGET] | fuzz canaries | churn [OPTIONS] | exhaustive | sabotage [--seeds N] [NAME]... | sabotage quick | coverage | words | overhead | battery [NAME|GROUP]... [--part PART]... | policies [NAME]... [--rounds N] [--seconds S] | performance [FILE]...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["ci"] => ci::all(),
        ["docs"] => ci::documents(),
        ["e2e"] => ci::end_to_end(None),
        ["e2e", filter] => ci::end_to_end(Some(filter)),
        ["soak"] => ci::soak("10"),
        ["soak", runs] if runs.parse::<u32>().is_ok() => ci::soak(runs),
        ["fuzz", "canaries"] => byte_fuzz::canaries(),
        ["fuzz", "bytes", seconds, target @ ..] if target.len() < 2 => match seconds.parse() {
            Ok(seconds) => byte_fuzz::run(seconds, target.first().copied()),
            Err(_) => Err(format!("fuzz bytes {seconds}: say for how many seconds each, as a whole number")),
        },
        ["fuzz", seconds] => match seconds.parse() {
            Ok(seconds) => fuzz::run(seconds),
            Err(_) => Err(format!("fuzz {seconds}: say for how many seconds, as a whole number")),
        },
        ["battery", words @ ..] => battery::run(words),
        ["churn", options @ ..] => churn::run(options),
        ["exhaustive"] => exhaustive::run(),
        ["words"] => words::run(),
        ["policies", words @ ..] => policies::run(words),
        ["performance", files @ ..] => performance::run(files),
        ["coverage"] => coverage::run(),
        ["sabotage", "quick"] => sabotage::quick(),
        ["sabotage", names @ ..] => sabotage::run(names),
        ["overhead"] => overhead::measure(),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
