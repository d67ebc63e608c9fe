//! The tables, and their places in the page.

use std::fmt::Write;

use serde_json::Value;

use super::records::{Ratio, Records, machine};

/// Between these lines of the page is what is made.
const BEGIN: &str = "<!-- made by cargo xtask performance from performance.jsonl: ";
const END: &str = "<!-- end -->";

/// Aims of the access patterns: kernel time divided by ours.
const AIMS: [(&str, &str, &str); 10] = [
    ("seq-read", "zram", "5"),
    ("seq-write", "zram", "5"),
    ("stride", "zram", "3"),
    ("fill", "zram", "3"),
    ("random-read", "zram", "1.2"),
    ("random-write", "zram", "1.2"),
    ("zipf", "zram", "1.2"),
    ("seq-read", "swap-file", "4"),
    ("burst", "swap-file", "3"),
    ("random-read", "swap-file", "1.0"),
];

/// The same of shared memory.
const AIMS_SHARED: [(&str, &str, &str); 9] = [
    ("seq-read", "zram", "2"),
    ("seq-write", "zram", "2"),
    ("seq-read", "swap-file", "2"),
    ("seq-write", "swap-file", "2"),
    ("random-read", "zram", "0.8"),
    ("random-write", "zram", "0.8"),
    ("random-read", "swap-file", "0.8"),
    ("random-write", "swap-file", "0.8"),
    ("swapoff", "swap-file", "8"),
];

/// The page, with its tables made anew.
pub fn into_page(page: &str, records: &Records) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = page;
    while let Some(at) = rest.find(BEGIN) {
        let (before, from) = rest.split_at(at);
        let head = from.lines().next().unwrap_or_default();
        let name = head[BEGIN.len()..].trim_end_matches(" -->");
        let end = from.find(END).ok_or_else(|| format!("the table '{name}' has no line {END}"))?;
        let table = match name {
            "patterns" => patterns(records),
            "aims" => aims(records),
            "others" => others(records),
            _ => return Err(format!("no table is called '{name}'")),
        };
        let _ = write!(text, "{before}{head}\n\n{table}\n{END}");
        rest = &from[end + END.len()..];
    }
    text.push_str(rest);
    Ok(text)
}

