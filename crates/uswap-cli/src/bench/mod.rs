//! `uswap bench`: one plain program under uswap and under the kernel's own swap, side by side.
//!
//! For each pattern the back ends take turns, A B C A B C, so that whatever else the machine does hits all
//! of them alike. A back end that cannot be set up says why and is left out. Nothing that was set up is
//! left behind: not after an error, not after Ctrl-C (see `kernel`).

mod kernel;
mod report;
mod workload;

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use uswap_sys::interrupt;

use self::kernel::{Hierarchy, Journal, KernelSwap, Pool, TakeDown, Unavailable};
use self::report::{Backend, Failure, Machine, Report, Run, Series, Settings, Skipped, Spread, Style};
use self::workload::{EXIT_WRONG_DATA, LoadReport, Workload};
pub use self::workload::{LoadArgs, load_main};
use crate::{failure, size};

/// Runs that the kernel may kill for lack of memory before one round is given up.
const OOM_ATTEMPTS: u32 = 8;
/// A back end that fails in so many runs in a row is left out from there on.
const FAILURES_IN_A_ROW: u32 = 3;
/// How often the RAM of the kernel's pool is looked at while a run lasts.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// The share of its memory that uswap-pool may use for compressed data: all of the data must fit.
const ZPOOL_PERCENT: u32 = 75;
/// Compressed size of the data, pool overhead included, where the kernel's pool cannot be measured.
const ESTIMATED_POOL_PERCENT: u64 = 53;

/// Measures one plain program under uswap and under the kernel's own swap, side by side.
///
/// The kernel's swap needs root, and that no swap is on. What is set up for it is taken down again.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// Rounds; the tables show medians.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    rounds: u32,
    /// Memory that the program under test fills.
    #[arg(long, default_value = "512M", value_parser = size::parse, value_name = "SIZE")]
    size: u64,
    /// Memory that the program may use [default: half of its size].
    #[arg(long, short, value_parser = size::parse, value_name = "SIZE")]
    memory: Option<u64>,
    /// Threads of the program under test.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    threads: u32,
    /// Back ends to measure [default: all but ram].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    backends: Vec<Backend>,
    /// Access patterns to measure [default: all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    workloads: Vec<Workload>,
    /// Where the swap files go; must be on a disk.
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    directory: PathBuf,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown tables.
    #[arg(long)]
    markdown: bool,
    /// Seconds after which a single run counts as hanging.
    #[arg(long, default_value_t = 600, hide = true)]
    timeout: u64,
}

/// `uswap bench`.
pub fn main(args: BenchArgs) -> ExitCode {
    let (json, markdown) = (args.json, args.markdown);
    let outcome = Bench::new(args).and_then(|mut bench| {
        let finished = bench.run_all()?;
        // Takes the kernel side down before anything is printed.
        Ok((bench.into_report(), finished))
    });
    match outcome {
        Err(error) => {
            eprintln!("uswap: bench: {error}");
            ExitCode::from(failure::OURS)
        }
        Ok((report, finished)) => {
            if !report.has_results() {
                eprintln!("uswap: bench: interrupted before the first result");
            } else if json {
                println!("{}", report.to_json());
            } else {
                print!("{}", report.to_text(if markdown { Style::Markdown } else { Style::Plain }));
            }
            match finished {
                Finished::Interrupted(signal) => {
                    ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or(0)))
                }
                Finished::All if report.failures.is_empty() => ExitCode::SUCCESS,
                Finished::All => ExitCode::FAILURE,
            }
        }
    }
}

/// Whether all that was asked for was measured.
enum Finished {
    All,
    Interrupted(i32),
}

/// What needs root.
struct KernelSide {
    journal: Journal,
    hierarchy: Hierarchy,
    /// Made when it is first needed.
    swap_file: Option<PathBuf>,
}

/// How one run ended.
enum Outcome {
    Done(Box<Run>),
    /// The kernel killed it for lack of memory.
    OomKilled,
    /// One line on why there is no result.
    Failed(String),
    Interrupted(i32),
}

