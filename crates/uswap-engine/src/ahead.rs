//! Reading ahead: threads that bring what a stream will want next, while the program works in what it has.
//!
//! The same threads empty areas that leave: see `swapoff`.
//!
//! Nobody waits for these pages, so nothing is lost by giving up: what cannot be had at once, for want of room or because an
//! event is unread, is left where it is, for the fault that may ask for it.

use std::sync::atomic::Ordering::*;

use uswap_core::fault::MAX_WINDOW;
use uswap_core::tuning::{self, AHEAD_PAGES, AHEAD_STRETCHES, SWAPOFF_PAGES, SWAPOFF_PAUSE};
use uswap_sys::call::descriptors_are_scarce;
use uswap_system::Scope;

use crate::engine::Engine;
use crate::group::{Compressor, Counter};
use crate::host::Host;
use crate::load::Load;
use crate::phase::Entry;
use crate::swapoff::Emptied;
use crate::worker::Worker;

/// How many threads a process gets. Each has a ring, which is a descriptor.
pub(crate) fn threads() -> u32 {
    if descriptors_are_scarce() { 0 } else { tuning::AHEAD_THREADS }
}

/// What a thread that reads ahead keeps between its turns.
pub struct Reader {
    loads: Vec<Load>,
    /// The announcement of the group that it has heard last.
    heard: u32,
}

/// What such a thread works with.
///
/// # Errors
/// There is no memory for it.
pub fn worker<H: Host>(compressor: Compressor) -> std::io::Result<Worker> {
    Worker::new::<H>(compressor, AHEAD_PAGES, SWAPOFF_PAGES)
}

impl<H: Host> Engine<H> {
    /// The life of such a thread.
    pub fn read_ahead(&self, mut worker: Worker) -> ! {
        let mut reader = self.reader_begins();
        loop {
            self.reader_turn(&mut reader, &mut worker);
        }
    }

    /// A thread that reads ahead has begun.
    pub fn reader_begins(&self) -> Reader {
        self.staff.ahead.begins();
        let loads = Vec::with_capacity(SWAPOFF_PAGES / MAX_WINDOW);
        // Last: from here on a fork may come, and must find nobody in the heap.
        self.thread_begins();
        Reader { loads, heard: self.member.group.announcements() }
    }

    /// Reads what there is to be read, and waits for a call.
    pub fn reader_turn(&self, reader: &mut Reader, worker: &mut Worker) {
        let Reader { loads, heard } = reader;
        let (group, slot) = (self.member.group, self.member.slot());
        let calls = slot.called.calls.load(Acquire);
        let announced = group.announcements();
        if std::mem::replace(heard, announced) != announced {
            // The budget may be another.
            self.forking.post.ring();
        }
        let mut emptied = Emptied::Later;
        let mut filled = false;
        while let Entry::Running(_guard) = self.enter() {
            if self.read_some_ahead(loads, worker) {
                continue;
            }
            emptied = self.empty_areas(loads, worker);
            if emptied != Emptied::Some {
                break;
            }
            filled = true;
        }
        if filled {
            worker.trim_buffer::<H>(AHEAD_PAGES);
        }
        let pause = (emptied != Emptied::All).then_some(SWAPOFF_PAUSE);
        let _ = H::wait(&slot.called.calls, Scope::Shared, calls, pause);
    }

    /// Whether there may be more.
    fn read_some_ahead(&self, loads: &mut Vec<Load>, worker: &mut Worker) -> bool {
        if !self.pressure.has_room_to_read_ahead() {
            return false;
        }
        {
            let _gate = self.memory.gate.pass();
            let mut core = self.core();
            while loads.len() < AHEAD_STRETCHES {
                let Some(plan) = core.plan_ahead() else { break };
                loads.push(Load::after(loads, plan));
            }
        }
        if loads.is_empty() {
            return false;
        }
        self.count(Counter::SwapRa, loads.iter().map(|load| load.plan.count as u64).sum());
        self.bring_in(loads, worker);
        self.keep_room(worker);
        true
    }

    /// Carries out plans that no thread waits for.
    pub(crate) fn bring_in(&self, loads: &mut Vec<Load>, worker: &mut Worker) {
        let slot = self.member.slot();
        slot.reads_ahead(loads.first().map_or(0, |load| load.plan.span_from(0).start.address()));
        self.load(loads, worker);
        for load in loads.drain(..) {
            let _ = self.install(&load, worker);
        }
        slot.reads_ahead(0);
    }
}
