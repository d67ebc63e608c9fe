//! What this process has in common with others of a fork: what it leaves out, and when it looks. [`uswap_core::in_common`] says why.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_core::PageRange;
use uswap_core::defects::{Sabotage, is_on};
use uswap_core::in_common::{Between, Changes, LeftOut, Seen, UNKNOWN};
use uswap_sys::maps;
use uswap_system::looks::{Footprint, Mappings, Residency};

use crate::engine::Engine;
use crate::group::{Group, Holder, ProcessSlot};
use crate::host::Host;
use crate::last_told::LastTold;
use crate::member::Member;

/// Less than this, in pages, is not worth a look: 1 MiB.
const DOUBT_MIN: u64 = 256;
/// How soon it looks again.
const LOOK_SOON: Duration = Duration::from_millis(10);
/// Looking takes at most one part in so many of a CPU.
const LOOK_COST: u32 = 50;
/// The same where the budget is used up: what passes for the process's own would be swapped out for nothing.
const PRESSING: (Duration, u32) = (Duration::from_millis(2), 4);
/// Looks in vain after which it looks no rarer: each has halved the part of a CPU that looking may take then. A page in doubt is mostly a fault
/// that has brought it back.
const IN_VAIN_MAX: u32 = 4;
/// What the first look is taken to cost. Most of what a child has changed by then its own start has changed.
const FIRST_LOOK: Duration = Duration::from_millis(5);

/// See the file's head.
pub(crate) struct InCommon {
    /// What the parent had told, if there is one.
    parent: Option<Parent>,
    changes: Option<Changes>,
    /// How many there had been at the least when it last told.
    least: u64,
    left_out: LeftOut,
    looked: Instant,
    /// The parent's changes then.
    parent_then: u64,
    /// CPU time of the last look.
    took: Duration,
    /// So many looks before it found that most of what had been in doubt was in common still.
    in_vain: u32,
    /// The text of /proc/self/maps, whenever it is read.
    maps: Vec<u8>,
}

/// A look at what a process has, which has begun before its size is asked for.
pub(crate) struct Looking<'a, H: Host> {
    engine: Option<&'a Engine<H>>,
    taken: u64,
    arrived: u64,
    faults: Option<u64>,
}

impl<'a, H: Host> Looking<'a, H> {
    pub fn begin(engine: Option<&'a Engine<H>>) -> Looking<'a, H> {
        let (taken, arrived) =
            engine.map_or((0, 0), |engine| (engine.memory.uffd.taken().0, engine.memory.uffd.brought().1));
        Looking { engine, taken, arrived, faults: H::Footprint::faults().ok() }
    }

    /// It had so many pages resident meanwhile. What it has seen so that changes are too few, and too many.
    fn end(self, resident: u64) -> Option<(Seen, Seen)> {
        let Looking { engine, taken, arrived, faults } = self;
        let brought = engine.map_or(0, |engine| engine.memory.uffd.brought().0);
        let many = Seen { taken, resident, brought, faults: H::Footprint::faults().ok()? };
        let leaving = engine.map_or(0, |engine| engine.memory.uffd.taken().1);
        Some((Seen { taken: leaving, resident, brought: arrived, faults: faults? }, many))
    }
}

/// For whom it looks.
#[derive(Clone, Copy)]
pub(crate) struct Scarcity {
    /// The process has had a child of its own.
    pub has_forked: bool,
    /// The budget is used up.
    pub is_pressing: bool,
    /// It has just been forked, and its program waits.
    pub is_newborn: bool,
}

/// What the parent of a forked process had told before it forked.
#[derive(Clone, Copy)]
struct Parent {
    changes: u64,
    private_pages: u64,
}

impl InCommon {
    /// Of a process that is `member`, and has told nothing yet. One whose parent was no member, or has ended, counts all that it has:
    /// what was told is not its parent's then.
    pub fn new<H: Host>(told: &LastTold, member: &Member<H>) -> InCommon {
        let mut parent = None;
        if let Some(holder) = Holder::of_word(told.holder.load(Relaxed))
            && told.process.load(Relaxed) == H::parent_process_id()
        {
            member.slot().is_child_of(holder);
            let (changes, private_pages) = (told.changes.load(Relaxed), told.private_pages.load(Relaxed));
            member.slot().resident.in_common.born_at.store(changes, Relaxed);
            parent = Some(Parent { changes, private_pages });
        }
        let holder = member.holder();
        told.holder.store(holder.word(), Relaxed);
        told.process.store(H::process_id(), Relaxed);
        InCommon {
            parent,
            changes: None,
            least: 0,
            left_out: LeftOut::default(),
            looked: H::now(),
            parent_then: parent.map_or(0, |parent| parent.changes),
            took: FIRST_LOOK,
            in_vain: 0,
            maps: Vec::new(),
        }
    }

