//! Reclaim, as long as something is left to reclaim and the process has more than it shall have.

use std::time::{Duration, Instant};

use uswap_core::budget::{Usage, Watermarks};
use uswap_core::{PageRange, tuning};
use uswap_system::Advice;
use uswap_system::faults::Call;
use uswap_system::looks::Residency;

use super::Monitor;
use crate::adopt::Look;
use crate::engine::Engine;
use crate::host::Host;
use crate::scale::Spurt;
use crate::staff::Progress;
use crate::staffed::Staffed;

/// What the rounds of one reclaim have come to so far.
#[derive(Default)]
struct Rounds {
    /// Those since the last one that achieved something.
    fruitless: u32,
    /// Those since then in which sharing was broken, at most.
    only_broken: u32,
    /// The last one met pages that a fork shares.
    shared: bool,
    spurt: Spurt,
    /// What the writer has done.
    written: u64,
}

/// What a round came to.
enum Outcome {
    /// The next one may achieve more.
    Achieved,
    /// The writer achieves something, and is to be waited for.
    Written,
    /// Nothing is left to reclaim.
    Nothing,
}

impl Rounds {
    /// A round has ended, in which so many pages are shared no more.
    fn outcome<H: Host>(&mut self, engine: &Engine<H>, has_achieved: bool, broken: u64) -> Outcome {
        if has_achieved {
            (self.fruitless, self.only_broken) = (0, 0);
            engine.pressure.is_fruitful();
            return Outcome::Achieved;
        }
        match engine.staff.writer.progress(&mut self.written) {
            Progress::Made => {
                (self.fruitless, self.only_broken) = (0, 0);
                engine.pressure.is_fruitful();
                return Outcome::Written;
            }
            Progress::Awaited if broken == 0 && !engine.pressure.is_hopeless() => {
                engine.pressure.is_fruitful();
                return Outcome::Written;
            }
            Progress::Awaited | Progress::None => {}
        }
        // What is shared no more can be moved in the next round, unless something else holds it.
        self.only_broken += 1;
        if broken > 0 && self.only_broken < tuning::ONLY_BROKEN_MAX {
            return Outcome::Achieved;
        }
        self.fruitless += 1;
        let is_over = self.fruitless > tuning::FRUITLESS_ROUNDS || engine.pressure.is_hopeless();
        if is_over { Outcome::Nothing } else { Outcome::Achieved }
    }
}

/// When all blocks that were put aside are looked at again.
pub(super) struct AsideLooks {
    last: Instant,
    every: Duration,
    /// So many were aside then, and the run had so many processes.
    blocks: usize,
    processes: usize,
}

impl AsideLooks {
    pub fn new(now: Instant) -> Self {
        AsideLooks { last: now, every: tuning::LOOK_AT_ASIDE_EVERY, blocks: 0, processes: 0 }
    }

    /// Whether it is time, in a run of so many `processes`: what one that ends had in common with this one may be this one's alone.
    fn are_due(&self, now: Instant, processes: usize) -> bool {
        let every = if processes < self.processes { tuning::LOOK_AT_ASIDE_EVERY } else { self.every };
        now.saturating_duration_since(self.last) > every
    }

    /// They are looked at, `blocks` of them: half as often from now on, if most of what was looked at the last time is aside again.
    fn begin(&mut self, now: Instant, blocks: usize, processes: usize) {
        let is_in_vain = self.blocks > 0 && blocks >= self.blocks - self.blocks / 8;
        let most = if is_in_vain { tuning::LOOK_AT_ASIDE_AT_LEAST_EVERY } else { tuning::LOOK_AT_ASIDE_EVERY };
        *self = AsideLooks { last: now, every: (2 * self.every).min(most), blocks, processes };
    }
}

impl<H: Staffed> Monitor<H> {
    /// Reclaims down to the low watermark, or until nothing more can be had. Others may give up memory meanwhile, or turn out to
    /// share it: then there is more room than at the start, and what the program works in comes back as fast as it leaves.
    pub(crate) fn reclaim(&mut self, mut marks: Watermarks) {
        if !self.ready() {
            return;
        }
        let engine = self.engine().expect("started above");
        let fork = &self.post.fork;
        engine.pressure.monitor_reclaims();
        let mut set = H::now();
        self.reclaim_while(engine, |usage| {
            // Not at each round: several that see the same room would all stop for it.
            if H::since(set) > tuning::GOAL_STAYS {
                (marks, set) = (usage.watermarks(), H::now());
            }
            // A program whose threads bring pages back as fast as they leave would keep the fork waiting for ever.
            (usage.mine > marks.low.max(usage.least) && !fork.is_requested()).then(|| usage.watermarks())
        });
    }

