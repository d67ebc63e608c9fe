//! The plain program under test, pattern by pattern.

use std::ffi::OsString;

use crate::kernel::Unavailable;
use crate::race::Race;
use crate::report::{Backend, Failure, Pools, Report, Run, Series, Settings};
use crate::rig::{Job, Observed, PoolWatch, Rig, kernel_swap, this_machine};
use crate::workload::{EXIT_WRONG_DATA, LoadReport, Workload};
use crate::{Finished, OOM_ATTEMPTS, PatternBench};

/// Compressed size of the data, pool overhead included, where the kernel's pool cannot be measured.
const ESTIMATED_POOL_PERCENT: u64 = 53;

/// How one run ended.
enum Outcome {
    Done(Box<Run>),
    /// The kernel killed it for lack of memory.
    OomKilled,
    /// One line on why there is no result.
    Failed(String),
    Interrupted(i32),
}

/// The plain program under all back ends.
pub struct Running {
    args: PatternBench,
    race: Race,
    settings: Settings,
    series: Vec<Series>,
    failures: Vec<Failure>,
}

impl Running {
    /// Nothing is measured yet.
    pub fn new(args: PatternBench) -> Result<Running, Unavailable> {
        let (size_bytes, memory_bytes) = (args.size_bytes, args.limits.memory_bytes);
        let mut rig = Rig::new(args.limits.clone())?;
        let swapped_bytes = size_bytes.saturating_sub(memory_bytes);
        rig.uswap_pool_memory_bytes = memory_bytes + swapped_bytes * ESTIMATED_POOL_PERCENT / 100;
        let settings = Settings {
            size_bytes,
            memory_bytes,
            rounds: args.rounds,
            threads: args.threads,
            shared: args.shared,
            pools: Pools::unmeasured(rig.uswap_pool_memory_bytes),
            cgroup_version: None,
            zswap_compressor: None,
        };
        let race = Race::new(rig, args.backends.clone());
        Ok(Running { args, race, settings, series: Vec::new(), failures: Vec::new() })
    }

    /// All patterns, all rounds.
    pub fn run_all(&mut self) -> Result<Finished, Unavailable> {
        if let Some(signal) = self.measure_kernel_pool()? {
            return Ok(Finished::Interrupted(signal));
        }
        for workload in self.args.workloads.clone() {
            // One run that does not count: in a virtual machine the first use of a free page may be much dearer
            // than the next, and no back end should pay that for the others. It shows that the program works, and
            // what it takes without swap.
            let floor = match self.run_once(workload, Backend::Ram, 0)?.0 {
                Outcome::Done(run) => run.cpu_seconds,
                Outcome::Interrupted(signal) => return Ok(Finished::Interrupted(signal)),
                Outcome::OomKilled => unreachable!("there is no cgroup"),
                Outcome::Failed(why) => {
                    return Err(Unavailable(format!("the program under test does not even run alone: {why}")));
                }
            };
            for backend in self.takes_part(workload) {
                self.series.push(Series { workload, backend, rounds: Vec::new() });
            }
            for round in 1..=self.args.rounds {
                if self.race.backends.is_empty() {
                    break;
                }
                let mut progress = format!("{:12} {round}/{}", workload.name(), self.args.rounds);
                for backend in self.takes_part(workload) {
                    match self.round(workload, backend, round) {
                        Ok(run) => {
                            let run = run.map(|run| run.above(floor));
                            let shown =
                                run.as_ref().map_or("-".to_owned(), |run| format!("{:.2}", run.load.us_per_access));
                            progress.push_str(&format!("   {} {shown}", backend.name()));
                            let series =
                                self.series.iter_mut().rfind(|s| s.workload == workload && s.backend == backend);
                            series.expect("pushed above").rounds.push(run);
                        }
                        Err(signal) => return Ok(Finished::Interrupted(signal)),
                    }
                }
                eprintln!("{progress}");
            }
        }
        // A back end that was left out before it had a single result needs no column.
        let skipped: Vec<Backend> = self.race.skipped.iter().map(|skipped| skipped.backend).collect();
        let without_result = |backend| {
            self.series
                .iter()
                .filter(|series| series.backend == backend)
                .all(|series| series.rounds.iter().all(Option::is_none))
        };
        let empty: Vec<Backend> = skipped.into_iter().filter(|&backend| without_result(backend)).collect();
        self.series.retain(|series| !empty.contains(&series.backend));
        if self.series.is_empty() {
            return Err(self.race.nobody_left());
        }
        Ok(Finished::All)
    }

