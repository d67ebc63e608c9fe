//! Handlers: threads that read the userfaultfd and serve what they find.

use std::time::Instant;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::event_order::Mappings;
use uswap_core::fault::{MAX_WINDOW, MOVE_PAGES_MIN, Vanished};
use uswap_core::{FaultPlan, FrameId, FrameLeft, LoadPlan, PageNumber, PageRange, tuning};
use uswap_sys::report::Reason;
use uswap_sys::{private_memory, test_hook};
use uswap_system::faults::{Faults, Heard, Message, Progress, Stop, Wake};

use crate::engine::{BATCH, Engine};
use crate::giving_way::Asking;
use crate::group::{Counter, LatencyKind};
use crate::host::Host;
use crate::load::Load;
use crate::lock_order::Shut;
use crate::pause::pause;
use crate::pending_fault::{PendingFault, Served};
use crate::phase::Entry;
use crate::presence::Presence;
use crate::worker::Worker;

/// Messages read at a time.
const MESSAGES: usize = 16;

/// What the books say to a fault.
#[expect(clippy::large_enum_variant, reason = "as for FaultPlan")]
enum Answer {
    /// What it came to.
    Served(Served),
    /// This must be had first.
    Load(LoadPlan),
}

impl<H: Host> Engine<H> {
    /// The life of a handler thread.
    pub fn handler(&self, number: usize, mut worker: Worker) -> ! {
        self.handler_begins(number, &mut worker);
        loop {
            self.handler_turn(&mut worker);
        }
    }

    /// Handler `number` has begun.
    pub fn handler_begins(&self, number: usize, worker: &mut Worker) {
        worker.serving.number = number;
        self.thread_begins();
    }

    /// Waits for messages or for a call, and does what there is to be done.
    pub fn handler_turn(&self, worker: &mut Worker) {
        // What was read is settled as soon as the program rests, also if it asks for nothing.
        let patience = if self.memory.uffd.holds_events() { Some(tuning::SETTLING) } else { None };
        let heard = match self.memory.uffd.wait(&self.pressure.call, &self.member.supervisor, patience) {
            Ok(heard) => heard,
            Err(error) => self.fatal(format_args!("uswap: userfaultfd cannot be polled: {}", Reason(&error))),
        };
        if heard.no_supervisor {
            // The tree ends with its supervisor. The monitor looks too, but may be busy.
            H::kill_self();
        }
        if heard.messages || heard == Heard::default() {
            self.serve_waiting(worker);
        }
        if heard.call {
            self.assist(worker);
        }
    }

    /// Reads what is there and serves it.
    fn serve_waiting(&self, worker: &mut Worker) {
        self.receive(worker);
        self.settle_in_time(worker);
        self.serve_all(worker);
        self.member.slot().serves(worker.serving.number, 0);
    }

    /// Threads that move memory without a pause leave hardly a moment in which what was read can be settled. They make room for one
    /// before it becomes so much that to put it in order takes seconds, with all that wait for the gate.
    fn settle_in_time(&self, worker: &mut Worker) {
        if !self.memory.order().is_long() {
            return;
        }
        let (mut asking, begun) = (Asking::new(&H::notices().giving_way), H::now());
        while let Entry::Running(_guard) = self.enter() {
            if !self.memory.order().is_long() || H::since(begun) >= tuning::SETTLED_IN_TIME {
                return;
            }
            asking.at_once();
            pause::<H>();
            // Whose report is unread is not done yet.
            self.read_messages(worker);
        }
    }

    fn serve_all(&self, worker: &mut Worker) {
        let mut asking = Asking::new(&H::notices().giving_way);
        while let Some(fault) = self.serve_pending(worker) {
            asking.for_fault_of(fault.since);
            // The event must be read, and then its task must run. Other faults may come along: they are served in turn,
            // for the task of the event may be waiting for one of them.
            self.count(Counter::UffdTryAgain, 1);
            let nothing_unread = self.receive(worker) == 0;
            if !is_on(Sabotage::WaiterOfEventForgotten) {
                worker.serving.pending.push_back(PendingFault { nothing_unread, ..fault });
            }
            if nothing_unread && fault.nothing_unread {
                pause::<H>();
            }
        }
    }

