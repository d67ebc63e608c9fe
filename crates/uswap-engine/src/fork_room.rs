//! Room for a child: the process and others make room before for what it works in, beside what it has in common with its parent.

use std::sync::atomic::Ordering::Relaxed;

use uswap_core::budget::{Usage, Watermarks};
use uswap_core::tuning;

use crate::monitor::Monitor;
use crate::staffed::Staffed;

impl<H: Staffed> Monitor<H> {
    /// What a child has of its parent counts once, and it copies what it changes where there is room. So this process keeps nearly all,
    /// but for what a child works in; and what is going to be in common is no more than may stay. The others of the group give
    /// way to the child, too. Where they have not that much, the fork waits until some have ended.
    pub(crate) fn make_room_for_child(&mut self) {
        let usage = self.usage();
        let (target, promised) = self.room_for_child(&usage);
        if promised < tuning::PROMISE_MIN {
            return;
        }
        self.shrink_for_child(usage.mine, target);
        let mut wait = self.fork_patience.wait(H::now());
        loop {
            self.promise(promised);
            let usage = self.usage();
            let to_come = self.still_to_come();
            if !wait.goes_on(&usage, to_come, H::now()) {
                return self.fork_patience.waited(&wait, usage.total + to_come <= usage.limit);
            }
            // What others have may have grown a little since, or a pool was too large then: that much this process makes room for at once.
            let (target, _) = self.room_for_child(&usage);
            let lacks_little = usage.total + to_come <= usage.limit + usage.limit / 32;
            if lacks_little {
                self.shrink_for_child(usage.mine, target);
            }
            H::sleep(tuning::ROOM_LOOK);
            self.end_with_others();
        }
    }

    /// Pages that this process keeps when it forks, beside those that it has in common with others already, and pages that the child
    /// will have beside those that it has of this one.
    fn room_for_child(&self, usage: &Usage) -> (u64, u64) {
        let slot = self.member().slot();
        let shared = slot.resident.shmem_pages.load(Relaxed);
        // Neither can do with less, and reclaim would try in vain.
        let least = match self.engine() {
            Some(engine) => self.fixed_pages() + engine.content.pool_pages() + tuning::CHILD_WORKS_IN,
            None => 0,
        };
        let target = usage.before_fork(slot.wants.promised_pages.load(Relaxed));
        let target = if usage.mine > target {
            // There will be more children, and what they have in common cannot be given back then.
            let limit = self.member().group.limit_of_living_pages();
            let in_common = tuning::in_common_at_first(limit, self.all_work_in(), self.fixed_of_all());
            target.min(in_common.saturating_sub(self.in_common_of_all()) + shared)
        } else {
            target
        };
        let target = target.max(least);
        (target, usage.for_child().min(slot.resident.anon_pages.load(Relaxed)))
    }

    /// Whether a fork needs nothing from the monitor.
    pub(crate) fn forks_are_trivial(&self, usage: &Usage) -> bool {
        self.engine().is_none() && !H::shared_forks_are_followed() && self.room_for_child(usage).1 < tuning::PROMISE_MIN
    }

    /// Reclaims until this process, which uses `mine` pages, uses at most `target`. Its other threads go on and bring pages back; when they are
    /// as fast as reclaim is, the fork goes on all the same: beyond the budget for a moment is better than never.
    fn shrink_for_child(&mut self, mine: u64, target: u64) {
        if mine <= target || !self.ready() {
            return;
        }
        let engine = self.engine().expect("it is ready");
        // Handlers stop a little earlier than asked, so that both do not chase the last pages.
        let stop = target - target / 32;
        let marks = Watermarks { low: stop, high: stop, limit: stop };
        let (mut least, mut since) = (u64::MAX, H::now());
        self.reclaim_while(engine, |usage| {
            if usage.mine < least.saturating_sub(usage.limit / 256) {
                (least, since) = (usage.mine, H::now());
            }
            (usage.mine > target && H::since(since) < tuning::SHRINK_PATIENCE).then_some(marks)
        });
        // That a child needs more says nothing of what this process can have.
        self.fruitless = false;
    }
}
