//! What is said about a command of the user's: a row for each back end.

use std::fmt::Write as _;

use serde::Serialize;

use crate::kernel::Swapped;
use crate::report::{Backend, Machine, Pools, Skipped, Spread, Style, figure, mib, print_table, unique};

/// One run that ended and printed as it must.
#[derive(Clone, Debug, Serialize)]
pub struct CommandRun {
    /// From start to end.
    pub wall_seconds: f64,
    /// User and system time of all processes, uswap's threads and supervisor among them, and of kswapd.
    pub cpu_seconds: f64,
    /// Pages that left and came back.
    #[serde(flatten)]
    pub swapped: Swapped,
    /// CPU time that swapping has added, for each page that left or came back.
    pub cpu_us_per_swapped_page: Option<f64>,
    /// RAM that the kernel's compressed pool took at its peak.
    pub pool_peak_bytes: Option<u64>,
    /// Pages that uswap wrote to its swap area, by its own count.
    pub uswap_area_pages_written: Option<u64>,
    /// Peak of what uswap counts against its budget, by its own count.
    pub uswap_peak_bytes: Option<u64>,
    /// Anonymous and shared memory of all processes, sampled from outside; what they share counts in each.
    pub resident_bytes: Option<Spread>,
    /// What the command measured by itself.
    pub figures: Vec<(String, f64)>,
}

/// All runs under one back end; `None` for a round that has no result.
#[derive(Clone, Debug)]
pub struct CommandSeries {
    /// The back end.
    pub backend: Backend,
    /// By round.
    pub rounds: Vec<Option<CommandRun>>,
}

impl CommandSeries {
    /// Whether there is anything to show.
    pub fn has_result(&self) -> bool {
        self.rounds.iter().any(Option::is_some)
    }

    fn spread(&self, of: impl Fn(&CommandRun) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.rounds.iter().flatten().filter_map(of))
    }
}

/// What was asked for, and what was worked out from it.
#[derive(Clone, Debug, Serialize)]
pub struct CommandSettings {
    /// The command on one line.
    pub command: String,
    /// Limit of the kernel's cgroup and of `uswap-file`.
    pub memory_bytes: u64,
    /// Size of each swap area.
    pub swap_bytes: u64,
    /// Rounds.
    pub rounds: u32,
    /// Compressed pools.
    #[serde(flatten)]
    pub pools: Pools,
    /// Generation of the memory cgroup.
    pub cgroup_version: Option<u32>,
    /// What zswap compresses with.
    pub zswap_compressor: Option<&'static str>,
}

/// A run without a result.
#[derive(Clone, Debug, Serialize)]
pub struct CommandFailure {
    /// The back end.
    pub backend: Backend,
    /// Counted from 1.
    pub round: u32,
    /// What went wrong, in one line.
    pub reason: String,
}

/// Everything that `uswap bench -- COMMAND` has to say.
pub struct CommandReport {
    /// Where it was measured.
    pub machine: Machine,
    /// How it was measured.
    pub settings: CommandSettings,
    /// The run without a limit.
    pub free: Option<CommandRun>,
    /// One for each back end.
    pub series: Vec<CommandSeries>,
    /// Back ends left out.
    pub skipped: Vec<Skipped>,
    /// Runs without a result.
    pub failures: Vec<CommandFailure>,
    /// How often the kernel killed a process for lack of memory, by back end.
    pub oom_kills: Vec<(Backend, u32)>,
}

#[derive(Serialize)]
struct JsonReport<'a> {
    machine: &'a Machine,
    settings: &'a CommandSettings,
    without_limit: &'a Option<CommandRun>,
    results: Vec<JsonSeries<'a>>,
    skipped: &'a [Skipped],
    failures: &'a [CommandFailure],
}

#[derive(Serialize)]
struct JsonSeries<'a> {
    backend: Backend,
    result: &'static str,
    wall_seconds: Option<Spread>,
    cpu_seconds: Option<Spread>,
    cpu_us_per_swapped_page: Option<Spread>,
    /// Time of this one of the kernel's over ours, round by round.
    kernel_to_uswap_time: Option<Spread>,
    oom_kills: u32,
    runs: Vec<&'a CommandRun>,
}

impl CommandReport {
    /// Whether any run under a back end has a result, or failed.
    pub fn has_results(&self) -> bool {
        !self.failures.is_empty() || self.series.iter().any(CommandSeries::has_result)
    }

    /// One JSON object for machines.
    pub fn to_json(&self) -> String {
        let results = self.series.iter().map(|series| JsonSeries {
            backend: series.backend,
            result: self.verdict(series.backend),
            wall_seconds: series.spread(|run| Some(run.wall_seconds)),
            cpu_seconds: series.spread(|run| Some(run.cpu_seconds)),
            cpu_us_per_swapped_page: series.spread(|run| run.cpu_us_per_swapped_page),
            kernel_to_uswap_time: self.ratio(series),
            oom_kills: self.oom_kills_of(series.backend),
            runs: series.rounds.iter().flatten().collect(),
        });
        let report = JsonReport {
            machine: &self.machine,
            settings: &self.settings,
            without_limit: &self.free,
            results: results.collect(),
            skipped: &self.skipped,
            failures: &self.failures,
        };
        serde_json::to_string_pretty(&report).expect("plain data becomes JSON")
    }

