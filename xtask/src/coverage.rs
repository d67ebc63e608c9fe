//! Which lines of the engine the soak on the model runs: a table in docs/simulator.md, with the reason where they are few.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::run::{cargo, root, step, target};

/// Seeds of the soak that is looked at.
const SEEDS: &str = "1500";
/// Percent of its lines that the soak runs of a file, or there is a reason.
const ENOUGH: f64 = 85.0;
/// Between these lines of the document is what this writes.
const BEGIN: &str = "<!-- cargo xtask coverage writes from here ... -->";
const END: &str = "<!-- ... to here -->";

/// Files of which the soak runs less, and why.
const REASONS: &[(&str, &str)] = &[
    (
        "adopt/verify.rs",
        "shared memory in the place of what was just adopted: the model has none that can be registered",
    ),
    ("beside.rs", "reads that are lost in the window of a fork, and frames that others look at then"),
    ("books.rs", "the copy that Linux's child has"),
    ("compaction.rs", "what is done for tests alone, and passes that could not empty what they chose"),
    ("content.rs", "the parts of the copy that Linux's child has"),
    ("control_blocks.rs", "a table that is full: the model's programs have few threads"),
    ("engine_threads.rs", "Linux's threads, behind the trait `Threads`; the model has its own"),
    (
        "fork.rs",
        "the way of Linux's child (`child_begins`, `cannot_join`), lost reads in a window, and what is said then",
    ),
    ("fork_copy.rs", "the engine's copy that fork(2) makes: the model maps the parts once more instead"),
    ("fork_patience.rs", "a fork for which a full group has no room: no world is so full"),
    ("fork_post.rs", "forkers that are ended by others, and a monitor that gives up"),
    ("giving_way.rs", "what Linux's wrappers ask"),
    ("group.rs", "the supervisor's side: histograms that are read, files of others that are opened, other versions"),
    ("group/clusters.rs", "the supervisor's side: what is withheld and given back for the dead"),
    ("group/control.rs", "what `uswap swapoff` makes of an area that is empty"),
    ("group/config.rs", "what a process of another build is refused for"),
    ("group/counters.rs", "names and sums that are read by the supervisor"),
    ("group/fault_latency.rs", "histograms that are read by the supervisor"),
    ("group/usage.rs", "peaks and sums that are read by the supervisor"),
    ("guard_regions.rs", "Linux's: the model's agent notes it itself"),
    ("host.rs", "Linux's"),
    ("lazy_free.rs", "Linux's"),
    ("left_mapped.rs", "Linux's"),
    ("member.rs", "joins by a socket; the model's members are made by its tree"),
    ("monitor/adopting.rs", "what is said when memory cannot be looked at: few of the model's looks fail"),
    ("monitor/join.rs", "Linux's way in: the socket, the welcome, the end without a group"),
    ("notices.rs", "what Linux's wrappers note"),
    ("onlookers.rs", "others who look at frames from outside: the model has no ptrace(2)"),
    ("page_references.rs", "Linux's: the model's agent notes it itself"),
    ("post.rs", "Linux's way to ring, and monitors that have ended"),
    ("postings.rs", "postings that need pages of their own: programs of the model post few"),
    ("presence.rs", "pages that vanish without a reason, and markers whose content nobody can tell"),
    ("protocol.rs", "the socket, behind the trait `Supervisor`"),
    ("staff/mod.rs", "Linux's, where descriptors are scarce"),
    ("store/faulty.rs", "plans that are read from text, and failures that take long"),
    ("store/file.rs", "io_uring: the model's engine has none"),
    ("store/mod.rs", "io_uring: the model's engine has none"),
    ("trash.rs", "frames that cannot be given back at all"),
    ("whole_mappings.rs", "Linux's wrappers, and requests that are not answered"),
    ("writer.rs", "Linux's way in"),
    ("zpool.rs", "the supervisor's and the tests' looks at a pool"),
];

/// What the soak runs of a file.
struct Lines {
    all: u64,
    run: u64,
}