/// Microseconds for each page touched, by what was done and with what.
fn patterns(records: &Records) -> String {
    let mut text = String::new();
    for report in records.reports() {
        let results = report["results"].as_array().map_or(&[] as &[Value], Vec::as_slice);
        let names = |key: &str| {
            let mut names: Vec<&str> = Vec::new();
            for name in results.iter().filter_map(|one| one[key].as_str()) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            names
        };
        let (works, backends) = (names("workload"), names("backend"));
        let _ = writeln!(text, "{}:\n", how(report));
        let _ = writeln!(text, "| work | {} |\n| --- |{}", backends.join(" | "), " --- |".repeat(backends.len()));
        for work in works {
            let _ = write!(text, "| {work} |");
            for backend in &backends {
                let cell = results.iter().find(|one| one["workload"] == work && one["backend"] == *backend);
                match cell.and_then(|cell| Ratio::parse(&cell["us_per_access"])) {
                    Some(Ratio(median, min, max)) if min < max => {
                        let _ = write!(text, " {} ({} to {}) |", figure(median), figure(min), figure(max));
                    }
                    Some(Ratio(median, ..)) => {
                        let _ = write!(text, " {} |", figure(median));
                    }
                    None => text.push_str(" - |"),
                }
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// Kernel time divided by ours: of the reports.
fn aims(records: &Records) -> String {
    let mut text = String::from(
        "| work | against | aim | time | p99 | CPU time | measured |\n| --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for report in records.reports() {
        for one in report["ratios"].as_array().map_or(&[] as &[Value], Vec::as_slice) {
            let (work, kernel) = (one["workload"].as_str().unwrap_or("?"), one["kernel"].as_str().unwrap_or("?"));
            let aims: &[(&str, &str, &str)] = if is_shared(report) { &AIMS_SHARED } else { &AIMS };
            let aim = aims.iter().find(|aim| aim.0 == work && aim.1 == kernel).map_or("-", |aim| aim.2);
            let [time, p99, cpu] = ["time", "p99", "cpu"].map(|key| spread(&one[key]));
            let _ = writeln!(
                text,
                "| {work}{} | {kernel} | {aim} | {time} | {p99} | {cpu} | {} |",
                size(report),
                date(report)
            );
        }
    }
    text
}

/// The same of whatever else was measured.
fn others(records: &Records) -> String {
    let mut text = String::from(
        "| work | against | aim | kernel's time divided by ours | measured |\n| --- | --- | --- | --- | --- |\n",
    );
    for row in records.rows() {
        let word = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        let ratios = row["ratios"].as_array().map_or(&[] as &[Value], Vec::as_slice);
        let ratios: Vec<String> = ratios.iter().map(spread).collect();
        let remark = row["remark"].as_str().map_or(String::new(), |remark| format!(": {remark}"));
        let machine = row["machine"].as_str().map_or(String::new(), |machine| format!(", {machine}"));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {}{remark} | {}{machine} |",
            word("work"),
            word("against"),
            word("aim"),
            ratios.join(", "),
            date(row)
        );
    }
    text
}

fn how(report: &Value) -> String {
    let settings = &report["settings"];
    let mib = |key: &str| settings[key].as_u64().unwrap_or(0) >> 20;
    let threads = threads(report);
    let rounds = &settings["rounds"];
    let kills: Vec<String> = report["oom_kills"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|one| one["count"] != 0)
        .map(|one| format!("{} {} times", one["backend"].as_str().unwrap_or("?"), one["count"]))
        .collect();
    let kills = if kills.is_empty() {
        String::new()
    } else {
        format!(
            " The kernel killed the program for lack of memory with {}; those runs were repeated.",
            kills.join(", ")
        )
    };
    format!(
        "{} MiB in {}{threads}, {rounds} rounds, {}; {}.{kills} us",
        mib("size_bytes"),
        mib("memory_bytes"),
        date(report),
        machine(report)
    )
}

/// What of the settings a row must tell.
fn size(report: &Value) -> String {
    let settings = &report["settings"];
    let threads = threads(report);
    match settings["size_bytes"].as_u64().map(|bytes| bytes >> 20) {
        Some(512) | None => threads,
        Some(mib) => format!(", {mib} MiB{threads}"),
    }
}

/// Who works in the memory, if that is more than one thread.
fn threads(report: &Value) -> String {
    match (is_shared(report), report["settings"]["threads"].as_u64()) {
        (true, many) => format!(", shared by {} processes", many.unwrap_or(1)),
        (false, Some(1) | None) => String::new(),
        (false, Some(many)) => format!(", {many} threads"),
    }
}

fn is_shared(report: &Value) -> bool {
    report["settings"]["shared"] == true
}

fn date(record: &Value) -> &str {
    record["date"].as_str().unwrap_or("?")
}

fn spread(value: &Value) -> String {
    match Ratio::parse(value) {
        Some(Ratio(median, min, max)) if min < max => {
            format!("{} ({} to {})", figure(median), figure(min), figure(max))
        }
        Some(Ratio(median, ..)) => figure(median),
        None => "-".to_owned(),
    }
}

/// Three significant digits at most, no exponent.
fn figure(number: f64) -> String {
    match number {
        n if n >= 99.95 => format!("{n:.0}"),
        n if n >= 9.995 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_the_place_of_the_old_one_and_nothing_else_changes() {
        let path = std::env::temp_dir().join(format!("uswap-performance-{}", std::process::id()));
        std::fs::write(&path, "{\"work\":\"a\",\"against\":\"zram\",\"ratios\":[{\"median\":2.0,\"min\":1.0,\"max\":3.0}],\"date\":\"2026-01-01\"}\n").unwrap();
        let records = Records::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let page = format!("before\n{BEGIN}others -->\nold\n{END}\nafter\n");
        let made = into_page(&page, &records).unwrap();
        assert!(made.starts_with("before\n") && made.ends_with("\nafter\n") && !made.contains("old"), "{made}");
        assert!(made.contains("| a | zram | - | 2.00 (1.00 to 3.00) | 2026-01-01 |"), "{made}");
        assert_eq!(into_page(&made, &records).unwrap(), made);
        assert!(into_page(&format!("{BEGIN}nothing -->\n{END}"), &records).is_err());
    }
}
