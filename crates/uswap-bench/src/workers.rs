//! Who runs a pattern: one thread, several, or several processes that share the memory. All warm up, and are let go at once.
//!
//! Each works in a part of its own. Of shared memory a process warms up one part and is measured in the next, which another has warmed
//! up: what it touches has been in other processes before.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

use rustix::process::{Pid, WaitOptions};
use serde::{Deserialize, Serialize};
use uswap_sys::launch::{self, Side};
use uswap_sys::rusage::ProcessUsage;

use crate::memory::{Memory, Part, WrongData};
use crate::order::{Chance, mix};
use crate::workload::{ALL_BACK, Load, PARENT, Samples, Workload};

/// The raw figures of a measured phase.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// From the first access to the last.
    pub seconds: f64,
    /// User and system time.
    pub cpu_seconds: (f64, f64),
    /// Major and minor faults.
    pub faults: (u64, u64),
    /// Times of single accesses.
    pub nanos: Vec<u32>,
}

impl Measured {
    /// Of what began at `start`, with that `usage` of the process.
    pub fn since(start: Instant, usage: &ProcessUsage, samples: Samples) -> Measured {
        let seconds = start.elapsed().as_secs_f64();
        let spent = ProcessUsage::now().since(usage);
        Measured {
            seconds,
            cpu_seconds: (spent.user.as_secs_f64(), spent.system.as_secs_f64()),
            faults: (spent.major_faults, spent.minor_faults),
            nanos: samples.nanos,
        }
    }
}

/// What one worker does.
struct Work<'a> {
    workload: Workload,
    seed: u64,
    part_pages: u64,
    warm_up: &'a Part<'a>,
    measured: &'a Part<'a>,
}

impl Work<'_> {
    /// Warms up, calls `when_warm`, which waits for the others, and runs the pattern. A wrong word is told after that: the others wait
    /// there.
    fn run(&self, when_warm: impl FnOnce()) -> Result<Measured, WrongData> {
        // Where an area is turned off, workers only have what is on it.
        let accesses = match self.workload {
            Workload::Swapoff => 0,
            workload => workload.measured_accesses(self.part_pages),
        };
        let mut chance = Chance::new(self.seed);
        let mut samples = Samples::with_room_for(accesses);
        let warmed =
            self.warm_up.run(self.workload, self.workload.warm_up_accesses(self.part_pages), &mut chance, None);
        when_warm();
        let (usage, start) = (ProcessUsage::now(), Instant::now());
        warmed?;
        if accesses > 0 {
            self.measured.run(self.workload, accesses, &mut chance, Some(&mut samples))?;
        }
        Ok(Measured::since(start, &usage, samples))
    }

    /// The same, in a process of its own.
    fn run_for(&self, parent: &mut UnixStream) -> io::Result<()> {
        let mut heard = Ok(());
        let measured = self.run(|| heard = parent.write_all(b"w").and_then(|()| parent.read_exact(&mut [0])));
        heard?;
        parent.write_all(b"d")?;
        parent.write_all(&serde_json::to_vec(&measured)?)
    }
}

/// Runs warm-up and pattern.
pub fn measure(args: &Load, memory: &Memory, part_pages: u64) -> Result<Measured, WrongData> {
    let parts = memory.parts(part_pages);
    let work = |index: usize| Work {
        workload: args.workload,
        seed: if parts.len() == 1 { args.seed } else { args.seed ^ mix(index as u64 + 1) },
        part_pages,
        warm_up: &parts[index],
        measured: &parts[if args.shared { (index + 1) % parts.len() } else { index }],
    };
    let works: Vec<Work<'_>> = (0..parts.len()).map(work).collect();
    match works.as_slice() {
        works if args.shared => in_processes(works),
        [work] if args.workload != Workload::Swapoff => work.run(|| {}),
        works => in_threads(works),
    }
}

/// What the leader of the workers does while they are measured, or instead.
fn lead(workload: Workload) {
    if workload == Workload::Swapoff {
        all_back();
    }
}

/// Runs the command that brings all memory back under this back end; without one there is nothing to bring.
fn all_back() {
    let Some(command) = std::env::var_os(ALL_BACK) else { return };
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let status = Command::new("/bin/sh").arg("-c").arg(command).env(PARENT, parent.to_string()).status();
    assert!(status.is_ok_and(|status| status.success()), "the swap area cannot be turned off");
}

fn in_threads(works: &[Work<'_>]) -> Result<Measured, WrongData> {
    let warm = Barrier::new(works.len() + 1);
    let go = Barrier::new(works.len() + 1);
    let wait = || {
        warm.wait();
        go.wait();
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = works.iter().map(|work| scope.spawn(move || work.run(wait))).collect();
        warm.wait();
        let (usage, start) = (ProcessUsage::now(), Instant::now());
        lead(works[0].workload);
        go.wait();
        let found: Vec<_> =
            workers.into_iter().map(|worker| worker.join().expect("a load thread does not panic")).collect();
        // By the clock of all, and of the whole process.
        let mut measured = Measured::since(start, &usage, Samples::with_room_for(0));
        for one in found {
            measured.nanos.extend(one?.nanos);
        }
        Ok(measured)
    })
}

/// A forked process that runs a pattern.
struct Process {
    pid: u32,
    socket: UnixStream,
}

impl Process {
    /// Begins with the warm-up.
    fn begin(work: &Work<'_>, others: &mut Vec<Process>) -> io::Result<Process> {
        let (ours, mut theirs) = UnixStream::pair()?;
        match launch::fork()? {
            Side::Parent(pid) => Ok(Process { pid, socket: ours }),
            Side::Child => {
                // It ends when its parent does.
                others.clear();
                drop(ours);
                std::process::exit(i32::from(work.run_for(&mut theirs).is_err()))
            }
        }
    }

    /// Hears one word of it.
    fn hear(&mut self) -> io::Result<()> {
        self.socket.read_exact(&mut [0])
    }

    fn let_go(&mut self) -> io::Result<()> {
        self.socket.write_all(b"g")
    }

    /// Its figures. It has ended then.
    fn end(mut self) -> io::Result<Result<Measured, WrongData>> {
        let mut told = Vec::new();
        self.socket.read_to_end(&mut told)?;
        rustix::process::waitpid(Pid::from_raw(self.pid as i32), WaitOptions::empty())?;
        Ok(serde_json::from_slice(&told)?)
    }
}

fn in_processes(works: &[Work<'_>]) -> Result<Measured, WrongData> {
    let run = || {
        let mut processes = Vec::new();
        for work in works {
            let process = Process::begin(work, &mut processes)?;
            processes.push(process);
        }
        processes.iter_mut().try_for_each(Process::hear)?;
        let start = Instant::now();
        lead(works[0].workload);
        processes.iter_mut().try_for_each(Process::let_go)?;
        processes.iter_mut().try_for_each(Process::hear)?;
        let seconds = start.elapsed().as_secs_f64();
        let found: io::Result<Vec<_>> = processes.into_iter().map(Process::end).collect();
        Ok::<_, io::Error>((seconds, found?))
    };
    let (seconds, found) = run().expect("no process of the load ends before its time");
    let mut all = Measured { seconds, ..Measured::default() };
    for one in found {
        let one = one?;
        all.cpu_seconds = (all.cpu_seconds.0 + one.cpu_seconds.0, all.cpu_seconds.1 + one.cpu_seconds.1);
        all.faults = (all.faults.0 + one.faults.0, all.faults.1 + one.faults.1);
        all.nanos.extend(one.nanos);
    }
    Ok(all)
}
