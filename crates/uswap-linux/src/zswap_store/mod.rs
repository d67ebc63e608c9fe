//! zswap: pages that are kept compressed in memory instead of being written to their slot.
//!
//! Entries are found by slot, in one tree for every 64 MiB of an area ([`trees`]), and age in lists of their own, one for each
//! cgroup and node. The pool may take a share of memory; from there on nothing is stored until the worker has written so many
//! old entries to their slots that the pool is below the accept threshold. A load out of the pool into the swap cache takes the
//! entry with it, so a page is never in memory twice, and must be stored again when it leaves.
//!
//! Content is not seen here: the driver compresses and says how long the result is. Source: Linux 6.18.

mod shrink;
pub mod trees;

pub use shrink::{Picked, WritebackHost, WritebackTicket};
pub use trees::{InvalidateRule, TreeCosts};

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use self::trees::Trees;
use super::errno::Errno;
use super::swap_entry::SwapEntry;
use super::zsmalloc::{CHAIN_DEFAULT, Handle, Zsmalloc};

/// Bytes of a page that does not compress.
const RAW_BYTES: u16 = 4096;

/// What compressing a page came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compressed {
    /// So many bytes; 4096 and more are as good as none.
    Bytes(u16),
    /// The compressor gave up.
    Failed,
}

/// Which list of old entries: they age by cgroup and node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LruId {
    /// The cgroup.
    pub cgroup: u16,
    /// The NUMA node.
    pub node: u16,
}

/// What a cgroup allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CgroupRules {
    /// `memory.zswap.max` in bytes; 0 is never.
    pub max_bytes: Option<u64>,
    /// `memory.zswap.writeback`: entries may be written to their slots.
    pub writeback: bool,
}

impl Default for CgroupRules {
    fn default() -> Self {
        Self { max_bytes: None, writeback: true }
    }
}

/// What becomes of pages that do not compress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incompressible {
    /// They go to disk: before 6.18.
    Reject,
    /// They are kept as they are, so that they leave in their turn, unless their cgroup allows no writeback.
    Keep,
}

/// How zswap is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZswapConfig {
    /// `enabled`.
    pub enabled: bool,
    /// Pages of the machine.
    pub ram_pages: u64,
    /// `max_pool_percent`.
    pub max_pool_percent: u64,
    /// `accept_threshold_percent`.
    pub accept_threshold_percent: u64,
    /// Pages that do not compress.
    pub incompressible: Incompressible,
    /// What happens for each slot that is freed.
    pub invalidate: InvalidateRule,
}

impl ZswapConfig {
    /// Linux 6.18 on a machine of so many pages, enabled.
    pub fn new(ram_pages: u64) -> Self {
        Self {
            enabled: true,
            ram_pages,
            max_pool_percent: 20,
            accept_threshold_percent: 90,
            incompressible: Incompressible::Keep,
            invalidate: InvalidateRule::EmptyTest,
        }
    }

    /// Pages of the pool from which on nothing is stored.
    pub fn limit_pages(&self) -> u64 {
        self.ram_pages * self.max_pool_percent / 100
    }

    /// Pages of a pool that was full down to which it must shrink.
    pub fn accept_pages(&self) -> u64 {
        self.limit_pages() * self.accept_threshold_percent / 100
    }
}

/// A folio that leaves memory: the slots from `first` on, one page each.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a> {
    /// Slot of the first page.
    pub first: SwapEntry,
    /// Whose list it joins.
    pub lru: LruId,
    /// Its pages, compressed.
    pub pages: &'a [Compressed],
}

/// Why a folio is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejected {
    /// zswap is off.
    Disabled,
    /// The cgroup is at its limit and nothing of it can be written back.
    CgroupLimit,
    /// The pool is full, or was and is still above the accept threshold.
    PoolFull,
    /// A page does not compress.
    Incompressible,
}

/// What a load found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loaded {
    /// Nothing: the page is on disk.
    NotFound,
    /// So many bytes to decompress. The entry is gone and the page is dirty, unless it bypassed the swap cache.
    Found {
        /// Compressed length.
        bytes: u16,
        /// The entry is gone: the page in memory is the only copy.
        exclusive: bool,
    },
}

