//! Swap-in: bring the content of a window of pages to where their thread waits.
//!
//! The content is read or decompressed outside of every lock, checked against its hash, and moved in under the gate,
//! if the page still waits for it. A failed read is tried again; content that does not come back right is never handed
//! over: the page is poisoned, and whoever touches it gets SIGBUS.

#![allow(unsafe_code)]

use std::time::Instant;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::fault::MAX_WINDOW;
use uswap_core::{
    Core, EntryId, FrameId, FrameLeft, Landing, LoadPage, LoadPlan, Location, PAGE_SIZE, PageNumber, tuning,
};
use uswap_system::atomic::{Ordering, fence};
use uswap_system::faults::{Faults, Progress, Stop, Wake};
use xxhash_rust::xxh3::xxh3_128;

use crate::areas::Area;
use crate::content::Ancestor;
use crate::engine::Engine;
use crate::group::{Counter, LatencyKind};
use crate::host::Host;
use crate::load::{Content, Load};
use crate::lock_order::LockGuard;
use crate::names::PageName;
use crate::page_io::SlotPage;
use crate::pause::pause;
use crate::pending_fault::Served;
use crate::store::IoOutcome;
use crate::worker::Worker;
use crate::zpool::{Handle, ObjectCopy};

impl<H: Host> Engine<H> {
    /// Carries `plan` out.
    pub(crate) fn swap_in(&self, plan: LoadPlan, since: Instant, worker: &mut Worker) -> Served {
        let mut load = [Load::after(&[], plan)];
        self.load(&mut load, worker);
        self.end_fault(&load[0], since, worker)
    }

    /// Installs what was loaded for a fault, and counts it.
    pub(crate) fn end_fault(&self, load: &Load, since: Instant, worker: &mut Worker) -> Served {
        self.settle_what_is_held();
        let served = self.install(load, worker);
        let plan = &load.plan;
        let others = plan.pages().len() - usize::from(plan.faulting.is_some());
        self.count(Counter::Pgmajfault, 1);
        self.count(Counter::SwapRa, others as u64);
        self.count(Counter::SwapRaHit, u64::from(plan.hits));
        if let (Served::Done, Some(faulting)) = (&served, plan.faulting) {
            let faulting = &plan.pages()[faulting];
            let kind = match (faulting.entry, faulting.location) {
                (None, _) => LatencyKind::Zero,
                (_, Location::Pool { .. }) => LatencyKind::Zswap,
                (_, Location::Slot { .. }) => LatencyKind::Area,
            };
            self.record_latency(kind, since);
            self.pressure.note_cost(plan.reads_area(), since);
        }
        served
    }

    /// Gets the content of all pages of some plans, as far as it can be had.
    pub(crate) fn load(&self, loads: &mut [Load], worker: &mut Worker) {
        for load in loads.iter_mut() {
            for index in 0..load.plan.count {
                // SAFETY: this thread carries the load out, and is done with the page before the next one.
                let target = unsafe { load.landing_page(index, &self.memory, &worker.buffer) };
                let page = &mut load.plan.pages[index];
                match (page.entry, page.location) {
                    (None, _) => load.contents[index] = self.load_zero(target),
                    (Some(entry), Location::Pool { handle, len }) => {
                        load.contents[index] = match self.content.ancestors.get(page.epoch.0 as usize) {
                            Some(ancestor) => self.load_inherited(ancestor, page, entry, target, worker),
                            None => self.load_object(page, handle, len, target, worker),
                        };
                    }
                    (Some(_), Location::Slot { .. }) => {}
                }
            }
        }
        if loads.iter().any(|load| load.plan.reads_area()) {
            self.load_slots(loads, worker);
        }
    }

    fn load_zero(&self, target: &mut [u8; PAGE_SIZE]) -> Content {
        target.fill(0);
        self.count(Counter::SwpinZero, 1);
        Content::Ready
    }

    fn load_object(
        &self,
        load: &LoadPage,
        handle: u32,
        len: u16,
        page: &mut [u8; PAGE_SIZE],
        worker: &mut Worker,
    ) -> Content {
        // SAFETY: the load pins its entry, or nothing is freed while it is carried out beside the books: its object stays as it is.
        let object = unsafe { self.content.object(handle, len) };
        let decompressed = worker.compression.decompress(object, page);
        self.count(Counter::Zswpin, 1);
        self.count(Counter::Pswpin, 1);
        if decompressed.is_ok() && xxh3_128(&page[..]) == load.hash { Content::Ready } else { Content::Lost }
    }