/// What was seen of the kernel's pool during a run.
#[derive(Clone, Copy, Debug, Default)]
struct PoolWatch {
    peak_bytes: u64,
    /// Whether the cgroup pays for it, judged at the peak.
    charged: bool,
}

struct Bench {
    args: BenchArgs,
    /// This program; it is also the program under test.
    program: PathBuf,
    memory_bytes: u64,
    kernel: Option<KernelSide>,
    /// Back ends still in the race.
    backends: Vec<Backend>,
    workloads: Vec<Workload>,
    settings: Settings,
    series: Vec<Series>,
    skipped: Vec<Skipped>,
    failures: Vec<Failure>,
    failures_in_a_row: HashMap<Backend, u32>,
    oom_kills: Vec<(Backend, u32)>,
}

impl Bench {
    fn new(args: BenchArgs) -> Result<Bench, Unavailable> {
        interrupt::catch_termination().map_err(|error| Unavailable(format!("cannot catch signals: {error}")))?;
        let program =
            std::env::current_exe().map_err(|error| Unavailable(format!("cannot find this program: {error}")))?;
        let memory_bytes = args.memory.unwrap_or(args.size / 2);
        if memory_bytes >= args.size {
            return Err(Unavailable("--memory must be less than --size, or nothing is swapped".to_owned()));
        }
        if !args.directory.is_dir() {
            return Err(Unavailable(format!("'{}' is not a directory", args.directory.display())));
        }
        let backends = if args.backends.is_empty() {
            Backend::value_variants().iter().copied().filter(|&backend| backend != Backend::Ram).collect()
        } else {
            in_order(&args.backends)
        };
        let workloads =
            if args.workloads.is_empty() { Workload::value_variants().to_vec() } else { in_order(&args.workloads) };
        let settings = Settings {
            size_bytes: args.size,
            memory_bytes,
            rounds: args.rounds,
            threads: args.threads,
            uswap_pool_memory_bytes: memory_bytes + (args.size - memory_bytes) * ESTIMATED_POOL_PERCENT / 100,
            kernel_pool_bytes: None,
            kernel_pool_charged: None,
            cgroup_version: None,
            zswap_compressor: None,
        };
        let mut bench = Bench {
            args,
            program,
            memory_bytes,
            kernel: None,
            backends,
            workloads,
            settings,
            series: Vec::new(),
            skipped: Vec::new(),
            failures: Vec::new(),
            failures_in_a_row: HashMap::new(),
            oom_kills: Vec::new(),
        };
        bench.open_kernel_side();
        Ok(bench)
    }

    /// Gets ready for the kernel's back ends, or leaves all of them out.
    fn open_kernel_side(&mut self) {
        let wanted: Vec<Backend> =
            self.backends.iter().copied().filter(|backend| kernel_swap(*backend).is_some()).collect();
        if wanted.is_empty() {
            return;
        }
        match open_kernel_side() {
            Ok(kernel) => {
                self.settings.cgroup_version = Some(kernel.hierarchy.version());
                self.kernel = Some(kernel);
            }
            Err(reason) => {
                for backend in wanted {
                    self.leave_out(backend, reason.to_string());
                }
            }
        }
    }

