//! All swap areas together: which one an allocation goes to, and the counts.
//!
//! Allocations try the areas by priority, equals in turn. 6.18 tries the cluster that the CPU is in before it looks at any
//! priority, so equals take turns by the cluster. An area without a free slot leaves the lists and comes back with the
//! first slot that is freed.
//!
//! How areas come is in [`swapon`](super::swapon), how they go in [`swapoff_area`](super::swapoff_area).

use alloc::vec::Vec;
use core::fmt;

use super::priority::AreaOrder;
use super::slot_alloc::{AllocHost, Position, Scanned, Search};
use super::swap_cluster::ORDERS;
use super::swap_entry::{PteFormat, ReservedTypes, SwapEntry};
use super::swap_info::{AreaViolation, SwapArea, SwapTotals};
use super::swap_map::{Left, NotTaken};

/// More areas than there can be.
const AREAS_MAX: usize = super::swap_entry::SWAP_TYPES as usize;

/// Why no slot was handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSlot {
    /// No slot is free that the search finds.
    Full,
    /// No run of the order: the caller splits the folio and asks for less (`thp_swpout_fallback`).
    Split,
}

/// What a machine looks like to swap.
#[derive(Clone, Debug)]
pub struct SwapAreasConfig {
    /// The NUMA node of each CPU; at least one.
    pub cpu_nodes: Vec<usize>,
    /// Types that areas cannot have.
    pub reserved: ReservedTypes,
    /// Page-table entries.
    pub pte: PteFormat,
}

impl SwapAreasConfig {
    /// One node, x86-64, all optional types in use.
    pub fn new(cpus: usize) -> Self {
        Self { cpu_nodes: alloc::vec![0; cpus], reserved: ReservedTypes::ALL, pte: PteFormat::X86_64 }
    }
}

pub(super) struct Listed {
    pub id: u64,
    pub area: SwapArea,
}

#[derive(Clone, Default)]
pub(super) struct Cpu {
    node: usize,
    /// One for each order.
    pub positions: [Option<Position>; ORDERS],
}

/// The swap areas of a machine.
pub struct SwapAreas {
    pub(super) areas: Vec<Option<Listed>>,
    pub(super) order: AreaOrder,
    pub(super) cpus: Vec<Cpu>,
    pub(super) totals: SwapTotals,
    pub(super) pte: PteFormat,
    fallbacks: u64,
}

impl SwapAreas {
    /// No area yet.
    ///
    /// # Panics
    /// Without a CPU.
    pub fn new(config: SwapAreasConfig) -> Self {
        assert!(!config.cpu_nodes.is_empty(), "a machine has a CPU");
        let nodes = config.cpu_nodes.iter().max().map_or(1, |&last| last + 1);
        let cpu = |&node: &usize| Cpu { node, positions: [None; ORDERS] };
        let mut areas = Vec::new();
        areas.resize_with(config.reserved.areas_max().into(), || None);
        Self {
            areas,
            order: AreaOrder::new(nodes),
            cpus: config.cpu_nodes.iter().map(cpu).collect(),
            totals: SwapTotals::default(),
            pte: config.pte,
            fallbacks: 0,
        }
    }

    /// Hands out 2^order slots, aligned to their number, to the swap cache; the first of them.
    ///
    /// # Errors
    /// When none are found, though some may be free: [`NoSlot`].
    ///
    /// # Panics
    /// When the CPU or the order does not exist.
    pub fn alloc<H: AllocHost>(&mut self, cpu: usize, order: u8, host: &mut H) -> Result<SwapEntry, NoSlot> {
        assert!(usize::from(order) < ORDERS, "there is no order {order}");
        let mut found = self.alloc_once(cpu, order, host);
        if found.is_none() && order == 0 && self.discard_pending(host) > 0 {
            found = self.alloc_once(cpu, order, host);
        }
        let Some(entry) = found else {
            self.fallbacks += u64::from(order > 0);
            return Err(if order > 0 { NoSlot::Split } else { NoSlot::Full });
        };
        let swap_full = self.totals.swap_full();
        let area = self.area_mut(entry.area);
        if area.is_used_up() {
            area.listed = false;
            area.reclaim_wanted = swap_full;
            self.order.remove(entry.area);
        }
        Ok(entry)
    }

