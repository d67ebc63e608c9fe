//! Any command of the user's, under all back ends.
//!
//! It first runs once without a limit. That run says how it must end and what it must print, and how much CPU
//! time it takes by itself.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitStatus;

use crate::command_report::{CommandFailure, CommandReport, CommandRun, CommandSeries, CommandSettings};
use crate::kernel::Unavailable;
use crate::race::Race;
use crate::report::{Backend, Pools};
use crate::rig::{Job, Observed, Output, Rig, TemporaryFile, kernel_swap, this_machine};
use crate::{CommandBench, Finished, OOM_ATTEMPTS};

/// The file to which a command may write figures of its own.
const FIGURES_VARIABLE: &str = "USWAP_BENCH_FIGURES";

/// How it ended and what it printed without a limit.
struct Reference {
    status: ExitStatus,
    stdout: Output,
    cpu_seconds: f64,
}

/// How one run ended.
enum Outcome {
    Done(CommandRun),
    /// The kernel killed a process of it for lack of memory.
    OomKilled,
    /// One line on why there is no result.
    Failed(String),
    Interrupted(i32),
}

/// One command under all back ends.
pub struct Running {
    args: CommandBench,
    figures: TemporaryFile,
    race: Race,
    settings: CommandSettings,
    /// Without a limit.
    free: Option<CommandRun>,
    series: Vec<CommandSeries>,
    failures: Vec<CommandFailure>,
}

impl Running {
    /// Nothing is measured yet.
    pub fn new(args: CommandBench) -> Result<Running, Unavailable> {
        let rig = Rig::new(args.limits.clone())?;
        let settings = CommandSettings {
            command: described(&args.program, &args.arguments),
            memory_bytes: args.limits.memory_bytes,
            swap_bytes: args.limits.area_bytes,
            rounds: args.rounds,
            pools: Pools::unmeasured(args.limits.memory_bytes),
            cgroup_version: None,
            zswap_compressor: None,
        };
        let figures = args.limits.directory.join(format!("uswap-bench-{}.figures", std::process::id()));
        Ok(Running {
            figures: TemporaryFile(figures),
            race: Race::new(rig, args.backends.clone()),
            args,
            settings,
            free: None,
            series: Vec::new(),
            failures: Vec::new(),
        })
    }

    /// All rounds.
    pub fn run_all(&mut self) -> Result<Finished, Unavailable> {
        let observed = self.run_once(Backend::Ram)?;
        if let Some(signal) = observed.ended.interrupted() {
            return Ok(Finished::Interrupted(signal));
        }
        if let Some(why) = observed.ended.why_cut_short() {
            return Err(Unavailable(format!("the command does not even run without a limit: {why}")));
        }
        let reference = Reference {
            status: observed.ended.status,
            stdout: observed.ended.stdout.clone(),
            cpu_seconds: observed.cpu_seconds,
        };
        let free = self.result(&observed, &reference)?;
        eprintln!("no limit: {:.2} s, {}", free.wall_seconds, described_end(&reference));
        self.free = Some(free);

        for backend in self.race.backends.clone() {
            self.series.push(CommandSeries { backend, rounds: Vec::new() });
        }
        for round in 1..=self.args.rounds {
            if self.race.backends.is_empty() {
                break;
            }
            let mut progress = format!("{round}/{}", self.args.rounds);
            for backend in self.race.backends.clone() {
                match self.round(backend, round, &reference) {
                    Ok(run) => {
                        let shown = run.as_ref().map_or("-".to_owned(), |run| format!("{:.2} s", run.wall_seconds));
                        progress.push_str(&format!("   {} {shown}", backend.name()));
                        let series = self.series.iter_mut().find(|series| series.backend == backend);
                        series.expect("pushed above").rounds.push(run);
                    }
                    Err(signal) => return Ok(Finished::Interrupted(signal)),
                }
            }
            eprintln!("{progress}");
        }
        // A back end that cannot be measured here needs no row; one that failed does.
        let failed = |backend| self.failures.iter().any(|failure| failure.backend == backend);
        self.series.retain(|series| series.has_result() || failed(series.backend));
        if self.series.is_empty() { Err(self.race.nobody_left()) } else { Ok(Finished::All) }
    }