    fn run_all(&mut self) -> Result<Finished, Unavailable> {
        // One run that does not count: in a virtual machine the first use of a free page may be much dearer
        // than the next, and no back end should pay that for the others. It also shows that the program works.
        match self.run_once(Workload::Fill, Backend::Ram, 0)?.0 {
            Outcome::Done(_) | Outcome::OomKilled => {}
            Outcome::Interrupted(signal) => return Ok(Finished::Interrupted(signal)),
            Outcome::Failed(why) => {
                return Err(Unavailable(format!("the program under test does not even run alone: {why}")));
            }
        }
        if let Some(signal) = self.measure_kernel_pool() {
            return Ok(Finished::Interrupted(signal));
        }
        for workload in self.workloads.clone() {
            for backend in self.backends.clone() {
                self.series.push(Series { workload, backend, rounds: Vec::new() });
            }
            for round in 1..=self.args.rounds {
                if self.backends.is_empty() {
                    break;
                }
                let mut progress = format!("{:12} {round}/{}", workload.name(), self.args.rounds);
                for backend in self.backends.clone() {
                    match self.round(workload, backend, round) {
                        Ok(run) => {
                            let shown =
                                run.as_ref().map_or("-".to_owned(), |run| format!("{:.2}", run.load.us_per_access));
                            progress.push_str(&format!("   {} {shown}", backend.name()));
                            let series =
                                self.series.iter_mut().rfind(|s| s.workload == workload && s.backend == backend);
                            series.expect("pushed above").rounds.push(run);
                        }
                        Err(signal) => return Ok(Finished::Interrupted(signal)),
                    }
                }
                eprintln!("{progress}");
            }
        }
        // A back end that was left out before it had a single result needs no column.
        let skipped: Vec<Backend> = self.skipped.iter().map(|skipped| skipped.backend).collect();
        let without_result = |backend| {
            self.series
                .iter()
                .filter(|series| series.backend == backend)
                .all(|series| series.rounds.iter().all(Option::is_none))
        };
        let empty: Vec<Backend> = skipped.into_iter().filter(|&backend| without_result(backend)).collect();
        self.series.retain(|series| !empty.contains(&series.backend));
        if self.series.is_empty() {
            let reasons: Vec<String> =
                self.skipped.iter().map(|skipped| format!("{}: {}", skipped.backend.name(), skipped.reason)).collect();
            return Err(Unavailable(format!("no back end can be measured here ({})", reasons.join("; "))));
        }
        Ok(Finished::All)
    }

    /// One run that counts, repeated while the kernel kills it. `Err` is the signal that ended it all.
    fn round(&mut self, workload: Workload, backend: Backend, round: u32) -> Result<Option<Run>, i32> {
        let mut reason = String::new();
        for _ in 0..OOM_ATTEMPTS {
            match self.run_once(workload, backend, round) {
                Err(Unavailable(why)) => {
                    self.leave_out(backend, why);
                    return Ok(None);
                }
                Ok((Outcome::Interrupted(signal), _)) => return Err(signal),
                Ok((Outcome::Done(run), _)) => {
                    self.failures_in_a_row.remove(&backend);
                    return Ok(Some(*run));
                }
                Ok((Outcome::OomKilled, _)) => {
                    self.count_oom_kill(backend);
                    reason = format!("killed for lack of memory {OOM_ATTEMPTS} times in a row");
                }
                Ok((Outcome::Failed(why), _)) => {
                    reason = why;
                    break;
                }
            }
        }
        eprintln!("uswap: bench: {}, {}: {reason}", backend.name(), workload.name());
        self.failures.push(Failure { workload, backend, round, reason });
        let in_a_row = self.failures_in_a_row.entry(backend).or_insert(0);
        *in_a_row += 1;
        if *in_a_row == FAILURES_IN_A_ROW {
            self.leave_out(backend, format!("{FAILURES_IN_A_ROW} runs in a row failed"));
        }
        Ok(None)
    }

    fn leave_out(&mut self, backend: Backend, reason: String) {
        eprintln!("uswap: bench: {} left out: {reason}", backend.name());
        self.backends.retain(|&kept| kept != backend);
        self.skipped.push(Skipped { backend, reason });
    }

    fn count_oom_kill(&mut self, backend: Backend) {
        match self.oom_kills.iter_mut().find(|(counted, _)| *counted == backend) {
            Some((_, count)) => *count += 1,
            None => self.oom_kills.push((backend, 1)),
        }
    }

