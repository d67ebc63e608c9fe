//! `uswap sim`: what it prints, and what it says to bad input.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("uswap-sim-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    /// A file with this content; its path.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uswap")).arg("sim").args(arguments).output().unwrap()
}

#[track_caller]
fn printed(arguments: &[&str]) -> String {
    let output = sim(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// One line with all of `parts`, and exit status 2.
#[track_caller]
fn refused(arguments: &[&str], parts: &[&str]) {
    let output = sim(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "not one line: {text}");
    assert!(text.starts_with("uswap: "), "{text}");
    for part in parts {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
    assert!(output.stdout.is_empty());
}

const DEVICE: &str = "[[device]]\nname = \"mine\"\nread_latency = { fixed_us = 10 }\nwrite_latency = { fixed_us = 10 }
queue_depth = 1\nmerge_pages = 1\n";

#[test]
fn a_trace_is_run_and_its_misses_are_counted() {
    let directory = Directory::new("run");
    let trace = directory.file("t", "w 1\nw 2\nw 3\nr 1 # again\n");
    let devices = directory.file("d.toml", DEVICE);
    let text =
        printed(&["run", "--trace", &trace, "--memory", "8K", "--devices", &devices, "--device", "mine", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    // Two pages fit; the first has left when it is wanted again.
    assert_eq!((&report["misses"], &report["pages_read"], &report["pages_written"]), (&4.into(), &1.into(), &2.into()));
    assert!(printed(&["run", "--trace", &trace, "--memory", "12K"]).contains("misses        3 (75.00 %)"));
}

#[test]
fn the_same_seed_and_input_give_the_same_bytes() {
    let directory = Directory::new("same");
    let workload = "zipf:pages=2000,accesses=20000";
    for arguments in [
        &["run", "--workload", workload, "--memory", "2M", "--seed", "5"][..],
        &["run", "--workload", workload, "--memory", "2M", "--seed", "5", "--json"],
        &["compare", "--workload", workload, "--json"],
        &["time", "--workload", workload, "--processes", "3", "--memory", "4M", "--faults", "read-fails=5"],
        &["soak", "--seeds", "3"],
    ] {
        assert_eq!(printed(arguments), printed(arguments), "{arguments:?}");
    }
    let (first, second) = (directory.path("1.svg"), directory.path("2.svg"));
    for path in [&first, &second] {
        printed(&["compare", "--workload", workload, "--svg", path]);
    }
    let svg = fs::read_to_string(first).unwrap();
    assert!(svg.contains("belady") && svg.contains("s3-fifo"));
    assert_eq!(svg, fs::read_to_string(second).unwrap());
}

#[test]
fn both_forms_of_a_trace_are_the_same_trace() {
    let directory = Directory::new("forms");
    let workload = "sysbench:pages=2000,accesses=20000";
    let (text, binary) = (directory.path("t"), directory.path("b"));
    printed(&["trace", "--workload", workload, "--out", &text]);
    printed(&["trace", "--workload", workload, "--out", &binary, "--binary"]);
    let misses = |path: &str| {
        let report = printed(&["run", "--trace", path, "--memory", "1M", "--json"]);
        serde_json::from_str::<serde_json::Value>(&report).unwrap()["misses"].clone()
    };
    assert_eq!(misses(&text), misses(&binary));
    assert!(fs::metadata(binary).unwrap().len() * 3 < fs::metadata(text).unwrap().len());
}

#[test]
fn comparing_shows_all_policies_and_the_bound() {
    let table = printed(&["compare", "--workload", "loop:pages=1000,accesses=10000", "--memory", "1M,2M,4M"]);
    for name in ["second-chance", "s3-fifo", "lirs", "belady", "1.0 MiB", "4.0 MiB"] {
        assert!(table.contains(name), "no {name} in {table}");
    }
}

/// A debug build takes a while for the full size; what the rows say is tested in the simulator.
#[test]
fn readahead_is_compared_on_a_suite_and_on_a_trace() {
    let suite = printed(&["readahead", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&suite).unwrap();
    let misses = |pattern: &serde_json::Value, kind: &str| {
        let kinds = pattern["kinds"].as_array().unwrap();
        kinds.iter().find(|score| score["kind"] == kind).unwrap()["misses"].as_u64().unwrap()
    };
    let patterns = report.as_array().unwrap();
    assert_eq!(patterns.len(), 15);
    // In none of them is more to be foreseen than our streams see, where the kernel sees it.
    for pattern in patterns.iter().filter(|pattern| !["random", "zipf"].contains(&pattern["pattern"].as_str().unwrap()))
    {
        for kernel in ["linux-cluster", "linux-vma"] {
            assert!(misses(pattern, "streams") < misses(pattern, kernel), "{pattern}");
        }
    }
    let directory = Directory::new("readahead");
    let trace: String = (0..3000).map(|page| format!("r {page}\n")).collect();
    let shown = printed(&["readahead", "--trace", &directory.file("t", trace), "--memory", "4M"]);
    assert!(shown.contains("linux-cluster") && shown.contains("engine") && shown.contains("3000, 0"), "{shown}");
    refused(&["readahead", "--trace", &directory.file("bad", "r 1\nr x\n")], &["bad:2: ", "'x'"]);
}

#[test]
fn published_numbers_stand_beside_simulated_ones() {
    let directory = Directory::new("paper");
    let page = directory.path("paper.html");
    let json = printed(&["paper", "--json", "--html", &page]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    let numbers: std::collections::BTreeSet<u64> = rows.iter().map(|row| row["row"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=23).collect());
    for row in &rows {
        assert!(row["simulated"].is_object() && row["direction_is_right"] != false, "{row}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("</html>") && page.matches("<svg").count() > 20);
}

/// Memory, area and device of a machine that has everything, and on which everything goes wrong.
#[test]
fn processes_run_against_each_other_on_a_bad_device() {
    let workload = "zipf:pages=1000,accesses=10000";
    let machine = ["--memory", "3M", "--high", "2M", "--zswap", "20", "--zeros", "10", "--nodes", "2", "--by-slot"];
    let faults = "read-fails=5,read-corrupts=5,write-fails=5,write-tears=5,write-is-short=5,write-corrupts=5,delays=5";
    let mut arguments = vec!["time", "--workload", workload, "--processes", "4", "--kills", "1", "--faults", faults];
    arguments.extend(machine);
    let text = printed(&arguments);
    for part in ["zeros  ", "compressed  ", "decompressed ", "failed  ", "killed        1", "misplaced  "] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    assert!(!text.contains("wrong"), "{text}");
    let fine = printed(&["time", "--workload", workload, "--memory", "2M"]);
    assert!(fine.contains("lost          0 pages") && !fine.contains("failed"), "{fine}");
}

#[test]
fn a_malformed_trace_line_is_named() {
    let directory = Directory::new("malformed");
    let trace = directory.file("bad.txt", "r 1\nr 2\nx 3\n");
    refused(&["run", "--trace", &trace, "--memory", "1M"], &["bad.txt:3: ", "'x' is neither r nor w"]);
    refused(&["compare", "--trace", &trace], &["bad.txt:3: "]);
}

#[test]
fn a_truncated_or_foreign_file_is_refused() {
    let directory = Directory::new("truncated");
    let whole = directory.path("b");
    printed(&["trace", "--workload", "random:accesses=1000", "--out", &whole, "--binary"]);
    let bytes = fs::read(&whole).unwrap();
    let cut = directory.file("cut", &bytes[..bytes.len() / 2]);
    refused(&["run", "--trace", &cut, "--memory", "1M"], &["cut: ", "truncated"]);
    let mut foreign = bytes;
    foreign[0] = 0xff;
    let foreign = directory.file("foreign", foreign);
    refused(&["run", "--trace", &foreign, "--memory", "1M"], &["foreign: ", "wrong magic"]);
    refused(&["run", "--trace", &directory.path("none"), "--memory", "1M"], &["none: No such file"]);
    let empty = directory.file("empty", "");
    refused(&["run", "--trace", &empty, "--memory", "1M"], &["empty: there is no access"]);
}

#[test]
fn an_impossible_device_is_refused_with_its_line() {
    let directory = Directory::new("device");
    let run = |file: &str, device: &str, parts: &[&str]| {
        refused(&["run", "--workload", "loop", "--memory", "1M", "--devices", file, "--device", device], parts);
    };
    let devices = directory.file("d.toml", DEVICE.replace("queue_depth = 1", "queue_depth = 0"));
    run(&devices, "mine", &["d.toml:1: ", "device 'mine': queue_depth must be"]);
    let devices = directory.file("e.toml", DEVICE.replace("fixed_us = 10", "fixed_us = \"ten\""));
    run(&devices, "mine", &["e.toml:3: "]);
    let devices = directory.file("f.toml", DEVICE);
    run(&devices, "yours", &["unknown device 'yours'; choose one of mine"]);
}

#[test]
fn what_does_not_exist_is_refused_with_what_does() {
    refused(&["run", "--workload", "loop", "--memory", "1M", "--policy", "fancy"], &["'fancy'", "second-chance"]);
    refused(&["run", "--workload", "fancy", "--memory", "1M"], &["unknown workload 'fancy'", "zipf"]);
    refused(&["run", "--workload", "loop", "--memory", "1Q"], &["--memory", "suffix 'Q'"]);
    refused(&["run", "--workload", "loop", "--memory", "100"], &["less than a page"]);
    refused(&["run", "--memory", "1M"], &["--trace"]);
    refused(&["time", "--workload", "loop", "--memory", "1M", "--era", "4.4"], &["'4.4'", "5.8"]);
    refused(&["time", "--workload", "loop", "--memory", "1M", "--faults", "floods=1"], &["'floods'", "read-fails"]);
    refused(&["time", "--workload", "loop", "--memory", "1M", "--area", "8K"], &["--area", "40 KiB"]);
    refused(&["soak", "--shard", "3/2"], &["a shard is K/N"]);
    refused(&["dance"], &["'dance'"]);
}

#[test]
fn a_soak_goes_on_where_it_was_stopped() {
    let directory = Directory::new("soak");
    let progress = directory.path("progress");
    let shard = ["soak", "--seeds", "6", "--shard", "2/2", "--progress", &progress];
    assert!(printed(&shard).starts_with("3 schedules, "));
    assert!(printed(&shard).starts_with("0 schedules, "), "all are done");
    refused(&["soak", "--seeds", "7", "--progress", &progress], &["progress:1: ", "another soak"]);
    assert!(printed(&["soak", "--seed", "4"]).starts_with("1 schedules, "));
}

/// A soak that could not report anything would look like one that finds nothing.
#[test]
fn a_planted_defect_is_reported_with_its_seed() {
    let output = sim(&["soak", "--seeds", "200", "--canary"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "not one line: {text}");
    assert!(text.contains("not true that a page reads as what was written to it"), "{text}");
    let (_, seed) = text.split_once("replay it with: uswap sim soak --seed ").unwrap();
    let again = sim(&["soak", "--canary", "--seed", seed.trim()]);
    assert_eq!(String::from_utf8_lossy(&again.stderr), text);
}

/// What mkswap writes into a file of so many pages, with label `test`.
fn swap_area(pages: u32) -> Vec<u8> {
    let mut area = vec![0; pages as usize * 4096];
    area[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    area[1028..1032].copy_from_slice(&(pages - 1).to_le_bytes());
    area[1036..1052].copy_from_slice(&[0x5a; 16]);
    area[1052..1056].copy_from_slice(b"test");
    area[4086..4096].copy_from_slice(b"SWAPSPACE2");
    area
}

#[test]
fn a_swap_header_is_shown_or_refused() {
    let directory = Directory::new("header");
    let good = swap_area(16);
    let text = printed(&["header", &directory.file("good", &good)]);
    assert_eq!(
        text,
        "byte order  Little\nlabel       test\nuuid        5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a\n\
         pages       16, of which the first is the header\nusable      60 KiB\nbad pages   0\n"
    );
    let mut swapped = good.clone();
    for at in [1024, 1028] {
        swapped[at..at + 4].reverse();
    }
    assert!(
        printed(&["header", &directory.file("swapped", &swapped)]).starts_with("byte order  Big\nlabel       test\n")
    );

    let change = |name: &str, at: usize, bytes: &[u8]| {
        let mut area = good.clone();
        area[at..at + bytes.len()].copy_from_slice(bytes);
        directory.file(name, area)
    };
    refused(&["header", &change("magic", 4086, b"SWAPSPACE3")], &["magic' is no swap area (EINVAL)", "no swap header"]);
    refused(&["header", &change("old", 4086, b"SWAP-SPACE")], &["old'", "version 0"]);
    refused(&["header", &change("version", 1024, &[2])], &["version'", "format version 2"]);
    refused(&["header", &change("bad", 1032, &[1])], &["bad'", "only a block device"]);
    refused(&["header", &directory.file("short", &good[..15 * 4096])], &["short'", "15 pages, fewer than the 16"]);
    refused(&["header", &directory.file("truncated", &good[..4095])], &["truncated'", "4095 bytes"]);
    refused(&["header", &directory.path("missing")], &["cannot read", "missing'", "No such file"]);
    refused(&["header", &directory.0.display().to_string()], &["Is a directory"]);
}
