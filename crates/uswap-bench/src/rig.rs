//! One run of some program under one back end: set up, watched, taken down.
//!
//! What a run leaves behind is ended with it: its cgroup is emptied, and since this process is a subreaper,
//! a daemon of it that got away from its process group becomes a child of ours.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};
use uswap_sys::interrupt;
use uswap_sys::rusage::ProcessUsage;
use xxhash_rust::xxh3::Xxh3Default;

use crate::kernel::{self, Cgroup, Hierarchy, Journal, KernelSwap, Kswapd, Pool, Swapped, TakeDown, Unavailable};
use crate::report::{Backend, Machine, Spread};
use crate::workload::{ALL_BACK, PARENT};
use crate::{EXIT_UNDER_USWAP_FAILED, Limits};

/// How often the RAM of the kernel's pool is looked at while a run lasts.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// The share of its memory that uswap-pool may use for compressed data: all of the data must fit.
const ZPOOL_PERCENT: u32 = 75;
/// How much of what a program prints is kept, from the end.
const OUTPUT_KEPT: usize = 64 << 10;
/// How long a killed process may take to be gone, and a pipe to be closed after that.
const STRAYS_PATIENCE: Duration = Duration::from_secs(10);

/// What is to be run, the same under every back end.
pub struct Job<'a> {
    /// The program, by path or by name.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: &'a [OsString],
    /// A variable more in its environment.
    pub variable: Option<(&'a str, &'a Path)>,
    /// Whether nearly all of its memory is shared by its processes.
    pub shared: bool,
}

/// What was seen of the kernel's pool during a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolWatch {
    /// The most RAM that it took.
    pub peak_bytes: u64,
    /// Whether the cgroup pays for it, judged at the peak.
    pub charged: bool,
}

/// A run that has ended, whichever way.
pub struct Observed {
    /// How the program ended, and what it printed.
    pub ended: Ended,
    /// From its start to its end.
    pub wall_seconds: f64,
    /// User and system time of all its processes, uswap's threads and supervisor among them, and of kswapd.
    pub cpu_seconds: f64,
    /// Pages that left and came back.
    pub swapped: Swapped,
    /// Processes that the kernel killed for lack of memory.
    pub oom_kills: u64,
    /// The kernel's compressed pool, under those back ends that have one.
    pub pool: Option<PoolWatch>,
    /// What `uswap run --stats` wrote.
    pub stats: Option<serde_json::Value>,
    /// Anonymous and shared memory of the processes under uswap or without a limit, sampled from outside.
    pub resident_bytes: Option<Spread>,
}

impl Observed {
    /// A run of which only the program itself was looked at.
    pub fn new(ended: Ended, wall_seconds: f64, cpu_seconds: f64) -> Observed {
        let swapped = Swapped::default();
        Observed {
            ended,
            wall_seconds,
            cpu_seconds,
            swapped,
            oom_kills: 0,
            pool: None,
            stats: None,
            resident_bytes: None,
        }
    }
}

/// What needs root.
struct KernelSide {
    journal: Journal,
    hierarchy: Hierarchy,
    /// Made when it is first needed.
    swap_file: Option<PathBuf>,
}

/// All that the back ends need.
pub struct Rig {
    limits: Limits,
    kernel: Option<KernelSide>,
    kswapd: Kswapd,
    /// Limit of `uswap-pool`.
    pub uswap_pool_memory_bytes: u64,
    /// What zswap compresses with, once it was used.
    pub zswap_compressor: Option<&'static str>,
}

