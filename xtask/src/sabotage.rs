//! Defects in the engine, planted one after the other: the soak on the model must find each. Writes docs/sabotage.md.
//!
//! A defect is found by the first seed that ends with a violation where the soak without it finds none.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::run::{cargo, root, step, target, today};

/// Seeds after which a defect counts as not found, of plain schedules.
const SEEDS: u64 = 50_000;
/// And of those where nothing rests, which are tried then, and of those that copy what is in common: one for so many plain ones.
const PLAIN_FOR_RESTLESS: u64 = 5;
/// Seeds of one process; what has run of an engine is never taken apart.
const BLOCK: u64 = 1000;
const RESTLESS_BLOCK: u64 = 250;
/// Kinds of schedules, as the soak names them.
const PLAIN: &str = "all";
const RESTLESS: &str = "restless";
/// What can be found only where memory is shared.
const SHARING: &str = "sharing";
const OF_SHARED_MEMORY: &str = "shmem/";
const COPYING: &str = "copying";
/// Defects that are planted at a time.
const AT_ONCE: usize = 2;
/// What every CI run plants.
const QUICK: [&str; 6] =
    ["AgainIsSuccess", "DirtyIsClean", "StaleHash", "RemapLost", "FailedStoreForgotten", "WantedForgotten"];
/// Seeds within which each is found: several times as many as it took last. Which one does it changes with every change of the engine.
const QUICK_SEEDS: u64 = 300;

/// A defect, as the soak lists it.
struct Defect {
    name: String,
    place: String,
    what: String,
}

/// How it was found.
#[derive(Clone)]
struct Found {
    /// As it is given to the soak: its number, and the kind of schedule that is not plain.
    seed: u64,
    kind: &'static str,
    checker: String,
    how: String,
}

/// Plants those that are named, or all, and writes the table if it was all. `--seeds N` looks at fewer.
pub fn run(names: &[&str]) -> Result<(), String> {
    let (names, seeds) = match names {
        ["--seeds", seeds, names @ ..] => (names, seeds.parse().map_err(|_| format!("--seeds {seeds}: say how many"))?),
        names => (names, SEEDS),
    };
    let soak = build()?;
    let all = defects(&soak)?;
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|defect| defect.name == **name)) {
        return Err(format!("there is no defect {unknown}"));
    }
    let chosen: Vec<&Defect> =
        all.iter().filter(|defect| names.is_empty() || names.contains(&defect.name.as_str())).collect();
    let results = Mutex::new(vec![None; chosen.len()]);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(&defect) = chosen.get(next.fetch_add(1, Relaxed)) {
                    let found = search(&soak, defect, seeds);
                    println!("{}", row(defect, found.as_ref().ok().and_then(Option::as_ref), seeds));
                    let index = chosen.iter().position(|other| other.name == defect.name).expect("it is one of them");
                    results.lock().expect("no thread panics with this lock")[index] = Some(found);
                }
            });
        }
    });
    let results: Vec<Option<Found>> = results
        .into_inner()
        .expect("no thread panics with this lock")
        .into_iter()
        .map(|result| result.unwrap_or(Ok(None)))
        .collect::<Result<_, String>>()?;
    if names.is_empty() {
        write_table(&chosen, &results, seeds)?;
    }
    let missed: Vec<&str> =
        chosen.iter().zip(&results).filter(|(_, found)| found.is_none()).map(|(defect, _)| &*defect.name).collect();
    if missed.is_empty() { Ok(()) } else { Err(format!("not found in {seeds} seeds: {}", missed.join(", "))) }
}

/// A few of them, and nothing without them at the seeds that find them.
pub fn quick() -> Result<(), String> {
    let soak = build()?;
    for name in QUICK {
        let found = block(&soak, name, PLAIN, 0, QUICK_SEEDS)?
            .ok_or_else(|| format!("{QUICK_SEEDS} seeds do not find {name}: cargo xtask sabotage {name}"))?;
        println!("{name}: seed {}: {}: {}", found.seed, found.checker, found.how);
        if let Some(without) = block(&soak, "", PLAIN, found.seed, 1)? {
            return Err(format!("seed {} without a defect: {}: {}", found.seed, without.checker, without.how));
        }
    }
    Ok(())
}

/// In a directory of its own: what else is built has no such feature.
fn build() -> Result<PathBuf, String> {
    let directory = target().join("sabotage");
    let mut command =
        cargo(&["build", "--release", "-p", "uswap-model", "--features", "sabotage", "--example", "soak"]);
    step("soak with defects", command.arg("--target-dir").arg(&directory))?;
    nothing_shipped_has_it()?;
    Ok(directory.join("release/examples/soak"))
}

/// The command, the agent and what they are made of are built without the feature, whatever else is built beside them.
fn nothing_shipped_has_it() -> Result<(), String> {
    let mut tree = cargo(&["tree", "--workspace", "-e", "features", "--prefix", "none", "-q"]);
    let output = tree.output().map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find(|line| line.contains("feature \"sabotage\"")) {
        Some(line) => Err(format!("a plain build has the feature sabotage: {line}")),
        None => Ok(()),
    }
}

