//! Timing mode: processes that share a limit of memory and a swap area, in virtual time.
//!
//! Each process touches its pages as fast as it can; a fault goes through core's way in of an era, slots come from core's
//! allocator, transfers take their time on the device. Reclaim is what a limit of a cgroup makes of it: whoever needs a page
//! lets another one go first. After every few faults the books are checked against each other.

use std::collections::{BTreeMap, VecDeque};

use uswap_core::linux::readahead::{Preset, Readahead};
use uswap_core::linux::swap_entry::SwapEntry;
use uswap_core::linux::swap_in::{Read, SwapInPath, SwappedIn};
use uswap_core::linux::swapoff::Place;
use uswap_core::linux::swapped_memory::{Pte, SwappedMemory};
use uswap_core::replacement::Replacement;
use uswap_core::{PageNumber, PageRange};

use crate::chance::Chance;
use crate::clock::EventQueue;
use crate::costs::CpuCosts;
use crate::device::faults::{FaultRates, ReadFate};
use crate::device::{Device, Direction, Profile, Request};
use crate::paper::machine::machine;
use crate::trace::Access;
use crate::workload::Spec;

/// Faults between two looks of the checkers.
const CHECK_EVERY: u64 = 4096;
/// Accesses of a process before others have their turn.
const TURN: u64 = 256;
/// Pages that came along and were not touched may take one part of so many of memory.
const AHEAD_SHARE: u64 = 8;
/// Reads of a page before it is given up.
const ATTEMPTS: u32 = 4;
/// Where each process's memory begins: not at page 0, which no program has.
const FIRST_PAGE: u64 = 512;

/// How a run is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The kernel's readahead rules.
    pub preset: Preset,
    /// Readahead goes by address (vma_ra_enabled).
    pub by_address: bool,
    /// Processes, each with the whole workload and a seed of its own.
    pub processes: u32,
    /// Memory of all of them.
    pub limit_pages: u64,
    /// What chance starts from.
    pub seed: u64,
    /// What goes wrong in reads.
    pub faults: FaultRates,
}

/// What a run came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Timed {
    /// When the last process was done.
    pub ns: u64,
    /// Accesses.
    pub accesses: u64,
    /// Faults that read from the device.
    pub major: u64,
    /// Faults that found their page in the swap cache, brought along by another.
    pub cached: u64,
    /// Pages read, those brought along included.
    pub pages_read: u64,
    /// Pages written.
    pub pages_written: u64,
    /// Pages that could not be read back; their process was told.
    pub lost: u64,
    /// How long a major fault takes: half take less.
    pub median_ns: u64,
    /// And all but one of a hundred.
    pub p99_ns: u64,
}

struct Run<'a> {
    setup: &'a Setup,
    memory: SwappedMemory,
    path: SwapInPath,
    policy: &'a mut dyn Replacement,
    device: Device,
    chance: Chance,
    costs: CpuCosts,
    pages_each: u64,
    /// Pages that came along and were not touched yet, and when each is there.
    ahead: BTreeMap<SwapEntry, u64>,
    /// The same, oldest first; some are gone.
    ahead_order: VecDeque<SwapEntry>,
    stalls_ns: Vec<u64>,
    timed: Timed,
}

/// Runs `spec` once for each process.
///
/// # Errors
/// What a checker found.
pub fn run(spec: &Spec, setup: &Setup, policy: &mut dyn Replacement, profile: &Profile) -> Result<Timed, String> {
    let processes = u64::from(setup.processes);
    let slots = (spec.pages * processes * 2).next_multiple_of(512) + 512;
    let mut memory = machine(slots, profile);
    for _ in 0..processes {
        memory.add_space();
        memory.add_mapping(PageRange { start: PageNumber(FIRST_PAGE), pages: spec.pages });
    }
    let mut run = Run {
        setup,
        memory,
        path: SwapInPath::new(setup.preset, Readahead::new(3, setup.by_address)),
        policy,
        device: Device::new(profile.clone(), Chance::stream(setup.seed, 1)),
        chance: Chance::stream(setup.seed, 2),
        costs: CpuCosts::table(),
        pages_each: spec.pages,
        ahead: BTreeMap::new(),
        ahead_order: VecDeque::new(),
        stalls_ns: Vec::new(),
        timed: Timed::default(),
    };
    let mut programs: Vec<_> = (0..processes).map(|process| spec.accesses(setup.seed + process)).collect();
    let mut queue = EventQueue::new();
    (0..programs.len()).for_each(|process| queue.at(0, process));
    while let Some(process) = queue.pop() {
        let mut now_ns = queue.now_ns();
        let turn_ends_ns = now_ns + TURN * run.costs.cache_lookup.ns;
        let mut is_done = false;
        while now_ns < turn_ends_ns && !is_done {
            match programs[process].next() {
                Some(access) => now_ns = run.access(process, access, now_ns)?,
                None => is_done = true,
            }
        }
        if is_done {
            run.timed.ns = run.timed.ns.max(now_ns);
        } else {
            queue.at(now_ns, process);
        }
    }
    run.check()?;
    run.stalls_ns.sort_unstable();
    let at = |percent: usize| run.stalls_ns.get(run.stalls_ns.len() * percent / 100).copied().unwrap_or(0);
    (run.timed.median_ns, run.timed.p99_ns) = (at(50), at(99));
    Ok(run.timed)
}