impl Rig {
    /// Nothing is set up yet.
    pub fn new(limits: Limits) -> Result<Rig, Unavailable> {
        interrupt::catch_termination().map_err(|error| Unavailable(format!("cannot catch signals: {error}")))?;
        if !limits.directory.is_dir() {
            return Err(Unavailable(format!("'{}' is not a directory", limits.directory.display())));
        }
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| Unavailable(format!("cannot become a subreaper: {error}")))?;
        Ok(Rig {
            kernel: None,
            kswapd: Kswapd::find(),
            uswap_pool_memory_bytes: limits.memory_bytes,
            limits,
            zswap_compressor: None,
        })
    }

    /// The command: `uswap run` is one of its subcommands.
    pub fn uswap(&self) -> &Path {
        &self.limits.uswap
    }

    /// Gets ready for the kernel's back ends. The generation of the memory cgroup.
    pub fn open_kernel_side(&mut self) -> Result<u32, Unavailable> {
        if !rustix::process::geteuid().is_root() {
            return Err(Unavailable("kernel swap needs root".to_owned()));
        }
        // First what a killed bench has left: that would look like somebody's swap.
        let journal = Journal::open()?;
        if let Some(device) = kernel::swaps_in_use().first() {
            return Err(Unavailable(format!(
                "kernel swap is on already ({device}) and would be measured along; turn it off with: swapoff -a"
            )));
        }
        let kernel = KernelSide { journal, hierarchy: Hierarchy::find()?, swap_file: None };
        let version = kernel.hierarchy.version();
        self.kernel = Some(kernel);
        Ok(version)
    }

    /// One run.
    pub fn run(&mut self, backend: Backend, job: &Job<'_>) -> Result<Observed, Unavailable> {
        match kernel_swap(backend) {
            Some(kind) => self.run_under_kernel(kind, job),
            None => self.run_under_uswap(backend, job),
        }
    }

    fn run_under_kernel(&mut self, kind: KernelSwap, job: &Job<'_>) -> Result<Observed, Unavailable> {
        let kernel = self.kernel.as_mut().expect("kernel back ends were left out without it");
        if kind != KernelSwap::Zram && kernel.swap_file.is_none() {
            kernel.swap_file =
                Some(kernel::create_swap_file(&self.limits.directory, self.limits.area_bytes, &mut kernel.journal)?);
        }
        let mut down = TakeDown::new(&mut kernel.journal);
        let device = kernel::set_up(kind, kernel.swap_file.as_deref(), self.limits.area_bytes, &mut down)?;
        if kind == KernelSwap::Zswap {
            self.zswap_compressor = Some(device.compressor);
        }
        let cgroup = kernel.hierarchy.create(self.limits.memory_bytes, &mut down)?;
        let pool_before = device.pool.bytes().unwrap_or(0);
        let swapped_before = Swapped::by_the_kernel();

        let mut watch = PoolWatch::default();
        let mut command = cgroup.command(job.program);
        job.complete(&mut command);
        command.env(ALL_BACK, format!("{} && swapoff {}", cgroup.lift_limit(), quoted(&device.path)));
        let mut observed = supervise(&mut command, self.limits.timeout, &self.kswapd, |pid| {
            watch_pool(&mut watch, device.pool, pool_before, pid, &cgroup);
        })?;
        observed.swapped = Swapped::by_the_kernel().since(&swapped_before);
        observed.oom_kills = cgroup.oom_kills();
        observed.pool = (!matches!(device.pool, Pool::None)).then_some(watch);
        Ok(observed)
    }

    fn run_under_uswap(&mut self, backend: Backend, job: &Job<'_>) -> Result<Observed, Unavailable> {
        let name = |what: &str| self.limits.directory.join(format!("uswap-bench-{}.{what}", std::process::id()));
        let (stats, area) = (TemporaryFile(name("stats")), TemporaryFile(name("area")));
        let free = backend == Backend::Ram;
        let mut command = Command::new(if free { job.program } else { &self.limits.uswap });
        if !free {
            let (memory, zpool_percent) = match backend {
                Backend::UswapPool => (self.uswap_pool_memory_bytes, ZPOOL_PERCENT),
                _ => (self.limits.memory_bytes, 0),
            };
            command.args(["run", "-q", "-m", &format!("{}K", memory >> 10)]);
            command.args(["--zpool-percent", &zpool_percent.to_string(), "--stats"]).arg(&stats.0);
            if let Some(search) = owner_search(backend) {
                command.args(["--swapoff-search", search]);
            }
            // The pool's back end has an area too, as zswap has; its data is meant to stay in the pool.
            command.arg("--swap").arg(format!("file:{},size={}M", area.0.display(), self.limits.area_bytes >> 20));
            command.arg("--").arg(job.program);
        }
        job.complete(&mut command);
        if !free {
            let uswap = quoted(&self.limits.uswap);
            let memory = self.uswap_pool_memory_bytes.max(self.limits.area_bytes) >> 18;
            let all_back = format!("{uswap} set -p ${PARENT} -m {memory}M && {uswap} swapoff -p ${PARENT}");
            command.env(ALL_BACK, all_back);
        }
        let mut resident: Vec<u64> = Vec::new();
        let mut observed = supervise(&mut command, self.limits.timeout, &self.kswapd, |pid| {
            // The supervisor of `uswap run` is not part of what it bounds.
            let bytes = match job.shared {
                _ if free => resident_from(pid, Counted::PrivateAndShared),
                false => resident_below(pid, Counted::PrivateAndShared),
                true => resident_below(pid, Counted::Private) + shared_files(pid).values().sum::<u64>(),
            };
            resident.extend((bytes > 0).then_some(bytes));
        })?;
        if !free {
            let text = fs::read_to_string(&stats.0).ok();
            observed.stats = text.and_then(|text| serde_json::from_str(&text).ok());
            observed.swapped = observed.stats.as_ref().map(Swapped::by_uswap).unwrap_or_default();
        }
        observed.resident_bytes = Spread::of(resident.iter().map(|&bytes| bytes as f64));
        Ok(observed)
    }
}