/// Counters, as in vmstat and debugfs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ZswapStats {
    /// Pages stored (`zswpout`).
    pub zswpout: u64,
    /// Pages loaded (`zswpin`).
    pub zswpin: u64,
    /// Entries written to their slots (`zswpwb`, `written_back_pages`).
    pub zswpwb: u64,
    /// Stores refused at the limit (`pool_limit_hit`).
    pub pool_limit_hit: u64,
    /// Stores refused since nothing could be written back (`reject_reclaim_fail`).
    pub reject_reclaim_fail: u64,
    /// Pages that came out as long as they were (`reject_compress_poor`).
    pub reject_compress_poor: u64,
    /// Pages that the compressor gave up on (`reject_compress_fail`).
    pub reject_compress_fail: u64,
    /// Loads that could not be decompressed (`decompress_fail`).
    pub decompress_fail: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    swap: SwapEntry,
    lru: LruId,
    handle: Handle,
    bytes: u16,
    referenced: bool,
    /// Place in its list, and what tells it from a later entry of the same slot.
    stamp: u64,
}

#[derive(Clone, Default)]
struct Lru {
    /// Oldest first.
    entries: BTreeMap<u64, u32>,
}

/// Books of zswap that do not agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZswapViolation {
    /// The tree, the list and the pool differ about a slot.
    Entry(SwapEntry),
    /// An entry and the zero bit of one slot: only one can tell what the page is.
    ZeroToo(SwapEntry),
    /// A folio could not be stored, and an entry of one of its slots is still there: its old content.
    Stale(SwapEntry),
    /// A total is not the sum.
    Total(&'static str),
}

impl fmt::Display for ZswapViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entry, what) = match self {
            Self::Entry(entry) => (entry, "is not the same in tree, list and pool"),
            Self::ZeroToo(entry) => (entry, "has an entry and a zero bit"),
            Self::Stale(entry) => (entry, "kept its old entry when a store failed"),
            Self::Total(what) => return write!(f, "zswap: {what} is not the sum"),
        };
        write!(f, "zswap: slot {} of area {} {what}", entry.slot, entry.area)
    }
}

/// zswap of a machine.
#[derive(Clone)]
pub struct Zswap {
    config: ZswapConfig,
    pool: Zsmalloc,
    trees: Trees,
    entries: Vec<Option<Entry>>,
    free_ids: Vec<u32>,
    lrus: BTreeMap<LruId, Lru>,
    cgroups: BTreeMap<u16, (CgroupRules, u64)>,
    clock: u64,
    reached_full: bool,
    ever_enabled: bool,
    shrink_wanted: bool,
    /// Where the worker goes on.
    worker_at: Option<LruId>,
    stats: ZswapStats,
    incompressible: u64,
    stored: u64,
}

impl Zswap {
    /// Nothing stored.
    pub fn new(config: ZswapConfig) -> Self {
        Self {
            config,
            pool: Zsmalloc::new(CHAIN_DEFAULT),
            trees: Trees::default(),
            entries: Vec::new(),
            free_ids: Vec::new(),
            lrus: BTreeMap::new(),
            cgroups: BTreeMap::new(),
            clock: 0,
            reached_full: false,
            ever_enabled: config.enabled,
            shrink_wanted: false,
            worker_at: None,
            stats: ZswapStats::default(),
            incompressible: 0,
            stored: 0,
        }
    }

    /// An area of so many slots is swapped on: it gets its trees.
    pub fn swapon(&mut self, area: u8, slots: u64) {
        self.trees.add_area(area, slots);
    }

    /// An area has gone.
    ///
    /// # Panics
    /// When an entry of it is left.
    pub fn swapoff(&mut self, area: u8) {
        self.trees.remove_area(area);
    }

    /// Turns it on or off. What is stored stays, and is loaded.
    pub fn set_enabled(&mut self, enabled: bool) {
        self.config.enabled = enabled;
        self.ever_enabled |= enabled;
    }

    /// Sets what a cgroup allows.
    pub fn set_cgroup(&mut self, cgroup: u16, rules: CgroupRules) {
        self.cgroups.entry(cgroup).or_default().0 = rules;
    }

    /// Counters.
    pub fn stats(&self) -> ZswapStats {
        self.stats
    }

    /// Locks, tests and lookups so far.
    pub fn tree_costs(&self) -> TreeCosts {
        self.trees.costs()
    }

    /// Entries (`stored_pages`).
    pub fn stored_pages(&self) -> u64 {
        self.stored
    }

