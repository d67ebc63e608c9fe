//! Timing mode: processes that share limits of memory and a swap area, in virtual time.
//!
//! Each process touches its pages as fast as it can; a fault goes through Linux's way in of an era (`timed_swapin`), slots come
//! from the allocator of `uswap-linux`, transfers take their time on the device and may go wrong (`disk`). Reclaim is what the limits of
//! a cgroup make of it: whoever needs a page lets others go first, and waits for their writes (`timed_swapout`). Zeros and
//! compressed pages never reach the device (`pool`); pages lie on nodes (`nodes`); processes are killed (`exit`).
//!
//! Every write of a program makes a content of its own, so that a wrong page is seen (`pages`): a page is right, or its
//! owner is told. After every few faults everything is checked against everything (`check`).

mod cgroup;
mod check;
mod disk;
mod exit;
mod nodes;
mod pages;
mod planted;
mod pool;
mod timed_readahead;
mod timed_swapin;
mod timed_swapout;

pub use check::{Checker, Violation};
pub use planted::Sabotage;

use std::collections::BTreeMap;

use uswap_core::{PageNumber, PageRange};
use uswap_linux::do_swap_page::SwapInPath;
use uswap_linux::memory_max::{Charging, Limits};
use uswap_linux::numa::{Misplaced, Placement};
use uswap_linux::swap_entry::SwapEntry;
use uswap_linux::swapin_readahead::{Preset, Readahead};
use uswap_linux::swapped_memory::SwappedMemory;
use uswap_linux::try_to_unuse::Place;
use uswap_linux::writeout::PageIo;
use uswap_policy::Replacement;

use self::cgroup::Cgroup;
use self::check::Checked;
use self::disk::Disk;
use self::nodes::Nodes;
use self::pages::Pages;
use self::pool::Pool;
use self::timed_readahead::{PAGE_CLUSTER, ReadaheadRules};
use self::timed_swapout::Room;
use crate::chance::Chance;
use crate::clock::EventQueue;
use crate::costs::CpuCosts;
use crate::device::Profile;
use crate::device::failures::FaultRates;
use crate::paper::machine::machine;
use crate::trace::Access;
use crate::workload::Spec;

/// Accesses of a process before others have their turn.
const TURN: u64 = 256;
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
    /// Limits of memory, of all processes together or of each.
    pub limits: Limits,
    /// Each process has a cgroup of its own, with these limits.
    pub own_cgroups: bool,
    /// Slots of the area; `None` for twice as many as there are pages.
    pub slots: Option<u64>,
    /// zswap may take so many percent of the memory that the limits allow; 0 turns it off.
    pub zswap_percent: u64,
    /// So many percent of what programs write are zeros.
    pub zero_percent: u64,
    /// NUMA nodes; processes run on them in turn.
    pub nodes: u32,
    /// On whose node a page goes that readahead brings.
    pub placement: Placement,
    /// Processes that are killed at some point.
    pub kills: u32,
    /// What chance starts from.
    pub seed: u64,
    /// What goes wrong with transfers.
    pub faults: FaultRates,
    /// Pages that come back are checked against a hash. The kernel does not.
    pub hashes: bool,
    /// Faults between two looks of the checkers.
    pub check_every: u64,
}

impl Setup {
    /// One process with so many pages of memory, on Linux 6.18, where nothing goes wrong.
    pub fn new(limit_pages: u64) -> Self {
        Self {
            preset: Preset::LINUX_6_18,
            by_address: true,
            processes: 1,
            limits: Limits { high: u64::MAX, max: limit_pages },
            own_cgroups: false,
            slots: None,
            zswap_percent: 0,
            zero_percent: 0,
            nodes: 1,
            placement: Placement::Toucher,
            kills: 0,
            seed: 1,
            faults: FaultRates::NONE,
            hashes: true,
            check_every: 4096,
        }
    }

    fn cgroups(&self) -> u32 {
        if self.own_cgroups { self.processes } else { 1 }
    }
}

/// What a run came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Timed {
    /// When the last process was done.
    pub ns: u64,
    /// Accesses.
    pub accesses: u64,
    /// Faults.
    pub faults: u64,
    /// Faults that read from the device.
    pub major: u64,
    /// Faults that found their page in the swap cache: brought along by another, or still being written.
    pub cached: u64,
    /// Pages read, those brought along included.
    pub pages_read: u64,
    /// Pages written.
    pub pages_written: u64,
    /// Writes that ended with an error; their pages stayed.
    pub failed_writes: u64,
    /// Pages that could not be read back; their process was told.
    pub lost: u64,
    /// Reads of a page with a wrong content that nobody noticed.
    pub wrong: u64,
    /// Pages that found no slot, and stayed.
    pub no_slot: u64,
    /// Processes that were killed, those without memory among them.
    pub killed: u64,
    /// Processes that were killed since there was no memory for them.
    pub out_of_memory: u64,
    /// How long tasks slept past `memory.high`.
    pub throttled_ns: u64,
    /// Pages by where they went and came from.
    pub io: PageIo,
    /// Compressed pages that were written to their slots.
    pub zswpwb: u64,
    /// Pages on a wrong node.
    pub misplaced: Misplaced,
    /// How long a major fault takes: half take less.
    pub median_ns: u64,
    /// And all but one of a hundred.
    pub p99_ns: u64,
}

