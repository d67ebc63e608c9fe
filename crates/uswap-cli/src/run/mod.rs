//! `uswap run`: checks, sets up, starts the program, and stays with it.

pub mod agent;
mod census;
pub mod descendants;
pub mod environment;
mod kept_memory;
pub mod nested;
pub mod options;
pub mod outside;
pub mod processes;
pub mod program;
pub mod signals;
pub mod stats;
pub mod supervise;
pub mod user_anchors;
pub mod watchdog;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use rustix::process::{Resource, Rlimit};
use uswap_engine::group::{AREAS_MAX, AreaConfig, CLUSTER_SLOTS, FaultPlan, Group, GroupConfig};
use uswap_engine::protocol::{self, Secret};
use uswap_sys::launch::{self, InheritedDescriptors, SavedMask, Side, SignalFd, SpawnError};
use uswap_sys::thread;

use crate::failure::{Failure, OURS, reason, say};
use crate::memory_limit::{self, MemoryLimit, Source};
use crate::size;
use crate::stderr;
use crate::swap_area::{self, NewFile, OpenArea, is_same_file, named};
use crate::swap_spec::SwapSpec;
use crate::userfaultfd;
use agent::{Anchor, Survivors};
use options::{RunOptions, SWAP_BYTES_MIN, SWAP_TO_MEMORY};
use program::Runnable;
use supervise::{Ending, Shared, Supervisor};
use user_anchors::UserAnchors;

/// A free pool takes pages again below this share of its limit, as zswap's accept_threshold_percent.
const ACCEPT_THRESHOLD_PERCENT: u32 = 90;

/// What is begun before it is known what is asked for: to write the agent takes as long as all the rest.
pub struct Beginning {
    inherited: InheritedDescriptors,
    anchor: io::Result<Anchor>,
}

impl Beginning {
    /// To be made before anything is opened.
    pub fn new(mut arguments: impl Iterator<Item = OsString>) -> Beginning {
        let inherited = InheritedDescriptors::now();
        launch::ignore_file_size_signal();
        // The agent with Zstandard can do all that the other can: the word may as well be the program's.
        let asks_for_zstd = |word: OsString| word.to_string_lossy().contains("zstd");
        Beginning { inherited, anchor: Anchor::start(arguments.any(asks_for_zstd)) }
    }

    /// Nothing is asked for.
    pub fn end(self) {
        if let Ok(anchor) = self.anchor {
            anchor.end();
        }
    }
}

/// The subcommand.
pub fn main(options: RunOptions, beginning: Beginning) -> ExitCode {
    match run(&options, beginning) {
        Ok(Served { ending: Ending::Exited(status), .. }) => ExitCode::from(status as u8),
        Ok(Served { ending: Ending::Stalled | Ending::EndedByUs, .. }) => ExitCode::from(OURS),
        Ok(Served { ending: Ending::Signaled(signal), somebody_stays, .. }) => {
            launch::die_by_signal(signal, !somebody_stays)
        }
        Err(failure) => failure.report(),
    }
}

fn internal(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| {
        let hint = if error.kind() == io::ErrorKind::FileTooLarge { " (see ulimit -f)" } else { "" };
        Failure::ours(format!("cannot set up {what}: {}{hint}", reason(&error)))
    }
}

fn run(options: &RunOptions, Beginning { inherited, anchor }: Beginning) -> Result<Served, Failure> {
    let anchor = anchor.map_err(internal("the agent"))?;
    let served = let_the_agent_be_opened()
        .and_then(|()| Request::check(options))
        .and_then(|request| set_up(request, &anchor))
        .and_then(|(supervisor, run)| serve(supervisor, run, inherited, &anchor));
    match &served {
        // It ends by itself.
        Ok(served) if served.somebody_stays || served.survivors == Survivors::Unmanaged => {}
        _ => anchor.end(),
    }
    served
}