impl Job<'_> {
    fn complete(&self, command: &mut Command) {
        command.args(self.arguments);
        if let Some((name, value)) = self.variable {
            command.env(name, value);
        }
    }
}

/// How uswap's swapoff finds the page of a slot, if not as always.
fn owner_search(backend: Backend) -> Option<&'static str> {
    match backend {
        Backend::UswapTable => Some("table"),
        Backend::UswapMapping => Some("mapping"),
        Backend::UswapLocate => Some("locate"),
        _ => None,
    }
}

/// Which of the kernel's ways a back end stands for.
pub fn kernel_swap(backend: Backend) -> Option<KernelSwap> {
    match backend {
        Backend::Zram => Some(KernelSwap::Zram),
        Backend::Zswap => Some(KernelSwap::Zswap),
        Backend::SwapFile => Some(KernelSwap::SwapFile),
        Backend::UswapPool | Backend::UswapFile | Backend::Ram => None,
        Backend::UswapTable | Backend::UswapMapping | Backend::UswapLocate => None,
    }
}

/// Looks at the pool and remembers its peak. If the cgroup is charged for clearly more than what the
/// program has resident, then it pays for the pool.
fn watch_pool(watch: &mut PoolWatch, pool: Pool, before: u64, pid: u32, cgroup: &Cgroup) {
    let Some(bytes) = pool.bytes().map(|bytes| bytes.saturating_sub(before)) else {
        return;
    };
    if bytes < watch.peak_bytes {
        return;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if let (Some(usage), Some(private)) = (cgroup.usage_bytes(), kernel::parse_meminfo(&status, "RssAnon:")) {
        let resident = private + cgroup.shared_bytes();
        watch.peak_bytes = bytes;
        watch.charged = bytes > 0 && usage > resident + bytes / 2;
    }
}

/// Which memory of a process is counted.
#[derive(Clone, Copy, Debug)]
enum Counted {
    /// Anonymous memory.
    Private,
    /// Shared memory, too. What several processes have mapped counts in each.
    PrivateAndShared,
}

/// Memory that `pid` and all below it have resident.
fn resident_from(pid: u32, counted: Counted) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |key| kernel::parse_meminfo(&status, key).unwrap_or(0);
    let shared = match counted {
        Counted::Private => 0,
        Counted::PrivateAndShared => of("RssShmem:"),
    };
    of("RssAnon:") + shared + resident_below(pid, counted)
}

/// What is resident of the files in memory that `pid` and all below it have open, by inode: of shared memory under uswap those are
/// all, and each counts once, whoever has it mapped.
fn shared_files(pid: u32) -> BTreeMap<u64, u64> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    let in_memory =
        open.filter(|fd| fs::read_link(fd).is_ok_and(|file| file.as_os_str().as_bytes().starts_with(b"/memfd:")));
    let mut files: BTreeMap<u64, u64> =
        in_memory.filter_map(|fd| fs::metadata(fd).ok()).map(|file| (file.ino(), file.blocks() * 512)).collect();
    children_of(pid).into_iter().for_each(|child| files.extend(shared_files(child)));
    files
}

/// The same, without `pid` itself: what `uswap run` promises to bound, seen from outside.
fn resident_below(pid: u32, counted: Counted) -> u64 {
    children_of(pid).into_iter().map(|child| resident_from(child, counted)).sum()
}

