//! `uswap sim trace`: a workload, written down as a trace.

use std::path::PathBuf;

use clap::Args;
use uswap_sim::trace::{Access, binary, text};

use super::input;
use crate::failure::Failure;

/// Write the accesses of a workload to a file.
#[derive(Args)]
pub struct TraceArgs {
    /// Built-in program: NAME or NAME:key=value,... (see uswap sim list)
    #[arg(long, value_name = "SPEC")]
    workload: String,
    /// The file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The compact form: about two bytes an access
    #[arg(long)]
    binary: bool,
    /// What chance starts from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn main(arguments: &TraceArgs) -> Result<(), Failure> {
    let accesses: Vec<Access> = input::spec(&arguments.workload)?.accesses(arguments.seed).collect();
    let bytes = match arguments.binary {
        true => binary::bytes(&accesses),
        false => accesses.iter().map(text::line).collect::<String>().into_bytes(),
    };
    super::write_file(&arguments.out, &bytes)
}
