//! The fuzz targets under libFuzzer. What each change runs of them is a test of `fuzz/`; this is for those who have time.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::run::{root, step, target};

/// In this time each planted defect is found: most in the first second.
const CANARY_SECONDS: u64 = 60;
/// What cargo-fuzz builds for.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// What libFuzzer says when a target has died.
const DIED: &str = "ERROR: libFuzzer";

/// Where these programs, which have a tool chain of their own, are built.
fn directory() -> PathBuf {
    target().join("fuzz")
}

/// The targets, as their files are called.
fn names() -> Result<Vec<String>, String> {
    let files =
        std::fs::read_dir(root().join("fuzz/fuzz_targets")).map_err(|error| format!("fuzz_targets: {error}"))?;
    let mut names: Vec<String> =
        files.flatten().filter_map(|file| Some(file.path().file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

fn build() -> Result<(), String> {
    // Not the cargo that runs us: another tool chain's.
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz"]).current_dir(root());
    let installed = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        return Err("it takes nightly Rust and cargo-fuzz: rustup toolchain install nightly; \
                    cargo install --locked cargo-fuzz"
            .to_owned());
    }
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz", "build", "--features", "libfuzzer", "--target-dir"]);
    step("building the fuzz targets", command.arg(directory()).current_dir(root()))
}

/// Runs one target, beginning with what it has found before and with the corpus.
fn fuzz(name: &str, seconds: u64, is_canary: bool) -> Result<Output, String> {
    let kind = if is_canary { "canaries" } else { "found" };
    let found = directory().join(kind).join(name);
    let died = died(name);
    for directory in [&found, &died] {
        std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    let program = std::fs::canonicalize(program(name)).map_err(|error| format!("{name} is not there: {error}"))?;
    let mut command = Command::new(program);
    command.current_dir(root()).env("ASAN_OPTIONS", "detect_odr_violation=0:abort_on_error=0");
    command.arg(format!("-max_total_time={seconds}")).args(["-max_len=8192", "-timeout=20", "-rss_limit_mb=2048"]);
    command.arg(format!("-artifact_prefix={}/", died.display()));
    command.args([&found, &root().join("fuzz/corpus").join(name)]);
    if is_canary {
        command.env("USWAP_FUZZ_CANARY", "1");
    }
    command.output().map_err(|error| format!("{name}: {error}"))
}

/// Where the inputs are put of which a target died.
fn died(name: &str) -> PathBuf {
    directory().join("died").join(name)
}

fn program(name: &str) -> PathBuf {
    directory().join(TRIPLE).join("release").join(name)
}

/// Runs one target, or all of them one after the other, each for so many seconds.
pub fn run(seconds: u64, only: Option<&str>) -> Result<(), String> {
    let names = names()?;
    if let Some(wanted) = only.filter(|wanted| !names.iter().any(|name| name == wanted)) {
        return Err(format!("there is no target {wanted}: {}", names.join(", ")));
    }
    build()?;
    for name in names.iter().filter(|name| only.is_none_or(|only| only == *name)) {
        let output = fuzz(name, seconds, false)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{said}\n{name} died; the input is in {}", died(name).display()));
        }
        println!("== {name}: {}", said.lines().rev().find(|line| line.starts_with("Done")).unwrap_or("nothing found"));
    }
    Ok(())
}

/// Whether libFuzzer finds what is planted in each target.
pub fn canaries() -> Result<(), String> {
    build()?;
    for name in names()? {
        let output = fuzz(&name, CANARY_SECONDS, true)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !said.contains(DIED) {
            return Err(format!("{said}\nthe canary of {name} lives: a planted defect is not found"));
        }
        println!("== the canary of {name} died");
    }
    Ok(())
}