impl Run<'_> {
    /// One access at `now_ns`; tells when it is over.
    fn access(&mut self, process: usize, access: Access, now_ns: u64) -> Result<u64, String> {
        self.timed.accesses += 1;
        let id = (process as u64 * self.pages_each + access.page % self.pages_each) as u32;
        let now_ns = now_ns + self.costs.cache_lookup.ns;
        if self.policy.is_resident(id) {
            self.policy.touch(id);
            return Ok(now_ns);
        }
        self.make_room(now_ns);
        let place = self.place(id);
        let end_ns = now_ns + self.costs.fault.ns;
        let end_ns = match self.memory.pte(place) {
            Pte::Swapped(entry) => self.swap_in(place, entry, end_ns)?,
            _ => {
                self.memory.set_present(place);
                end_ns
            }
        };
        self.policy.insert(id);
        if (self.timed.major + self.timed.cached).is_multiple_of(CHECK_EVERY) {
            self.check()?;
        }
        Ok(end_ns)
    }

    fn place(&self, id: u32) -> Place {
        let (mapping, page) = (u64::from(id) / self.pages_each, u64::from(id) % self.pages_each);
        Place { mapping: mapping as usize, page: PageNumber(FIRST_PAGE + page) }
    }

    /// What came along leaves when it takes more than its share, oldest first; otherwise what the policy says.
    fn make_room(&mut self, now_ns: u64) {
        while (self.policy.resident() + self.ahead.len()) as u64 >= self.setup.limit_pages {
            let has_its_share = self.ahead.len() as u64 <= self.setup.limit_pages / AHEAD_SHARE;
            let victim = if has_its_share { self.policy.evict() } else { None };
            let Some(victim) = victim else {
                let Some(entry) = self.ahead_order.pop_front() else { return };
                if self.ahead.remove(&entry).is_some() {
                    self.memory.drop_from_cache(entry);
                }
                continue;
            };
            let entry = self.memory.swap_out(self.place(victim), 0, &mut ()).expect("the area holds all pages twice");
            self.device.submit_one(now_ns, Direction::Write, Request { slot: entry.slot, pages: 1 });
            self.timed.pages_written += 1;
        }
    }

    fn swap_in(&mut self, place: Place, entry: SwapEntry, now_ns: u64) -> Result<u64, String> {
        let mut reads = Vec::new();
        // A page that is written frees its slot at once, so that no page has two copies to keep apart.
        let swap_in =
            self.memory.fault(&mut self.path, place, true, &mut reads).map_err(|error| format!("{error:?}"))?;
        let mut end_ns = match swap_in.outcome {
            SwappedIn::Hit => {
                self.timed.cached += 1;
                return Ok(self.ahead.remove(&entry).unwrap_or(now_ns).max(now_ns));
            }
            SwappedIn::Bypass => {
                self.timed.pages_read += 1;
                self.device.submit_one(now_ns, Direction::Read, Request { slot: entry.slot, pages: 1 })
            }
            SwappedIn::Miss => self.read(entry, &reads, now_ns),
            SwappedIn::Gone => return Err(format!("{entry:?} is nobody's while a page table names it")),
        };
        let mut attempts = 1;
        while self.setup.faults.read(&mut self.chance) != ReadFate::Fine {
            if attempts == ATTEMPTS {
                self.timed.lost += 1;
                break;
            }
            attempts += 1;
            end_ns = self.device.submit_one(end_ns, Direction::Read, Request { slot: entry.slot, pages: 1 });
        }
        self.timed.major += 1;
        self.stalls_ns.push(end_ns - now_ns);
        Ok(end_ns)
    }

    /// Submits a window; tells when the wanted page is there.
    fn read(&mut self, wanted: SwapEntry, reads: &[Read], now_ns: u64) -> u64 {
        let requests: Vec<Request> = reads.iter().map(|read| Request { slot: read.entry.slot, pages: 1 }).collect();
        self.timed.pages_read += reads.len() as u64;
        let mut end_ns = now_ns;
        for (request, ready_ns) in self.device.submit(now_ns, Direction::Read, &requests) {
            for slot in request.slot..request.end() {
                let entry = SwapEntry { slot, ..wanted };
                if entry == wanted {
                    end_ns = ready_ns;
                } else {
                    self.ahead.insert(entry, ready_ns);
                    self.ahead_order.push_back(entry);
                }
            }
        }
        end_ns
    }

    fn check(&self) -> Result<(), String> {
        check_limit(self.policy.resident(), self.ahead.len(), self.setup.limit_pages)?;
        self.memory.check().map_err(|violation| violation.to_string())
    }
}

