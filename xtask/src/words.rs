//! Words that threads share without a lock, under shuttle: production code in many schedules, and defects that must show.

use std::process::Command;

use crate::run::{cargo, step, target};

/// The tests; built apart from everything else.
pub fn tests() -> Command {
    let mut command = cargo(&["test", "-q", "-p", "uswap-system", "-p", "uswap-engine", "--lib", "--no-fail-fast"]);
    command.arg("--target-dir").arg(target().join("words"));
    // What must fail says so, each time.
    command.args(["--", "words::"]).env("RUSTFLAGS", "--cfg uswap_words").env("RUST_BACKTRACE", "0");
    command
}

/// Runs them.
pub fn run() -> Result<(), String> {
    step("words", &mut tests())
}
