//! `uswap sim paper`: the published numbers of Linux swap beside simulated ones.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use uswap_sim::paper::{self, Pair, Row};

use crate::failure::Failure;

/// Put the published numbers of Linux swap beside simulated ones.
#[derive(Args)]
pub struct PaperArgs {
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// What chance starts from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn main(arguments: &PaperArgs) -> Result<(), Failure> {
    let rows = paper::rows(arguments.seed);
    if let Some(path) = &arguments.html {
        super::write_file(path, paper::html(&rows).as_bytes())?;
    }
    if arguments.json {
        let rows: Vec<_> = rows.iter().map(as_json).collect();
        return crate::output::print(&(serde_json::to_string_pretty(&rows).expect("plain numbers") + "\n"));
    }
    crate::output::print(&paper::table(&rows))
}

fn as_json(row: &Row) -> serde_json::Value {
    let pair = |pair: Option<Pair>| {
        pair.map(|pair| json!({ "before": pair.before, "after": pair.after, "ratio": pair.ratio() }))
    };
    json!({
        "row": row.number,
        "test": row.test,
        "unit": row.unit,
        "published": pair(row.published),
        "simulated": pair(row.simulated),
        "simulated_ratio_of_published_ratio": row.agreement(),
        "direction_is_right": row.direction_is_right(),
        "ours": row.ours,
        "how": row.kind.name(),
        "note": row.note,
    })
}
