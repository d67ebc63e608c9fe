//! Swap-in: bring the content of a window of pages to where their thread waits.
//!
//! The content is read or decompressed outside of every lock, checked against its hash, and moved in under the gate,
//! if the page still waits for it. A failed read is tried again; content that does not come back right is never handed
//! over: the page is poisoned, and whoever touches it gets SIGBUS.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use uswap_core::fault::MAX_WINDOW;
use uswap_core::{FrameId, FrameLeft, Landing, LoadPage, LoadPlan, Location, PAGE_SIZE};
use uswap_sys::uffd::{Stop, Wake};
use xxhash_rust::xxh3::xxh3_128;

use crate::engine::{Engine, Worker};
use crate::group::{Counter, LatencyKind};
use crate::handler::{Served, pause};
use crate::page_io::SlotPage;
use crate::store::IoOutcome;

/// Reads of a page before it is given up.
const ATTEMPTS: u32 = 4;

/// What is known of the content of a page of the window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Wanted,
    Ready,
    Lost,
}

impl Engine {
    /// Carries `plan` out.
    pub(crate) fn swap_in(&self, plan: &LoadPlan, since: Instant, worker: &mut Worker) -> Served {
        let loads = plan.pages();
        let mut contents = [Content::Wanted; MAX_WINDOW];
        let mut from_area = false;
        for (index, load) in loads.iter().enumerate() {
            match (load.entry, load.location) {
                (None, _) => contents[index] = self.load_zero(load, index, worker),
                (Some(_), Location::Pool { handle, len }) => {
                    contents[index] = self.load_object(load, handle, len, index, worker);
                }
                (Some(_), Location::Slot { .. }) => from_area = true,
            }
        }
        if from_area {
            self.load_slots(loads, &mut contents, worker);
        }
        let served = self.install(plan, &contents, worker);
        self.count(Counter::Pgmajfault, 1);
        self.count(Counter::SwapRa, loads.len() as u64 - 1);
        self.count(Counter::SwapRaHit, u64::from(plan.hits));
        if served == Served::Done {
            let faulting = &loads[plan.faulting];
            let kind = match (faulting.entry, faulting.location) {
                (None, _) => LatencyKind::Zero,
                (_, Location::Pool { .. }) => LatencyKind::Zswap,
                (_, Location::Slot { .. }) => LatencyKind::Area,
            };
            self.record_latency(kind, since);
            self.note_cost(from_area, since);
        }
        served
    }

    /// A mean of about the last 64, in which no single one counts much.
    fn note_cost(&self, from_area: bool, since: Instant) {
        let cost = &self.fault_cost[usize::from(from_area)];
        let mean = cost.load(Relaxed);
        let taken = (since.elapsed().as_nanos() as u64).min(mean * 8);
        // Two handlers may do this at a time; then one of them counts.
        cost.store(mean - mean / 64 + taken / 64, Relaxed);
    }

    /// Where the content of page `index` of the window is put.
    fn landing(&self, load: &LoadPage, index: usize, worker: &Worker) -> *mut u8 {
        match load.landing {
            Landing::Frame(frame) => self.frame_address(frame) as *mut u8,
            Landing::Buffer => worker.buffer_page(index),
        }
    }

    fn landing_page<'a>(&self, load: &LoadPage, index: usize, worker: &Worker) -> &'a mut [u8; PAGE_SIZE] {
        // SAFETY: a frame that the books gave to this load is populated and this thread's alone until the load ends; a
        // buffer page is the worker's own, and lives as long as it. Either is one whole page, and each caller is done
        // with it before the next one asks.
        unsafe { &mut *(self.landing(load, index, worker) as *mut [u8; PAGE_SIZE]) }
    }

    fn load_zero(&self, load: &LoadPage, index: usize, worker: &Worker) -> Content {
        self.landing_page(load, index, worker).fill(0);
        self.count(Counter::SwpinZero, 1);
        Content::Ready
    }

    fn load_object(&self, load: &LoadPage, handle: u32, len: u16, index: usize, worker: &mut Worker) -> Content {
        let page = self.landing_page(load, index, worker);
        // SAFETY: the load pins its entry, so its object stays as it is.
        let object = unsafe { self.object(load.epoch, handle, len) };
        let decompressed = worker.compressor.decompress(object, page);
        self.count(Counter::Zswpin, 1);
        self.count(Counter::Pswpin, 1);
        if decompressed.is_ok() && xxh3_128(&page[..]) == load.hash { Content::Ready } else { Content::Lost }
    }

    /// Reads what is on areas; what comes back wrong is read again a few times before it is given up.
    fn load_slots(&self, loads: &[LoadPage], contents: &mut [Content; MAX_WINDOW], worker: &mut Worker) {
        for attempt in 0..ATTEMPTS {
            for area in self.areas.iter() {
                let mut pages = std::mem::take(&mut worker.slot_pages);
                for (index, load) in loads.iter().enumerate() {
                    let Location::Slot { area: wanted, slot } = load.location else { continue };
                    if load.entry.is_some() && wanted == area.id && contents[index] == Content::Wanted {
                        let address = self.landing(load, index, worker);
                        // SAFETY: the landing is one page that is this load's alone until the load ends.
                        pages.push(unsafe { SlotPage::new(slot, address, index as u64) });
                    }
                }
                if !pages.is_empty() {
                    self.count(Counter::AreaPagesRead, pages.len() as u64);
                    worker.batch.read(&*area.store, &mut worker.ring, &mut pages);
                }
                for read in pages.drain(..) {
                    let index = read.tag as usize;
                    contents[index] = self.judge_read(&read, &loads[index], worker);
                }
                worker.slot_pages = pages;
            }
            if !contents[..loads.len()].contains(&Content::Wanted) {
                return;
            }
            if attempt > 0 {
                pause();
            }
        }
    }