/// A program that may be executed but not read is not dumpable, and the descriptors of such a process, our anchor, are opened
/// by nobody: not the agent either, by the loader.
fn let_the_agent_be_opened() -> Result<(), Failure> {
    use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
    // A filter that refuses the question is none of ours.
    if matches!(dumpable_behavior(), Ok(DumpableBehavior::Dumpable) | Err(_))
        || set_dumpable_behavior(DumpableBehavior::Dumpable).is_ok()
    {
        return Ok(());
    }
    Err(Failure::ours("the program could not load the agent, because this file may not be read: chmod a+r it"))
}

/// Everything that can be wrong with a request has been looked at, and nothing has been set up.
struct Request<'a> {
    options: &'a RunOptions,
    budget_bytes: u64,
    fault_injection: FaultPlan,
    runnable: Runnable,
    device: Option<OwnedFd>,
    stats_file: Option<(File, Option<NewFile>)>,
    areas: Vec<OpenArea>,
}

impl Request<'_> {
    fn check(options: &RunOptions) -> Result<Request<'_>, Failure> {
        let budget_bytes = options.budget_bytes()?;
        let fault_injection = fault_plan(options)?;
        if !options.quiet {
            warn_of_more_than_there_is(budget_bytes);
        }
        if options.swap.len() > AREAS_MAX {
            return Err(Failure::ours(format!("{} swap areas are more than {AREAS_MAX}", options.swap.len())));
        }
        Ok(Request {
            options,
            budget_bytes,
            fault_injection,
            runnable: program::find(&options.command)?,
            device: userfaultfd::find()?.device,
            stats_file: options.stats.as_deref().map(|path| open_stats(path, &options.swap)).transpose()?,
            areas: open_areas(options, budget_bytes)?,
        })
    }

    /// What the processes will share, without any yet.
    fn group(&self) -> io::Result<(Group, OwnedFd)> {
        let mut config = GroupConfig {
            memory_limit_bytes: self.budget_bytes,
            zpool_percent: self.options.zpool_percent,
            accept_threshold_percent: ACCEPT_THRESHOLD_PERCENT,
            compressor: self.options.compressor.into(),
            policies: self.options.policies(),
            verbosity: self.options.verbosity(),
            shared: self.options.shared.into(),
            fault_injection: self.fault_injection,
            ..GroupConfig::default()
        };
        for (place, area) in config.areas.iter_mut().zip(&self.areas) {
            let stat = rustix::fs::fstat(&area.fd)?;
            *place = AreaConfig { file: [stat.st_dev, stat.st_ino], ..area.config };
        }
        let (group, fd) = Group::create(&config)?;
        for (number, area) in self.areas.iter().enumerate() {
            for page in area.bad_pages.iter().filter(|page| u64::from(**page) < area.config.slots) {
                group.withhold_cluster(number, (u64::from(*page) / CLUSTER_SLOTS) as u32);
            }
        }
        Ok((group, fd))
    }
}

/// What is left of a request for the run itself.
struct Run<'a> {
    options: &'a RunOptions,
    program: launch::Program,
    runnable: Runnable,
    mask: SavedMask,
    stats_file: Option<File>,
    new_files: Vec<NewFile>,
}

fn set_up<'a>(mut request: Request<'a>, anchor: &Anchor) -> Result<(Supervisor, Run<'a>), Failure> {
    let (group, group_fd) = request.group().map_err(internal("the group"))?;
    let secret = Secret::of(crate::random::bytes().map_err(internal("the secret"))?);
    let socket_name = socket_name().map_err(internal("the socket"))?;
    let listener = protocol::listen(socket_name.as_bytes()).map_err(internal("the socket"))?;
    let watched = signals::watched();
    let mask = launch::block(&watched).map_err(internal("signals"))?;
    let signals = SignalFd::new(&watched).map_err(internal("signals"))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| internal("the subreaper")(error.into()))?;
    let mut new_files: Vec<NewFile> = request.areas.iter_mut().filter_map(|area| area.new.take()).collect();
    let shared = Shared {
        group,
        group_fd,
        proc: uswap_sys::proc::open_root().map_err(internal("/proc"))?,
        device: request.device,
        areas: request.areas,
        secret,
        anchor_pid: anchor.pid(),
    };
    let user_anchors = UserAnchors::new(anchor.own_path().into());
    let Request { options, runnable, stats_file, .. } = request;
    let (stats_file, new_stats) = stats_file.map_or((None, None), |(file, new)| (Some(file), new));
    new_files.extend(new_stats);
    let supervisor = Supervisor::new(shared, user_anchors, listener, signals, options.quiet, options.on_stall)
        .map_err(internal("the supervisor"))?;
    let environment = environment::for_program(std::env::vars_os(), &anchor.path, &socket_name, &secret);
    let program = runnable.with_environment(environment);
    Ok((supervisor, Run { options, program, runnable, mask, stats_file, new_files }))
}

