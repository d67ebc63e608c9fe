//! Live control of a tree that runs: `uswap set` and `uswap swapoff`.
//!
//! The group's memory file is found among the descriptors of its supervisor, so who may control a tree is who may look at
//! that process: its user, and root.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use uswap_engine::group::{AREAS_MAX, Group, PAGE_BYTES, SwapoffProgress};
use uswap_sys::interrupt;

use crate::failure::{Failure, reason, say};
use crate::run::options::checked_budget;
use crate::size;

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// An area of which nothing has come in for so long stays.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// How often a terminal is told.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// Changes the budget of a tree that runs.
#[derive(Args, Debug)]
pub struct SetOptions {
    /// Process id of its `uswap run`
    #[arg(short, long, allow_negative_numbers = true)]
    pid: u32,

    /// Resident memory of the whole tree from now on; at least 16M
    #[arg(short = 'm', long = "memory", value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    memory_bytes: u64,
}

/// Moves everything off a swap area of a tree that runs: to memory, to the compressed pool, to other areas.
///
/// The program goes on meanwhile. The area takes no more pages from the start; when there is nowhere to put what is on
/// it, or on Ctrl-C, it takes pages again, and nothing is lost.
#[derive(Args, Debug)]
pub struct SwapoffOptions {
    /// Process id of its `uswap run`
    #[arg(short, long, allow_negative_numbers = true)]
    pid: u32,

    /// All areas
    #[arg(short, long, conflicts_with = "area")]
    all: bool,

    /// The area's file, or its number, counted from 0 in the order of --swap [default: the only one]
    area: Option<PathBuf>,
}

/// `uswap set`.
pub fn set_main(options: &SetOptions) -> ExitCode {
    end(set(options))
}

/// `uswap swapoff`.
pub fn swapoff_main(options: &SwapoffOptions) -> ExitCode {
    end(swapoff(options))
}

fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn set(options: &SetOptions) -> Result<(), Failure> {
    let bytes = checked_budget(options.memory_bytes)?;
    open_group(options.pid)?.set_limit_bytes(bytes);
    Ok(())
}

/// The group whose supervisor is the process `pid`.
fn open_group(pid: u32) -> Result<Group, Failure> {
    let path = group_file(pid).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::ours(format!("there is no process {pid}")),
        _ => Failure::ours(format!("cannot look at process {pid}: {} (be its user, or root)", reason(&error))),
    })?;
    let Some(path) = path else {
        return Err(Failure::ours(format!("process {pid} is no 'uswap run'")));
    };
    let opened: io::Result<File> = OpenOptions::new().read(true).write(true).open(&path);
    opened
        .and_then(Group::open)
        .map_err(|error| Failure::ours(format!("cannot open the group of process {pid}: {}", reason(&error))))
}

/// The group's memory file among the descriptors of a process; `None` when it is no supervisor.
pub fn group_file(pid: u32) -> io::Result<Option<PathBuf>> {
    let is_group = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:uswap-group"))
    };
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().map(|entry| entry.path()).find(is_group))
}

fn swapoff(options: &SwapoffOptions) -> Result<(), Failure> {
    let group = open_group(options.pid)?;
    let areas = chosen_areas(&group, options)?;
    interrupt::catch_termination()
        .map_err(|error| Failure::ours(format!("cannot catch signals: {}", reason(&error))))?;
    for &area in &areas {
        group.set_leaving(area, true);
    }
    for &area in &areas {
        if let Err(why) = until_empty(&group, area, options.pid) {
            let left = group.swapoff_progress(area).used_slots;
            for &area in &areas {
                group.set_leaving(area, false);
            }
            let left = size::chosen(left * PAGE_BYTES);
            return Err(Failure::ours(format!("swap area {area} stays in use, with {left} on it: {why}")));
        }
    }
    Ok(())
}

/// Numbers of the areas that are to leave.
fn chosen_areas(group: &Group, options: &SwapoffOptions) -> Result<Vec<usize>, Failure> {
    let areas = &group.config().areas;
    let present: Vec<usize> = (0..AREAS_MAX).filter(|&area| areas[area].present).collect();
    let Some(wanted) = &options.area else {
        return match present.len() {
            0 => Err(Failure::ours(format!("process {} has no swap area", options.pid))),
            1 => Ok(present),
            _ if options.all => Ok(present),
            many => Err(Failure::ours(format!("process {} has {many} swap areas: say which, or --all", options.pid))),
        };
    };
    let by_number = wanted.to_str().and_then(|text| text.parse().ok()).filter(|area| present.contains(area));
    let by_file = || file_of(wanted).and_then(|file| present.iter().copied().find(|&area| areas[area].file == file));
    match by_number.or_else(by_file) {
        Some(area) => Ok(vec![area]),
        None => Err(Failure::ours(format!("'{}' is no swap area of process {}", wanted.display(), options.pid))),
    }
}

fn file_of(path: &Path) -> Option<[u64; 2]> {
    fs::metadata(path).ok().map(|metadata| [metadata.dev(), metadata.ino()])
}

/// Waits until nothing is on `area`; says why it stays, if it does.
fn until_empty(group: &Group, area: usize, pid: u32) -> Result<(), String> {
    let at_first = group.swapoff_progress(area).used_slots;
    let to_terminal = io::stderr().is_terminal();
    let (mut least, mut moved, mut told) = (u64::MAX, Instant::now(), Instant::now());
    loop {
        let progress = group.swapoff_progress(area);
        if progress.used_slots == 0 && progress.unfinished == 0 {
            return Ok(());
        }
        if progress.used_slots < least {
            (least, moved) = (progress.used_slots, Instant::now());
        }
        if interrupt::requested().is_some() {
            return Err("interrupted".to_owned());
        }
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return Ok(());
        }
        if moved.elapsed() > STUCK_AFTER {
            return Err(stuck(progress));
        }
        if to_terminal && told.elapsed() > TELL_EVERY {
            told = Instant::now();
            let (left, all) = (progress.used_slots * PAGE_BYTES, at_first.max(progress.used_slots) * PAGE_BYTES);
            say(format_args!("swapoff: {} of {} left", size::chosen(left), size::chosen(all)));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn stuck(progress: SwapoffProgress) -> String {
    if progress.waits_for_memory {
        return "there is nowhere to put it; give the tree more memory (uswap set -m) or another area".to_owned();
    }
    format!("nothing came in for {} s; it may be unreadable", STUCK_AFTER.as_secs())
}
