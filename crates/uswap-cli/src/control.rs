//! Live control of a tree that runs: `uswap set` and `uswap swapoff`.
//!
//! The group's memory file is found among the descriptors of its supervisor, so who may control a tree is who may look at
//! that process: its user, and root.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use uswap_engine::group::{AREAS_MAX, CLUSTER_SLOTS, Counter, Group, PAGE_BYTES, SwapoffProgress};
use uswap_sys::interrupt;

use crate::failure::{Failure, reason, say};
use crate::run::options::checked_budget;
use crate::run::processes::{is_stopped, parent_of};
use crate::size;

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Areas of which nothing has come in for so long stay.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// How long the end of a supervisor takes at most that has no process any more.
const END_WITHIN: Duration = Duration::from_secs(1);
/// How long processes may take to say that they have nothing on an area where nothing is.
const SAID_WITHIN: Duration = Duration::from_secs(1);
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
/// it, or on Ctrl-C, it takes pages again, and nothing is lost. Of several areas those that are empty by then stay unused.
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
        io::ErrorKind::NotFound if !exists(pid) => Failure::ours(format!("there is no process {pid}")),
        io::ErrorKind::NotFound => {
            Failure::ours(format!("cannot look at process {pid}: /proc hides it (be its user, or root)"))
        }
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

/// Whether there is such a process, also where a `/proc` mounted with `hidepid` shows none of other users'.
fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
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
    areas.iter().for_each(|&area| group.set_leaving(area, true));
    match until_off(&group, &areas, options.pid) {
        Ok(()) => Ok(()),
        Err(NotEmpty::Ended) => {
            let before = named(&areas, "was", "were");
            Err(Failure::ours(format!("process {} has ended before {before} emptied", options.pid)))
        }
        Err(NotEmpty::Stays(why)) => match Outcome::settle(&group, &areas) {
            outcome if outcome.staying.is_empty() => Ok(()),
            outcome => Err(Failure::ours(outcome.text(&why))),
        },
    }
}

/// Why areas are not known to be empty.
enum NotEmpty {
    /// They take pages again.
    Stays(String),
    /// The run has ended.
    Ended,
}

/// What has become of areas that cannot all be emptied.
struct Outcome {
    staying: Vec<usize>,
    off: Vec<usize>,
    /// Of the processes that live.
    left_bytes: u64,
}

impl Outcome {
    /// Takes those into use again that have something on them, or of which that cannot be told, and the others off: whoever is
    /// told so may put his own data there.
    fn settle(group: &Group, areas: &[usize]) -> Outcome {
        let used = |area: usize| group.swapoff_progress(area).used_slots;
        let left_bytes = areas.iter().map(|&area| used(area)).sum::<u64>() * PAGE_BYTES;
        // If nothing is on any, then some process is not done yet, and it is not known with which.
        let is_any_used = left_bytes > 0;
        let (empty, mut staying): (Vec<usize>, Vec<usize>) =
            areas.iter().partition(|&&area| group.is_off(area) || is_any_used && used(area) == 0);
        staying.iter().for_each(|&area| group.set_leaving(area, false));
        // Processes that were busy with the others have nothing more to do than to say that they are done.
        let until = Instant::now() + SAID_WITHIN;
        while !empty.iter().all(|&area| is_off_now(group, area)) && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
        let (off, unsaid): (Vec<usize>, Vec<usize>) = empty.iter().partition(|&&area| group.is_off(area));
        unsaid.iter().for_each(|&area| group.set_leaving(area, false));
        staying.extend(unsaid);
        staying.sort_unstable();
        Outcome { staying, off, left_bytes }
    }

    fn text(&self, why: &str) -> String {
        let (left, it) = (size::chosen(self.left_bytes), if self.staying.len() == 1 { "it" } else { "them" });
        let stays = format!("{} in use, with {left} on {it}: {why}", named(&self.staying, "stays", "stay"));
        match self.off.is_empty() {
            true => stays,
            false => format!("{stays}; {} out of use, being empty", named(&self.off, "stays", "stay")),
        }
    }
}

/// Whether an area is off, which it is made if every process has said that it has nothing there.
fn is_off_now(group: &Group, area: usize) -> bool {
    let is_empty = || {
        let progress = group.swapoff_progress(area);
        progress.used_slots == 0 && progress.unfinished == 0
    };
    group.is_off(area) || is_empty() && group.set_off(area)
}

