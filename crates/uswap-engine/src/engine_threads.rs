//! The engine's threads beside the monitor: handlers, readers ahead, the writer.
//!
//! The first handler is made before there is an engine, and waits for it: where no thread can be made, nothing has happened
//! yet that could not be undone. What a thread works with is taken before the thread is made, so one that runs lacks nothing.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use uswap_sys::futex::Word;
use uswap_sys::linux::Linux;
use uswap_sys::report::Reason;
use uswap_sys::thread::{self, FileTable, RawThread};

use crate::engine::{BATCH, Engine};
use crate::group::Compressor;
use crate::host::Host;
use crate::staffed::{Staffed, Threads};
use crate::worker::Worker;
use crate::{ahead, writer};

/// Stack of an engine thread.
pub const STACK_BYTES: usize = 256 << 10;

/// What a thread is started with.
struct Start<H: Host> {
    /// The engine, or null as long as there is none.
    engine: AtomicPtr<Engine<H>>,
    state: Word,
    cpu: usize,
    worker: AtomicPtr<Worker>,
}

const WAITING: u32 = 0;
const GO: u32 = 1;
/// There will be no engine.
const END: u32 = 2;

impl<H: Host> Start<H> {
    fn new(engine: Option<&'static Engine<H>>, cpu: usize, worker: Worker) -> &'static Start<H> {
        let state = Word::new(if engine.is_some() { GO } else { WAITING });
        let engine =
            AtomicPtr::new(engine.map_or(std::ptr::null_mut(), |engine| std::ptr::from_ref(engine).cast_mut()));
        Box::leak(Box::new(Start { engine, state, cpu, worker: AtomicPtr::new(Box::into_raw(Box::new(worker))) }))
    }

    fn take_worker(&self) -> Worker {
        let worker = self.worker.swap(std::ptr::null_mut(), Acquire);
        // SAFETY: `new` put it there, and it is taken once: by the thread, or for want of a thread.
        *unsafe { Box::from_raw(worker) }
    }

    /// What the thread of `start` is to work on; `None` when there is nothing.
    ///
    /// # Safety
    /// `start` is what [`Start::new`] gave.
    unsafe fn begin(start: *mut u8) -> Option<(&'static Engine<H>, usize, Worker)> {
        // SAFETY: the caller's promise; it is never freed.
        let start: &'static Start<H> = unsafe { &*start.cast::<Start<H>>() };
        if start.state.wait_while(WAITING) == END {
            drop(start.take_worker());
            return None;
        }
        // SAFETY: an engine lives as long as the process, and it is there before the state says so.
        let engine = unsafe { &*start.engine.load(Acquire) };
        Some((engine, start.cpu, start.take_worker()))
    }
}

extern "C" fn writer_main<H: Host>(start: *mut u8) {
    // SAFETY: `spawn` passes what `Start::new` gave.
    if let Some((engine, _, worker)) = unsafe { Start::<H>::begin(start) } {
        thread::prefer();
        engine.write_when_called(worker)
    }
}

extern "C" fn ahead_main<H: Host>(start: *mut u8) {
    // SAFETY: as above.
    if let Some((engine, _, worker)) = unsafe { Start::<H>::begin(start) } {
        engine.read_ahead(worker)
    }
}

extern "C" fn handler_main<H: Host>(start: *mut u8) {
    // SAFETY: as above.
    if let Some((engine, cpu, worker)) = unsafe { Start::<H>::begin(start) } {
        let _ = thread::pin_to_cpu(cpu);
        thread::prefer();
        engine.handler(cpu, worker)
    }
}

fn spawn<H: Host>(
    name: &CStr,
    main: extern "C" fn(*mut u8),
    engine: Option<&'static Engine<H>>,
    cpu: usize,
    worker: Worker,
) -> io::Result<(&'static Start<H>, RawThread)> {
    let start = Start::new(engine, cpu, worker);
    let argument = std::ptr::from_ref(start).cast_mut().cast();
    match thread::spawn(name, STACK_BYTES, FileTable::Share, main, argument) {
        Ok(thread) => Ok((start, thread)),
        Err(error) => {
            drop(start.take_worker());
            Err(error)
        }
    }
}

/// The threads: one handler, which waits for its engine, and ends when this is dropped.
pub struct EngineThreads<H: Host> {
    start: &'static Start<H>,
    thread: Option<RawThread>,
    /// The CPUs that have no handler yet.
    others: Vec<usize>,
}

impl Staffed for Linux {
    type Threads = EngineThreads<Linux>;
}

impl<H: Host> Threads<H> for EngineThreads<H> {
    fn prepare(compressor: Compressor) -> io::Result<Self> {
        let mut others: Vec<usize> = thread::allowed_cpus()?.collect();
        let cpu = if others.is_empty() { 0 } else { others.remove(0) };
        let worker = Worker::new::<H>(compressor, BATCH, BATCH)?;
        let (start, thread) = spawn(c"uswap-fault", handler_main::<H>, None, cpu, worker)?;
        Ok(EngineThreads { start, thread: Some(thread), others })
    }

    fn begin(mut self, engine: &'static Engine<H>) -> Vec<u32> {
        let first = self.thread.take().expect("it ends only when it is dropped");
        self.start.engine.store(std::ptr::from_ref(engine).cast_mut(), Release);
        self.start.state.store_and_wake(GO);
        let mut started = vec![first.tid()];
        if let Err(error) = start_others(engine, &std::mem::take(&mut self.others), &mut started) {
            // Faults are served one after the other, every page waits for its fault, and the monitor writes.
            engine.member.alarm(format_args!(
                "uswap: process {} swaps with {} threads, fewer than it should have: {}",
                std::process::id(),
                started.len(),
                Reason(&error)
            ));
        }
        // A fork now would copy the heap as it is, locked by a thread that takes its memory, and the child's monitor would
        // wait for that lock for ever.
        while (engine.staff.ready()) < started.len() {
            crate::pause::pause::<H>();
        }
        started
    }
}

impl<H: Host> Drop for EngineThreads<H> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.start.state.store_and_wake(END);
            thread.join();
        }
    }
}

/// Stops at the first that cannot be had. What is set aside is not for them.
fn start_others<H: Host>(engine: &'static Engine<H>, cpus: &[usize], started: &mut Vec<u32>) -> io::Result<()> {
    let compressor = engine.member.group.config().compressor;
    type Make<'a> = &'a dyn Fn() -> io::Result<Worker>;
    let mut add = |name, main, cpu, make: Make<'_>| -> io::Result<()> {
        if !H::reserve_is_whole() {
            return Err(rustix::io::Errno::NOMEM.into());
        }
        started.push(spawn(name, main, Some(engine), cpu, make()?)?.1.tid());
        Ok(())
    };
    for &cpu in cpus {
        add(c"uswap-fault", handler_main::<H>, cpu, &|| Worker::new::<H>(compressor, BATCH, BATCH))?;
    }
    for _ in 0..ahead::threads() {
        add(c"uswap-ahead", ahead_main::<H>, 0, &|| ahead::worker::<H>(compressor))?;
    }
    if writer::is_affordable() {
        add(c"uswap-write", writer_main::<H>, 0, &|| Worker::new::<H>(compressor, BATCH, BATCH))?;
    }
    Ok(())
}