    /// One run that counts, repeated while the kernel kills it. `Err` is the signal that ended it all.
    fn round(&mut self, backend: Backend, round: u32, reference: &Reference) -> Result<Option<CommandRun>, i32> {
        let mut reason = format!("killed for lack of memory {OOM_ATTEMPTS} times in a row");
        for _ in 0..OOM_ATTEMPTS {
            let outcome = self.run_once(backend).and_then(|observed| self.outcome(backend, &observed, reference));
            match outcome {
                Err(Unavailable(why)) => {
                    self.race.leave_out(backend, why);
                    return Ok(None);
                }
                Ok(Outcome::Interrupted(signal)) => return Err(signal),
                Ok(Outcome::Done(run)) => {
                    self.race.succeeded(backend);
                    return Ok(Some(run));
                }
                Ok(Outcome::OomKilled) => self.race.count_oom_kill(backend),
                Ok(Outcome::Failed(why)) => {
                    reason = why;
                    break;
                }
            }
        }
        eprintln!("uswap: bench: {}: {reason}", backend.name());
        self.failures.push(CommandFailure { backend, round, reason });
        self.race.failed(backend);
        Ok(None)
    }

    fn run_once(&mut self, backend: Backend) -> Result<Observed, Unavailable> {
        let _ = fs::remove_file(&self.figures.0);
        let job = Job {
            program: &self.args.program,
            arguments: &self.args.arguments,
            variable: Some((FIGURES_VARIABLE, &self.figures.0)),
            shared: false,
        };
        self.race.rig.run(backend, &job)
    }

    /// What a run means that must end as `reference` did.
    fn outcome(
        &mut self,
        backend: Backend,
        observed: &Observed,
        reference: &Reference,
    ) -> Result<Outcome, Unavailable> {
        let ended = &observed.ended;
        if let Some(signal) = ended.interrupted() {
            return Ok(Outcome::Interrupted(signal));
        }
        // Whatever became of the rest: the program is not what was started any more.
        if observed.oom_kills > 0 {
            return Ok(Outcome::OomKilled);
        }
        if let Some(why) = ended.why_cut_short() {
            return Ok(Outcome::Failed(why));
        }
        let of_uswap = kernel_swap(backend).is_none() && ended.is_failure_of_ours();
        if of_uswap && reference.status != ended.status && observed.stats.is_none() {
            return Err(Unavailable(ended.last_words()));
        }
        if let Some(why) = difference(ended.status, &ended.stdout, reference) {
            return Ok(Outcome::Failed(format!("{why}: {}", ended.last_words())));
        }
        self.give_uswap_the_pool_of(backend, observed);
        Ok(Outcome::Done(self.result(observed, reference)?))
    }

    /// uswap counts its pool, the kernel does not: uswap-pool has the same RAM in total as the kernel in its first
    /// run with a pool. zram is never charged to a cgroup, zswap to one of v2.
    fn give_uswap_the_pool_of(&mut self, backend: Backend, observed: &Observed) {
        if let (Some(pool), None) = (observed.pool, self.settings.pools.kernel_pool_bytes) {
            let charged = backend == Backend::Zswap && self.race.cgroup_version == Some(2);
            self.settings.pools = Pools::measured(self.settings.memory_bytes, pool.peak_bytes, charged);
            self.race.rig.uswap_pool_memory_bytes = self.settings.pools.uswap_pool_memory_bytes;
        }
    }

    /// What was measured in a run that ended as it must.
    fn result(&self, observed: &Observed, reference: &Reference) -> Result<CommandRun, Unavailable> {
        let text = fs::read_to_string(&self.figures.0).unwrap_or_default();
        let stats = |key: &str| observed.stats.as_ref().and_then(|stats| stats[key].as_u64());
        let written = observed.stats.as_ref().and_then(|stats| stats["vmstat"]["area_pages_written"].as_u64());
        Ok(CommandRun {
            wall_seconds: observed.wall_seconds,
            cpu_seconds: observed.cpu_seconds,
            swapped: observed.swapped,
            cpu_us_per_swapped_page: crate::report::cpu_us_per_swapped_page(
                observed.cpu_seconds,
                reference.cpu_seconds,
                observed.swapped,
            ),
            pool_peak_bytes: observed.pool.map(|pool| pool.peak_bytes),
            uswap_area_pages_written: written,
            uswap_peak_bytes: stats("peak_resident_bytes"),
            resident_bytes: observed.resident_bytes,
            figures: parse_figures(&text)?,
        })
    }

