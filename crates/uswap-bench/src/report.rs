//! From single runs to medians, ratios and tables.
//!
//! A ratio is taken inside each round, between neighbours in time, and then the median of the rounds: on
//! a noisy machine that says more than the ratio of two medians.

use std::fmt::Write as _;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::kernel::Swapped;
use crate::workload::{LoadReport, Workload};

/// What keeps the program's memory under its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The kernel with a zram device, LZ4.
    Zram,
    /// The kernel with zswap in front of a swap file.
    Zswap,
    /// uswap with its compressed pool.
    UswapPool,
    /// The kernel with a swap file.
    SwapFile,
    /// uswap with a swap file and no pool.
    UswapFile,
    /// The same, and swapoff goes through its whole page table for each slot.
    UswapTable,
    /// The same, and swapoff searches mapping by mapping for each slot, copying pages out of its table (Linux 3.1-rc).
    UswapMapping,
    /// The same, and swapoff compares pages where they are (locate_item, Linux 3.1).
    UswapLocate,
    /// No limit at all: the floor.
    Ram,
}

impl Backend {
    /// All that keep a limit, in the order of the tables, without those whose swapoff is of 2011.
    pub fn limited() -> Vec<Backend> {
        vec![Backend::Zram, Backend::Zswap, Backend::UswapPool, Backend::SwapFile, Backend::UswapFile]
    }

    /// Its name on the command line and in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Zram => "zram",
            Backend::Zswap => "zswap",
            Backend::UswapPool => "uswap-pool",
            Backend::SwapFile => "swap-file",
            Backend::UswapFile => "uswap-file",
            Backend::UswapTable => "uswap-table",
            Backend::UswapMapping => "uswap-mapping",
            Backend::UswapLocate => "uswap-locate",
            Backend::Ram => "ram",
        }
    }

    /// What it is, in a table.
    pub fn title(self) -> &'static str {
        match self {
            Backend::Zram => "kernel, zram",
            Backend::Zswap => "kernel, zswap",
            Backend::UswapPool => "uswap, pool",
            Backend::SwapFile => "kernel, swap file",
            Backend::UswapFile => "uswap, file",
            Backend::UswapTable => "file, whole table",
            Backend::UswapMapping => "file, by mapping",
            Backend::UswapLocate => "file, in place",
            Backend::Ram => "no limit",
        }
    }

    /// Which of ours does the job of this one of the kernel's.
    pub fn counterpart(self) -> Option<Backend> {
        match self {
            Backend::Zram | Backend::Zswap => Some(Backend::UswapPool),
            Backend::SwapFile => Some(Backend::UswapFile),
            Backend::UswapPool | Backend::UswapFile | Backend::Ram => None,
            Backend::UswapTable | Backend::UswapMapping | Backend::UswapLocate => None,
        }
    }
}

/// Middle and ends of a set of figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the figures are at most this.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// `None` if there are no figures.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Spread { median, min, max })
    }

    /// As it stands in a table.
    pub fn cell(spread: Option<Spread>, suffix: &str) -> String {
        match spread {
            None => "-".to_owned(),
            Some(Spread { median, min, max }) => {
                format!("{}{suffix} ({}..{})", figure(median), figure(min), figure(max))
            }
        }
    }
}

