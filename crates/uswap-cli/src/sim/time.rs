//! `uswap sim time`: processes that share memory, a swap area and a device, in virtual time.

use std::path::PathBuf;

use clap::Args;
use uswap_core::linux::readahead::Preset;
use uswap_core::replacement::by_name;
use uswap_sim::device::faults::FaultRates;
use uswap_sim::timing::{self, Setup, Timed};

use super::input;
use crate::failure::Failure;

/// Let processes share memory, a swap area and a device, under the readahead rules of a kernel.
#[derive(Args)]
pub struct TimeArgs {
    /// What each process does: NAME or NAME:key=value,... (see uswap sim list)
    #[arg(long, value_name = "SPEC")]
    workload: String,
    /// Processes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    processes: u32,
    /// Memory of all of them
    #[arg(long, value_name = "SIZE", value_parser = input::pages)]
    memory: u64,
    /// Which page leaves when memory is full (see uswap sim list)
    #[arg(long, default_value = "linux-lru")]
    policy: String,
    /// Readahead as in this kernel: 5.1, 5.8, 6.18, ...
    #[arg(long, value_name = "KERNEL", default_value = "6.18")]
    era: String,
    /// Readahead goes by slot, as with vma_ra_enabled=false
    #[arg(long)]
    by_slot: bool,
    /// Where pages go (see uswap sim list)
    #[arg(long, default_value = "nvme")]
    device: String,
    /// TOML file with devices of your own
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,
    /// Reads that fail, of 1000
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1000))]
    failing_reads: u16,
    /// What chance starts from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn main(arguments: &TimeArgs) -> Result<(), Failure> {
    let spec = input::spec(&arguments.workload)?;
    let preset: Preset =
        arguments.era.parse().map_err(|unknown| Failure::bad_input(format!("--era '{}': {unknown}", arguments.era)))?;
    let mut policy = by_name(&arguments.policy, arguments.memory as usize)
        .map_err(|unknown| Failure::bad_input(format!("--policy '{}': {unknown}", arguments.policy)))?;
    if spec.pages.saturating_mul(u64::from(arguments.processes)) >= u64::from(u32::MAX) / 4 {
        return Err(Failure::bad_input("--processes: together they have more pages than can be simulated (2^30)"));
    }
    let profile = input::device(&arguments.device, arguments.devices.as_ref())?;
    let setup = Setup {
        preset,
        by_address: !arguments.by_slot && !profile.rotational,
        processes: arguments.processes,
        limit_pages: arguments.memory,
        seed: arguments.seed,
        faults: FaultRates { read_fails: arguments.failing_reads, ..FaultRates::NONE },
    };
    let timed = timing::run(&spec, &setup, &mut *policy, &profile)
        .map_err(|violation| Failure::ours(format!("the simulation contradicts itself: {violation}")))?;
    super::print(&text(&timed))
}

fn text(timed: &Timed) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    format!(
        "took          {:.1} ms\naccesses      {}\nmajor faults  {} (half below {:.3} ms, all but 1 % below {:.3} ms)\n\
         cached faults {}\nread          {} pages\nwritten       {} pages\nlost          {} pages\n",
        ms(timed.ns),
        timed.accesses,
        timed.major,
        ms(timed.median_ns),
        ms(timed.p99_ns),
        timed.cached,
        timed.pages_read,
        timed.pages_written,
        timed.lost
    )
}