    fn alloc_once<H: AllocHost>(&mut self, cpu: usize, order: u8, host: &mut H) -> Option<SwapEntry> {
        if let Some(position) = self.cpus[cpu].positions[order as usize] {
            let scanned = self.search(position.area, order, host, |area, search| {
                if area.write_ok { area.scan_from(position.slot, search) } else { Scanned { found: None, next: None } }
            });
            self.keep_position(cpu, position.area, order, &scanned);
            if let Some(slot) = scanned.found {
                return Some(SwapEntry { area: position.area, slot });
            }
        }
        let node = self.cpus[cpu].node;
        let mut numbers = [0u8; AREAS_MAX];
        let mut count = 0;
        for (place, number) in numbers.iter_mut().zip(self.order.areas(node)) {
            *place = number;
            count += 1;
        }
        for &number in &numbers[..count] {
            self.order.rotate(node, number);
            let scanned = self.alloc_in(number, cpu, order, host);
            if let Some(slot) = scanned.found {
                return Some(SwapEntry { area: number, slot });
            }
            // What the first area cannot serve whole is split rather than sent to a slower one.
            if order > 0 {
                return None;
            }
        }
        None
    }

    fn alloc_in<H: AllocHost>(&mut self, number: u8, cpu: usize, order: u8, host: &mut H) -> Scanned {
        let area = self.area(number);
        if order > 0 && !area.device.block_device {
            return Scanned { found: None, next: None };
        }
        // On solid state it is the CPU that has a position, and that has been tried already.
        let position = if area.device.solid_state { None } else { area.position[order as usize] };
        let scanned = self.search(number, order, host, |area, search| {
            let here = position.map(|position| area.scan_from(position.slot, search));
            here.filter(|scanned| scanned.found.is_some()).unwrap_or_else(|| area.scan_lists(search))
        });
        self.keep_position(cpu, number, order, &scanned);
        scanned
    }

    fn search<H: AllocHost, T>(
        &mut self,
        number: u8,
        order: u8,
        host: &mut H,
        look: impl FnOnce(&mut SwapArea, &mut Search<'_, H>) -> T,
    ) -> T {
        let area = &mut self.areas[number as usize].as_mut().expect("the area is in service").area;
        look(area, &mut Search { number, order, totals: &mut self.totals, host })
    }

    fn keep_position(&mut self, cpu: usize, number: u8, order: u8, scanned: &Scanned) {
        let position = scanned.next.map(|slot| Position { area: number, slot });
        if !self.area(number).device.solid_state {
            self.area_mut(number).position[order as usize] = position;
        } else {
            self.cpus[cpu].positions[order as usize] = position;
        }
    }

    /// Takes one more reference of a page table.
    ///
    /// # Errors
    /// See [`NotTaken`]. [`NotTaken::NeedsContinuation`] never comes: the page is added and the reference taken.
    pub fn duplicate(&mut self, entry: SwapEntry) -> Result<(), NotTaken> {
        let area = self.live_mut(entry)?;
        match area.duplicate(entry.slot) {
            Err(NotTaken::NeedsContinuation) => {
                area.map.add_continuation(entry.slot);
                area.duplicate(entry.slot)
            }
            other => other,
        }
    }

    /// Gives a slot of the swap cache to shmem as its one owner.
    ///
    /// # Panics
    /// When anybody else refers to it.
    pub fn give_to_shmem(&mut self, entry: SwapEntry) {
        self.area_mut(entry.area).map.give_to_shmem(entry.slot);
    }

    /// Pins a slot for I/O: the swap cache's reference.
    ///
    /// # Errors
    /// See [`NotTaken`].
    pub fn pin_cache(&mut self, entry: SwapEntry) -> Result<(), NotTaken> {
        self.live_mut(entry)?.map.pin_cache(entry.slot)
    }

    /// Gives back a reference of a page table, or shmem's.
    ///
    /// # Panics
    /// When there is none.
    pub fn put(&mut self, entry: SwapEntry) -> Left {
        let left = self.area_mut(entry.area).put(entry.slot);
        self.slot_freed_if(entry.area, left)
    }

    /// Gives back the swap cache's reference.
    ///
    /// # Panics
    /// When it has none.
    pub fn put_cache(&mut self, entry: SwapEntry) -> Left {
        let left = self.area_mut(entry.area).put_cache(entry.slot);
        self.slot_freed_if(entry.area, left)
    }

    fn slot_freed_if(&mut self, number: u8, left: Left) -> Left {
        if left == Left::Free {
            self.totals.free += 1;
            self.list_again(number);
        }
        left
    }

    /// An area with a free slot is tried again, behind its equals.
    fn list_again(&mut self, number: u8) {
        let area = self.area_mut(number);
        if area.write_ok && !area.listed && !area.is_used_up() {
            area.listed = true;
            let (priority, node) = (area.priority, area.node);
            self.order.insert(number, priority, node);
        }
    }

    /// Walks the full clusters of areas that were used up, and frees slots that only the swap cache holds, as the kernel's
    /// worker does; the slots that were freed.
    pub fn reclaim_full_areas<H: AllocHost>(&mut self, host: &mut H) -> u64 {
        let mut freed = 0;
        for number in 0..self.areas.len() as u8 {
            let Some(listed) = &mut self.areas[number as usize] else { continue };
            if core::mem::take(&mut listed.area.reclaim_wanted) {
                let most = listed.area.clusters.list_len(super::swap_cluster::ClusterList::Full);
                freed += listed.area.reclaim_full_clusters(most, number, &mut self.totals, host);
                self.list_again(number);
            }
        }
        freed
    }

    /// Discards the empty clusters that wait for it, as the kernel's worker does; how many there were.
    pub fn discard_pending<H: AllocHost>(&mut self, host: &mut H) -> u32 {
        let areas = self.areas.iter_mut().enumerate();
        areas
            .filter_map(|(number, listed)| Some((number as u8, &mut listed.as_mut()?.area)))
            .map(|(number, area)| area.discard_pending(number, host))
            .sum()
    }

    /// The counts that policies go by.
    pub fn totals(&self) -> SwapTotals {
        self.totals
    }

    /// Whether more than half of swap is in use (`vm_swap_full`).
    pub fn swap_full(&self) -> bool {
        self.totals.swap_full()
    }

    /// SwapTotal and SwapFree of /proc/meminfo, in pages: slots that a running swapoff has not emptied yet are in both.
    pub fn meminfo(&self) -> (u64, u64) {
        let draining = |listed: &&Listed| !listed.area.write_ok;
        let draining: u64 = self.areas.iter().flatten().filter(draining).map(|listed| listed.area.in_use()).sum();
        let free = self.totals.free + draining as i64;
        (self.totals.total + draining, u64::try_from(free).expect("what is missing is on its way out"))
    }

    /// Requests of an order above 0 that were refused (`thp_swpout_fallback`, `swpout_fallback`).
    pub fn fallbacks(&self) -> u64 {
        self.fallbacks
    }

    /// Whether readahead by address is possible at all: no area rotates.
    pub fn vma_readahead_allowed(&self) -> bool {
        self.areas.iter().flatten().all(|listed| listed.area.device.solid_state)
    }

    /// An area.
    ///
    /// # Panics
    /// When there is none of that number.
    pub fn area(&self, number: u8) -> &SwapArea {
        &self.areas[number as usize].as_ref().unwrap_or_else(|| panic!("there is no swap area {number}")).area
    }

    /// Numbers of the areas.
    pub fn numbers(&self) -> impl Iterator<Item = u8> {
        (0..self.areas.len() as u8).filter(|&number| self.areas[number as usize].is_some())
    }

    /// Checks the books of every area and the totals.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self) -> Result<(), AreasViolation> {
        let mut expected = SwapTotals::default();
        for number in self.numbers() {
            let area = self.area(number);
            area.check().map_err(|violation| AreasViolation::Area { number, violation })?;
            if area.write_ok {
                expected.total += area.usable_slots();
                expected.free += area.usable_slots() as i64;
            }
            expected.free -= area.in_use() as i64;
        }
        if expected != self.totals {
            return Err(AreasViolation::Totals { counted: expected, kept: self.totals });
        }
        Ok(())
    }

