//! Some seeds in a process of their own, which tells what came of them.

use std::fmt;
use std::process::{Command, ExitCode, Stdio};

use uswap_model::coverage::Coverage;
use uswap_model::soak::{self, Soaked};
use uswap_model::world::last_steps;

use super::progress::Plan;
use crate::failure::Failure;

/// What a process is to run.
#[derive(Clone, Copy)]
pub struct Block {
    pub plan: Plan,
    /// Seeds of the plan that are done.
    pub done: u64,
    /// Seeds from there on.
    pub seeds: u64,
    /// With a planted defect.
    pub canary: bool,
}

/// What came of a block.
pub enum Came {
    /// Nothing was violated.
    Right(Counts),
    /// Something was, or the process ended.
    Wrong { seed: u64, what: String },
}

/// What happened how often, in the order of [`Coverage::iter`].
#[derive(Default)]
pub struct Counts(Vec<u64>);

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.0.resize(other.0.len(), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine += theirs);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Coverage::default();
        names.iter().zip(&self.0).try_for_each(|((name, _), count)| writeln!(out, "{count:>14} {name}"))
    }
}

/// What a process that runs a block begins its lines with.
const COUNTS: &str = "counts ";
const WRONG: &str = "wrong ";

/// Runs the block in a process of its own.
pub fn start(block: &Block, is_alone: bool) -> Result<Came, Failure> {
    let text = said(block, is_alone)?;
    for line in text.lines() {
        if let Some(counts) = line.strip_prefix(COUNTS) {
            return Ok(Came::Right(Counts(counts.split(' ').filter_map(|count| count.parse().ok()).collect())));
        }
        if let Some((seed, what)) = line.strip_prefix(WRONG).and_then(|wrong| wrong.split_once(' '))
            && let Ok(seed) = seed.parse()
        {
            return Ok(Came::Wrong { seed, what: what.to_owned() });
        }
    }
    // It ended without a word: which of its seeds does it?
    let Block { plan, done, seeds, canary } = *block;
    if seeds > 1 {
        for done in done..done + seeds {
            let one = start(&Block { plan, done, seeds: 1, canary }, is_alone)?;
            if matches!(one, Came::Wrong { .. }) {
                return Ok(one);
            }
        }
    }
    let seed = plan.from(done).next().unwrap_or(plan.first);
    Ok(Came::Wrong {
        seed,
        what: format!("the process that ran it ended{}", if seeds > 1 { ", with others" } else { "" }),
    })
}

fn said(block: &Block, is_alone: bool) -> Result<String, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::ours(format!("cannot start a process for the schedules: {}", crate::failure::reason(&error)))
    };
    let Block { plan, done, seeds, canary } = block;
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command.args(["sim", "soak", "--block", &format!("{done}/{seeds}")]);
    if is_alone {
        command.arg("--seed").arg(plan.first.to_string());
    } else {
        command.args(["--first", &plan.first.to_string(), "--seeds", &plan.seeds.to_string()]);
        command.args(["--shard", &format!("{}/{}", plan.shard + 1, plan.shards)]);
    }
    if *canary {
        command.arg("--canary");
    }
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(cannot)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// In the process of its own: runs it, and tells. `is_alone`: the last steps of what is found are told on standard error.
pub fn run(block: &Block, is_alone: bool) -> ExitCode {
    let mut coverage = Coverage::default();
    for seed in block.plan.from(block.done).take(block.seeds as usize) {
        let soaked = match (block.canary, is_alone) {
            (true, _) => soak::run_seed_that_misreads(seed),
            (false, true) => soak::run_seed_and_keep_steps(seed),
            (false, false) => soak::run_seed(seed),
        };
        if let Some(what) = wrong(&soaked) {
            if is_alone {
                last_steps().iter().for_each(|step| eprintln!("{step}"));
            }
            println!("{WRONG}{seed} {what}");
            return ExitCode::SUCCESS;
        }
        coverage.merge(&soaked.coverage);
    }
    let counts: Vec<String> = coverage.iter().map(|(_, count)| count.to_string()).collect();
    println!("{COUNTS}{}", counts.join(" "));
    ExitCode::SUCCESS
}

/// What was found, in a line.
fn wrong(soaked: &Soaked) -> Option<String> {
    let violation = soaked.violation()?;
    Some(format!("step {}: {}", soaked.outcome.steps, violation.to_string().replace('\n', " ")))
}