/// How a run went.
struct Served {
    ending: Ending,
    /// A process of its own serves those who outlive the main program, and the anchor is its.
    somebody_stays: bool,
    /// Who else does.
    survivors: Survivors,
}

/// Starts the program, and stays with it.
fn serve(
    mut supervisor: Supervisor,
    run: Run<'_>,
    inherited: InheritedDescriptors,
    anchor: &Anchor,
) -> Result<Served, Failure> {
    if run.options.verbose {
        describe(&supervisor, &run.runnable);
    }
    anchor.complete().map_err(internal("the agent"))?;
    stderr::never_wait();
    let started = Instant::now();
    let main = start_program(&run)?;
    run.new_files.into_iter().for_each(NewFile::keep);
    // The program has its own; here they would only keep pipes open.
    inherited.close();
    let _ = launch::null_stdio(false);
    // Nor a file system be in use.
    let _ = std::env::set_current_dir("/");
    thread::be_punctual();
    raise_limits();

    let ending = supervisor.until_main_ends(main);
    let wall_seconds = started.elapsed().as_secs_f64();
    let somebody_stays = supervisor.somebody_stays();
    let survivors = supervisor.survivors();
    if !somebody_stays {
        anchor.release(survivors);
        supervisor.user_anchors.release(survivors);
        supervisor.end_shared_memory();
    }
    supervisor.finish();
    let (shared, seen) = (supervisor.shared(), &supervisor.seen);
    if let (Some(file), Some(path)) = (&run.stats_file, &run.options.stats) {
        let json = stats::json(shared, &seen.peaks, &seen.outside, ending.status(), wall_seconds);
        if let Err(error) = stats::write(file, &json) {
            say(format_args!("cannot write '{}': {}", path.display(), reason(&error)));
        }
    }
    supervisor.tell(stats::summary(&shared.group, &seen.peaks, &seen.outside.overrun(&shared.group)));
    stderr::drain(stderr::LAST_WORDS);
    match survivors {
        _ if somebody_stays => stay_behind(&mut supervisor, anchor),
        Survivors::None => supervisor.user_anchors.wait(),
        Survivors::Unmanaged => {}
    }
    Ok(Served { ending, somebody_stays, survivors })
}

/// Starts the main program, as execvp(3) would.
fn start_program(run: &Run<'_>) -> Result<u32, Failure> {
    let error = match launch::spawn(&run.program, &run.mask) {
        Ok(main) => return Ok(main),
        Err(error) => error,
    };
    if matches!(&error, SpawnError::Exec(error) if error.raw_os_error() == Some(libc::ENOEXEC))
        && let Some(shell) = run.runnable.by_shell()?
    {
        let program = shell.with_environment(run.program.environment.clone());
        return launch::spawn(&program, &run.mask).map_err(|error| not_started(&shell, error));
    }
    Err(not_started(&run.runnable, error))
}

fn not_started(runnable: &Runnable, error: SpawnError) -> Failure {
    match error {
        SpawnError::Fork(error) => internal("a process")(error),
        SpawnError::Exec(error) => runnable.failure(&error),
    }
}

