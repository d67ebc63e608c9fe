//! The watchdog: tells when threads wait for their pages and nobody brings them.
//!
//! It looks from outside, at what holds even if every thread of the engine hangs: the kernel says how many threads wait
//! for each userfaultfd (/proc/self/fdinfo of the supervisor's own descriptor), which threads they are (wchan), and how
//! often each has run (its voluntary switches). A thread that has not run since the last look has waited for all that
//! time. Time counts only as far as it was looked at, in steps of at most [`STEP_MAX`]: neither a stopped supervisor nor
//! a suspended machine makes a stall. A stopped process is none either, nor is one that is frozen; but where its tracer
//! has stopped it and itself waits for one of its pages, that is one.
//! Shared memory is brought in by a process of its own (`server`): there it is that one that must not be stopped, and must get somewhere.
//!
//! Without any page brought in by its process a thread's wait is a stall after [`PATIENCE`]. Where the process gets
//! somewhere, or its handlers compute or wait for a disk, a wait of [`LONG_PATIENCE`] is one: a slow disk and a program that
//! thrashes are no stalls, a thread that is passed over for a minute is.

mod server;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec};
use uswap_engine::group::{Counter, LatencyKind, ProcessSlot, READING_AHEAD};

use server::Asked;
pub use server::SharedServer;

use super::processes::{has_sigkill_pending, read_proc};

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The most that one look adds to a wait.
const STEP_MAX: Duration = Duration::from_secs(2);
/// A wait in a process that gets nowhere.
const PATIENCE: Duration = Duration::from_secs(10);
/// A wait in a process that does.
const LONG_PATIENCE: Duration = Duration::from_secs(60);
/// Threads that a message names.
const NAMED_MAX: usize = 4;

/// What is done about a tree in which threads wait for pages that do not come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnStall {
    /// Says so, and what waits for what
    #[default]
    Warn,
    /// Says so, with all threads and counters
    Dump,
    /// Says so, and ends the tree with status 125
    Kill,
}

/// A process to look at.
pub struct Watched<'a> {
    /// Names its membership.
    pub id: u64,
    /// Its process id.
    pub pid: u32,
    /// Its userfaultfds.
    pub uffds: &'a [OwnedFd],
    /// What it counts.
    pub slot: &'a ProcessSlot,
}

/// What was seen of a process in which threads wait.
#[derive(Default)]
struct Seen {
    progress: u64,
    /// Since the process last got somewhere.
    nowhere: Duration,
    /// Of each thread that waits: how often it had run, and how long it has waited since.
    threads: HashMap<u32, (u64, Duration)>,
    told: bool,
}

/// See the file's head.
pub struct Watchdog {
    looked: Instant,
    seen: HashMap<u64, Seen>,
    /// Of those that are stalled, who has no monitor any more: a seccomp filter has ended it.
    abandoned: Vec<u64>,
}

impl Watchdog {
    /// Looks for the first time in a second.
    pub fn new() -> Watchdog {
        Watchdog { looked: Instant::now(), seen: HashMap::new(), abandoned: Vec::new() }
    }

    /// Whether it is time to look.
    pub fn is_due(&self) -> bool {
        self.looked.elapsed() >= LOOK_EVERY
    }

    /// Looks at all processes, and at who brings in their shared memory. What is new about them that the user must know, or nothing.
    pub fn look<'a>(
        &mut self,
        processes: impl Iterator<Item = Watched<'a>>,
        server: Option<&SharedServer<'_>>,
        detail: bool,
    ) -> Option<String> {
        let step = self.looked.elapsed().min(STEP_MAX);
        self.looked = Instant::now();
        let asked = server.and_then(Asked::look);
        let mut before = std::mem::take(&mut self.seen);
        let (mut text, mut tells_of_server) = (String::new(), false);
        for process in processes {
            let Some(waits) = Waits::look(&process, asked.as_ref()) else { continue };
            let mut seen = before.remove(&process.id).unwrap_or_default();
            if waits.counts() {
                seen.update(&waits, step);
                if seen.is_stalled(&waits) && !std::mem::replace(&mut seen.told, true) {
                    describe(&mut text, &waits, &seen, detail);
                    tells_of_server |= waits.server.is_some();
                    if waits.has_no_monitor() {
                        self.abandoned.push(process.id);
                    }
                }
            }
            self.seen.insert(process.id, seen);
        }
        if let Some(server) = asked.filter(|_| tells_of_server) {
            server.describe(&mut text, detail);
        }
        (!text.is_empty()).then_some(text)
    }

    /// Who was found so since this was last asked.
    pub fn take_abandoned(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.abandoned)
    }
}

