//! How far a look at the program's memory goes in one step. Nobody is served meanwhile, and what the program has changed during it makes it
//! worthless.
//!
//! Where nothing was ever populated addresses cost next to nothing, and there may be terabytes of them; what was populated once costs
//! microseconds for each 2 MiB. So a step grows as long as steps take no time, is halved when one has taken long, and is small where the
//! program is changing its memory all the time.

use core::time::Duration;

use crate::tuning::CHANGING_LOOKS_MAX;

/// The first step, in bytes: 4096 pages, if all are populated.
const START: usize = 16 << 20;
/// How often it may double: to 4 GiB.
const DOUBLINGS: u32 = 8;
/// A step that takes no longer can be twice as long; handlers that find the gate shut look out for it so long before they sleep.
const QUICK: Duration = Duration::from_micros(20);

/// See the file's head.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanReach {
    doubled: u32,
    /// How often in a row the program was changing its memory.
    disturbed: u32,
}

impl ScanReach {
    /// At the beginning of a look: the program may rest by now.
    pub fn begins(&mut self) {
        self.disturbed = 0;
    }

    /// Bytes of addresses for the next step.
    pub fn bytes(&self) -> usize {
        match self.disturbed {
            0 => START << self.doubled,
            CHANGING_LOOKS_MAX.. => START,
            some => START >> some,
        }
    }

    /// A step was of use, and took so long.
    pub fn was_still(&mut self, took: Duration) {
        if self.disturbed > 0 {
            self.disturbed /= 2;
        } else if took <= QUICK {
            self.doubled = (self.doubled + 1).min(DOUBLINGS);
        } else if took > 2 * QUICK {
            self.doubled = self.doubled.saturating_sub(1);
        }
    }

    /// The program has changed its memory during a step. Whether it is to be tried again, with a smaller one.
    pub fn was_disturbed(&mut self) -> bool {
        self.doubled = 0;
        let again = self.disturbed < CHANGING_LOOKS_MAX;
        self.disturbed += u32::from(again);
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_while_they_take_no_time_and_shrink_when_they_do() {
        let mut reach = ScanReach::default();
        let mut bytes = 0;
        for _ in 0..20 {
            bytes = reach.bytes();
            reach.was_still(QUICK);
        }
        assert_eq!(bytes, 4 << 30);
        reach.was_still(2 * QUICK);
        assert_eq!(reach.bytes(), bytes);
        reach.was_still(3 * QUICK);
        assert_eq!(reach.bytes(), bytes / 2);
    }

    #[test]
    fn a_program_that_changes_its_memory_all_the_time_is_looked_at_in_small_steps_and_then_as_it_is() {
        let mut reach = ScanReach::default();
        (0..20).for_each(|_| reach.was_still(QUICK));
        assert!(reach.was_disturbed());
        assert_eq!(reach.bytes(), START / 2);
        assert!((1..CHANGING_LOOKS_MAX).all(|_| reach.was_disturbed()));
        assert_eq!((reach.was_disturbed(), reach.bytes()), (false, START));
        reach.was_still(QUICK);
        assert_eq!(reach.bytes(), START >> (CHANGING_LOOKS_MAX / 2));
        (0..3).for_each(|_| reach.was_still(QUICK));
        assert_eq!(reach.bytes(), START, "not all at once");
        reach.was_still(QUICK);
        assert_eq!(reach.bytes(), 2 * START);
        assert!(reach.was_disturbed());
        reach.begins();
        assert_eq!(reach.bytes(), START);
    }
}
