//! Births: what forked children will have, before they count it themselves.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use uswap_core::{newborn, tuning};
use uswap_system::looks::Footprint;

use super::Monitor;
use crate::group::Family;
use crate::host::Host;
use crate::staffed::Staffed;

/// What this process has promised, and when it was born itself.
pub(super) struct Births {
    /// When a child was last promised memory.
    promised: Option<Instant>,
    born: Instant,
    is_newborn: bool,
}

impl Births {
    pub fn new<H: Host>() -> Births {
        Births { promised: None, born: H::now(), is_newborn: true }
    }

    /// Whether a child has been promised memory that it does not count yet.
    pub fn promises(&self) -> bool {
        self.promised.is_some()
    }
}

impl<H: Staffed> Monitor<H> {
    /// A child that is about to be forked will have `pages`. Ends by itself, for the child counts what it has.
    pub(crate) fn promise(&mut self, pages: u64) {
        self.share.births.promised = (pages > 0).then(H::now);
        self.member().slot().wants.promised_pages.store(pages, Relaxed);
    }

    pub(super) fn end_promise(&mut self) {
        let Some(since) = self.share.births.promised else { return };
        let is_kept = H::since(since) > tuning::PROMISE_KEPT && self.member().slot().forks_in_flight() == 0;
        if is_kept || H::since(since) > tuning::PROMISE_ENDS {
            self.promise(0);
        }
    }

    /// Says what is still to come of this process, if it has just been forked.
    pub(super) fn tell_what_is_to_come(&mut self, family: &Family) {
        let Births { born, is_newborn, .. } = self.share.births;
        if !is_newborn {
            return;
        }
        let (group, index, slot) = (self.member().group, self.member().index, self.member().slot());
        let swaps = H::notices().has_engine() || self.engine().is_some();
        let still = group.living_parent(slot).filter(|_| swaps).map_or(0, |parent| {
            let lived_ms = H::since(born).as_millis() as u64;
            let processor_us = H::Footprint::processor_time().ok().map(|time| time.as_micros() as u64);
            let has = family.private_pages(group, index, slot);
            newborn::still_to_come(family.children_need(group, parent), has, lived_ms, processor_us)
        });
        self.share.births.is_newborn = still > 0;
        slot.wants.coming_pages.store(still, Relaxed);
    }

    /// Pages that are still to come of children of this group, beside what this process has promised.
    pub(crate) fn still_to_come(&self) -> u64 {
        let (group, slot) = (self.member().group, self.member().slot());
        let coming = group.processes().map(|(_, slot)| slot.wants.coming_pages.load(Relaxed)).sum::<u64>();
        let in_flight = slot.forks_in_flight();
        if in_flight == 0 {
            return coming;
        }
        coming + u64::from(in_flight) * group.family().children_need(group, self.member().holder())
    }
}
