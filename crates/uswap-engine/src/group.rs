//! The group: what all processes under one `uswap run` share, in one memory file.
//!
//! It holds the budget, one slot per process with its usage and counters, and the owner of every cluster of
//! every swap area. The supervisor creates it, hands out process slots and takes them back; a process writes
//! only its own slot, and takes and gives back clusters.
//!
//! Fault model: any process may be killed at any instruction, the supervisor alone decides what that means.
//! So there are no locks here: every word is atomic, every change is one compare-and-swap, and whatever a
//! dead process left behind is found by its slot index.
//!
//! Lineage: a forked child reads the slots that its parent owned at the fork. `inheritors` of a slot names
//! the processes that may do so. A dead owner's clusters stay taken until no inheritor lives.

#![allow(unsafe_code, reason = "typed views of memory that several processes map")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::ledger::Holder;
use uswap_core::{Policies, ReadaheadPolicy, ReclaimPolicy};
use uswap_system::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use uswap_system::{Scope, System};

pub use crate::store::faulty::FaultPlan;
pub use control::SwapoffProgress;

mod control;

/// Processes that can be in one group at the same time.
pub const PROCESSES_MAX: usize = 1024;
/// Swap areas that a group can have.
pub const AREAS_MAX: usize = 8;
/// Slots in a cluster: 512 slots of 4 KiB are 2 MiB.
pub const CLUSTER_SLOTS: u64 = 512;
/// Handlers of a process that say what they are at; those of more CPUs share their places.
const HANDLERS_SEEN: usize = 31;
/// In place of a handler's number: the threads that read ahead, which share one place.
pub const READING_AHEAD: usize = HANDLERS_SEEN;
/// Bytes in a page, and in a slot.
pub const PAGE_BYTES: u64 = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"uswapgrp");
/// Grows with every change of the layout: a process of another uswap must not join.
const VERSION: u32 = 7;
/// Owner of clusters that are nobody's and not free.
const WITHHELD: u32 = u32::MAX;
const WORDS: usize = PROCESSES_MAX / 64;

/// How stored pages are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Compressor {
    /// Pages go to the swap areas as they are.
    None = 0,
    /// LZ4: fast, about 2:1.
    #[default]
    Lz4 = 1,
    /// Zstandard at a fast level: a third slower to write, about 3:1.
    Zstd = 2,
}

impl Compressor {
    fn from_raw(raw: u32) -> Option<Compressor> {
        [Compressor::None, Compressor::Lz4, Compressor::Zstd].into_iter().find(|c| *c as u32 == raw)
    }
}

/// One swap area as all processes of the group see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaConfig {
    /// The area exists. Areas are packed: all present ones come first.
    pub present: bool,
    /// Slots, slot 0 (the header) included.
    pub slots: u64,
    /// Higher is used first.
    pub priority: i32,
    /// The descriptor was opened with O_DIRECT.
    pub direct: bool,
    /// Freed slots may be punched out of the file. False for a file that `mkswap` formatted: it must stay
    /// without holes.
    pub punch_holes: bool,
    /// Device and inode number of the file: by these it is known, whatever path names it.
    pub file: [u64; 2],
}

/// What stays the same for the whole life of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupConfig {
    /// The budget at the start: resident anonymous and shared memory of all processes. It may change: see
    /// [`Group::limit_bytes`].
    pub memory_limit_bytes: u64,
    /// Share of the budget that compressed pages may fill.
    pub zpool_percent: u32,
    /// After the pool was full, it takes pages again below this share of its limit.
    pub accept_threshold_percent: u32,
    /// How pages are compressed.
    pub compressor: Compressor,
    /// Which block leaves, and what comes along with a page.
    pub policies: Policies,
    /// The least distance of two watermarks in pages, in simulations of small budgets; 0: as everywhere.
    pub gap_min_pages: u32,
    /// 0 quiet, 1 warnings, 2 and more: what happens.
    pub verbosity: u8,
    /// The swap areas.
    pub areas: [AreaConfig; AREAS_MAX],
    /// Store failures on purpose, for tests.
    pub fault_injection: FaultPlan,
}

impl GroupConfig {
    /// Clusters of an area; the last one may be short.
    pub fn clusters(&self, area: usize) -> u32 {
        let slots = if self.areas[area].present { self.areas[area].slots } else { 0 };
        u32::try_from(slots.div_ceil(CLUSTER_SLOTS)).unwrap_or(u32::MAX)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// What a process counts. Names are those of /proc/vmstat where Linux has the counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])+ $variant,)+ }

        impl Counter {
            /// Every counter, in the order of the shared array.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)+];
            /// How many there are.
            pub const COUNT: usize = Counter::ALL.len();

            /// The name that users see.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)+ }
            }

            /// What one count means.
            pub const fn doc(self) -> &'static str {
                match self { $(Counter::$variant => concat!($($doc),+),)+ }
            }
        }
    };
}

