//! Real programs under each policy of `uswap run`, in parts of their memory: what they miss, and how long they take.
//!
//!     cargo xtask policies [--rounds N] [--share PERCENT]... [--only POLICY]... [--seconds S] [--limit S] [--data DIRECTORY]
//!         [PROGRAM]...
//!     cargo xtask policies --page     only makes the page anew
//!
//! The programs are those of the battery. What is missing of so many rounds is run, one policy after the other, so that
//! whatever else the machine does meets all of them; after so many seconds no run begins any more, and the next call goes on.
//! Each run goes into docs/policies.jsonl as soon as it has ended, and docs/policies.md is made anew.

mod page;
mod records;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::battery::program::{self, Program};
use crate::run::{build_uswap, root, today};
use records::{Records, Run};

const RECORDS: &str = "docs/policies.jsonl";
const PAGE: &str = "docs/policies.md";
/// Programs of several kinds, and with how much data they take seconds.
const PROGRAMS: [(&str, Option<&str>); 6] = [
    ("sort", Some("35")),
    ("sqlite", None),
    ("clang", Some("small")),
    ("node", None),
    ("php-cli", None),
    ("redis", Some("60")),
];
/// Budgets, in hundredths of what a program has at its peak.
const SHARES: [u64; 2] = [50, 75];
/// More than any of them needs.
const PLENTY: u64 = 4 << 30;
const LOOK: Duration = Duration::from_millis(5);

/// What the command line asks for.
struct Wanted<'a> {
    programs: Vec<&'a str>,
    shares: Vec<u64>,
    /// Policies beside the default; empty: all.
    only: Vec<&'a str>,
    rounds: usize,
    seconds: Duration,
    limit: Duration,
    data: PathBuf,
}

fn parse<'a>(words: &[&'a str]) -> Result<Wanted<'a>, String> {
    let mut wanted = Wanted {
        programs: Vec::new(),
        shares: Vec::new(),
        only: Vec::new(),
        rounds: 3,
        seconds: Duration::from_secs(86_400),
        limit: Duration::from_secs(60),
        data: PathBuf::from("/var/tmp/uswap-policies"),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().copied().ok_or_else(|| format!("{word}: a value is missing"));
        let number = |text: &str| text.parse().map_err(|_| format!("{word} {text}: say a whole number"));
        match *word {
            "--data" => wanted.data = PathBuf::from(value()?),
            "--share" => wanted.shares.push(number(value()?)?),
            "--only" => wanted.only.push(value()?),
            "--rounds" => wanted.rounds = number(value()?)? as usize,
            "--seconds" => wanted.seconds = Duration::from_secs(number(value()?)?),
            "--limit" => wanted.limit = Duration::from_secs(number(value()?)?),
            option if option.starts_with('-') => return Err(format!("policies: no option '{option}'")),
            program => wanted.programs.push(program),
        }
    }
    if wanted.shares.is_empty() {
        wanted.shares.extend(SHARES);
    }
    if wanted.programs.is_empty() {
        wanted.programs.extend(PROGRAMS.map(|(name, _)| name));
    }
    Ok(wanted)
}

/// Runs what `words` ask for.
pub fn run(words: &[&str]) -> Result<(), String> {
    let mut records = Records::read(&root().join(RECORDS))?;
    if words == ["--page"] {
        return page::write(&records, &root().join(PAGE));
    }
    let wanted = parse(words)?;
    let uswap = match std::env::var_os("USWAP_BIN") {
        Some(given) => given.into(),
        None => build_uswap()?,
    };
    let bench = Bench { uswap, data: wanted.data, limit: wanted.limit };
    let begun = Instant::now();
    let mut programs = program::chosen(&wanted.programs)?;
    for program in &mut programs {
        program.data_scale = PROGRAMS.iter().find(|(name, _)| *name == program.name).and_then(|&(_, scale)| scale);
        program.prepare(&bench.data)?;
    }
    // Round by round, so that a table of one round is there early.
    for round in 1..=wanted.rounds {
        for program in &programs {
            let peak = match records.peak(&program.name) {
                Some(peak) => peak,
                None => records.add(bench.attempt(program, &Choice::default(), 100, PLENTY)?)?.peak_bytes,
            };
            for &share in &wanted.shares {
                for choice in choices().into_iter().filter(|choice| choice.is_among(&wanted.only)) {
                    if records.rounds(&program.name, share, &choice) >= round {
                        continue;
                    }
                    if begun.elapsed() > wanted.seconds {
                        return page::write(&records, &root().join(PAGE));
                    }
                    let run = bench.attempt(program, &choice, share, peak * share / 100)?;
                    println!("{round}: {run}");
                    records.add(run)?;
                }
            }
        }
    }
    println!("all {} rounds are there", wanted.rounds);
    page::write(&records, &root().join(PAGE))
}