/// Daemons of the tree still need somebody who serves them: a process of its own does, and this one may end.
fn stay_behind(supervisor: &mut Supervisor, anchor: &Anchor) {
    match launch::fork() {
        Ok(Side::Parent(_)) => {}
        Ok(Side::Child) => {
            let _ = rustix::process::setsid();
            let _ = rustix::thread::set_name(c"uswap-keeper");
            // Or it would hold the streams of whoever started us.
            supervisor.lend_descriptor();
            let _ = launch::null_stdio(true);
            let _ = std::env::set_current_dir("/");
            supervisor.until_all_end();
            // Not its parent, or no more: whoever is has to collect it.
            // Who is no child of ours may have outlived the tree, too.
            anchor.release(Survivors::Unmanaged);
            supervisor.user_anchors.release(Survivors::Unmanaged);
            std::process::exit(0);
        }
        Err(error) => supervisor.tell(format_args!(
            "cannot stay behind for processes that still run, they end with this one: {}",
            reason(&error)
        )),
    }
}

fn fault_plan(options: &RunOptions) -> Result<FaultPlan, Failure> {
    match &options.trials.fault_injection {
        None => Ok(FaultPlan::default()),
        Some(text) => text.parse().map_err(|error| Failure::ours(format!("--fault-injection: {error}"))),
    }
}

fn open_stats(path: &Path, swap: &[SwapSpec]) -> Result<(File, Option<NewFile>), Failure> {
    let cannot = |error: io::Error| Failure::ours(format!("cannot write '{}': {}", path.display(), reason(&error)));
    let both = || Failure::ours(format!("'{}' is both --stats and --swap", path.display()));
    // Before it is made: a refused run leaves nothing behind.
    let is_named_the_same = |spec: &SwapSpec| spec.path == path && !path.exists();
    if swap.iter().any(is_named_the_same) {
        return Err(both());
    }
    // Opened early, so that a typing error is known before hours of work, and emptied late, so that an old file
    // is there until there is a new one.
    let (file, new) = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => {
            let new = NewFile::new(path, &file).map_err(cannot)?;
            (file, Some(new))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let leads_nowhere = path.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            let there = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(cannot)?;
            // A link to nothing: what was made is where that leads, as the kernel followed it.
            let end = format!("/proc/self/fd/{}", there.as_raw_fd());
            let end = std::fs::read_link(end).ok().filter(|_| leads_nowhere);
            let new = end.map(|end| NewFile::new(&end, &there)).transpose().map_err(cannot)?;
            (there, new)
        }
        Err(error) => return Err(cannot(error)),
    };
    let opened = file.metadata().map_err(cannot)?;
    let is_the_same = |spec: &SwapSpec| spec.path.metadata().is_ok_and(|area| is_same_file(&area, &opened));
    if swap.iter().any(is_the_same) { Err(both()) } else { Ok((file, new)) }
}

/// Four times the memory, and for small budgets at least 4 GiB: children of a fork need room of their own. The file is
/// sparse; that least never promises more than half of what the file system has left.
fn default_swap_bytes(budget_bytes: u64, directory: &Path) -> u64 {
    let four_times = budget_bytes.saturating_mul(SWAP_TO_MEMORY);
    let left = rustix::fs::statvfs(directory).map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    four_times.max(SWAP_BYTES_MIN.min(left / 2)).min(swap_area::AREA_BYTES_MAX)
}

fn open_areas(options: &RunOptions, budget_bytes: u64) -> Result<Vec<OpenArea>, Failure> {
    let mut areas = Vec::new();
    if options.swap.is_empty() {
        let (directory, in_ram) = swap_area::temporary_directory();
        if in_ram && !options.quiet {
            say(format_args!(
                "warning: '{}' is in RAM, and so is what is swapped out to it: set USWAP_SWAP_DIR to a directory on a disk",
                directory.display()
            ));
        }
        areas.push(swap_area::temporary(&directory, default_swap_bytes(budget_bytes, &directory))?);
    }
    // Nothing is written before all have been looked at.
    let mut candidates = Vec::new();
    for spec in &options.swap {
        let candidate = named::look_at(spec, &candidates)?;
        candidates.push(candidate);
    }
    for candidate in candidates {
        if !options.quiet {
            candidate.warnings.iter().for_each(say);
        }
        areas.push(candidate.take()?);
    }
    let wanted: Vec<Option<i32>> = match options.swap.is_empty() {
        true => vec![None],
        false => options.swap.iter().map(|spec| spec.priority).collect(),
    };
    swap_area::set_priorities(&mut areas, &wanted);
    Ok(areas)
}