/// A window may go beyond the limit until the next fault, and no more than that.
fn check_limit(resident: usize, ahead: usize, limit: u64) -> Result<(), String> {
    match (resident + ahead) as u64 > limit + u64::from(u8::MAX) {
        true => Err(format!("{resident} pages and {ahead} brought along are more than the limit of {limit}")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_core::replacement::by_name;

    fn timed(workload: &str, limit_pages: u64, processes: u32, faults: FaultRates) -> Timed {
        let setup = Setup { preset: Preset::LINUX_5_8, by_address: true, processes, limit_pages, seed: 3, faults };
        let mut policy = by_name("second-chance", limit_pages as usize).unwrap();
        run(&Spec::parse(workload).unwrap(), &setup, &mut *policy, &Profile::named("nvme").unwrap()).unwrap()
    }

    #[test]
    fn what_fits_takes_no_fault_and_what_does_not_takes_time() {
        let fits = timed("loop:pages=1000,accesses=10000", 1000, 1, FaultRates::NONE);
        assert_eq!((fits.major, fits.pages_written, fits.lost), (0, 0, 0));
        let half = timed("loop:pages=1000,accesses=10000", 500, 1, FaultRates::NONE);
        assert!(half.major > 500 && half.ns > 10 * fits.ns, "{half:?}");
    }

    #[test]
    fn neighbours_come_along_where_they_are_wanted() {
        let sequential = timed("sequential:pages=4000,accesses=20000", 1000, 1, FaultRates::NONE);
        let random = timed("random:pages=4000,accesses=20000", 1000, 1, FaultRates::NONE);
        assert!(sequential.cached > 3 * sequential.major, "{sequential:?}");
        assert!(random.cached * 10 < random.major, "{random:?}");
        assert!(random.median_ns > 200_000 && random.p99_ns > random.median_ns);
    }

    #[test]
    fn processes_share_the_limit_and_a_run_can_be_repeated() {
        let both = timed("zipf:pages=1000,accesses=20000", 1000, 2, FaultRates::NONE);
        let alone = timed("zipf:pages=1000,accesses=20000", 1000, 1, FaultRates::NONE);
        assert_eq!((alone.major, both.accesses), (0, 40_000));
        assert!(both.major > 0);
        assert_eq!(both, timed("zipf:pages=1000,accesses=20000", 1000, 2, FaultRates::NONE));
    }

    #[test]
    fn a_page_that_cannot_be_read_is_told() {
        let faults = FaultRates { read_fails: FaultRates::OF, ..FaultRates::NONE };
        let timed = timed("random:pages=400,accesses=2000", 200, 1, faults);
        assert!(timed.lost > 0 && timed.lost == timed.major, "{timed:?}");
    }

    #[test]
    fn the_limit_can_be_violated() {
        assert_eq!(check_limit(1000, 200, 1000), Ok(()));
        assert!(check_limit(1000, 300, 1000).is_err());
    }
}
