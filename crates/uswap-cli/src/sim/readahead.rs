//! `uswap sim readahead`: all kinds of readahead on the same accesses.

use clap::Args;
use serde_json::json;
use uswap_sim::readahead_kinds::suite::{self, Pattern};
use uswap_sim::readahead_kinds::{Kind, Score, run};

use super::input::{self, MaybeSource};
use crate::failure::Failure;

/// Compare all kinds of readahead: on a program, or on the suite of patterns that ours must beat the kernel's on.
#[derive(Args)]
pub struct ReadaheadArgs {
    #[command(flatten)]
    source: MaybeSource,
    /// Memory; without it a fourth of the pages that are touched
    #[arg(long, value_name = "SIZE", value_parser = input::pages)]
    memory: Option<u64>,
    /// What chance starts from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn main(arguments: &ReadaheadArgs) -> Result<(), Failure> {
    let patterns = match arguments.source.given() {
        None => suite::all(),
        Some(source) => {
            let mut accesses = source.accesses(arguments.seed)?;
            let pattern = Pattern::of(&source.name(), &mut accesses);
            accesses.end()?;
            vec![pattern]
        }
    };
    let results: Vec<(Pattern, Vec<(Kind, Score)>)> = patterns
        .into_iter()
        .map(|pattern| {
            let fourth = pattern.on_swap().count().div_ceil(4);
            let memory = arguments.memory.map_or(fourth, |pages| pages as usize);
            let scores = Kind::all().map(|kind| (kind, run(kind, memory, &pattern))).collect();
            (pattern, scores)
        })
        .collect();
    if arguments.json {
        let score = |(kind, score): &(Kind, Score)| json!({ "kind": kind.name(), "misses": score.misses, "hits": score.hits, "wasted": score.wasted });
        let report: Vec<_> = results
            .iter()
            .map(|(pattern, scores)| {
                json!({
                    "pattern": pattern.name,
                    "accesses": pattern.accesses.len(),
                    "kinds": scores.iter().map(score).collect::<Vec<_>>(),
                })
            })
            .collect();
        return crate::output::print(&(serde_json::to_string_pretty(&report).expect("plain numbers") + "\n"));
    }
    crate::output::print(&table(&results))
}

fn table(results: &[(Pattern, Vec<(Kind, Score)>)]) -> String {
    let width = results.iter().map(|(pattern, _)| pattern.name.len()).max().unwrap_or(0).max("pattern".len());
    let mut text = format!("{:<width$}{:>10}", "pattern", "accesses");
    for kind in Kind::all() {
        text += &format!("{:>16}", kind.name());
    }
    text += "   (misses, and pages read for nothing)\n";
    for (pattern, scores) in results {
        text += &format!("{:<width$}{:>10}", pattern.name, pattern.accesses.len());
        for (_, score) in scores {
            text += &format!("{:>16}", format!("{}, {}", score.misses, score.wasted));
        }
        text.push('\n');
    }
    text
}
