//! What a test needs from the system, and how it says that it cannot run.

use std::io::Write;
use std::path::PathBuf;

use crate::settings;

/// The path of `program`, which the Debian package `package` has. `None`: not installed, and the test says so
/// and must return; in CI that is a failure instead.
pub fn need(program: &str, package: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        assert!(!settings::strict(), "{program} is missing: install the package {package}");
        skip(&format!("{program} is missing (package {package})"));
    }
    found
}

fn find(program: &str) -> Option<PathBuf> {
    if program.starts_with('/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// Says, past the capture of test output, that the running test is skipped, and counts it.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: {reason}\n", thread.name().unwrap_or("a test"));
    // Nobody may be listening; a test that is skipped anyway does not fail for that.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(list) = settings::skipped_list() {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&list);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", list.display()));
    }
}

/// Whether the tests run as root, as mounting and changing identity need.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
