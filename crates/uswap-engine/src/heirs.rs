//! Heirs: children that may read what this process had when it forked.

use uswap_core::{AreaId, Location};

use crate::engine::Engine;
use crate::host::Host;
use crate::ledger::heirs_hold;
use crate::worker::{RELEASED_KEPT, Worker};

impl<H: Host> Engine<H> {
    /// Frees what was kept for children that need it no more.
    pub(crate) fn settle_heirs(&self, worker: &mut Worker) {
        let mut heirs = self.content.heirs.lock();
        if heirs.is_empty() {
            return;
        }
        let known = self.member.group.heirs_of(self.member.index);
        let mut index = 0;
        while index < heirs.len() {
            if heirs[index].is_alive(known, |holder| self.member.group.has(holder)) {
                index += 1;
            } else {
                heirs.swap_remove(index).discard();
            }
        }
        let areas = self.content.areas.leaving().map(|area| area.id);
        let left: Vec<AreaId> =
            areas.filter(|area| self.member.group.heirs_have_left(self.member.index, area.0 as usize)).collect();
        // A fork of a holder that is under way, known to the supervisor or not, may bring one more.
        let is_settled = heirs.iter().all(|ledger| !ledger.is_pending());
        let have_left =
            |location| is_settled && matches!(location, Location::Slot { area, .. } if left.contains(&area));
        let mut core = self.core();
        if heirs.is_empty() {
            core.no_heirs();
        }
        core.bury_unheld(|entry, location| {
            if have_left(location) {
                // Its number is another entry's soon.
                heirs.iter().for_each(|ledger| ledger.forget(entry));
            }
            heirs_hold(&heirs, entry)
        });
        core.take_released(&mut worker.released);
        drop(core);
        drop(heirs);
        self.content.release(&mut worker.released);
        // A child that ends may let go of very many.
        worker.released.shrink_to(RELEASED_KEPT);
    }
}
