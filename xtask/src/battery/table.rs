//! docs/battery.md, made from the records.

use std::fmt::Write as _;

use super::part::{Part, Swap};
use super::program::Program;
use super::records::{Record, Records, Verdict};

/// A run may take so many times what the kernel takes in the same memory.
const TIMES: f64 = 10.0;
/// Shorter runs than this are not called slow: they are mostly start-up.
const SHORT_SECONDS: f64 = 5.0;

/// What stands in the table, and what counts: `SLOW` is an end in the right way after too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// As it should be.
    Good,
    /// Right, or still working, but beyond the time limit.
    Slow,
    /// Cut off while still working, before it was known whether it is slow: the kernel took too long as well, or was not tried.
    Cut,
    /// Wrong result, crash, or hang.
    Bad,
}

/// Judges a run by the time of its measure.
pub fn judged(record: &Record, measure: Option<&Record>) -> Judged {
    let measure = measure.filter(|measure| measure.verdict == Verdict::Ok);
    let slow = measure.is_some_and(|measure| record.seconds > (measure.seconds * TIMES).max(SHORT_SECONDS));
    match record.verdict {
        Verdict::Fail | Verdict::Hang => Judged::Bad,
        Verdict::Ok | Verdict::Over | Verdict::Refused if slow => Judged::Slow,
        Verdict::Over => Judged::Cut,
        Verdict::Ok | Verdict::Refused => Judged::Good,
    }
}

const HEAD: &str = "\
# The battery

Real programs, unmodified, under `uswap run`: each script in `tests/battery/` makes its own data, works on it, and prints what must
be the same in each run. `cargo xtask battery [NAME|GROUP]... [--part PART]...` runs them and makes this page from
`docs/battery.jsonl`; a part that ends adds its rows. It needs root and a memory cgroup. The shortest also run in
CI, in a small size (`tests/e2e/tests/battery.rs`).

- **peak**: the most anonymous and shared memory that is resident at a time when the program runs alone; **alone**: how long that takes.
- **far**: under uswap with four times that memory, and how much longer than alone that took, by the clock and in processor time.
- **0.75, 0.5, 0.33**: under uswap in that part of its peak; behind the stroke what the kernel takes with a swap file, in a memory cgroup
  of the same size (page cache counts there, which it does not for uswap).
- **zram, file**: under uswap at a half of its peak, in a memory cgroup of 0.4 of its peak, with zram or a swap file on: the kernel
  swaps the same program out as well.

Seconds by the clock, one run each, on a machine of two processors that had other work to do meanwhile, at a lower priority: a cell
is good for its order of magnitude. uswap suffers more from that than the kernel, because each of its faults wakes a thread: in Guile
at 0.5 the one that serves it waited 21 us for a processor on average, and the program 53 us after it. `docs/battery.jsonl` has the
processor time and the version, too. *SLOW*: the right result, or still at work, after more than ten times what the kernel takes. *over*: cut off while still
at work, where the kernel was cut off as well, or ten times its time had not passed yet. *FAIL*: another result, another status, a
crash. *HANG*: none of the program's own threads has used 40 ms of a processor in 20 s. *refused*: `uswap run` does not take the
program, and says why. An empty cell: not run. The columns 0.75, 0.33, zram and file are of a machine that
had more to do than that.

In a memory cgroup the kernel's OOM killer ends Guile, with uswap at zram and without it at 0.33, and DuckDB takes the cgroup's limit for
what it may use, and gives up by itself, at file and without uswap at 0.33.

";

/// The page.
pub fn page(programs: &[Program], records: &Records) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| program | peak MiB | alone | far | 0.75 | 0.5 | 0.33 | zram | file |\n");
    page.push_str("| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for program in programs {
        // Writing to a string does not fail.
        let _ = writeln!(page, "{}", row(program, records));
    }
    let remarks: Vec<String> = records
        .iter()
        .filter(|record| judged(record, measure(record, records)) != Judged::Good || !record.note.is_empty())
        .filter(|record| programs.iter().any(|program| program.name == record.program))
        .map(|record| remark(record, measure(record, records)))
        .collect();
    if !remarks.is_empty() {
        let _ = write!(
            page,
            "\nNot as it should be, or worth a word (in parentheses: seconds of a processor, uswap's own too):\n\n{}",
            remarks.concat()
        );
    }
    page.push_str("\n| program | group | what it does |\n| --- | --- | --- |\n");
    for program in programs {
        let _ = writeln!(page, "| {} | {} | {} |", program.name, program.group, program.about);
    }
    page
}

fn measure<'a>(record: &Record, records: &'a Records) -> Option<&'a Record> {
    let part = Part::ALL.into_iter().find(|part| part.to_string() == record.part)?;
    records.get(&record.program, part.measured_by()?)
}