    pub(super) fn find(&self, id: u64) -> Option<u8> {
        let same = |listed: &Option<Listed>| listed.as_ref().is_some_and(|listed| listed.id == id);
        self.areas.iter().position(same).map(|number| number as u8)
    }

    pub(super) fn area_mut(&mut self, number: u8) -> &mut SwapArea {
        &mut self.areas[number as usize].as_mut().unwrap_or_else(|| panic!("there is no swap area {number}")).area
    }

    fn live_mut(&mut self, entry: SwapEntry) -> Result<&mut SwapArea, NotTaken> {
        let listed = self.areas.get_mut(entry.area as usize).and_then(Option::as_mut);
        listed.map(|listed| &mut listed.area).ok_or(NotTaken::NoSuchSlot)
    }

    pub(super) fn put_into_service(&mut self, number: u8) {
        let area = self.area_mut(number);
        area.write_ok = true;
        let pages = area.usable_slots();
        self.totals.total += pages;
        self.totals.free += pages as i64;
        self.list_again(number);
    }
}

/// Books that do not agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AreasViolation {
    /// Those of one area.
    Area {
        /// Which.
        number: u8,
        /// What.
        violation: AreaViolation,
    },
    /// The totals are not the sums.
    Totals {
        /// The sums.
        counted: SwapTotals,
        /// What is kept.
        kept: SwapTotals,
    },
}

impl fmt::Display for AreasViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Area { number, violation } => write!(f, "swap area {number}: {violation}"),
            Self::Totals { counted, kept } => write!(
                f,
                "the areas have {} of {} slots free, the totals say {} of {}",
                counted.free, counted.total, kept.free, kept.total
            ),
        }
    }
}

#[cfg(test)]
mod tests;
