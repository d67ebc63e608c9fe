//! `uswap bench`: a program under uswap and under the kernel's own swap, side by side.
//!
//! The program is a plain one of ours with several access patterns ([`patterns`]), or any command of the
//! user's ([`command`]). The back ends take turns, A B C A B C, so that whatever else the machine does hits all
//! of them alike. A back end that cannot be set up says why and is left out. Nothing that was set up is
//! left behind: not after an error, not after Ctrl-C (see `rig` and `kernel`).

mod command;
mod command_report;
mod kernel;
mod patterns;
mod race;
mod report;
mod rig;
mod workload;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use self::command::CommandBench;
use self::kernel::Unavailable;
use self::patterns::Bench;
use self::report::{Backend, Style};
use self::workload::Workload;
pub use self::workload::{LoadArgs, load_main};
use crate::{failure, size};

/// Runs that the kernel may kill for lack of memory before one round is given up.
const OOM_ATTEMPTS: u32 = 8;

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
    /// Memory that the program under test fills.
    #[arg(long, default_value = "512M", value_parser = size::parse, value_name = "SIZE", conflicts_with = "command")]
    size: u64,
    /// Memory that the program may use [default: half of its size; a command needs it].
    #[arg(long, short, value_parser = size::parse, value_name = "SIZE")]
    memory: Option<u64>,
    /// Threads of the program under test.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N", conflicts_with = "command")]
    threads: u32,
    /// Back ends to measure [default: all but ram].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    backends: Vec<Backend>,
    /// Access patterns to measure [default: all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST", conflicts_with = "command")]
    workloads: Vec<Workload>,
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

impl BenchArgs {
    /// Those that were asked for, in the order of the tables.
    fn backends(&self) -> Vec<Backend> {
        if self.backends.is_empty() {
            Backend::value_variants().iter().copied().filter(|&backend| backend != Backend::Ram).collect()
        } else {
            in_order(&self.backends)
        }
    }
}

/// `uswap bench`.
pub fn main(args: BenchArgs) -> ExitCode {
    let style = match (args.json, args.markdown) {
        (true, _) => None,
        (false, true) => Some(Style::Markdown),
        (false, false) => Some(Style::Plain),
    };
    let outcome = if args.command.is_empty() && std::env::args_os().any(|word| word == "--") {
        Err(Unavailable("no command after '--'".to_owned()))
    } else if args.command.is_empty() {
        measure_patterns(args, style)
    } else {
        measure_command(args, style)
    };
    match outcome {
        Err(error) => {
            failure::say(format_args!("bench: {error}"));
            ExitCode::from(failure::OURS)
        }
        Ok(Measured { text, finished, failed }) => {
            match text {
                None => failure::say("bench: no run has a result"),
                Some(text) => {
                    if let Err(failure) = crate::output::print(&text) {
                        return failure.report();
                    }
                }
            }
            match finished {
                Finished::Interrupted(signal) => {
                    ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or(0)))
                }
                Finished::All if !failed => ExitCode::SUCCESS,
                Finished::All => ExitCode::FAILURE,
            }
        }
    }
}

/// What is left to be said when everything is taken down.
struct Measured {
    /// The report, if there is a result at all.
    text: Option<String>,
    finished: Finished,
    /// Whether a run has no result.
    failed: bool,
}

/// Whether all that was asked for was measured.
#[derive(Clone, Copy)]
enum Finished {
    All,
    Interrupted(i32),
}

fn measure_patterns(args: BenchArgs, style: Option<Style>) -> Result<Measured, Unavailable> {
    let mut bench = Bench::new(args)?;
    let finished = bench.run_all()?;
    let report = bench.into_report();
    let text = report.has_results().then(|| match style {
        None => format!("{}\n", report.to_json()),
        Some(style) => report.to_text(style),
    });
    Ok(Measured { text, finished, failed: !report.failures.is_empty() })
}

fn measure_command(args: BenchArgs, style: Option<Style>) -> Result<Measured, Unavailable> {
    let mut bench = CommandBench::new(args)?;
    let finished = bench.run_all()?;
    let report = bench.into_report();
    let text = report.has_results().then(|| match style {
        None => format!("{}\n", report.to_json()),
        Some(style) => report.to_text(style),
    });
    Ok(Measured { text, finished, failed: !report.failures.is_empty() })
}

/// Each listed value once, in the order of the tables.
fn in_order<T: ValueEnum + Copy + PartialEq>(listed: &[T]) -> Vec<T> {
    T::value_variants().iter().copied().filter(|value| listed.contains(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_in_the_order_of_the_tables() {
        assert_eq!(in_order(&[Backend::UswapPool, Backend::Zram, Backend::Zram]), [Backend::Zram, Backend::UswapPool]);
    }
}
