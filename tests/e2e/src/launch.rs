//! Starts a program, without uswap or under it, and sees it to its end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::charge::{Account, Charges, Group};
use crate::tree::{Sampler, start};
use crate::{MIB, Samples, Stats, TempDir, settings};

/// How long the rest of a tree may take to end after its root.
const LEFT_BEHIND: Duration = Duration::from_secs(20);

/// The flags of `uswap run`.
#[derive(Debug, Clone)]
pub struct Budget {
    /// `--memory`, in bytes.
    pub memory: u64,
    /// Further flags.
    pub flags: Vec<OsString>,
    /// Whether to pass `-q`, so that standard error is the program's alone.
    pub quiet: bool,
}

impl Budget {
    /// A budget, and everything else as it comes.
    pub fn bytes(memory: u64) -> Budget {
        Budget { memory, flags: Vec::new(), quiet: true }
    }

    /// A budget in MiB.
    pub fn mib(memory: u64) -> Budget {
        Budget::bytes(memory * MIB)
    }

    /// One more flag.
    #[must_use]
    pub fn flag(mut self, flag: impl AsRef<OsStr>) -> Budget {
        self.flags.push(flag.as_ref().to_owned());
        self
    }
}

/// A program with all that it needs to run, so that it can be run again and again in the same way.
#[derive(Debug, Clone)]
pub struct Launch {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    stdin: Option<PathBuf>,
    directory: PathBuf,
    time_limit: Duration,
    pipe: bool,
    charged: bool,
    /// Capabilities that uswap does not have either, as setpriv names them.
    without: Option<&'static str>,
}

impl Launch {
    /// A program that runs in the subdirectory `work` of the test's directory. Time limit: two minutes.
    pub fn new(test: &TempDir, program: impl AsRef<OsStr>) -> Launch {
        let directory = test.subdirectory("work");
        let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&directory, everyone).expect("mode of an own directory");
        test.subdirectory("swap");
        test.subdirectory("log");
        Launch {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            stdin: None,
            directory: test.path().to_owned(),
            time_limit: Duration::from_secs(120),
            pipe: false,
            charged: false,
            without: None,
        }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Launch {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Launch {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// An environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Launch {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Standard input from a file; otherwise it is empty.
    #[must_use]
    pub fn stdin(mut self, file: &Path) -> Launch {
        self.stdin = Some(file.to_owned());
        self
    }

    /// How long one run may take; then the tree is killed and the test fails, saying where each thread was.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Launch {
        self.time_limit = limit;
        self
    }

    /// Standard output through a pipe instead of a file. The run ends only when nobody holds the pipe any more.
    #[must_use]
    pub fn through_pipe(mut self) -> Launch {
        self.pipe = true;
        self
    }

    /// With the kernel's account of the memory of the whole tree, `uswap run` included: in a memory cgroup of its own.
    #[must_use]
    pub fn charged(mut self) -> Launch {
        self.charged = true;
        self
    }

    /// Without these capabilities (`-sys_ptrace,-dac_override`), `uswap run` included. For root: who is not has none anyway.
    #[must_use]
    pub fn without(mut self, capabilities: &'static str) -> Launch {
        self.without = crate::is_root().then_some(capabilities);
        self
    }

    /// The directory in which the program runs.
    pub fn work(&self) -> PathBuf {
        self.directory.join("work")
    }

    /// The directory in which uswap keeps swap files.
    pub fn swap(&self) -> PathBuf {
        self.directory.join("swap")
    }

    /// Starts it without uswap.
    pub fn bare(&self) -> Running {
        self.start(None)
    }

    /// Starts it under `uswap run` (without, where `USWAP_E2E_BARE` says so).
    pub fn under(&self, budget: &Budget) -> Running {
        self.start(if settings::bare_only() { None } else { Some(budget) })
    }

    fn start(&self, budget: Option<&Budget>) -> Running {
        static RUN: AtomicU32 = AtomicU32::new(0);
        let run = RUN.fetch_add(1, Ordering::Relaxed);
        let log = |name: &str| self.directory.join("log").join(format!("{run}.{name}"));
        let group = self.charged.then(|| Group::new().expect("see need_charges"));
        let mut command = self.command(budget, group.as_ref(), &log("stats"));
        let (stdout, stderr) = (log("stdout"), log("stderr"));
        let create = |path: &Path| File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let pipe = if self.pipe {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            command.stdout(writer);
            Some(std::thread::spawn(move || read_all(reader)))
        } else {
            command.stdout(create(&stdout));
            None
        };
        command.stderr(create(&stderr));
        no_core_files();
        let before = foreign_files();
        let text = format!("{command:?}");
        let begun = Instant::now();
        let child = start(&mut command).unwrap_or_else(|error| panic!("cannot start {text}: {error}"));
        // The command holds the writing end of the pipe until it is dropped.
        drop(command);
        Running {
            sampler: Some(Sampler::start(child.id(), budget.is_none())),
            account: group.map(Account::of),
            child,
            text,
            begun,
            deadline: begun + settings::time_limit().map_or(self.time_limit, |most| most.min(self.time_limit)),
            pipe,
            stdout,
            stderr,
            stats: budget.map(|_| log("stats")),
            swap: self.swap(),
            before,
        }
    }

    /// The command line, with all but its output.
    fn command(&self, budget: Option<&Budget>, group: Option<&Group>, stats: &Path) -> Command {
        let start_of = |program: &OsStr| {
            let mut words: Vec<OsString> = Vec::new();
            if let Some(group) = group {
                words.extend(["/bin/sh", "-c", "echo $$ >\"$0\" && exec \"$@\""].map(OsString::from));
                words.push(group.entrance().into());
            }
            if let Some(capabilities) = self.without {
                words.push("setpriv".into());
                words.extend(["bounding-set", "inh-caps"].map(|set| format!("--{set}={capabilities}").into()));
            }
            words.push(program.to_owned());
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            command
        };
        let mut command = match budget {
            None => start_of(&self.program),
            Some(budget) => {
                let mut command = start_of(settings::uswap_binary().as_os_str());
                command.arg("run").arg("--memory").arg(budget.memory.to_string());
                command.arg("--stats").arg(stats);
                if budget.quiet {
                    command.arg("-q");
                }
                command.args(&budget.flags).arg("--").arg(&self.program);
                command
            }
        };
        command.args(&self.arguments).current_dir(self.work());
        command.env("LC_ALL", "C.UTF-8").env("TZ", "UTC").env("TMPDIR", self.swap());
        command.env_remove("LD_PRELOAD");
        if budget.is_some() {
            command.env("USWAP_E2E_SWAPS", "1");
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(match &self.stdin {
            Some(path) => Stdio::from(File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))),
            None => Stdio::null(),
        });
        command
    }
}

