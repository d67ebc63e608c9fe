//! A process ends: it is done, it is killed, or there is no memory for it.

use uswap_linux::swapped_memory::Pte;
use uswap_linux::try_to_unuse::SwapoffBooks;

use super::{Run, Sabotage};

impl Run<'_> {
    /// All that the process has is let go; a page that is being written keeps its slot until that is over.
    pub(super) fn exit(&mut self, process: usize) {
        self.processes[process].has_ended = true;
        let first = process as u64 * self.pages_each;
        for id in first..first + self.pages_each {
            self.unmap(process, id as u32);
        }
    }

    fn unmap(&mut self, process: usize, id: u32) {
        let (cgroup, place) = (self.processes[process].cgroup, self.place(id));
        self.cgroups[cgroup].policy.forget(id);
        let Pte::Swapped(entry) = self.memory.pte(place) else { return };
        if self.sabotages(Sabotage::KeepSlot, true) {
            return;
        }
        self.memory.map(place, false);
        if self.cgroups[cgroup].take_ahead(entry).is_some() {
            self.rules.dropped(entry.slot);
            self.memory.drop_from_cache(entry);
        }
        self.settle(entry);
    }
}
