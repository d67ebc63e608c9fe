//! `uswap sim`: the decisions of uswap on virtual memory, devices and time. Nothing here touches the machine but files that
//! the user names; what is wrong with them is one line, and exit status 2.

mod compare;
mod header;
mod input;
mod paper;
mod readahead;
mod run;
mod soak;
mod time;
mod trace;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::output::print;

/// Rehearse: run policies on traces and workloads, or the engine on a model of Linux through random schedules.
#[derive(Args)]
#[command(subcommand_required = true, arg_required_else_help = false)]
pub struct SimArgs {
    #[command(subcommand)]
    command: Simulate,
}

#[derive(Subcommand)]
enum Simulate {
    Run(run::RunArgs),
    Compare(compare::CompareArgs),
    Readahead(readahead::ReadaheadArgs),
    Time(time::TimeArgs),
    Trace(trace::TraceArgs),
    Soak(soak::SoakArgs),
    Paper(paper::PaperArgs),
    Header(header::HeaderArgs),
    /// The built-in devices and workloads.
    List,
}

pub fn main(arguments: SimArgs) -> ExitCode {
    let outcome = match arguments.command {
        Simulate::Run(arguments) => run::main(&arguments),
        Simulate::Compare(arguments) => compare::main(&arguments),
        Simulate::Readahead(arguments) => readahead::main(&arguments),
        Simulate::Time(arguments) => time::main(&arguments),
        Simulate::Trace(arguments) => trace::main(&arguments),
        Simulate::Paper(arguments) => paper::main(&arguments),
        Simulate::Header(arguments) => header::main(&arguments),
        Simulate::Soak(arguments) => return soak::main(&arguments),
        Simulate::List => print(&list()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn list() -> String {
    let mut text = String::from("devices\n");
    for profile in uswap_sim::device::Profile::built_in() {
        text += &format!("  {:<14}{}\n", profile.name, profile.about);
    }
    text += "workloads (NAME or NAME:key=value,... with pages accesses theta stride writes)\n";
    for (name, about) in uswap_sim::workload::NAMES {
        text += &format!("  {name:<14}{about}\n");
    }
    text += "policies\n";
    for name in uswap_policy::NAMES {
        text += &format!("  {name}\n");
    }
    text
}

/// Writes a file that the user asked for.
fn write_file(path: &std::path::Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|error| {
        Failure::ours(format!("cannot write '{}': {}", path.display(), crate::failure::reason(&error)))
    })
}
