//! docs/policies.md, from the records.

use std::fmt::Write;
use std::path::Path;

use super::records::{MISSES, Records, Run};
use super::{Choice, SHARES, choices};

/// Below this a median is of no difference: the spread of alternating runs of one binary.
const SAME: f64 = 0.05;

/// What the runs of one cell say.
struct Cell {
    seconds: f64,
    misses: f64,
    over: bool,
}

impl Cell {
    fn of(runs: &[&Run]) -> Option<Cell> {
        let seconds = median(runs.iter().map(|run| run.seconds).collect())?;
        let misses = median(runs.iter().map(|run| run.counts[MISSES] as f64).collect())?;
        Some(Cell { seconds, misses, over: runs.iter().any(|run| run.over) })
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some((values[last / 2] + values[last.div_ceil(2)]) / 2.0)
}

/// Makes the page anew.
pub fn write(records: &Records, path: &Path) -> Result<(), String> {
    std::fs::write(path, page(records)).map_err(|error| format!("{}: {error}", path.display()))
}

fn page(records: &Records) -> String {
    let mut columns: Vec<(String, u64)> = Vec::new();
    for run in records.runs().iter().filter(|run| run.share != 100) {
        let column = (run.program.clone(), run.share);
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    columns.sort_by_key(|(program, share)| (program.clone(), *share));
    let mut text = String::from(HEAD);
    let _ = writeln!(text, "{}\n", measured_on(records));
    let _ = writeln!(text, "## Time\n\n{}", table(records, &columns, "s", |cell| cell.seconds));
    let _ = writeln!(text, "## Misses\n\n{}", table(records, &columns, "", |cell| cell.misses));
    let _ = writeln!(text, "## In one line each\n\n{}", summary(records, &columns));
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

const HEAD: &str = "\
# Policies, on real programs

Made by `cargo xtask policies`, which runs what is missing of its rounds, from `policies.jsonl`. Programs of the battery
([battery.md](battery.md)) in 50 and 75 % of what each has at its peak, with the compressed pool and the swap file that
`uswap run` makes. The first row is the default; the others are in parts of it, each the median of alternating runs. A miss
is a fault whose page had to be read, decompressed or waited for (`pgmajfault`). *over*: some run was stopped at the limit.

";

fn measured_on(records: &Records) -> String {
    let mut machines: Vec<&str> = records.runs().iter().map(|run| run.machine.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    let dates = || records.runs().iter().map(|run| run.date.as_str());
    let rounds = records.runs().iter().filter(|run| run.share != 100).map(|run| {
        let runs = records.rounds(&run.program, run.share, &run.choice);
        (runs, runs)
    });
    let (least, most) = rounds.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))).unwrap_or_default();
    let rounds = if least == most { format!("{most}") } else { format!("{least} to {most}") };
    let (first, last) = (dates().min().unwrap_or_default(), dates().max().unwrap_or_default());
    let days = if first == last { first.to_owned() } else { format!("{first} to {last}") };
    format!("Machine: {}. Date: {days}. Rounds: {rounds}.", machines.join("; "))
}

/// The policy that differs from the default; the default by both.
fn name(choice: &Choice) -> String {
    let default = Choice::default();
    let gone = if choices().contains(choice) { "" } else { ", taken out" };
    match (choice.reclaim == default.reclaim, choice.readahead == default.readahead) {
        (true, true) => format!("{}, {}", choice.reclaim, choice.readahead),
        (true, false) => format!("readahead {}", choice.readahead),
        _ => format!("reclaim {}{gone}", choice.reclaim),
    }
}

/// What can be chosen, and what was measured before it was taken out.
fn measured(records: &Records) -> Vec<Choice> {
    let mut all = choices();
    for run in records.runs() {
        if !all.contains(&run.choice) {
            all.push(run.choice.clone());
        }
    }
    all
}

fn table(records: &Records, columns: &[(String, u64)], unit: &str, of: impl Fn(&Cell) -> f64) -> String {
    let mut text = String::from("| policy |");
    columns.iter().for_each(|(program, share)| {
        let _ = write!(text, " {program} {share} % |");
    });
    text += "\n| --- |";
    text += &" --- |".repeat(columns.len());
    for choice in measured(records) {
        let _ = write!(text, "\n| {} |", name(&choice));
        for (program, share) in columns {
            let default = Cell::of(&records.of(program, *share, &Choice::default()));
            let cell = Cell::of(&records.of(program, *share, &choice));
            let over = if cell.as_ref().is_some_and(|cell| cell.over) { "over " } else { "" };
            let _ = match (default, cell) {
                (Some(default), Some(_)) if choice == Choice::default() => {
                    write!(text, " {over}{} |", figure(of(&default), unit))
                }
                (Some(default), Some(cell)) => write!(text, " {over}{:.2} |", of(&cell) / of(&default).max(1e-3)),
                _ => write!(text, " |"),
            };
        }
    }
    text.push('\n');
    text
}

fn figure(value: f64, unit: &str) -> String {
    if unit.is_empty() { format!("{value:.0}") } else { format!("{value:.1} {unit}") }
}

/// How often each policy is better and worse than the default, and by how much in the mean.
fn summary(records: &Records, columns: &[(String, u64)]) -> String {
    let mut text = String::from(
        "| policy | time, geometric mean | faster in | slower in | misses, geometric mean |\n| --- | --- | --- | --- | --- |\n",
    );
    for choice in measured(records).into_iter().filter(|choice| *choice != Choice::default()) {
        let ratios: Vec<(f64, f64)> = columns
            .iter()
            .filter_map(|(program, share)| {
                let default = Cell::of(&records.of(program, *share, &Choice::default()))?;
                let cell = Cell::of(&records.of(program, *share, &choice))?;
                Some((cell.seconds / default.seconds.max(1e-3), cell.misses.max(1.0) / default.misses.max(1.0)))
            })
            .collect();
        let mean = |of: fn(&(f64, f64)) -> f64| {
            (ratios.iter().map(|ratio| of(ratio).ln()).sum::<f64>() / ratios.len().max(1) as f64).exp()
        };
        let faster = ratios.iter().filter(|ratio| ratio.0 < 1.0 - SAME).count();
        let slower = ratios.iter().filter(|ratio| ratio.0 > 1.0 + SAME).count();
        let (time, misses) = (mean(|ratio| ratio.0), mean(|ratio| ratio.1));
        let of = ratios.len();
        let _ = writeln!(text, "| {} | {time:.2} | {faster} of {of} | {slower} of {of} | {misses:.2} |", name(&choice));
    }
    let _ = writeln!(text, "\nFaster and slower: by more than {:.0} %.", SAME * 100.0);
    text
}

/// The budgets that the head names.
const _: () = assert!(SHARES[0] == 50 && SHARES[1] == 75);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }
}