    /// The process has `private` pages resident, which was looked at after `looking` had begun. Tells what follows.
    /// Returns how many changes it has had, where that can be told.
    pub fn see<H: Host>(
        &mut self,
        slot: &ProcessSlot,
        told: &LastTold,
        private: u64,
        looking: Looking<'_, H>,
    ) -> Option<Between> {
        let changes = looking.end(private).map(|(few, many)| self.changes_from(private).see(few, many));
        let Between { least, most, .. } = changes.unwrap_or(Between { least: 0, most: UNKNOWN, seen: 0 });
        self.least = least;
        slot.resident.in_common.changes.store(most, Relaxed);
        let seen = match most {
            _ if is_on(Sabotage::CopiedIsLeftOut) => 0,
            _ if is_on(Sabotage::ChangesOneTooLow) => most.saturating_sub(1),
            most => most,
        };
        slot.resident.in_common.left_out.store(self.left_out.pages(seen), Relaxed);
        slot.resident.in_common.when_looked.store(self.left_out.known(), Relaxed);
        told.changes.store(least, Relaxed);
        told.private_pages.store(private, Relaxed);
        changes
    }

    /// What changes are counted from, when the process has `private` pages.
    fn changes_from(&mut self, private: u64) -> &mut Changes {
        if self.changes.is_none() {
            self.left_out = LeftOut::born(self.parent.map_or(0, |parent| parent.private_pages), private);
            self.changes = Some(Changes::of(private));
        }
        self.changes.as_mut().expect("set above")
    }

    /// Looks who else has what the process was born with, if it may leave out too little and has not looked for long enough. To be
    /// called when memory is scarce. Whether it has looked.
    pub fn look_in_time<H: Host>(
        &mut self,
        group: &Group,
        slot: &ProcessSlot,
        engine: &Engine<H>,
        scarcity: Scarcity,
    ) -> bool {
        // What it has in common with children of its own is its own to count.
        if scarcity.has_forked {
            return false;
        }
        if scarcity.is_newborn {
            self.looked = H::now();
            return false;
        }
        let (soonest, cost) = match PRESSING {
            (soonest, cost) if scarcity.is_pressing => (soonest, cost << self.in_vain),
            _ => (LOOK_SOON, LOOK_COST),
        };
        let Some(parent) = group.living_parent(slot) else { return false };
        let changes = slot.resident.in_common.changes.load(Relaxed);
        let parent_now = group.process(parent.index).resident.in_common.changes.load(Relaxed);
        let doubt = self.left_out.doubt(changes) + parent_now.saturating_sub(self.parent_then);
        if doubt < DOUBT_MIN || changes == UNKNOWN || H::since(self.looked) < soonest.max(self.took * cost) {
            return false;
        }
        let begun = H::cpu_time();
        if let Ok((pages, fixed)) = self.count(engine) {
            if pages + DOUBT_MIN < slot.resident.in_common.left_out.load(Relaxed) {
                engine.core().take_back_aside();
            }
            let is_in_vain = 4 * self.left_out.known().saturating_sub(pages) < doubt;
            self.in_vain = if is_in_vain { (self.in_vain + 1).min(IN_VAIN_MAX) } else { 0 };
            self.left_out = LeftOut::look(pages, self.least);
            slot.resident.in_common.left_out.store(self.left_out.pages(changes), Relaxed);
            slot.resident.in_common.fixed.store(fixed, Relaxed);
        }
        self.parent_then = parent_now;
        self.looked = H::now();
        self.took = H::cpu_time().saturating_sub(begun);
        true
    }

    /// Of all private memory: what libraries and uswap itself have filled before the fork is in common, too. And how much of that cannot be
    /// swapped.
    fn count<H: Host>(&mut self, engine: &Engine<H>) -> io::Result<(u64, u64)> {
        let in_common =
            |range: PageRange| engine.memory.pagemap.in_common(range.start.address(), range.end().address());
        let adopted: Vec<PageRange> = engine.core().pages().adopted_ranges().collect();
        let swappable: u64 = adopted.into_iter().map(in_common).sum::<io::Result<_>>()?;
        H::Mappings::read_maps(&mut self.maps)?;
        let private = maps::vmas(&self.maps).filter(|vma| !vma.shared && vma.read);
        let mut fixed = 0;
        for range in private.map(|vma| PageRange::of_bytes(vma.start, vma.end)) {
            let rest: Vec<PageRange> = engine.core().pages().not_adopted(range).collect();
            fixed += rest.into_iter().map(in_common).sum::<io::Result<u64>>()?;
        }
        Ok((swappable + fixed, fixed))
    }
}
