//! Model tests and soak seeds that nobody has tried yet, for as long as asked.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::run::{build_uswap, cargo, root};
use crate::summary::Summary;

/// Cases of each model test, as the tests themselves say.
const CASES: u64 = 10_000;
/// Schedules of the soak after each program of model tests.
const SOAK_SEEDS: u64 = 50;
/// A seed of which it is known that the canary dies with it. Any would do: one case in two kills it.
const CANARY_SEED: u64 = 1;
/// Schedules in which the soak's planted defect is found for sure.
const CANARY_SOAK_SEEDS: u64 = 200;

/// The crates that have model tests.
const PACKAGES: [&str; 3] = ["uswap-core", "uswap-policy", "uswap-linux"];

/// A program of tests.
struct Tests {
    path: PathBuf,
    package: &'static str,
    name: String,
}

impl Tests {
    /// Builds the model tests and the canary; one program each.
    fn build() -> Result<Vec<Tests>, String> {
        println!("== building the model tests");
        let output = cargo(&["test", "-q", "--lib", "--test", "model_*", "--test", "canary"])
            .args(PACKAGES.iter().flat_map(|package| ["-p", package]))
            .args(["--no-run", "--message-format=json-render-diagnostics"])
            .stderr(std::process::Stdio::inherit())
            .output()
            .map_err(|error| format!("cargo: {error}"))?;
        let tests: Vec<Tests> = executables(&String::from_utf8_lossy(&output.stdout));
        match output.status.success() && !tests.is_empty() {
            true => Ok(tests),
            false => Err("the model tests cannot be built".to_owned()),
        }
    }

    /// What cargo is told to run this alone.
    fn filter(&self) -> Vec<&str> {
        match self.name.as_str() {
            name if name == library(self.package) => vec!["--lib", "model_"],
            "canary" => vec!["--test", "canary"],
            name => vec!["--test", name],
        }
    }

    /// The command that does the same again.
    fn replay(&self, seed: u64) -> String {
        format!("PROPTEST_RNG_SEED={seed} cargo test -p {} {}", self.package, self.filter().join(" "))
    }

    /// Runs it; the number of tests, or what was found and how to find it again.
    fn run(&self, seed: u64) -> Result<u64, String> {
        let mut command = Command::new(&self.path);
        // The arguments of the program itself stand behind the name of it.
        command.args(self.filter().iter().filter(|word| !["--lib", "--test", &self.name].contains(word)));
        command.current_dir(root().join("crates").join(self.package)).env("PROPTEST_RNG_SEED", seed.to_string());
        let output = ran(&mut command, &self.replay(seed))?;
        let mut summary = Summary::default();
        String::from_utf8_lossy(&output.stdout).lines().for_each(|line| summary.line(line));
        match summary.passed {
            0 => Err(format!("{} has no test to run", self.name)),
            passed => Ok(passed),
        }
    }
}

/// The programs that cargo's messages name.
fn executables(messages: &str) -> Vec<Tests> {
    let tests = messages.lines().filter_map(|line| {
        let path = PathBuf::from(line.split_once("\"executable\":\"")?.1.split_once('"')?.0);
        let package = PACKAGES.into_iter().find(|package| line.contains(&format!("/{package}#")))?;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let name = file.rsplit_once('-').map_or(&*file, |(name, _)| name).to_owned();
        // The model tests of the policies are programs of their own.
        (name != library("uswap-policy")).then_some(Tests { path, package, name })
    });
    tests.collect()
}

/// The name of a package's library, and so of the program with its unit tests.
fn library(package: &str) -> String {
    package.replace('-', "_")
}

/// Runs a command; a failure is what it said, and the command that repeats it.
fn ran(command: &mut Command, replay: &str) -> Result<Output, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(format!("{}\n{}\nfound something; replay it with: {replay}", said.trim_end(), warned.trim_end()))
}

fn soak(uswap: &PathBuf, first: u64, seeds: u64, more: &[&str]) -> Result<(), String> {
    let (first, seeds) = (first.to_string(), seeds.to_string());
    let mut command = Command::new(uswap);
    command.args(["sim", "soak", "--first", &first, "--seeds", &seeds]).args(more);
    ran(&mut command, "the command in the line above").map(drop)
}

