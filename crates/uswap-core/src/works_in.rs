//! What a process works in: how much of its own it gets beside what processes have in common after forks.
//!
//! A page that is in common serves all who have it, and each would have to store it, so it goes after what a process has alone. But where
//! that is what the program works in, and what is in common is seldom touched (a server's data, of which each request reads a little), a
//! process would bring in and move out the same few pages without an end. So each begins with a little ([`tuning::works_in`]), and where its
//! pages come back so early that its part of what is in common would have kept them, it says that it works in more: twice as much each time until
//! it is what does for most ([`tuning::mostly_works_in`]), then a little more. Less may stay in common then. One that goes through more than it could ever have, again and again, is not helped by that:
//! its pages come back late. Nor is one whose data come back early: that a program works in so much is not believed.

use crate::tuning;
use crate::workingset::Returns;

/// Of fewer processes each would get so much that it is no longer what it works in: two forked readers of a table in CRuby took 109 s at half of
/// their peak instead of 99 (one run each).
const PROCESSES_MIN: u64 = 4;
/// How long evidence is gathered before it is judged.
const INTERVAL_MS: u64 = 100;
/// A page that comes back, and another that leaves for it, cost as much as to store so many.
const STORES: u64 = 8;
/// So many pages that came back are enough to judge by, at the least.
const ENOUGH_MIN: u64 = 128;
/// Beyond what does for most it grows by one part in so many each time, and sinks so in each interval in which fewer than [`FEW`] came back early.
const GROWS_BY: u64 = 8;
const SINKS_BY: u64 = 64;
const FEW: u64 = 16;
/// It works in so many times what does for most at the most: two forked readers of a table in CRuby, each with 60 MiB of its own, took
/// a quarter longer where they got all that they seemed to work in.
const TIMES_MAX: u64 = 3;

/// See the file's head.
#[derive(Debug, Default)]
pub struct WorksIn {
    /// Beyond what each begins with.
    more: u64,
    judged: Returns,
    seen: Returns,
    begun_ms: Option<u64>,
}

impl WorksIn {
    /// Judges anew where it may have changed, of a budget of `limit` pages for so many `processes`, by what has come back. `now_ms` may begin
    /// anywhere. Returns what the process works in, in pages.
    pub fn update(&mut self, limit: u64, processes: u64, now_ms: u64, returns: impl FnOnce() -> Returns) -> u64 {
        if processes < PROCESSES_MIN {
            *self = WorksIn::default();
        } else if self.begun_ms.is_none_or(|begun_ms| now_ms.saturating_sub(begun_ms) >= INTERVAL_MS) {
            let is_first = self.begun_ms.replace(now_ms).is_none();
            let returns = returns();
            match is_first {
                true => (self.judged, self.seen) = (returns, returns),
                false => self.judge(limit, processes, returns),
            }
        }
        tuning::works_in(limit) + self.more
    }

    /// What is in common is stored by each who lets it go. So before more of it has to, what came back early has cost as much.
    fn judge(&mut self, limit: u64, processes: u64, returns: Returns) {
        let (least, mostly) = (tuning::works_in(limit), tuning::mostly_works_in(limit));
        let since = returns.since(self.judged);
        let works_in = least + self.more;
        let step = if works_in < mostly { works_in.min(mostly - works_in) } else { works_in / GROWS_BY };
        let enough = (step * processes / STORES).max(ENOUGH_MIN);
        let is_early = 2 * since.early >= since.all;
        if is_early && since.early >= enough {
            self.more = (self.more + step).min(TIMES_MAX * mostly - least);
            self.judged = returns;
        } else if !is_early && since.all >= enough {
            self.judged = returns;
        }
        if returns.since(self.seen).early < FEW {
            self.more -= self.more.div_ceil(SINKS_BY);
        }
        self.seen = returns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 52480;

    /// So many pages come back in each of so many intervals, and so many of them early. What it works in at the end.
    fn go_on(works_in: &mut WorksIn, intervals: u64, early: u64, all: u64) -> u64 {
        let (begun, then) = (works_in.begun_ms.unwrap_or(0), works_in.seen);
        let at = |interval| Returns { early: then.early + interval * early, all: then.all + interval * all };
        (0..=intervals)
            .map(|interval| works_in.update(LIMIT, 4, begun + interval * INTERVAL_MS, || at(interval)))
            .last()
            .unwrap()
    }

    #[test]
    fn whose_pages_come_back_early_gets_more() {
        let mut works_in = WorksIn::default();
        assert_eq!(go_on(&mut works_in, 0, 0, 0), tuning::works_in(LIMIT));
        assert_eq!([1, 2, 1].map(|intervals| go_on(&mut works_in, intervals, 256, 300)), [1024, 2048, 2048 + 256]);
        let later = go_on(&mut works_in, 20, 256, 300);
        assert!(later > 4096, "{later}");
        assert_eq!(go_on(&mut works_in, 100, 256, 300), 3 * 2048);
    }

    #[test]
    fn few_are_judged_when_they_have_cost_as_much_as_to_store_what_is_in_common() {
        let mut works_in = WorksIn::default();
        assert_eq!(go_on(&mut works_in, 12, 20, 25), 512);
        assert_eq!(go_on(&mut works_in, 1, 20, 25), 1024);
    }

    #[test]
    fn who_goes_through_more_than_it_could_have_gets_none() {
        let mut works_in = WorksIn::default();
        assert_eq!(go_on(&mut works_in, 50, 400, 1000), 512);
    }

    #[test]
    fn what_nobody_misses_is_given_back_little_by_little() {
        let mut works_in = WorksIn::default();
        let most = go_on(&mut works_in, 10, 256, 256);
        let later = go_on(&mut works_in, 20, 10, 10);
        assert!(later < most && later > 512 + (most - 512) / 2, "{later} of {most}");
        assert_eq!(go_on(&mut works_in, 1000, 0, 0), 512);
    }

    #[test]
    fn few_processes_work_in_no_more() {
        let mut works_in = WorksIn::default();
        assert!(go_on(&mut works_in, 10, 256, 256) > 2048);
        assert_eq!(works_in.update(LIMIT, 3, 0, || unreachable!()), 512);
        assert_eq!(go_on(&mut works_in, 0, 0, 0), 512);
    }
}
