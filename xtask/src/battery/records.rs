//! What was found, one JSON object a line, so that a part that ends adds its rows and a later run replaces them.

use std::path::Path;

use serde_json::{Value, json};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The right result.
    Ok,
    /// Still working when the time was up.
    Over,
    /// Another result, another status, a signal.
    Fail,
    /// Its threads did nothing any more.
    Hang,
    /// `uswap run` does not take such programs, and said so.
    Refused,
}

impl Verdict {
    const NAMES: [(Verdict, &str); 5] = [
        (Verdict::Ok, "ok"),
        (Verdict::Over, "over"),
        (Verdict::Fail, "FAIL"),
        (Verdict::Hang, "HANG"),
        (Verdict::Refused, "refused"),
    ];

    /// Its word in the file and in the table.
    pub fn name(self) -> &'static str {
        let named = Verdict::NAMES.iter().find(|(verdict, _)| *verdict == self);
        named.expect("each verdict has a name").1
    }

    fn parse(name: &str) -> Option<Verdict> {
        Verdict::NAMES.iter().find(|(_, its)| *its == name).map(|(verdict, _)| *verdict)
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Which program.
    pub program: String,
    /// In which part.
    pub part: String,
    /// How it ended.
    pub verdict: Verdict,
    /// After how long.
    pub seconds: f64,
    /// Processor time of the tree, uswap's own too.
    pub cpu_seconds: f64,
    /// The most anonymous and shared memory that was resident, as the kernel counts.
    pub peak_bytes: u64,
    /// What it was allowed; 0 without a limit.
    pub budget_bytes: u64,
    /// More about it.
    pub note: String,
    /// Which uswap.
    pub version: String,
}

impl Record {
    fn to_line(&self) -> String {
        json!({
            "program": self.program, "part": self.part, "verdict": self.verdict.name(),
            "seconds": hundredths(self.seconds), "cpu_seconds": hundredths(self.cpu_seconds), "peak_bytes": self.peak_bytes,
            "budget_bytes": self.budget_bytes, "note": self.note, "version": self.version,
        })
        .to_string()
    }

    fn parse(line: &str) -> Option<Record> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Some(Record {
            program: text("program")?,
            part: text("part")?,
            verdict: Verdict::parse(value["verdict"].as_str()?)?,
            seconds: value["seconds"].as_f64()?,
            cpu_seconds: value["cpu_seconds"].as_f64()?,
            peak_bytes: value["peak_bytes"].as_u64()?,
            budget_bytes: value["budget_bytes"].as_u64()?,
            note: text("note")?,
            version: text("version")?,
        })
    }
}

fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

/// All that was found, at most one record for each program and part.
#[derive(Debug, Default)]
pub struct Records(Vec<Record>);

impl Records {
    /// Reads a file; none is as good as an empty one.
    pub fn read(path: &Path) -> Result<Records, String> {
        if !path.exists() {
            return Ok(Records::default());
        }
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let parse = |(number, line)| {
            Record::parse(line).ok_or_else(|| format!("{}:{}: no record of the battery", path.display(), number + 1))
        };
        Ok(Records(text.lines().enumerate().map(parse).collect::<Result<_, _>>()?))
    }

    /// Writes them, sorted, so that two runs change few lines.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let text: String = self.0.iter().map(|record| record.to_line() + "\n").collect();
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Takes one in, in place of an older one.
    pub fn put(&mut self, record: Record) {
        self.0.retain(|old| (&old.program, &old.part) != (&record.program, &record.part));
        self.0.push(record);
        self.0.sort_by(|one, other| (&one.program, &one.part).cmp(&(&other.program, &other.part)));
    }

    /// What is known of a program in a part.
    pub fn get(&self, program: &str, part: impl std::fmt::Display) -> Option<&Record> {
        let part = part.to_string();
        self.0.iter().find(|record| record.program == program && record.part == part)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::{Record, Records, Verdict};

    fn record(part: &str, seconds: f64) -> Record {
        Record {
            program: "p".to_owned(),
            part: part.to_owned(),
            verdict: Verdict::Hang,
            seconds,
            cpu_seconds: 0.5,
            peak_bytes: 5,
            budget_bytes: 0,
            note: "a \"note\"".to_owned(),
            version: "v".to_owned(),
        }
    }

    #[test]
    fn a_later_run_replaces_the_earlier_one_of_its_part_only() {
        let mut records = Records::default();
        for (part, seconds) in [("far", 1.0), ("50", 2.0), ("far", 3.0)] {
            records.put(record(part, seconds));
        }
        assert_eq!(records.iter().count(), 2);
        assert_eq!(records.get("p", "far").unwrap().seconds, 3.0);
    }

    #[test]
    fn a_record_survives_its_line() {
        let record = record("far", 1.25);
        assert_eq!(Record::parse(&record.to_line()), Some(record));
        assert_eq!(Record::parse("{}"), None);
    }
}
