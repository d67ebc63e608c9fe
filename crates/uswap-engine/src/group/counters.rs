//! Counters: what a process counts.

use uswap_system::atomic::{AtomicU64, Ordering::Relaxed};

use super::fault_latency::{Histogram, LatencyKind};

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
    /// Writes to blocks that were in common after a fork, which had to ask for room first.
    CopyFault = "copy_fault",
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