/// Areas, and what they do.
fn named(areas: &[usize], does: &str, they_do: &str) -> String {
    match areas {
        [area] => format!("swap area {area} {does}"),
        _ => {
            let numbers: Vec<String> = areas.iter().map(usize::to_string).collect();
            format!("swap areas {} {they_do}", numbers.join(", "))
        }
    }
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

/// How far all these areas are together: a process says that it is done when it has nothing on any of them.
fn progress_of(group: &Group, areas: &[usize]) -> SwapoffProgress {
    let mut all = SwapoffProgress { used_slots: 0, unfinished: 0, waits_for_memory: false };
    for one in areas.iter().map(|&area| group.swapoff_progress(area)) {
        all.used_slots += one.used_slots;
        all.unfinished = all.unfinished.max(one.unfinished);
        all.waits_for_memory |= one.waits_for_memory;
    }
    all
}

/// Waits until nothing is on these areas, and they are off.
fn until_off(group: &Group, areas: &[usize], pid: u32) -> Result<(), NotEmpty> {
    until_empty(group, areas, pid)?;
    // All of them, also where another has taken one back: the others are empty.
    let taken_back = areas.iter().filter(|&&area| !group.set_off(area)).count();
    if taken_back == 0 { Ok(()) } else { Err(given_up_by_another()) }
}

fn given_up_by_another() -> NotEmpty {
    NotEmpty::Stays("another 'uswap swapoff' of it has given up".to_owned())
}

/// Waits until nothing is on these areas.
fn until_empty(group: &Group, areas: &[usize], pid: u32) -> Result<(), NotEmpty> {
    let at_first = progress_of(group, areas).used_slots;
    let to_terminal = io::stderr().is_terminal();
    let (mut least, mut moved, mut told) = (u64::MAX, Instant::now(), Instant::now());
    let mut inherited = Inherited::of(group, areas);
    loop {
        let progress = progress_of(group, areas);
        if !areas.iter().all(|&area| group.is_leaving(area)) {
            return Err(given_up_by_another());
        }
        if progress.used_slots == 0 && progress.unfinished == 0 {
            // Those who had something there may have ended, and not brought it in.
            let is_the_end = group.processes().next().is_none() && ends(pid);
            return if is_the_end { Err(NotEmpty::Ended) } else { Ok(()) };
        }
        if progress.used_slots < least || inherited.comes_in(group, &progress) {
            (least, moved) = (least.min(progress.used_slots), Instant::now());
        }
        if interrupt::requested().is_some() {
            return Err(NotEmpty::Stays("interrupted".to_owned()));
        }
        if parent_of(pid).is_none() {
            return Err(NotEmpty::Ended);
        }
        if moved.elapsed() > STUCK_AFTER {
            return Err(NotEmpty::Stays(stuck(group, progress)));
        }
        if to_terminal && told.elapsed() > TELL_EVERY {
            told = Instant::now();
            let (left, all) = (progress.used_slots * PAGE_BYTES, at_first.max(progress.used_slots) * PAGE_BYTES);
            say(format_args!("swapoff: {} of {} left", size::chosen(left), size::chosen(all)));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What belonged to processes that have ended: it counts in nobody's slots, and comes in by their children.
struct Inherited {
    /// Pages that those have read so far who are not done.
    read: u64,
    /// So many more are progress: each child reads each of them once.
    left: u64,
}

impl Inherited {
    fn of(group: &Group, areas: &[usize]) -> Inherited {
        let clusters: u64 = areas.iter().map(|&area| group.clusters_of_the_ended(area)).sum();
        Inherited { read: read_by_unfinished(group), left: clusters * CLUSTER_SLOTS * group.processes().count() as u64 }
    }

    /// Whether some has come in since the last look, if that is all that is left, and there is memory for it.
    fn comes_in(&mut self, group: &Group, progress: &SwapoffProgress) -> bool {
        if progress.used_slots > 0 || progress.waits_for_memory || self.left == 0 {
            return false;
        }
        let read = read_by_unfinished(group);
        let more = read.saturating_sub(self.read);
        (self.read, self.left) = (read, self.left.saturating_sub(more));
        more > 0
    }
}

/// Pages that those have ever read from areas who have not carried out what was announced last.
fn read_by_unfinished(group: &Group) -> u64 {
    let announced = group.announcements();
    let unfinished = group.processes().filter(|(_, slot)| slot.called.carried_out.load(Relaxed) != announced);
    unfinished.map(|(_, slot)| slot.tally.get(Counter::AreaPagesRead)).sum()
}

/// Whether a supervisor without processes ends, as it does in a moment unless its program is unmanaged.
fn ends(pid: u32) -> bool {
    let until = Instant::now() + END_WITHIN;
    while parent_of(pid).is_some() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    true
}

fn stuck(group: &Group, progress: SwapoffProgress) -> String {
    if progress.waits_for_memory {
        return "there is nowhere to put it; give the tree more memory (uswap set -m) or another area".to_owned();
    }
    let mut pids = group.processes().map(|(_, slot)| slot.life.pid.load(Relaxed));
    if let Some(pid) = pids.find(|&pid| is_stopped(pid)) {
        return format!("process {pid} is stopped, and brings nothing in");
    }
    format!("nothing came in for {} s; it may be unreadable", STUCK_AFTER.as_secs())
}
