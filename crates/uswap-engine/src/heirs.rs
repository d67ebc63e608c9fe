//! Heirs: children that may read what this process had when it forked. And what this one is an heir of.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::{AreaId, EntryId, Location};

use crate::engine::Engine;
use crate::group::Holder;
use crate::host::Host;
use crate::ledger::{Ledger, heirs_hold, tell_heirs};
use crate::worker::{RELEASED_KEPT, Worker};

impl<H: Host> Engine<H> {
    /// The content of `entry` is in a slot as well as in the pool: whether it may leave the pool, which all who may read it know by then.
    pub(crate) fn heirs_are_told(&self, heirs: &[Ledger], entry: EntryId, area: AreaId, slot: u64) -> bool {
        let leaves = self.content.areas.leaving().any(|leaving| leaving.id == area);
        if leaves && heirs_hold(heirs, entry) && !is_on(Sabotage::ToldOfLeavingArea) {
            return false;
        }
        tell_heirs(heirs, entry, Location::Slot { area, slot });
        true
    }

    /// From here on nobody is told that content has gone to an area that was to become empty when so much had been `announced`.
    pub(crate) fn hear(&self, announced: u32) {
        let heard = &self.member.slot().called.heard;
        if heard.load(Relaxed) != announced {
            let _nobody_is_being_told = self.content.heirs.lock();
            heard.store(announced, Release);
        }
    }

    /// Whether all ancestors have heard what was `announced`; then the books say what these have told until then.
    pub(crate) fn follow_ancestors(&self, announced: u32) -> bool {
        let ancestors = &self.content.ancestors;
        let group = self.member.group;
        let has_heard = |owner: Holder| group.process(owner.index).called.heard.load(Acquire) == announced;
        if !ancestors.iter().all(|ancestor| has_heard(ancestor.owner) || !group.has(ancestor.owner)) {
            return false;
        }
        self.core().follow_ancestors(|epoch, entry| ancestors.get(epoch.0 as usize)?.ledger.moved(entry));
        true
    }

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