/// The children of a process, whichever of its threads started them.
fn children_of(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// A word for the shell.
pub fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// A file that goes when this value does, if it came to be.
pub struct TemporaryFile(pub PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What a program printed: all of it by length and hash, the end of it in full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    bytes: u64,
    hash: u128,
    end: Vec<u8>,
}

impl Output {
    /// Reads until the end of the file.
    fn read(mut from: impl Read) -> Output {
        let (mut bytes, mut hash, mut end) = (0, Xxh3Default::new(), VecDeque::new());
        let mut buffer = vec![0; OUTPUT_KEPT];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            bytes += length as u64;
            hash.update(&buffer[..length]);
            end.extend(&buffer[..length]);
            end.drain(..end.len().saturating_sub(OUTPUT_KEPT));
        }
        Output { bytes, hash: hash.digest128(), end: end.into() }
    }

    /// How long it was.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The end of it, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.end).into_owned()
    }

    fn read_in_background(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Output> {
        std::thread::spawn(move || pipe.map(Output::read).unwrap_or_default())
    }
}

/// A program that has ended, with what it printed.
pub struct Ended {
    /// As wait(2) tells it.
    pub status: ExitStatus,
    /// On standard output.
    pub stdout: Output,
    /// On standard error.
    pub stderr: Output,
    /// Whether we ended it, and why.
    pub stopped: Option<Stopped>,
}

/// Why we ended it.
#[derive(Clone, Copy)]
pub enum Stopped {
    /// The user wants us to stop, by this signal.
    Interrupted(i32),
    /// It took longer than this.
    TimedOut(Duration),
    /// It left a process behind that holds its output and cannot be killed.
    OutputHeld,
}

impl Ended {
    /// The signal by which the user wants us to stop.
    pub fn interrupted(&self) -> Option<i32> {
        if let Some(Stopped::Interrupted(signal)) = self.stopped { Some(signal) } else { None }
    }

    /// Why there is no result, in one line, if it did not come to an end of its own.
    pub fn why_cut_short(&self) -> Option<String> {
        match self.stopped {
            Some(Stopped::TimedOut(limit)) => return Some(format!("no end after {} s", limit.as_secs())),
            Some(Stopped::OutputHeld) => return Some("left a process behind that holds its output".to_owned()),
            Some(Stopped::Interrupted(_)) | None => {}
        }
        let signal = self.status.signal()?;
        Some(format!("ended by signal {signal} {}", self.last_words()).trim_end().to_owned())
    }

    /// Whether `uswap run` says that it failed by itself.
    pub fn is_failure_of_ours(&self) -> bool {
        self.status.code() == Some(i32::from(EXIT_UNDER_USWAP_FAILED))
    }

    /// The last line it wrote to stderr, without our own name in front.
    pub fn last_words(&self) -> String {
        let text = self.stderr.text();
        let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing on stderr").trim();
        line.strip_prefix("uswap: ").unwrap_or(line).to_owned()
    }
}