    /// The table, with what a reader must know to judge it.
    pub fn to_text(&self, style: Style) -> String {
        let mut text = String::new();
        for line in self.caption() {
            let _ = writeln!(text, "{line}");
        }
        let _ = writeln!(text, "\nMedian (min..max)\n");
        text.push_str(&self.table(style));
        let notes = self.notes();
        if !notes.is_empty() {
            text.push('\n');
        }
        for note in notes {
            let _ = writeln!(text, "{}{note}", if style == Style::Markdown { "- " } else { "" });
        }
        text
    }

    fn table(&self, style: Style) -> String {
        let runs = || self.free.iter().chain(self.series.iter().flat_map(|series| series.rounds.iter().flatten()));
        let figures = unique(runs().flat_map(|run| run.figures.iter().map(|(name, _)| name.clone())));
        let mut header: Vec<String> =
            ["back end", "result", "wall, s", "CPU, s"].into_iter().map(str::to_owned).collect();
        header.extend(figures.iter().cloned());
        header.extend(
            ["pages out, 1000", "pages in, 1000", "CPU per page, us", "OOM kills", "time / uswap"].map(str::to_owned),
        );
        let mut rows = vec![header];
        let free = CommandSeries { backend: Backend::Ram, rounds: vec![self.free.clone()] };
        for series in std::iter::once(&free).chain(&self.series) {
            let cell = |of: &dyn Fn(&CommandRun) -> Option<f64>| Spread::cell(series.spread(of), "");
            let mut row = vec![
                series.backend.title().to_owned(),
                self.verdict(series.backend).to_owned(),
                cell(&|run| Some(run.wall_seconds)),
                cell(&|run| Some(run.cpu_seconds)),
            ];
            row.extend(figures.iter().map(|name| {
                cell(&|run| run.figures.iter().find(|(known, _)| known == name).map(|&(_, number)| number))
            }));
            let swaps = series.backend != Backend::Ram;
            row.push(if swaps { cell(&|run| Some(run.swapped.pages_out as f64 / 1e3)) } else { "-".to_owned() });
            row.push(if swaps { cell(&|run| Some(run.swapped.pages_in as f64 / 1e3)) } else { "-".to_owned() });
            row.push(cell(&|run| run.cpu_us_per_swapped_page));
            row.push(match series.backend.counterpart() {
                Some(_) => self.oom_kills_of(series.backend).to_string(),
                None => "-".to_owned(),
            });
            row.push(Spread::cell(self.ratio(series), "x"));
            rows.push(row);
        }
        print_table(&rows, style)
    }

