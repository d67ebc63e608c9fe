//! Real programs under uswap: their results, and a table of how they fared.
//!
//!     cargo xtask battery [NAME|GROUP]... [--part PART]... [--limit SECONDS] [--data DIRECTORY]
//!     cargo xtask battery --page      only makes the page anew
//!
//! Each run goes into docs/battery.jsonl as soon as it has ended, and docs/battery.md is made anew.

mod attempt;
mod cgroup;
mod kernel_swap;
mod part;
pub mod program;
mod progress;
mod records;
mod table;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::run::{build_uswap, root};
use attempt::Bench;
use part::Part;
use program::Program;
use records::Records;
use table::{Judged, judged};

const RECORDS: &str = "docs/battery.jsonl";
const PAGE: &str = "docs/battery.md";

/// What the command line asks for.
struct Wanted<'a> {
    programs: Vec<&'a str>,
    parts: Vec<Part>,
    limit: Duration,
    data: PathBuf,
}

fn parse<'a>(words: &[&'a str]) -> Result<Wanted<'a>, String> {
    let mut wanted = Wanted {
        programs: Vec::new(),
        parts: Vec::new(),
        limit: Duration::from_secs(240),
        data: PathBuf::from("/var/tmp/uswap-battery"),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().copied().ok_or_else(|| format!("{word}: a value is missing"));
        match *word {
            "--part" => wanted.parts.extend(Part::named(value()?)?),
            "--data" => wanted.data = PathBuf::from(value()?),
            "--limit" => {
                let text = value()?;
                let seconds = text.parse().map_err(|_| format!("--limit {text}: say seconds, as a whole number"))?;
                wanted.limit = Duration::from_secs(seconds);
            }
            option if option.starts_with('-') => return Err(format!("battery: no option '{option}'")),
            program => wanted.programs.push(program),
        }
    }
    if wanted.parts.is_empty() {
        wanted.parts = Part::ALL.to_vec();
    }
    Ok(wanted)
}

/// Runs what the words ask for. An error when a result was wrong, or a run hung.
pub fn run(words: &[&str]) -> Result<(), String> {
    if words == ["--page"] {
        return write_page(&Records::read(&root().join(RECORDS))?);
    }
    let wanted = parse(words)?;
    let programs = program::chosen(&wanted.programs)?;
    let uswap = match std::env::var_os("USWAP_BIN") {
        Some(given) => PathBuf::from(given),
        None => build_uswap()?,
    };
    std::fs::create_dir_all(&wanted.data).map_err(|error| format!("{}: {error}", wanted.data.display()))?;
    let bench = Bench { uswap, data: wanted.data, limit: wanted.limit, version: version() };
    let mut failures = Vec::new();
    for program in &programs {
        for &part in &wanted.parts {
            match one(&bench, program, part) {
                Ok(true) => {}
                Ok(false) => failures.push(format!("{} at {part}", program.name)),
                Err(why) => {
                    println!("{} at {part}: {why}", program.name);
                    failures.push(why);
                    break;
                }
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

/// One program in one part; whether it is as it should be, slow or not.
fn one(bench: &Bench, program: &Program, part: Part) -> Result<bool, String> {
    let list = root().join(RECORDS);
    program.prepare(&bench.data)?;
    // What must come out is of this machine and this version of the script.
    let measured = program.directory(&bench.data).join("alone.stdout").exists();
    if !measured && part != Part::Alone && !one(bench, program, Part::Alone)? {
        return Err(format!("{} fails without uswap", program.name));
    }
    let alone = Records::read(&list)?.get(&program.name, Part::Alone).cloned();
    let record = bench.attempt(program, part, alone.as_ref())?;
    // Read again: another battery may have added its own meanwhile.
    let mut records = Records::read(&list)?;
    let measure = part.measured_by().and_then(|part| records.get(&program.name, part).cloned());
    let judgement = judged(&record, measure.as_ref());
    println!(
        "{} at {part}: {}{} in {:.1} s, {:.1} s of a processor, {} of {} MiB {}",
        program.name,
        record.verdict.name(),
        if judgement == Judged::Slow { " SLOW" } else { "" },
        record.seconds,
        record.cpu_seconds,
        record.peak_bytes >> 20,
        record.budget_bytes >> 20,
        record.note
    );
    records.put(record);
    records.write(&list)?;
    write_page(&records)?;
    Ok(judgement != Judged::Bad)
}

fn write_page(records: &Records) -> Result<(), String> {
    let path = root().join(PAGE);
    let page = table::page(&program::all()?, records);
    std::fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))
}

fn version() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root()).output();
    output.map_or_else(|_| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{PAGE, Part, RECORDS, parse, program, records::Records, root, table};

    #[test]
    fn words_are_programs_and_options_have_values() {
        let wanted = parse(&["node", "--part", "50", "--limit", "9", "java"]).unwrap();
        assert_eq!((wanted.programs, wanted.parts), (vec!["node", "java"], vec![Part::Share(50)]));
        assert_eq!(wanted.limit.as_secs(), 9);
        assert!(parse(&["--part"]).is_err());
        assert!(parse(&["--quick"]).is_err());
    }

    #[test]
    fn the_page_in_docs_is_made_from_the_records_in_docs() {
        let records = Records::read(&root().join(RECORDS)).unwrap();
        let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
        assert!(page == table::page(&program::all().unwrap(), &records), "make it anew: cargo xtask battery --page");
    }
}
