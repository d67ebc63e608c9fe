//! The books of one process, together.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::by_address::ByAddress;
use crate::cluster::Cluster;
use crate::entry::{AreaId, EntryId, Epoch, Location};
use crate::page_table::{OpId, PageTable};
use crate::policies::{Policies, ReadaheadPolicy};
use crate::readahead::Readahead;
use crate::recent_discards::RecentDiscards;
use crate::reclaim::REFUSED_MAX;
use crate::reclaim::order::Order;
use crate::slots::Slots;
use crate::swap_cache::SwapCache;
use crate::swap_table::{LetGo, SwapTable};
use crate::units::PageNumber;
use crate::workingset::{Refaults, Returns, Workingset};
use crate::zswap::Zswap;

/// What a [`Core`] is made with.
#[derive(Clone, Default, Debug)]
pub struct CoreConfig {
    /// Blocks of 16 frames in the frame area.
    pub frame_blocks: u32,
    /// Slots of each area, in the order of the areas.
    pub area_slots: Vec<u64>,
    /// Most pages that one fault brings in, at most [`crate::fault::MAX_WINDOW`].
    pub window_max: u32,
    /// Most pages that are read ahead of a stream at a time; 0 for none.
    pub ahead_max: u32,
    /// Which block leaves, and what comes along.
    pub policies: Policies,
}

/// A place that nothing here uses any more; the engine releases it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    /// The entry that named it. Its index may be in use again already.
    pub entry: EntryId,
    /// Who stored it: this process (a pool object to free), or an ancestor (whose ledger is to be told).
    pub epoch: Epoch,
    /// The place.
    pub location: Location,
}

/// Places in each list that are had ahead of need: many times what is done between two looks.
const ROOM: usize = 4096;

/// The books. One lock of the engine guards them.
#[derive(Clone)]
pub struct Core {
    pub(crate) pages: PageTable,
    pub(crate) table: SwapTable,
    pub(crate) cache: SwapCache,
    pub(crate) slots: Vec<Slots>,
    pub(crate) zswap: Zswap,
    pub(crate) eviction: Eviction,
    pub(crate) windows: Windows,
    pub(crate) counts: Counts,
    pub(crate) leftovers: Leftovers,
    /// What scans leave alone.
    pub(crate) discards: RecentDiscards,
}

/// What leaves.
#[derive(Clone)]
pub(crate) struct Eviction {
    /// Blocks, in the order in which they leave.
    pub(crate) order: Order,
    /// How long pages were out.
    pub(crate) workingset: Workingset,
    /// Blocks of which pages could not be moved, by threads that cannot do anything about it: their first pages, and which.
    pub(crate) refused: Vec<(PageNumber, u16)>,
}

/// What comes in along with a page.
#[derive(Clone)]
pub(crate) struct Windows {
    pub(crate) streams: Readahead,
    pub(crate) cluster: Cluster,
    /// In place of what `cluster` says, where readahead goes by address.
    pub(crate) by_address: Option<Box<ByAddress>>,
    /// Content may be brought into frames that are free: see [`Core::leave_free_frames_alone`].
    pub(crate) land_in_frames: bool,
}

impl Windows {
    fn new(config: &CoreConfig) -> Self {
        let readahead = config.policies.readahead;
        let (window_max, ahead_max) = match readahead {
            ReadaheadPolicy::Stream => (config.window_max, config.ahead_max),
            ReadaheadPolicy::Cluster | ReadaheadPolicy::Vma | ReadaheadPolicy::Off => (1, 0),
        };
        let cluster_max = if readahead == ReadaheadPolicy::Off { 1 } else { config.window_max };
        Self {
            streams: Readahead::new(window_max, ahead_max),
            cluster: Cluster::new(cluster_max),
            by_address: (readahead == ReadaheadPolicy::Vma).then(|| Box::new(ByAddress::new(config.window_max))),
            land_in_frames: true,
        }
    }
}

/// What is counted as it happens.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    pub(crate) last_op: OpId,
    pub(crate) loads_in_flight: u32,
    pub(crate) swapped_pages: u64,
    /// How often memory was moved by mremap.
    pub(crate) moves: u64,
}

/// What no page needs any more, and is not over.
#[derive(Clone, Default)]
pub(crate) struct Leftovers {
    /// Entries that an heir may still read.
    pub(crate) zombies: Vec<EntryId>,
    /// What the engine is to release.
    pub(crate) released: Vec<Released>,
}