/// Three significant digits, no exponent.
pub fn figure(number: f64) -> String {
    match number {
        n if n >= 99.95 => format!("{n:.0}"),
        n if n >= 9.995 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

/// One run that counts, with what uswap said about itself.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What the program under test measured.
    #[serde(flatten)]
    pub load: LoadReport,
    /// RAM that the compressed data took at its peak, when it lies outside of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_peak_bytes: Option<u64>,
    /// Pages that uswap wrote to its swap area, by its own count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uswap_area_pages_written: Option<u64>,
    /// Anonymous and shared memory of the program under uswap, sampled from outside over the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<Spread>,
    /// User and system time of the whole run, fill and last check included, with uswap's supervisor and kswapd.
    pub cpu_seconds: f64,
    /// Pages that left and came back in the whole run.
    #[serde(flatten)]
    pub swapped: Swapped,
    /// What the whole run took more than one without a limit, for each page that left or came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_swapped_page: Option<f64>,
}

/// CPU time that swapping has added, for each page that left or came back.
pub fn cpu_us_per_swapped_page(cpu_seconds: f64, floor_seconds: f64, swapped: Swapped) -> Option<f64> {
    (swapped.pages() > 0).then(|| (cpu_seconds - floor_seconds) * 1e6 / swapped.pages() as f64)
}

impl Run {
    /// With what it took more than a run without a limit, which took `floor_seconds`.
    pub fn above(self, floor_seconds: f64) -> Run {
        let cpu_us_per_swapped_page = cpu_us_per_swapped_page(self.cpu_seconds, floor_seconds, self.swapped);
        Run { cpu_us_per_swapped_page, ..self }
    }

    /// User and system time per access, all threads of the process together.
    fn cpu_us_per_access(&self) -> f64 {
        (self.load.cpu_user_seconds + self.load.cpu_system_seconds) * 1e6 / self.load.accesses as f64
    }
}

/// One figure of a run.
type Figure = fn(&Run) -> f64;

/// All runs of one pattern under one back end; `None` for a round that has no result.
#[derive(Clone, Debug)]
pub struct Series {
    /// The pattern.
    pub workload: Workload,
    /// The back end.
    pub backend: Backend,
    /// By round.
    pub rounds: Vec<Option<Run>>,
}

impl Series {
    fn spread(&self, of: impl Fn(&Run) -> f64) -> Option<Spread> {
        Spread::of(self.rounds.iter().flatten().map(of))
    }
}

/// The machine that the figures come from.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Model name of the first CPU.
    pub cpu: String,
    /// CPUs this process may use.
    pub cpus: usize,
    /// RAM.
    pub memory_bytes: u64,
    /// Transparent huge pages: always, madvise or never.
    pub transparent_hugepage: String,
    /// vm.page-cluster.
    pub page_cluster: String,
}

/// RAM for the compressed pools: uswap counts its own, the kernel does not always.
#[derive(Clone, Debug, Serialize)]
pub struct Pools {
    /// Limit of `uswap-pool`: the same RAM in total as the kernel with its pool.
    pub uswap_pool_memory_bytes: u64,
    /// RAM of the kernel's pool, if it was measured.
    pub kernel_pool_bytes: Option<u64>,
    /// Whether the kernel charges its pool to the cgroup.
    pub kernel_pool_charged: Option<bool>,
}

impl Pools {
    /// Nothing is measured; `uswap-pool` has so much.
    pub fn unmeasured(uswap_pool_memory_bytes: u64) -> Pools {
        Pools { uswap_pool_memory_bytes, kernel_pool_bytes: None, kernel_pool_charged: None }
    }

    /// The kernel's pool was of `pool_bytes`, beside a limit of `memory_bytes` unless it is `charged` to that.
    pub fn measured(memory_bytes: u64, pool_bytes: u64, charged: bool) -> Pools {
        Pools {
            uswap_pool_memory_bytes: memory_bytes + if charged { 0 } else { pool_bytes },
            kernel_pool_bytes: Some(pool_bytes),
            kernel_pool_charged: Some(charged),
        }
    }

    /// In one line, where everybody else has `memory_bytes`.
    pub fn line(&self, memory_bytes: u64) -> String {
        let with = mib(self.uswap_pool_memory_bytes);
        match (self.kernel_pool_bytes, self.kernel_pool_charged) {
            (Some(pool), Some(true)) => {
                format!(
                    "The kernel charges its compressed pool ({}) to the cgroup, so uswap-pool has {with} too.",
                    mib(pool)
                )
            }
            (Some(pool), _) => format!(
                "The kernel's compressed pool ({} at its peak) lies outside of the cgroup's limit; uswap counts its own, \
                 so uswap-pool has the same RAM in total: {with}.",
                mib(pool)
            ),
            (None, _) if self.uswap_pool_memory_bytes == memory_bytes => {
                format!("uswap-pool has {with}, its pool among it.")
            }
            (None, _) => format!(
                "uswap-pool has {with}: {} and what the data that does not fit takes when compressed (estimated).",
                mib(memory_bytes)
            ),
        }
    }
}

/// What was asked for, and what was worked out from it.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Memory that the program fills.
    pub size_bytes: u64,
    /// Limit of the kernel's cgroup and of `uswap-file`.
    pub memory_bytes: u64,
    /// Rounds.
    pub rounds: u32,
    /// Threads of the program, or processes.
    pub threads: u32,
    /// Whether they are processes that share the memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Compressed pools.
    #[serde(flatten)]
    pub pools: Pools,
    /// Generation of the memory cgroup.
    pub cgroup_version: Option<u32>,
    /// What zswap compresses with.
    pub zswap_compressor: Option<&'static str>,
}

