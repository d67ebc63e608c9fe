//! Process slots: one for each process, with what it tells the others.

use uswap_system::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use uswap_system::{Scope, System};

use super::in_common::InCommon;
use super::lineage::Lineage;
use super::{AREAS_MAX, Group, Holder, PROCESSES_MAX, Tally};

/// Handlers of a process that say what they are at; those of more CPUs share their places.
const HANDLERS_SEEN: usize = 31;

/// In place of a handler's number: the threads that read ahead, which share one place.
pub const READING_AHEAD: usize = HANDLERS_SEEN;

/// What a process slot is used for. Only the supervisor changes it, but for Starting -> Running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SlotState {
    /// Nobody's.
    Free = 0,
    /// Given to a process whose agent is not yet at work.
    Starting = 1,
    /// A living process.
    Running = 2,
    /// The process is gone, children still read what it swapped out.
    Dead = 3,
}

/// One process of the group.
///
/// Pages are 4 KiB. The process writes all of these but [`Life`] and who inherits from it.
#[repr(C, align(128))]
pub struct ProcessSlot {
    /// Who has the slot.
    pub life: Life,
    pub(super) lineage: Lineage,
    /// What it has in RAM.
    pub resident: Resident,
    /// The shared memory among that.
    pub shared: SharedMemory,
    /// What it would have.
    pub wants: Wants,
    /// Its memory that can be swapped.
    pub managed: Managed,
    /// Its compressed pool.
    pub pool: PoolSize,
    /// How it is called.
    pub called: Called,
    /// The address of the page that each handler is serving; 0: none.
    serving: [AtomicU64; HANDLERS_SEEN + 1],
    /// What it counted.
    pub tally: Tally,
}

/// Who has a slot. The supervisor writes this, but for Starting -> Running and the last word.
#[repr(C)]
pub struct Life {
    /// Process id in the supervisor's namespace; 0 when the slot is free.
    pub pid: AtomicU32,
    /// Counts the users of this slot, so that a late message about an earlier one is known.
    pub generation: AtomicU32,
    state: AtomicU32,
    /// 1 when its agent ends the process because it can neither go on nor give up; it has said why.
    pub ended_by_agent: AtomicU32,
}

/// What a process has in RAM, and what the kernel has swapped out of it.
#[repr(C)]
pub struct Resident {
    /// Private anonymous pages in RAM (RssAnon), uswap's own included.
    pub anon_pages: AtomicU64,
    /// Shared pages in RAM (RssShmem), the compressed pool included; of those that others have too, a share.
    pub shmem_pages: AtomicU64,
    /// Private anonymous pages that the kernel has swapped out by itself (VmSwap), uswap's own included.
    pub kernel_swapped_pages: AtomicU64,
    /// What the tree of another `uswap run` has, whose supervisor this process is: it tells (`cli/run/nested.rs`).
    pub nested_pages: AtomicU64,
    /// What of the private pages others have of a fork.
    pub in_common: InCommon,
    /// Private pages that a forked child had when it first looked: they may be its parent's as well.
    pub inherited_pages: AtomicU64,
    /// Resident private pages that uswap leaves alone, its own included.
    pub unmanaged_pages: AtomicU64,
    /// Pages of uswap's own tables, stacks and frames.
    pub overhead_pages: AtomicU64,
}

/// The program's shared memory, which other processes may have, too.
#[repr(C)]
pub struct SharedMemory {
    /// Those of [`Resident::shmem_pages`] that are the program's.
    pub pages: AtomicU64,
    /// Those of these that are new since the process last looked who else has them: they count in full.
    pub new_pages: AtomicU64,
    /// Shared pages of the program's in RAM, in full.
    pub resident_pages: AtomicU64,
    /// [`Group::shared_growth`] when it last looked.
    pub growth: AtomicU64,
}

/// What a process would have, and others give way to.
#[repr(C)]
pub struct Wants {
    /// Pages that a child will have which this process is about to fork: they count as used.
    pub promised_pages: AtomicU64,
    /// Pages that are still to come of this process, which has just been forked: no other is forked until there is room for them.
    pub coming_pages: AtomicU64,
    /// Pages that this process lacks of its fair share: those who have more than theirs give way.
    pub claimed_pages: AtomicU64,
    /// Its ticket for the swap token; 0: it has none.
    pub ticket: AtomicU64,
    /// How often it has judged whether it keeps that.
    pub judgements: AtomicU64,
    /// Pages that it keeps of those that could be swapped, because what cannot fills the budget; 0 mostly.
    pub floor_pages: AtomicU64,
    /// What it works in, beside what it has in common with others; 0 as long as it has not said that.
    pub works_in_pages: AtomicU64,
    /// It would bring in what is on an area that leaves, and the budget is used up.
    pub waits_for_memory: AtomicU32,
}