counters! {
    /// Pages brought in from anywhere but zeros: pool and areas.
    Pswpin = "pswpin",
    /// Pages swapped out to the pool or an area.
    Pswpout = "pswpout",
    /// Pages read ahead.
    SwapRa = "swap_ra",
    /// Pages read ahead that were touched while still in the swap cache.
    SwapRaHit = "swap_ra_hit",
    /// Pages read from the areas.
    AreaPagesRead = "area_pages_read",
    /// Pages written to the areas.
    AreaPagesWritten = "area_pages_written",
    /// Pages decompressed from the pool.
    Zswpin = "zswpin",
    /// Pages stored in the pool.
    Zswpout = "zswpout",
    /// Pages moved from the pool to an area.
    Zswpwb = "zswpwb",
    /// Pages that came in as zeros.
    SwpinZero = "swpin_zero",
    /// Pages that were all zero and stored as nothing.
    SwpoutZero = "swpout_zero",
    /// Refaults of pages that were evicted recently.
    WorkingsetRefaultAnon = "workingset_refault_anon",
    /// Refaults so soon that the page was made active.
    WorkingsetActivateAnon = "workingset_activate_anon",
    /// Faults served by uswap.
    Pgfault = "pgfault",
    /// Faults that had to read, decompress or wait for it.
    Pgmajfault = "pgmajfault",
    /// Pages looked at by reclaim.
    Pgscan = "pgscan",
    /// Pages whose memory reclaim got back.
    Pgsteal = "pgsteal",
    /// Pages that got a second chance.
    Pgactivate = "pgactivate",
    /// Faults that had to reclaim by themselves.
    Allocstall = "allocstall",
    /// Touches of pages that were still in the swap cache.
    SwapCacheHit = "swap_cache_hit",
    /// Objects of the pool that compaction moved.
    CompactMoved = "compact_moved",
    /// Pages of the pool's memory that compaction freed.
    CompactFreed = "compact_freed",
    /// Clean pages dropped without a write.
    CleanDropped = "clean_dropped",
    /// Pages that the pool refused: compressed badly.
    RejectCompressPoor = "reject_compress_poor",
    /// Pages that the pool refused: it was full.
    PoolLimitHit = "pool_limit_hit",
    /// Pages that could not be moved out: shared after a fork, or pinned for a device.
    MoveBusy = "move_busy",
    /// Swapped-out pages that a program freed before they came in again.
    SwapDiscard = "swap_discard",
    /// Content that came back wrong.
    ChecksumFailures = "checksum_failures",
    /// Reads of an area that failed.
    ReadErrors = "read_errors",
    /// Writes to an area that failed.
    WriteErrors = "write_errors",
    /// Writes that failed for want of space, and pages that found no free slot.
    NoSpace = "no_space",
    /// Pages whose content is lost: touching them raises SIGBUS.
    PoisonedPages = "poisoned_pages",
    /// Forks followed.
    Forks = "forks",
    /// Userfaultfd messages that were not faults.
    UffdEvents = "uffd_events",
    /// Operations that the kernel put off because an event was unread.
    UffdTryAgain = "uffd_try_again",
}

/// Where a fault found its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum LatencyKind {
    /// Nowhere: it reads as zero.
    Zero,
    /// In the swap cache.
    SwapCache,
    /// In the compressed pool.
    Zswap,
    /// In a swap area.
    Area,
}

impl LatencyKind {
    /// Every kind, in the order of the shared array.
    pub const ALL: &'static [LatencyKind] =
        &[LatencyKind::Zero, LatencyKind::SwapCache, LatencyKind::Zswap, LatencyKind::Area];
    /// How many there are.
    pub const COUNT: usize = LatencyKind::ALL.len();

    /// The name that users see.
    pub const fn name(self) -> &'static str {
        match self {
            LatencyKind::Zero => "zero",
            LatencyKind::SwapCache => "swap_cache",
            LatencyKind::Zswap => "zswap",
            LatencyKind::Area => "area",
        }
    }
}

/// Octaves 0 to 33 of nanoseconds (17 s), 8 linear buckets in each; the first two share octave 0 to 2.
const BUCKETS: usize = 32 * 8;

/// A histogram of durations that several threads fill, exact to one eighth.
#[repr(C)]
pub struct Histogram {
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Histogram {
    /// An empty one.
    pub const fn new() -> Histogram {
        Histogram { max_ns: AtomicU64::new(0), buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }

    /// Counts one duration.
    pub fn record(&self, ns: u64) {
        self.buckets[Histogram::bucket(ns)].fetch_add(1, Relaxed);
        self.max_ns.fetch_max(ns, Relaxed);
    }

    fn bucket(ns: u64) -> usize {
        if ns < 8 {
            return ns as usize;
        }
        let octave = ns.ilog2();
        let eighth = (ns >> (octave - 3)) & 7;
        ((octave as usize - 2) * 8 + eighth as usize).min(BUCKETS - 1)
    }

    /// The largest duration that falls into a bucket.
    fn bucket_top_ns(bucket: usize) -> u64 {
        if bucket < 8 {
            return bucket as u64;
        }
        let octave = bucket / 8 + 2;
        let eighth = (bucket % 8) as u64;
        ((8 + eighth + 1) << (octave - 3)) - 1
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Relaxed)).sum()
    }

    /// The longest.
    pub fn max_ns(&self) -> u64 {
        self.max_ns.load(Relaxed)
    }

