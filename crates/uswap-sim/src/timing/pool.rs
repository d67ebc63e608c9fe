//! What stands before the device: the bits of zero pages, and zswap.

use std::collections::BTreeMap;

use uswap_linux::swap_entry::SwapEntry;
use uswap_linux::swapped_memory::SwappedMemory;
use uswap_linux::try_to_unuse::SwapoffBooks;
use uswap_linux::writeout::{Folio, PageIo, ReadFrom, Writeout, ZeroMap};
use uswap_linux::zswap_store::{Compressed, LruId, StoreRequest, WritebackHost, Zswap, ZswapConfig};

use super::disk::Write;
use crate::page_content::Content;

pub(super) struct Pool {
    zeros: ZeroMap,
    zswap: Zswap,
    contents: BTreeMap<SwapEntry, Content>,
    io: PageIo,
    /// A slot that kept an old page when a new one was refused.
    stale: Option<SwapEntry>,
}

/// Where a page is read from.
pub(super) enum Source {
    /// It is here; the pool has no copy of it any more.
    Here {
        content: Content,
        is_only_copy: bool,
        was_compressed: bool,
    },
    Device,
}

impl Pool {
    /// For an area of so many slots; zswap takes so many percent of so many pages of memory.
    pub fn new(slots: u64, memory_pages: u64, percent: u64) -> Self {
        let config = ZswapConfig { enabled: percent > 0, max_pool_percent: percent, ..ZswapConfig::new(memory_pages) };
        let mut zswap = Zswap::new(config);
        zswap.swapon(0, slots);
        Self { zeros: ZeroMap::new(slots), zswap, contents: BTreeMap::new(), io: PageIo::default(), stale: None }
    }

    /// Pages by where they went and came from.
    pub fn io(&self) -> PageIo {
        self.io
    }

    /// Pages of memory that a cgroup is charged with for what is compressed.
    pub fn charged_pages(&self, cgroup: usize) -> u64 {
        self.zswap.cgroup_bytes(cgroup as u16) / uswap_core::PAGE_SIZE as u64
    }

    /// zswap, for its checks and counters.
    pub fn zswap(&self) -> &Zswap {
        &self.zswap
    }

    /// A slot whose old page could overwrite what has gone to the device instead.
    pub fn stale(&self) -> Option<SwapEntry> {
        self.stale
    }

    /// Whether a slot's page is all zeros.
    pub fn is_zero(&self, entry: SwapEntry) -> bool {
        self.zeros.is_zero(entry.slot)
    }

    /// What the pool has for a slot.
    pub fn content(&self, entry: SwapEntry) -> Option<Content> {
        self.zswap.contains(entry).then(|| self.contents[&entry])
    }

    /// A page leaves memory, into its slot.
    pub fn write(&mut self, write: Write, cgroup: usize) -> Writeout {
        let Write { entry, content, .. } = write;
        let folio = Folio { slot: entry.slot, zero: &[content == Content::ZERO], wanted: true, may_reach_device: true };
        let lru = LruId { cgroup: cgroup as u16, node: 0 };
        let compressed = Compressed::Bytes(if content.compresses() { content.object_len() } else { 4096 });
        let request = StoreRequest { first: entry, lru, pages: &[compressed] };
        let Self { zeros, zswap, contents, io, stale } = self;
        io.write(&folio, zeros, |_| {
            let stored = zswap.store(request, &mut ()).is_ok();
            if stored {
                contents.insert(entry, content);
            } else if zswap.check_rejected(request).is_err() {
                *stale = Some(entry);
            }
            stored
        })
    }

    /// Finds a page. What goes into the swap cache leaves the pool.
    pub fn read(&mut self, entry: SwapEntry, in_swap_cache: bool) -> Source {
        let zswap = &self.zswap;
        match self.io.read(entry.slot..entry.slot + 1, &self.zeros, |_| zswap.contains(entry)) {
            ReadFrom::Zeros => Source::Here { content: Content::ZERO, is_only_copy: false, was_compressed: false },
            ReadFrom::Pool => {
                let content = self.contents[&entry];
                self.zswap.load(entry, 1, in_swap_cache, |_| true).expect("one page, and it can be decompressed");
                Source::Here { content, is_only_copy: in_swap_cache, was_compressed: true }
            }
            ReadFrom::Device | ReadFrom::Mixed => Source::Device,
        }
    }

    /// A slot is free.
    pub fn freed(&mut self, entry: SwapEntry) {
        let _ = self.zswap.invalidate(entry);
        self.contents.remove(&entry);
        self.zeros.set(entry.slot..entry.slot + 1, false);
    }

    /// Where a store was turned away since the pool is full, old pages leave it: they are to be written.
    pub fn shrink(&mut self, memory: &mut SwappedMemory) -> Vec<Write> {
        let mut host = Writeback { memory, contents: &mut self.contents, writes: Vec::new() };
        if self.zswap.worker_wanted() {
            self.zswap.run_worker(&mut host);
        }
        host.writes
    }
}

/// Takes pages out of the pool for their slots.
struct Writeback<'a> {
    memory: &'a mut SwappedMemory,
    contents: &'a mut BTreeMap<SwapEntry, Content>,
    writes: Vec<Write>,
}

impl WritebackHost for Writeback<'_> {
    fn add_to_swap_cache(&mut self, entry: SwapEntry) -> bool {
        let is_new = !self.memory.is_cached(entry);
        if is_new {
            self.memory.areas_mut().pin_cache(entry).expect("the slot is in use");
        }
        is_new
    }

    fn write(&mut self, entry: SwapEntry, _: u16) {
        let content = self.contents.remove(&entry).expect("the pool has it");
        self.writes.push(Write { entry, content, is_charged: false });
    }

    fn drop_from_swap_cache(&mut self, entry: SwapEntry) {
        self.memory.drop_from_cache(entry);
    }
}
