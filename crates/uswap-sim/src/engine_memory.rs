//! One process under the engine's own core, without time: every transfer ends at once, and whoever needs room makes it.
//!
//! It drives [`Core`] as `crates/uswap-engine` does (faults, windows, reading ahead, blocks that rest in the swap cache, the
//! copy on the area that is still good), with an area and no pool. What it leaves out is what follows from time: watermarks
//! below the limit, and a program that is faster than what is read ahead of it. What follows from threads, `soak` has.

use rustc_hash::{FxHashMap, FxHashSet};
use uswap_core::fault::MOVE_PAGES_MIN;
use uswap_core::reclaim::IsolationOutcome;
use uswap_core::tuning;
use uswap_core::{
    AreaId, BLOCK_PAGES, Core, CoreConfig, FaultPlan, FrameId, FrameLeft, LEAF_PAGES, Landing, LoadPlan, PageNumber,
    PageRange, Policies, ReadaheadPolicy, ReclaimPolicy, Released, StoreJob, StoreResult, Stored,
};

/// Pages that are stored together.
const BATCH: usize = 32;
/// Slots of a cluster.
const CLUSTER_SLOTS: u64 = 512;
const AREA: AreaId = AreaId(0);

/// Whether pages come in that nobody has asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Along {
    /// As in the engine, with this policy.
    As(ReadaheadPolicy),
    /// No page does: what is left is which pages leave.
    Nothing,
}

/// What an access met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// The page.
    Page,
    /// The page in the swap cache: a fault that needs no transfer.
    Cached,
    /// Nothing: the page was read, or was used for the first time.
    Miss,
}

/// What a run came to.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Faults that found their page in the swap cache.
    pub cached: u64,
    /// Pages read.
    pub read: u64,
    /// Pages written.
    pub written: u64,
    /// Pages that came along and were used.
    pub used: u64,
    /// Pages that came along and left unused.
    pub wasted: u64,
}

/// The memory.
pub struct EngineMemory {
    core: Core,
    /// Pages that fit.
    limit: u64,
    resident: u64,
    /// Where content is that is in a frame.
    owners: Vec<PageNumber>,
    /// Writes of each page: its content.
    contents: FxHashMap<PageNumber, u64>,
    /// Came along, and nobody has used it.
    unused: FxHashSet<PageNumber>,
    next_cluster: u32,
    empty_clusters: Vec<u32>,
    jobs: Vec<StoreJob>,
    released: Vec<Released>,
    counts: Counts,
}