    /// Fills the program's memory under the kernel once, to learn how much RAM the compressed data takes
    /// and whether the cgroup pays for it. uswap-pool then gets the same RAM in total.
    fn measure_kernel_pool(&mut self) -> Option<i32> {
        if !self.backends.contains(&Backend::UswapPool) {
            return None;
        }
        let compressed = [Backend::Zram, Backend::Zswap];
        let backend = compressed.into_iter().find(|backend| self.backends.contains(backend))?;
        for _ in 0..OOM_ATTEMPTS {
            match self.run_once(Workload::Fill, backend, 0) {
                // What does not work here will say so again in the first round.
                Err(_) | Ok((Outcome::Failed(_), _)) => return None,
                Ok((Outcome::OomKilled, _)) => self.count_oom_kill(backend),
                Ok((Outcome::Interrupted(signal), _)) => return Some(signal),
                Ok((Outcome::Done(_), watch)) => {
                    let outside = if watch.charged { 0 } else { watch.peak_bytes };
                    self.settings.kernel_pool_bytes = Some(watch.peak_bytes);
                    self.settings.kernel_pool_charged = Some(watch.charged);
                    self.settings.uswap_pool_memory_bytes = self.memory_bytes + outside;
                    return None;
                }
            }
        }
        None
    }

    /// One run of the program under test.
    fn run_once(
        &mut self,
        workload: Workload,
        backend: Backend,
        round: u32,
    ) -> Result<(Outcome, PoolWatch), Unavailable> {
        let load_args = [
            "bench-load".to_owned(),
            workload.name().to_owned(),
            format!("--size={}", self.args.size),
            format!("--threads={}", self.args.threads),
            format!("--seed={}", round + 1),
        ];
        match kernel_swap(backend) {
            Some(kind) => self.run_under_kernel(kind, &load_args),
            None => self.run_under_uswap(backend, &load_args).map(|outcome| (outcome, PoolWatch::default())),
        }
    }

    fn run_under_kernel(
        &mut self,
        kind: KernelSwap,
        load_args: &[String],
    ) -> Result<(Outcome, PoolWatch), Unavailable> {
        let kernel = self.kernel.as_mut().expect("kernel back ends were left out without it");
        // Room for all of the data, and for the slots that the kernel holds back.
        let area_bytes = self.args.size + (64 << 20);
        if kind != KernelSwap::Zram && kernel.swap_file.is_none() {
            kernel.swap_file = Some(kernel::create_swap_file(&self.args.directory, area_bytes, &mut kernel.journal)?);
        }
        let mut down = TakeDown::new(&mut kernel.journal);
        let device = kernel::set_up(kind, kernel.swap_file.as_deref(), area_bytes, &mut down)?;
        if kind == KernelSwap::Zswap {
            self.settings.zswap_compressor = Some(device.compressor);
        }
        let cgroup = kernel.hierarchy.create(self.memory_bytes, &mut down)?;
        let pool_before = device.pool.bytes().unwrap_or(0);

        let mut watch = PoolWatch::default();
        let mut command = cgroup.command(&self.program);
        command.args(load_args);
        let timeout = Duration::from_secs(self.args.timeout);
        let ended =
            supervise(&mut command, timeout, |pid| watch_pool(&mut watch, device.pool, pool_before, pid, &cgroup))?;

        let mut outcome = ended.outcome();
        if ended.status.signal() == Some(9) && cgroup.oom_kills() > 0 {
            outcome = Outcome::OomKilled;
        }
        if let (Outcome::Done(run), false) = (&mut outcome, matches!(device.pool, Pool::None)) {
            run.pool_peak_bytes = Some(watch.peak_bytes);
        }
        Ok((outcome, watch))
    }