    /// Whether all rounds ended as the run without a limit.
    fn verdict(&self, backend: Backend) -> &'static str {
        match () {
            () if backend == Backend::Ram => "",
            () if self.failures.iter().any(|failure| failure.backend == backend) => "FAILED",
            () if self.series.iter().any(|series| series.backend == backend && series.has_result()) => "same",
            () => "-",
        }
    }

    fn oom_kills_of(&self, backend: Backend) -> u32 {
        self.oom_kills.iter().find(|(counted, _)| *counted == backend).map_or(0, |&(_, count)| count)
    }

    /// Time of the kernel over ours, round by round.
    fn ratio(&self, kernel: &CommandSeries) -> Option<Spread> {
        let ours = kernel.backend.counterpart()?;
        let ours = self.series.iter().find(|series| series.backend == ours)?;
        let both = kernel.rounds.iter().zip(&ours.rounds).filter_map(|(one, other)| one.as_ref().zip(other.as_ref()));
        Spread::of(both.map(|(kernel, ours)| kernel.wall_seconds / ours.wall_seconds))
    }

    /// What was measured, on what, and how much RAM each side had.
    fn caption(&self) -> Vec<String> {
        let (machine, settings) = (&self.machine, &self.settings);
        let mut lines = vec![
            format!("Command: {}", settings.command),
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
        if let Some(peak) = self.free.as_ref().and_then(|free| free.resident_bytes) {
            lines.push(format!(
                "Without a limit its processes had {} resident at most, sampled, what they share counted in each.",
                mib(peak.max as u64)
            ));
        }
        let measured = |backend| self.series.iter().any(|series| series.backend == backend);
        let of_the_kernel = [Backend::Zram, Backend::Zswap, Backend::SwapFile].into_iter().any(measured);
        if let Some(version) = settings.cgroup_version.filter(|_| of_the_kernel) {
            let zswap = match settings.zswap_compressor.filter(|_| measured(Backend::Zswap)) {
                Some(compressor) => format!(", zswap with {compressor}"),
                None => String::new(),
            };
            lines.push(format!(
                "Kernel: a memory cgroup (v{version}) of {}, which counts page cache and page tables too; uswap does \
                 not. zram with lz4{zswap}.",
                mib(settings.memory_bytes)
            ));
        }
        if measured(Backend::UswapPool) {
            lines.push(settings.pools.line(settings.memory_bytes));
        }
        if measured(Backend::UswapFile) {
            lines.push(format!("uswap-file has {} and no compressed pool.", mib(settings.memory_bytes)));
        }
        lines.push(
            "CPU: user and system time of all processes, uswap's threads and kswapd among them; per page: what is \
             more than without a limit, for each page out or in."
                .to_owned(),
        );
        lines
    }

    /// What was left out, what failed.
    fn notes(&self) -> Vec<String> {
        let left_out = |skipped: &Skipped| format!("{} left out: {}", skipped.backend.name(), skipped.reason);
        let mut notes: Vec<String> = self.skipped.iter().map(left_out).collect();
        for series in &self.series {
            let most = |of: fn(&CommandRun) -> Option<u64>| series.rounds.iter().flatten().filter_map(of).max();
            if let Some(peak) = most(|run| run.uswap_peak_bytes) {
                let written = figure(most(|run| run.uswap_area_pages_written).unwrap_or(0) as f64 / 1e3);
                notes.push(format!(
                    "{}: at most {} by its own count, up to {written} thousand pages a run written to its file",
                    series.backend.name(),
                    mib(peak)
                ));
            }
        }
        for &(backend, count) in self.oom_kills.iter().filter(|(_, count)| *count > 0) {
            let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
            let name = backend.name();
            notes.push(format!("{name}: the kernel killed for lack of memory {times}; those runs were repeated"));
        }
        for CommandFailure { backend, round, reason } in &self.failures {
            notes.push(format!("{}, round {round}: FAILED: {reason}", backend.name()));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(wall_seconds: f64, ops: f64) -> Option<CommandRun> {
        Some(CommandRun {
            wall_seconds,
            cpu_seconds: 2.0 * wall_seconds,
            swapped: Swapped { pages_out: 30_000, pages_in: 20_000 },
            cpu_us_per_swapped_page: Some(12.0),
            pool_peak_bytes: None,
            uswap_area_pages_written: None,
            uswap_peak_bytes: None,
            resident_bytes: None,
            figures: vec![("ops/s".to_owned(), ops)],
        })
    }

    fn report() -> CommandReport {
        let series = |backend, rounds| CommandSeries { backend, rounds };
        CommandReport {
            machine: Machine {
                kernel: "6.8.0".to_owned(),
                cpu: "a CPU".to_owned(),
                cpus: 2,
                memory_bytes: 4 << 30,
                transparent_hugepage: "madvise".to_owned(),
                page_cluster: "3".to_owned(),
            },
            settings: CommandSettings {
                command: "sort input".to_owned(),
                memory_bytes: 200 << 20,
                swap_bytes: 4 << 30,
                rounds: 2,
                pools: Pools::measured(200 << 20, 60 << 20, false),
                cgroup_version: Some(1),
                zswap_compressor: None,
            },
            free: run(1.0, 500.0),
            series: vec![
                series(Backend::Zram, vec![run(6.0, 50.0), run(8.0, 40.0)]),
                series(Backend::UswapPool, vec![run(3.0, 90.0), None]),
                series(Backend::UswapFile, vec![None, None]),
            ],
            skipped: vec![Skipped { backend: Backend::Zswap, reason: "this kernel has no zswap".to_owned() }],
            failures: vec![CommandFailure {
                backend: Backend::UswapFile,
                round: 1,
                reason: "exit status 1".to_owned(),
            }],
            oom_kills: vec![(Backend::Zram, 2)],
        }
    }

    #[test]
    fn the_table_has_times_figures_pages_and_verdicts() {
        let text = report().to_text(Style::Markdown);
        let row = |title: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("| {title} "))).expect(title);
            line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
        };
        let zram = row("kernel, zram");
        assert_eq!(zram[2..6], ["same", "7.00 (6.00..8.00)", "14.0 (12.0..16.0)", "45.0 (40.0..50.0)"]);
        assert_eq!(zram[6..8], ["30.0 (30.0..30.0)", "20.0 (20.0..20.0)"]);
        // The second round of ours has no result: no ratio of it.
        assert_eq!(zram[9..11], ["2", "2.00x (2.00..2.00)"]);
        assert_eq!(row("uswap, file")[2..4], ["FAILED", "-"]);
        assert_eq!(row("no limit")[6..10], ["-", "-", "12.0 (12.0..12.0)", "-"]);
        assert!(text.contains("- zswap left out: this kernel has no zswap"), "{text}");
        assert!(text.contains("- uswap-file, round 1: FAILED: exit status 1"), "{text}");
        assert!(text.contains("uswap-pool has the same RAM in total: 260 MiB"), "{text}");
    }

    #[test]
    fn json_holds_each_run() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        assert_eq!(json["results"][0]["runs"].as_array().unwrap().len(), 2);
        assert_eq!(json["results"][0]["oom_kills"], 2);
        assert_eq!(json["results"][0]["kernel_to_uswap_time"]["median"], 2.0);
        assert_eq!(json["results"][2]["result"], "FAILED");
        assert_eq!(json["results"][0]["runs"][0]["pages_out"], 30_000);
        assert_eq!(json["without_limit"]["figures"][0][0], "ops/s");
    }
}
