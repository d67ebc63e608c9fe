//! A charge to a cgroup: within its limits, past `memory.high`, or at `memory.max` (Linux 6.18).
//!
//! Whoever takes the page does the work: at `max` it reclaims before it gets the page, and so swaps out in its own time; past
//! `high` it gets the page and pays when it returns to the program (see [`super::memory_high`]).

use super::memory_high::Usage;

/// Rounds of reclaim that free nothing before the OOM killer is asked.
pub const FRUITLESS_MAX: u32 = 16;

/// The limits of one cgroup, in pages; `u64::MAX` for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// `memory.high`.
    pub high: u64,
    /// `memory.max`.
    pub max: u64,
}

/// What a charge must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Charge {
    /// It is done.
    Fits,
    /// It is done, and the task pays for being past `high` when it returns to the program.
    PastHigh,
    /// So many pages must be freed first.
    Reclaim(u64),
    /// Nothing can be freed.
    OutOfMemory,
}

/// A charge on its way.
#[derive(Clone, Copy, Default, Debug)]
pub struct Charging {
    fruitless: u32,
}

impl Charging {
    /// Tries to charge `pages` to a cgroup that uses `usage` pages; `freed` is what the round of reclaim since the last try
    /// freed, `None` at the first try.
    pub fn attempt(&mut self, limits: Limits, usage: u64, pages: u64, freed: Option<u64>) -> Charge {
        let after = usage.saturating_add(pages);
        if after <= limits.max {
            return if after > limits.high { Charge::PastHigh } else { Charge::Fits };
        }
        match freed {
            Some(0) => self.fruitless += 1,
            _ => self.fruitless = 0,
        }
        if self.fruitless >= FRUITLESS_MAX { Charge::OutOfMemory } else { Charge::Reclaim(after - limits.max) }
    }
}

impl Limits {
    /// What [`super::memory_high::penalty_jiffies`] asks of this level.
    pub fn against_high(&self, usage: u64) -> Usage {
        Usage { usage, high: self.high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_high::penalty_jiffies;

    const LIMITS: Limits = Limits { high: 100, max: 120 };

    #[test]
    fn a_charge_fits_or_is_past_high_or_reclaims() {
        let attempt = |usage, pages| Charging::default().attempt(LIMITS, usage, pages, None);
        assert_eq!(attempt(90, 10), Charge::Fits);
        assert_eq!(attempt(100, 1), Charge::PastHigh);
        assert_eq!(attempt(119, 1), Charge::PastHigh);
        assert_eq!(attempt(115, 8), Charge::Reclaim(3));
        assert_eq!(attempt(u64::MAX, 1), Charge::Reclaim(u64::MAX - 120));
    }

    #[test]
    fn sixteen_fruitless_rounds_are_out_of_memory() {
        let mut charging = Charging::default();
        assert_eq!(charging.attempt(LIMITS, 120, 1, None), Charge::Reclaim(1));
        for freed in [Some(0); 10].into_iter().chain([Some(32)]).chain([Some(0); 15]) {
            assert_eq!(charging.attempt(LIMITS, 120, 1, freed), Charge::Reclaim(1));
        }
        assert_eq!(charging.attempt(LIMITS, 120, 1, Some(0)), Charge::OutOfMemory);
    }

    #[test]
    fn being_past_high_is_paid_for() {
        let limits = Limits { high: 100 << 8, max: u64::MAX };
        assert_eq!(Charging::default().attempt(limits, 105 << 8, 64, None), Charge::PastHigh);
        assert_eq!(penalty_jiffies(&[limits.against_high(105 << 8)], &[], 64, 1000), 159);
    }
}
