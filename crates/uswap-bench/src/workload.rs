//! The plain program under test: fills memory with known data, runs one access pattern, reports.
//!
//! It knows nothing of uswap and runs unchanged under every back end. Only the pattern is measured,
//! after the fill and one warm-up; nothing is allocated and nothing is printed while it runs. Every
//! access checks what it reads, and a last sweep checks every word, so a back end that hands out a wrong
//! byte cannot win.
//!
//! An access touches one page: a read looks at two words of it, a write stores one word and looks at
//! another. With several threads each works in its own part of the memory. Of shared memory several processes do (`workers`).

use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use uswap_sys::mapped_words::Kept;
use uswap_sys::rusage::ProcessUsage;

use crate::memory::{Memory, PAGE_BYTES, WrongData};
use crate::report::Backend;
use crate::workers::{self, Measured};

/// One access of so many is timed on its own, picked by chance so as not to march in step with a
/// readahead window.
pub const SAMPLE_EVERY: u64 = 16;
/// How long the first half of the memory is left alone before a burst.
const STILL_BEFORE_BURST: Duration = Duration::from_secs(1);
/// Environment of the program under test: what the shell is to do so that all memory comes back.
pub const ALL_BACK: &str = "USWAP_BENCH_ALL_BACK";
/// Environment of that shell: the process that started the program under test.
pub const PARENT: &str = "USWAP_BENCH_PARENT";
/// The exit status when memory held something other than what was stored.
pub const EXIT_WRONG_DATA: u8 = 3;

/// The order in which the pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Store every word of every page for the first time.
    Fill,
    /// The same, of the second half of the pages alone, when the first half has lain still for a second: with
    /// half of the size as its limit, the program begins at the limit, and all that it has is in the way.
    Burst,
    /// Read each page once, from the first to the last.
    SeqRead,
    /// Write to each page once, from the first to the last.
    SeqWrite,
    /// Read every seventh page, seven times over, until each was read once.
    Stride,
    /// Read pages picked at random.
    RandomRead,
    /// Write to pages picked at random.
    RandomWrite,
    /// Four reads to one write of pages picked by Zipf's law.
    Zipf,
    /// Lift the limit and turn the swap area off, when pages have been written to at random: all that is on it comes
    /// back. For back ends that have all of it on a file.
    Swapoff,
}

impl Workload {
    /// Its name on the command line and in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Fill => "fill",
            Workload::Burst => "burst",
            Workload::SeqRead => "seq-read",
            Workload::SeqWrite => "seq-write",
            Workload::Stride => "stride",
            Workload::RandomRead => "random-read",
            Workload::RandomWrite => "random-write",
            Workload::Zipf => "zipf",
            Workload::Swapoff => "swapoff",
        }
    }

    /// How many accesses are measured. Skewed ones miss less often, so there are more of them.
    pub fn measured_accesses(self, pages: u64) -> u64 {
        match self {
            Workload::Zipf => 2 * pages,
            _ => pages,
        }
    }

    /// Whether it is the first stores to memory that are measured.
    fn is_filling(self) -> bool {
        matches!(self, Workload::Fill | Workload::Burst)
    }

    /// Whether it can be measured under `backend`.
    pub fn is_for(self, backend: Backend) -> bool {
        match backend {
            Backend::SwapFile | Backend::UswapFile | Backend::Ram => true,
            Backend::UswapTable | Backend::UswapMapping | Backend::UswapLocate => self == Workload::Swapoff,
            Backend::Zram | Backend::Zswap | Backend::UswapPool => self != Workload::Swapoff,
        }
    }

    /// How many accesses bring memory to a steady state before.
    pub fn warm_up_accesses(self, pages: u64) -> u64 {
        match self {
            Workload::Fill | Workload::Burst => 0,
            Workload::RandomRead | Workload::RandomWrite => pages / 2,
            _ => pages,
        }
    }
}

/// What the plain program is to do: fill memory, run one pattern.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Which accesses to measure.
    pub workload: Workload,
    /// Memory to fill.
    pub size_bytes: u64,
    /// Threads, or processes, each in its own part of the memory.
    pub threads: u32,
    /// Whether the memory is shared, and processes take the place of threads.
    pub shared: bool,
    /// Which random numbers to take.
    pub seed: u64,
}

/// What one run of the program under test measured. Printed as one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadReport {
    /// The pattern.
    pub workload: Workload,
    /// Pages filled.
    pub pages: u64,
    /// Threads that ran the pattern.
    pub threads: u32,
    /// Accesses measured, all threads together.
    pub accesses: u64,
    /// From the first measured access to the last.
    pub seconds: f64,
    /// Time per access as one thread sees it.
    pub us_per_access: f64,
    /// Median of the single accesses that were timed.
    pub p50_us: f64,
    /// 99th percentile of the single accesses that were timed.
    pub p99_us: f64,
    /// The slowest single access that was timed.
    pub max_us: f64,
    /// User time of the process while measuring, whoever's threads spent it.
    pub cpu_user_seconds: f64,
    /// System time of the process while measuring.
    pub cpu_system_seconds: f64,
    /// Major faults while measuring, by the kernel's count.
    pub major_faults: u64,
    /// Minor faults while measuring, by the kernel's count.
    pub minor_faults: u64,
}