/// A process in which threads wait.
struct Waits<'a> {
    process: &'a Watched<'a>,
    threads: Vec<Thread>,
    /// Some may wait for its own engine.
    for_itself: bool,
    /// Some may wait for this one.
    server: Option<&'a Asked<'a>>,
}

impl<'a> Waits<'a> {
    fn look(process: &'a Watched<'a>, asked: Option<&'a Asked<'a>>) -> Option<Waits<'a>> {
        let for_itself = process.uffds.iter().any(|uffd| somebody_waits(uffd.as_fd()));
        let server = asked.filter(|asked| asked.may_be_by(process.pid));
        if !for_itself && server.is_none() {
            return None;
        }
        let mut threads = threads_of(process.pid);
        threads.extend(tracer_that_waits(&threads));
        Some(Waits { process, threads, for_itself, server })
    }

    /// Whether nobody is stopped without whom it cannot go on.
    fn counts(&self) -> bool {
        let is_traced_by_who_waits = self.threads.iter().any(|thread| thread.traces);
        (is_traced_by_who_waits || !self.threads.iter().any(Thread::is_stopped))
            && !self.of_server().iter().any(Thread::is_stopped)
    }

    fn of_server(&self) -> &[Thread] {
        self.server.map_or(&[], |server| &server.threads)
    }

    /// Of those who can bring pages in.
    fn progress(&self) -> u64 {
        progress_of(self.process.slot).wrapping_add(self.server.map_or(0, |server| progress_of(server.slot)))
    }

    /// Whether one of those computes, or waits for a disk.
    fn is_worked_at(&self) -> bool {
        let own = self.threads.iter().filter(|_| self.for_itself);
        own.chain(self.of_server()).any(|thread| thread.is_of_the_engine() && thread.is_at_work())
    }

    fn has_no_monitor(&self) -> bool {
        self.for_itself && !self.threads.is_empty() && !self.threads.iter().any(Thread::is_monitor)
    }
}

impl Seen {
    fn update(&mut self, waits: &Waits<'_>, step: Duration) {
        let Waits { process, threads, .. } = waits;
        let progress = waits.progress();
        self.nowhere = if progress == self.progress { self.nowhere + step } else { Duration::ZERO };
        self.progress = progress;
        let mut before = std::mem::take(&mut self.threads);
        let mut waiting: Vec<(u32, u64)> = threads
            .iter()
            .filter(|thread| thread.waits_for_page())
            .map(|thread| (thread.tid, thread.switches))
            .collect();
        if waiting.is_empty() {
            // Who may not look at the threads knows only that some of them wait.
            waiting.push((process.pid, progress));
        }
        for (tid, switches) in waiting {
            let waited = before.remove(&tid).filter(|(ran, _)| *ran == switches).map(|(_, waited)| waited + step);
            self.threads.insert(tid, (switches, waited.unwrap_or_default()));
        }
        if self.longest() < PATIENCE {
            self.told = false;
        }
    }

    fn longest(&self) -> Duration {
        self.threads.values().map(|(_, waited)| *waited).max().unwrap_or_default()
    }

    fn is_stalled(&self, waits: &Waits<'_>) -> bool {
        self.longest() >= LONG_PATIENCE || (self.longest().min(self.nowhere) >= PATIENCE && !waits.is_worked_at())
    }
}

/// Grows with everything that brings a page nearer to its thread. What is counted at each attempt is left out.
fn progress_of(slot: &ProcessSlot) -> u64 {
    let counted = Counter::ALL.iter().filter(|counter| !matches!(counter, Counter::UffdTryAgain | Counter::Pgfault));
    let answered: u64 = LatencyKind::ALL.iter().map(|kind| slot.tally.latency(*kind).count()).sum();
    counted.map(|counter| slot.tally.get(*counter)).fold(answered, u64::wrapping_add)
}

/// Whether a thread waits for this one, by the kernel's own count: for a page, or until an event is read.
fn somebody_waits(uffd: BorrowedFd<'_>) -> bool {
    faults_waiting(uffd) > 0 || has_messages(uffd)
}

fn faults_waiting(uffd: BorrowedFd<'_>) -> u64 {
    let path = format!("/proc/thread-self/fdinfo/{}", uffd.as_raw_fd());
    let text = read_proc(path).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("total:")?.trim().parse().ok()).unwrap_or(0)
}