    /// The duration that `fraction` (0 to 1) of all did not exceed; None when nothing was counted.
    pub fn percentile_ns(&self, fraction: f64) -> Option<u64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let rank = ((total as f64 * fraction).ceil() as u64).clamp(1, total);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count.load(Relaxed);
            if seen >= rank {
                return Some(Histogram::bucket_top_ns(bucket).min(self.max_ns()));
            }
        }
        Some(self.max_ns())
    }

    /// Counts what `from` has counted, too.
    fn add(&self, from: &Histogram) {
        self.max_ns.fetch_max(from.max_ns(), Relaxed);
        for (to, from) in self.buckets.iter().zip(&from.buckets) {
            to.fetch_add(from.load(Relaxed), Relaxed);
        }
    }

    /// Moves everything counted in `from` to `self`.
    fn absorb(&self, from: &Histogram) {
        self.max_ns.fetch_max(from.max_ns.swap(0, Relaxed), Relaxed);
        for (to, from) in self.buckets.iter().zip(&from.buckets) {
            // Looking first spares a page of a histogram that was never used.
            if from.load(Relaxed) != 0 {
                to.fetch_add(from.swap(0, Relaxed), Relaxed);
            }
        }
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

/// Counters and latencies, of one process or of all that are gone.
#[repr(C)]
pub struct Tally {
    counters: [AtomicU64; Counter::COUNT],
    latency: [Histogram; LatencyKind::COUNT],
}

impl Tally {
    /// All zero.
    pub const fn new() -> Tally {
        Tally {
            counters: [const { AtomicU64::new(0) }; Counter::COUNT],
            latency: [const { Histogram::new() }; LatencyKind::COUNT],
        }
    }

    /// Adds to a counter.
    pub fn add(&self, counter: Counter, by: u64) {
        self.counters[counter as usize].fetch_add(by, Relaxed);
    }

    /// Reads a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Relaxed)
    }

    /// The histogram of one kind of fault.
    pub fn latency(&self, kind: LatencyKind) -> &Histogram {
        &self.latency[kind as usize]
    }

    /// Moves everything counted in `from` to `self`.
    pub fn absorb(&self, from: &Tally) {
        for (to, from) in self.counters.iter().zip(&from.counters) {
            to.fetch_add(from.swap(0, Relaxed), Relaxed);
        }
        for (to, from) in self.latency.iter().zip(&from.latency) {
            to.absorb(from);
        }
    }
}

impl Default for Tally {
    fn default() -> Tally {
        Tally::new()
    }
}

/// What a process slot is used for. Only the supervisor changes it, but for Starting -> Running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SlotState {
    /// Nobody's.
    Free = 0,
    /// Given to a process whose agent is not yet at work.
    Starting = 1,
    /// A living process.
    Running = 2,
    /// The process is gone, children still read what it swapped out.
    Dead = 3,
}

/// The child of a fork has said hello, and is not in its ledgers yet.
const ARRIVED: u32 = 1;
/// It is.
const INHERITS: u32 = 2;

/// Who may read slots of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heirs {
    /// A child may be on its way, or has not written into its ledgers yet.
    Arriving,
    /// There are some, each in its ledgers.
    Present,
    /// Nobody.
    None,
}

/// One process of the group.
///
/// Pages are 4 KiB. The process writes all of these but `pid`, `generation`, `inheritors` and `state`.
#[repr(C, align(128))]
pub struct ProcessSlot {
    /// Process id in the supervisor's namespace; 0 when the slot is free.
    pub pid: AtomicU32,
    /// Counts the users of this slot, so that a late message about an earlier one is known.
    pub generation: AtomicU32,
    state: AtomicU32,
    /// Forks that have begun and whose child has not said hello: see `fork_begins`.
    forks_in_flight: AtomicU32,
    /// Forks that have ever begun.
    forks_begun: AtomicU32,
    /// Private anonymous pages in RAM (RssAnon), uswap's own included.
    pub anon_pages: AtomicU64,
    /// Pages that a child will have which this process is about to fork: they count as used.
    pub promised_pages: AtomicU64,
    /// Pages that this process lacks of its fair share: those who have more than theirs give way.
    pub claimed_pages: AtomicU64,
    /// Shared pages in RAM (RssShmem), the compressed pool included; of those that others have too, a share.
    pub shmem_pages: AtomicU64,
    /// Private anonymous pages that the kernel has swapped out by itself (VmSwap), uswap's own included.
    pub kernel_swapped_pages: AtomicU64,
    /// What the tree of another `uswap run` has, whose supervisor this process is: it tells (`cli/run/nested.rs`).
    pub nested_pages: AtomicU64,
    /// Those of them that are the program's.
    pub shared_pages: AtomicU64,
    /// Those of these that are new since the process last looked who else has them: they count in full.
    pub new_shared_pages: AtomicU64,
    /// Shared pages of the program's in RAM, in full.
    pub resident_shared_pages: AtomicU64,
    /// [`Group::shared_growth`] when it last looked.
    pub shared_growth: AtomicU64,
    /// Private pages that a forked child had when it first looked: they may be its parent's as well.
    pub inherited_pages: AtomicU64,
    /// Resident private pages that uswap leaves alone, its own included.
    pub unmanaged_pages: AtomicU64,
    /// Pages that it keeps of those that could be swapped, because what cannot fills the budget; 0 mostly.
    pub floor_pages: AtomicU64,
    /// Pages that were adopted: in RAM or swapped out.
    pub managed_pages: AtomicU64,
    /// Adopted pages that are swapped out.
    pub swapped_pages: AtomicU64,
    /// RAM that the compressed pool takes.
    pub pool_bytes: AtomicU64,
    /// Compressed bytes in it.
    pub pool_stored_bytes: AtomicU64,
    /// Original size of what is in the pool.
    pub pool_original_bytes: AtomicU64,
    /// Pages of uswap's own tables, stacks and frames.
    pub overhead_pages: AtomicU64,
    /// Slots in use, by area.
    pub area_used_slots: [AtomicU64; AREAS_MAX],
    /// Counts calls for the threads that read ahead and empty areas; they sleep on it.
    pub calls: AtomicU32,
    /// The announcement that this process has carried out: see [`control`].
    pub carried_out: AtomicU32,
    /// It would bring in what is on an area that leaves, and the budget is used up.
    pub waits_for_memory: AtomicU32,
    /// The address of the page that each handler is serving; 0: none.
    serving: [AtomicU64; HANDLERS_SEEN + 1],
    /// 1 when its agent ends the process because it can neither go on nor give up; it has said why.
    pub ended_by_agent: AtomicU32,
    /// Not 0 for a child of a fork: its private pages may be its parent's as well. [`ARRIVED`] or [`INHERITS`].
    forked: AtomicU32,
    /// What it counted.
    pub tally: Tally,
    inheritors: [AtomicU64; WORDS],
}

