//! When processes of forks look what they have in common, all of them: [`uswap_core::census`] says why.
//!
//! A look costs each some 20 ns for each page that it has. So one is asked for where memory is scarce, again when what the last one told
//! has become doubtful, and not before all have looked.

use std::time::{Duration, Instant};

use uswap_engine::group::{Group, PAGE_BYTES};

/// Memory is scarce where less than one part in so many of the budget is left.
const SCARCE: u64 = 8;
/// What processes may have copied, dropped or brought in since passes for memory that they have. This part of the budget is too much.
const DOUBTFUL: u64 = 64;
/// How soon they look again, and what is added to that for each of them.
const SOONEST: (Duration, Duration) = (Duration::from_millis(40), Duration::from_millis(20));
/// And at the latest, or where one has not looked: it may be stopped.
const LATEST: Duration = Duration::from_secs(1);

/// See the file's head.
pub(super) struct Censuses {
    announced: Option<Instant>,
    /// The fewest pages that the last one has told.
    least: u64,
}

impl Censuses {
    /// None was asked for.
    pub fn new() -> Censuses {
        Censuses { announced: None, least: u64::MAX }
    }

    /// Asks for one if it is time for that. All processes with private pages in common are in the group, where there had been so many
    /// `births` before that was looked at; they have `counted` bytes.
    pub fn look(&mut self, group: &Group, counted: u64, births: u32) {
        let limit = group.limit_bytes();
        if counted < limit - limit / SCARCE {
            return;
        }
        let processes = group.processes().count() as u32;
        if processes < 2 || group.processes().all(|(_, slot)| slot.parent().is_none()) {
            return;
        }
        let is_told = group.last_census();
        let pages = is_told.unwrap_or(u64::MAX);
        self.least = self.least.min(pages);
        let is_doubtful = is_told.is_some() && (pages - self.least) * PAGE_BYTES > limit / DOUBTFUL;
        let again = if is_doubtful { (SOONEST.0 + SOONEST.1 * processes).min(LATEST) } else { LATEST };
        if self.announced.is_none_or(|at| at.elapsed() >= again) && group.announce_census(births) {
            *self = Censuses { announced: Some(Instant::now()), least: u64::MAX };
        }
    }
}
