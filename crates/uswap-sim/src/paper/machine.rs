//! swapoff on a device: each operation of the era takes its time.

use std::collections::HashMap;

use uswap_linux::do_swap_page::SwapInPath;
use uswap_linux::swap_areas::{SwapAreas, SwapAreasConfig};
use uswap_linux::swap_header::{HEADER_BYTES, SwapHeader};
use uswap_linux::swap_info::AreaTraits;
use uswap_linux::swapin_readahead::Readahead;
use uswap_linux::swapon::{SwapTarget, SwaponRequest};
use uswap_linux::swapped_memory::{AreaTable, SwappedMemory};
use uswap_linux::try_to_unuse::{Op, Swapoff, SwapoffEra, TableDrain};

use super::bystanders::{Faults, Hits};
use crate::chance::Chance;
use crate::costs::CpuCosts;
use crate::device::{Device, Direction, Profile, Request};

/// The number that the test's area is swapped on with.
const AREA_ID: u64 = 1;
/// page_cluster, as Linux has it.
const PAGE_CLUSTER: u32 = 3;

/// A machine with one area on a device like `profile`, of `slots` slots.
pub(crate) fn machine(slots: u64, profile: &Profile) -> SwappedMemory {
    let mut first_page = [0; HEADER_BYTES];
    SwapHeader::make(slots, &[], [0; 16], "sim").expect("the area is large enough").write(&mut first_page);
    let mut areas = SwapAreas::new(SwapAreasConfig::new(1));
    let device = AreaTraits {
        solid_state: !profile.rotational,
        synchronous_io: profile.synchronous,
        stable_writes: profile.stable_writes,
        block_device: true,
    };
    let target = SwapTarget::new(AREA_ID, device, &first_page, slots);
    let request = SwaponRequest { flags: 0, privileged: true, target: Ok(target) };
    areas.swapon(&request, &mut ()).expect("the area is good");
    SwappedMemory::new(areas)
}

/// What a swapoff came to.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// How long it took.
    pub ns: u64,
    /// Calls of the window rule, by the window that it gave.
    pub windows: Vec<(u32, u64)>,
    /// Requests of the device.
    pub requests: u64,
}

impl Ran {
    /// In seconds.
    pub fn seconds(&self) -> f64 {
        self.ns as f64 / 1e9
    }

    /// Calls that gave `window`.
    pub fn calls(&self, window: u32) -> u64 {
        self.windows.iter().find(|(size, _)| *size == window).map_or(0, |(_, calls)| *calls)
    }
}

/// The clock of one swapoff.
struct Clock {
    now_ns: u64,
    device: Device,
    costs: CpuCosts,
    batch: Vec<Request>,
    /// When what was asked for is there.
    ready_ns: HashMap<u64, u64>,
    windows: Vec<(u32, u64)>,
}

impl Clock {
    fn new(profile: &Profile, seed: u64) -> Self {
        Self {
            now_ns: 0,
            device: Device::new(profile.clone(), Chance::stream(seed, 2)),
            costs: CpuCosts::table(),
            batch: Vec::new(),
            ready_ns: HashMap::new(),
            windows: Vec::new(),
        }
    }

    fn spend(&mut self, ns: u64, times: u64) {
        self.now_ns += ns * times;
    }