/// A budget that the machine, or the container, cannot fill is kept by nobody: the kernel runs out of memory before anything is
/// swapped.
fn warn_of_more_than_there_is(budget_bytes: u64) {
    if let Some(line) = memory_limit::find().and_then(|limit| more_than_there_is(budget_bytes, &limit)) {
        say(line);
    }
}

fn more_than_there_is(budget_bytes: u64, limit: &MemoryLimit) -> Option<String> {
    let (budget, there_is) = (size::chosen(budget_bytes), size::measured(limit.bytes));
    match &limit.source {
        Source::Machine if budget_bytes > limit.bytes => Some(format!(
            "warning: the budget of {budget} is more than the {there_is} that the machine has: it runs out of memory before uswap \
             swaps"
        )),
        // The program is not alone in there: we and its files count, too.
        Source::Cgroup(file) if budget_bytes >= limit.bytes => Some(format!(
            "warning: the budget of {budget} is not below the {there_is} that '{}' allows: the kernel may end the program before \
             uswap swaps",
            file.display()
        )),
        _ => None,
    }
}

fn socket_name() -> io::Result<String> {
    let bits = u128::from_ne_bytes(crate::random::bytes()?);
    Ok(format!("uswap-{bits:032x}"))
}

/// A connection, a pidfd and userfaultfds for each of up to 1024 processes are more than the usual soft limit; and a limit on
/// CPU time is meant for programs, each of which has its own. Done after the program was started: it gets the limits that we
/// were started with.
fn raise_limits() {
    // Where that is permitted: else a hard limit on CPU time ends the tree, which has its work added up here.
    let _ = rustix::process::setrlimit(Resource::Cpu, Rlimit { current: None, maximum: None });
    for resource in [Resource::Nofile, Resource::Cpu] {
        let limit = rustix::process::getrlimit(resource);
        let _ = rustix::process::setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
    }
}

fn describe(supervisor: &Supervisor, runnable: &Runnable) {
    let shared = supervisor.shared();
    let config = shared.group.config();
    let way = if shared.device.is_some() { "/dev/userfaultfd" } else { "userfaultfd(2)" };
    say(format_args!(
        "running '{}' in {}, compressed pool up to {} %, by {way}",
        runnable.file().display(),
        size::chosen(config.memory_limit_bytes),
        config.zpool_percent,
    ));
    for area in &shared.areas {
        say(format_args!(
            "swap area '{}': {}, priority {}, {}",
            area.path.display(),
            size::chosen(area.config.slots * 4096),
            area.config.priority,
            if area.config.direct { "direct I/O" } else { "buffered I/O" },
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_is_not_below_a_limit_is_warned_of() {
        let of = |source| MemoryLimit { bytes: 64 << 20, source };
        let container = of(Source::Cgroup("/sys/fs/cgroup/memory.max".into()));
        let line = more_than_there_is(64 << 20, &container).unwrap();
        assert!(line.contains("64.0 MiB that '/sys/fs/cgroup/memory.max' allows"), "{line}");
        assert!(more_than_there_is(80 << 20, &container).is_some());
        assert_eq!(more_than_there_is(63 << 20, &container), None);
        assert!(more_than_there_is(65 << 20, &of(Source::Machine)).unwrap().contains("that the machine has"));
        assert_eq!(more_than_there_is(64 << 20, &of(Source::Machine)), None);
    }
}
