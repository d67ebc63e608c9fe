//! What was measured, one JSON object a line.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Choice;

/// The counters that are kept, by their names in `--stats`.
pub const COUNTS: [&str; 6] =
    ["pgmajfault", "pswpin", "swap_cache_hit", "area_pages_read", "area_pages_written", "swap_ra"];
/// Which of them are the misses: faults whose page had to be read, decompressed or waited for.
pub const MISSES: usize = 0;

/// One run of one program.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub program: String,
    /// Hundredths of its peak.
    pub share: u64,
    pub choice: Choice,
    pub budget_bytes: u64,
    pub peak_bytes: u64,
    /// It took too long.
    pub over: bool,
    pub seconds: f64,
    pub counts: [u64; COUNTS.len()],
    pub machine: String,
    pub date: String,
}

impl fmt::Display for Run {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Choice { reclaim, readahead } = &self.choice;
        let over = if self.over { "over " } else { "" };
        write!(out, "{} at {} %, {reclaim} and {readahead}: ", self.program, self.share)?;
        write!(out, "{over}{:.2} s, {} misses", self.seconds, self.counts[MISSES])
    }
}

impl Run {
    fn to_line(&self) -> String {
        let mut line = json!({
            "program": self.program, "share": self.share, "reclaim": self.choice.reclaim,
            "readahead": self.choice.readahead, "budget_bytes": self.budget_bytes, "peak_bytes": self.peak_bytes,
            "over": self.over, "seconds": (self.seconds * 1000.0).round() / 1000.0, "machine": self.machine,
            "date": self.date,
        });
        for (name, count) in COUNTS.into_iter().zip(self.counts) {
            line[name] = count.into();
        }
        line.to_string()
    }

    fn parse(line: &str) -> Option<Run> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let number = |key: &str| value[key].as_u64();
        let mut counts = [0; COUNTS.len()];
        for (count, name) in counts.iter_mut().zip(COUNTS) {
            *count = number(name)?;
        }
        Some(Run {
            program: text("program")?,
            share: number("share")?,
            choice: Choice { reclaim: text("reclaim")?, readahead: text("readahead")? },
            budget_bytes: number("budget_bytes")?,
            peak_bytes: number("peak_bytes")?,
            over: value["over"].as_bool()?,
            seconds: value["seconds"].as_f64()?,
            counts,
            machine: text("machine")?,
            date: text("date")?,
        })
    }
}

/// All of them, and the file.
pub struct Records {
    path: PathBuf,
    runs: Vec<Run>,
}

impl Records {
    /// What the file has; nothing, if there is none.
    pub fn read(path: &Path) -> Result<Records, String> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let parse = |(index, line): (usize, &str)| {
            Run::parse(line).ok_or_else(|| format!("{}:{}: not a record", path.display(), index + 1))
        };
        let runs = text.lines().enumerate().map(parse).collect::<Result<_, _>>()?;
        Ok(Records { path: path.to_owned(), runs })
    }

    /// Adds one, to the file too.
    pub fn add(&mut self, run: Run) -> Result<&Run, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.path.display());
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path).map_err(failed)?;
        writeln!(file, "{}", run.to_line()).map_err(failed)?;
        self.runs.push(run);
        Ok(self.runs.last().expect("just added"))
    }

    /// What the program has at its peak.
    pub fn peak(&self, program: &str) -> Option<u64> {
        self.runs.iter().find(|run| run.program == program && run.share == 100).map(|run| run.peak_bytes)
    }

    /// How often that was run.
    pub fn rounds(&self, program: &str, share: u64, choice: &Choice) -> usize {
        self.of(program, share, choice).len()
    }

    /// The runs of that.
    pub fn of(&self, program: &str, share: u64, choice: &Choice) -> Vec<&Run> {
        let is_meant = |run: &&Run| run.program == program && run.share == share && run.choice == *choice;
        self.runs.iter().filter(is_meant).collect()
    }

    /// All of them.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }
}

/// Processors, memory and kernel.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
    let memory = read("/proc/meminfo").split_ascii_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    let release = read("/proc/sys/kernel/osrelease");
    let version: Vec<&str> = release.trim().split(['.', '-']).take(2).collect();
    format!("{cpus} CPUs, {} GiB, Linux {}", memory.unwrap_or(0).div_ceil(1 << 20), version.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_line() {
        let run = Run {
            program: "sort".to_owned(),
            share: 50,
            choice: Choice { reclaim: "lirs".to_owned(), readahead: "off".to_owned() },
            budget_bytes: 1 << 26,
            peak_bytes: 99,
            over: true,
            seconds: 1.25,
            counts: [1, 2, 3, 4, 5, 6],
            machine: "a machine".to_owned(),
            date: "2026-01-02".to_owned(),
        };
        assert_eq!(Run::parse(&run.to_line()), Some(run));
    }
}