/// A back end that was left out.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// Which.
    pub backend: Backend,
    /// Why, in one line.
    pub reason: String,
}

/// A run without a result.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The pattern.
    pub workload: Workload,
    /// The back end.
    pub backend: Backend,
    /// Counted from 1.
    pub round: u32,
    /// What went wrong, in one line.
    pub reason: String,
}

/// Everything `uswap bench` has to say.
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// How it was measured.
    pub settings: Settings,
    /// One for each pattern and back end.
    pub series: Vec<Series>,
    /// Back ends left out.
    pub skipped: Vec<Skipped>,
    /// Runs without a result.
    pub failures: Vec<Failure>,
    /// How often the kernel killed the program for lack of memory, by back end.
    pub oom_kills: Vec<(Backend, u32)>,
}

#[derive(Serialize)]
struct JsonReport<'a> {
    machine: &'a Machine,
    settings: &'a Settings,
    results: Vec<JsonSeries<'a>>,
    ratios: Vec<JsonRatio>,
    skipped: &'a [Skipped],
    failures: &'a [Failure],
    oom_kills: Vec<JsonOomKills>,
}

#[derive(Serialize)]
struct JsonSeries<'a> {
    workload: Workload,
    backend: Backend,
    us_per_access: Option<Spread>,
    p99_us: Option<Spread>,
    cpu_us_per_access: Option<Spread>,
    cpu_us_per_swapped_page: Option<Spread>,
    runs: Vec<&'a Run>,
}

#[derive(Serialize)]
struct JsonRatio {
    workload: Workload,
    kernel: Backend,
    ours: Backend,
    time: Option<Spread>,
    p99: Option<Spread>,
    cpu: Option<Spread>,
}

#[derive(Serialize)]
struct JsonOomKills {
    backend: Backend,
    count: u32,
}

/// How a table is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Columns lined up for a terminal.
    Plain,
    /// Markdown.
    Markdown,
}

impl Report {
    /// Whether any run has a result.
    pub fn has_results(&self) -> bool {
        self.series.iter().any(|series| series.rounds.iter().any(Option::is_some))
    }

    /// One JSON object for machines.
    pub fn to_json(&self) -> String {
        let cpu_us_per_access = |run: &Run| if self.settings.shared { f64::NAN } else { run.cpu_us_per_access() };
        let results = self
            .series
            .iter()
            .map(|series| JsonSeries {
                workload: series.workload,
                backend: series.backend,
                us_per_access: series.spread(|run| run.load.us_per_access),
                p99_us: series.spread(|run| run.load.p99_us),
                cpu_us_per_access: series.spread(cpu_us_per_access),
                cpu_us_per_swapped_page: series.spread(|run| run.cpu_us_per_swapped_page.unwrap_or(f64::NAN)),
                runs: series.rounds.iter().flatten().collect(),
            })
            .collect();
        let mut ratios = Vec::new();
        for kernel in &self.series {
            if let Some(ours) = self.counterpart_of(kernel) {
                ratios.push(JsonRatio {
                    workload: kernel.workload,
                    kernel: kernel.backend,
                    ours: ours.backend,
                    time: ratio(kernel, ours, |run| run.load.us_per_access),
                    p99: ratio(kernel, ours, |run| run.load.p99_us),
                    cpu: ratio(kernel, ours, cpu_us_per_access),
                });
            }
        }
        let oom_kills = self.oom_kills.iter().map(|&(backend, count)| JsonOomKills { backend, count }).collect();
        let report = JsonReport {
            machine: &self.machine,
            settings: &self.settings,
            results,
            ratios,
            skipped: &self.skipped,
            failures: &self.failures,
            oom_kills,
        };
        serde_json::to_string_pretty(&report).expect("plain data becomes JSON")
    }

