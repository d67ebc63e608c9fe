//! The census: where processes enter what they have of private pages, each page by one part in as many as have it
//! ([`uswap_core::census`]). The supervisor announces one when memory is scarce.

use uswap_core::census::{self, Kin, Mark};
use uswap_core::defects::{Sabotage, is_on};
use uswap_core::in_common::UNKNOWN;
use uswap_system::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::{Group, ProcessSlot};

/// What a process has entered in the last two censuses: the older one holds until the newer is complete.
#[repr(C)]
pub struct Entries([Entry; 2]);

#[repr(C)]
struct Entry {
    /// The number of the census; 0: none.
    census: AtomicU64,
    /// What must have stayed as it was.
    kin: AtomicU64,
    /// See [`census::entry`].
    pages: AtomicU64,
    /// The process's share, without what it had resident: two's complement. With what it has since come to have, no more than there is.
    least: AtomicU64,
}

/// Private pages of all processes, as a census has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByCensus {
    /// There are no more.
    pub most: u64,
    /// There are no fewer.
    pub least: u64,
}

impl Entries {
    fn of(&self, census: u64) -> &Entry {
        &self.0[census as usize % 2]
    }

    pub(super) fn clear(&self) {
        self.0.iter().for_each(|entry| entry.census.store(0, Relaxed));
    }
}

fn word(kin: Kin) -> u64 {
    u64::from(kin.ended) << 32 | u64::from(kin.births)
}

impl Group {
    /// The last census that was announced; 0: none.
    pub(crate) fn census(&self) -> u64 {
        self.header().budget.census.load(Acquire)
    }

    /// Children that were ever about to be forked from processes of the group. Wraps.
    pub fn births(&self) -> u32 {
        self.taken().map(|(_, slot)| slot.births()).fold(0, u32::wrapping_add)
    }

    /// Announces a census. Who calls this has counted so many `births`, and then found no child that is not in the group: that would have
    /// its part and not enter it. Whether it has: not where another child has begun since.
    pub fn announce_census(&self, births: u32) -> bool {
        if self.births() != births {
            return false;
        }
        self.header().budget.census.fetch_add(1, AcqRel);
        // A mark that was made in between knows of that birth, but nobody has looked for its child.
        let nobody_forks = self.births() == births;
        if !nobody_forks {
            self.end_censuses();
        }
        nobody_forks
    }

    /// A process has ended, or there is one with memory in common that is not of the group: no census holds that was announced before.
    pub fn end_censuses(&self) {
        self.header().budget.ended.fetch_add(1, AcqRel);
    }

    fn kin_of(&self, slot: &ProcessSlot) -> Kin {
        Kin { births: slot.births(), ended: self.header().budget.ended.load(Acquire) as u32 }
    }

    /// The mark of a process that has had so many `changes` at the least.
    pub(crate) fn mark(&self, slot: &ProcessSlot, changes: u64) -> Mark {
        Mark { changes, kin: self.kin_of(slot) }
    }

    /// The process enters `pages` in a census, with its `share` when it had `resident` pages. What it has by then it has told.
    pub(crate) fn enter(&self, slot: &ProcessSlot, census: u64, kin: Kin, pages: u64, (share, resident): (u64, u64)) {
        let entry = slot.resident.in_common.entries.of(census);
        entry.census.store(0, Release);
        entry.kin.store(word(kin), Relaxed);
        entry.pages.store(pages, Relaxed);
        // A share is rounded up.
        entry.least.store(share.wrapping_sub(resident + 1), Relaxed);
        entry.census.store(census, Release);
    }

    /// Private pages of all processes by the last census that is complete and holds.
    pub fn by_census(&self) -> Option<ByCensus> {
        self.last_census().or_else(|| self.told_in(self.census().checked_sub(1)?))
    }

    /// The same by the last one that was announced.
    pub fn last_census(&self) -> Option<ByCensus> {
        self.told_in(self.census())
    }

    fn told_in(&self, census: u64) -> Option<ByCensus> {
        let entered = |slot: &ProcessSlot| {
            let entry = slot.resident.in_common.entries.of(census);
            let mut kin = self.kin_of(slot);
            if is_on(Sabotage::EndForgotten) {
                kin.ended = (entry.kin.load(Relaxed) >> 32) as u32;
            }
            let holds = entry.census.load(Acquire) == census && entry.kin.load(Relaxed) == word(kin);
            let changes = slot.resident.in_common.changes.load(Relaxed);
            let resident = slot.resident.anon_pages.load(Relaxed);
            let most = census::counted(entry.pages.load(Relaxed), resident, changes);
            let least = entry.least.load(Relaxed).wrapping_add(resident).cast_signed();
            (holds && changes != UNKNOWN).then_some((most, least))
        };
        if census == 0 {
            return None;
        }
        let mut sums = (0, 0);
        for (_, slot) in self.processes() {
            let (most, least) = entered(slot)?;
            sums = (sums.0 + most, sums.1 + least);
        }
        Some(ByCensus { most: sums.0, least: sums.1.max(0).cast_unsigned().min(sums.0) })
    }
}
