//! All schedules of calls and reports of these sizes, against the order of events (docs/event-order.md).

use crate::run::{cargo, step};

/// Places, pages of each, threads, calls of all of them (three of a thread at most), whether mremap may leave its old
/// place mapped, and whether unmappings may be refused. The last ones are cut at a number of states that memory holds.
const SIZES: [&[&str]; 8] = [
    &["3", "1", "3", "2"],
    &["3", "1", "3", "2", "leaves"],
    &["2", "2", "3", "3"],
    &["3", "1", "3", "3"],
    &["2", "2", "2", "3", "refuses"],
    &["3", "1", "3", "3", "refuses", "--limit", "10000000"],
    &["4", "1", "3", "3", "--limit", "40000000"],
    &["3", "1", "3", "4", "leaves", "--limit", "40000000"],
];

/// Long schedules, at random: seed and count.
const SAMPLES: [&[&str]; 5] = [
    &["4", "1", "3", "9", "--sample", "1", "500000"],
    &["3", "2", "3", "9", "--sample", "2", "100000"],
    &["4", "1", "3", "7", "leaves", "--sample", "3", "500000"],
    &["3", "1", "3", "9", "leaves", "--sample", "4", "500000"],
    &["3", "2", "3", "5", "refuses", "--sample", "6", "100000"],
];

/// Takes them all; prints states, decisions, ends with a line, and times.
pub fn run() -> Result<(), String> {
    for size in SIZES.iter().chain(&SAMPLES) {
        let mut command = cargo(&["run", "--release", "-q", "-p", "uswap-sim", "--example", "exhaustive", "--"]);
        step(&format!("exhaustive {}", size.join(" ")), command.args(*size))?;
    }
    Ok(())
}
