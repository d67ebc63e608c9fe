//! Where accesses come from: a trace or a workload; and on which device they run.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use clap::Args;
use uswap_sim::device::Profile;
use uswap_sim::trace::{self, Access};
use uswap_sim::workload::Spec;

use crate::failure::Failure;

/// Where accesses come from.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct Source {
    /// File with accesses: lines `r PAGE [PROCESS]` or `w PAGE [PROCESS]`, or the binary form
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Built-in program: NAME or NAME:key=value,... (see uswap sim list)
    #[arg(long, value_name = "SPEC")]
    workload: Option<String>,
}

/// A source, or none.
#[derive(Args)]
#[group(multiple = false)]
pub struct MaybeSource {
    /// File with accesses: lines `r PAGE [PROCESS]` or `w PAGE [PROCESS]`, or the binary form
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Built-in program: NAME or NAME:key=value,... (see uswap sim list)
    #[arg(long, value_name = "SPEC")]
    workload: Option<String>,
}

impl MaybeSource {
    pub fn given(&self) -> Option<Source> {
        let Self { trace, workload } = self;
        (trace.is_some() || workload.is_some()).then(|| Source { trace: trace.clone(), workload: workload.clone() })
    }
}

impl Source {
    /// The accesses.
    pub fn accesses(&self, seed: u64) -> Result<Accesses, Failure> {
        if let Some(path) = &self.trace {
            let reader = trace::open(path).map_err(|error| Failure::bad_input(error.to_string()))?;
            return Ok(Accesses::Trace(Box::new(reader)));
        }
        let text = self.workload.as_deref().unwrap_or_default();
        Ok(Accesses::Workload(spec(text)?.accesses(seed)))
    }

    /// What it is called.
    pub fn name(&self) -> String {
        match (&self.trace, &self.workload) {
            (Some(path), _) => path.display().to_string(),
            (None, workload) => workload.clone().unwrap_or_default(),
        }
    }
}

/// Accesses, made or read while they are used.
pub enum Accesses {
    Workload(Box<dyn Iterator<Item = Access>>),
    Trace(Box<trace::Reader<BufReader<File>>>),
}

impl Accesses {
    /// Whether they were all there. What was made of them counts only then.
    pub fn end(self) -> Result<(), Failure> {
        match self {
            Self::Workload(_) => Ok(()),
            Self::Trace(reader) => reader.end().map_err(|error| Failure::bad_input(error.to_string())),
        }
    }
}

impl Iterator for Accesses {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        match self {
            Self::Workload(accesses) => accesses.next(),
            Self::Trace(reader) => reader.next(),
        }
    }
}

/// Reads the specification of a workload.
pub fn spec(text: &str) -> Result<Spec, Failure> {
    Spec::parse(text).map_err(|problem| Failure::bad_input(format!("--workload: {problem}")))
}

/// The device `name`, of `file` or built in.
pub fn device(name: &str, file: Option<&PathBuf>) -> Result<Profile, Failure> {
    let profiles = match file {
        None => Profile::built_in(),
        Some(path) => {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::bad_input(format!("{shown}: {}", crate::failure::reason(&error))))?;
            Profile::parse(&shown, &text).map_err(|error| Failure::bad_input(error.to_string()))?
        }
    };
    let names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
    let unknown = format!("unknown device '{name}'; choose one of {}", names.join(" "));
    profiles.into_iter().find(|profile| profile.name == name).ok_or_else(|| Failure::bad_input(unknown))
}

/// Bytes of memory as pages.
pub fn pages(text: &str) -> Result<u64, String> {
    let bytes = crate::size::parse(text)?;
    match bytes / uswap_core::PAGE_SIZE as u64 {
        0 => Err("less than a page of 4096 bytes".to_owned()),
        pages if pages >= u64::from(u32::MAX) => Err("more than 2^32 pages".to_owned()),
        pages => Ok(pages),
    }
}