    /// The content of `entry`, which an ancestor has stored: its object, or, if that has gone to an area since the fork, that place, from
    /// which it is to be read then.
    fn load_inherited(
        &self,
        ancestor: &Ancestor,
        load: &mut LoadPage,
        entry: EntryId,
        page: &mut [u8; PAGE_SIZE],
        worker: &mut Worker,
    ) -> Content {
        let Location::Pool { handle, len } = load.location else { return Content::Wanted };
        if ancestor.ledger.moved(entry).is_none() {
            H::others_may_go_on();
            ancestor.ledger.note_read(entry);
            let mut copy = ObjectCopy::default();
            let object = ancestor.pool.view().copy(Handle(handle), len as usize, &mut copy);
            if worker.compression.decompress(object, page).is_ok() && xxh3_128(&page[..]) == load.hash {
                self.count(Counter::Zswpin, 1);
                self.count(Counter::Pswpin, 1);
                return Content::Ready;
            }
            // The ancestor tells where it has gone before it frees the object.
            fence(Ordering::Acquire);
        }
        match ancestor.ledger.moved(entry) {
            Some(place) => {
                load.location = place;
                Content::Wanted
            }
            None => Content::Lost,
        }
    }

    /// Reads what is on areas; what comes back wrong is read again a few times before it is given up, and what does not come back at
    /// all for longer, if a thread waits for it.
    fn load_slots(&self, loads: &mut [Load], worker: &mut Worker) {
        let begun = H::now();
        for attempt in 0.. {
            let failing = self.read_wanted(loads, worker);
            if !loads.iter().any(|load| load.contents[..load.plan.count].contains(&Content::Wanted)) {
                return;
            }
            // In the window of a fork the gate is shut meanwhile.
            let may_rest = !loads.iter().any(|load| load.is_beside);
            if attempt + 1 < tuning::READ_ATTEMPTS {
                if attempt > 0 && may_rest {
                    pause::<H>();
                }
                continue;
            }
            // A fork waits for this thread, or is what it is about.
            let is_hurried = self.forking.post.fork.is_requested();
            let Some(area) = failing.filter(|_| may_rest && !is_hurried) else { return };
            if H::since(begun) >= tuning::READ_AGAIN_FOR {
                return area.was_read_in_vain::<H>();
            }
            H::sleep(tuning::rest_before_read(attempt + 1 - tuning::READ_ATTEMPTS));
        }
    }

    /// Reads, once, what has not come yet. Returns the area from which a transfer has failed that is worth waiting for.
    fn read_wanted(&self, loads: &mut [Load], worker: &mut Worker) -> Option<&Area> {
        let mut failing = None;
        for area in self.content.areas.iter() {
            let mut pages = std::mem::take(&mut worker.io.pages);
            let core = self.core();
            for (number, load) in loads.iter_mut().enumerate() {
                for index in 0..load.plan.count {
                    let page = &load.plan.pages()[index];
                    let Location::Slot { area: wanted, slot } = page.location else { continue };
                    if page.entry.is_some() && wanted == area.id && load.wants(index) {
                        // It was moved before the last of these was planned, which may have it at its new place.
                        if !load.is_beside && !core.still_loading(page.page, load.plan.op) {
                            load.contents[index] = Content::Lost;
                            continue;
                        }
                        let address = load.landing(index, &self.memory, &worker.buffer);
                        let tag = (number * MAX_WINDOW + index) as u64;
                        // SAFETY: the landing is one page that is this load's alone until the load ends.
                        pages.push(unsafe { SlotPage::new(slot, address, tag) });
                    }
                }
            }
            drop(core);
            if !pages.is_empty() {
                self.count(Counter::AreaPagesRead, pages.len() as u64);
                worker.io.read::<H>(&*area.store, &mut pages);
            }
            for read in pages.drain(..) {
                let load = &mut loads[read.tag as usize / MAX_WINDOW];
                let index = read.tag as usize % MAX_WINDOW;
                load.contents[index] = self.judge_read(&read, load, index, worker);
                if load.plan.faulting == Some(index) && area.may_come_back::<H>(read.outcome()) {
                    failing = Some(area);
                }
            }
            worker.io.pages = pages;
        }
        failing
    }

