//! One run of one program: started, watched, ended, and judged.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::cgroup::Cgroup;
use super::kernel_swap::{KernelSwap, pages_out};
use super::part::Part;
use super::program::Program;
use super::progress::{Progress, whereabouts};
use super::records::{Record, Verdict};
use crate::run::root;

const SAMPLE: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_secs(1);
/// A program that is refused must be so at once.
const REFUSAL: Duration = Duration::from_secs(5);

/// Where and how programs are run.
pub struct Bench {
    /// The binary to try.
    pub uswap: PathBuf,
    /// Data of the programs, swap files, outputs.
    pub data: PathBuf,
    /// No run takes longer.
    pub limit: Duration,
    /// What was tried, as `git describe` says.
    pub version: String,
}

/// How a watched run ended.
enum End {
    Status(ExitStatus),
    Stalled(String),
    Over,
}

impl Bench {
    /// Runs `program` once. `alone` is the run without uswap that this one is measured by.
    pub fn attempt(&self, program: &Program, part: Part, alone: Option<&Record>) -> Result<Record, String> {
        let directory = program.directory(&self.data);
        let peak = alone.map_or(0, |alone| alone.peak_bytes);
        let output = |ending: &str| directory.join(format!("{part}.{ending}"));
        let cgroup = Cgroup::new(part.cgroup_bytes(peak))?;
        let swapped_before = pages_out();
        let swap = part.swap().map(|swap| KernelSwap::on(swap, &self.data)).transpose()?;
        let mut command = cgroup.enter(&self.command(program, part, peak, &output("stats")));
        command.current_dir(&directory).stdin(Stdio::null()).env_remove("LD_PRELOAD").env("TMPDIR", &directory);
        command.stdout(create(&output("stdout"))?).stderr(create(&output("stderr"))?);
        let begun = Instant::now();
        let child = command.spawn().map_err(|error| format!("{}: {error}", program.name))?;
        let (end, peak_bytes) = self.watch(child, &cgroup)?;
        let (seconds, cpu_seconds) = (begun.elapsed().as_secs_f64(), cgroup.cpu_seconds());
        let mut record = Record {
            program: program.name.clone(),
            part: part.to_string(),
            verdict: Verdict::Ok,
            seconds,
            cpu_seconds,
            peak_bytes,
            budget_bytes: part.budget_bytes(peak).or(part.cgroup_bytes(peak)).unwrap_or(0),
            note: String::new(),
            version: self.version.clone(),
        };
        // What is left of the run holds the swap.
        drop(cgroup);
        drop(swap);
        let verdict = match &program.refusal {
            Some(refusal) if part != Part::Alone => judge_refusal(end, refusal, begun.elapsed(), &output("stderr")),
            _ => judge(
                end,
                &output("stdout"),
                &output("stderr"),
                (part != Part::Alone).then(|| directory.join("alone.stdout")),
            ),
        };
        (record.verdict, record.note) = verdict;
        if record.verdict == Verdict::Hang {
            let stall = output("stall");
            std::fs::write(&stall, &record.note).map_err(|error| format!("{}: {error}", stall.display()))?;
            record.note = format!("no progress of its threads: {}", stall.display());
        }
        if part.budget_bytes(peak).is_some_and(|budget| record.peak_bytes > budget / 20 * 21) {
            let mib = |bytes: u64| bytes >> 20;
            record.note +=
                &format!(" (the budget was passed: {} of {} MiB)", mib(record.peak_bytes), mib(record.budget_bytes));
        }
        if matches!(part, Part::Beside(_)) && pages_out() == swapped_before {
            record.note += " (the kernel swapped nothing out)";
        }
        // Where this machine has them is nothing that others could use.
        for place in [self.data.as_path(), root()] {
            record.note = record.note.replace(&format!("{}/", place.display()), "");
        }
        record.note = record.note.trim().to_owned();
        Ok(record)
    }

    fn command(&self, program: &Program, part: Part, peak: u64, stats: &Path) -> Command {
        let direct = || Command::new(program.directory(&self.data).join("program"));
        let script = if program.refusal.is_some() { direct() } else { program.command("work") };
        let Some(budget) = part.budget_bytes(peak) else {
            return script;
        };
        let mut command = Command::new(&self.uswap);
        command.args(["run", "-q", "--memory", &budget.to_string(), "--stats"]).arg(stats);
        command.arg("--").arg(script.get_program()).args(script.get_args());
        command
    }