    fn run_under_uswap(&mut self, backend: Backend, load_args: &[String]) -> Result<Outcome, Unavailable> {
        let name = |what: &str| self.args.directory.join(format!("uswap-bench-{}.{what}", std::process::id()));
        let (stats, area) = (TemporaryFile(name("stats")), TemporaryFile(name("area")));
        let mut command = Command::new(&self.program);
        if backend != Backend::Ram {
            let (memory, zpool_percent) = match backend {
                Backend::UswapPool => (self.settings.uswap_pool_memory_bytes, ZPOOL_PERCENT),
                _ => (self.memory_bytes, 0),
            };
            command.args(["run", "-q", "-m", &format!("{}K", memory >> 10)]);
            command.args(["--zpool-percent", &zpool_percent.to_string(), "--stats"]).arg(&stats.0);
            // The pool's back end has an area too, as zswap has; its data is meant to stay in the pool.
            let size_mib = (self.args.size >> 20) + 64;
            command.arg("--swap").arg(format!("file:{},size={size_mib}M", area.0.display()));
            command.arg("--").arg(&self.program);
        }
        command.args(load_args);
        let mut resident = Vec::new();
        let timeout = Duration::from_secs(self.args.timeout);
        let ended = supervise(&mut command, timeout, |pid| resident.extend(resident_below(pid)))?;
        if ended.status.code() == Some(i32::from(failure::OURS)) {
            return Err(Unavailable(ended.last_words()));
        }
        let mut outcome = ended.outcome();
        if let Outcome::Done(run) = &mut outcome {
            let stats = fs::read_to_string(&stats.0).ok();
            let stats: Option<serde_json::Value> = stats.and_then(|text| serde_json::from_str(&text).ok());
            run.uswap_area_pages_written = stats.and_then(|stats| stats["vmstat"]["area_pages_written"].as_u64());
            run.resident_bytes = Spread::of(resident.iter().map(|&bytes: &u64| bytes as f64));
        }
        Ok(outcome)
    }

    /// What was measured. The kernel side is taken down here.
    fn into_report(self) -> Report {
        Report {
            machine: this_machine(),
            settings: self.settings,
            series: self.series,
            skipped: self.skipped,
            failures: self.failures,
            oom_kills: self.oom_kills,
        }
    }
}

fn open_kernel_side() -> Result<KernelSide, Unavailable> {
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
    Ok(KernelSide { journal, hierarchy: Hierarchy::find()?, swap_file: None })
}

fn kernel_swap(backend: Backend) -> Option<KernelSwap> {
    match backend {
        Backend::Zram => Some(KernelSwap::Zram),
        Backend::Zswap => Some(KernelSwap::Zswap),
        Backend::SwapFile => Some(KernelSwap::SwapFile),
        Backend::UswapPool | Backend::UswapFile | Backend::Ram => None,
    }
}

/// Each listed value once, in the order of the tables.
fn in_order<T: ValueEnum + Copy + PartialEq>(listed: &[T]) -> Vec<T> {
    T::value_variants().iter().copied().filter(|value| listed.contains(value)).collect()
}

/// Looks at the pool and remembers its peak. If the cgroup is charged for clearly more than what the
/// program has resident, then it pays for the pool.
fn watch_pool(watch: &mut PoolWatch, pool: Pool, before: u64, pid: u32, cgroup: &kernel::Cgroup) {
    let Some(bytes) = pool.bytes().map(|bytes| bytes.saturating_sub(before)) else {
        return;
    };
    if bytes < watch.peak_bytes {
        return;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if let (Some(usage), Some(resident)) = (cgroup.usage_bytes(), kernel::parse_meminfo(&status, "RssAnon:")) {
        watch.peak_bytes = bytes;
        watch.charged = bytes > 0 && usage > resident + bytes / 2;
    }
}

/// Anonymous and shared memory that the children of `pid` have resident, if there are any: what `uswap run`
/// promises to bound, seen from outside.
fn resident_below(pid: u32) -> Option<u64> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let of_one = |child: &str| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).ok()?;
        let of = |key| kernel::parse_meminfo(&status, key);
        Some(of("RssAnon:")? + of("RssShmem:")?)
    };
    let sum: u64 = children.split_whitespace().filter_map(of_one).sum();
    (sum > 0).then_some(sum)
}

/// A file that goes when this value does, if it came to be.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A program that has ended, with all that it printed.
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
    stopped: Option<Stopped>,
}

