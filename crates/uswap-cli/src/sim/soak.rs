//! `uswap sim soak`: the engine's own core through adversarial schedules, one for each seed.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use uswap_sim::soak::coverage::HAPPENINGS;
use uswap_sim::soak::progress::Plan;
use uswap_sim::soak::{Coverage, Outcome, Sabotage, run_sabotaged, run_seed};

use crate::failure::{Failure, say};

/// Seeds between two notes of how far the soak has come.
const NOTE_EVERY: u64 = 200;
/// A checker has found something.
const VIOLATED: u8 = 1;

/// Run the engine's core through adversarial schedules, and check everything after every step.
#[derive(Args)]
pub struct SoakArgs {
    /// How many schedules, in all shards
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this seed alone
    #[arg(long, conflicts_with_all = ["seeds", "first", "shard", "progress"])]
    seed: Option<u64>,
    /// Which part of the seeds, as 1/2 and 2/2 for two processes
    #[arg(long, value_name = "K/N", default_value = "1/1", value_parser = shard)]
    shard: (u64, u64),
    /// Keep in this file how far it has come, and go on from there
    #[arg(long, value_name = "FILE")]
    progress: Option<PathBuf>,
    /// Plant a defect that must be reported
    #[arg(long, hide = true)]
    canary: bool,
}

fn shard(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('/').and_then(|(which, of)| Some((which.parse().ok()?, of.parse().ok()?)));
    match parts {
        Some((which, of)) if (1..=of).contains(&which) => Ok((which - 1, of)),
        _ => Err("a shard is K/N, with K from 1 to N".to_owned()),
    }
}

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

pub fn main(arguments: &SoakArgs) -> ExitCode {
    // An assertion of the books ends this process; the line must name the seed.
    std::panic::set_hook(Box::new(|panic| {
        say(replay(SEED.get(), &panic.to_string().replace('\n', " ")));
        std::process::exit(i32::from(VIOLATED));
    }));
    let plan = match arguments.seed {
        Some(seed) => Plan { first: seed, seeds: 1, shard: 0, shards: 1 },
        None => {
            let (shard, shards) = arguments.shard;
            Plan { first: arguments.first, seeds: arguments.seeds, shard, shards }
        }
    };
    match run(plan, arguments.progress.as_ref(), arguments.canary) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn run(plan: Plan, progress: Option<&PathBuf>, canary: bool) -> Result<ExitCode, Failure> {
    let mut done = match progress {
        Some(path) => plan.done(path).map_err(|error| Failure::bad_input(error.to_string()))?,
        None => 0,
    };
    let (mut coverage, mut steps, mut here) = (Coverage::default(), 0, 0u64);
    for seed in plan.from(done) {
        SEED.set(seed);
        let outcome = if canary { run_sabotaged(seed, Sabotage::Misread) } else { run_seed(seed) };
        if let Some(line) = failure(seed, &outcome) {
            // The next run begins with this seed again.
            note(plan, done, progress)?;
            say(line);
            return Ok(ExitCode::from(VIOLATED));
        }
        coverage.merge(&outcome.coverage);
        steps += outcome.steps;
        (done, here) = (done + 1, here + 1);
        if done.is_multiple_of(NOTE_EVERY) {
            note(plan, done, progress)?;
        }
    }
    note(plan, done, progress)?;
    let mut text = format!("{here} schedules, {steps} steps, nothing violated\n");
    for &(what, name) in HAPPENINGS {
        text += &format!("{:>14} {name}\n", coverage.count(what));
    }
    crate::output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn failure(seed: u64, outcome: &Outcome) -> Option<String> {
    let violation = outcome.violation.as_ref()?;
    Some(replay(seed, &format!("step {}: {violation}", outcome.steps)))
}

fn replay(seed: u64, what: &str) -> String {
    format!("seed {seed}: {what}; replay it with: uswap sim soak --seed {seed}")
}

/// Keeps how far the soak has come; whole or not at all.
fn note(plan: Plan, done: u64, progress: Option<&PathBuf>) -> Result<(), Failure> {
    let Some(path) = progress else { return Ok(()) };
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    super::write_file(&beside, plan.record(done).as_bytes())?;
    std::fs::rename(&beside, path).map_err(|error| {
        Failure::ours(format!("cannot write '{}': {}", path.display(), crate::failure::reason(&error)))
    })
}