    /// Back ends under which `workload` can be measured.
    fn takes_part(&self, workload: Workload) -> Vec<Backend> {
        self.race.backends.iter().copied().filter(|&backend| workload.is_for(backend)).collect()
    }

    /// One run that counts, repeated while the kernel kills it. `Err` is the signal that ended it all.
    fn round(&mut self, workload: Workload, backend: Backend, round: u32) -> Result<Option<Run>, i32> {
        let mut reason = String::new();
        for _ in 0..OOM_ATTEMPTS {
            match self.run_once(workload, backend, round) {
                Err(Unavailable(why)) => {
                    self.race.leave_out(backend, why);
                    return Ok(None);
                }
                Ok((Outcome::Interrupted(signal), _)) => return Err(signal),
                Ok((Outcome::Done(run), _)) => {
                    self.race.succeeded(backend);
                    return Ok(Some(*run));
                }
                Ok((Outcome::OomKilled, _)) => {
                    self.race.count_oom_kill(backend);
                    reason = format!("killed for lack of memory {OOM_ATTEMPTS} times in a row");
                }
                Ok((Outcome::Failed(why), _)) => {
                    reason = why;
                    break;
                }
            }
        }
        eprintln!("uswap: bench: {}, {}: {reason}", backend.name(), workload.name());
        self.failures.push(Failure { workload, backend, round, reason });
        self.race.failed(backend);
        Ok(None)
    }

