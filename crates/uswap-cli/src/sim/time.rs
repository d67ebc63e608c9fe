//! `uswap sim time`: processes that share memory, a swap area and a device, in virtual time.

use std::path::PathBuf;

use clap::Args;
use uswap_linux::memory_max::Limits;
use uswap_linux::numa::Placement;
use uswap_linux::swapin_readahead::Preset;
use uswap_policy::by_name;
use uswap_sim::device::failures::FaultRates;
use uswap_sim::timing::{self, Setup, Timed};

use super::input;
use crate::failure::Failure;

/// Slots of the smallest area that mkswap makes.
const AREA_MIN: u64 = 10;

/// Let processes share memory, a swap area and a device, under the readahead rules of a kernel.
#[derive(Args)]
pub struct TimeArgs {
    /// What each process does: NAME or NAME:key=value,... (see uswap sim list)
    #[arg(long, value_name = "SPEC")]
    workload: String,
    /// Processes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    processes: u32,
    /// Memory of all of them (memory.max)
    #[arg(long, value_name = "SIZE", value_parser = input::pages)]
    memory: u64,
    /// Past this they are slowed down (memory.high)
    #[arg(long, value_name = "SIZE", value_parser = input::pages)]
    high: Option<u64>,
    /// Each process has a cgroup of its own, with these limits
    #[arg(long)]
    own_cgroups: bool,
    /// Size of the swap area; the default is enough for everything twice
    #[arg(long, value_name = "SIZE", value_parser = input::pages)]
    area: Option<u64>,
    /// zswap before the area takes so many percent of memory
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
    zswap: u64,
    /// So many percent of what is written are zeros
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
    zeros: u64,
    /// NUMA nodes; processes run on them in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// Pages that come along go to the node of their owner, not of whoever touched another one
    #[arg(long)]
    owner_places: bool,
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
    /// What goes wrong with transfers, each in so many of 1000: read-fails=5,write-tears=1,...
    #[arg(long, value_name = "FAULT=RATE,...", default_value = "", value_parser = faults, hide_default_value = true)]
    faults: FaultRates,
    /// Processes that are killed at some point
    #[arg(long, default_value_t = 0)]
    kills: u32,
    /// Don't check what is read against a hash, like the kernel
    #[arg(long)]
    no_hashes: bool,
    /// Faults between two looks of the checkers
    #[arg(long, value_name = "FAULTS", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..))]
    check_every: u64,
    /// What chance starts from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn main(arguments: &TimeArgs) -> Result<(), Failure> {
    let spec = input::spec(&arguments.workload)?;
    let preset: Preset =
        arguments.era.parse().map_err(|unknown| Failure::bad_input(format!("--era '{}': {unknown}", arguments.era)))?;
    let policy = |pages: usize| by_name(&arguments.policy, pages);
    policy(1).map_err(|unknown| Failure::bad_input(format!("--policy '{}': {unknown}", arguments.policy)))?;
    if arguments.area.is_some_and(|slots| slots < AREA_MIN) {
        return Err(Failure::bad_input("--area: a swap area has at least 40 KiB"));
    }
    if spec.pages.saturating_mul(u64::from(arguments.processes)) >= u64::from(u32::MAX) / 4 {
        return Err(Failure::bad_input("--processes: together they have more pages than can be simulated (2^30)"));
    }
    let profile = input::device(&arguments.device, arguments.devices.as_ref())?;
    let setup = Setup {
        preset,
        by_address: !arguments.by_slot && !profile.rotational,
        processes: arguments.processes,
        limits: Limits { high: arguments.high.unwrap_or(u64::MAX), max: arguments.memory },
        own_cgroups: arguments.own_cgroups,
        slots: arguments.area,
        zswap_percent: arguments.zswap,
        zero_percent: arguments.zeros,
        nodes: arguments.nodes,
        placement: if arguments.owner_places { Placement::Owner } else { Placement::Toucher },
        kills: arguments.kills,
        seed: arguments.seed,
        faults: arguments.faults,
        hashes: !arguments.no_hashes,
        check_every: arguments.check_every,
    };
    let timed = timing::run(&spec, &setup, &|pages| policy(pages).expect("there is such a policy"), &profile)
        .map_err(|violation| Failure::ours(format!("the simulation contradicts itself: {violation}")))?;
    crate::output::print(&text(&timed))
}

fn faults(text: &str) -> Result<FaultRates, String> {
    let mut rates = FaultRates::NONE;
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, rate) = pair.split_once('=').ok_or_else(|| format!("'{pair}' is not of the form FAULT=RATE"))?;
        let rate = rate.parse().ok().filter(|rate| *rate <= FaultRates::OF);
        let rate = rate.ok_or_else(|| format!("{pair}: the rate must be a number from 0 to {}", FaultRates::OF))?;
        let names = FaultRates::NAMES.join(" ");
        *rates.of(name).ok_or_else(|| format!("unknown fault '{name}'; choose one of {names}"))? = rate;
    }
    match rates.add_up() {
        true => Ok(rates),
        false => Err(format!("what goes wrong with reads, or with writes, adds up to more than {}", FaultRates::OF)),
    }
}

/// What always matters, and of the rest what happened.
fn text(timed: &Timed) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut text = format!(
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
    );
    let io = timed.io;
    for (name, count, what) in [
        ("zeros", io.swpout_zero, "pages out, none of them written"),
        ("compressed", io.zswpout, "pages out"),
        ("decompressed", io.zswpin, "pages in"),
        ("written back", timed.zswpwb, "compressed pages"),
        ("failed", timed.failed_writes, "writes; their pages stayed in memory"),
        ("wrong", timed.wrong, "pages, and nobody noticed"),
        ("no slot", timed.no_slot, "times; the page stayed in memory"),
        ("killed", timed.killed, "processes"),
        ("no memory", timed.out_of_memory, "of them"),
        ("slept", timed.throttled_ns / 1_000_000, "ms past memory.high, all tasks together"),
        ("misplaced", timed.misplaced.wrong, "pages on another node than their owner's"),
    ] {
        if count > 0 {
            text += &format!("{name:<13} {count} {what}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_bad_ones_are_refused() {
        let rates = faults("read-fails=5,no-space=20").unwrap();
        assert_eq!(rates, FaultRates { read_fails: 5, no_space: 20, ..FaultRates::NONE });
        for (text, part) in [
            ("read-fails", "'read-fails' is not of the form"),
            ("read-fails=1001", "from 0 to 1000"),
            ("floods=1", "unknown fault 'floods'; choose one of read-fails"),
            ("write-fails=600,write-tears=600", "more than 1000"),
        ] {
            assert!(faults(text).unwrap_err().contains(part), "{text}");
        }
    }
}
