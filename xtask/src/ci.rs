//! What must hold before a change goes in.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::docs;
use crate::failures::Failures;
use crate::fuzz;
use crate::run::{build_uswap, cargo, root, step, target};
use crate::sabotage;
use crate::summary::Summary;
use crate::words;

/// How much the end-to-end tests do.
struct Length<'a> {
    /// Real programs at full size.
    full: bool,
    /// Runs of each program under uswap.
    runs: &'a str,
    kills: &'a str,
}

/// CI; a soak takes ten runs and 200 kills.
const CI: Length = Length { full: false, runs: "1", kills: "60" };

/// Format, lints, licences, unit tests, words under shuttle, a canary and planted defects that must be found, end-to-end tests,
/// documents. All of it runs, also after a failure, so that one run tells everything.
pub fn all() -> Result<(), String> {
    let begun = Instant::now();
    let mut failures = Vec::new();
    let mut note = |outcome: Result<(), String>| failures.extend(outcome.err());
    note(step("format", &mut cargo(&["fmt", "--all", "--check"])));
    note(step("clippy", &mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])));
    note(licences());
    let mut summary = Summary::default();
    note(tests(
        "unit tests",
        cargo(&["test", "-q", "--workspace", "--exclude", "uswap-e2e", "--no-fail-fast"]),
        &mut summary,
    ));
    note(tests("words", words::tests(), &mut summary));
    note(fuzz::canary());
    note(sabotage::quick());
    note(end_to_end_tests(None, CI, &mut summary));
    note(documents());
    finish(begun, &summary, &failures)
}

/// The end-to-end tests alone, as CI runs them.
pub fn end_to_end(filter: Option<&str>) -> Result<(), String> {
    let begun = Instant::now();
    let mut summary = Summary::default();
    let outcome = end_to_end_tests(filter, CI, &mut summary);
    finish(begun, &summary, &Vec::from_iter(outcome.err()))
}

/// The end-to-end tests at full length.
pub fn soak(runs: &str) -> Result<(), String> {
    let begun = Instant::now();
    let mut summary = Summary::default();
    let outcome = end_to_end_tests(None, Length { full: true, runs, kills: "200" }, &mut summary);
    finish(begun, &summary, &Vec::from_iter(outcome.err()))
}

/// What the documents name must be there.
pub fn documents() -> Result<(), String> {
    docs::check(&uswap()?)
}

/// The binary that is tested.
fn uswap() -> Result<PathBuf, String> {
    std::env::var_os("USWAP_BIN").map_or_else(build_uswap, |given| Ok(PathBuf::from(given)))
}

fn finish(begun: Instant, summary: &Summary, failures: &[String]) -> Result<(), String> {
    println!("\n== all after {:.0?}", begun.elapsed());
    for failure in failures {
        println!("== {failure}");
    }
    println!("{summary}");
    match failures {
        [] if summary.failed == 0 => Ok(()),
        [] => Err(format!("{} tests failed", summary.failed)),
        _ => Err(failures.join("; ")),
    }
}

/// cargo-deny checks licences and advisories. Building it takes minutes, so it runs where somebody has installed it.
fn licences() -> Result<(), String> {
    let installed = cargo(&["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if installed.is_ok_and(|status| status.success()) {
        return step("cargo deny", &mut cargo(&["deny", "check"]));
    }
    println!("\n== cargo deny: skipped, it is not installed (cargo install --locked cargo-deny)");
    Ok(())
}

fn end_to_end_tests(filter: Option<&str>, length: Length, summary: &mut Summary) -> Result<(), String> {
    let binary = uswap()?;
    let skipped = target().join("e2e-skipped");
    // It may not be there, which is what is wanted.
    let _ = std::fs::remove_file(&skipped);
    let mut command = cargo(&["test", "-p", "uswap-e2e", "--no-fail-fast", "--"]);
    // Heavy programs one at a time; lines that show progress are not held back.
    command.args(["--test-threads=1", "--nocapture"]).args(filter);
    command.env("USWAP_BIN", binary).env("USWAP_E2E_SKIPPED", &skipped);
    for (name, value) in [
        ("USWAP_E2E_REPEAT", length.runs),
        ("USWAP_E2E_KILLS", length.kills),
        ("USWAP_E2E_FULL", if length.full { "1" } else { "0" }),
    ] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let outcome = tests("end-to-end tests", command, summary);
    summary.skipped_inside(lines(&skipped));
    outcome
}

fn lines(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    print!("{text}");
    text.lines().count() as u64
}

/// Runs a test command, shows its output, and adds up its results.
fn tests(name: &str, mut command: Command, summary: &mut Summary) -> Result<(), String> {
    println!("\n== {name}");
    let begun = Instant::now();
    let (output, writer) = std::io::pipe().map_err(|error| format!("{name}: {error}"))?;
    let for_errors = writer.try_clone().map_err(|error| format!("{name}: {error}"))?;
    let mut child = command
        .current_dir(root())
        .env("RUST_BACKTRACE", "0")
        .stdout(writer)
        .stderr(for_errors)
        .spawn()
        .map_err(|error| format!("{name}: cannot start: {error}"))?;
    // The command holds the writing end of the pipe until it is dropped.
    drop(command);
    let mut failures = Failures::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(|error| format!("{name}: {error}"))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        summary.line(&line);
        failures.line(&line);
    }
    let status = child.wait().map_err(|error| format!("{name}: {error}"))?;
    println!("== {name}: {} after {:.1?}", if status.success() { "ok" } else { "FAILED" }, begun.elapsed());
    print!("{failures}");
    if status.success() { Ok(()) } else { Err(format!("{name} failed")) }
}
