//! A process and its descendants, seen from outside: who they are, and what memory they hold.
//!
//! Descendants are found by `/proc/PID/task/TID/children`. A process once seen stays a member until it ends, also
//! when its parent ends first; the harness is made the subreaper of such orphans, and collects their status, so
//! that a zombie that remains is somebody's fault.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};

/// How often memory is sampled.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// How often the proportional size is read as well, which costs a walk over all page tables.
const PROPORTIONAL_EVERY: u32 = 10;
/// A program whose peak is asked for may be short: so long, all is sampled so often.
const CLOSELY_FOR: Duration = Duration::from_secs(4);
const CLOSELY_EVERY: Duration = Duration::from_millis(4);

/// A process, by its id and start time, so that a recycled id is another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    pid: u32,
    started: u64,
}

/// What `/proc/PID/stat` says.
struct Status {
    state: char,
    parent: u32,
    started: u64,
}

fn status(pid: u32) -> Option<Status> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything, spaces and parentheses too.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 2..)?.split(' ').collect();
    Some(Status {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    found
}

/// Whether a process with this id exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    status(pid).is_some_and(|status| status.state != 'Z')
}

/// Whether `pid` is `root` or one of its descendants.
pub fn member_of(root: u32, pid: u32) -> bool {
    let mut at = pid;
    while at > 1 {
        if at == root {
            return true;
        }
        at = status(at).map_or(0, |status| status.parent);
    }
    false
}

/// The members of one tree, as far as they have been seen.
#[derive(Debug, Default)]
struct Tree {
    members: BTreeSet<Member>,
}

impl Tree {
    fn new(root: u32) -> Tree {
        let mut tree = Tree::default();
        tree.add(root);
        tree
    }

    fn add(&mut self, pid: u32) -> bool {
        match status(pid) {
            Some(status) => self.members.insert(Member { pid, started: status.started }),
            None => false,
        }
    }

    /// Looks for new members, forgets those that are gone, collects orphans that have ended.
    fn refresh(&mut self, root: u32) {
        self.members.retain(|member| {
            let Some(now) = status(member.pid) else {
                return false;
            };
            if now.state == 'Z' && now.parent == std::process::id() && member.pid != root {
                let pid = Pid::from_raw(member.pid as i32).expect("a process id is not zero");
                // ECHILD: another thread of the harness was faster.
                let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
                return false;
            }
            now.started == member.started
        });
        for orphan in orphans() {
            self.add(orphan);
        }
        let mut todo: Vec<u32> = self.members.iter().map(|member| member.pid).collect();
        while let Some(pid) = todo.pop() {
            for child in children(pid) {
                if self.add(child) {
                    todo.push(child);
                }
            }
        }
    }
}

/// Memory of one process at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessMemory {
    /// Its id.
    pub pid: u32,
    /// `RssAnon`.
    pub anon: u64,
    /// `RssShmem`.
    pub shmem: u64,
}

/// Memory of the tree at one moment.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Since the start.
    pub at: Duration,
    /// Each process that has memory.
    pub processes: Vec<ProcessMemory>,
}

impl Sample {
    /// `RssAnon` + `RssShmem` of the tree. A page that two processes share counts twice.
    pub fn resident(&self) -> u64 {
        self.processes.iter().map(|process| process.anon + process.shmem).sum()
    }
}

/// What the sampler saw from start to end.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// All samples, oldest first.
    pub list: Vec<Sample>,
    /// The largest proportional size: shared pages count once. Only as good as its coarser sampling.
    pub peak_proportional: u64,
}

impl Samples {
    /// The sample with the most resident memory.
    pub fn peak(&self) -> Sample {
        self.list.iter().max_by_key(|sample| sample.resident()).cloned().unwrap_or_default()
    }

    /// The samples above `budget` by more than is allowed: 5 %, or 16 MiB where that is more.
    ///
    /// The promise begins with adoption: when pages have been swapped out, or usage has passed 90 % of the
    /// budget. Before, usage is below 90 % by definition, so every sample can be held to it.
    pub fn above(&self, budget: u64) -> Vec<&Sample> {
        let allowed = budget + (budget / 20).max(16 << 20);
        self.list.iter().filter(|sample| sample.resident() > allowed).collect()
    }

    /// Fails when a sample lies above the budget and its allowance.
    pub fn assert_within(&self, budget: u64) {
        let over = self.above(budget);
        if let Some(first) = over.first() {
            let worst = self.peak();
            panic!(
                "{} of {} samples are above the budget of {} MiB and its allowance; the first at {:?} with {} MiB, \
                 the worst at {:?} with {} MiB: {:?}",
                over.len(),
                self.list.len(),
                budget >> 20,
                first.at,
                first.resident() >> 20,
                worst.at,
                worst.resident() >> 20,
                worst.processes
            );
        }
    }
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(name));
    let kib = line.and_then(|line| line.split_ascii_whitespace().nth(1)).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn memory(pid: u32) -> Option<ProcessMemory> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(ProcessMemory { pid, anon: field(&text, "RssAnon:"), shmem: field(&text, "RssShmem:") })
}

fn proportional(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    field(&text, "Pss_Anon:") + field(&text, "Pss_Shmem:")
}