/// Memory of a process that can be swapped.
#[repr(C)]
pub struct Managed {
    /// Pages that were adopted: in RAM or swapped out.
    pub pages: AtomicU64,
    /// Adopted pages that are swapped out.
    pub swapped_pages: AtomicU64,
    /// Slots in use, by area.
    pub area_used_slots: [AtomicU64; AREAS_MAX],
}

/// The compressed pool of a process.
#[repr(C)]
pub struct PoolSize {
    /// RAM that it takes.
    pub bytes: AtomicU64,
    /// Compressed bytes in it.
    pub stored_bytes: AtomicU64,
    /// Original size of what is in it.
    pub original_bytes: AtomicU64,
}

/// Of `shared_known`.
pub const SHARED_REFUSED: u32 = 1 << 31;

/// How a process is called.
#[repr(C)]
pub struct Called {
    /// Counts calls for the threads that read ahead and empty areas; they sleep on it.
    pub calls: AtomicU32,
    /// The announcement that this process has carried out: see `control`.
    pub carried_out: AtomicU32,
    /// The announcement after which its heirs are told of no content on an area that is to become empty by it.
    pub heard: AtomicU32,
    /// Counts what the shared-memory server knows of what this process has handed over; the process waits on it. With
    /// [`SHARED_REFUSED`] turned over instead, it has refused something.
    pub shared_known: AtomicU32,
}

impl ProcessSlot {
    /// What the slot is used for.
    pub fn state(&self) -> SlotState {
        match self.life.state.load(Acquire) {
            1 => SlotState::Starting,
            2 => SlotState::Running,
            3 => SlotState::Dead,
            _ => SlotState::Free,
        }
    }

    /// The agent of the process says that it is at work.
    pub fn running(&self) {
        let _ =
            self.life.state.compare_exchange(SlotState::Starting as u32, SlotState::Running as u32, AcqRel, Relaxed);
    }

    /// Calls the threads that read ahead and empty areas.
    pub fn call<S: System>(&self) {
        self.called.calls.fetch_add(1, AcqRel);
        S::wake(&self.called.calls, Scope::Shared, i32::MAX as u32);
    }

    /// Handler `number` is serving the page at `address`, or none: 0. For the watchdog.
    pub fn serves(&self, number: usize, address: usize) {
        self.serving[number % HANDLERS_SEEN].store(address as u64, Relaxed);
    }

    /// A thread that reads ahead is bringing in pages from `address` on, or none: 0. For the watchdog.
    pub fn reads_ahead(&self, address: usize) {
        self.serving[READING_AHEAD].store(address as u64, Relaxed);
    }

    /// The handlers that are serving a page, and its address; and [`READING_AHEAD`] with that of threads that read ahead.
    pub fn being_served(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.serving.iter().map(|address| address.load(Relaxed)).enumerate().filter(|(_, address)| *address != 0)
    }

    fn clear(&self) {
        let Resident {
            in_common,
            anon_pages,
            shmem_pages,
            kernel_swapped_pages,
            nested_pages,
            inherited_pages,
            unmanaged_pages,
            overhead_pages,
        } = &self.resident;
        let SharedMemory { pages, new_pages, resident_pages, growth } = &self.shared;
        let Wants {
            promised_pages,
            coming_pages,
            claimed_pages,
            ticket,
            judgements,
            floor_pages,
            works_in_pages,
            waits_for_memory,
        } = &self.wants;
        let Managed { pages: managed_pages, swapped_pages, area_used_slots } = &self.managed;
        let PoolSize { bytes, stored_bytes, original_bytes } = &self.pool;
        let words = [anon_pages, shmem_pages, kernel_swapped_pages, nested_pages, inherited_pages, unmanaged_pages]
            .into_iter()
            .chain([overhead_pages, pages, new_pages, resident_pages, growth])
            .chain([
                promised_pages,
                coming_pages,
                claimed_pages,
                floor_pages,
                works_in_pages,
                managed_pages,
                swapped_pages,
            ])
            .chain([ticket, judgements])
            .chain([bytes, stored_bytes, original_bytes]);
        words.for_each(|word| word.store(0, Relaxed));
        area_used_slots.iter().chain(&self.serving).for_each(|word| word.store(0, Relaxed));
        waits_for_memory.store(0, Relaxed);
        // Not even what was announced before it came: it may have inherited something.
        self.called.carried_out.store(u32::MAX, Relaxed);
        self.called.heard.store(u32::MAX, Relaxed);
        self.life.ended_by_agent.store(0, Relaxed);
        self.lineage.forked.store(0, Relaxed);
        in_common.clear();
    }
}