    fn take(&mut self, op: Op) {
        let (pte_ns, lookup_ns) = (self.costs.pte_step.ns, self.costs.cache_lookup.ns);
        match op {
            Op::ScanPtes { ptes } | Op::SearchPtes { ptes } => self.spend(pte_ns, ptes),
            // A byte of the map: a word of it holds eight.
            Op::ScanMap { slots } => self.spend(pte_ns, slots.div_ceil(8)),
            Op::SearchFiles(steps) => self.spend(pte_ns, steps.visited),
            Op::Lookup { .. } => self.spend(lookup_ns, 1),
            Op::Window { pages, probed } => {
                match self.windows.iter_mut().find(|(size, _)| *size == pages) {
                    Some((_, calls)) => *calls += 1,
                    None => self.windows.push((pages, 1)),
                }
                self.spend(lookup_ns, u64::from(probed));
            }
            Op::Read { first, slots, .. } => self.batch.push(Request { slot: first, pages: slots }),
            Op::Submit => self.submit(),
            Op::ReadDirect { slot } => {
                self.now_ns = self.device.submit_one(self.now_ns, Direction::Read, Request { slot, pages: 1 });
            }
            Op::Wait { slot } => {
                if let Some(ready_ns) = self.ready_ns.remove(&slot) {
                    self.now_ns = self.now_ns.max(ready_ns);
                }
            }
            Op::Map { .. } | Op::IntoFile { .. } => self.spend(2 * lookup_ns, 1),
            Op::Relocate { pages } => self.spend(pte_ns, pages),
            Op::Free { slots } => self.spend(lookup_ns, slots),
            Op::PassOver { .. } => {}
        }
    }

    fn submit(&mut self) {
        // Slots side by side are one request already; pages that readahead by address asks for stay requests of a page.
        for request in std::mem::take(&mut self.batch) {
            let ready_ns = self.device.submit_one(self.now_ns, Direction::Read, request);
            for slot in request.slot..request.end() {
                self.ready_ns.insert(slot, ready_ns);
            }
            if self.device.profile().synchronous {
                self.now_ns = ready_ns;
            }
        }
    }

    fn ran(self) -> Ran {
        Ran { ns: self.now_ns, windows: self.windows, requests: self.device.counts().requests }
    }
}

/// How a machine is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The kernel.
    pub era: SwapoffEra,
    /// Readahead goes by address (vma_ra_enabled).
    pub by_address: bool,
    /// Programs that go on meanwhile.
    pub faults: Option<Faults>,
}

/// swapoff as its era did it.
pub fn swapoff(mut memory: SwappedMemory, setup: Setup, profile: &Profile, seed: u64) -> Ran {
    let Setup { era, by_address, faults } = setup;
    let mut hits = faults.map(|faults| Hits::new(faults, Chance::stream(seed, 4)));
    let area = memory.areas_mut().swapoff_begin(Ok(AREA_ID), true, u64::MAX).expect("it is on");
    let mut path = SwapInPath::new(era.preset(), Readahead::new(PAGE_CLUSTER, by_address));
    let mut swapoff = Swapoff::new(era, area);
    let mut clock = Clock::new(profile, seed);
    while let Some(op) = swapoff.next_op(&mut memory, &mut path) {
        clock.take(op);
        for _ in 0..hits.as_mut().map_or(0, |hits| hits.until(clock.now_ns)) {
            path.readahead.found(true, None);
        }
    }
    assert_eq!(swapoff.result(), Some(Ok(())), "nothing stands in the way of this swapoff");
    clock.ran()
}

/// Ours: by swap table.
pub fn our_swapoff(mut memory: SwappedMemory, profile: &Profile, seed: u64) -> Ran {
    let area = memory.areas_mut().swapoff_begin(Ok(AREA_ID), true, u64::MAX).expect("it is on");
    let mut drain = TableDrain::new(area);
    let mut clock = Clock::new(profile, seed);
    while let Some(op) = drain.next_op(&mut AreaTable::new(&mut memory, area)) {
        clock.take(op);
    }
    assert_eq!(drain.result(), Some(Ok(())), "nothing stands in the way of this swapoff");
    clock.ran()
}

/// How long the device takes for `pages` pages side by side, always busy.
pub fn sequential_ns(pages: u64, profile: &Profile, seed: u64) -> u64 {
    let mut device = Device::new(profile.clone(), Chance::stream(seed, 3));
    let requests: Vec<Request> = (0..pages).map(|slot| Request { slot: slot + 1, pages: 1 }).collect();
    device.submit(0, Direction::Read, &requests).iter().map(|(_, end_ns)| *end_ns).max().unwrap_or(0)
}