    /// Serves the faults that have been read. Stops at one that has to wait until an event has been read, and returns it.
    fn serve_pending(&self, worker: &mut Worker) -> Option<PendingFault> {
        while !worker.serving.pending.is_empty() {
            let after_events = match self.enter() {
                Entry::Running(_guard) => self.serve_together(worker),
                Entry::Frozen => {
                    let fault = worker.serving.pending.pop_front()?;
                    self.member.slot().serves(worker.serving.number, fault.page.address());
                    (self.serve_beside(&fault, worker) == Served::AfterEvents).then_some(fault)
                }
            };
            if after_events.is_some() {
                return after_events;
            }
        }
        None
    }

    /// Serves pending faults, one that has to wait for an event excepted. What must be read from areas is read for all of
    /// them at a time, and after what can be had at once: a disk is fastest with several requests.
    fn serve_together(&self, worker: &mut Worker) -> Option<PendingFault> {
        let mut after_events = None;
        while let Some(fault) = worker.serving.pending.pop_front() {
            if !worker.serving.loads.is_empty() && self.pressure.is_over_limit() {
                // Nobody who waits for a read has to wait for memory.
                worker.serving.pending.push_front(fault);
                break;
            }
            self.count(Counter::Pgfault, 1);
            self.member.slot().serves(worker.serving.number, fault.page.address());
            self.wait_for_room(&fault, worker);
            let served = match self.answer(&fault) {
                Answer::Served(served) => served,
                Answer::Load(plan) if plan.reads_area() => {
                    worker.serving.loads.push(Load::after(&worker.serving.loads, plan));
                    worker.serving.reading.push(fault);
                    if Load::buffer_pages(&worker.serving.loads) + MAX_WINDOW > BATCH {
                        break;
                    }
                    continue;
                }
                Answer::Load(plan) => self.swap_in(plan, fault.since, worker),
            };
            if served == Served::AfterEvents {
                after_events = Some(fault);
                break;
            }
            self.after_fault(worker);
        }
        self.read_together(worker, after_events)
    }

    /// Reads what the faults of `worker.serving.reading` wait for, and ends them; returns one that has to wait for an event, if that
    /// is not `after_events` already.
    fn read_together(&self, worker: &mut Worker, mut after_events: Option<PendingFault>) -> Option<PendingFault> {
        let mut loads = std::mem::take(&mut worker.serving.loads);
        self.load(&mut loads, worker);
        for (index, load) in loads.iter().enumerate() {
            let fault = worker.serving.reading[index];
            if self.end_fault(load, fault.since, worker) == Served::AfterEvents
                && let Some(another) = after_events.replace(fault)
            {
                worker.serving.pending.push_back(another);
            }
        }
        // Reclaim may use the buffer, so all of it comes last.
        for _ in loads.drain(..) {
            self.after_fault(worker);
        }
        worker.serving.reading.clear();
        worker.serving.loads = loads;
        after_events
    }

    /// After a fault has been served. Its thread goes on meanwhile, and another handler serves its next fault.
    fn after_fault(&self, worker: &mut Worker) {
        if !self.pressure.is_over_limit() {
            self.staff.ahead.call_if_wanted::<H>(self.member.slot());
        }
        self.keep_room(worker);
    }

    /// Reads messages: applies the events among them, and adds the faults to those that the worker has to serve. Returns
    /// how many messages there were.
    fn receive(&self, worker: &mut Worker) -> usize {
        loop {
            match self.enter() {
                Entry::Running(_guard) => return self.read_messages(worker),
                Entry::Frozen => {
                    let gate = self.memory.gate.shut();
                    // The window may have been closed, and its journal applied, before the gate opened: an event that were
                    // noted now would be lost.
                    if !self.is_frozen() && !is_on(Sabotage::ClosedWindowNoted) {
                        continue;
                    }
                    return self.read_with(worker, true, gate);
                }
            }
        }
    }

    /// As [`receive`](Self::receive), for a caller that may change the books.
    pub(crate) fn read_messages(&self, worker: &mut Worker) -> usize {
        if <H::Faults as Faults>::ONLY_FAULTS_ARE_READ {
            return self.read_faults(worker);
        }
        let gate = self.memory.gate.shut();
        self.read_with(worker, false, gate)
    }