struct Shared {
    root: u32,
    tree: Mutex<Tree>,
    samples: Mutex<Samples>,
    stop: AtomicBool,
}

/// Watches a tree from a thread of its own until it is told to stop.
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// `record_proportional`: also read the proportional size now and then, at a cost to the watched program.
    pub(crate) fn start(root: u32, record_proportional: bool) -> Sampler {
        let shared = Arc::new(Shared {
            root,
            tree: Mutex::new(Tree::new(root)),
            samples: Mutex::new(Samples::default()),
            stop: AtomicBool::new(false),
        });
        let watched = shared.clone();
        let thread = std::thread::Builder::new()
            .name("sampler".into())
            .spawn(move || watch(&watched, record_proportional))
            .expect("a thread");
        Sampler { shared, thread: Some(thread) }
    }

    /// The living members, zombies included; the root is one until it has been waited for.
    pub(crate) fn members(&self) -> Vec<u32> {
        let mut tree = self.shared.tree.lock().expect("no sampler panics");
        tree.refresh(self.shared.root);
        tree.members.iter().map(|member| member.pid).collect()
    }

    /// Sends SIGKILL to every member, again and again until none lives: one may just be forking.
    pub(crate) fn kill_all(&self) {
        for _ in 0..200 {
            let mut left = 0;
            for pid in self.members() {
                if is_alive(pid) {
                    left += 1;
                    kill(pid);
                }
            }
            if left == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Where each thread of each member is, for the message of a test that hangs.
    pub(crate) fn diagnosis(&self) -> String {
        let mut text = String::new();
        for pid in self.members() {
            describe(pid, &mut text);
        }
        text
    }

    pub(crate) fn finish(mut self) -> Samples {
        self.stop();
        std::mem::take(&mut *self.shared.samples.lock().expect("no sampler panics"))
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no sampler panics");
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop();
    }
}

fn watch(shared: &Shared, record_proportional: bool) {
    let start = Instant::now();
    let mut next = start;
    let mut round = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let members: Vec<u32> = {
            let mut tree = shared.tree.lock().expect("no test panics here");
            tree.refresh(shared.root);
            tree.members.iter().map(|member| member.pid).collect()
        };
        let at = start.elapsed();
        let closely = record_proportional && at < CLOSELY_FOR;
        let processes: Vec<ProcessMemory> = members.iter().filter_map(|&pid| memory(pid)).collect();
        let sample = Sample { at, processes };
        let mut peak = 0;
        if record_proportional && sample.processes.len() > 1 {
            if closely || round % PROPORTIONAL_EVERY == 0 {
                peak = members.iter().map(|&pid| proportional(pid)).sum();
            }
        } else {
            peak = sample.resident();
        }
        {
            let mut samples = shared.samples.lock().expect("no test panics here");
            samples.peak_proportional = samples.peak_proportional.max(peak);
            samples.list.push(sample);
        }
        round += 1;
        next += if closely { CLOSELY_EVERY } else { SAMPLE_EVERY };
        match next.checked_duration_since(Instant::now()) {
            Some(wait) => std::thread::sleep(wait),
            None => next = Instant::now(),
        }
    }
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid as i32).expect("a process id is not zero");
    // ESRCH: it was faster.
    let _ = rustix::process::kill_process(pid, Signal::KILL);
}

/// Sends SIGKILL to a process that a test has started, by its id.
pub fn kill_process(pid: u32) {
    assert!(pid > 1);
    kill(pid);
}

/// Processes that the harness itself has started and will wait for.
static STARTED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Starts a process as one that the harness waits for. Any other child of this process is an orphan that it has
/// inherited as subreaper, and belongs to the tree that is being watched.
///
/// # Errors
/// It cannot be started.
pub fn start(command: &mut Command) -> std::io::Result<Child> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("prctl(PR_SET_CHILD_SUBREAPER)");
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn()?;
    started.insert(child.id());
    Ok(child)
}

/// Runs a helper of the test, such as a client of the program, to its end.
pub fn tool(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = start(command).unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    child.wait_with_output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn orphans() -> Vec<u32> {
    let started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    children(std::process::id()).into_iter().filter(|pid| !started.contains(pid)).collect()
}

/// The name of a process, as in `/proc/PID/comm`.
pub fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn describe(pid: u32, text: &mut String) {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let command = read("cmdline").replace('\0', " ");
    let _ = writeln!(text, "process {pid}: {}", command.trim_end());
    let mut tasks: Vec<PathBuf> = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| task.path())
        .collect();
    tasks.sort();
    for task in tasks {
        let read = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        if read("comm").starts_with("iou-wrk") {
            continue; // idle workers of io_uring, by the dozen
        }
        let state = read("status").lines().find(|line| line.starts_with("State:")).unwrap_or("State: ?").to_owned();
        let stack: Vec<String> = read("stack")
            .lines()
            .take(4)
            .filter_map(|line| line.split_whitespace().nth(1)?.split('+').next().map(str::to_owned))
            .collect();
        let _ = writeln!(
            text,
            "  thread {} {}: {}, in {}, syscall {}",
            task.file_name().unwrap_or_default().to_string_lossy(),
            read("comm").trim(),
            state.trim_start_matches("State:").trim(),
            stack.join(" < "),
            read("syscall").split(' ').next().unwrap_or_default().trim()
        );
    }
}
