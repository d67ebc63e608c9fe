//! `uswap bench`: the flags of what `uswap-bench` measures.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use uswap_bench::{
    Backend, CommandBench, Finished, Limits, Load, Measured, PatternBench, Style, Unavailable, Workload,
};

use crate::run::options::{MEMORY_BYTES_MIN, SWAP_BYTES_MIN, SWAP_TO_MEMORY};
use crate::{failure, size};

const _: () = assert!(failure::OURS == uswap_bench::EXIT_UNDER_USWAP_FAILED);

/// Measures a program under uswap and under the kernel's own swap, side by side.
///
/// Without a command it is a plain program with several access patterns, whose every read is checked. A command
/// of your own, after `--`, must end alike under all back ends: with the same exit status and the same standard
/// output as without a limit (what differs from run to run belongs on standard error). Figures that it measures
/// itself it may write to the file named by $USWAP_BENCH_FIGURES, a line `NAME NUMBER` for each. The kernel's
/// swap needs root, and that no swap is on. What is set up for it is taken down again.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// Rounds; the tables show medians.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    rounds: u32,
    #[command(flatten)]
    patterns: PatternArgs,
    /// Memory that the program may use [default: half of its size; a command needs it].
    #[arg(long, short, value_parser = size::parse, value_name = "SIZE")]
    memory: Option<u64>,
    /// Back ends to measure [default: all but ram].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    backends: Vec<Backend>,
    /// Swap space [default: for a command four times the memory, at least 4G; for the patterns a little more than the size].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    swap_size: Option<u64>,
    /// Where the swap files go; must be on a disk.
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    directory: PathBuf,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown tables.
    #[arg(long)]
    markdown: bool,
    /// Seconds after which a single run counts as hanging.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    /// A command to measure instead of the access patterns, and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What the plain program does.
#[derive(Args, Clone, Debug)]
struct PatternArgs {
    /// Memory that the program under test fills.
    #[arg(long, default_value = "512M", value_parser = size::parse, value_name = "SIZE", conflicts_with = "command")]
    size: u64,
    /// Threads of the program under test; of shared memory, its processes [default: 1; of shared memory 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N", conflicts_with = "command")]
    threads: Option<u32>,
    /// Measure memory that several processes share, each in its own part of it: anonymous shared memory.
    #[arg(long, conflicts_with = "command")]
    shared: bool,
    /// Access patterns to measure [default: all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST", conflicts_with = "command")]
    workloads: Vec<Workload>,
}

impl PatternArgs {
    /// Those that were asked for, in the order of the tables.
    fn workloads(&self) -> Vec<Workload> {
        if self.workloads.is_empty() {
            Workload::value_variants().to_vec()
        } else {
            uswap_bench::in_order(&self.workloads)
        }
    }
}

/// The plain program that `uswap bench` measures: fills memory, runs one pattern, prints one line of JSON.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Which accesses to measure.
    #[arg(value_enum)]
    workload: Workload,
    /// Memory to fill.
    #[arg(long, default_value = "512M", value_parser = size::parse, value_name = "SIZE")]
    size: u64,
    /// Threads, or processes, each in its own part of the memory.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    threads: u32,
    /// Memory that processes share.
    #[arg(long)]
    shared: bool,
    /// Which random numbers to take.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

impl BenchArgs {
    /// Those that were asked for, in the order of the tables.
    fn backends(&self) -> Vec<Backend> {
        if self.backends.is_empty() { Backend::limited() } else { uswap_bench::in_order(&self.backends) }
    }

    fn limits(&self, memory_bytes: u64, area_bytes: u64) -> Result<Limits, Unavailable> {
        let uswap =
            std::env::current_exe().map_err(|error| Unavailable(format!("cannot find this program: {error}")))?;
        let (directory, timeout) = (self.directory.clone(), Duration::from_secs(self.timeout));
        Ok(Limits { uswap, memory_bytes, area_bytes, directory, timeout })
    }

