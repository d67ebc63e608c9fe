//! What was measured, one JSON object a line: reports of `uswap bench`, and ratios that other commands gave.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// What must be the same of two reports for one to take the other's place.
const SETTINGS: [&str; 4] = ["size_bytes", "memory_bytes", "threads", "shared"];

/// How many times as fast as the kernel, in the middle, at least and at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio(pub f64, pub f64, pub f64);

impl Ratio {
    /// The ratio, or other spread, of a record.
    pub fn parse(value: &Value) -> Option<Ratio> {
        let number = |key: &str| value[key].as_f64();
        Some(Ratio(number("median")?, number("min")?, number("max")?))
    }
}

/// All records, and their file.
pub struct Records {
    path: PathBuf,
    lines: Vec<Value>,
}

impl Records {
    /// What the file has; nothing, if there is none.
    pub fn read(path: &Path) -> Result<Records, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error.to_string())),
        };
        let lines = text.lines().map(|line| serde_json::from_str(line).map_err(|error| failed(error.to_string())));
        Ok(Records { path: path.to_owned(), lines: lines.collect::<Result<_, _>>()? })
    }

    /// Takes a report of `uswap bench --json` in. What it measured again is not told any more by older ones.
    pub fn add(&mut self, report: &str, date: &str) -> Result<(), String> {
        let report: Value = serde_json::from_str(report).map_err(|error| error.to_string())?;
        let results = report["results"].as_array().ok_or("not a report of uswap bench --json")?;
        if results.is_empty() {
            return Err("nothing was measured".to_owned());
        }
        for line in self.lines.iter_mut().filter(|line| same_settings(&line["settings"], &report["settings"])) {
            let Some(older) = line["results"].as_array_mut() else { continue };
            let is_anew = |one: &Value| results.iter().any(|new| same_cell(one, new));
            older.retain(|one| !is_anew(one));
            if let Some(ratios) = line["ratios"].as_array_mut() {
                let new = report["ratios"].as_array().map_or(&[] as &[Value], Vec::as_slice);
                ratios.retain(|one| {
                    !new.iter().any(|new| one["workload"] == new["workload"] && one["kernel"] == new["kernel"])
                });
            }
        }
        self.lines.retain(|line| line["results"].as_array().is_none_or(|results| !results.is_empty()));
        let short = |one: &Value| {
            json!({"workload": one["workload"], "backend": one["backend"], "us_per_access": one["us_per_access"],
                   "p99_us": one["p99_us"], "cpu_us_per_access": one["cpu_us_per_access"]})
        };
        self.lines.push(json!({
            "date": date, "machine": report["machine"], "settings": report["settings"],
            "results": results.iter().map(short).collect::<Vec<_>>(), "ratios": report["ratios"],
            "oom_kills": report["oom_kills"],
        }));
        Ok(())
    }

    /// Puts all of them into the file; whole or not at all.
    pub fn write(&self) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.path.display());
        let text: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        let beside = self.path.with_extension("new");
        std::fs::write(&beside, text).map_err(failed)?;
        std::fs::rename(&beside, &self.path).map_err(failed)
    }

    /// The reports, oldest first.
    pub fn reports(&self) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter(|line| line["results"].is_array())
    }

    /// What was measured by other means than a report: ratios with what they are of.
    pub fn rows(&self) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter(|line| line["work"].is_string())
    }
}

/// The machine of a report, in a line.
pub fn machine(report: &Value) -> String {
    let machine = &report["machine"];
    let kernel: Vec<&str> = machine["kernel"].as_str().unwrap_or("?").split(['.', '-']).take(2).collect();
    let gib = machine["memory_bytes"].as_u64().unwrap_or(0).div_ceil(1 << 30);
    let cpu = machine["cpu"].as_str().unwrap_or("?");
    format!("{} CPUs ({cpu}), {gib} GiB, Linux {}", machine["cpus"], kernel.join("."))
}

fn same_settings(one: &Value, other: &Value) -> bool {
    SETTINGS.iter().all(|key| one[key] == other[key])
}

fn same_cell(one: &Value, other: &Value) -> bool {
    one["workload"] == other["workload"] && one["backend"] == other["backend"]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(backend: &str, median: f64) -> String {
        let spread = json!({"median": median, "min": median, "max": median});
        json!({"machine": {"cpus": 2}, "settings": {"size_bytes": 2, "memory_bytes": 1, "threads": 1},
               "results": [{"workload": "fill", "backend": backend, "us_per_access": spread}],
               "ratios": [], "oom_kills": []})
        .to_string()
    }

    #[test]
    fn what_is_measured_again_takes_the_place_of_what_was() {
        let mut records = Records { path: PathBuf::new(), lines: Vec::new() };
        records.add(&report("zram", 2.0), "2026-01-01").unwrap();
        records.add(&report("uswap-pool", 1.0), "2026-01-01").unwrap();
        records.add(&report("zram", 3.0), "2026-01-02").unwrap();
        let all: Vec<_> = records.reports().map(|one| one["results"][0]["us_per_access"]["median"].clone()).collect();
        assert_eq!(all, [json!(1.0), json!(3.0)]);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let mut records = Records { path: PathBuf::new(), lines: Vec::new() };
        assert!(records.add("{}", "2026-01-01").is_err());
        assert!(records.add("no", "2026-01-01").is_err());
    }
}