    /// Waits for the end, samples memory, and looks for progress.
    fn watch(&self, mut child: Child, cgroup: &Cgroup) -> Result<(End, u64), String> {
        let begun = Instant::now();
        let (mut peak, mut looked, mut progress) = (0, begun, Progress::default());
        let end = loop {
            peak = peak.max(cgroup.resident_bytes());
            if let Some(status) = child.try_wait().map_err(|error| format!("waitpid: {error}"))? {
                break End::Status(status);
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                let processes = cgroup.processes();
                if progress.look(&processes) {
                    break End::Stalled(whereabouts(&processes));
                }
            }
            if begun.elapsed() > self.limit {
                break End::Over;
            }
            std::thread::sleep(SAMPLE);
        };
        cgroup.kill();
        child.wait().map_err(|error| format!("waitpid: {error}"))?;
        Ok((end, peak))
    }
}

fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The last line of what it complained, shortened.
fn last_words(stderr: &Path) -> String {
    let said = std::fs::read(stderr).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing on standard error");
    line.chars().take(160).collect()
}

fn judge(end: End, stdout: &Path, stderr: &Path, expected: Option<PathBuf>) -> (Verdict, String) {
    let status = match end {
        End::Stalled(threads) => return (Verdict::Hang, threads),
        End::Over => return (Verdict::Over, "still working at the time limit".to_owned()),
        End::Status(status) => status,
    };
    if !status.success() {
        let how = match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("status {}", status.code().unwrap_or(-1)),
        };
        return (Verdict::Fail, format!("{how}: {}", last_words(stderr)));
    }
    let Some(expected) = expected else {
        return (Verdict::Ok, String::new());
    };
    match (std::fs::read(stdout), std::fs::read(&expected)) {
        (Ok(got), Ok(wanted)) if got == wanted && !got.is_empty() => (Verdict::Ok, String::new()),
        (Ok(got), Ok(wanted)) => {
            let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().chars().take(80).collect::<String>();
            (Verdict::Fail, format!("its result is '{}', not '{}'", show(&got), show(&wanted)))
        }
        (got, wanted) => (Verdict::Fail, format!("cannot compare: {:?}", got.err().or(wanted.err()))),
    }
}

fn judge_refusal(end: End, refusal: &str, took: Duration, stderr: &Path) -> (Verdict, String) {
    let said = last_words(stderr);
    match end {
        End::Status(status) if !status.success() && said.contains(refusal) && took < REFUSAL => {
            (Verdict::Refused, said)
        }
        End::Status(status) => (Verdict::Fail, format!("not refused by name at once: {status}, {said}")),
        End::Stalled(_) | End::Over => (Verdict::Fail, "not refused: it ran on".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{End, Verdict, judge, judge_refusal};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    fn scratch(name: &str, text: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("uswap-battery-test-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn another_result_is_a_failure_and_so_are_a_signal_and_no_result_at_all() {
        let (good, bad) = (scratch("good", "42\n"), scratch("bad", "41\n"));
        let (empty, said) = (scratch("empty", ""), scratch("said", "a\nSegmentation fault\n\n"));
        let ended = || End::Status(ExitStatus::from_raw(0));
        let verdict = |end, got| judge(end, got, &said, Some(good.clone())).0;
        assert_eq!(verdict(ended(), &good), Verdict::Ok);
        assert_eq!(verdict(ended(), &bad), Verdict::Fail);
        assert_eq!(verdict(ended(), &empty), Verdict::Fail);
        assert_eq!(verdict(End::Over, &good), Verdict::Over);
        assert_eq!(verdict(End::Stalled(String::new()), &good), Verdict::Hang);
        let killed = judge(End::Status(ExitStatus::from_raw(11)), &good, &said, Some(good.clone()));
        assert_eq!(killed, (Verdict::Fail, "signal 11: Segmentation fault".to_owned()));
        for path in [good, bad, empty, said] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_refusal_must_name_its_reason_and_come_at_once() {
        let said = scratch("refusal", "uswap: a: statically linked\n");
        let verdict = |raw, words, seconds| {
            judge_refusal(End::Status(ExitStatus::from_raw(raw)), words, Duration::from_secs(seconds), &said).0
        };
        assert_eq!(verdict(126 << 8, "statically linked", 0), Verdict::Refused);
        assert_eq!(verdict(126 << 8, "setuid", 0), Verdict::Fail);
        assert_eq!(verdict(0, "statically linked", 0), Verdict::Fail);
        assert_eq!(verdict(126 << 8, "statically linked", 60), Verdict::Fail);
        std::fs::remove_file(said).unwrap();
    }
}