impl ProcessSlot {
    /// What the slot is used for.
    pub fn state(&self) -> SlotState {
        match self.state.load(Acquire) {
            1 => SlotState::Starting,
            2 => SlotState::Running,
            3 => SlotState::Dead,
            _ => SlotState::Free,
        }
    }

    /// The agent of the process says that it is at work.
    pub fn running(&self) {
        let _ = self.state.compare_exchange(SlotState::Starting as u32, SlotState::Running as u32, AcqRel, Relaxed);
    }

    /// Resident pages that count against the budget.
    pub fn usage_pages(&self) -> u64 {
        self.anon_pages.load(Relaxed) + self.shmem_pages.load(Relaxed) + self.nested_pages.load(Relaxed)
    }

    /// Whether it was forked, and has not executed another program since.
    pub fn is_forked(&self) -> bool {
        self.forked.load(Relaxed) != 0
    }

    /// Private pages that are no ancestor's as well, at the least.
    fn own_private_pages(&self) -> u64 {
        match (self.is_forked(), self.inherited_pages.load(Relaxed)) {
            // It has not looked yet.
            (true, 0) => 0,
            (_, inherited) => self.anon_pages.load(Relaxed).saturating_sub(inherited),
        }
    }

    /// Those of them that cannot be swapped.
    pub fn fixed_pages(&self) -> u64 {
        self.unmanaged_pages.load(Relaxed) + self.shared_pages.load(Relaxed)
    }

    /// Calls the threads that read ahead and empty areas.
    pub fn call<S: System>(&self) {
        self.calls.fetch_add(1, AcqRel);
        S::wake(&self.calls, Scope::Shared, i32::MAX as u32);
    }

    /// Handler `number` is serving the page at `address`, or none: 0. For the watchdog.
    pub fn serves(&self, number: usize, address: usize) {
        self.serving[number % HANDLERS_SEEN].store(address as u64, Relaxed);
    }

    /// A thread that reads ahead is bringing in pages from `address` on, or none: 0. For the watchdog.
    pub fn reads_ahead(&self, address: usize) {
        self.serving[READING_AHEAD].store(address as u64, Relaxed);
    }

    /// The handlers that are serving a page, and its address; and [`READING_AHEAD`] with that of threads that read ahead.
    pub fn being_served(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.serving.iter().map(|address| address.load(Relaxed)).enumerate().filter(|(_, address)| *address != 0)
    }

    /// Called before fork(2): from here on a child may read our slots, known to the supervisor or not.
    /// Ended by the supervisor when the child says hello, or by `fork_failed`.
    pub fn fork_begins(&self) {
        // In this order: who sees the flight has it in the count of those that began.
        self.forks_begun.fetch_add(1, AcqRel);
        self.forks_in_flight.fetch_add(1, AcqRel);
    }