    /// Entries that are kept as they are (`stored_incompressible_pages`).
    pub fn stored_incompressible_pages(&self) -> u64 {
        self.incompressible
    }

    /// Pages of the pool (`pool_total_size`).
    pub fn pool_pages(&self) -> u64 {
        self.pool.usage().pages
    }

    /// Bytes that a cgroup is charged with (`memory.zswap.current`).
    pub fn cgroup_bytes(&self, cgroup: u16) -> u64 {
        self.cgroups.get(&cgroup).map_or(0, |&(_, bytes)| bytes)
    }

    /// Whether the slot has an entry.
    pub fn contains(&self, entry: SwapEntry) -> bool {
        self.trees.get(entry).is_some()
    }

    /// Stores a folio, all of it or nothing. When it is nothing, its slots have no entry left: an old one could overwrite what
    /// is now going to disk.
    ///
    /// # Errors
    /// [`Rejected`]; the folio is to be written to its slots.
    pub fn store<H: WritebackHost>(&mut self, request: StoreRequest<'_>, host: &mut H) -> Result<(), Rejected> {
        let stored = self.admit(request, host).and_then(|()| {
            let mut slots = (request.first.slot..).map(|slot| SwapEntry { slot, ..request.first });
            request.pages.iter().try_for_each(|&page| self.store_page(slots.next().expect("slots"), request.lru, page))
        });
        if stored.is_err() {
            for index in 0..request.pages.len() as u64 {
                self.erase(SwapEntry { slot: request.first.slot + index, ..request.first });
            }
            // A pool that has reached its limit asks for the worker with every store that it turns away.
            self.shrink_wanted |= self.reached_full;
        }
        stored
    }

    fn admit<H: WritebackHost>(&mut self, request: StoreRequest<'_>, host: &mut H) -> Result<(), Rejected> {
        if !self.config.enabled {
            return Err(Rejected::Disabled);
        }
        let (rules, bytes) = self.cgroups.get(&request.lru.cgroup).copied().unwrap_or_default();
        if rules.max_bytes.is_some_and(|max| bytes >= max) && !self.write_back_one_per_node(request.lru.cgroup, host) {
            self.stats.reject_reclaim_fail += 1;
            return Err(Rejected::CgroupLimit);
        }
        if self.pool_is_full() { Err(Rejected::PoolFull) } else { Ok(()) }
    }

    /// The limit, and after it was reached the accept threshold.
    fn pool_is_full(&mut self) -> bool {
        let pages = self.pool_pages();
        if pages >= self.config.limit_pages() {
            self.stats.pool_limit_hit += 1;
            self.reached_full = true;
        } else if self.reached_full && pages <= self.config.accept_pages() {
            self.reached_full = false;
        }
        self.reached_full
    }

    fn store_page(&mut self, swap: SwapEntry, lru: LruId, page: Compressed) -> Result<(), Rejected> {
        let bytes = match page {
            Compressed::Bytes(bytes) if bytes < RAW_BYTES => bytes,
            poor => {
                let writeback = self.cgroups.get(&lru.cgroup).is_none_or(|(rules, _)| rules.writeback);
                if self.config.incompressible == Incompressible::Reject || !writeback {
                    match poor {
                        Compressed::Failed => self.stats.reject_compress_fail += 1,
                        Compressed::Bytes(_) => self.stats.reject_compress_poor += 1,
                    }
                    return Err(Rejected::Incompressible);
                }
                RAW_BYTES
            }
        };
        let handle = self.pool.alloc(bytes);
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.clock += 1;
        let entry = Entry { swap, lru, handle, bytes, referenced: true, stamp: self.clock };
        self.entries[id as usize] = Some(entry);
        self.lrus.entry(lru).or_default().entries.insert(entry.stamp, id);
        if let Some(stale) = self.trees.replace(swap, id) {
            self.drop_entry(stale);
        }
        self.cgroups.entry(lru.cgroup).or_default().1 += u64::from(bytes);
        self.incompressible += u64::from(bytes == RAW_BYTES);
        self.stored += 1;
        self.stats.zswpout += 1;
        Ok(())
    }

