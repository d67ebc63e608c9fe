//! Lineage: a forked child reads the slots that its parent owned at the fork.
//!
//! `inheritors` of a slot names the processes that may do so. A dead owner's clusters stay taken until no inheritor lives.

use uswap_system::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::{Group, PAGE_BYTES, PROCESSES_MAX, ProcessSlot, SlotState, WORDS};

/// The child of a fork has said hello, and is not in its ledgers yet.
const ARRIVED: u32 = 1;

/// It is.
const INHERITS: u32 = 2;

/// A process, as the group knows it: not by its id, which is another one in each pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its slot in the group.
    pub index: u32,
    /// How often the slot had been used before.
    pub generation: u32,
}

impl Holder {
    /// As one word, not 0.
    pub(crate) fn word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index + 1)
    }

    /// The other way.
    pub(crate) fn of_word(word: u64) -> Option<Holder> {
        Some(Holder { index: (word as u32).checked_sub(1)?, generation: (word >> 32) as u32 })
    }
}

/// Who may read slots of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heirs {
    /// A child may be on its way, or has not written into its ledgers yet.
    Arriving,
    /// There are some, each in its ledgers.
    Present,
    /// Nobody.
    None,
}

/// Where a process comes from, and who comes from it.
#[repr(C)]
pub(super) struct Lineage {
    /// Forks that have begun and whose child has not said hello: see `fork_begins`.
    forks_in_flight: AtomicU32,
    /// Forks that have ever begun.
    forks_begun: AtomicU32,
    /// Forks by libc that have ever begun, of a process that does not swap, too: see `census`.
    births: AtomicU32,
    /// Not 0 for a child of a process that swaps: [`ARRIVED`] or [`INHERITS`].
    pub forked: AtomicU32,
    /// Bytes of the compressed pool of a process that has ended, as long as others may read it.
    left_pool_bytes: AtomicU64,
    inheritors: [AtomicU64; WORDS],
}

impl ProcessSlot {
    /// Called before fork(2): from here on a child may read our slots, known to the supervisor or not.
    /// Ended by the supervisor when the child says hello, or by `fork_failed`.
    pub fn fork_begins(&self) {
        // In this order: who sees the flight has it in the count of those that began.
        self.lineage.forks_begun.fetch_add(1, AcqRel);
        self.lineage.forks_in_flight.fetch_add(1, AcqRel);
    }

    /// Called by a thread that is about to fork by libc, also where nothing is swapped: no census holds that does not know of the child.
    pub fn birth_begins(&self) {
        self.lineage.births.fetch_add(1, AcqRel);
    }

    /// fork(2) made no child after all.
    pub fn fork_failed(&self) {
        let _ = self.lineage.forks_in_flight.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1));
    }

    /// Forks whose child has not said hello.
    pub fn forks_in_flight(&self) -> u32 {
        self.lineage.forks_in_flight.load(Acquire)
    }

    /// Forks that have ever begun, those in flight at an earlier look among them. Wraps.
    pub fn forks_begun(&self) -> u32 {
        self.lineage.forks_begun.load(Acquire)
    }

    /// How often that has been called. Wraps.
    pub(super) fn births(&self) -> u32 {
        self.lineage.births.load(Acquire)
    }

    /// The child of a fork: it has written into its ledgers that it holds what they say.
    pub fn inherits(&self) {
        self.lineage.forked.store(INHERITS, Release);
    }

    /// For the supervisor, when it has counted the children that have not said hello: forks whose child died
    /// before it could are forgotten. `seen` is what `forks_in_flight` was before the count.
    pub fn forks_in_flight_are(&self, seen: u32, living: u32) {
        if living < seen {
            let _ = self.lineage.forks_in_flight.compare_exchange(seen, living, AcqRel, Relaxed);
        }
    }

    /// Whether another living process may read slots that this one owns.
    pub fn has_inheritors(&self) -> bool {
        // Order: the supervisor notes the child first and ends the flight second.
        self.forks_in_flight() != 0 || self.lineage.inheritors.iter().any(|w| w.load(Acquire) != 0)
    }

    /// The process has ended, and has left a compressed pool of so many bytes to those who inherit from it; or somebody has given some of it back.
    pub fn leaves_pool(&self, bytes: u64) {
        self.lineage.left_pool_bytes.store(bytes, Relaxed);
    }

    /// Bytes of the compressed pool that a process which has ended has left to others.
    fn left_pool_bytes(&self) -> u64 {
        match self.state() {
            SlotState::Dead => self.lineage.left_pool_bytes.load(Relaxed),
            _ => 0,
        }
    }

    /// Whether `process` may read slots that this one owns.
    pub fn is_inheritor(&self, process: u32) -> bool {
        self.lineage.inheritors[process as usize / 64].load(Acquire) & (1 << (process % 64)) != 0
    }
}