impl EngineMemory {
    /// An empty memory of `limit` pages, for a program of at most `pages` pages.
    ///
    /// # Panics
    /// When `limit` is 0.
    pub fn new(limit: u64, pages: u64, reclaim: ReclaimPolicy, along: Along) -> Self {
        assert!(limit > 0, "a memory of no pages cannot hold the page that is used");
        let frame_blocks = ((limit / 3).max(1024) / BLOCK_PAGES as u64) as u32;
        let (window_max, ahead_max, readahead) = match along {
            Along::As(readahead) => (BLOCK_PAGES as u32, tuning::ahead_pages(limit), readahead),
            Along::Nothing => (1, 0, ReadaheadPolicy::Off),
        };
        let policies = Policies { reclaim, readahead };
        // A page may have its old copy while the new one is written; and windows of zeros bring pages that nobody named.
        let area_slots = vec![(4 * pages).next_multiple_of(CLUSTER_SLOTS) + (64 * CLUSTER_SLOTS)];
        Self {
            core: Core::new(CoreConfig { frame_blocks, area_slots, window_max, ahead_max, policies }),
            limit,
            resident: 0,
            owners: vec![PageNumber(0); frame_blocks as usize * BLOCK_PAGES],
            contents: FxHashMap::default(),
            unused: FxHashSet::default(),
            next_cluster: 0,
            empty_clusters: Vec::new(),
            jobs: Vec::new(),
            released: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// What it came to. Pages that came along and are still there, unused, count as wasted.
    pub fn counts(&self) -> Counts {
        Counts { wasted: self.counts.wasted + self.unused.len() as u64, ..self.counts }
    }

    /// Pages in memory: the program's, and those of frames.
    pub fn used(&self) -> u64 {
        self.resident + u64::from(self.core.swap_cache().populated_frames())
    }

    /// The program uses `page`. The first use of a page is a write.
    pub fn access(&mut self, page: PageNumber, write: bool) -> Met {
        let is_first = !self.contents.contains_key(&page);
        if write || is_first {
            *self.contents.entry(page).or_default() += 1;
        }
        self.counts.used += u64::from(self.unused.remove(&page));
        if self.core.is_resident(page) {
            return if is_first { Met::Miss } else { Met::Page };
        }
        let met = self.serve(page);
        self.read_ahead();
        self.make_room(self.limit);
        if is_first { Met::Miss } else { met }
    }

    /// Everything leaves for the area.
    pub fn swap_out_all(&mut self) {
        self.make_room(0);
    }

    fn serve(&mut self, page: PageNumber) -> Met {
        loop {
            match self.core.fault(page, true) {
                FaultPlan::NotAdopted => {
                    let leaf = LEAF_PAGES as u64;
                    self.core.adopt(PageRange { start: PageNumber(page.0 / leaf * leaf), pages: leaf });
                }
                FaultPlan::Zero { range, op } => {
                    self.core.zeros_installed(range, op, range.pages);
                    self.resident += range.pages;
                    return Met::Miss;
                }
                FaultPlan::Restore { first, frame, pages } => {
                    self.core.restored(first, frame, pages, pages, left_by(pages as usize));
                    self.resident += u64::from(pages);
                    self.counts.cached += 1;
                    return Met::Cached;
                }
                FaultPlan::Load(plan) => {
                    self.load(&plan);
                    return Met::Miss;
                }
                plan @ (FaultPlan::Wait | FaultPlan::Present | FaultPlan::Poisoned) => {
                    unreachable!("a program of one thread on a good device meets {plan:?} at {page:?}")
                }
            }
        }
    }

    fn load(&mut self, plan: &LoadPlan) {
        let left = left_by(plan.mapped().len());
        for (index, load) in plan.pages().iter().enumerate() {
            let is_wanted = plan.faulting == Some(index);
            self.counts.read += u64::from(load.entry.is_some());
            if !is_wanted && load.entry.is_some() {
                self.unused.insert(load.page);
            }
            if plan.mapped().contains(&index) {
                self.core.load_done(load, plan.op, left, true, is_wanted);
                self.resident += 1;
            } else {
                if let Landing::Frame(frame) = load.landing {
                    self.owners[frame.0 as usize] = load.page;
                }
                self.core.load_cached(load, plan.op);
            }
        }
    }

    /// Two threads of the engine do this while the program goes on.
    fn read_ahead(&mut self) {
        while self.core.wants_ahead() {
            self.make_room(self.limit);
            let Some(plan) = self.core.plan_ahead() else { return };
            self.load(&plan);
        }
    }

    /// Pages leave until no more than `most` are in memory.
    fn make_room(&mut self, most: u64) {
        let reserve = tuning::free_frames(self.limit).min(self.limit / 16);
        let resting = tuning::swap_cache_pages(self.limit, self.owners.len() as u64);
        while self.used() > most {
            let isolation = self.core.isolate();
            if let Some(isolation) = isolation {
                for index in (0..BLOCK_PAGES).filter(|index| isolation.mask >> index & 1 == 1) {
                    let FrameId(frame) = isolation.frames.frame(index);
                    self.owners[frame as usize] = isolation.first.plus(index as u64);
                }
                let moved = IsolationOutcome { moved: isolation.mask, ..IsolationOutcome::default() };
                let isolated = self.core.isolated(isolation, moved);
                assert_eq!((isolated.wanted, isolated.lost), (0, 0), "nobody runs meanwhile");
                self.resident -= u64::from(isolation.mask.count_ones());
            }
            let urgent = isolation.is_none() || most == 0;
            let cached = u64::from(self.core.swap_cache().cached_frames());
            if cached > if urgent { 0 } else { resting } {
                self.store_some();
            }
            let kept = if urgent { 0 } else { reserve };
            while self.used() > most && u64::from(self.core.swap_cache().free_frames()) > kept {
                let Some((block, _)) = self.core.take_trash() else { break };
                self.core.trashed(block);
            }
        }
    }

    fn store_some(&mut self) {
        let mut jobs = std::mem::take(&mut self.jobs);
        while jobs.len() < BATCH {
            let Some(job) = self.core.next_store() else { break };
            jobs.push(job);
        }
        let is_new = |memory: &Self, job: &StoreJob| match memory.content_of(job) {
            0 => false,
            content => job.clean_hash != Some(content),
        };
        let mut new = jobs.iter().filter(|job| is_new(self, job)).count() as u32;
        let mut slots = 0..0;
        for job in jobs.drain(..) {
            let content = self.content_of(&job);
            let result = match content {
                0 => StoreResult::Zero,
                _ if job.clean_hash == Some(content) => StoreResult::Clean,
                _ => {
                    if slots.is_empty() {
                        slots = self.alloc_slots(new);
                    }
                    new -= 1;
                    self.counts.written += 1;
                    let slot = slots.next().expect("an allocation gives at least one slot");
                    StoreResult::Slot { area: AREA, slot, hash: content }
                }
            };
            let page = self.owners[job.frame.0 as usize];
            let stored = self.core.stored(job, result);
            assert_eq!(stored, Stored::Done, "{page:?} has a place, and nobody waits for it");
            self.counts.wasted += u64::from(self.unused.remove(&page));
        }
        self.jobs = jobs;
        self.core.take_released(&mut self.released);
        self.released.clear();
        while let Some(cluster) = self.core.slots_mut(AREA).take_empty_cluster() {
            self.empty_clusters.push(cluster);
        }
    }

    /// Hash of what is in a frame: 0 for zeros, which pages are that came along with a first use.
    fn content_of(&self, job: &StoreJob) -> u128 {
        let page = self.owners[job.frame.0 as usize];
        self.contents.get(&page).map_or(0, |&writes| u128::from(page.0) << 64 | u128::from(writes))
    }

    /// Slots side by side, up to `most`.
    fn alloc_slots(&mut self, most: u32) -> std::ops::Range<u64> {
        loop {
            if let Ok((slot, count)) = self.core.slots_mut(AREA).alloc_run(most) {
                return slot..slot + u64::from(count);
            }
            let cluster = self.empty_clusters.pop().unwrap_or_else(|| {
                self.next_cluster += 1;
                self.next_cluster - 1
            });
            self.core.slots_mut(AREA).grant(cluster);
        }
    }
}

/// Few pages are copied in, more are moved.
fn left_by(pages: usize) -> FrameLeft {
    if pages >= MOVE_PAGES_MIN { FrameLeft::Empty } else { FrameLeft::Populated }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;

    const STREAMS: Along = Along::As(ReadaheadPolicy::Stream);

    /// Each reclaim policy, and each readahead.
    fn choices() -> impl Iterator<Item = (ReclaimPolicy, Along)> {
        let along = ReadaheadPolicy::ALL.map(|readahead| (ReclaimPolicy::default(), Along::As(readahead)));
        ReclaimPolicy::ALL.map(|reclaim| (reclaim, Along::Nothing)).into_iter().chain(along)
    }

    #[test]
    fn memory_is_never_more_than_its_limit_and_every_page_comes_back() {
        for (reclaim, along) in choices() {
            for limit in [1, 5, 64, 700, 3000] {
                let mut memory = EngineMemory::new(limit, 5000, reclaim, along);
                let mut chance = Chance::new(limit);
                let mut page = 0;
                for _ in 0..30_000 {
                    page = if chance.happens(1, 3) { chance.below(5000) } else { (page + 1) % 5000 };
                    let _ = memory.access(PageNumber(page), chance.happens(1, 2));
                    assert!(memory.used() <= limit, "{} pages of {limit}", memory.used());
                }
                let counts = memory.counts();
                assert!(counts.read > 0 && counts.written > 0, "{counts:?}");
                let is_alone = matches!(along, Along::Nothing | Along::As(ReadaheadPolicy::Off));
                assert!(!is_alone || counts.used + counts.wasted == 0, "{counts:?}");
            }
        }
    }

    #[test]
    fn what_fits_is_missed_once() {
        let mut memory = EngineMemory::new(1000, 900, ReclaimPolicy::default(), Along::Nothing);
        let misses =
            (0..3).map(|_| (0..900).filter(|&page| memory.access(PageNumber(page), true) == Met::Miss).count());
        assert_eq!(misses.collect::<Vec<_>>(), [900, 0, 0]);
        assert_eq!(memory.counts(), Counts::default());
    }

    #[test]
    fn a_copy_that_is_still_good_is_not_written_again() {
        let mut memory = EngineMemory::new(600, 2000, ReclaimPolicy::default(), STREAMS);
        for round in 0..4 {
            for page in 0..2000 {
                let _ = memory.access(PageNumber(page), round == 0);
            }
        }
        memory.swap_out_all();
        assert_eq!((memory.counts().written, memory.used()), (2000, 0));
    }

    #[test]
    fn a_stream_misses_markers_and_little_else() {
        let mut memory = EngineMemory::new(4096, 16_384, ReclaimPolicy::default(), STREAMS);
        for page in 0..16_384 {
            let _ = memory.access(PageNumber(page), true);
        }
        memory.swap_out_all();
        let misses = (0..16_384).filter(|&page| memory.access(PageNumber(page), false) == Met::Miss).count();
        let counts = memory.counts();
        // Markers that rest in the swap cache are not among them; those for which no frame was free are.
        assert!(misses < 100 && counts.wasted == 0, "{misses} misses, {counts:?}");
    }
}