    /// The tables, with what a reader must know to judge them.
    pub fn to_text(&self, style: Style) -> String {
        let mut text = String::new();
        for line in self.caption() {
            let _ = writeln!(text, "{line}");
        }
        let tables: [(&str, Figure); 4] = [
            ("Time per access, us: median (min..max)", |run| run.load.us_per_access),
            ("99th percentile of single accesses, us", |run| run.load.p99_us),
            ("CPU per access, user + system, us", Run::cpu_us_per_access),
            ("CPU per page swapped out or in, us: the whole run, less what it takes without a limit", |run| {
                run.cpu_us_per_swapped_page.unwrap_or(f64::NAN)
            }),
        ];
        // What shared memory costs is spent in its server, too, and only the whole run has that.
        let is_known = |title: &str| !self.settings.shared || !title.starts_with("CPU per access");
        for (title, of) in tables.into_iter().filter(|(title, _)| is_known(title)) {
            let _ = writeln!(text, "\n{title}\n");
            text.push_str(&self.table(of, style));
        }
        let notes = self.notes();
        if !notes.is_empty() {
            text.push('\n');
        }
        for note in notes {
            let _ = writeln!(text, "{}{note}", if style == Style::Markdown { "- " } else { "" });
        }
        text
    }

    /// One row for each pattern; a column for each back end, then the ratios.
    fn table(&self, of: Figure, style: Style) -> String {
        let backends = unique(self.series.iter().map(|series| series.backend));
        let workloads = unique(self.series.iter().map(|series| series.workload));
        let compared: Vec<(Backend, Backend)> = backends
            .iter()
            .filter_map(|&kernel| Some((kernel, kernel.counterpart().filter(|ours| backends.contains(ours))?)))
            .collect();

        let mut header = vec!["pattern".to_owned()];
        header.extend(backends.iter().map(|backend| backend.title().to_owned()));
        header.extend(compared.iter().map(|(kernel, ours)| format!("{} / {}", kernel.name(), ours.name())));
        let mut rows = vec![header];
        for workload in workloads {
            let find = |backend| self.find(workload, backend);
            let mut row = vec![workload.name().to_owned()];
            row.extend(backends.iter().map(|&backend| Spread::cell(find(backend).and_then(|s| s.spread(of)), "")));
            row.extend(compared.iter().map(|&(kernel, ours)| {
                Spread::cell(find(kernel).zip(find(ours)).and_then(|(kernel, ours)| ratio(kernel, ours, of)), "x")
            }));
            rows.push(row);
        }
        print_table(&rows, style)
    }

    fn find(&self, workload: Workload, backend: Backend) -> Option<&Series> {
        self.series.iter().find(|series| series.workload == workload && series.backend == backend)
    }

    fn counterpart_of(&self, kernel: &Series) -> Option<&Series> {
        self.find(kernel.workload, kernel.backend.counterpart()?)
    }

    /// What was measured, on what, and how much RAM each side had.
    fn caption(&self) -> Vec<String> {
        let (machine, settings) = (&self.machine, &self.settings);
        let mut lines = vec![
            format!(
                "One program, {} of 2:1 data, {}, {} in turn; every read is checked.",
                mib(settings.size_bytes),
                match (settings.shared, settings.threads) {
                    (false, 1) => "one thread".to_owned(),
                    (false, threads) => format!("{threads} threads"),
                    (true, 1) => "shared with one process that works in it".to_owned(),
                    (true, processes) => format!("shared with {processes} processes that work in it"),
                },
                match settings.rounds {
                    1 => "one round".to_owned(),
                    rounds => format!("{rounds} rounds"),
                }
            ),
            format!(
                "Machine: Linux {}, {} CPUs ({}), {} RAM, transparent huge pages: {}, page-cluster: {}.",
                machine.kernel,
                machine.cpus,
                machine.cpu,
                mib(machine.memory_bytes),
                machine.transparent_hugepage,
                machine.page_cluster
            ),
        ];
        let backends = unique(self.series.iter().map(|series| series.backend));
        let measured_kernel = backends.iter().any(|backend| backend.counterpart().is_some());
        if let Some(version) = settings.cgroup_version.filter(|_| measured_kernel) {
            let zswap = match settings.zswap_compressor {
                Some(compressor) if backends.contains(&Backend::Zswap) => {
                    format!(", zswap with {compressor}")
                }
                _ => String::new(),
            };
            lines.push(format!(
                "Kernel: a memory cgroup (v{version}) of {}; zram with lz4{zswap}.",
                mib(settings.memory_bytes)
            ));
        }
        if backends.contains(&Backend::UswapPool) {
            lines.push(settings.pools.line(settings.memory_bytes));
        }
        if backends.contains(&Backend::UswapFile) {
            lines.push(format!("uswap-file has {} and no compressed pool.", mib(settings.memory_bytes)));
        }
        lines
    }