/// One policy of each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub reclaim: String,
    pub readahead: String,
}

impl Default for Choice {
    fn default() -> Choice {
        Choice { reclaim: "lists".to_owned(), readahead: "stream".to_owned() }
    }
}

impl Choice {
    /// Whether it is the default, or has one of these policies.
    fn is_among(&self, only: &[&str]) -> bool {
        let default = Choice::default();
        let differs = |mine: &str, usual: &str| mine != usual && only.contains(&mine);
        let is_named = differs(&self.reclaim, &default.reclaim) || differs(&self.readahead, &default.readahead);
        only.is_empty() || *self == default || is_named
    }
}

/// All of one kind beside the default of the other.
fn choices() -> Vec<Choice> {
    let default = Choice::default;
    let reclaim = ["lists", "refault", "s3fifo", "lirs"];
    let mut choices: Vec<Choice> =
        reclaim.map(|reclaim| Choice { reclaim: reclaim.to_owned(), ..default() }).into_iter().collect();
    choices.extend(["cluster", "vma", "off"].map(|readahead| Choice { readahead: readahead.to_owned(), ..default() }));
    choices
}

/// Where and how programs are run.
struct Bench {
    uswap: PathBuf,
    data: PathBuf,
    limit: Duration,
}

impl Bench {
    fn attempt(&self, program: &Program, choice: &Choice, share: u64, budget: u64) -> Result<Run, String> {
        let directory = program.directory(&self.data);
        let (stats, output) = (directory.join("policies.stats"), directory.join("policies.stdout"));
        let _ = std::fs::remove_file(&stats);
        let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        let stdout = std::fs::File::create(&output).map_err(|error| failed(&output, error))?;
        let script = program.command("work");
        let mut command = Command::new(&self.uswap);
        command.args(["run", "-q", "--memory", &budget.to_string(), "--stats"]).arg(&stats);
        command.args(["--reclaim", &choice.reclaim, "--readahead", &choice.readahead, "--"]);
        command.arg(script.get_program()).args(script.get_args());
        command.current_dir(&directory).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
        command.env("TMPDIR", &directory);
        let begun = Instant::now();
        let child = command.spawn().map_err(|error| format!("{}: {error}", self.uswap.display()))?;
        let status = await_end(child, self.limit)?;
        let seconds = begun.elapsed().as_secs_f64();
        if status.is_some_and(|status| !status.success()) {
            return Err(format!("{} with {choice:?} in {budget} bytes ends with {status:?}", program.name));
        }
        same_output(&directory, &output)?;
        let stats = std::fs::read_to_string(&stats).ok().and_then(|text| serde_json::from_str(&text).ok());
        let stats: Value = stats.unwrap_or_default();
        let count = |key: &str| stats["vmstat"][key].as_u64().unwrap_or(0);
        Ok(Run {
            program: program.name.clone(),
            share,
            choice: choice.clone(),
            budget_bytes: budget,
            peak_bytes: stats["peak_resident_bytes"].as_u64().unwrap_or(0),
            over: status.is_none(),
            seconds,
            counts: records::COUNTS.map(count),
            machine: records::machine(),
            date: today()?,
        })
    }
}

/// Waits for the end; `None`: it took too long, and was killed.
fn await_end(mut child: Child, limit: Duration) -> Result<Option<ExitStatus>, String> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| format!("waitpid: {error}"))? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit {
            // The tree ends with its supervisor.
            let killed = child.kill().and_then(|()| child.wait());
            return killed.map(|_| None).map_err(|error| format!("kill: {error}"));
        }
        std::thread::sleep(LOOK);
    }
}

/// The result is that of the first run that ended.
fn same_output(directory: &Path, output: &Path) -> Result<(), String> {
    let first = directory.join("policies.first");
    let read = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let new = read(output)?;
    if !first.exists() {
        return std::fs::write(&first, new).map_err(|error| format!("{}: {error}", first.display()));
    }
    if read(&first)?.starts_with(&new) { Ok(()) } else { Err(format!("{}: another result", output.display())) }
}