/// A report must name what was found and the seed.
fn reported(what: &str, outcome: Result<(), String>, parts: &[&str]) -> Result<(), String> {
    match outcome {
        Ok(()) => Err(format!("{what} lives: a planted defect is not reported")),
        Err(report) if parts.iter().all(|part| report.contains(part)) => {
            println!("== {what} died, and it was reported");
            Ok(())
        }
        Err(report) => Err(format!("{what} died of something else: {report}")),
    }
}

/// Whether a defect in what the model tests test would be reported, and would be found again.
pub fn canary() -> Result<(), String> {
    model_canary(&Tests::build()?)
}

fn model_canary(tests: &[Tests]) -> Result<(), String> {
    let canary = tests.iter().find(|tests| tests.name == "canary").ok_or("there is no canary")?;
    let parts = ["minimal failing input", &canary.replay(CANARY_SEED)];
    (0..2).try_for_each(|_| reported("the canary", canary.run(CANARY_SEED).map(drop), &parts))
}

/// Runs for so long, and until the program that runs then has ended.
pub fn run(seconds: u64) -> Result<(), String> {
    let tests = Tests::build()?;
    let uswap = match std::env::var_os("USWAP_BIN") {
        Some(given) => PathBuf::from(given),
        None => build_uswap()?,
    };
    model_canary(&tests)?;
    reported(
        "the soak's canary",
        soak(&uswap, 0, CANARY_SOAK_SEEDS, &["--canary"]),
        &["replay it with: uswap sim soak --seed"],
    )?;
    let models: Vec<&Tests> = tests.iter().filter(|tests| tests.name != "canary").collect();
    let begun = Instant::now();
    let time_is_up = || begun.elapsed() >= Duration::from_secs(seconds);
    let (mut rounds, mut run, mut schedules) = (0u64, 0, 0);
    while !time_is_up() {
        // Small enough that no sum of seeds overflows, and to be typed.
        let seed = RandomState::new().hash_one(rounds) >> 24;
        let (tests_before, mut next) = (run, seed);
        for tests in &models {
            if time_is_up() {
                break;
            }
            run += tests.run(seed)?;
            if !time_is_up() {
                soak(&uswap, next, SOAK_SEEDS, &[])?;
                next += SOAK_SEEDS;
            }
        }
        schedules += next - seed;
        println!(
            "round {}: {} model tests with seed {seed}, {} soak schedules from seed {seed} on: nothing found",
            rounds + 1,
            run - tests_before,
            next - seed
        );
        rounds += 1;
    }
    println!(
        "== rounds: {rounds} in {:.0?}; model tests: {run}, cases: {}; soak schedules: {schedules}; nothing found",
        begun.elapsed(),
        run * CASES
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"{"reason":"compiler-artifact","executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///w/crates/uswap-core#0.1.0","executable":"/t/debug/deps/uswap_core-12ab"}
{"reason":"compiler-artifact","package_id":"path+file:///w/crates/uswap-policy#0.1.0","executable":"/t/debug/deps/uswap_policy-56ef"}
{"reason":"compiler-artifact","package_id":"path+file:///w/crates/uswap-policy#0.1.0","executable":"/t/debug/deps/model_streams-34cd","fresh":true}"#;

    #[test]
    fn programs_are_found_and_run_again_by_name() {
        let tests = executables(MESSAGES);
        let replays: Vec<String> = tests.iter().map(|tests| tests.replay(7)).collect();
        assert_eq!(
            replays,
            [
                "PROPTEST_RNG_SEED=7 cargo test -p uswap-core --lib model_",
                "PROPTEST_RNG_SEED=7 cargo test -p uswap-policy --test model_streams",
            ]
        );
        assert_eq!(tests[1].path, PathBuf::from("/t/debug/deps/model_streams-34cd"));
    }

    #[test]
    fn what_fails_is_reported_and_what_lives_though_it_should_die_too() {
        let report = ran(Command::new("sh").args(["-c", "echo said; exit 1"]), "this").unwrap_err();
        assert_eq!(report, "said\n\nfound something; replay it with: this");
        assert!(ran(Command::new("true").arg("x"), "this").is_ok());
        assert!(reported("it", Ok(()), &[]).unwrap_err().contains("it lives"));
        assert!(reported("it", Err("other".to_owned()), &["part"]).unwrap_err().contains("something else"));
        assert_eq!(reported("it", Err(report), &["said", "this"]), Ok(()));
    }
}
