//! What the environment asks for. Every setting is read in this file and nowhere else.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not '{text}'")),
        Err(_) => otherwise,
    }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Runs of each program under uswap.
pub fn repeat() -> u32 {
    number("USWAP_E2E_REPEAT", 1) as u32
}

/// Kills in the tests that kill.
pub fn kills() -> u32 {
    number("USWAP_E2E_KILLS", 60) as u32
}

/// `full` in a full run, otherwise `small`: a size with which one run under uswap takes some seconds.
pub fn sized<T>(small: T, full: T) -> T {
    if is_set("USWAP_E2E_FULL") { full } else { small }
}

/// The most that one run of a program may take, where the environment bounds it.
pub(crate) fn time_limit() -> Option<Duration> {
    match number("USWAP_E2E_TIME_LIMIT", 0) {
        0 => None,
        seconds => Some(Duration::from_secs(seconds)),
    }
}

/// The seed of everything random; a test prints it.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970").as_micros();
        number("USWAP_E2E_SEED", clock as u64 % 1_000_000)
    })
}

/// Whether the tests run everything without uswap, to check themselves.
pub fn bare_only() -> bool {
    is_set("USWAP_E2E_BARE")
}

/// Whether a missing package is a failure.
pub(crate) fn strict() -> bool {
    is_set("USWAP_E2E_STRICT")
}

/// The file that collects the names of skipped tests.
pub(crate) fn skipped_list() -> Option<PathBuf> {
    std::env::var_os("USWAP_E2E_SKIPPED").map(PathBuf::from)
}

/// Where temporary directories are made.
pub(crate) fn temporary_root() -> PathBuf {
    std::env::var_os("USWAP_E2E_TMP").map_or_else(std::env::temp_dir, PathBuf::from)
}

/// The directory of this crate, for programs and scripts.
pub(crate) fn programs() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/programs"))
}

/// The `uswap` to test: `USWAP_BIN`, or the release build of this workspace, made when a test first needs it.
pub fn uswap_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("USWAP_BIN") {
        Some(path) => std::fs::canonicalize(&path).unwrap_or_else(|error| panic!("USWAP_BIN {path:?}: {error}")),
        None => build_uswap(),
    })
}

fn build_uswap() -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--release", "-p", "uswap-cli", "--message-format=short"])
        .current_dir(programs())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "cannot build uswap:\n{}", String::from_utf8_lossy(&output.stderr));
    // TARGET/debug/deps/TEST-HASH -> TARGET/release/uswap
    let test = std::env::current_exe().expect("the test knows its path");
    let target = test.ancestors().nth(3).expect("a test lies in TARGET/PROFILE/deps");
    let binary = target.join("release/uswap");
    assert!(binary.is_file(), "no uswap at {}; set USWAP_BIN", binary.display());
    binary
}