impl Core {
    /// Empty books.
    pub fn new(config: CoreConfig) -> Self {
        Self {
            pages: PageTable::new(),
            table: SwapTable::new(),
            cache: SwapCache::new(config.frame_blocks),
            slots: config.area_slots.iter().map(|&slots| Slots::new(slots, &[])).collect(),
            zswap: Zswap::new(),
            eviction: Eviction {
                order: Order::new(config.policies.reclaim),
                workingset: Workingset::default(),
                refused: Vec::with_capacity(REFUSED_MAX),
            },
            windows: Windows::new(&config),
            counts: Counts::default(),
            leftovers: Leftovers::default(),
            discards: RecentDiscards::default(),
        }
    }

    /// Before pages are swapped out: lists that grow by doubling get room for what the next rounds, and the faults between
    /// them, add. `false`: there is no memory for that, and nothing may be swapped out.
    pub fn make_room(&mut self) -> bool {
        let lists =
            self.leftovers.released.try_reserve(ROOM).is_ok() && self.leftovers.zombies.try_reserve(ROOM).is_ok();
        lists && self.table.make_room(ROOM) && self.zswap.make_room(ROOM) && self.eviction.order.make_room(ROOM)
    }

    pub(crate) fn next_op(&mut self) -> OpId {
        self.counts.last_op = self.counts.last_op.next();
        self.counts.last_op
    }

    /// A page needs `entry` no more.
    pub(crate) fn let_go(&mut self, entry: EntryId) {
        let outcome = self.table.let_go(entry);
        self.after_let_go(entry, outcome);
    }

    /// Ends a pin of `entry`.
    pub(crate) fn unpin(&mut self, entry: EntryId) {
        if let Some(outcome) = self.table.unpin(entry) {
            self.after_let_go(entry, outcome);
        }
    }

    fn after_let_go(&mut self, entry: EntryId, outcome: LetGo) {
        match outcome {
            LetGo::Freed(location, epoch) => self.release_place(entry, location, epoch),
            LetGo::Zombie => self.leftovers.zombies.push(entry),
            LetGo::Condemned => {}
        }
    }

    pub(crate) fn release_place(&mut self, entry: EntryId, location: Location, epoch: Epoch) {
        if epoch == self.table.epoch() {
            match location {
                Location::Slot { area, slot } => {
                    let _ = self.slots[area.0 as usize].free(slot);
                    return;
                }
                Location::Pool { .. } => self.zswap.object_gone(),
            }
        }
        self.leftovers.released.push(Released { entry, epoch, location });
    }

    /// Places released since the last call. Call it after each verb that may release some, under the same lock.
    pub fn take_released(&mut self, out: &mut Vec<Released>) {
        out.append(&mut self.leftovers.released);
    }

    /// Buries the zombies that no heir holds any more, by their place.
    pub fn bury_unheld(&mut self, held: impl Fn(EntryId, Location) -> bool) {
        let epoch = self.table.epoch();
        for entry in core::mem::take(&mut self.leftovers.zombies) {
            if held(entry, self.table.location(entry)) {
                self.leftovers.zombies.push(entry);
            } else {
                let location = self.table.bury(entry);
                self.release_place(entry, location, epoch);
            }
        }
    }

    /// From here on no content is brought into free frames: somebody may still read what was in them.
    pub fn leave_free_frames_alone(&mut self) {
        self.windows.land_in_frames = false;
    }

    /// The slots that this process owns in `area`.
    pub fn slots_mut(&mut self, area: AreaId) -> &mut Slots {
        &mut self.slots[area.0 as usize]
    }

    /// The slots that this process owns in `area`.
    pub fn slots(&self, area: AreaId) -> &Slots {
        &self.slots[area.0 as usize]
    }

    /// The page table, for looking.
    pub fn pages(&self) -> &PageTable {
        &self.pages
    }

    /// The swap table, for looking.
    pub fn swap_table(&self) -> &SwapTable {
        &self.table
    }

    /// The swap cache, for looking.
    pub fn swap_cache(&self) -> &SwapCache {
        &self.cache
    }

    /// See [`Workingset::returns`].
    pub fn returns(&mut self, early: u64) -> Returns {
        self.eviction.workingset.returns(early)
    }

    /// See [`Workingset::take_refaults`].
    pub fn take_refaults(&mut self, enough: u64, pool_pages: u64) -> Option<Refaults> {
        self.eviction.workingset.take_refaults(enough, pool_pages)
    }

    /// Pages whose content is in the pool, an area, or stored as nothing.
    pub fn swapped_pages(&self) -> u64 {
        self.counts.swapped_pages
    }

    /// Swap-ins that threads are working on.
    pub fn loads_in_flight(&self) -> u32 {
        self.counts.loads_in_flight
    }
}