    /// What was measured. The kernel side is taken down here.
    pub fn into_report(self) -> CommandReport {
        let settings = CommandSettings {
            cgroup_version: self.race.cgroup_version,
            zswap_compressor: self.race.rig.zswap_compressor,
            ..self.settings
        };
        CommandReport {
            machine: this_machine(),
            settings,
            free: self.free,
            series: self.series,
            skipped: self.race.skipped,
            failures: self.failures,
            oom_kills: self.race.oom_kills,
        }
    }
}

/// The command on one line, for people.
fn described(program: &Path, arguments: &[OsString]) -> String {
    let words = std::iter::once(program.as_os_str()).chain(arguments.iter().map(OsString::as_os_str));
    let line = words.map(|word| word.to_string_lossy().replace('\n', " ")).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

fn described_end(reference: &Reference) -> String {
    let printed = reference.stdout.bytes();
    match reference.status.code() {
        Some(0) => format!("{printed} bytes on standard output"),
        code => format!("exit status {}, {printed} bytes on standard output", code.unwrap_or(-1)),
    }
}

/// How a run differs from the one without a limit, in which nothing may differ.
fn difference(status: ExitStatus, stdout: &Output, reference: &Reference) -> Option<String> {
    if status != reference.status {
        let code = |status: ExitStatus| status.code().unwrap_or(-1);
        return Some(format!("exit status {} instead of {}", code(status), code(reference.status)));
    }
    if *stdout != reference.stdout {
        let (here, there) = (stdout.bytes(), reference.stdout.bytes());
        return Some(format!("standard output of {here} bytes differs from the {there} bytes without a limit"));
    }
    None
}

/// Lines of a name, which may have blanks, and a number.
fn parse_figures(text: &str) -> Result<Vec<(String, f64)>, Unavailable> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (name, number) = line.rsplit_once(char::is_whitespace)?;
            Some((name.trim_end().to_owned(), number.parse().ok()?))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| Unavailable(format!("a line of ${FIGURES_VARIABLE} is not a name and a number")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::tests::ended;

    #[test]
    fn a_run_must_end_and_print_as_without_a_limit() {
        let end = |status, stdout| {
            let ended = ended(status, stdout, "");
            (ended.status, ended.stdout)
        };
        let (status, stdout) = end(3 << 8, "42\n");
        let reference = Reference { status, stdout, cpu_seconds: 1.0 };
        let compare = |status, stdout| {
            let (status, stdout) = end(status, stdout);
            difference(status, &stdout, &reference)
        };
        assert_eq!(compare(3 << 8, "42\n"), None);
        assert_eq!(compare(0, "42\n").unwrap(), "exit status 0 instead of 3");
        let said = compare(3 << 8, "43\n").unwrap();
        assert_eq!(said, "standard output of 3 bytes differs from the 3 bytes without a limit");
    }

    #[test]
    fn figures_are_names_and_numbers() {
        let figures = parse_figures("ops/s 12.5\n\nGET, p99 us  7\n").unwrap();
        assert_eq!(figures, [("ops/s".to_owned(), 12.5), ("GET, p99 us".to_owned(), 7.0)]);
        assert!(parse_figures("12.5\n").is_err());
        assert!(parse_figures("ops many\n").is_err());
        assert_eq!(parse_figures("").unwrap(), []);
    }

    #[test]
    fn a_long_command_is_cut_for_the_report() {
        let words = |word: &str| [OsString::from(word)];
        assert_eq!(described(Path::new("sort"), &words("a\nb")), "sort a b");
        assert_eq!(described(Path::new("sort"), &words(&"é".repeat(300))).chars().count(), 203);
    }
}