fn read_all(mut reader: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).expect("a readable pipe");
    bytes
}

/// Programs that die on purpose must not fill the disk.
fn no_core_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Core);
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: limit.maximum }).expect("a lower limit");
}

/// What lies in the common places and may be uswap's.
fn foreign_files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for place in ["/tmp", "/var/tmp", "/dev/shm"] {
        for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.contains("uswap") && !name.starts_with("uswap-e2e-") {
                found.push(entry.path());
            }
        }
    }
    found
}

/// A program that runs. Dropped before its end, it is killed with all its descendants.
pub struct Running {
    child: Child,
    sampler: Option<Sampler>,
    account: Option<Account>,
    text: String,
    begun: Instant,
    deadline: Instant,
    pipe: Option<std::thread::JoinHandle<Vec<u8>>>,
    stdout: PathBuf,
    stderr: PathBuf,
    stats: Option<PathBuf>,
    swap: PathBuf,
    before: Vec<PathBuf>,
}

impl Running {
    /// The process that was started: `uswap run`, or the program where there is no uswap.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The root and its descendants.
    pub fn members(&self) -> Vec<u32> {
        self.sampler.as_ref().map(Sampler::members).unwrap_or_default()
    }

    /// Whether the root is still running.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("an own child").is_none()
    }

    /// What the program has written to standard error so far.
    pub fn stderr_so_far(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// What the program has written to standard output so far.
    pub fn stdout_so_far(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stdout).unwrap_or_default()).into_owned()
    }

    /// Waits until `happened`; fails the test, saying that there was never `what`, when the root ends first or a minute
    /// goes by. Programs are waited for in this way, never by a sleep: from a cold disk one takes a second to start.
    pub fn wait_until(&mut self, what: &str, happened: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !happened(self) {
            if begun.elapsed() > Duration::from_secs(60) || !self.is_running() {
                self.give_up(&format!("never: {what}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills everything.
    pub fn kill_all(&self) {
        if let Some(sampler) = &self.sampler {
            sampler.kill_all();
        }
    }

    /// Fails the test, saying where each thread is.
    pub fn give_up(&mut self, why: &str) -> ! {
        let diagnosis = self.sampler.as_ref().map(Sampler::diagnosis).unwrap_or_default();
        self.kill_all();
        panic!("{why}\n{}\nstandard error:\n{}\n{diagnosis}", self.text, tail(&self.stderr_so_far(), 4000));
    }

    /// Waits for the end of the root, then of everything it has started.
    pub fn finish(mut self) -> Finished {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("an own child") {
                break status;
            }
            if Instant::now() > self.deadline {
                let limit = self.deadline - self.begun;
                self.give_up(&format!("still running after {limit:?}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let wall = self.begun.elapsed();
        let ended = Instant::now();
        while self.members().iter().any(|&pid| pid != self.child.id()) {
            if ended.elapsed() > LEFT_BEHIND {
                self.give_up(&format!(
                    "the root has ended with {status}, but processes are left after {LEFT_BEHIND:?}"
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let stdout = match self.pipe.take() {
            None => std::fs::read(&self.stdout).expect("the program's output"),
            Some(reader) => {
                while !reader.is_finished() {
                    if ended.elapsed() > LEFT_BEHIND {
                        self.give_up("all processes have ended, but somebody holds the pipe of standard output");
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                reader.join().expect("the reader does not panic")
            }
        };
        let finished = Finished {
            status,
            stdout,
            stderr: self.stderr_so_far(),
            wall,
            charges: self.account.take().map(Account::finish).unwrap_or_default(),
            samples: self.sampler.take().expect("it runs until here").finish(),
            stats: self
                .stats
                .take()
                .filter(|path| path.metadata().is_ok_and(|file| file.len() > 0))
                .map(|path| Stats::read(&path)),
            command: std::mem::take(&mut self.text),
        };
        self.assert_nothing_left(&finished);
        finished
    }

    /// Files of our own test must be gone at once. Others may be using the common places at the same time, so
    /// what appears there gets a while to disappear.
    fn assert_nothing_left(&self, finished: &Finished) {
        let swap = std::fs::read_dir(&self.swap).into_iter().flatten().flatten();
        let mut left: Vec<PathBuf> = swap.map(|entry| entry.path()).collect();
        let begun = Instant::now();
        while left.is_empty() && self.stats.is_some() {
            let mut foreign = foreign_files();
            foreign.retain(|path| !self.before.contains(path));
            if foreign.is_empty() {
                return;
            }
            if begun.elapsed() > LEFT_BEHIND {
                left = foreign;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(left.is_empty(), "files left behind: {left:?}\n{finished}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_all();
        // An error means that it has been waited for.
        let _ = self.child.wait();
    }
}

/// A run that has ended.
pub struct Finished {
    /// How the root ended.
    pub status: ExitStatus,
    /// What it wrote.
    pub stdout: Vec<u8>,
    /// And complained.
    pub stderr: String,
    /// From start to the end of the root.
    pub wall: Duration,
    /// Memory over time.
    pub samples: Samples,
    /// What the kernel charged for, where that was asked for.
    pub charges: Charges,
    /// What `uswap run` counted; `None` without uswap, or when it was killed before it could write. Half a file is an
    /// error.
    pub stats: Option<Stats>,
    command: String,
}

impl Finished {
    /// The status as a shell shows it: a signal is 128 and its number.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Fails unless the status is 0.
    pub fn assert_success(&self) {
        assert_eq!(self.code(), 0, "{self}");
    }

    /// Fails when nothing was swapped out: then the run has tested nothing.
    pub fn assert_swapped(&self) {
        if let Some(stats) = &self.stats {
            assert!(stats.pages_swapped_out() > 0, "nothing was swapped out\n{:#}\n{self}", stats.json());
            assert_eq!(stats.number("checksum_failures"), 0, "{:#}\n{self}", stats.json());
        } else {
            assert!(settings::bare_only(), "no statistics\n{self}");
        }
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

fn tail(text: &str, bytes: usize) -> &str {
    let mut from = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}\nstatus {} after {:.1?}, peak {} MiB\nstandard output:\n{}\nstandard error:\n{}",
            self.command,
            self.code(),
            self.wall,
            self.samples.peak().resident() / MIB,
            tail(&self.text(), 2000),
            tail(&self.stderr, 4000)
        )
    }
}
