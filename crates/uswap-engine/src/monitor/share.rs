//! The process's share of the budget: what it has, what all have, and what follows for this one.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use uswap_core::budget::{Claim, Usage};
use uswap_core::floor::{Evidence, Floor};
use uswap_core::{PAGE_SIZE, tuning};

use super::Monitor;
use crate::group::Counter;
use crate::host::Host;
use crate::scale::{Growth, Scale};
use crate::staffed::Staffed;

/// What the share follows from, beside what is looked at each time.
pub(super) struct Share<H: Host> {
    scale: Scale<H>,
    claim: Claim,
    floor: Floor,
    pub growth: Growth,
    started: Instant,
    /// When a child was last promised memory.
    promised: Option<Instant>,
}

impl<H: Host> Share<H> {
    pub fn new() -> io::Result<Self> {
        Ok(Share {
            scale: Scale::new()?,
            claim: Claim::default(),
            floor: Floor::default(),
            growth: Growth::default(),
            started: H::now(),
            promised: None,
        })
    }

    /// The program's first thread has ended.
    pub fn main_has_ended(&self) -> bool {
        self.scale.main_has_ended()
    }
}

impl<H: Staffed> Monitor<H> {
    /// This process's use of the group's memory.
    pub(crate) fn usage(&mut self) -> Usage {
        let group = self.member().group;
        let slot = self.member().slot();
        let mine_index = self.member().index;
        let processes = group.processes().count() as u64;
        let mine = self.share.scale.weigh(group, slot, self.engine(), processes);
        self.end_promise();
        let (mut total, mut processes, mut claims, mut fixed) = (0, 0, 0, 0);
        for (index, other) in group.processes() {
            if index != mine_index {
                claims += other.wants.claimed_pages.load(Relaxed);
            }
            fixed += other.fixed_pages();
            for pages in [other.usage_pages(), other.wants.promised_pages.load(Relaxed)] {
                total += pages;
                processes += u64::from(pages > 0);
            }
        }
        // Seen here at every moment that counts; the supervisor looks only now and then.
        group.note_resident_bytes(group.resident_pages_at_least() * PAGE_SIZE as u64);
        let limit = group.limit_pages();
        let now_ms = H::since(self.share.started).as_millis() as u64;
        let unseen = self.share.growth.unseen();
        let mut usage = Usage {
            limit,
            total,
            mine,
            processes,
            claims,
            held_at: None,
            unseen,
            least: 0,
            gap_min: group.config().gap_min_pages.into(),
        };
        usage.least = self.least(&usage, fixed, now_ms);
        let claimed = self.share.claim.update(&usage, now_ms);
        usage.held_at = self.share.claim.held_at(&usage, now_ms);
        self.member().slot().wants.claimed_pages.store(claimed, Relaxed);
        usage
    }

    /// What this process keeps in any case, because `fixed` pages of all processes cannot be swapped; 0 if nothing.
    fn least(&mut self, usage: &Usage, fixed: u64, now_ms: u64) -> u64 {
        let Some(engine) = self.engine() else { return 0 };
        let slot = self.member().slot();
        let own = slot.fixed_pages();
        let came_back = slot.tally.get(Counter::Pswpin) + slot.tally.get(Counter::SwapCacheHit);
        let evidence = Evidence {
            limit: usage.limit,
            processes: usage.processes,
            fixed_of_all: fixed,
            swappable: usage.mine.saturating_sub(own),
            came_back,
        };
        self.share.floor.update(&evidence, now_ms);
        let kept = self.share.floor.pages();
        slot.wants.floor_pages.store(kept, Relaxed);
        if kept == 0 { 0 } else { own + engine.content.pool_pages() + kept }
    }

    /// A child that is about to be forked will have `pages`. Ends by itself, for the child counts what it has.
    pub(crate) fn promise(&mut self, pages: u64) {
        self.share.promised = (pages > 0).then(H::now);
        self.member().slot().wants.promised_pages.store(pages, Relaxed);
    }

    fn end_promise(&mut self) {
        let Some(since) = self.share.promised else { return };
        let is_kept = H::since(since) > tuning::PROMISE_KEPT && self.member().slot().forks_in_flight() == 0;
        if is_kept || H::since(since) > tuning::PROMISE_ENDS {
            self.promise(0);
        }
    }
}
