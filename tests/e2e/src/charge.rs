//! What a tree really has, each page once: the kernel's own account of a memory cgroup without a limit.
//!
//! Sums of what each process has resident count shared pages in each of them. Where no cgroup can be made, there is no
//! account, and whoever wants one says that it is skipped.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::settings;

/// How often the account is read.
const SAMPLE_EVERY: Duration = Duration::from_millis(2);

/// Where version 1 keeps its memory cgroups, and what resident anonymous and shared memory is called there; and version 2.
const HIERARCHIES: [(&str, [&str; 2]); 2] =
    [("/sys/fs/cgroup/memory", ["rss ", "shmem "]), ("/sys/fs/cgroup", ["anon ", "shmem "])];

/// A cgroup of its own, removed when dropped.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    fields: [&'static str; 2],
}

impl Group {
    /// Makes one; `None` where that cannot be done.
    pub(crate) fn new() -> Option<Group> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("uswap-e2e-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        HIERARCHIES.iter().find_map(|(root, fields)| {
            let group = Group { path: Path::new(root).join(&name), fields: *fields };
            std::fs::create_dir(&group.path).ok()?;
            // Version 2 has the file only where its root gives the controller to its children.
            group.bytes().map(|_| group)
        })
    }

    /// The file into which a process writes its id to enter.
    pub(crate) fn entrance(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Resident anonymous and shared memory of all in it.
    fn bytes(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.path.join("memory.stat")).ok()?;
        let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
        Some(number(self.fields[0])? + number(self.fields[1])?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Who has just been killed leaves it a moment later.
        let begun = Instant::now();
        while std::fs::remove_dir(&self.path).is_err() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The account over time.
#[derive(Debug, Clone, Default)]
pub struct Charges {
    /// When, and how many bytes.
    pub list: Vec<(Duration, u64)>,
}

impl Charges {
    /// The most.
    pub fn peak(&self) -> u64 {
        self.list.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0)
    }

    /// For how long it was above so many bytes.
    pub fn above(&self, bytes: u64) -> Duration {
        let pairs = self.list.iter().zip(self.list.iter().skip(1));
        pairs.filter(|((_, before), _)| *before > bytes).map(|((from, _), (to, _))| *to - *from).sum()
    }
}

/// Reads the account of a cgroup until it is told to stop.
#[derive(Debug)]
pub(crate) struct Account {
    charges: Arc<Mutex<Charges>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Account {
    /// Begins.
    pub(crate) fn of(group: Group) -> Account {
        let (charges, stop) = (Arc::new(Mutex::new(Charges::default())), Arc::new(AtomicBool::new(false)));
        let (kept, stopped, begun) = (charges.clone(), stop.clone(), Instant::now());
        let thread = std::thread::Builder::new().name("account".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(bytes) = group.bytes() {
                    kept.lock().expect("nobody panics with it").list.push((begun.elapsed(), bytes));
                }
                std::thread::sleep(SAMPLE_EVERY);
            }
        });
        Account { charges, stop, thread: Some(thread.expect("a thread")) }
    }

    /// Ends, and removes the cgroup, which must be empty by then.
    pub(crate) fn finish(mut self) -> Charges {
        self.end();
        std::mem::take(&mut *self.charges.lock().expect("nobody panics with it"))
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it does not panic");
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether the tests can make memory cgroups; says that the test is skipped if not.
pub fn need_charges() -> bool {
    let can = Group::new().is_some();
    if !can {
        assert!(!settings::strict() || !crate::is_root(), "a memory cgroup cannot be made");
        crate::skip("no memory cgroup can be made (root, and cgroups mounted for writing)");
    }
    can
}