    pub(crate) fn read_with(&self, worker: &mut Worker, frozen: bool, gate: Shut<'_, H>) -> usize {
        let mut messages = [Message::Other(0); MESSAGES];
        if frozen {
            self.forking.window.begins_reading();
        }
        let left_mapped = &H::notices().left_mapped;
        left_mapped.begins_reading();
        H::notices().fork_advice.begins_reading();
        let count = self.read_into(&mut messages);
        let since = H::now();
        for &message in &messages[..count] {
            match PendingFault::of(message, since) {
                Some(fault) => worker.serving.pending.push_back(fault),
                None => self.read_event(message, frozen),
            }
        }
        left_mapped.ends_reading();
        // The task of what was just read has hardly gone on. Nobody may ever ask for what it was about.
        let asks = frozen || count == 0 || !worker.serving.pending.is_empty();
        if asks || self.memory.order().is_pressing() {
            self.settle_events(frozen);
        }
        if frozen {
            self.forking.window.ends_reading();
        } else if !self.memory.uffd.holds_events() {
            self.all_is_in_the_books();
        }
        drop(gate);
        count
    }

    /// Pages may be on their way meanwhile.
    fn read_faults(&self, worker: &mut Worker) -> usize {
        let mut messages = [Message::Other(0); MESSAGES];
        let count = self.read_into(&mut messages);
        let since = H::now();
        worker.serving.pending.extend(messages[..count].iter().filter_map(|&message| PendingFault::of(message, since)));
        count
    }

    fn read_into(&self, messages: &mut [Message]) -> usize {
        match self.memory.uffd.read(messages) {
            Ok(count) => count,
            Err(error) => self.fatal(format_args!("uswap: userfaultfd cannot be read: {}", Reason(&error))),
        }
    }

    /// Serves a fault by the books.
    pub(crate) fn serve(&self, fault: &PendingFault, worker: &mut Worker) -> Served {
        match self.answer(fault) {
            Answer::Served(served) => served,
            Answer::Load(plan) => self.swap_in(plan, fault.since, worker),
        }
    }

    /// Serves a fault by the books, unless content must be had first.
    fn answer(&self, fault: &PendingFault) -> Answer {
        test_hook::fault_served();
        match fault.protected {
            true => Answer::Served(self.let_write(fault.page)),
            false => self.answer_missing(fault),
        }
    }

    fn answer_missing(&self, fault: &PendingFault) -> Answer {
        let PendingFault { page, write, since, .. } = *fault;
        self.settle_what_is_held();
        let gate = (!is_on(Sabotage::AnswerWithoutGate)).then(|| self.memory.gate.pass());
        let plan = self.plan(page, write);
        let (served, kind) = match plan {
            FaultPlan::NotAdopted => match self.answer_unknown(fault) {
                Some(served) => (served, None),
                None => {
                    drop(gate);
                    return self.answer_missing(fault);
                }
            },
            FaultPlan::Zero { range, op } => {
                let (installed, served) = self.install_zeros(range, write);
                self.core().zeros_installed(range, op, installed);
                // After the books: who finds its page still missing asks again, and must not be told to wait for what
                // is over.
                let woken = if is_on(Sabotage::OthersNotWoken) { installed } else { range.pages };
                self.memory.wake(range.start, woken);
                self.count(Counter::SwpinZero, 0);
                (served, Some(LatencyKind::Zero))
            }
            FaultPlan::Restore { first, frame, pages } => {
                let (moved, left, served) = self.move_in(first, frame, pages);
                match left {
                    Some(left) => self.core().restored(first, frame, pages, moved, left),
                    None => {
                        let is_populated = self.memory.is_populated(first);
                        self.core().restore_superseded(first, frame, pages, is_populated);
                    }
                }
                self.memory.wake(first, if is_on(Sabotage::WakeLost) { 0 } else { u64::from(pages) });
                self.count(Counter::SwapCacheHit, u64::from(moved));
                (served, Some(LatencyKind::SwapCache))
            }
            FaultPlan::Load(plan) => return Answer::Load(plan),
            FaultPlan::Wait => (Served::Done, None),
            FaultPlan::Present => match self.check_present(page) {
                Presence::Changing => (Served::AfterEvents, None),
                Presence::Vanished(Vanished::Discarded) => {
                    drop(gate);
                    return self.answer_missing(fault);
                }
                Presence::There | Presence::Vanished(Vanished::Lost) => {
                    self.memory.wake(page, 1);
                    (Served::Done, None)
                }
            },
            FaultPlan::Poisoned => {
                self.tell_refused(page);
                self.memory.poison(page);
                (Served::Done, None)
            }
        };
        drop(gate);
        if let (Served::Done, Some(kind)) = (&served, kind) {
            self.record_latency(kind, since);
        }
        Answer::Served(served)
    }

