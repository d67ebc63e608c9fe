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
use crate::reclaim::order::Order;
use crate::slots::Slots;
use crate::swap_cache::SwapCache;
use crate::swap_table::{LetGo, SwapTable};
use crate::workingset::{Refaults, Workingset};
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
    /// Blocks, in the order in which they leave.
    pub(crate) order: Order,
    pub(crate) zswap: Zswap,
    /// How long pages were out.
    pub(crate) workingset: Workingset,
    pub(crate) readahead: Readahead,
    pub(crate) cluster: Cluster,
    /// In place of what `cluster` says, where readahead goes by address.
    pub(crate) by_address: Option<Box<ByAddress>>,
    pub(crate) slots: Vec<Slots>,
    pub(crate) config: CoreConfig,
    pub(crate) last_op: OpId,
    pub(crate) loads_in_flight: u32,
    pub(crate) swapped_pages: u64,
    /// How often memory was moved by mremap.
    pub(crate) moves: u64,
    pub(crate) zombies: Vec<EntryId>,
    /// Content may be brought into frames that are free: see [`Core::leave_free_frames_alone`].
    pub(crate) lands_in_frames: bool,
    pub(crate) released: Vec<Released>,
    /// What scans leave alone.
    pub(crate) discards: RecentDiscards,
}

impl Core {
    /// Empty books.
    pub fn new(config: CoreConfig) -> Self {
        let readahead = config.policies.readahead;
        let (window_max, ahead_max) = match readahead {
            ReadaheadPolicy::Stream => (config.window_max, config.ahead_max),
            ReadaheadPolicy::Cluster | ReadaheadPolicy::Vma | ReadaheadPolicy::Off => (1, 0),
        };
        let cluster_max = if readahead == ReadaheadPolicy::Off { 1 } else { config.window_max };
        let by_address = (readahead == ReadaheadPolicy::Vma).then(|| Box::new(ByAddress::new(config.window_max)));
        Self {
            pages: PageTable::new(),
            table: SwapTable::new(),
            cache: SwapCache::new(config.frame_blocks),
            order: Order::new(config.policies.reclaim),
            zswap: Zswap::new(),
            workingset: Workingset::default(),
            readahead: Readahead::new(window_max, ahead_max),
            cluster: Cluster::new(cluster_max),
            by_address,
            slots: config.area_slots.iter().map(|&slots| Slots::new(slots, &[])).collect(),
            last_op: OpId(0),
            loads_in_flight: 0,
            swapped_pages: 0,
            moves: 0,
            zombies: Vec::new(),
            lands_in_frames: true,
            released: Vec::new(),
            discards: RecentDiscards::default(),
            config,
        }
    }

    /// Before pages are swapped out: lists that grow by doubling get room for what the next rounds, and the faults between
    /// them, add. `false`: there is no memory for that, and nothing may be swapped out.
    pub fn make_room(&mut self) -> bool {
        let lists = self.released.try_reserve(ROOM).is_ok() && self.zombies.try_reserve(ROOM).is_ok();
        lists && self.table.make_room(ROOM) && self.zswap.make_room(ROOM) && self.order.make_room(ROOM)
    }

    pub(crate) fn next_op(&mut self) -> OpId {
        self.last_op = self.last_op.next();
        self.last_op
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
            LetGo::Zombie => self.zombies.push(entry),
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
        self.released.push(Released { entry, epoch, location });
    }

    /// Places released since the last call. Call it after each verb that may release some, under the same lock.
    pub fn take_released(&mut self, out: &mut Vec<Released>) {
        out.append(&mut self.released);
    }

    /// Buries the zombies that no heir holds any more, by their place.
    pub fn bury_unheld(&mut self, held: impl Fn(EntryId, Location) -> bool) {
        let epoch = self.table.epoch();
        for entry in core::mem::take(&mut self.zombies) {
            if held(entry, self.table.location(entry)) {
                self.zombies.push(entry);
            } else {
                let location = self.table.bury(entry);
                self.release_place(entry, location, epoch);
            }
        }
    }

    /// From here on no content is brought into free frames: somebody may still read what was in them.
    pub fn leave_free_frames_alone(&mut self) {
        self.lands_in_frames = false;
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

    /// See [`Workingset::take_refaults`].
    pub fn take_refaults(&mut self, enough: u64, pool_pages: u64) -> Option<Refaults> {
        self.workingset.take_refaults(enough, pool_pages)
    }

    /// Pages whose content is in the pool, an area, or stored as nothing.
    pub fn swapped_pages(&self) -> u64 {
        self.swapped_pages
    }

    /// Swap-ins that threads are working on.
    pub fn loads_in_flight(&self) -> u32 {
        self.loads_in_flight
    }
}
