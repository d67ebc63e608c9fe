//! Newborn processes: what a child that has just been forked will have soon.
//!
//! A child has nothing of its own when it begins. What it works in, and uswap's tables and threads, come within a moment, or later where
//! many wait for a processor. A program that forks while its children have not come to that would fill the budget with more processes than
//! it holds, none of which could get on. So each says what is still to come of it, and the next fork waits until there is room
//! for that as well. Nobody else gives way for it.

/// A child that has used so much of a processor has what it works in, in microseconds.
const WORKED_US: u64 = 30_000;
/// One that waits for something works in little.
const NEWBORN_MS: u64 = 500;
/// What a child comes to have, as long as no other shows it, in pages: 3 MiB, most of it uswap's own.
const NEEDS_AT_FIRST: u64 = 768;
/// No more is expected of any.
const NEEDS_MAX: u64 = crate::tuning::CHILD_NEEDS;

/// Pages that children of one parent come to have, of which the living ones have up to `most` of their own.
pub fn needs(most: u64) -> u64 {
    most.clamp(NEEDS_AT_FIRST, NEEDS_MAX)
}

/// Pages that are still to come of a child that has `has` of its own, has lived so long, and has used so much of a processor; `None` if
/// nobody knows.
pub fn still_to_come(needs: u64, has: u64, lived_ms: u64, processor_us: Option<u64>) -> u64 {
    if lived_ms >= NEWBORN_MS || processor_us.is_some_and(|us| us >= WORKED_US) {
        return 0;
    }
    needs.saturating_sub(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_grows_to_what_its_siblings_have() {
        assert_eq!(needs(0), NEEDS_AT_FIRST);
        assert_eq!(needs(1000), 1000);
        assert_eq!(needs(100_000), NEEDS_MAX, "one that is large says nothing of the next");
        assert_eq!(still_to_come(1000, 300, 100, Some(5000)), 700);
        assert_eq!(still_to_come(1000, 1300, 100, Some(5000)), 0);
    }

    #[test]
    fn who_has_worked_or_waited_is_not_newborn_any_more() {
        assert_eq!(still_to_come(1000, 300, NEWBORN_MS - 1, None), 700);
        assert_eq!(still_to_come(1000, 300, NEWBORN_MS, None), 0);
        assert_eq!(still_to_come(1000, 300, 100, Some(WORKED_US)), 0);
    }
}