    /// Of a page that the books do not know. `None`: they do now.
    ///
    /// Where no event is unread and the kernel has it registered, an mremap has grown an adopted range, or the range is being adopted
    /// right now. The books first: of several handlers that serve it one fills it, and no late one puts zeros where it has been moved
    /// out meanwhile. An old fault may be of memory that has gone since, and another mapping be there that is not registered: a scan
    /// of what the books have must not find that, for what is moved out of it reads as zeros.
    fn answer_unknown(&self, fault: &PendingFault) -> Option<Served> {
        let PendingFault { page, thread, nothing_unread, .. } = *fault;
        // Memory that was moved there has an event, which may not have been sent yet.
        if !nothing_unread || self.memory.uffd.is_changing() {
            return Some(Served::AfterEvents);
        }
        if private_memory::overlaps(page.address(), page.address() + 1) {
            return Some(self.serve_onlooker(page, thread));
        }
        let range = PageRange { start: page, pages: 1 };
        match Mappings::is_registered(self, range) {
            None => return Some(Served::AfterEvents),
            Some(false) => return Some(self.answer_registered_of_others(page)),
            Some(true) => self.core().adopt(range),
        }
        H::notices().fork_advice.grown(range);
        self.memory.note_grown(true);
        None
    }

    /// Of memory that is gone, or is registered though it is none of our business, for a moment: there, a page that is missing has
    /// never been.
    fn answer_registered_of_others(&self, page: PageNumber) -> Served {
        match self.memory.zeropage(page.address(), uswap_core::PAGE_SIZE, Wake::DontWake).stop {
            Some(Stop::TryLater) => Served::AfterEvents,
            _ => {
                self.memory.wake(page, 1);
                Served::Done
            }
        }
    }

    fn plan(&self, page: PageNumber, write: bool) -> FaultPlan {
        let mut core = self.core();
        if H::notices().uses.page_references.is_noted() {
            core.leave_free_frames_alone();
        }
        let plan = core.fault(page, write);
        if core.wants_ahead() {
            self.staff.ahead.want();
        }
        plan
    }

    pub(crate) fn record_latency(&self, kind: LatencyKind, since: Instant) {
        let nanoseconds = H::since(since).as_nanos() as u64;
        self.member.slot().tally.latency(kind).record(nanoseconds);
    }

    /// Maps zeros at `range`; returns how many pages from its start now are there. Who waits for the others is woken by the
    /// caller.
    pub(crate) fn install_zeros(&self, range: PageRange, write: bool) -> (u64, Served) {
        let range =
            if H::notices().uses.guard_regions.is_noted() { PageRange { start: range.start, pages: 1 } } else { range };
        let mut done = 0;
        while done < range.pages {
            let address = range.start.plus(done).address();
            let pages = (range.pages - done).min(uswap_core::BLOCK_PAGES as u64) as usize;
            let len = pages * uswap_core::PAGE_SIZE;
            let progress = if write {
                self.pressure.add(pages as u64);
                let copied = self.memory.copy(address, self.memory.zeros(), len, Wake::Wake);
                self.pressure.freed((pages - copied.bytes / uswap_core::PAGE_SIZE) as u64);
                copied
            } else {
                self.memory.zeropage(address, len, Wake::Wake)
            };
            done += (progress.bytes / uswap_core::PAGE_SIZE) as u64;
            match progress.stop {
                None => {}
                // The program may be discarding it, for the fault may be an old one, or of a neighbour: its thread drops the page
                // only after the report was read, and what passed for resident until then could be moved out and come back. Who
                // waits finds it, or asks again.
                Some(Stop::AlreadyThere) if self.is_being_dropped(range.start.plus(done)) => break,
                // Another thread was served first, or it was populated before the range was registered.
                Some(Stop::AlreadyThere) if done == 0 || is_on(Sabotage::ZerosOverDiscard) => done += 1,
                // Nobody asked for this one.
                Some(Stop::AlreadyThere) => break,
                Some(Stop::TryLater) => {
                    return (done, if done > 0 { Served::Done } else { Served::AfterEvents });
                }
                Some(Stop::NoMemory) if done == 0 => {
                    pause::<H>();
                    return (done, Served::AfterEvents);
                }
                Some(Stop::Missing) if done == 0 => {
                    // The memory is gone, and no event is unread that would say so: it went before it was registered. A
                    // mapping that is made there later must not pass for known.
                    self.core().manages_no_more(PageRange { start: range.start.plus(done), pages: 1 });
                    break;
                }
                Some(_) => break,
            }
        }
        (done, Served::Done)
    }

