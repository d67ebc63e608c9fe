//! Pressure: how much memory the process uses, against what it may use, and whether there is hope for more room.
//!
//! The monitor measures and sets all of it; between its looks handlers add what they bring in, and take off what they give back.
//! All of it is hints: each word is right by itself, no two of them belong together, and the next look corrects what went
//! wrong. So nothing of it is behind a lock.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use uswap_core::budget::{Usage, Watermarks};
use uswap_core::pool_share::FaultCost;
use uswap_core::tuning;
use uswap_system::System;
use uswap_system::faults::{Call, Faults};

/// Pages at which something begins or ends.
#[derive(Default)]
struct Marks {
    /// Where reclaim ends.
    low: AtomicU64,
    /// Where a handler that has served a fault calls the monitor.
    start: AtomicU64,
    /// Where it reclaims a little by itself, because the monitor does not keep up.
    direct: AtomicU64,
    /// Where it does so before it serves a fault, until there is room.
    limit: AtomicU64,
}

/// What is used.
#[derive(Default)]
struct InUse {
    /// Pages of this process that counted against the budget when the monitor looked.
    mine: AtomicU64,
    /// Pages that handlers added since.
    added: AtomicU64,
    /// All processes together used more than they may.
    all_are_over: AtomicBool,
}

/// What reclaim keeps.
#[derive(Default)]
pub(crate) struct Kept {
    /// Pool bytes from which the oldest objects are written back.
    pub pool_limit: AtomicU64,
    /// Frames without content that are kept ready.
    pub reserve: AtomicU64,
    /// Frames with content that are kept before they are stored.
    pub inactive: AtomicU64,
}

/// How scarce memory is.
pub(crate) struct Pressure<S: System> {
    in_use: InUse,
    marks: Marks,
    pub kept: Kept,
    /// The monitor need not be called: it reclaims at this moment, or found nothing to reclaim a moment ago.
    called: AtomicBool,
    /// The monitor found nothing to reclaim the last time, and nothing since: waiting for it is in vain.
    fruitless: AtomicBool,
    /// The monitor accesses memory itself, and may wait for a handler.
    monitor_asks: AtomicBool,
    hope: Hope,
    /// By which the monitor calls handlers for help.
    pub call: <S::Faults as Faults>::Call,
    /// Nanoseconds of a handler for a page from the pool, and for one from an area: a mean of the last ones.
    fault_cost: [AtomicU64; 2],
}

/// Whether there is a place for anything.
struct Hope {
    started: Instant,
    /// Until when, in milliseconds since the start, there is none: faults do not wait for it.
    none_until_ms: AtomicU64,
    /// The user has been told that nothing more can be stored.
    said_full: AtomicBool,
}

impl<S: System> Pressure<S> {
    pub fn new() -> std::io::Result<Self> {
        Ok(Pressure {
            in_use: InUse::default(),
            marks: Marks::default(),
            kept: Kept::default(),
            called: AtomicBool::new(false),
            fruitless: AtomicBool::new(false),
            monitor_asks: AtomicBool::new(false),
            hope: Hope { started: S::now(), none_until_ms: AtomicU64::new(0), said_full: AtomicBool::new(false) },
            call: Call::new()?,
            fault_cost: tuning::FAULT_NS_AT_FIRST.map(AtomicU64::new),
        })
    }

    /// The monitor has looked.
    pub fn set(&self, usage: &Usage, marks: &Watermarks) {
        self.in_use.mine.store(usage.mine, Relaxed);
        self.in_use.added.store(0, Relaxed);
        self.in_use.all_are_over.store(usage.total > usage.limit, Relaxed);
        self.marks.limit.store(marks.limit, Relaxed);
        self.marks.low.store(marks.low, Relaxed);
        self.marks.start.store(marks.start(), Relaxed);
        self.marks.direct.store(marks.direct(), Relaxed);
    }

    /// A handler brings `pages` in.
    pub fn add(&self, pages: u64) {
        self.in_use.added.fetch_add(pages, Relaxed);
    }