    /// How well uswap kept to its limit, and whether its pool was large enough to measure only the pool.
    fn residence_note(&self, backend: Backend, limit: u64) -> Option<String> {
        let runs = || {
            let of_backend = self.series.iter().filter(|series| series.backend == backend);
            of_backend.flat_map(|series| series.rounds.iter().flatten())
        };
        let peak = Spread::of(runs().filter_map(|run| Some(run.resident_bytes?.max)))?;
        let usual = Spread::of(runs().filter_map(|run| Some(run.resident_bytes?.median)))?;
        let mut note = format!(
            "{}: resident, sampled from outside: {} of {} (median of the runs), at most {}",
            backend.name(),
            mib(usual.median as u64),
            mib(limit),
            mib(peak.max as u64)
        );
        let written = runs().filter_map(|run| run.uswap_area_pages_written).max().unwrap_or(0);
        if backend == Backend::UswapPool && written > 0 {
            let _ = write!(note, "; its pool overflowed: up to {written} pages a run went to the file");
        }
        Some(note)
    }

    /// What was left out, what failed.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .skipped
            .iter()
            .map(|skipped| format!("{} left out: {}", skipped.backend.name(), skipped.reason))
            .collect();
        for (backend, limit) in [
            (Backend::UswapPool, self.settings.pools.uswap_pool_memory_bytes),
            (Backend::UswapFile, self.settings.memory_bytes),
        ] {
            notes.extend(self.residence_note(backend, limit));
        }
        for &(backend, count) in self.oom_kills.iter().filter(|(_, count)| *count > 0) {
            let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
            notes.push(format!(
                "{}: the kernel killed the program {times} for lack of memory, with swap free; those runs were repeated",
                backend.name()
            ));
        }
        for failure in &self.failures {
            notes.push(format!(
                "{}, {}, round {}: no result: {}",
                failure.backend.name(),
                failure.workload.name(),
                failure.round,
                failure.reason
            ));
        }
        notes
    }
}

/// Kernel over ours, round by round.
fn ratio(kernel: &Series, ours: &Series, of: impl Fn(&Run) -> f64) -> Option<Spread> {
    let both = kernel.rounds.iter().zip(&ours.rounds).filter_map(|(kernel, ours)| kernel.as_ref().zip(ours.as_ref()));
    Spread::of(both.map(|(kernel, ours)| of(kernel) / of(ours)))
}

/// Each item once, in the order of their first appearance.
pub fn unique<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// Whole mebibytes.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", (bytes + (1 << 19)) >> 20)
}