impl Group {
    /// The slot of one process.
    pub fn process(&self, index: u32) -> &ProcessSlot {
        let index = index as usize;
        assert!(index < PROCESSES_MAX, "process slot {index} of {PROCESSES_MAX}");
        // SAFETY: inside the mapping by the layout, aligned because the array starts on a page; any bytes are
        // a value, for all fields are atomic integers.
        unsafe { self.base.add(self.layout.slots).cast::<ProcessSlot>().add(index).as_ref() }
    }

    /// Slots that are not free: living processes and dead ones with inheritors.
    pub fn taken(&self) -> impl Iterator<Item = (u32, &ProcessSlot)> {
        self.header().taken.iter().enumerate().flat_map(move |(word, bits)| {
            ones(bits.load(Acquire)).map(move |bit| {
                let index = word as u32 * 64 + bit;
                (index, self.process(index))
            })
        })
    }

    /// Slots of living processes.
    pub fn processes(&self) -> impl Iterator<Item = (u32, &ProcessSlot)> {
        self.taken().filter(|(_, slot)| matches!(slot.state(), SlotState::Starting | SlotState::Running))
    }

    /// Whether `holder` is among the living processes.
    pub fn has(&self, holder: Holder) -> bool {
        let slot = self.process(holder.index);
        matches!(slot.state(), SlotState::Starting | SlotState::Running)
            && slot.life.generation.load(Acquire) == holder.generation
    }

    /// Takes the lowest free slot for a process. None when all are taken.
    pub fn allot(&self, pid: u32) -> Option<u32> {
        for (word, bits) in self.header().taken.iter().enumerate() {
            let taken = bits.load(Acquire);
            if taken == u64::MAX {
                continue;
            }
            let bit = (!taken).trailing_zeros();
            let index = word as u32 * 64 + bit;
            let slot = self.process(index);
            slot.clear();
            slot.life.generation.fetch_add(1, AcqRel);
            // An answer to who had it before comes to nothing.
            slot.called.shared_known.fetch_add(1, AcqRel);
            slot.life.pid.store(pid, Release);
            slot.life.state.store(SlotState::Starting as u32, Release);
            bits.fetch_or(1 << bit, AcqRel);
            return Some(index);
        }
        None
    }

    /// The process of a slot is gone (it ended, or it runs another program): what it counted goes to the
    /// totals, it uses nothing any more, and it inherits nothing any more. Its clusters stay its own. If a child of it has
    /// not said hello, it stays in its place until it is reaped: the child inherits what it did.
    pub fn retire(&self, index: u32) {
        let slot = self.process(index);
        self.end_censuses();
        slot.life.state.store(SlotState::Dead as u32, Release);
        self.totals().absorb(&slot.tally);
        let shared = slot.shared.resident_pages.load(Relaxed);
        let pool = slot.pool.bytes.load(Relaxed);
        slot.clear();
        slot.leaves_pool(if slot.has_inheritors() { pool } else { 0 });
        self.shared_memory_shrinks(shared);
        if slot.forks_in_flight() == 0 {
            self.inherits_nothing(index);
        }
    }

    /// Dead processes whose slots nobody can read any more. When they are reaped, there may be more.
    pub fn reapable(&self) -> impl Iterator<Item = u32> {
        self.taken().filter(|(_, s)| s.state() == SlotState::Dead && !s.has_inheritors()).map(|(index, _)| index)
    }

    /// Frees a slot of a dead process and all clusters it still owns.
    pub fn reap(&self, index: u32) {
        let slot = self.process(index);
        assert_eq!(slot.state(), SlotState::Dead, "only a dead process is reaped");
        self.release_all_of(index);
        self.inherits_nothing(index);
        slot.leaves_pool(0);
        slot.life.pid.store(0, Release);
        slot.life.state.store(SlotState::Free as u32, Release);
        self.header().taken[index as usize / 64].fetch_and(!(1 << (index % 64)), AcqRel);
    }
}

/// The numbers of the set bits, ascending.
fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (lowest < 64).then_some(lowest)
    })
}