    /// `pages` have been given back to the kernel since the monitor looked.
    pub fn freed(&self, pages: u64) {
        let take = |from: &AtomicU64, pages: u64| {
            let before = from.fetch_update(Relaxed, Relaxed, |value| Some(value.saturating_sub(pages)));
            before.unwrap_or_else(|before| before).min(pages)
        };
        let rest = pages - take(&self.in_use.added, pages);
        take(&self.in_use.mine, rest);
    }

    /// Pages that count against the budget, as far as is known.
    fn used(&self) -> u64 {
        self.in_use.mine.load(Relaxed) + self.in_use.added.load(Relaxed)
    }

    /// Whether reclaim has reached its end.
    pub fn is_low(&self) -> bool {
        self.used() <= self.marks.low.load(Relaxed)
    }

    /// Whether the monitor is to reclaim, and does not know it yet.
    pub fn needs_monitor(&self) -> bool {
        self.used() > self.marks.start.load(Relaxed) && !self.called.load(Relaxed)
    }

    /// Whether handlers reclaim after a fault.
    pub fn needs_handlers(&self) -> bool {
        self.used() > self.marks.direct.load(Relaxed)
    }

    /// Whether faults wait for room.
    pub fn is_over_limit(&self) -> bool {
        self.used() > self.marks.limit.load(Relaxed)
    }

    /// Whether there is room for what nobody has asked for. Others may have to make it.
    pub fn has_room_to_read_ahead(&self) -> bool {
        !self.is_over_limit() && !self.in_use.all_are_over.load(Relaxed)
    }

    /// The monitor begins to reclaim.
    pub fn monitor_reclaims(&self) {
        self.called.store(true, Relaxed);
    }

    /// The monitor has reclaimed, and found something or nothing. Where nothing is left to reclaim, its next look is soon
    /// enough.
    pub fn monitor_rests(&self, fruitless: bool) {
        self.called.store(fruitless, Relaxed);
        self.fruitless.store(fruitless, Relaxed);
    }

    /// The monitor finds something to reclaim.
    pub fn is_fruitful(&self) {
        self.fruitless.store(false, Relaxed);
    }

    /// The monitor accesses memory itself from here on, or has done so.
    pub fn monitor_asks(&self, asks: bool) {
        self.monitor_asks.store(asks, Relaxed);
    }

    /// Whether waiting for the monitor is in vain: it finds nothing, or may wait for whoever would wait for it.
    pub fn is_fruitless(&self) -> bool {
        self.fruitless.load(Relaxed) || self.monitor_asks.load(Relaxed)
    }

    fn now_ms(&self) -> u64 {
        S::since(self.hope.started).as_millis() as u64
    }

    /// Whether there was no place for anything a moment ago.
    pub fn is_hopeless(&self) -> bool {
        self.now_ms() < self.hope.none_until_ms.load(Relaxed)
    }

    /// There is no place for anything: for a while nobody waits for memory.
    pub fn lose_hope(&self) {
        self.hope.none_until_ms.store(self.now_ms() + tuning::HOPELESS_MS, Relaxed);
    }

    /// Whether the user is to be told that nothing more can be stored; once.
    pub fn say_full(&self) -> bool {
        !self.hope.said_full.swap(true, Relaxed)
    }

    /// A fault cost a handler so much: a mean of about the last 64, in which no single one counts much.
    pub fn note_cost(&self, from_area: bool, since: Instant) {
        let cost = &self.fault_cost[usize::from(from_area)];
        let mean = cost.load(Relaxed);
        let taken = (S::since(since).as_nanos() as u64).min(mean * 8);
        // Two handlers may do this at a time; then one of them counts.
        cost.store(mean - mean / 64 + taken / 64, Relaxed);
    }

    /// What faults cost, with what they cost beside the handler.
    pub fn fault_cost(&self) -> FaultCost {
        let [pool_ns, area_ns] = self.fault_cost.each_ref().map(|cost| cost.load(Relaxed) + tuning::FAULT_OVERHEAD_NS);
        FaultCost { pool_ns, area_ns }
    }

    /// In the copy that a forked child has: forgets it. Its descriptor is that of another file there.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}