fn has_messages(uffd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(uffd, PollFlags::IN)];
    let _ = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    fds[0].revents().contains(PollFlags::IN)
}

/// A thread as /proc shows it.
#[derive(Debug, Default)]
struct Thread {
    tid: u32,
    name: String,
    state: char,
    /// Where in the kernel it sleeps; "0" where that is not told.
    wchan: String,
    /// The number of the system call that it is in.
    syscall: Option<i64>,
    switches: u64,
    /// The process that traces it, or 0.
    tracer: u32,
    /// SIGKILL is pending: its process was killed, or ends, or executes.
    is_killed: bool,
    /// Is not one of the process, but of the one that traces it.
    traces: bool,
}

impl Thread {
    fn read(pid: u32, tid: u32) -> Option<Thread> {
        let read = |file: &str| read_proc(format!("/proc/{pid}/task/{tid}/{file}"));
        let mut thread = Thread { tid, wchan: read_wchan(pid, tid), ..Thread::default() };
        let syscall = read("syscall").unwrap_or_default();
        thread.syscall = syscall.split(' ').next().and_then(|number| number.parse().ok()).filter(|number| *number >= 0);
        thread.take_status(&read("status").ok()?);
        Some(thread)
    }

    fn take_status(&mut self, status: &str) {
        for line in status.lines() {
            match line.split_once(':').map(|(key, value)| (key, value.trim())) {
                Some(("Name", name)) => name.clone_into(&mut self.name),
                Some(("State", state)) => self.state = state.chars().next().unwrap_or('?'),
                Some(("TracerPid", tracer)) => self.tracer = tracer.parse().unwrap_or(0),
                Some((key, mask)) if has_sigkill_pending(key, mask) => self.is_killed = true,
                Some(("voluntary_ctxt_switches", count)) => self.switches = count.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    fn waits_for_page(&self) -> bool {
        is_wait_for_page(&self.wchan) && !self.is_of_the_engine()
    }

    fn is_monitor(&self) -> bool {
        self.name == "uswap-monitor"
    }

    fn is_of_the_engine(&self) -> bool {
        self.name.starts_with("uswap-")
    }

    /// By SIGSTOP or a debugger, or in a frozen cgroup.
    fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't') || self.wchan.contains("freez") || self.wchan.contains("refrigerator")
    }

    /// Computes, or waits for a disk. Who is stopped in a call that reads a disk does neither.
    fn is_at_work(&self) -> bool {
        !self.is_stopped() && (matches!(self.state, 'R' | 'D') || self.syscall.is_some_and(is_io))
    }
}

/// Whether a system call waits for a disk.
fn is_io(number: i64) -> bool {
    [
        libc::SYS_io_uring_enter,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_preadv,
        libc::SYS_pwritev,
        libc::SYS_preadv2,
        libc::SYS_pwritev2,
        libc::SYS_fallocate,
    ]
    .contains(&number)
}

/// In handle_userfault, or userfaultfd_event_wait_completion.
fn is_wait_for_page(wchan: &str) -> bool {
    wchan.contains("userfault")
}

fn read_wchan(pid: u32, tid: u32) -> String {
    read_proc(format!("/proc/{pid}/task/{tid}/wchan")).unwrap_or_default().trim().to_owned()
}

fn tids_of(pid: u32) -> impl Iterator<Item = u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
}

fn threads_of(pid: u32) -> Vec<Thread> {
    tids_of(pid).filter_map(|tid| Thread::read(pid, tid)).collect()
}

/// Of many processes this is asked: most threads of most of them wait for something else.
fn someone_waits_for_page(pid: u32) -> bool {
    tids_of(pid).any(|tid| is_wait_for_page(&read_wchan(pid, tid)))
}

/// Whether no thread of a process that was killed will run the program again: their ends have only to be seen, by its tracer first.
pub fn is_over(pid: u32) -> bool {
    threads_of(pid).iter().all(|thread| matches!(thread.state, 'Z' | 'X') || (thread.state == 't' && thread.is_killed))
}

/// Whether a process ends or executes, and some of its threads have not ended yet: one may wait for a disk.
pub fn is_ending(pid: u32) -> bool {
    threads_of(pid).iter().any(|thread| thread.is_killed)
}

