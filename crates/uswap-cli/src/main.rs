//! `uswap`: swap in user space, as a command.
//!
//! - `run` ([`run`]): a program inside a memory budget, with its supervisor;
//! - `doctor` ([`doctor`]): what the environment allows, and how to get what it lacks;
//! - `bench` ([`bench`]): the same load under uswap and under the kernel's swap;
//! - `set` and `swapoff` ([`control`]): live control of a tree that runs;
//! - `sim` ([`sim`]): the same decisions on virtual memory, devices and time.
//!
//! Whatever goes wrong is one line on standard error and an exit status ([`failure`]).

#![forbid(unsafe_code)]

mod bench;
mod control;
mod doctor;
mod failure;
mod memory_limit;
mod mkswap;
mod output;
mod random;
mod run;
mod sim;
mod size;
mod stderr;
mod swap_area;
mod swap_spec;
mod userfaultfd;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use failure::Failure;

/// Swap in user space: more memory than a program may use, without swapon, root or changes to the program.
#[derive(Parser)]
#[command(name = "uswap", version, disable_help_subcommand = true)]
struct Arguments<C: Subcommand> {
    #[command(subcommand)]
    command: C,
}

#[derive(Subcommand)]
enum Command {
    Run(run::options::RunOptions),
    Doctor(doctor::DoctorOptions),
    Set(control::SetOptions),
    Swapoff(control::SwapoffOptions),
    Bench(bench::BenchArgs),
    Sim(sim::SimArgs),
    #[command(hide = true)]
    BenchLoad(bench::LoadArgs),
    /// What `run` starts for each user that a program becomes.
    #[command(hide = true)]
    Anchor(run::user_anchors::AnchorOptions),
}

/// What each start of a program needs. To describe all the others to clap takes a tenth of a millisecond.
#[derive(Subcommand)]
enum RunAlone {
    Run(run::options::RunOptions),
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == "run") {
        let beginning = run::Beginning::new(std::env::args_os());
        return match Arguments::try_parse() {
            Ok(Arguments { command: RunAlone::Run(options) }) => run::main(options, beginning),
            Err(error) => {
                beginning.end();
                not_parsed(&error)
            }
        };
    }
    match Arguments::try_parse().map(|arguments| arguments.command) {
        Ok(Command::Run(options)) => run::main(options, run::Beginning::new(std::env::args_os())),
        Ok(Command::Doctor(options)) => doctor::main(&options),
        Ok(Command::Set(options)) => control::set_main(&options),
        Ok(Command::Swapoff(options)) => control::swapoff_main(&options),
        Ok(Command::Bench(arguments)) => bench::main(arguments),
        Ok(Command::BenchLoad(arguments)) => bench::load_main(arguments),
        Ok(Command::Sim(arguments)) => sim::main(arguments),
        Ok(Command::Anchor(options)) => run::user_anchors::main(&options),
        Err(error) => not_parsed(&error),
    }
}

/// Help, or what is wrong with the arguments.
fn not_parsed(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match output::print(&error.to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(),
        };
    }
    let failure = usage(error);
    // What the simulator is given is input, like its files.
    let is_input = std::env::args_os().nth(1).is_some_and(|word| word == "sim");
    if is_input { Failure::bad_input(failure.to_string()) } else { failure }.report()
}

/// One line of what clap would print as a paragraph.
fn usage(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ErrorKind::MissingSubcommand
    {
        return match std::env::args().nth(1) {
            Some(name) => Failure::ours(format!("what shall '{name}' do? (see uswap {name} --help)")),
            None => Failure::ours("no subcommand: uswap run, doctor, set, swapoff, bench or sim (see uswap --help)"),
        };
    }
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim);
    let mut line = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    if line.ends_with(':') {
        // What is missing stands on the next line.
        line.push(' ');
        line.push_str(lines.next().unwrap_or_default());
    }
    let line = line.replace("invalid digit found in string", "not a whole number");
    Failure::ours(line + &hint(error))
}

/// What would have been right, as far as clap knows.
fn hint(error: &clap::Error) -> String {
    let known = |kind| match error.get(kind) {
        Some(ContextValue::String(one)) => vec![one.clone()],
        Some(ContextValue::Strings(all)) => all.clone(),
        _ => Vec::new(),
    };
    let similar = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    if let [values @ .., last] = known(ContextKind::ValidValue).as_slice()
        && !values.is_empty()
    {
        return format!(" (it is {} or {last})", values.join(", "));
    }
    match similar.into_iter().flat_map(known).next() {
        Some(similar) => format!(" (did you mean '{similar}'?)"),
        None => String::new(),
    }
}