    fn judge_read(&self, read: &SlotPage, load: &Load, index: usize, worker: &Worker) -> Content {
        match read.outcome() {
            IoOutcome::Done => {
                // SAFETY: this thread carries the load out, and the read is over.
                let page = unsafe { load.landing_page(index, &self.memory, &worker.buffer) };
                let is_right = xxh3_128(&page[..]) == load.plan.pages()[index].hash;
                if is_right || is_on(Sabotage::ChecksumNotCompared) {
                    self.count(Counter::Pswpin, 1);
                    return Content::Ready;
                }
                self.count(Counter::ChecksumFailures, 1);
            }
            IoOutcome::Failed(_) if is_on(Sabotage::FailedReadIsZero) => {
                // SAFETY: this thread carries the load out, and the read is over.
                return self.load_zero(unsafe { load.landing_page(index, &self.memory, &worker.buffer) });
            }
            IoOutcome::Failed(_) | IoOutcome::Pending => self.count(Counter::ReadErrors, 1),
        }
        Content::Wanted
    }

    /// Moves what is ready to where it is waited for, and ends the load of every page of the plan.
    pub(crate) fn install(&self, work: &Load, worker: &mut Worker) -> Served {
        let Load { plan, contents, .. } = work;
        let loads = plan.pages();
        let mut served = Served::Done;
        let gate = self.memory.gate.pass();
        let mapped = plan.mapped();
        let mut index = mapped.start;
        while index < mapped.end {
            let load = &loads[index];
            let Some(core) = self.unless_cancelled(load, plan) else {
                index += 1;
                continue;
            };
            if contents[index] != Content::Ready {
                drop(core);
                self.without_content(load, plan);
                index += 1;
                continue;
            }
            let run = run_length(&core, plan, contents, index);
            drop(core);
            let (progress, left) = self.install_run(work, index, run, worker);
            let done = progress.bytes / PAGE_SIZE;
            let mut core = self.core();
            for (offset, load) in loads[index..index + done].iter().enumerate() {
                let keep_clean = match load.location {
                    Location::Slot { area, .. } => self.content.areas.keeps_copies(area),
                    Location::Pool { .. } => true,
                };
                core.load_done(load, plan.op, left, keep_clean, plan.faulting == Some(index + offset));
            }
            index += done;
            match progress.stop {
                None => {}
                Some(Stop::Busy | Stop::Invalid) if done > 0 => {}
                Some(stop @ (Stop::AlreadyThere | Stop::Missing)) => {
                    match stop {
                        Stop::AlreadyThere => core.load_superseded(&loads[index], plan.op),
                        // The memory is gone, and the event is on its way. That is no reason to leave the others out.
                        _ => core.load_cancelled(&loads[index], plan.op),
                    }
                    drop(core);
                    self.memory.wake(loads[index].page, 1);
                    index += 1;
                }
                Some(stop) => {
                    served = self.leave_rest(core, plan, index, stop);
                    break;
                }
            }
        }
        self.end_loads(plan, contents);
        self.core().take_released(&mut worker.released);
        drop(gate);
        self.content.release(&mut worker.released);
        served
    }