/// The thread that traces some of these, if it waits for a page: it will not let go on whom it has stopped.
fn tracer_that_waits(threads: &[Thread]) -> Option<Thread> {
    let tracer = threads.iter().find(|thread| thread.is_stopped() && thread.tracer != 0)?.tracer;
    let thread = threads_of(tracer).into_iter().find(Thread::waits_for_page)?;
    Some(Thread { traces: true, ..thread })
}

fn describe(text: &mut String, waits: &Waits<'_>, seen: &Seen, detail: bool) {
    let Waits { process, threads, for_itself, .. } = waits;
    let name = threads.iter().find(|thread| thread.tid == process.pid).map_or("?", |thread| thread.name.as_str());
    let (count, longest) = (seen.threads.len(), seen.longest().as_secs());
    let _ = writeln!(
        text,
        "uswap: stalled: process {} ({name}): {count} {} for pages that do not come, the longest for {longest} s",
        process.pid,
        if count == 1 { "thread waits" } else { "threads wait" }
    );
    let waiting = threads.iter().filter(|thread| seen.threads.contains_key(&thread.tid));
    // Where nobody waits for them they have nothing to do with it.
    let engine = threads.iter().filter(|thread| thread.is_of_the_engine() && (*for_itself || detail));
    let others = threads.iter().filter(|thread| !thread.is_of_the_engine() && !seen.threads.contains_key(&thread.tid));
    let named = if detail { usize::MAX } else { NAMED_MAX };
    waiting.take(named).chain(engine).for_each(|thread| describe_thread(text, thread));
    for (handler, address) in process.slot.being_served() {
        let _ = match handler {
            READING_AHEAD => writeln!(text, "uswap:   reading ahead is at page {address:#x}"),
            _ => writeln!(text, "uswap:   handler {handler} is at page {address:#x}"),
        };
    }
    if detail {
        others.for_each(|thread| describe_thread(text, thread));
        describe_counts(text, process.slot);
    }
}

fn describe_thread(text: &mut String, thread: &Thread) {
    let Thread { tid, name, state, wchan, syscall, .. } = thread;
    let place = if wchan.is_empty() || wchan == "0" { "an unknown place" } else { wchan };
    let who = if thread.traces { "who traces it, thread" } else { "thread" };
    let _ = write!(text, "uswap:   {who} {tid} ({name}), state {state}, in {place}");
    let _ = match syscall {
        Some(number) => writeln!(text, ", system call {number}"),
        None => writeln!(text),
    };
}