    fn judge_read(&self, read: &SlotPage, load: &LoadPage, worker: &Worker) -> Content {
        match read.outcome() {
            IoOutcome::Done => {
                if xxh3_128(&self.landing_page(load, read.tag as usize, worker)[..]) == load.hash {
                    self.count(Counter::Pswpin, 1);
                    return Content::Ready;
                }
                self.count(Counter::ChecksumFailures, 1);
            }
            IoOutcome::Failed(_) | IoOutcome::Pending => self.count(Counter::ReadErrors, 1),
        }
        Content::Wanted
    }

    /// Moves what is ready to where it is waited for, and ends the load of every page of the plan.
    fn install(&self, plan: &LoadPlan, contents: &[Content; MAX_WINDOW], worker: &mut Worker) -> Served {
        let loads = plan.pages();
        let mut served = Served::Done;
        let gate = self.gate.pass();
        let mapped = plan.mapped();
        let mut index = mapped.start;
        while index < mapped.end {
            let load = &loads[index];
            if !self.core().still_loading(load.page, plan.op) {
                self.core().load_cancelled(load, plan.op);
                self.wake(load.page, 1);
                index += 1;
                continue;
            }
            if contents[index] != Content::Ready {
                self.lose(load, plan);
                index += 1;
                continue;
            }
            let run = self.run_length(plan, contents, index);
            let (progress, left) = match load.landing {
                Landing::Frame(frame) => self.move_or_copy(load.page, frame, run, true),
                Landing::Buffer => {
                    self.meter.added.fetch_add(run as u64, Relaxed);
                    let source = worker.buffer_page(index);
                    (self.uffd.copy(load.page.address(), source, run * PAGE_SIZE, Wake::Wake), FrameLeft::Populated)
                }
            };
            let done = progress.bytes / PAGE_SIZE;
            let mut core = self.core();
            for (offset, load) in loads[index..index + done].iter().enumerate() {
                let keep_clean = match load.location {
                    Location::Slot { area, .. } => !self.areas.is_half_full(area, &self.member),
                    Location::Pool { .. } => false,
                };
                core.load_done(load, plan.op, left, keep_clean, index + offset == plan.faulting);
            }
            index += done;
            match progress.stop {
                None => {}
                Some(Stop::Busy | Stop::Invalid) if done > 0 => {}
                Some(Stop::AlreadyThere) => {
                    core.load_superseded(&loads[index], plan.op);
                    drop(core);
                    self.wake(loads[index].page, 1);
                    index += 1;
                }
                Some(stop) => {
                    let later = matches!(stop, Stop::TryLater | Stop::NoMemory);
                    for load in &loads[index..mapped.end] {
                        core.load_cancelled(load, plan.op);
                    }
                    drop(core);
                    if later && index <= plan.faulting {
                        served = Served::AfterEvents;
                    }
                    let rest = plan.span_from(index);
                    self.wake(rest.start, rest.pages);
                    if !later && !matches!(stop, Stop::Missing | Stop::ProcessGone) {
                        self.fatal(format_args!(
                            "uswap: page {:#x} cannot be moved in: {stop:?}",
                            loads[index].page.address()
                        ));
                    }
                    break;
                }
            }
        }
        if mapped.len() < loads.len() {
            self.keep_cached(plan, contents);
        }
        self.core().take_released(&mut worker.released);
        drop(gate);
        self.release(&mut worker.released);
        served
    }

    /// Ends the loads of the pages that are not to be mapped.
    fn keep_cached(&self, plan: &LoadPlan, contents: &[Content; MAX_WINDOW]) {
        let (loads, mapped) = (plan.pages(), plan.mapped());
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
        self.wake(loads[0].page, loads.len() as u64);
    }

    /// Pages from `index` on that one call can bring in: ready, waited for, and side by side where they landed.
    fn run_length(&self, plan: &LoadPlan, contents: &[Content; MAX_WINDOW], index: usize) -> usize {
        let loads = plan.pages();
        let core = self.core();
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

    /// The content of `load` cannot be had.
    fn lose(&self, load: &LoadPage, plan: &LoadPlan) {
        if !self.core().load_lost(load, plan.op) {
            self.wake(load.page, 1);
            return;
        }
        if matches!(load.location, Location::Pool { .. }) {
            self.count(Counter::ChecksumFailures, 1);
        }
        self.count(Counter::PoisonedPages, 1);
        self.member.alarm(format_args!(
            "uswap: page {:#x} of process {} is lost: its copy cannot be read back; an access raises SIGBUS",
            load.page.address(),
            rustix::process::getpid().as_raw_nonzero()
        ));
        self.poison(load.page);
    }
}