/// Runs the soak with counters in every line, and writes the table.
pub fn run() -> Result<(), String> {
    let files = measure()?;
    let mut table =
        String::from("| file of `uswap-engine` | lines | run | why not more |\n| --- | ---: | ---: | --- |\n");
    let mut unexplained = Vec::new();
    let (mut all, mut run) = (0, 0);
    for (file, lines) in &files {
        let percent = 100.0 * lines.run as f64 / lines.all.max(1) as f64;
        let reason = REASONS.iter().find(|(name, _)| name == file).map(|(_, why)| *why).filter(|_| percent < ENOUGH);
        if percent < ENOUGH && reason.is_none() {
            unexplained.push(format!("{file} ({percent:.1} %)"));
        }
        let _ = writeln!(table, "| `{file}` | {} | {percent:.1} % | {} |", lines.all, reason.unwrap_or_default());
        (all, run) = (all + lines.all, run + lines.run);
    }
    let _ = writeln!(table, "| all | {all} | {:.1} % | |", 100.0 * run as f64 / f64::from(all.max(1) as u32));
    println!("{table}");
    write(&table)?;
    if unexplained.is_empty() {
        return Ok(());
    }
    Err(format!("less than {ENOUGH} % and no reason in xtask/src/coverage.rs: {}", unexplained.join(", ")))
}

/// By file of the engine.
fn measure() -> Result<BTreeMap<String, Lines>, String> {
    let directory = target().join("coverage");
    let mut build = cargo(&["build", "--release", "-p", "uswap-model", "--example", "soak"]);
    step("soak with counters", build.arg("--target-dir").arg(&directory).env("RUSTFLAGS", "-C instrument-coverage"))?;
    let (soak, raw, merged) =
        (directory.join("release/examples/soak"), directory.join("soak.profraw"), directory.join("soak.profdata"));
    step("soak", Command::new(&soak).args(["quietly", "0", SEEDS]).env("LLVM_PROFILE_FILE", &raw))?;
    let mut merge = Command::new(tool("llvm-profdata")?);
    step("profile", merge.args(["merge", "-sparse", "-o"]).arg(&merged).arg(&raw))?;
    let mut export = Command::new(tool("llvm-cov")?);
    let mut profile = std::ffi::OsString::from("-instr-profile=");
    profile.push(&merged);
    let output = export.args(["export", "-summary-only"]).arg(profile).arg(&soak).output();
    let output = output.map_err(|error| format!("llvm-cov: {error}"))?;
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("llvm-cov: {error}"))?;
    let mut files = BTreeMap::new();
    for file in report["data"][0]["files"].as_array().ok_or("llvm-cov tells of no file")? {
        let name = file["filename"].as_str().unwrap_or_default();
        let Some((_, name)) = name.split_once("uswap-engine/src/") else { continue };
        let count = |what: &str| file["summary"]["lines"][what].as_u64().unwrap_or_default();
        files.insert(name.to_owned(), Lines { all: count("count"), run: count("covered") });
    }
    Ok(files)
}

/// A tool of the tool chain's component llvm-tools.
fn tool(name: &str) -> Result<PathBuf, String> {
    let output = Command::new("rustc").args(["--print", "target-libdir"]).current_dir(root()).output();
    let output = output.map_err(|error| format!("rustc: {error}"))?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let path = libraries.parent().ok_or("rustc names no directory")?.join("bin").join(name);
    if path.is_file() { Ok(path) } else { Err(format!("no {name}: rustup component add llvm-tools")) }
}

fn write(table: &str) -> Result<(), String> {
    let path = root().join("docs/simulator.md");
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(&path).map_err(failed)?;
    let place = text.find(BEGIN).map(|at| at + BEGIN.len()).zip(text.find(END));
    let (from, to) = place.ok_or_else(|| format!("docs/simulator.md has no place for the table: {BEGIN}"))?;
    std::fs::write(&path, format!("{}\n\n{table}\n{}", &text[..from], &text[to..])).map_err(failed)
}
