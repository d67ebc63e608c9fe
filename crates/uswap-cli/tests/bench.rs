//! `uswap bench -- COMMAND`: what it says of commands that end alike everywhere, and of those that do not.
//!
//! Under uswap alone, which needs no root. A machine where `uswap run` cannot work skips.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn uswap() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uswap"));
    command.stdin(Stdio::null());
    command
}

fn can_run() -> bool {
    let can = uswap().args(["run", "-q", "-m", "32M", "true"]).stderr(Stdio::null()).status().unwrap().success();
    if !can {
        eprintln!("skipped: uswap run does not work here (uswap doctor says why)");
    }
    can
}

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = PathBuf::from("/var/tmp").join(format!("uswap-bench-test-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    /// A bench whose files lie in here.
    fn bench(&self, script: &str) -> Command {
        let mut command = uswap();
        command.args(["bench", "--rounds", "1", "-m", "32M", "--backends", "uswap-file", "--json", "--directory"]);
        command.arg(&self.0).args(["--", "/bin/sh", "-c", script]);
        command
    }

    #[track_caller]
    fn assert_empty(&self) {
        let left: Vec<_> = fs::read_dir(&self.0).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn json(output: &Output) -> serde_json::Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn a_command_that_ends_alike_has_a_row_with_its_own_figures() {
    if !can_run() {
        return;
    }
    let directory = Directory::new("same");
    let script = "echo same; echo \"noise $$\" >&2; echo 'things/s 42' >\"$USWAP_BENCH_FIGURES\"; exit 3";
    let output = directory.bench(script).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report = json(&output);
    let row = &report["results"][0];
    assert_eq!(row["result"], "same", "{report:#}");
    assert_eq!(row["runs"][0]["figures"][0], serde_json::json!(["things/s", 42.0]));
    assert!(row["wall_seconds"]["median"].as_f64().unwrap() > 0.0);
    assert_eq!(report["without_limit"]["figures"][0][1], 42.0);
    directory.assert_empty();
}

#[test]
fn memory_that_processes_share_has_a_row() {
    if !can_run() {
        return;
    }
    let directory = Directory::new("shared");
    let mut command = uswap();
    command.args(["bench", "--shared", "--rounds", "1", "--size", "64M", "-m", "32M", "--backends", "uswap-file"]);
    command.args(["--workloads", "random-write,swapoff", "--json", "--directory"]).arg(&directory.0);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report = json(&output);
    assert_eq!(report["settings"]["shared"], true);
    for (row, workload) in ["random-write", "swapoff"].into_iter().enumerate() {
        let run = &report["results"][row]["runs"][0];
        assert_eq!((&run["workload"], &run["threads"]), (&workload.into(), &2.into()), "{report:#}");
        assert!(run["pages_out"].as_u64().unwrap() > 0, "{report:#}");
    }
    directory.assert_empty();
}

#[test]
fn a_command_that_ends_otherwise_under_a_back_end_has_failed() {
    if !can_run() {
        return;
    }
    for (name, script, why) in
        [("stdout", "echo $$", "standard output"), ("status", "test -z \"$USWAP_TOKEN\"", "exit status 1 instead of 0")]
    {
        let directory = Directory::new(name);
        let output = directory.bench(script).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        let report = json(&output);
        assert_eq!(report["results"][0]["result"], "FAILED", "{report:#}");
        assert!(report["failures"][0]["reason"].as_str().unwrap().contains(why), "{report:#}");
        directory.assert_empty();
    }
}

/// A daemon in a session of its own that holds standard output open.
#[test]
fn what_a_command_leaves_behind_is_ended() {
    if !can_run() {
        return;
    }
    let directory = Directory::new("daemon");
    let begun = Instant::now();
    let output = directory.bench("setsid sleep 1000.25 & sleep 0.2; echo done").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(begun.elapsed() < Duration::from_secs(100));
    directory.assert_empty();
}

#[test]
fn an_interrupted_bench_leaves_nothing() {
    if !can_run() {
        return;
    }
    let directory = Directory::new("interrupt");
    let mut bench = directory.bench("sleep 1001.25").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let pid = bench.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(bench.wait().unwrap().code(), Some(128 + 15));
    directory.assert_empty();
}
