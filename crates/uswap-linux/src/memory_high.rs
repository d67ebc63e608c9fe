//! `memory.high`: how long a task sleeps that takes more memory than its cgroup should have (Linux 6.18).

/// Fractional bits of an overage.
const PRECISION: u32 = 20;
/// How many further bits a squared overage is divided by.
const SCALING: u32 = 14;
/// Pages that a charge takes at a time: penalties are for so many.
const CHARGE_BATCH: u64 = 64;
/// Nobody sleeps longer, in seconds.
const SLEEP_MAX_S: u64 = 2;
/// Shorter than this part of a second is not worth it.
const SLEEP_MIN_PARTS: u64 = 100;
/// Attempts at reclaim before a task sleeps.
pub const RECLAIM_RETRIES: u32 = 16;

/// Usage of a cgroup and its `high`, in the same unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// What it uses.
    pub usage: u64,
    /// What it should use; `u64::MAX` for no such limit.
    pub high: u64,
}

impl Usage {
    /// By how much of `high` the usage is beyond it, in 2^-20.
    fn overage(self) -> u64 {
        if self.usage <= self.high {
            return 0;
        }
        let over = u128::from(self.usage - self.high) << PRECISION;
        u64::try_from(over / u128::from(self.high.max(1))).unwrap_or(u64::MAX)
    }
}

fn penalty(levels: &[Usage], hz: u64) -> u64 {
    let overage = levels.iter().map(|level| level.overage()).max().unwrap_or(0);
    let squared = u128::from(overage).saturating_mul(u128::from(overage));
    let jiffies = squared.saturating_mul(u128::from(hz)) >> (PRECISION + SCALING);
    u64::try_from(jiffies).unwrap_or(u64::MAX).min(SLEEP_MAX_S * hz)
}

/// Jiffies that a task owes which was charged `pages`, before small debts are forgiven. `memory` and `swap` are the levels
/// of its cgroup up to the root; the worst of each counts, and both add up. A second has `hz` jiffies.
pub fn penalty_jiffies(memory: &[Usage], swap: &[Usage], pages: u64, hz: u64) -> u64 {
    let sum = penalty(memory, hz) + penalty(swap, hz);
    (u128::from(sum) * u128::from(pages) / u128::from(CHARGE_BATCH)).min(u128::from(SLEEP_MAX_S * hz)) as u64
}

/// Jiffies that it sleeps: none for a debt of a hundredth of a second or less.
pub fn sleep_jiffies(penalty: u64, hz: u64) -> u64 {
    if penalty <= hz / SLEEP_MIN_PARTS { 0 } else { penalty }
}

/// What a task does on its way back to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Throttle {
    /// Reclaim, then ask again.
    Reclaim,
    /// Sleep so many jiffies, then go on.
    Sleep(u64),
    /// Go on.
    Go,
}

/// A task that was charged past `high`.
#[derive(Clone, Copy, Debug)]
pub struct OverHigh {
    retries: u32,
}

impl Default for OverHigh {
    fn default() -> Self {
        Self { retries: RECLAIM_RETRIES }
    }
}

impl OverHigh {
    /// After an attempt at reclaim that freed something or not, with what the task owes by now.
    pub fn next(&mut self, reclaimed: bool, penalty: u64, hz: u64) -> Throttle {
        let sleep = sleep_jiffies(penalty, hz);
        if sleep == 0 {
            return Throttle::Go;
        }
        if reclaimed && self.retries > 0 {
            self.retries -= 1;
            return Throttle::Reclaim;
        }
        Throttle::Sleep(sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 1000;

    fn at(megabytes: u64) -> Usage {
        Usage { usage: megabytes << 8, high: 100 << 8 }
    }

    #[test]
    fn t5f_penalties_past_high() {
        for (megabytes, owed) in
            [(100, 0), (101, 6), (102, 25), (105, 159), (110, 639), (117, 1849), (118, 2000), (200, 2000)]
        {
            let penalty = penalty_jiffies(&[at(megabytes)], &[], 64, HZ);
            assert_eq!(penalty, owed, "{megabytes} MiB");
            assert_eq!(sleep_jiffies(penalty, HZ), if megabytes <= 101 { 0 } else { owed });
        }
    }

    #[test]
    fn the_worst_level_counts_and_swap_adds_to_it() {
        let free = Usage { usage: 5, high: u64::MAX };
        assert_eq!(penalty_jiffies(&[free, at(105), at(102)], &[], 64, HZ), 159);
        assert_eq!(penalty_jiffies(&[at(105)], &[at(102), free], 64, HZ), 159 + 25);
        assert_eq!(penalty_jiffies(&[at(117)], &[at(117)], 64, HZ), 2000);
    }

    #[test]
    fn larger_charges_owe_more() {
        assert_eq!(penalty_jiffies(&[at(105)], &[], 128, HZ), 318);
        assert_eq!(penalty_jiffies(&[at(105)], &[], 16, HZ), 39);
    }

    #[test]
    fn a_limit_of_nothing_is_no_division_by_zero() {
        assert_eq!(penalty_jiffies(&[Usage { usage: u64::MAX, high: 0 }], &[], u64::MAX, HZ), 2000);
    }

    #[test]
    fn a_task_reclaims_sixteen_times_before_it_sleeps() {
        let mut task = OverHigh::default();
        for _ in 0..16 {
            assert_eq!(task.next(true, 50, HZ), Throttle::Reclaim);
        }
        assert_eq!(task.next(true, 50, HZ), Throttle::Sleep(50));
        assert_eq!(OverHigh::default().next(false, 50, HZ), Throttle::Sleep(50), "nothing left to reclaim");
        assert_eq!(OverHigh::default().next(true, 10, HZ), Throttle::Go);
    }
}