/// Runs `command` to its end, looking at it now and then. It is in a process group of its own: Ctrl-C
/// reaches only us, and we end it before we clean up.
fn supervise(
    command: &mut Command,
    timeout: Duration,
    kswapd: &Kswapd,
    mut look: impl FnMut(u32),
) -> Result<Observed, Unavailable> {
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let usage_before = (ProcessUsage::of_children(), kswapd.cpu_seconds());
    let start = Instant::now();
    let mut child = command.spawn().map_err(|error| {
        Unavailable(format!("cannot start '{}': {error}", Path::new(command.get_program()).display()))
    })?;
    let stdout = Output::read_in_background(child.stdout.take());
    let stderr = Output::read_in_background(child.stderr.take());
    let mut last_look = start;
    let mut stopped = None;
    let status = loop {
        if let Some(status) =
            child.try_wait().map_err(|error| Unavailable(format!("cannot wait for a run: {error}")))?
        {
            break status;
        }
        if stopped.is_none() {
            stopped = if let Some(signal) = interrupt::requested() {
                Some(Stopped::Interrupted(signal))
            } else if start.elapsed() > timeout {
                Some(Stopped::TimedOut(timeout))
            } else {
                None
            };
            if stopped.is_some() {
                end_group(&mut child);
            }
        }
        if last_look.elapsed() >= WATCH_INTERVAL {
            last_look = Instant::now();
            look(child.id());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let wall_seconds = start.elapsed().as_secs_f64();
    end_strays();
    let spent = ProcessUsage::of_children().since(&usage_before.0);
    let cpu_seconds = (spent.user + spent.system).as_secs_f64() + kswapd.cpu_seconds() - usage_before.1;
    let (stdout, stderr) = (text_of(stdout), text_of(stderr));
    if stdout.is_none() || stderr.is_none() {
        stopped = stopped.or(Some(Stopped::OutputHeld));
    }
    let ended = Ended { status, stdout: stdout.unwrap_or_default(), stderr: stderr.unwrap_or_default(), stopped };
    Ok(Observed::new(ended, wall_seconds, cpu_seconds))
}

/// What was read from a pipe; `None` if somebody still holds its other end.
fn text_of(reader: JoinHandle<Output>) -> Option<Output> {
    let start = Instant::now();
    while !reader.is_finished() {
        if start.elapsed() > STRAYS_PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    reader.join().ok()
}

/// Kills the child and whatever it has started.
fn end_group(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
    let _ = child.kill();
}

/// Ends what a run has left behind: whoever lost its parent is a child of ours.
#[cfg(not(test))]
fn end_strays() {
    let start = Instant::now();
    loop {
        let strays = children_of(std::process::id());
        if strays.is_empty() || start.elapsed() > STRAYS_PATIENCE {
            return;
        }
        for pid in strays.into_iter().filter_map(|pid| i32::try_from(pid).ok()).filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The tests of this program run side by side in one process: children are not only a run's.
#[cfg(test)]
fn end_strays() {
    let _ = (WaitOptions::NOHANG, STRAYS_PATIENCE);
}

/// Where we are.
pub fn this_machine() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpu = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned()));
    let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = huge.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen.to_owned());
    Machine {
        kernel: read("/proc/sys/kernel/osrelease"),
        cpu: cpu.unwrap_or_else(|| "unknown CPU".to_owned()),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: kernel::parse_meminfo(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0),
        transparent_hugepage: chosen.unwrap_or_else(|| "none".to_owned()),
        page_cluster: read("/proc/sys/vm/page-cluster"),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A program that ended with this status of wait(2), and printed this.
    pub fn ended(status: i32, stdout: &str, stderr: &str) -> Ended {
        Ended {
            status: ExitStatus::from_raw(status),
            stdout: Output::read(stdout.as_bytes()),
            stderr: Output::read(stderr.as_bytes()),
            stopped: None,
        }
    }

    fn run(script: &str, timeout: Duration, look: impl FnMut(u32)) -> Observed {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        supervise(&mut command, timeout, &Kswapd::find(), look).unwrap()
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let mut looks = 0;
        let ended = run("echo begun; sleep 100", Duration::from_millis(300), |_| looks += 1).ended;
        assert_eq!(ended.stdout.text(), "begun\n");
        assert!(looks >= 1);
        assert_eq!(ended.why_cut_short().unwrap(), "no end after 0 s");
    }

    #[test]
    fn the_time_of_grandchildren_counts() {
        let script = "( i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done ); echo done";
        let observed = run(script, Duration::from_secs(60), |_| {});
        assert!(observed.cpu_seconds > 0.01 && observed.wall_seconds > 0.01, "{}", observed.cpu_seconds);
        assert_eq!(observed.ended.stdout.bytes(), 5);
    }

    #[test]
    fn output_is_kept_by_length_hash_and_end() {
        let long: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
        let whole = Output::read(&long[..]);
        assert_eq!((whole.bytes, whole.end.len()), (800_000, OUTPUT_KEPT));
        assert_eq!(whole.end, long[long.len() - OUTPUT_KEPT..]);
        let mut other = long.clone();
        other[5] ^= 1;
        assert_ne!(Output::read(&other[..]), whole);
        // However the pipe cuts it.
        assert_eq!(Output::read(long[..777].chain(&long[777..])), whole);
    }

    #[test]
    fn a_file_in_memory_counts_once() {
        let file = rustix::fs::memfd_create("uswap-bench-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let again = file.try_clone().unwrap();
        rustix::io::write(&file, &[1; 40960]).unwrap();
        let inode = rustix::fs::fstat(&again).unwrap().st_ino;
        let found = shared_files(std::process::id());
        assert_eq!(found.get(&inode), Some(&40960), "{found:?}");
    }

    #[test]
    fn a_tree_is_counted_with_its_root() {
        let held = vec![1u8; 8 << 20];
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = std::process::id();
        let (children, all) = (children_of(pid), resident_from(pid, Counted::PrivateAndShared));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(children.contains(&child.id()), "{children:?}");
        assert!(all > std::hint::black_box(&held).len() as u64, "{all}");
    }
}