fn describe_counts(text: &mut String, slot: &ProcessSlot) {
    use std::sync::atomic::Ordering::Relaxed;
    let _ = writeln!(
        text,
        "uswap:   pages: {} resident, {} managed, {} swapped out",
        slot.resident_pages(),
        slot.managed.pages.load(Relaxed),
        slot.managed.swapped_pages.load(Relaxed)
    );
    let counts = Counter::ALL.iter().map(|counter| (counter.name(), slot.tally.get(*counter)));
    let counts: Vec<String> =
        counts.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    let _ = writeln!(text, "uswap:   counts: {}", counts.join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_engine::group::{Group, GroupConfig};

    fn waiting(tid: u32, switches: u64) -> Thread {
        Thread { tid, switches, state: 'S', wchan: "handle_userfault".into(), ..Thread::default() }
    }

    fn handler(state: char, syscall: Option<i64>) -> Thread {
        Thread { tid: 9, name: "uswap-fault".into(), state, syscall, ..Thread::default() }
    }

    /// Whether a process of these threads, looked at once a second for so long, is stalled.
    fn is_stalled_after(seconds: u32, mut threads: impl FnMut(u32, &ProcessSlot) -> Vec<Thread>) -> bool {
        let (group, _fd) = Group::create(&GroupConfig { memory_limit_bytes: 64 << 20, ..Default::default() }).unwrap();
        let slot = group.process(0);
        let process = Watched { id: 1, pid: 1, uffds: &[], slot };
        let mut waits = Waits { process: &process, threads: Vec::new(), for_itself: true, server: None };
        let mut seen = Seen::default();
        for second in 0..seconds {
            waits.threads = threads(second, slot);
            seen.update(&waits, Duration::from_secs(1));
        }
        seen.is_stalled(&waits)
    }

    /// The same of one whose threads wait for the shared-memory server, of these threads.
    fn is_stalled_by_server(seconds: u32, mut threads: impl FnMut(&ProcessSlot) -> Vec<Thread>) -> bool {
        let (group, _fd) = Group::create(&GroupConfig { memory_limit_bytes: 64 << 20, ..Default::default() }).unwrap();
        let process = Watched { id: 1, pid: 1, uffds: &[], slot: group.process(0) };
        let mut seen = Seen::default();
        (0..seconds).fold(false, |_, _| {
            let asked = Asked::of(group.process(1), threads(group.process(1)));
            // Its own engine works, at something else.
            let threads = vec![waiting(1, 5), handler('R', None)];
            let waits = Waits { process: &process, threads, for_itself: false, server: Some(&asked) };
            if waits.counts() {
                seen.update(&waits, Duration::from_secs(1));
            }
            seen.is_stalled(&waits)
        })
    }

    /// Its tracer may have stopped it in any call.
    #[test]
    fn a_handler_that_was_stopped_while_it_read_a_disk_is_not_at_work() {
        let reads = Some(libc::SYS_pread64);
        assert!(!is_stalled_after(30, |_, _| vec![waiting(1, 5), handler('S', reads)]), "it reads a disk");
        for state in ['t', 'T'] {
            assert!(is_stalled_after(30, |_, _| vec![waiting(1, 5), handler(state, reads)]), "{state}");
        }
    }

    #[test]
    fn who_waits_for_the_server_waits_for_what_that_does() {
        assert!(is_stalled_by_server(12, |_| vec![handler('S', None)]));
        assert!(!is_stalled_by_server(50, |_| vec![handler('R', None)]));
        assert!(!is_stalled_by_server(50, |slot| {
            slot.tally.add(Counter::Pswpin, 1);
            vec![handler('S', None)]
        }));
        assert!(is_stalled_by_server(70, |_| vec![handler('D', None)]));
        assert!(!is_stalled_by_server(200, |_| vec![handler('T', None)]), "it is stopped");
    }

    #[test]
    fn a_thread_that_waits_while_nothing_happens_is_a_stall() {
        assert!(is_stalled_after(12, |_, _| vec![waiting(1, 5), handler('S', None)]));
        assert!(!is_stalled_after(9, |_, _| vec![waiting(1, 5), handler('S', None)]));
    }

    #[test]
    fn who_ran_meanwhile_has_not_waited() {
        assert!(!is_stalled_after(200, |second, _| vec![waiting(1, u64::from(second / 8)), handler('S', None)]));
    }

    #[test]
    fn a_disk_and_a_process_that_gets_somewhere_have_more_time() {
        let disk = |_: u32, _: &ProcessSlot| vec![waiting(1, 5), handler('S', Some(libc::SYS_io_uring_enter))];
        assert!(!is_stalled_after(50, disk));
        assert!(is_stalled_after(70, disk));
        let busy = |_: u32, slot: &ProcessSlot| {
            slot.tally.add(Counter::Pswpin, 1);
            vec![waiting(1, 5), handler('S', None)]
        };
        assert!(!is_stalled_after(50, busy));
        assert!(is_stalled_after(70, busy));
    }

    #[test]
    fn attempts_that_come_to_nothing_are_no_progress() {
        assert!(is_stalled_after(12, |_, slot| {
            slot.tally.add(Counter::UffdTryAgain, 1);
            slot.tally.add(Counter::Pgfault, 1);
            vec![waiting(1, 5), handler('S', None)]
        }));
    }

    #[test]
    fn where_threads_may_not_be_looked_at_the_process_counts() {
        assert!(is_stalled_after(12, |_, _| Vec::new()));
    }

    #[test]
    fn who_traces_and_waits_for_a_page_is_a_stall() {
        let tracer = || Thread { traces: true, ..waiting(20, 5) };
        assert!(is_stalled_after(12, |_, _| vec![handler('t', None), tracer()]));
    }

    #[test]
    fn a_thread_is_read_from_proc() {
        let me = threads_of(std::process::id());
        assert!(me.iter().any(|thread| thread.state == 'R' && !thread.name.is_empty()));
        let mut thread = Thread::default();
        thread.take_status(
            "Name:\ta b\nState:\tT (stopped)\nTracerPid:\t8\nShdPnd:\t0000000000000100\nvoluntary_ctxt_switches:\t17\n",
        );
        assert_eq!((thread.name.as_str(), thread.state, thread.switches), ("a b", 'T', 17));
        assert!(thread.is_stopped());
        assert!(thread.tracer == 8 && thread.is_killed);
    }
}