fn defects(soak: &Path) -> Result<Vec<Defect>, String> {
    let output = Command::new(soak).arg("defects").output().map_err(|error| format!("soak: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let defects = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        Some(Defect { name: parts.next()?, place: parts.next()?, what: parts.next()? })
    });
    Ok(defects.collect())
}

fn search(soak: &Path, defect: &Defect, seeds: u64) -> Result<Option<Found>, String> {
    let is_of_shared = defect.place.starts_with(OF_SHARED_MEMORY);
    let kind = if is_of_shared { SHARING } else { PLAIN };
    let plain = (0..seeds).step_by(BLOCK as usize).map(|first| (kind, first, BLOCK));
    let others = |kind| {
        let seeds = if is_of_shared { 0 } else { seeds / PLAIN_FOR_RESTLESS };
        let firsts = (0..seeds).step_by(RESTLESS_BLOCK as usize);
        firsts.map(move |first| (kind, first, RESTLESS_BLOCK))
    };
    for (kind, first, count) in plain.chain(others(RESTLESS)).chain(others(COPYING)) {
        if let Some(found) = block(soak, &defect.name, kind, first, count)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Runs some seeds with a defect; the first that finds it.
fn block(soak: &Path, defect: &str, kind: &'static str, first: u64, seeds: u64) -> Result<Option<Found>, String> {
    let mut command = Command::new(soak);
    command
        .args(["quietly", &first.to_string(), &seeds.to_string(), kind])
        .args((!defect.is_empty()).then_some(defect));
    let output = command.output().map_err(|error| format!("soak: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(None);
    }
    let line = text.lines().rev().find_map(|line| line.strip_prefix("seed "));
    match line.and_then(parse) {
        Some(found) => Ok(Some(Found { kind, ..found })),
        None => Err(format!("{defect}: the soak ended with {}: {text}", output.status)),
    }
}

/// `N: step S: Checker: how`, where the step may be missing.
fn parse(line: &str) -> Option<Found> {
    let (seed, rest) = line.split_once(": ")?;
    let rest = match rest.strip_prefix("step ") {
        Some(rest) => rest.split_once(": ")?.1,
        None => rest,
    };
    let (checker, how) = rest.split_once(": ")?;
    let how: String = how.replace('|', "/").chars().take(110).collect();
    Some(Found { seed: seed.parse().ok()?, kind: PLAIN, checker: checker.to_owned(), how })
}

fn row(defect: &Defect, found: Option<&Found>, seeds: u64) -> String {
    let Defect { name, place, what } = defect;
    let restless = seeds / PLAIN_FOR_RESTLESS;
    match found {
        Some(Found { seed, kind: PLAIN, checker, how }) => {
            format!("| {name} |{what} | `{place}` | {seed} | {} | {checker} | {how} |", seed + 1)
        }
        Some(Found { seed, kind: SHARING, checker, how }) => {
            format!("| {name} |{what} | `{place}` | {seed} {SHARING} | {} | {checker} | {how} |", seed + 1)
        }
        Some(Found { seed, kind, checker, how }) => {
            let before = if *kind == COPYING { format!("{seeds}, {restless}") } else { seeds.to_string() };
            format!("| {name} |{what} | `{place}` | {seed} {kind} | {before} and {} | {checker} | {how} |", seed + 1)
        }
        None => format!("| {name} |{what} | `{place}` | - | {seeds}, {restless} and {restless} | not found | |"),
    }
}

fn write_table(defects: &[&Defect], results: &[Option<Found>], seeds: u64) -> Result<(), String> {
    let mut text = format!(
        "# Sabotage\n\nWhat `cargo xtask sabotage` wrote on {}: defects that were planted in the engine one at a time, and how the soak \
         on the model of Linux ([simulator.md](simulator.md)) found each, or in how many seeds it did not. A build with the feature `sabotage` has them \
         (`uswap_core::defects`); nothing that is shipped has it, which the same command checks. Seeds count from 0, and each is a \
         program and its schedule of some thousand steps. Where plain ones found nothing, schedules in which nothing rests were tried \
         (`restless`, then those that copy what is in common (`copying`): so many of each; those of shared memory are looked for where memory is \
         shared (`sharing`). A row can be seen again by\n\n```text\n\
         cargo run --release -p uswap-model --features sabotage --example soak SEED 1 [restless|copying|sharing] DEFECT\n```\n\n\
         | defect | what it does | where | found at seed | seeds | by | what was seen |\n| --- | --- | --- | ---: | ---: | --- | --- |\n",
        today()?
    );
    for (defect, found) in defects.iter().zip(results) {
        text += &row(defect, found.as_ref(), seeds);
        text.push('\n');
    }
    let path = root().join("docs/sabotage.md");
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_read() {
        let found = parse("17: step 5286: RightContent: page 0x1eb reads as 1").unwrap();
        assert_eq!((found.seed, &*found.checker, &*found.how), (17, "RightContent", "page 0x1eb reads as 1"));
        let found = parse("2: Assertion: panicked at x.rs:1:2: so").unwrap();
        assert_eq!((found.seed, found.kind, &*found.checker), (2, PLAIN, "Assertion"));
    }

    #[test]
    fn nothing_shipped_can_be_sabotaged() {
        nothing_shipped_has_it().unwrap();
    }
}
