//! All schedules of a size, for the order of events: `exhaustive PLACES PAGES THREADS CALLS [leaves] [refuses]
//! [--limit STATES] [--without RULE] [--sample SEED COUNT]`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use uswap_core::event_order::Rule;
use uswap_sim::exhaustive::{Report, Size, run, sample};

const USAGE: &str = "usage: exhaustive PLACES PAGES THREADS CALLS [leaves] [refuses] [--limit STATES] [--without RULE] [--sample SEED COUNT]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(report) = report(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let Report { states, decisions, endings, finding, is_cut } = report;
    println!(
        "{states} states, {decisions} decisions, {endings} end with a line{}",
        if is_cut { ", cut short" } else { "" }
    );
    match finding {
        None => ExitCode::SUCCESS,
        Some(finding) => {
            println!("{}\nat first: {:?}", finding.what, finding.begin);
            finding.steps.iter().for_each(|step| println!("    {step:?}"));
            ExitCode::FAILURE
        }
    }
}

fn report(words: &[String]) -> Option<Report> {
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    let option = |name: &str| words.iter().position(|word| word == name);
    let size = Size {
        places: number(0)? as usize,
        pages: number(1)?,
        threads: number(2)? as usize,
        calls_each: 3,
        calls: number(3)? as u8,
        leaves_mapped: option("leaves").is_some(),
        refuses: option("refuses").is_some(),
    };
    let dropped = match option("--without") {
        Some(index) => {
            let name = words.get(index + 1)?;
            Some(Rule::ALL.into_iter().find(|rule| format!("{rule:?}") == *name)?)
        }
        None => None,
    };
    let limit = match option("--limit") {
        Some(index) => number(index + 1)?,
        None => u64::MAX,
    };
    println!("{size:?}");
    let begun = Instant::now();
    let report = match option("--sample") {
        Some(index) => sample(size, number(index + 1)?, number(index + 2)?),
        None => run(size, dropped, limit),
    };
    println!("{:.1} s", begun.elapsed().as_secs_f64());
    Some(report)
}
