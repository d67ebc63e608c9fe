//! Running the tools of the tool chain.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The top of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// `cargo`, as the one that runs us.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => root().join(target),
        None => root().join("target"),
    }
}

/// Runs a command with a headline; an error when it fails.
pub fn step(name: &str, command: &mut Command) -> Result<(), String> {
    println!("\n== {name}");
    let begun = Instant::now();
    let status = command.status().map_err(|error| format!("{name}: cannot start: {error}"))?;
    println!("== {name}: {} after {:.1?}", if status.success() { "ok" } else { "FAILED" }, begun.elapsed());
    if status.success() { Ok(()) } else { Err(format!("{name} failed")) }
}

/// The date of this day.
pub fn today() -> Result<String, String> {
    let output = Command::new("date").arg("+%F").output().map_err(|error| format!("date: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Builds the release binary, and says where it is.
pub fn build_uswap() -> Result<PathBuf, String> {
    step("build", &mut cargo(&["build", "--release", "-p", "uswap-cli"]))?;
    let binary = target().join("release/uswap");
    if binary.is_file() { Ok(binary) } else { Err(format!("no uswap at {}", binary.display())) }
}