/// First row is the header; the first column is left-aligned, the others right.
pub fn print_table(rows: &[Vec<String>], style: Style) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(
                |(column, (cell, &width))| {
                    if column == 0 { format!("{cell:width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        match style {
            Style::Plain => {
                let _ = writeln!(text, "{}", cells.join("   ").trim_end());
            }
            Style::Markdown => {
                let _ = writeln!(text, "| {} |", cells.join(" | "));
                if index == 0 {
                    let rule: Vec<String> =
                        (0..columns).map(|c| if c == 0 { "---" } else { "---:" }.to_owned()).collect();
                    let _ = writeln!(text, "| {} |", rule.join(" | "));
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(us: f64) -> Option<Run> {
        let load = LoadReport {
            workload: Workload::SeqRead,
            pages: 100,
            threads: 1,
            accesses: 100,
            seconds: us / 1e4,
            us_per_access: us,
            p50_us: us,
            p99_us: 2.0 * us,
            max_us: 3.0 * us,
            cpu_user_seconds: us / 1e4,
            cpu_system_seconds: us / 1e4,
            major_faults: 0,
            minor_faults: 0,
        };
        let run = Run {
            load,
            pool_peak_bytes: None,
            uswap_area_pages_written: None,
            resident_bytes: None,
            cpu_seconds: us / 1e4 + 1.0,
            swapped: Swapped { pages_out: 60, pages_in: 40 },
            cpu_us_per_swapped_page: None,
        };
        Some(run.above(1.0))
    }

    fn series(backend: Backend, rounds: Vec<Option<Run>>) -> Series {
        Series { workload: Workload::SeqRead, backend, rounds }
    }

    fn report() -> Report {
        Report {
            machine: Machine {
                kernel: "6.8.0".to_owned(),
                cpu: "a CPU".to_owned(),
                cpus: 2,
                memory_bytes: 4 << 30,
                transparent_hugepage: "madvise".to_owned(),
                page_cluster: "3".to_owned(),
            },
            settings: Settings {
                size_bytes: 512 << 20,
                memory_bytes: 256 << 20,
                rounds: 3,
                threads: 1,
                shared: false,
                pools: Pools::measured(256 << 20, 134 << 20, false),
                cgroup_version: Some(1),
                zswap_compressor: None,
            },
            series: vec![
                series(Backend::Zram, vec![run(12.0), run(10.0), run(50.0)]),
                series(Backend::UswapPool, vec![run(4.0), run(5.0), run(10.0)]),
            ],
            skipped: vec![Skipped { backend: Backend::Zswap, reason: "this kernel has no zswap".to_owned() }],
            failures: Vec::new(),
            oom_kills: vec![(Backend::Zram, 2), (Backend::SwapFile, 0)],
        }
    }

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY, 1.0]), Some(Spread { median: 1.0, min: 1.0, max: 1.0 }));
    }

    #[test]
    fn a_ratio_pairs_runs_of_the_same_round() {
        let kernel = series(Backend::Zram, vec![run(12.0), None, run(50.0), run(8.0)]);
        let ours = series(Backend::UswapPool, vec![run(4.0), run(1.0), run(10.0), None]);
        let ratio = ratio(&kernel, &ours, |run| run.load.us_per_access).unwrap();
        assert_eq!(ratio, Spread { median: 4.0, min: 3.0, max: 5.0 });
    }

    #[test]
    fn cpu_time_is_shared_among_the_pages_that_were_swapped() {
        // 10 us more than without a limit, over 100 pages.
        let run = run(0.1).unwrap();
        assert!((run.cpu_us_per_swapped_page.unwrap() - 0.1).abs() < 1e-9, "{run:?}");
        assert_eq!(cpu_us_per_swapped_page(2.0, 1.0, Swapped::default()), None);
    }

    #[test]
    fn figures_have_three_digits() {
        let shown: Vec<String> = [0.1234, 9.994, 9.996, 12.34, 99.96, 12345.6].into_iter().map(figure).collect();
        assert_eq!(shown, ["0.12", "9.99", "10.0", "12.3", "100", "12346"]);
    }

    #[test]
    fn the_markdown_table_has_times_ratios_and_notes() {
        let text = report().to_text(Style::Markdown);
        assert!(text.contains("| pattern  |"), "{text}");
        assert!(text.contains("| seq-read | 12.0 (10.0..50.0) | 5.00 (4.00..10.0) | 3.00x (2.00..5.00) |"), "{text}");
        assert!(text.contains("outside of the cgroup's limit"), "{text}");
        assert!(text.contains("- zswap left out: this kernel has no zswap"), "{text}");
        assert!(text.contains("zram: the kernel killed the program 2 times"), "{text}");
        assert!(!text.contains("swap-file"), "{text}");
    }

    #[test]
    fn of_shared_memory_the_cpu_time_of_the_whole_run_is_told_alone() {
        let mut report = report();
        report.settings.shared = true;
        report.settings.threads = 2;
        let text = report.to_text(Style::Plain);
        assert!(text.contains("shared with 2 processes"), "{text}");
        assert!(!text.contains("CPU per access") && text.contains("CPU per page swapped"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!((&json["settings"]["shared"], &json["ratios"][0]["cpu"]), (&true.into(), &serde_json::Value::Null));
        assert_eq!(json["ratios"][0]["time"]["median"], 3.0);
    }

    #[test]
    fn a_missing_result_leaves_a_dash() {
        let mut report = report();
        report.series[1].rounds = vec![None, None, None];
        assert!(report.to_text(Style::Plain).contains(" -   "), "{}", report.to_text(Style::Plain));
    }

    #[test]
    fn json_holds_each_run_and_the_ratios() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        assert_eq!(json["results"][0]["backend"], "zram");
        assert_eq!(json["results"][0]["runs"].as_array().unwrap().len(), 3);
        assert_eq!(json["results"][0]["cpu_us_per_access"]["median"], 24.0);
        assert_eq!(json["ratios"][0]["time"]["median"], 3.0);
        assert_eq!(json["ratios"][0]["workload"], "seq-read");
        assert_eq!(json["oom_kills"][0]["count"], 2);
    }
}