    /// fork(2) made no child after all.
    pub fn fork_failed(&self) {
        let _ = self.forks_in_flight.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1));
    }

    /// Forks whose child has not said hello.
    pub fn forks_in_flight(&self) -> u32 {
        self.forks_in_flight.load(Acquire)
    }

    /// Forks that have ever begun, those in flight at an earlier look among them. Wraps.
    pub fn forks_begun(&self) -> u32 {
        self.forks_begun.load(Acquire)
    }

    /// The child of a fork: it has written into its ledgers that it holds what they say.
    pub fn inherits(&self) {
        self.forked.store(INHERITS, Release);
    }

    /// For the supervisor, when it has counted the children that have not said hello: forks whose child died
    /// before it could are forgotten. `seen` is what `forks_in_flight` was before the count.
    pub fn forks_in_flight_are(&self, seen: u32, living: u32) {
        if living < seen {
            let _ = self.forks_in_flight.compare_exchange(seen, living, AcqRel, Relaxed);
        }
    }

    /// Whether another living process may read slots that this one owns.
    pub fn has_inheritors(&self) -> bool {
        // Order: the supervisor notes the child first and ends the flight second.
        self.forks_in_flight() != 0 || self.inheritors.iter().any(|w| w.load(Acquire) != 0)
    }

    /// Whether `process` may read slots that this one owns.
    pub fn is_inheritor(&self, process: u32) -> bool {
        self.inheritors[process as usize / 64].load(Acquire) & (1 << (process % 64)) != 0
    }

    fn clear(&self) {
        for word in [
            &self.anon_pages,
            &self.shmem_pages,
            &self.nested_pages,
            &self.kernel_swapped_pages,
            &self.shared_pages,
            &self.new_shared_pages,
            &self.resident_shared_pages,
            &self.shared_growth,
            &self.inherited_pages,
            &self.unmanaged_pages,
            &self.floor_pages,
            &self.managed_pages,
            &self.swapped_pages,
            &self.pool_bytes,
            &self.pool_stored_bytes,
            &self.pool_original_bytes,
            &self.overhead_pages,
            &self.promised_pages,
            &self.claimed_pages,
        ] {
            word.store(0, Relaxed);
        }
        self.area_used_slots.iter().chain(&self.serving).for_each(|w| w.store(0, Relaxed));
        // Not even what was announced before it came: it may have inherited something.
        self.carried_out.store(u32::MAX, Relaxed);
        self.waits_for_memory.store(0, Relaxed);
        self.ended_by_agent.store(0, Relaxed);
        self.forked.store(0, Relaxed);
    }
}

#[repr(C)]
struct RawArea {
    slots: u64,
    file: [u64; 2],
    priority: i32,
    flags: u32,
}

const AREA_PRESENT: u32 = 1;
const AREA_DIRECT: u32 = 2;
const AREA_PUNCH: u32 = 4;

/// `GroupConfig` in integers, so that any bytes are a value.
#[repr(C)]
struct RawConfig {
    memory_limit_bytes: u64,
    zpool_percent: u32,
    accept_threshold_percent: u32,
    compressor: u32,
    reclaim: u32,
    readahead: u32,
    gap_min_pages: u32,
    verbosity: u32,
    areas: [RawArea; AREAS_MAX],
    fault_injection: FaultPlan,
}

impl RawConfig {
    fn encode(config: &GroupConfig) -> RawConfig {
        RawConfig {
            memory_limit_bytes: config.memory_limit_bytes,
            zpool_percent: config.zpool_percent,
            accept_threshold_percent: config.accept_threshold_percent,
            compressor: config.compressor as u32,
            reclaim: config.policies.reclaim as u32,
            readahead: config.policies.readahead as u32,
            gap_min_pages: config.gap_min_pages,
            verbosity: u32::from(config.verbosity),
            areas: config.areas.map(|a| RawArea {
                slots: a.slots,
                file: a.file,
                priority: a.priority,
                flags: u32::from(a.present) * AREA_PRESENT
                    + u32::from(a.direct) * AREA_DIRECT
                    + u32::from(a.punch_holes) * AREA_PUNCH,
            }),
            fault_injection: config.fault_injection,
        }
    }

    fn decode(&self) -> Option<GroupConfig> {
        let mut areas = [AreaConfig::default(); AREAS_MAX];
        for (area, raw) in areas.iter_mut().zip(&self.areas) {
            *area = AreaConfig {
                present: raw.flags & AREA_PRESENT != 0,
                slots: raw.slots,
                priority: raw.priority,
                direct: raw.flags & AREA_DIRECT != 0,
                punch_holes: raw.flags & AREA_PUNCH != 0,
                file: raw.file,
            };
        }
        Some(GroupConfig {
            memory_limit_bytes: self.memory_limit_bytes,
            zpool_percent: self.zpool_percent,
            accept_threshold_percent: self.accept_threshold_percent,
            compressor: Compressor::from_raw(self.compressor)?,
            policies: Policies {
                reclaim: ReclaimPolicy::from_number(self.reclaim)?,
                readahead: ReadaheadPolicy::from_number(self.readahead)?,
            },
            gap_min_pages: self.gap_min_pages,
            verbosity: self.verbosity as u8,
            areas,
            fault_injection: self.fault_injection,
        })
    }
}

/// The first pages of the memory file.
#[repr(C)]
struct Header {
    magic: u64,
    version: u32,
    header_bytes: u32,
    file_bytes: u64,
    config: RawConfig,
    /// One bit per process slot that is not free. Shared memory is allocated even by reading it, so nobody
    /// looks at a slot whose bit is not set.
    taken: [AtomicU64; WORDS],
    peak_resident_bytes: AtomicU64,
    most_over_bytes: AtomicU64,
    limit_bytes: AtomicU64,
    announcements: AtomicU32,
    shared_growth: AtomicU64,
    leaving: [AtomicU32; AREAS_MAX],
    area_hint: [AtomicU32; AREAS_MAX],
    totals: Tally,
}