    /// Fills the program's memory under the kernel once, to learn how much RAM the compressed data takes
    /// and whether the cgroup pays for it. uswap-pool then gets the same RAM in total.
    fn measure_kernel_pool(&mut self) -> Result<Option<i32>, Unavailable> {
        if !self.race.backends.contains(&Backend::UswapPool) {
            return Ok(None);
        }
        let compressed = [Backend::Zram, Backend::Zswap];
        let Some(backend) = compressed.into_iter().find(|backend| self.race.backends.contains(backend)) else {
            return Ok(None);
        };
        // The first use of free memory, which is dearer, is nobody's.
        if let Outcome::Interrupted(signal) = self.run_once(Workload::Fill, Backend::Ram, 0)?.0 {
            return Ok(Some(signal));
        }
        for _ in 0..OOM_ATTEMPTS {
            match self.run_once(Workload::Fill, backend, 0) {
                // What does not work here will say so again in the first round.
                Err(_) | Ok((Outcome::Failed(_), _)) => return Ok(None),
                Ok((Outcome::OomKilled, _)) => self.race.count_oom_kill(backend),
                Ok((Outcome::Interrupted(signal), _)) => return Ok(Some(signal)),
                Ok((Outcome::Done(_), watch)) => {
                    let watch = watch.unwrap_or_default();
                    self.settings.pools = Pools::measured(self.settings.memory_bytes, watch.peak_bytes, watch.charged);
                    self.race.rig.uswap_pool_memory_bytes = self.settings.pools.uswap_pool_memory_bytes;
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// One run of the program under test.
    fn run_once(
        &mut self,
        workload: Workload,
        backend: Backend,
        round: u32,
    ) -> Result<(Outcome, Option<PoolWatch>), Unavailable> {
        let mut arguments = vec![
            "bench-load".to_owned(),
            workload.name().to_owned(),
            format!("--size={}", self.args.size_bytes),
            format!("--threads={}", self.args.threads),
            format!("--seed={}", round + 1),
        ];
        arguments.extend(self.args.shared.then(|| "--shared".to_owned()));
        let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
        let program = self.race.rig.uswap().to_owned();
        let job = Job { program: &program, arguments: &arguments, variable: None, shared: self.args.shared };
        let observed = self.race.rig.run(backend, &job)?;
        if kernel_swap(backend).is_none() && observed.ended.stopped.is_none() && observed.ended.is_failure_of_ours() {
            return Err(Unavailable(observed.ended.last_words()));
        }
        let pool = observed.pool;
        Ok((outcome(observed), pool))
    }

    /// What was measured. The kernel side is taken down here.
    pub fn into_report(self) -> Report {
        let settings = Settings {
            cgroup_version: self.race.cgroup_version,
            zswap_compressor: self.race.rig.zswap_compressor,
            ..self.settings
        };
        Report {
            machine: this_machine(),
            settings,
            series: self.series,
            skipped: self.race.skipped,
            failures: self.failures,
            oom_kills: self.race.oom_kills,
        }
    }
}

/// What a run of the program under test means.
fn outcome(observed: Observed) -> Outcome {
    let ended = &observed.ended;
    if let Some(signal) = ended.interrupted() {
        return Outcome::Interrupted(signal);
    }
    // One of its processes may have been killed, and it did not get on without that.
    let is_wrong = ended.status.code() == Some(i32::from(EXIT_WRONG_DATA));
    if observed.oom_kills > 0 && ended.stopped.is_none() && !ended.status.success() && !is_wrong {
        return Outcome::OomKilled;
    }
    if let Some(why) = ended.why_cut_short() {
        return Outcome::Failed(why);
    }
    if is_wrong {
        return Outcome::Failed(format!("WRONG DATA: {}", ended.last_words()));
    }
    if !ended.status.success() {
        return Outcome::Failed(format!("exit status {}: {}", ended.status.code().unwrap_or(-1), ended.last_words()));
    }
    match serde_json::from_str::<LoadReport>(ended.stdout.text().trim()) {
        Ok(load) => Outcome::Done(Box::new(Run {
            load,
            pool_peak_bytes: observed.pool.map(|pool| pool.peak_bytes),
            uswap_area_pages_written: observed.stats.and_then(|stats| stats["vmstat"]["area_pages_written"].as_u64()),
            resident_bytes: observed.resident_bytes,
            cpu_seconds: observed.cpu_seconds,
            swapped: observed.swapped,
            cpu_us_per_swapped_page: None,
        })),
        Err(error) => Outcome::Failed(format!("its report cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::tests::ended;

    #[test]
    fn a_program_of_which_the_kernel_has_killed_a_process_is_run_again() {
        // It has ended by a panic then, or was killed itself; wrong data is wrong data.
        for (status, is_again) in [(101 << 8, true), (9, true), (i32::from(EXIT_WRONG_DATA) << 8, false)] {
            let observed = Observed { oom_kills: 1, ..Observed::new(ended(status, "", ""), 1.0, 1.0) };
            assert_eq!(matches!(outcome(observed), Outcome::OomKilled), is_again, "{status}");
        }
    }

    fn reason(status: i32, stdout: &str, stderr: &str) -> String {
        match outcome(Observed::new(ended(status, stdout, stderr), 1.0, 1.0)) {
            Outcome::Failed(reason) => reason,
            _ => panic!("not a failure"),
        }
    }

    #[test]
    fn a_run_without_a_report_says_why_in_one_line() {
        assert_eq!(reason(9, "", ""), "ended by signal 9 nothing on stderr");
        assert_eq!(
            reason(3 << 8, "", "noise\nuswap: bench-load: wrong data: x\n"),
            "WRONG DATA: bench-load: wrong data: x"
        );
        assert_eq!(reason(127 << 8, "", "sh: not found"), "exit status 127: sh: not found");
        assert!(reason(0, "{}", "").starts_with("its report cannot be read"));
    }
}
