//! `uswap sim soak`: the engine on a model of Linux, through random schedules, one for each seed.

mod block;
mod progress;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::failure::{Failure, say};
use block::{Block, Came, Counts};
use progress::Plan;

/// Seeds between two notes of how far the soak has come, and of one process that runs them: what has run of an engine is never
/// taken apart, a megabyte for each seed.
const BLOCK: u64 = 200;
/// A checker has found something.
const VIOLATED: u8 = 1;

/// Run the engine on a model of Linux through random schedules, and check what programs read, who waits, and how it ends.
#[derive(Args)]
pub struct SoakArgs {
    /// How many schedules, in all shards
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this seed alone, and tell its last steps if something is found
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
    /// Run so many of the seeds, from this one of them on, and tell what came of them: for the process that runs the blocks
    #[arg(long, hide = true, value_name = "DONE/SEEDS", value_parser = part)]
    block: Option<(u64, u64)>,
}

fn shard(text: &str) -> Result<(u64, u64), String> {
    match part(text) {
        Ok((which, of)) if (1..=of).contains(&which) => Ok((which - 1, of)),
        _ => Err("a shard is K/N, with K from 1 to N".to_owned()),
    }
}

fn part(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('/').and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
    parts.ok_or_else(|| "two numbers with a / between them".to_owned())
}

pub fn main(arguments: &SoakArgs) -> ExitCode {
    let plan = match arguments.seed {
        Some(seed) => Plan { first: seed, seeds: 1, shard: 0, shards: 1 },
        None => {
            let (shard, shards) = arguments.shard;
            Plan { first: arguments.first, seeds: arguments.seeds, shard, shards }
        }
    };
    let is_alone = arguments.seed.is_some();
    if let Some((done, seeds)) = arguments.block {
        return block::run(&Block { plan, done, seeds, canary: arguments.canary }, is_alone);
    }
    match run(plan, arguments.progress.as_ref(), arguments.canary, is_alone) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn run(plan: Plan, progress: Option<&PathBuf>, canary: bool, is_alone: bool) -> Result<ExitCode, Failure> {
    let mut done = match progress {
        Some(path) => plan.done(path).map_err(|error| Failure::bad_input(error.to_string()))?,
        None => 0,
    };
    let (mut counts, mut here) = (Counts::default(), 0u64);
    loop {
        let seeds = plan.from(done).take(BLOCK as usize).count() as u64;
        if seeds == 0 {
            break;
        }
        match block::start(&Block { plan, done, seeds, canary }, is_alone)? {
            Came::Right(more) => counts.add(&more),
            Came::Wrong { seed, what } => {
                // The next run begins with this seed again.
                let before = plan.from(done).position(|one| one == seed).unwrap_or(0) as u64;
                note(plan, done + before, progress)?;
                say(format!("seed {seed}: {what}; replay it with: uswap sim soak --seed {seed}"));
                return Ok(ExitCode::from(VIOLATED));
            }
        }
        (done, here) = (done + seeds, here + seeds);
        note(plan, done, progress)?;
    }
    note(plan, done, progress)?;
    crate::output::print(&format!("{here} schedules, nothing violated\n{counts}"))?;
    Ok(ExitCode::SUCCESS)
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