    /// Loads the page of a slot, into a page of the swap cache or, bypassing it, into one that is mapped at once.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for a folio of more than one page when zswap was ever enabled; [`Errno::EIO`] when the page does not
    /// `decompress`: it is not up to date, and the entry stays.
    pub fn load(
        &mut self,
        entry: SwapEntry,
        pages: u64,
        in_swap_cache: bool,
        decompress: impl FnOnce(u16) -> bool,
    ) -> Result<Loaded, Errno> {
        if !self.ever_enabled {
            return Ok(Loaded::NotFound);
        }
        if pages > 1 {
            return Err(Errno::EINVAL);
        }
        let Some(id) = self.trees.look_up(entry) else { return Ok(Loaded::NotFound) };
        let bytes = self.entry(id).bytes;
        if !decompress(bytes) {
            self.stats.decompress_fail += 1;
            return Err(Errno::EIO);
        }
        self.stats.zswpin += 1;
        if in_swap_cache {
            self.erase(entry);
        }
        Ok(Loaded::Found { bytes, exclusive: in_swap_cache })
    }

    /// A slot is freed: its entry goes, if there is one. The slot is still held by the caller, so nobody can store to it between
    /// a test without a lock and the return. What this cost, by the rule that is configured.
    pub fn invalidate(&mut self, entry: SwapEntry) -> TreeCosts {
        let before = self.trees.costs();
        if let Some(id) = self.trees.invalidate(entry, self.config.invalidate, self.ever_enabled) {
            self.drop_entry(id);
        }
        self.trees.costs() - before
    }

    fn entry(&self, id: u32) -> Entry {
        self.entries[id as usize].expect("a tree names live entries")
    }

    fn erase(&mut self, entry: SwapEntry) {
        if let Some(id) = self.trees.erase(entry) {
            self.drop_entry(id);
        }
    }

    /// Lets go of an entry that its tree has lost.
    fn drop_entry(&mut self, id: u32) {
        let entry = self.entries[id as usize].take().expect("the entry is live");
        self.free_ids.push(id);
        self.pool.free(entry.handle);
        let lru = self.lrus.get_mut(&entry.lru).expect("an entry is in a list");
        lru.entries.remove(&entry.stamp);
        self.cgroups.get_mut(&entry.lru.cgroup).expect("an entry is charged").1 -= u64::from(entry.bytes);
        self.incompressible -= u64::from(entry.bytes == RAW_BYTES);
        self.stored -= 1;
    }

    /// Checks trees, lists, pool and totals against each other, and that no slot with an entry has a zero bit.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self, is_zero: impl Fn(SwapEntry) -> bool) -> Result<(), ZswapViolation> {
        let mut charged: BTreeMap<u16, u64> = BTreeMap::new();
        let mut bytes = 0;
        let mut stored = 0;
        for (id, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            let id = id as u32;
            let listed = self.lrus.get(&entry.lru).and_then(|lru| lru.entries.get(&entry.stamp)) == Some(&id);
            let pooled = self.pool.bytes(entry.handle) == entry.bytes;
            if self.trees.get(entry.swap) != Some(id) || !listed || !pooled {
                return Err(ZswapViolation::Entry(entry.swap));
            }
            if is_zero(entry.swap) {
                return Err(ZswapViolation::ZeroToo(entry.swap));
            }
            *charged.entry(entry.lru.cgroup).or_default() += u64::from(entry.bytes);
            bytes += u64::from(entry.bytes);
            stored += 1;
        }
        let listed: u64 = self.lrus.values().map(|lru| lru.entries.len() as u64).sum();
        let pooled = self.pool.usage().stored_bytes;
        let charges =
            self.cgroups.iter().all(|(cgroup, &(_, bytes))| charged.get(cgroup).copied().unwrap_or(0) == bytes);
        for (agrees, what) in [
            (stored == self.stored && stored == listed && stored == self.trees.len(), "the number of entries"),
            (bytes == pooled, "the bytes of the pools"),
            (charges, "the charge of a cgroup"),
        ] {
            if !agrees {
                return Err(ZswapViolation::Total(what));
            }
        }
        Ok(())
    }

    /// Checks what must hold after a store was turned away.
    ///
    /// # Errors
    /// [`ZswapViolation::Stale`].
    pub fn check_rejected(&self, request: StoreRequest<'_>) -> Result<(), ZswapViolation> {
        let slots = (request.first.slot..).take(request.pages.len());
        let mut entries = slots.map(|slot| SwapEntry { slot, ..request.first });
        entries.find(|&entry| self.contains(entry)).map_or(Ok(()), |entry| Err(ZswapViolation::Stale(entry)))
    }
}

#[cfg(test)]
mod tests;