/// Where the parts are in the file, computed from the configuration.
struct Layout {
    slots: usize,
    clusters: [usize; AREAS_MAX],
    bytes: usize,
}

impl Layout {
    fn of(config: &GroupConfig) -> Layout {
        let page = PAGE_BYTES as usize;
        let slots = size_of::<Header>().next_multiple_of(page);
        let mut end = (slots + PROCESSES_MAX * size_of::<ProcessSlot>()).next_multiple_of(page);
        let mut clusters = [0; AREAS_MAX];
        for (area, start) in clusters.iter_mut().enumerate() {
            *start = end;
            end = (end + config.clusters(area) as usize * size_of::<AtomicU32>()).next_multiple_of(page);
        }
        Layout { slots, clusters, bytes: end }
    }
}

/// The group, mapped.
///
/// # Invariants
/// `base` maps `layout.bytes` bytes of a memory file that is sealed against shrinking, readable and writable,
/// until drop. The header was written before the file was shared and is not changed after, but for its atomics.
pub struct Group {
    base: NonNull<u8>,
    layout: Layout,
    config: GroupConfig,
}

// SAFETY: all that is reached through `base` after creation is atomic.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Group {
    /// Makes a new group and the memory file that others map it from.
    pub fn create(config: &GroupConfig) -> io::Result<(Group, OwnedFd)> {
        let fd = rustix::fs::memfd_create(c"uswap-group", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let layout = Layout::of(config);
        rustix::fs::ftruncate(&fd, layout.bytes as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let bytes = layout.bytes;
        let group = Group { base: map(&fd, bytes)?, layout, config: config.clone() };
        let header = group.base.cast::<Header>().as_ptr();
        // SAFETY: the mapping is page-aligned and larger than a header, and nobody else has it yet.
        unsafe {
            (&raw mut (*header).magic).write(MAGIC);
            (&raw mut (*header).version).write(VERSION);
            (&raw mut (*header).header_bytes).write(size_of::<Header>() as u32);
            (&raw mut (*header).file_bytes).write(bytes as u64);
            (&raw mut (*header).config).write(RawConfig::encode(config));
            (&raw mut (*header).limit_bytes).write(AtomicU64::new(config.memory_limit_bytes));
        }
        Ok((group, fd))
    }

    /// Maps a group that another process made.
    pub fn open(fd: impl AsFd) -> io::Result<Group> {
        let refuse = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let file_bytes = rustix::fs::fstat(&fd)?.st_size as u64;
        if file_bytes < size_of::<Header>() as u64 {
            return Err(refuse("not a uswap group"));
        }
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(refuse("a uswap group that could be truncated"));
        }
        let bytes = file_bytes as usize;
        let base = map(&fd, bytes)?;
        // From here on `Group::drop` unmaps.
        let layout = Layout { slots: 0, clusters: [0; AREAS_MAX], bytes };
        let mut group = Group { base, layout, config: GroupConfig::default() };
        let header = group.header();
        if header.magic != MAGIC {
            return Err(refuse("not a uswap group"));
        }
        if header.version != VERSION || header.header_bytes as usize != size_of::<Header>() {
            return Err(refuse("the group of another version of uswap"));
        }
        let config =
            header.config.decode().ok_or_else(|| refuse("a uswap group with an unknown compressor or policy"))?;
        let layout = Layout::of(&config);
        if header.file_bytes != file_bytes || layout.bytes != bytes {
            return Err(refuse("a uswap group of the wrong size"));
        }
        group.config = config;
        group.layout = layout;
        Ok(group)
    }

    fn header(&self) -> &Header {
        // SAFETY: by the type's invariant; the plain fields are no longer written.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// What stays the same.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// The slot of one process.
    pub fn process(&self, index: u32) -> &ProcessSlot {
        let index = index as usize;
        assert!(index < PROCESSES_MAX, "process slot {index} of {PROCESSES_MAX}");
        // SAFETY: inside the mapping by the layout, aligned because the array starts on a page; any bytes are
        // a value, for all fields are atomic integers.
        unsafe { self.base.add(self.layout.slots).cast::<ProcessSlot>().add(index).as_ref() }
    }

    /// Slots that are not free: living processes and dead ones with inheritors.
    pub fn taken(&self) -> impl Iterator<Item = (u32, &ProcessSlot)> {
        self.header().taken.iter().enumerate().flat_map(move |(word, bits)| {
            ones(bits.load(Acquire)).map(move |bit| {
                let index = word as u32 * 64 + bit;
                (index, self.process(index))
            })
        })
    }

    /// Slots of living processes.
    pub fn processes(&self) -> impl Iterator<Item = (u32, &ProcessSlot)> {
        self.taken().filter(|(_, slot)| matches!(slot.state(), SlotState::Starting | SlotState::Running))
    }

    /// Whether `holder` is among the living processes.
    pub fn has(&self, holder: Holder) -> bool {
        let slot = self.process(holder.index);
        matches!(slot.state(), SlotState::Starting | SlotState::Running)
            && slot.generation.load(Acquire) == holder.generation
    }

    /// What the processes that are gone have counted.
    pub fn totals(&self) -> &Tally {
        &self.header().totals
    }

    /// A counter over all processes, gone and living.
    pub fn count(&self, counter: Counter) -> u64 {
        self.totals().get(counter) + self.taken().map(|(_, slot)| slot.tally.get(counter)).sum::<u64>()
    }

    /// One kind of fault over all processes, gone and living.
    pub fn latency(&self, kind: LatencyKind) -> Histogram {
        let all = Histogram::new();
        all.add(self.totals().latency(kind));
        self.taken().for_each(|(_, slot)| all.add(slot.tally.latency(kind)));
        all
    }

    /// Resident pages of all living processes.
    pub fn usage_pages(&self) -> u64 {
        self.processes().map(|(_, slot)| slot.usage_pages()).sum()
    }

    /// Pages that living processes have resident at the least: what may be counted in several of them counts once.
    pub fn resident_pages_at_least(&self) -> u64 {
        let private = |slot: &ProcessSlot| {
            let beside = slot.shmem_pages.load(Relaxed).saturating_sub(slot.shared_pages.load(Relaxed));
            slot.own_private_pages() + beside + slot.nested_pages.load(Relaxed)
        };
        self.processes().map(|(_, slot)| private(slot)).sum::<u64>() + self.shared_pages_at_least()
    }

    /// Pages of shared memory that living processes have, at the least. Their shares add up to it if all were taken at one time.
    /// A page that another has mapped since the oldest was taken, and counts for a half or less, counts in full before.
    fn shared_pages_at_least(&self) -> u64 {
        let growth = self.shared_growth();
        let (mut shares, mut most, mut oldest) = (0, 0, growth);
        for (_, slot) in self.processes() {
            let own = slot.shared_pages.load(Relaxed);
            shares += own.saturating_sub(slot.new_shared_pages.load(Relaxed));
            most = most.max(own).max(slot.resident_shared_pages.load(Relaxed));
            if own > 0 {
                oldest = oldest.min(slot.shared_growth.load(Relaxed));
            }
        }
        most.max(shares.saturating_sub((growth - oldest).div_ceil(2)))
    }

    /// By how many pages the shared memory of processes has ever grown: what one of them has learnt of who else has its own is
    /// out of date by so much.
    pub fn shared_growth(&self) -> u64 {
        self.header().shared_growth.load(Acquire)
    }

    /// A process has so many pages of shared memory more than it had.
    pub(crate) fn shared_memory_grows(&self, pages: u64) {
        self.header().shared_growth.fetch_add(pages, AcqRel);
    }

    /// Pages of living processes that cannot be swapped, and those of them that are shared memory. What may be a parent's
    /// as well is left out.
    pub fn fixed_pages(&self) -> (u64, u64) {
        let own = |slot: &ProcessSlot| if slot.is_forked() { 0 } else { slot.unmanaged_pages.load(Relaxed) };
        let private: u64 = self.processes().map(|(_, slot)| own(slot)).sum();
        let shared = self.shared_pages_at_least();
        (private + shared, shared)
    }

    /// The largest usage seen.
    pub fn peak_resident_bytes(&self) -> u64 {
        self.header().peak_resident_bytes.load(Relaxed)
    }

    /// The most that usage was seen above the budget of that moment.
    pub fn most_over_bytes(&self) -> u64 {
        self.header().most_over_bytes.load(Relaxed)
    }

    /// Notes a usage.
    pub fn note_resident_bytes(&self, bytes: u64) {
        self.header().peak_resident_bytes.fetch_max(bytes, Relaxed);
        self.header().most_over_bytes.fetch_max(bytes.saturating_sub(self.limit_bytes()), Relaxed);
    }

    // Process slots: the supervisor's side.

    /// Takes the lowest free slot for a process. None when all are taken.
    pub fn allot(&self, pid: u32) -> Option<u32> {
        for (word, bits) in self.header().taken.iter().enumerate() {
            let taken = bits.load(Acquire);
            if taken == u64::MAX {
                continue;
            }
            let bit = (!taken).trailing_zeros();
            let index = word as u32 * 64 + bit;
            let slot = self.process(index);
            slot.clear();
            slot.generation.fetch_add(1, AcqRel);
            slot.pid.store(pid, Release);
            slot.state.store(SlotState::Starting as u32, Release);
            bits.fetch_or(1 << bit, AcqRel);
            return Some(index);
        }
        None
    }

    /// What those who may read slots of `owner` are at.
    pub fn heirs_of(&self, owner: u32) -> Heirs {
        // In this order: an heir is noted before its flight ends, and its own forks begin after that.
        let slot = self.process(owner);
        let heirs = || (0..PROCESSES_MAX as u32).filter(|&heir| slot.is_inheritor(heir)).map(|heir| self.process(heir));
        if slot.forks_in_flight() != 0 || heirs().any(|heir| heir.forks_in_flight() != 0) {
            return Heirs::Arriving;
        }
        let mut all = Heirs::None;
        for heir in heirs() {
            if heir.forked.load(Acquire) == ARRIVED {
                return Heirs::Arriving;
            }
            all = Heirs::Present;
        }
        all
    }

    /// `child` was forked from `parent`: it may read the slots of its parent, and of all that the parent
    /// inherited from. Ends the parent's fork in flight.
    pub fn fork_arrived(&self, parent: u32, child: u32) {
        self.process(child).forked.store(ARRIVED, Release);
        for (index, slot) in self.taken() {
            if index != child && (index == parent || slot.is_inheritor(parent)) {
                self.note_inheritor(index, child);
            }
        }
        self.process(parent).fork_failed();
    }

    /// `child` may read slots that `owner` owns.
    pub fn note_inheritor(&self, owner: u32, child: u32) {
        self.process(owner).inheritors[child as usize / 64].fetch_or(1 << (child % 64), AcqRel);
    }

    /// The process of a slot is gone (it ended, or it runs another program): what it counted goes to the
    /// totals, it uses nothing any more, and it inherits nothing any more. Its clusters stay its own. If a child of it has
    /// not said hello, it stays in its place until it is reaped: the child inherits what it did.
    pub fn retire(&self, index: u32) {
        let slot = self.process(index);
        slot.state.store(SlotState::Dead as u32, Release);
        self.totals().absorb(&slot.tally);
        slot.clear();
        if slot.forks_in_flight() == 0 {
            self.inherits_nothing(index);
        }
    }

    fn inherits_nothing(&self, index: u32) {
        for (_, owner) in self.taken() {
            owner.inheritors[index as usize / 64].fetch_and(!(1 << (index % 64)), AcqRel);
        }
    }

    /// Dead processes whose slots nobody can read any more. When they are reaped, there may be more.
    pub fn reapable(&self) -> impl Iterator<Item = u32> {
        self.taken().filter(|(_, s)| s.state() == SlotState::Dead && !s.has_inheritors()).map(|(index, _)| index)
    }

    /// Frees a slot of a dead process and all clusters it still owns.
    pub fn reap(&self, index: u32) {
        let slot = self.process(index);
        assert_eq!(slot.state(), SlotState::Dead, "only a dead process is reaped");
        self.release_all_of(index);
        self.inherits_nothing(index);
        slot.pid.store(0, Release);
        slot.state.store(SlotState::Free as u32, Release);
        self.header().taken[index as usize / 64].fetch_and(!(1 << (index % 64)), AcqRel);
    }

    // Clusters.

    fn owners(&self, area: usize) -> &[AtomicU32] {
        // SAFETY: inside the mapping by the layout, page-aligned; any bytes are a value.
        unsafe {
            let start = self.base.add(self.layout.clusters[area]).cast::<AtomicU32>();
            std::slice::from_raw_parts(start.as_ptr(), self.config.clusters(area) as usize)
        }
    }

    /// Takes a free cluster of an area for process `me`, next to the one taken last. None when there is none.
    pub fn claim_cluster(&self, area: usize, me: u32) -> Option<u32> {
        let owners = self.owners(area);
        if owners.is_empty() {
            return None;
        }
        let hint = &self.header().area_hint[area];
        let start = hint.load(Relaxed) as usize % owners.len();
        for cluster in (start..owners.len()).chain(0..start) {
            if owners[cluster].load(Relaxed) == 0
                && owners[cluster].compare_exchange(0, me + 1, AcqRel, Relaxed).is_ok()
            {
                hint.store(cluster as u32 + 1, Relaxed);
                return Some(cluster as u32);
            }
        }
        None
    }

    /// Gives a cluster back. False when it was not `me`'s.
    #[must_use]
    pub fn release_cluster(&self, area: usize, cluster: u32, me: u32) -> bool {
        self.owners(area)[cluster as usize].compare_exchange(me + 1, 0, AcqRel, Relaxed).is_ok()
    }

    /// Takes a cluster for nobody: it has pages that must not be used.
    pub fn withhold_cluster(&self, area: usize, cluster: u32) {
        self.owners(area)[cluster as usize].store(WITHHELD, Release);
    }

    /// The process that owns a cluster.
    pub fn cluster_owner(&self, area: usize, cluster: u32) -> Option<u32> {
        self.owners(area)[cluster as usize].load(Acquire).checked_sub(1).filter(|me| *me + 1 != WITHHELD)
    }

    /// The clusters of an area that a process owns, ascending.
    pub fn clusters_of(&self, area: usize, process: u32) -> impl Iterator<Item = u32> {
        let owned =
            move |(cluster, owner): (usize, &AtomicU32)| (owner.load(Acquire) == process + 1).then_some(cluster as u32);
        self.owners(area).iter().enumerate().filter_map(owned)
    }

    /// Clusters of an area that somebody owns.
    pub fn clusters_taken(&self, area: usize) -> u64 {
        self.owners(area).iter().filter(|owner| owner.load(Relaxed) != 0).count() as u64
    }

    /// Frees every cluster that a process owns.
    pub fn release_all_of(&self, process: u32) {
        for area in 0..AREAS_MAX {
            for owner in self.owners(area) {
                let _ = owner.compare_exchange(process + 1, 0, AcqRel, Relaxed);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: by the type's invariant this is our mapping, and every reference into it borrows from `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.layout.bytes) };
    }
}

fn map(fd: impl AsFd, bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    Ok(uswap_sys::placement::map(bytes, protection, MapFlags::SHARED, Some(fd.as_fd()))?.cast())
}

/// The numbers of the set bits, ascending.
fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (lowest < 64).then_some(lowest)
    })
}

#[cfg(test)]
mod tests;