    /// Reclaims for as long as `goal` has watermarks for the handlers, and something is left to reclaim.
    pub(crate) fn reclaim_while(&mut self, engine: &Engine<H>, mut goal: impl FnMut(&Usage) -> Option<Watermarks>) {
        let mut rounds = Rounds::default();
        let _ = engine.staff.writer.progress(&mut rounds.written);
        self.fruitless = false;
        loop {
            let begun = H::now();
            let usage = self.usage();
            let Some(marks) = goal(&usage) else {
                return self.set_meter(&usage, &usage.watermarks());
            };
            let posted = self.post.wake.load();
            self.make_mappings_whole();
            self.share_memory();
            self.judge_pool();
            self.set_meter(&usage, &marks);
            self.look_after_the_rest();
            let urgent = usage.mine > marks.limit;
            let grows = rounds.spurt.is_on(usage.mine, begun) && urgent && engine.staff.writer.is_getting_on();
            // Only the monitor ends the sharing of a fork; others would look at the same pages in vain.
            if urgent && !rounds.shared {
                engine.pressure.call.make();
            }
            self.look_for_more(urgent, &mut rounds);
            let round = engine.reclaim_round(self.worker(), urgent);
            let broken = self.break_sharing(engine);
            rounds.shared = broken > 0;
            match rounds.outcome(engine, round.achieved_something(), broken) {
                Outcome::Achieved => {}
                Outcome::Written => self.await_writer(posted, grows.then(|| H::since(begun))),
                Outcome::Nothing => {
                    self.fruitless = true;
                    return;
                }
            }
        }
    }

    /// Before a round: adopts what is new, and looks at some of what was adopted.
    fn look_for_more(&mut self, urgent: bool, rounds: &mut Rounds) {
        let look = if rounds.fruitless > 1 { self.look_at_all_in_time() } else { Look::New };
        self.adopt(look, urgent);
        // Little at a time, so that reclaim goes on meanwhile.
        if self.look_up(1) > 0 {
            rounds.fruitless = 0;
        }
    }

    /// Looking at everything takes long and keeps handlers waiting: not each time.
    pub(super) fn look_at_all_in_time(&mut self) -> Look {
        // At once where what was left alone as just discarded may be found now.
        let every = if self.looks.discards_aged > self.looks.all { Duration::ZERO } else { tuning::LOOK_AT_ALL_EVERY };
        // Under a floor, one part in eight of the time at most.
        if H::since(self.looks.all) <= every.max(8 * self.looks.all_took) {
            return Look::New;
        }
        self.looks.all = H::now();
        let processes = self.member().group.processes().count();
        if let Some(engine) = self.engine()
            && self.looks.aside.are_due(self.looks.all, processes)
        {
            let mut core = engine.core();
            self.looks.aside.begin(self.looks.all, core.blocks_aside(), processes);
            core.take_back_aside();
        }
        Look::All
    }

    /// `posted`: what was posted before the round that found nothing to do here. `took`: how long that took, if the program
    /// grows past the limit meanwhile.
    pub(super) fn await_writer(&self, posted: u32, took: Option<Duration>) {
        let _ = self.post.wake.wait(posted, Some(tuning::rest_for_writer(took)));
    }

    /// Pages that are shared after a fork cannot be moved. A write access that changes nothing makes each this process's
    /// own. What others really have as well stays, where it may: to copy and store it frees nothing before all have let it go.
    /// Returns how many.
    pub(super) fn break_sharing(&mut self, engine: &Engine<H>) -> u64 {
        let (mut broken, mut copied) = (0, 0);
        engine.core().take_refused(&mut self.worker().reclaiming.busy);
        while let Some(page) = self.worker().reclaiming.busy.pop() {
            let mut range = PageRange { start: page, pages: 1 };
            while range.pages < tuning::COPIED_AT_ONCE
                && self.worker().reclaiming.busy.last().is_some_and(|&next| next.0 + 1 == range.start.0)
            {
                range.start = self.worker().reclaiming.busy.pop().expect("looked at above");
                range.pages += 1;
            }
            // Where nobody can tell, each may be this process's alone.
            let (start, end) = (range.start.address(), range.end().address());
            let in_common = engine.memory.pagemap.in_common(start, end).unwrap_or(0);
            let stays = in_common == range.pages && self.in_common_may_stay();
            // What has left meanwhile would be brought in only to leave again.
            let is_there = engine.memory.has_populated(start, end);
            // A copy takes memory until it has left.
            if stays || !is_there || copied + in_common > tuning::COPIED_AT_ONCE {
                continue;
            }
            copied += in_common;
            if !engine.core().reclaim_soon(range) {
                // The access changed nothing the last time: a device may have them.
                continue;
            }
            engine.let_write_to(range);
            // The kernel answers with an error where the memory is gone or read-only. No lock is held here that a handler
            // needs: the pages may be missing by now. And no handler waits for this thread before it serves them.
            engine.pressure.monitor_asks(true);
            let _ = H::advise(start, end - start, Advice::PopulateWrite);
            engine.pressure.monitor_asks(false);
            broken += range.pages;
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_aside_is_looked_at_more_rarely_where_that_is_in_vain() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut looks = AsideLooks::new(begun);
        let mut at = Vec::new();
        for second in 0..40 {
            if looks.are_due(after(second), 3) {
                looks.begin(after(second), 1000, 3);
                at.push(second);
            }
        }
        assert_eq!(at, [2, 4, 7, 12, 21, 30, 39]);
        // Most of it has left, or another process has ended.
        assert!(!looks.are_due(after(41), 3) && looks.are_due(after(41), 2));
        looks.begin(after(41), 100, 3);
        assert!(looks.are_due(after(43), 3));
    }
}