    /// The books, if the page of `load` still waits; else its load ends.
    fn unless_cancelled(&self, load: &LoadPage, plan: &LoadPlan) -> Option<LockGuard<'_, Core, H>> {
        let mut core = self.core();
        if core.still_loading(load.page, plan.op) {
            return Some(core);
        }
        core.load_cancelled(load, plan.op);
        drop(core);
        self.memory.wake(load.page, 1);
        None
    }

    /// Moves or copies `run` pages from `index` on to where they belong.
    fn install_run(&self, work: &Load, index: usize, run: usize, worker: &Worker) -> (Progress, FrameLeft) {
        let load = &work.plan.pages()[index];
        match load.landing {
            Landing::Frame(frame) => self.move_or_copy(load.page, frame, run, true),
            Landing::Buffer => {
                self.pressure.add(run as u64);
                let source = worker.buffer_page(work.buffer + index);
                let copied = self.memory.copy(load.page.address(), source, run * PAGE_SIZE, Wake::Wake);
                self.pressure.freed((run - copied.bytes / PAGE_SIZE) as u64);
                (copied, FrameLeft::Populated)
            }
        }
    }

    /// `stop` keeps the page at `index` and those after it from being brought in: ends their loads. What that means for the
    /// fault.
    fn leave_rest(&self, mut core: LockGuard<'_, Core, H>, plan: &LoadPlan, index: usize, stop: Stop) -> Served {
        let loads = plan.pages();
        let later = matches!(stop, Stop::TryLater | Stop::NoMemory);
        for load in &loads[index..plan.mapped().end] {
            core.load_cancelled(load, plan.op);
        }
        drop(core);
        let rest = plan.span_from(index);
        self.memory.wake(rest.start, rest.pages);
        if !later && stop != Stop::ProcessGone {
            self.fatal(format_args!("uswap: page {:#x} cannot be moved in: {stop:?}", loads[index].page.address()));
        }
        let is_asked_for = plan.faulting.is_some_and(|faulting| index <= faulting);
        if later && is_asked_for { Served::AfterEvents } else { Served::Done }
    }

    /// When all that was to be mapped is: ends the loads of the other pages.
    fn end_loads(&self, plan: &LoadPlan, contents: &[Content; MAX_WINDOW]) {
        let (loads, mapped) = (plan.pages(), plan.mapped());
        if mapped.len() == loads.len() && !<H::Faults as Faults>::ONLY_FAULTS_ARE_READ {
            return;
        }
        let mut core = self.core();
        for (index, load) in loads.iter().enumerate().filter(|(index, _)| !mapped.contains(index)) {
            match contents[index] {
                Content::Ready => core.load_cached(load, plan.op),
                // Nobody asked for it yet; who does will be told.
                Content::Wanted | Content::Lost => core.load_cancelled(load, plan.op),
            }
        }
        drop(core);
        // Somebody may have asked meanwhile.
        let span = plan.span_from(0);
        self.memory.wake(span.start, span.pages);
    }

    /// The content of `load` could not be had. Where it was read ahead, whoever asks for it has it read once more.
    fn without_content(&self, load: &LoadPage, plan: &LoadPlan) {
        if plan.faulting.is_some_and(|faulting| plan.pages()[faulting].page == load.page) {
            return self.lose(load, plan);
        }
        self.core().load_cancelled(load, plan.op);
        self.memory.wake(load.page, 1);
    }

    /// The content of `load` cannot be had.
    fn lose(&self, load: &LoadPage, plan: &LoadPlan) {
        let mut core = self.core();
        if !core.load_lost(load, plan.op) {
            drop(core);
            self.memory.wake(load.page, 1);
            return;
        }
        // With the books open: who finds the page lost from here on must not tell another reason.
        let _ = self.books.say_lost(load.page);
        drop(core);
        if matches!(load.location, Location::Pool { .. }) {
            self.count(Counter::ChecksumFailures, 1);
        }
        self.tell_lost(load.page);
        self.memory.poison(load.page);
    }

    /// The content of `page` cannot be had.
    pub(crate) fn tell_lost(&self, page: PageNumber) {
        self.count(Counter::PoisonedPages, 1);
        let _ = self.books.say_lost(page);
        self.member.alarm(format_args!(
            "uswap: {} is lost: its copy cannot be read back; an access raises SIGBUS",
            PageName::<H>::new(page)
        ));
    }
}

/// Pages from `index` on that one call can bring in: ready, waited for, and side by side where they landed.
fn run_length(core: &Core, plan: &LoadPlan, contents: &[Content; MAX_WINDOW], index: usize) -> usize {
    let loads = plan.pages();
    let mut run = 1;
    while index + run < plan.mapped().end {
        let (first, next) = (&loads[index], &loads[index + run]);
        let beside = match (first.landing, next.landing) {
            (Landing::Frame(first), Landing::Frame(next)) => next == FrameId(first.0 + run as u32),
            (Landing::Buffer, Landing::Buffer) => true,
            _ => false,
        };
        let beside = beside && next.page == first.page.plus(run as u64);
        if !beside || contents[index + run] != Content::Ready || !core.still_loading(next.page, plan.op) {
            break;
        }
        run += 1;
    }
    run
}
