//! How long a fork waits for room: until there is some, or nobody makes any.
//!
//! Each child brings tables and threads of uswap's along, and works in some memory of its own. A program that forks faster
//! than its children end would fill the budget with what cannot be swapped, until none of them gets on. So a fork waits as
//! long as others give way or end. Where they do not, because children stay, it waits for less each time: the tree is
//! beyond its budget then, and no fork waits without bound.

use std::time::{Duration, Instant};

use uswap_core::budget::Usage;
use uswap_core::tuning;

/// What the forks of one process have learnt.
pub(crate) struct ForkPatience {
    patience: Duration,
}

/// One fork that waits.
pub(crate) struct ForkWait {
    patience: Duration,
    begun: Instant,
    /// The least that all had, and the fewest processes, since this fork waits.
    least: u64,
    fewest: u64,
    since: Instant,
    /// Somebody gave way or ended.
    is_worth_it: bool,
}

impl ForkPatience {
    pub fn new() -> ForkPatience {
        ForkPatience { patience: tuning::FORK_PATIENCE }
    }

    /// A fork begins to wait.
    pub fn wait(&self, now: Instant) -> ForkWait {
        let (least, fewest) = (u64::MAX, u64::MAX);
        ForkWait { patience: self.patience, begun: now, least, fewest, since: now, is_worth_it: false }
    }

    /// A fork has waited, and there is room or not.
    pub fn waited(&mut self, wait: &ForkWait, has_room: bool) {
        let in_vain = !has_room && !wait.is_worth_it;
        self.patience =
            if in_vain { (self.patience / 2).max(tuning::FORK_PATIENCE_MIN) } else { tuning::FORK_PATIENCE };
    }
}

impl ForkWait {
    /// Whether it waits any longer, where so many pages are still `to_come` of earlier children.
    pub fn goes_on(&mut self, usage: &Usage, to_come: u64, now: Instant) -> bool {
        if usage.total + to_come <= usage.limit {
            return false;
        }
        if usage.total < self.least.saturating_sub(usage.limit / 256) || usage.processes < self.fewest {
            self.is_worth_it |= self.least < u64::MAX;
            (self.least, self.since) = (usage.total, now);
        }
        self.fewest = self.fewest.min(usage.processes);
        now.duration_since(self.since) < self.patience && now.duration_since(self.begun) < tuning::FORK_LONGEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 25600;

    fn usage(total: u64, processes: u64) -> Usage {
        Usage { limit: LIMIT, total, processes, ..Usage::default() }
    }

    /// Milliseconds that a fork waits where `total` says what all have after so many milliseconds.
    fn waits(patience: &mut ForkPatience, usage_after: impl Fn(u64) -> Usage) -> u64 {
        let begun = Instant::now();
        let mut wait = patience.wait(begun);
        let ms = (0..).find(|ms| !wait.goes_on(&usage_after(*ms), 0, begun + Duration::from_millis(*ms))).unwrap();
        patience.waited(&wait, usage_after(ms).total <= LIMIT);
        ms
    }

    #[test]
    fn a_fork_with_room_does_not_wait() {
        assert_eq!(waits(&mut ForkPatience::new(), |_| usage(LIMIT, 9)), 0);
    }

    #[test]
    fn a_fork_waits_while_others_end() {
        let patience = &mut ForkPatience::new();
        let one_ends_every_900_ms = |ms| usage(if ms < 5000 { LIMIT + 1 } else { LIMIT }, 10 - ms / 900);
        assert_eq!(waits(patience, one_ends_every_900_ms), 5000);
        assert_eq!(waits(patience, |ms| usage((2 * LIMIT).saturating_sub(ms * 10), 9)), LIMIT / 10);
    }

    #[test]
    fn a_fork_waits_for_what_is_still_to_come_of_earlier_ones() {
        let (begun, patience) = (Instant::now(), ForkPatience::new());
        let mut wait = patience.wait(begun);
        assert!(wait.goes_on(&usage(LIMIT - 700, 9), 701, begun));
        assert!(!wait.goes_on(&usage(LIMIT - 700, 9), 700, begun), "there is room for it");
    }

    #[test]
    fn no_fork_waits_without_bound() {
        let patience = &mut ForkPatience::new();
        let giving_way_for_ever = |ms| usage(100 * LIMIT - ms, 9);
        assert_eq!(waits(patience, giving_way_for_ever), 10_000);
        assert_eq!(waits(patience, |_| usage(LIMIT + 1, 9)), 2000, "it was not in vain");
    }

    #[test]
    fn where_children_stay_each_fork_waits_for_less() {
        let patience = &mut ForkPatience::new();
        let waited: Vec<u64> = (0..9).map(|_| waits(patience, |_| usage(LIMIT + 1, 9))).collect();
        assert_eq!(waited, [2000, 1000, 500, 250, 125, 63, 32, 16, 16]);
        waits(patience, |_| usage(LIMIT, 9));
        assert_eq!(waits(patience, |_| usage(LIMIT + 1, 9)), 2000, "there was room once more");
    }
}
