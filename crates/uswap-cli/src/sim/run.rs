//! `uswap sim run`: one policy, one size of memory, one device.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use uswap_core::PAGE_SIZE;
use uswap_policy::by_name;
use uswap_sim::counting;

use super::input::{self, Source};
use crate::failure::Failure;

/// Count what a policy misses, and how long the program waits for it.
#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    source: Source,
    /// Memory of the program
    #[arg(long, value_name = "SIZE", value_parser = input::pages)]
    memory: u64,
    /// Which page leaves when memory is full (see uswap sim list)
    #[arg(long, default_value = "second-chance")]
    policy: String,
    /// Where pages go (see uswap sim list)
    #[arg(long, default_value = "nvme")]
    device: String,
    /// TOML file with devices of your own
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,
    /// What chance starts from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    source: String,
    policy: &'a str,
    device: &'a str,
    memory_pages: u64,
    seed: u64,
    accesses: u64,
    pages: u64,
    misses: u64,
    miss_ratio: f64,
    pages_read: u64,
    pages_written: u64,
    pages_dropped_clean: u64,
    stalled_ms: f64,
    bytes_per_page: u64,
}

pub fn main(arguments: &RunArgs) -> Result<(), Failure> {
    let mut policy = by_name(&arguments.policy, arguments.memory as usize)
        .map_err(|unknown| Failure::bad_input(format!("--policy '{}': {unknown}", arguments.policy)))?;
    let profile = input::device(&arguments.device, arguments.devices.as_ref())?;
    let mut accesses = arguments.source.accesses(arguments.seed)?;
    let counts = counting::run(&mut accesses, &mut *policy, &profile, arguments.seed);
    accesses.end()?;
    let report = Report {
        source: arguments.source.name(),
        policy: &arguments.policy,
        device: &profile.name,
        memory_pages: arguments.memory,
        seed: arguments.seed,
        accesses: counts.accesses,
        pages: counts.pages,
        misses: counts.misses,
        miss_ratio: counts.miss_ratio(),
        pages_read: counts.reads,
        pages_written: counts.writes,
        pages_dropped_clean: counts.clean,
        stalled_ms: counts.stalled_ns as f64 / 1e6,
        bytes_per_page: counts.bytes / counts.pages.max(1),
    };
    if arguments.json {
        return crate::output::print(&(serde_json::to_string_pretty(&report).expect("plain numbers") + "\n"));
    }
    crate::output::print(&text(&report))
}

fn text(report: &Report) -> String {
    let size = |pages: u64| crate::size::measured(pages * PAGE_SIZE as u64);
    format!(
        "{}: {} on {}, {} of memory\n\
         accesses      {}\n\
         pages         {} ({})\n\
         misses        {} ({:.2} %)\n\
         read          {} ({})\n\
         written       {} ({})\n\
         dropped clean {}\n\
         waited        {:.1} ms\n",
        report.source,
        report.policy,
        report.device,
        size(report.memory_pages),
        report.accesses,
        report.pages,
        size(report.pages),
        report.misses,
        report.miss_ratio * 100.0,
        report.pages_read,
        size(report.pages_read),
        report.pages_written,
        size(report.pages_written),
        report.pages_dropped_clean,
        report.stalled_ms,
    )
}
