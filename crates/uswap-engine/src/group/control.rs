//! Live control: what may change about a group while its processes run, and how they say that it was done.
//!
//! Whoever may open the group's memory file (the user who started it, and root) changes a word and *announces* it: the
//! number of announcements grows, and every process is called. Each stores the number that it has carried out.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use uswap_sys::linux::Linux;
use uswap_system::{Scope, SharedSwap, System};

use super::{Group, PAGE_BYTES, SlotState};

/// Of direct I/O: the shared-memory server knows of it.
const KNOWN: u32 = 2;
/// Of shared memory: it is swapped, and the kernel tells of forks, or children do.
const KERNEL_TELLS: u32 = 1;
const CHILDREN_TELL: u32 = 2;
/// Of an area: it is to become empty.
const LEAVES: u32 = 1;
/// And that has been announced since.
const ANNOUNCED: u32 = 2;
/// It is empty, and somebody was told so, who may have put his own data there: it is never used again.
const OFF: u32 = 4;
/// Behind these flags comes a number.
const FLAG_BITS: u32 = 3;
/// One part in so many of the budget is left for those who live, whatever others have left.
const LIVING_PART: u64 = 4;

/// How far the processes are with an area that is to become empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapoffProgress {
    /// Slots still in use.
    pub used_slots: u64,
    /// Processes that may still read something on it, or write to it.
    pub unfinished: u32,
    /// Some process waits for memory, because the budget is used up.
    pub waits_for_memory: bool,
}

impl Group {
    /// The budget in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.header().budget.limit_bytes.load(Relaxed)
    }

    /// The budget in pages.
    pub fn limit_pages(&self) -> u64 {
        self.limit_bytes() / PAGE_BYTES
    }

    /// What is left of it for those who live: pools of those who have ended stay as long as somebody may read them. But a part is
    /// left in any case.
    pub fn limit_of_living_pages(&self) -> u64 {
        let limit = self.limit_pages();
        limit.saturating_sub(self.left_pool_pages()).max(limit / LIVING_PART)
    }

    /// Changes the budget. Carried out at once where it grows; a smaller one takes as long as reclaim.
    pub fn set_limit_bytes(&self, bytes: u64) {
        self.header().budget.limit_bytes.store(bytes, Relaxed);
        self.announce::<Linux>();
    }

    /// Whether an area is to become empty, and takes no more pages.
    pub fn is_leaving(&self, area: usize) -> bool {
        self.header().areas.leaving[area].load(Acquire) != 0
    }

    /// Whether an area is off for good.
    pub fn is_off(&self, area: usize) -> bool {
        self.header().areas.leaving[area].load(Acquire) & OFF != 0
    }

    /// An area is empty, and stays off. False if it has been taken into use again.
    pub fn set_off(&self, area: usize) -> bool {
        let off = |word| (word & LEAVES != 0).then_some(word | OFF);
        self.header().areas.leaving[area].fetch_update(AcqRel, Acquire, off).is_ok()
    }

    /// Begins or ends the emptying of an area that is not off.
    pub fn set_leaving(&self, area: usize, leaving: bool) {
        let word = &self.header().areas.leaving[area];
        // With a number, so that nobody else's is said to be announced.
        let leaves = self.announcements() << FLAG_BITS | LEAVES;
        let changed = |word| (word & OFF == 0).then_some(if leaving { leaves } else { 0 });
        if word.fetch_update(AcqRel, Acquire, changed).is_err() {
            return;
        }
        self.announce::<Linux>();
        let _ = word.compare_exchange(leaves, leaves | ANNOUNCED, AcqRel, Relaxed);
    }

    /// Of an area that is to become empty, if whoever carries out the last announcement knows of it: another number each time.
    pub(super) fn announced_to_leave(&self, area: usize) -> Option<u32> {
        let word = self.header().areas.leaving[area].load(Acquire);
        (word & ANNOUNCED != 0).then_some(word)
    }

    /// From here on shared memory is swapped.
    pub fn swap_shared(&self, kernel_tells_of_forks: bool) {
        let word = if kernel_tells_of_forks { KERNEL_TELLS } else { CHILDREN_TELL };
        self.header().control.swaps_shared.store(word, Release);
        self.announce::<Linux>();
    }

    /// Whether shared memory is swapped.
    pub fn swaps_shared(&self) -> bool {
        self.shared_swap() != SharedSwap::Off
    }

    /// Whether it is, and who tells of forks.
    pub fn shared_swap(&self) -> SharedSwap {
        match self.header().control.swaps_shared.load(Acquire) {
            0 => SharedSwap::Off,
            KERNEL_TELLS => SharedSwap::KernelTells,
            _ => SharedSwap::ChildrenTell,
        }
    }

    /// A process has mapped shared memory that has a name, and is to be swapped.
    pub(crate) fn has_named_memory(&self) {
        self.header().control.named.store(1, Release);
    }

    /// Whether one has.
    pub fn is_named_memory_mapped(&self) -> bool {
        self.header().control.named.load(Acquire) != 0
    }

    /// A process is about to do direct I/O: no shared memory is swapped out from here on. Waits until that is so, for a while.
    pub fn begin_direct_io<S: System>(&self, patience: Duration) -> bool {
        let (word, begun) = (&self.header().control.direct_io, S::now());
        let _ = word.compare_exchange(0, 1, AcqRel, Relaxed);
        while self.swaps_shared() && word.load(Acquire) != KNOWN {
            let Some(left) = patience.checked_sub(S::since(begun)) else { return false };
            let _ = S::wait(word, Scope::Shared, 1, Some(left));
        }
        true
    }

    /// Whether a process does direct I/O.
    pub fn does_direct_io(&self) -> bool {
        self.header().control.direct_io.load(Acquire) != 0
    }

    /// Whether a process waits to do direct I/O, and the shared-memory server does not know of it yet.
    pub fn is_direct_io_announced(&self) -> bool {
        let state = self.header().control.direct_io.load(Acquire);
        state != 0 && state != KNOWN
    }

    /// The shared-memory server knows of it, and no page is on its way out.
    pub fn direct_io_is_known<S: System>(&self) {
        let word = &self.header().control.direct_io;
        word.swap(KNOWN, AcqRel);
        S::wake(word, Scope::Shared, i32::MAX as u32);
    }

    /// The number of announcements.
    pub fn announcements(&self) -> u32 {
        self.header().control.announcements.load(Acquire)
    }

    /// Calls every process: something has changed. What changes it on Linux does so itself.
    pub fn announce<S: System>(&self) {
        self.header().control.announcements.fetch_add(1, AcqRel);
        self.processes().for_each(|(_, slot)| slot.call::<S>());
    }

    /// How far an area that leaves is. While somebody owns a part of it, it may still be written to, if only to give its blocks back.
    pub fn swapoff_progress(&self, area: usize) -> SwapoffProgress {
        let announced = self.announcements();
        let mut progress = SwapoffProgress { used_slots: 0, unfinished: 0, waits_for_memory: false };
        for (_, slot) in self.taken() {
            if slot.state() == SlotState::Dead {
                // Its children come to have what it had.
                progress.unfinished += u32::from(slot.forks_in_flight() > 0);
                continue;
            }
            progress.used_slots += slot.managed.area_used_slots[area].load(Acquire);
            let done = slot.called.carried_out.load(Acquire) == announced && slot.forks_in_flight() == 0;
            progress.unfinished += u32::from(!done);
            progress.waits_for_memory |= slot.wants.waits_for_memory.load(Relaxed) != 0;
        }
        progress.unfinished += u32::from(self.is_owned(area));
        progress
    }
}