impl Group {
    /// What those who may read slots of `owner` are at.
    pub fn heirs_of(&self, owner: u32) -> Heirs {
        // In this order: an heir is noted before its flight ends, and its own forks begin after that.
        let slot = self.process(owner);
        let heirs = || (0..PROCESSES_MAX as u32).filter(|&heir| slot.is_inheritor(heir)).map(|heir| self.process(heir));
        if slot.forks_in_flight() != 0 || heirs().any(|heir| heir.forks_in_flight() != 0) {
            return Heirs::Arriving;
        }
        let mut all = Heirs::None;
        for heir in heirs() {
            if heir.lineage.forked.load(Acquire) == ARRIVED {
                return Heirs::Arriving;
            }
            all = Heirs::Present;
        }
        all
    }

    /// Whether those who may read slots of `owner` have nothing on `area` any more, which is to become empty: each has carried out
    /// what was announced since. `owner` is not forking.
    pub fn heirs_have_left(&self, owner: u32, area: usize) -> bool {
        let Some(leaving) = self.announced_to_leave(area) else { return false };
        let announced = self.announcements();
        let have_left = || {
            let heirs = (0..PROCESSES_MAX as u32).filter(|&heir| self.process(owner).is_inheritor(heir));
            heirs.map(|heir| self.process(heir)).all(|heir| {
                // Whom one forked that has ended is an heir by the end of its flight.
                let is_over = heir.state() == SlotState::Dead && heir.forks_in_flight() == 0;
                is_over || heir.called.carried_out.load(Acquire) == announced
            })
        };
        // Twice: whom an heir forked before it had left is in flight still, or among the heirs by now; whom it forks later has
        // nothing there.
        let all_have_left = have_left() && self.heirs_of(owner) == Heirs::Present && have_left();
        // Last, for what was announced may be that it stays after all.
        all_have_left && self.announced_to_leave(area) == Some(leaving)
    }

    /// Pages of compressed pools whose processes have ended, and that others may still read: they are there, and nobody's.
    pub fn left_pool_pages(&self) -> u64 {
        self.taken().map(|(_, slot)| slot.left_pool_bytes()).sum::<u64>() / PAGE_BYTES
    }

    /// Whether `owner` has ended, and `heir` alone may read what it has left: no other process, and no child that is on its way.
    pub fn is_only_heir(&self, owner: Holder, heir: u32) -> bool {
        let slot = self.process(owner.index);
        let has_ended = slot.state() == SlotState::Dead && slot.life.generation.load(Acquire) == owner.generation;
        // In this order: a child is among the heirs before its flight ends.
        let none_on_the_way = slot.forks_in_flight() == 0 && self.process(heir).forks_in_flight() == 0;
        let alone = |word: usize| if word == heir as usize / 64 { 1 << (heir % 64) } else { 0 };
        let heirs = slot.lineage.inheritors.iter().enumerate();
        has_ended
            && none_on_the_way
            && heirs.map(|(word, bits)| (bits.load(Acquire), alone(word))).all(|(is, alone)| is == alone)
    }

    /// `child` was forked from `parent`: it may read the slots of its parent, and of all that the parent
    /// inherited from. Ends the parent's fork in flight.
    pub fn fork_arrived(&self, parent: u32, child: u32) {
        self.process(child).lineage.forked.store(ARRIVED, Release);
        for (index, slot) in self.taken() {
            if index != child && (index == parent || slot.is_inheritor(parent)) {
                self.note_inheritor(index, child);
            }
        }
        self.process(parent).fork_failed();
        if self.process(parent).state() == SlotState::Dead && self.process(parent).forks_in_flight() == 0 {
            self.inherits_nothing(parent);
        }
    }

    /// `child` may read slots that `owner` owns.
    pub fn note_inheritor(&self, owner: u32, child: u32) {
        self.process(owner).lineage.inheritors[child as usize / 64].fetch_or(1 << (child % 64), AcqRel);
    }

    pub(super) fn inherits_nothing(&self, index: u32) {
        for (_, owner) in self.taken() {
            owner.lineage.inheritors[index as usize / 64].fetch_and(!(1 << (index % 64)), AcqRel);
        }
    }
}
