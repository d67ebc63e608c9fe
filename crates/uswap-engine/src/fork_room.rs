//! Room for a child: both sides of a fork count the pages that they share, so the process and others make room before.

use std::sync::atomic::Ordering::Relaxed;

use uswap_core::budget::{Usage, Watermarks};
use uswap_core::tuning;

use crate::engine::Engine;
use crate::monitor::Monitor;
use crate::staffed::Staffed;

impl<H: Staffed> Monitor<H> {
    /// Both sides of a fork count the pages that they share, so this process shrinks to the half of its share first, and
    /// the others of the group give way to what the child will have. Where they have not that much, the fork waits until
    /// some have ended.
    pub(crate) fn make_room_for_child(&mut self) {
        let usage = self.usage();
        let (target, promised) = self.room_for_child(&usage);
        if promised < tuning::PROMISE_MIN {
            return;
        }
        if usage.mine > target && self.ready() {
            let engine = self.engine().expect("it is ready");
            self.shrink_for_child(engine, target);
        }
        let mut wait = self.fork_patience.wait(H::now());
        loop {
            self.promise(promised);
            let usage = self.usage();
            if !wait.goes_on(&usage, H::now()) {
                return self.fork_patience.waited(&wait, usage.total <= usage.limit);
            }
            H::sleep(tuning::ROOM_LOOK);
            self.end_with_others();
        }
    }

    /// Pages that this process keeps when it forks, and pages that the child will have.
    fn room_for_child(&self, usage: &Usage) -> (u64, u64) {
        let slot = self.member().slot();
        let shared = slot.resident.shmem_pages.load(Relaxed);
        // Neither can do with less, and reclaim would try in vain.
        let least = match self.engine() {
            Some(engine) => slot.fixed_pages() + engine.content.pool_pages() + tuning::CHILD_WORKS_IN,
            None => 0,
        };
        let target = usage.before_fork(shared).max(least);
        (target, usage.mine.min(target).saturating_sub(shared))
    }

    /// Whether a fork needs nothing from the monitor.
    pub(crate) fn forks_are_trivial(&self, usage: &Usage) -> bool {
        self.engine().is_none() && self.room_for_child(usage).1 < tuning::PROMISE_MIN
    }

    /// Reclaims until this process uses at most `target` pages. Its other threads go on and bring pages back; when they are
    /// as fast as reclaim is, the fork goes on all the same: beyond the budget for a moment is better than never.
    fn shrink_for_child(&mut self, engine: &Engine<H>, target: u64) {
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