/// What is known of a slot in use.
struct Slot {
    /// The page that is in it, counted over all processes.
    id: u32,
    /// Hash of what was sent to it.
    hash: u128,
}

struct Process {
    cgroup: usize,
    /// Pages that it took past `memory.high` and has not paid for.
    past_high: u64,
    /// A charge that waits for writes to end, and what its cgroup had freed before them.
    charging: Option<(Charging, Option<u64>)>,
    /// The access that waits with it.
    waiting: Option<Access>,
    /// Accesses until it is killed.
    lives: Option<u64>,
    has_ended: bool,
}

struct Run<'a> {
    setup: &'a Setup,
    sabotage: Option<Sabotage>,
    memory: SwappedMemory,
    path: SwapInPath,
    rules: ReadaheadRules,
    cgroups: Vec<Cgroup>,
    processes: Vec<Process>,
    pages: Pages,
    slots: BTreeMap<SwapEntry, Slot>,
    pool: Pool,
    disk: Disk,
    nodes: Nodes,
    costs: CpuCosts,
    pages_each: u64,
    stalls_ns: Vec<u64>,
    timed: Timed,
}

/// Makes the policy of a cgroup with so many pages.
pub type MakePolicy<'a> = &'a dyn Fn(usize) -> Box<dyn Replacement>;

/// Runs `spec` once for each process.
///
/// # Errors
/// What a checker found.
pub fn run(spec: &Spec, setup: &Setup, policy: MakePolicy, profile: &Profile) -> Result<Timed, Violation> {
    run_with(spec, setup, policy, profile, None)
}

/// The same with a planted defect.
///
/// # Errors
/// What a checker found.
pub fn run_sabotaged(
    spec: &Spec,
    setup: &Setup,
    policy: MakePolicy,
    profile: &Profile,
    sabotage: Sabotage,
) -> Result<Timed, Violation> {
    run_with(spec, setup, policy, profile, Some(sabotage))
}

fn run_with(
    spec: &Spec,
    setup: &Setup,
    policy: MakePolicy,
    profile: &Profile,
    sabotage: Option<Sabotage>,
) -> Result<Timed, Violation> {
    let mut run = Run::new(spec, setup, policy, profile, sabotage);
    let mut programs: Vec<_> =
        (0..setup.processes).map(|process| spec.accesses(setup.seed + u64::from(process))).collect();
    let mut queue = EventQueue::new();
    (0..programs.len()).for_each(|process| queue.at(0, process));
    while let Some(process) = queue.pop() {
        match run.turn(process, &mut *programs[process], queue.now_ns())? {
            Turn::GoesOn(now_ns) => queue.at(now_ns, process),
            Turn::Ended(now_ns) => {
                run.timed.ns = run.timed.ns.max(now_ns);
                run.check()?;
                run.exit(process);
            }
        }
    }
    run.end()
}

/// How a turn of a process ended, and when.
enum Turn {
    GoesOn(u64),
    Ended(u64),
}

impl<'a> Run<'a> {
    fn new(spec: &Spec, setup: &'a Setup, policy: MakePolicy, profile: &Profile, sabotage: Option<Sabotage>) -> Self {
        let all_pages = spec.pages * u64::from(setup.processes);
        let slots = setup.slots.unwrap_or_else(|| (all_pages * 2).next_multiple_of(512) + 512);
        let mut memory = machine(slots, profile);
        for _ in 0..setup.processes {
            memory.add_space();
            memory.add_mapping(PageRange { start: PageNumber(FIRST_PAGE), pages: spec.pages });
        }
        let cgroup = |_| Cgroup::new(setup.limits, policy(setup.limits.max as usize));
        let mut chance = Chance::stream(setup.seed, 6);
        let mut victims: Vec<u32> = (0..setup.processes).collect();
        chance.shuffle(&mut victims);
        victims.truncate(setup.kills as usize);
        let process = |process: u32| Process {
            cgroup: if setup.own_cgroups { process as usize } else { 0 },
            past_high: 0,
            charging: None,
            waiting: None,
            lives: victims.contains(&process).then(|| chance.below(spec.accesses)),
            has_ended: false,
        };
        Self {
            setup,
            sabotage,
            memory,
            path: SwapInPath::new(setup.preset, Readahead::new(PAGE_CLUSTER, setup.by_address)),
            rules: ReadaheadRules::new(slots, setup.processes),
            processes: (0..setup.processes).map(process).collect(),
            cgroups: (0..setup.cgroups()).map(cgroup).collect(),
            pages: Pages::new(all_pages, setup.zero_percent, setup.seed),
            slots: BTreeMap::new(),
            pool: Pool::new(slots, setup.limits.max.saturating_mul(u64::from(setup.cgroups())), setup.zswap_percent),
            disk: Disk::new(profile, setup.faults, setup.seed),
            nodes: Nodes::new(setup.nodes, setup.placement),
            costs: CpuCosts::table(),
            pages_each: spec.pages,
            stalls_ns: Vec::new(),
            timed: Timed::default(),
        }
    }

