//! This process's part in a census of all that have private pages in common: [`uswap_core::census`] says why.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_core::census::{Mark, Part, entry};
use uswap_core::in_common::Between;
use uswap_system::looks::Footprint;

use crate::group::{Group, ProcessSlot};
use crate::host::Host;

/// Looking takes at most one part in so many of a CPU.
const LOOK_COST: u32 = 16;

/// See the file's head.
pub(crate) struct Census<H> {
    part: Part,
    looked: Option<Instant>,
    /// CPU time of the last look.
    took: Duration,
    host: PhantomData<H>,
}

/// What was seen for a census.
pub(crate) struct Look {
    census: u64,
    mark: Mark,
    share: u64,
    /// What it had told to have before.
    had: u64,
}

impl<H: Host> Census<H> {
    pub fn new() -> Census<H> {
        Census { part: Part::default(), looked: None, took: Duration::ZERO, host: PhantomData }
    }

    /// Looks what the process has, if a census asks for that. Within a look at its size, before that is asked for.
    pub fn look(&mut self, slot: &ProcessSlot) -> Option<Look> {
        let (census, mark) = self.part.due()?;
        if self.looked.is_some_and(|looked| H::since(looked) < self.took * LOOK_COST) {
            return None;
        }
        self.looked = Some(H::now());
        self.part.entered();
        let begun = H::cpu_time();
        let share = H::Footprint::share_of_private();
        self.took = H::cpu_time().saturating_sub(begun);
        Some(Look { census, mark, share: share.ok()?, had: slot.resident.anon_pages.load(Relaxed) })
    }

    /// The process has told that it has `private` pages and has had so many `changes`, and what else that look has seen. `None`: nobody knows
    /// how many changes.
    pub fn told(
        &mut self,
        group: &Group,
        slot: &ProcessSlot,
        private: u64,
        changes: Option<Between>,
        look: Option<Look>,
    ) {
        let Some(changes) = changes else { return self.part.told(None, group.census()) };
        if let Some(Look { census, mark, share, had }) = look {
            // What has left since the share was asked for is in that.
            let resident = private.max(had);
            group.enter(slot, census, mark.kin, entry(share, &mark, changes, private), (share, resident));
        }
        self.part.told(Some(group.mark(slot, changes.least)), group.census());
    }
}
