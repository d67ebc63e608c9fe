//! What the group is told of this process.

use std::sync::atomic::Ordering::Relaxed;

use uswap_core::{Core, PAGE_SIZE};

use crate::engine::Engine;
use crate::host::Host;

impl<H: Host> Engine<H> {
    /// Tells the group what this process has.
    pub fn publish(&self) {
        let slot = self.member.slot();
        let core = self.core();
        slot.managed.pages.store(core.pages().known_pages(), Relaxed);
        slot.managed.swapped_pages.store(core.swapped_pages(), Relaxed);
        let cached = u64::from(core.swap_cache().populated_frames());
        slot.pool.original_bytes.store(core.pool_objects() * PAGE_SIZE as u64, Relaxed);
        slot.resident.unmanaged_pages.store(self.unmanaged_pages(&core), Relaxed);
        self.content.areas.publish(&core, &self.member);
        drop(core);
        slot.resident.overhead_pages.store(cached, Relaxed);
        let pool = self.content.pool.lock();
        slot.pool.bytes.store(pool.pool_bytes() as u64, Relaxed);
        slot.pool.stored_bytes.store(pool.stored_bytes() as u64, Relaxed);
    }

    /// Resident anonymous pages that the books do not know, as of the last look at the size of the process. Of what the
    /// kernel has swapped out nobody says which it is: the pages of the books come first.
    pub(crate) fn unmanaged_pages(&self, core: &Core) -> u64 {
        // A page in the swap cache is one that the books know: its frame must not count again.
        let resident = core.pages().known_pages().saturating_sub(core.swapped_pages());
        let free = u64::from(core.swap_cache().free_frames());
        let slot = self.member.slot();
        let anon = slot.resident.anon_pages.load(Relaxed);
        (anon + slot.resident.kernel_swapped_pages.load(Relaxed)).saturating_sub(resident + free).min(anon)
    }
}