/// Fills, warms up, measures, checks everything. It is to be the only thing that its process does.
pub fn run_load(args: &Load) -> Result<LoadReport, WrongData> {
    let workload = args.workload;
    let threads = u64::from(args.threads);
    // Whole parts of equal length, so that all threads do the same work.
    let part_pages = (args.size_bytes / PAGE_BYTES as u64 / threads).max(2);
    let pages = part_pages * threads;
    let memory = Memory::reserve(pages, if args.shared { Kept::Shared } else { Kept::Private });

    let (measured, accesses_per_thread, accesses) = if workload.is_filling() {
        let before = if workload == Workload::Burst { pages / 2 } else { 0 };
        (measure_filling(&memory, before, pages), pages - before, pages - before)
    } else {
        memory.fill(0..pages, None);
        let of_one = workload.measured_accesses(part_pages);
        // Where an area is turned off, all comes back, whoever has it.
        let of_one = if workload == Workload::Swapoff { pages } else { of_one };
        let of_all = if workload == Workload::Swapoff { pages } else { of_one * threads };
        (workers::measure(args, &memory, part_pages)?, of_one, of_all)
    };
    memory.check_all()?;

    let mut nanos = measured.nanos;
    nanos.sort_unstable();
    Ok(LoadReport {
        workload,
        pages,
        threads: args.threads,
        accesses,
        seconds: measured.seconds,
        us_per_access: measured.seconds * 1e6 / accesses_per_thread as f64,
        p50_us: percentile_us(&nanos, 0.50),
        p99_us: percentile_us(&nanos, 0.99),
        max_us: percentile_us(&nanos, 1.0),
        cpu_user_seconds: measured.cpu_seconds.0,
        cpu_system_seconds: measured.cpu_seconds.1,
        major_faults: measured.faults.0,
        minor_faults: measured.faults.1,
    })
}

/// The first stores to the pages from `before` on, when those before have theirs and have lain still.
fn measure_filling(memory: &Memory, before: u64, pages: u64) -> Measured {
    let mut samples = Samples::with_room_for(pages);
    if before > 0 {
        memory.fill(0..before, None);
        std::thread::sleep(STILL_BEFORE_BURST);
    }
    let (usage, start) = (ProcessUsage::now(), Instant::now());
    memory.fill(before..pages, Some(&mut samples));
    Measured::since(start, &usage, samples)
}

/// Times of single accesses; its memory is touched before the measuring begins.
pub struct Samples {
    /// In the order of the accesses.
    pub nanos: Vec<u32>,
}

impl Samples {
    /// For as many as are timed of so many accesses.
    pub fn with_room_for(accesses: u64) -> Samples {
        // Twice what is expected, by chance, plus some.
        let room = accesses / SAMPLE_EVERY * 2 + 64;
        let mut nanos = vec![1; usize::try_from(room).expect("64-bit machine")];
        nanos.clear();
        Samples { nanos }
    }

    /// One more, which began at `start`.
    pub fn add(&mut self, start: Instant) {
        if self.nanos.len() < self.nanos.capacity() {
            self.nanos.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
    }
}

/// The smallest value that at least `fraction` of the sorted `nanos` do not exceed.
fn percentile_us(nanos: &[u32], fraction: f64) -> f64 {
    let rank = (nanos.len() as f64 * fraction).ceil() as usize;
    nanos.get(rank.saturating_sub(1)).map_or(0.0, |&nanos| f64::from(nanos) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_runs_and_leaves_what_it_should() {
        for &workload in Workload::value_variants() {
            for (threads, shared) in [(1, false), (3, false), (1, true), (3, true)] {
                let report = run_load(&Load { workload, size_bytes: 1 << 20, threads, shared, seed: 5 }).unwrap();
                assert_eq!(report.workload, workload);
                assert!(report.accesses >= if workload == Workload::Burst { 125 } else { 250 }, "{report:?}");
                assert!(report.seconds > 0.0 && report.max_us >= report.p99_us && report.p99_us >= report.p50_us);
                let line = serde_json::to_string(&report).unwrap();
                let back: LoadReport = serde_json::from_str(&line).unwrap();
                assert_eq!(back.accesses, report.accesses);
            }
        }
    }

    #[test]
    fn percentiles_are_of_the_samples() {
        let nanos: Vec<u32> = (1..=100).map(|i| i * 1000).collect();
        assert_eq!(percentile_us(&nanos, 0.50), 50.0);
        assert_eq!(percentile_us(&nanos, 0.99), 99.0);
        assert_eq!(percentile_us(&nanos, 1.0), 100.0);
        assert_eq!(percentile_us(&[], 0.5), 0.0);
    }
}