    /// What is to be measured without a command.
    fn into_patterns(self) -> Result<PatternBench, Unavailable> {
        let PatternArgs { size, threads, shared, .. } = self.patterns;
        let memory_bytes = self.memory.unwrap_or(size / 2);
        if memory_bytes >= size {
            return Err(Unavailable("--memory must be less than --size, or nothing is swapped".to_owned()));
        }
        // Room for all of the data, and for the slots that the kernel holds back.
        let area_bytes = self.swap_size.unwrap_or(size + (64 << 20));
        if area_bytes < size - memory_bytes {
            return Err(Unavailable(format!(
                "--swap-size must have room for what does not fit into --memory: {}",
                crate::size::chosen(size - memory_bytes)
            )));
        }
        Ok(PatternBench {
            limits: self.limits(memory_bytes, area_bytes)?,
            rounds: self.rounds,
            backends: self.backends(),
            workloads: self.patterns.workloads(),
            size_bytes: size,
            threads: threads.unwrap_or(if shared { 2 } else { 1 }),
            shared,
        })
    }

    /// What is to be measured with one.
    fn into_command(self) -> Result<CommandBench, Unavailable> {
        let mut backends = self.backends();
        backends.retain(|&backend| backend != Backend::Ram);
        if backends.is_empty() {
            return Err(Unavailable("a command runs without a limit anyway: name other back ends than ram".to_owned()));
        }
        let Some(memory_bytes) = self.memory else {
            return Err(Unavailable("--memory is needed: how much the command may use".to_owned()));
        };
        if memory_bytes < MEMORY_BYTES_MIN {
            let (asked, minimum) = (size::chosen(memory_bytes), size::chosen(MEMORY_BYTES_MIN));
            return Err(Unavailable(format!("a memory budget of {asked} is below the minimum of {minimum}")));
        }
        let wanted = memory_bytes.saturating_mul(SWAP_TO_MEMORY).max(SWAP_BYTES_MIN);
        let area_bytes = self.swap_size.unwrap_or(wanted);
        if area_bytes < 1 << 20 {
            return Err(Unavailable("--swap-size must be at least 1M".to_owned()));
        }
        let (limits, rounds) = (self.limits(memory_bytes, area_bytes)?, self.rounds);
        let mut words = self.command.into_iter();
        let program = PathBuf::from(words.next().expect("a command"));
        Ok(CommandBench { limits, rounds, backends, program, arguments: words.collect() })
    }
}

/// `uswap bench`.
pub fn main(args: BenchArgs) -> ExitCode {
    match measure(args) {
        Err(error) => {
            failure::say(format_args!("bench: {error}"));
            ExitCode::from(failure::OURS)
        }
        Ok(measured) => end(measured),
    }
}

fn measure(args: BenchArgs) -> Result<Measured, Unavailable> {
    let style = match (args.json, args.markdown) {
        (true, _) => None,
        (false, true) => Some(Style::Markdown),
        (false, false) => Some(Style::Plain),
    };
    match args.command.is_empty() {
        true if std::env::args_os().any(|word| word == "--") => Err(Unavailable("no command after '--'".to_owned())),
        true => uswap_bench::measure_patterns(args.into_patterns()?, style),
        false => uswap_bench::measure_command(args.into_command()?, style),
    }
}

/// Prints what was measured.
fn end(measured: Measured) -> ExitCode {
    match measured.text {
        None => failure::say("bench: no run has a result"),
        Some(text) => {
            if let Err(failure) = crate::output::print(&text) {
                return failure.report();
            }
        }
    }
    match measured.finished {
        Finished::Interrupted(signal) => ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or(0))),
        Finished::All if !measured.failed => ExitCode::SUCCESS,
        Finished::All => ExitCode::FAILURE,
    }
}

/// `uswap bench-load`: runs the pattern and prints its report.
pub fn load_main(args: LoadArgs) -> ExitCode {
    let load = Load {
        workload: args.workload,
        size_bytes: args.size,
        threads: args.threads,
        shared: args.shared,
        seed: args.seed,
    };
    match uswap_bench::run_load(&load) {
        Ok(report) => {
            println!("{}", serde_json::to_string(&report).expect("plain numbers become JSON"));
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("uswap: bench-load: wrong data: {wrong}");
            ExitCode::from(uswap_bench::EXIT_WRONG_DATA)
        }
    }
}
