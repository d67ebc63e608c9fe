//! `uswap sim compare`: all policies on all sizes of memory, against Belady's bound.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use uswap_core::PAGE_SIZE;
use uswap_sim::counting::{self, Curve};
use uswap_sim::plot::{self, Line};

use super::input::{self, Source};
use crate::failure::Failure;

/// Compare all policies on many sizes of memory with the best that is possible.
#[derive(Args)]
pub struct CompareArgs {
    #[command(flatten)]
    source: Source,
    /// Sizes of memory, with commas between; without it from 5 to 100 % of the pages that are touched
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = input::pages)]
    memory: Vec<u64>,
    /// Write the miss-ratio curves to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// What chance starts from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn main(arguments: &CompareArgs) -> Result<(), Failure> {
    let mut accesses = arguments.source.accesses(arguments.seed)?;
    let (trace, places) = counting::placed(&mut accesses);
    accesses.end()?;
    let pages = places.len() as u32;
    let mut sizes = arguments.memory.clone();
    if sizes.is_empty() {
        sizes = counting::sizes_for(pages);
    }
    sizes.sort_unstable();
    sizes.dedup();
    let curves = counting::compare(&trace, &places, &sizes);
    if let Some(path) = &arguments.svg {
        super::write_file(path, draw(&arguments.source.name(), &curves).as_bytes())?;
    }
    if arguments.json {
        let curve = |curve: &Curve| json!({ "policy": curve.policy, "points": curve.points });
        let report = json!({
            "source": arguments.source.name(),
            "seed": arguments.seed,
            "accesses": trace.len(),
            "pages": pages,
            "curves": curves.iter().map(curve).collect::<Vec<_>>(),
        });
        return crate::output::print(&(serde_json::to_string_pretty(&report).expect("plain numbers") + "\n"));
    }
    crate::output::print(&table(&sizes, &curves))
}

/// Columns of a policy, its name in them.
fn width(curve: &Curve) -> usize {
    (curve.policy.len() + 2).max(10)
}

fn table(sizes: &[u64], curves: &[Curve]) -> String {
    let mut text = format!("{:<12}", "memory");
    for curve in curves {
        text += &format!("{:>width$}", curve.policy, width = width(curve));
    }
    text += "   (misses of 100 accesses)\n";
    for &size in sizes {
        text += &format!("{:<12}", crate::size::measured(size * PAGE_SIZE as u64));
        for curve in curves {
            let misses = curve.points.iter().find(|point| point.0 == size);
            let misses = misses.map_or("-".to_owned(), |misses| format!("{:.2}", misses.1 * 100.0));
            text += &format!("{misses:>width$}", width = width(curve));
        }
        text.push('\n');
    }
    text
}

fn draw(title: &str, curves: &[Curve]) -> String {
    let mib = |pages: u64| pages as f64 * PAGE_SIZE as f64 / 1_048_576.0;
    let lines: Vec<Line> = curves
        .iter()
        .map(|curve| Line {
            name: curve.policy,
            points: curve.points.iter().map(|&(pages, ratio)| (mib(pages), ratio * 100.0)).collect(),
        })
        .collect();
    plot::lines(title, "memory, MiB", "misses of 100 accesses", &lines)
}
