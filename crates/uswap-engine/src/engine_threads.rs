//! The engine's threads beside the monitor: handlers, readers ahead, the writer.

use std::sync::atomic::Ordering::Acquire;

use uswap_sys::report::Reason;
use uswap_sys::thread::{self, FileTable};

use crate::engine::Engine;
use crate::{ahead, writer};

/// Stack of an engine thread.
pub const STACK_BYTES: usize = 256 << 10;

/// What a handler thread is started with.
struct HandlerStart {
    engine: &'static Engine,
    cpu: usize,
}

/// Its argument is the engine.
extern "C" fn writer_main(engine: *mut u8) {
    // SAFETY: `start` passes an engine that lives as long as the process.
    #[allow(unsafe_code)]
    let engine = unsafe { &*engine.cast::<Engine>() };
    engine.write_when_called()
}

/// Its argument is the engine.
extern "C" fn ahead_main(engine: *mut u8) {
    // SAFETY: `start` passes an engine that lives as long as the process.
    #[allow(unsafe_code)]
    let engine = unsafe { &*engine.cast::<Engine>() };
    engine.read_ahead()
}

extern "C" fn handler_main(start: *mut u8) {
    // SAFETY: `start` leaked it for this thread.
    #[allow(unsafe_code)]
    let start = unsafe { Box::from_raw(start.cast::<HandlerStart>()) };
    let (engine, cpu) = (start.engine, start.cpu);
    drop(start);
    engine.handler(cpu)
}

/// Starts them; returns their ids.
pub(crate) fn start(engine: &'static Engine) -> Vec<u32> {
    let mut started = Vec::new();
    let cpus: Vec<usize> = thread::allowed_cpus().map(Iterator::collect).unwrap_or_default();
    for cpu in cpus {
        let start = Box::into_raw(Box::new(HandlerStart { engine, cpu }));
        match thread::spawn(c"uswap-fault", STACK_BYTES, FileTable::Share, handler_main, start.cast()) {
            Ok(thread) => started.push(thread.tid()),
            Err(error) => engine.member.alarm(format_args!("uswap: cannot start a fault handler: {}", Reason(&error))),
        }
    }
    if started.is_empty() {
        engine.fatal(format_args!("uswap: no fault handler could be started"));
    }
    for _ in 0..ahead::threads() {
        let start = std::ptr::from_ref(engine).cast_mut().cast();
        match thread::spawn(c"uswap-ahead", STACK_BYTES, FileTable::Share, ahead_main, start) {
            Ok(thread) => started.push(thread.tid()),
            // Every page waits for its fault then.
            Err(error) => engine.member.say(format_args!("uswap: less is read ahead: {}", Reason(&error))),
        }
    }
    if writer::is_affordable() {
        let start = std::ptr::from_ref(engine).cast_mut().cast();
        match thread::spawn(c"uswap-write", STACK_BYTES, FileTable::Share, writer_main, start) {
            Ok(thread) => started.push(thread.tid()),
            // The monitor writes then.
            Err(error) => engine.member.say(format_args!("uswap: writes are not made beside: {}", Reason(&error))),
        }
    }
    // A fork now would copy the heap as it is, locked by a thread that takes its memory, and the child's monitor would
    // wait for that lock for ever.
    while (engine.handlers_ready.load(Acquire) as usize) < started.len() {
        crate::handler::pause();
    }
    started
}