fn row(program: &Program, records: &Records) -> String {
    let alone = records.get(&program.name, Part::Alone);
    let (peak, seconds) = match alone {
        Some(alone) => ((alone.peak_bytes >> 20).to_string(), cell(alone, None)),
        None => (String::new(), String::new()),
    };
    let far = records.get(&program.name, Part::Far).map(|far| match (far.verdict, alone) {
        (Verdict::Ok, Some(alone)) => {
            let more = |far: f64, alone: f64| (far / alone.max(0.01) - 1.0) * 100.0;
            let (clock, processor) = (more(far.seconds, alone.seconds), more(far.cpu_seconds, alone.cpu_seconds));
            format!("{:.1} ({clock:+.0} %, {processor:+.0} %)", far.seconds)
        }
        _ => cell(far, alone),
    });
    let shares = [75, 50, 33].map(|share| {
        let kernel = records.get(&program.name, Part::Kernel(share));
        let time = kernel.map(|kernel| match kernel.verdict {
            Verdict::Ok => format!(" / {:.1}", kernel.seconds),
            other => format!(" / {}", other.name()),
        });
        records
            .get(&program.name, Part::Share(share))
            .map_or_else(String::new, |record| cell(record, kernel) + &time.unwrap_or_default())
    });
    let beside = [Swap::Zram, Swap::File].map(|swap| {
        let kernel = records.get(&program.name, Part::Kernel(50));
        records.get(&program.name, Part::Beside(swap)).map_or_else(String::new, |record| cell(record, kernel))
    });
    let far = far.unwrap_or_default();
    format!("| {} | {peak} | {seconds} | {far} | {} | {} |", program.name, shares.join(" | "), beside.join(" | "))
}

fn cell(record: &Record, measure: Option<&Record>) -> String {
    match (judged(record, measure), record.verdict) {
        (Judged::Good, Verdict::Refused) => "refused".to_owned(),
        (Judged::Good, _) => format!("{:.1}", record.seconds),
        (Judged::Slow, Verdict::Over) => format!("SLOW >{:.0}", record.seconds),
        (Judged::Slow, _) => format!("SLOW {:.1}", record.seconds),
        (Judged::Cut, _) => format!("over >{:.0}", record.seconds),
        (Judged::Bad, verdict) => format!("**{}**", verdict.name()),
    }
}

fn remark(record: &Record, measure: Option<&Record>) -> String {
    let kind = match (judged(record, measure), record.verdict) {
        (Judged::Slow, _) => "SLOW",
        (_, verdict) => verdict.name(),
    };
    let measured = match measure {
        Some(measure) => format!(", {} {:.1} s ({:.1})", measure.part, measure.seconds, measure.cpu_seconds),
        None => String::new(),
    };
    let note = if record.note.is_empty() { String::new() } else { format!(": {}", record.note) };
    format!(
        "- {} at {}: {kind} after {:.1} s ({:.1}){measured}{note}\n",
        record.program, record.part, record.seconds, record.cpu_seconds
    )
}

#[cfg(test)]
mod tests {
    use super::{Judged, judged};
    use crate::battery::records::{Record, Verdict};

    fn record(verdict: Verdict, seconds: f64) -> Record {
        Record {
            program: "p".to_owned(),
            part: "50".to_owned(),
            verdict,
            seconds,
            cpu_seconds: seconds,
            peak_bytes: 0,
            budget_bytes: 0,
            note: String::new(),
            version: String::new(),
        }
    }

    #[test]
    fn a_run_is_slow_beyond_ten_times_the_kernel_and_bad_when_it_is_wrong() {
        let kernel = record(Verdict::Ok, 2.0);
        assert_eq!(judged(&record(Verdict::Ok, 19.0), Some(&kernel)), Judged::Good);
        assert_eq!(judged(&record(Verdict::Ok, 21.0), Some(&kernel)), Judged::Slow);
        assert_eq!(judged(&record(Verdict::Ok, 21.0), None), Judged::Good);
        assert_eq!(judged(&record(Verdict::Over, 21.0), Some(&kernel)), Judged::Slow);
        assert_eq!(judged(&record(Verdict::Hang, 1.0), Some(&kernel)), Judged::Bad);
    }

    #[test]
    fn a_run_that_was_cut_off_is_not_called_slow_before_ten_times_the_kernel() {
        let (quick, cut) = (record(Verdict::Ok, 2.0), record(Verdict::Over, 60.0));
        assert_eq!(judged(&record(Verdict::Over, 19.0), Some(&quick)), Judged::Cut);
        assert_eq!(judged(&record(Verdict::Over, 170.0), Some(&cut)), Judged::Cut);
        assert_eq!(judged(&record(Verdict::Over, 170.0), None), Judged::Cut);
        assert_eq!(judged(&record(Verdict::Ok, 170.0), Some(&cut)), Judged::Good);
    }
}
