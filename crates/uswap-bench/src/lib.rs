//! A program under uswap and under the kernel's own swap, side by side.
//!
//! The program is a plain one of ours with several access patterns, on private memory or on such that its processes share
//! ([`measure_patterns`]), or any command of the
//! user's ([`measure_command`]). The back ends take turns, A B C A B C, so that whatever else the machine does hits all
//! of them alike. A back end that cannot be set up says why and is left out. Nothing that was set up is left behind:
//! not after an error, not after Ctrl-C (see `rig` and `kernel`).
//!
//! The flags are those of the command (`uswap bench`); this crate gets what they mean:
//!
//! ```no_run
//! use uswap_bench::{Backend, Finished, Limits, PatternBench, Style, Workload, measure_patterns};
//!
//! let limits = Limits { memory_bytes: 256 << 20, area_bytes: 576 << 20, ..Limits::of("/usr/bin/uswap") };
//! let bench = PatternBench {
//!     rounds: 3,
//!     backends: vec![Backend::SwapFile, Backend::UswapFile],
//!     workloads: vec![Workload::RandomRead],
//!     ..PatternBench::new(limits, 512 << 20)
//! };
//! let measured = measure_patterns(bench, Some(Style::Markdown))?;
//! assert!(matches!(measured.finished, Finished::All));
//! println!("{}", measured.text.unwrap());
//! # Ok::<(), uswap_bench::Unavailable>(())
//! ```

#![forbid(unsafe_code)]

mod command;
mod command_report;
mod kernel;
mod memory;
mod order;
mod patterns;
mod race;
mod report;
mod rig;
mod workers;
mod workload;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

pub use kernel::Unavailable;
pub use memory::WrongData;
pub use report::{Backend, Style};
pub use workload::{EXIT_WRONG_DATA, Load, LoadReport, Workload, run_load};

/// The exit status by which `uswap run` says that it failed itself, before the program or instead of it.
pub const EXIT_UNDER_USWAP_FAILED: u8 = 125;
/// Runs that the kernel may kill for lack of memory before one round is given up.
const OOM_ATTEMPTS: u32 = 8;

/// What a program gets, the same under every back end.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The command: `uswap run` is what puts a program under uswap.
    pub uswap: PathBuf,
    /// Memory that the program may use.
    pub memory_bytes: u64,
    /// Size of each swap area.
    pub area_bytes: u64,
    /// Where the swap files go; must be on a disk.
    pub directory: PathBuf,
    /// After which a single run counts as hanging.
    pub timeout: Duration,
}

impl Limits {
    /// A quarter of a gigabyte on /var/tmp, with the command that lies at `uswap`.
    pub fn of(uswap: impl Into<PathBuf>) -> Limits {
        Limits {
            uswap: uswap.into(),
            memory_bytes: 256 << 20,
            area_bytes: 1 << 30,
            directory: PathBuf::from("/var/tmp"),
            timeout: Duration::from_secs(600),
        }
    }
}

/// The plain program of ours, to be measured.
#[derive(Clone, Debug)]
pub struct PatternBench {
    /// What it gets.
    pub limits: Limits,
    /// The tables show medians of so many.
    pub rounds: u32,
    /// In the order of the tables.
    pub backends: Vec<Backend>,
    /// In the order of the tables.
    pub workloads: Vec<Workload>,
    /// Memory that the program fills.
    pub size_bytes: u64,
    /// Threads of the program, or processes, each in its own part of the memory.
    pub threads: u32,
    /// Whether the memory is shared, and processes take the place of threads.
    pub shared: bool,
}

impl PatternBench {
    /// All back ends but the floor, all patterns, five rounds, one thread.
    pub fn new(limits: Limits, size_bytes: u64) -> PatternBench {
        PatternBench {
            limits,
            rounds: 5,
            backends: Backend::limited(),
            workloads: Workload::value_variants().to_vec(),
            size_bytes,
            threads: 1,
            shared: false,
        }
    }
}

/// A command of the user's, to be measured.
#[derive(Clone, Debug)]
pub struct CommandBench {
    /// What it gets.
    pub limits: Limits,
    /// The table shows medians of so many.
    pub rounds: u32,
    /// In the order of the table. Without a limit the command runs anyway.
    pub backends: Vec<Backend>,
    /// By path or by name.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// What is left to be said when everything is taken down.
pub struct Measured {
    /// The report, if there is a result at all.
    pub text: Option<String>,
    /// Whether it was cut short.
    pub finished: Finished,
    /// Whether a run has no result.
    pub failed: bool,
}

/// Whether all that was asked for was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It was.
    All,
    /// This signal came before.
    Interrupted(i32),
}

/// Measures the plain program. Tables in a style, or one JSON object.
pub fn measure_patterns(bench: PatternBench, style: Option<Style>) -> Result<Measured, Unavailable> {
    let mut running = patterns::Running::new(bench)?;
    let finished = running.run_all()?;
    let report = running.into_report();
    let text = report.has_results().then(|| match style {
        None => format!("{}\n", report.to_json()),
        Some(style) => report.to_text(style),
    });
    Ok(Measured { text, finished, failed: !report.failures.is_empty() })
}

/// Measures a command. A table in a style, or one JSON object.
pub fn measure_command(bench: CommandBench, style: Option<Style>) -> Result<Measured, Unavailable> {
    let mut running = command::Running::new(bench)?;
    let finished = running.run_all()?;
    let report = running.into_report();
    let text = report.has_results().then(|| match style {
        None => format!("{}\n", report.to_json()),
        Some(style) => report.to_text(style),
    });
    Ok(Measured { text, finished, failed: !report.failures.is_empty() })
}

/// Each listed value once, in the order of the tables.
pub fn in_order<T: ValueEnum + Copy + PartialEq>(listed: &[T]) -> Vec<T> {
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