/// Why we ended it.
#[derive(Clone, Copy)]
enum Stopped {
    Interrupted(i32),
    TimedOut(Duration),
}

impl Ended {
    fn outcome(&self) -> Outcome {
        match self.stopped {
            Some(Stopped::Interrupted(signal)) => return Outcome::Interrupted(signal),
            Some(Stopped::TimedOut(limit)) => {
                return Outcome::Failed(format!("no end after {} s", limit.as_secs()));
            }
            None => {}
        }
        if let Some(signal) = self.status.signal() {
            return Outcome::Failed(format!("ended by signal {signal} {}", self.last_words()).trim_end().to_owned());
        }
        if self.status.code() == Some(i32::from(EXIT_WRONG_DATA)) {
            return Outcome::Failed(format!("WRONG DATA: {}", self.last_words()));
        }
        if !self.status.success() {
            return Outcome::Failed(format!("exit status {}: {}", self.status.code().unwrap_or(-1), self.last_words()));
        }
        match serde_json::from_str::<LoadReport>(self.stdout.trim()) {
            Ok(load) => Outcome::Done(Box::new(Run {
                load,
                pool_peak_bytes: None,
                uswap_area_pages_written: None,
                resident_bytes: None,
            })),
            Err(error) => Outcome::Failed(format!("its report cannot be read: {error}")),
        }
    }

    /// The last line it wrote to stderr, without our own name in front.
    fn last_words(&self) -> String {
        let line = self.stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing on stderr").trim();
        line.strip_prefix("uswap: ").unwrap_or(line).to_owned()
    }
}

/// Runs `command` to its end, looking at it now and then. It is in a process group of its own: Ctrl-C
/// reaches only us, and we end it before we clean up.
fn supervise(command: &mut Command, timeout: Duration, mut look: impl FnMut(u32)) -> Result<Ended, Unavailable> {
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        Unavailable(format!("cannot start '{}': {error}", Path::new(command.get_program()).display()))
    })?;
    let stdout = read_in_background(child.stdout.take());
    let stderr = read_in_background(child.stderr.take());
    let start = Instant::now();
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
    let text = |reader: JoinHandle<String>| reader.join().unwrap_or_default();
    Ok(Ended { status, stdout: text(stdout), stderr: text(stderr), stopped })
}

/// Kills the child and whatever it has started.
fn end_group(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
}

fn read_in_background(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn this_machine() -> Machine {
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
mod tests {
    use super::*;

    fn ended(code: i32, stdout: &str, stderr: &str) -> Ended {
        Ended {
            status: ExitStatus::from_raw(code),
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
            stopped: None,
        }
    }

    fn reason(outcome: Outcome) -> String {
        match outcome {
            Outcome::Failed(reason) => reason,
            _ => panic!("not a failure"),
        }
    }

    #[test]
    fn a_run_without_a_report_says_why_in_one_line() {
        assert_eq!(reason(ended(9, "", "").outcome()), "ended by signal 9 nothing on stderr");
        assert_eq!(
            reason(ended(3 << 8, "", "noise\nuswap: bench-load: wrong data: x\n").outcome()),
            "WRONG DATA: bench-load: wrong data: x"
        );
        assert_eq!(reason(ended(127 << 8, "", "sh: not found").outcome()), "exit status 127: sh: not found");
        assert!(reason(ended(0, "{}", "").outcome()).starts_with("its report cannot be read"));
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let mut looks = 0;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo begun; sleep 100"]);
        let ended = supervise(&mut command, Duration::from_millis(300), |_| looks += 1).unwrap();
        assert_eq!(ended.stdout, "begun\n");
        assert!(looks >= 1);
        assert_eq!(reason(ended.outcome()), "no end after 0 s");
    }

    #[test]
    fn lists_come_in_the_order_of_the_tables() {
        assert_eq!(in_order(&[Backend::UswapPool, Backend::Zram, Backend::Zram]), [Backend::Zram, Backend::UswapPool]);
    }
}