    /// As a scan asks (`recent_discards`).
    fn is_being_dropped(&self, page: PageNumber) -> bool {
        !is_on(Sabotage::ZerosOverDiscard) && self.core().was_discarded_of_late(page)
    }

    /// Moves frames back into the program; returns how many pages from the first now are there, and whether their frames
    /// have kept their memory; `None` if something newer is in the first one's place. Who waits for the others is woken by the
    /// caller.
    pub(crate) fn move_in(&self, first: PageNumber, frame: FrameId, pages: u32) -> (u32, Option<FrameLeft>, Served) {
        let pages = if self.memory.moves_several() { pages } else { 1 };
        let mut done = 0;
        let mut served = Served::Done;
        let mut left = FrameLeft::Empty;
        while done < pages && left == FrameLeft::Empty {
            let page = first.plus(u64::from(done));
            let (progress, how) = self.move_or_copy(page, FrameId(frame.0 + done), (pages - done) as usize, done == 0);
            left = how;
            done += (progress.bytes / uswap_core::PAGE_SIZE) as u32;
            match progress.stop {
                None => {}
                Some(Stop::TryLater) if is_on(Sabotage::AgainIsSuccess) => done = pages,
                Some(Stop::TryLater) => {
                    served = if done > 0 { Served::Done } else { Served::AfterEvents };
                    break;
                }
                Some(Stop::NoMemory) => {
                    pause::<H>();
                    served = Served::AfterEvents;
                    break;
                }
                // The range was unmapped, and the event is on its way.
                Some(Stop::Missing) => break,
                // A guard, or something newer: the next fault there begins with it.
                Some(Stop::AlreadyThere) if done > 0 => break,
                Some(Stop::AlreadyThere) => return (0, None, Served::Done),
                // Only the first page is copied: the others are cached for the next fault.
                Some(Stop::Busy | Stop::Invalid) if done > 0 => break,
                Some(stop) => self.fatal(format_args!(
                    "uswap: page {:#x} cannot be brought back from the swap cache: {stop:?}",
                    page.address()
                )),
            }
        }
        (done, Some(left), served)
    }

    /// Brings the content of populated frames to `page` and the pages after it: moves them if they are many, or copies
    /// them. Where the kernel refuses to move (another protection, a locked mapping, a frame still pinned by a device), the
    /// first page is copied if `may_copy`.
    pub(crate) fn move_or_copy(
        &self,
        page: PageNumber,
        frame: FrameId,
        pages: usize,
        may_copy: bool,
    ) -> (Progress, FrameLeft) {
        let (target, source) = (page.address(), self.memory.frame_address(frame));
        if pages >= MOVE_PAGES_MIN || !may_copy {
            let progress = self.memory.move_run(target, source, pages, Wake::Wake);
            if !may_copy || progress.bytes > 0 || !matches!(progress.stop, Some(Stop::Busy | Stop::Invalid)) {
                return (progress, FrameLeft::Empty);
            }
        }
        let copies = if pages >= MOVE_PAGES_MIN { 1 } else { pages };
        self.pressure.add(copies as u64);
        let copied = self.memory.copy(target, source as *const u8, copies * uswap_core::PAGE_SIZE, Wake::Wake);
        self.pressure.freed((copies - copied.bytes / uswap_core::PAGE_SIZE) as u64);
        (copied, if copied.bytes > 0 { FrameLeft::Populated } else { FrameLeft::Empty })
    }
}