    /// A process runs for a while, or until it has to wait.
    fn turn(&mut self, process: usize, program: &mut dyn Iterator<Item = Access>, mut now_ns: u64) -> Checked<Turn> {
        let turn_ends_ns = now_ns + TURN * self.costs.cache_lookup.ns;
        while now_ns < turn_ends_ns {
            let waiting = self.processes[process].waiting.take();
            let Some(access) = waiting.or_else(|| program.next()) else { return Ok(Turn::Ended(now_ns)) };
            if waiting.is_none() && self.is_killed(process) {
                return Ok(Turn::Ended(now_ns));
            }
            self.timed.accesses += u64::from(waiting.is_none());
            match self.access(process, access, now_ns)? {
                Room::There(end_ns) => now_ns = end_ns,
                Room::Later(end_ns) => {
                    self.processes[process].waiting = Some(access);
                    return Ok(Turn::GoesOn(end_ns));
                }
                Room::None => {
                    self.timed.killed += 1;
                    self.timed.out_of_memory += 1;
                    return Ok(Turn::Ended(now_ns));
                }
            }
        }
        Ok(Turn::GoesOn(now_ns))
    }

    /// Whether the process dies before its next access.
    fn is_killed(&mut self, process: usize) -> bool {
        let Some(lives) = &mut self.processes[process].lives else { return false };
        let dies = *lives == 0;
        *lives = lives.saturating_sub(1);
        self.timed.killed += u64::from(dies);
        dies
    }

    /// One access at `now_ns`, where there is memory for it; when it is over.
    fn access(&mut self, process: usize, access: Access, now_ns: u64) -> Checked<Room> {
        let id = (process as u64 * self.pages_each + access.page % self.pages_each) as u32;
        let mut now_ns = now_ns + self.costs.cache_lookup.ns;
        let cgroup = self.processes[process].cgroup;
        let is_here = self.cgroups[cgroup].policy.is_resident(id);
        if is_here {
            self.cgroups[cgroup].policy.touch(id);
        } else {
            match self.fault(process, id, now_ns)? {
                Room::There(end_ns) => now_ns = end_ns,
                room => return Ok(room),
            }
        }
        if !self.pages.read(id, self.setup.hashes)? {
            self.timed.wrong += 1;
        }
        if access.write {
            self.pages.write(id);
        }
        let is_remote = self.pages.node(id) != self.nodes.of(process);
        now_ns += if is_remote { self.costs.remote_touch.ns } else { 0 };
        // On the way back to the program, when the access is over: the page may leave again at once.
        Ok(Room::There(if is_here { now_ns } else { self.pay(process, now_ns) }))
    }

    fn process_of(&self, id: u32) -> usize {
        (u64::from(id) / self.pages_each) as usize
    }

    fn place(&self, id: u32) -> Place {
        Place { mapping: self.process_of(id), page: PageNumber(FIRST_PAGE + u64::from(id) % self.pages_each) }
    }

    /// Who is charged for the page of a slot.
    fn cgroup_of(&self, entry: SwapEntry) -> usize {
        self.processes[self.process_of(self.slots[&entry].id)].cgroup
    }

    /// Whether this planted defect is to be done here and now; it is done once.
    fn sabotages(&mut self, sabotage: Sabotage, here: bool) -> bool {
        let now = here && self.sabotage == Some(sabotage);
        if now {
            self.sabotage = None;
        }
        now
    }

    /// All have ended.
    fn end(mut self) -> Result<Timed, Violation> {
        self.land(u64::MAX);
        self.check_end()?;
        self.stalls_ns.sort_unstable();
        let at = |percent: usize| self.stalls_ns.get(self.stalls_ns.len() * percent / 100).copied().unwrap_or(0);
        (self.timed.median_ns, self.timed.p99_ns) = (at(50), at(99));
        self.timed.io = self.pool.io();
        self.timed.zswpwb = self.pool.zswap().stats().zswpwb;
        self.timed.misplaced = self.nodes.misplaced();
        Ok(self.timed)
    }
}

#[cfg(test)]
mod tests;
