//! When processes of forks look what they have in common, all of them: [`uswap_core::census`] says why.
//!
//! The kernel looks at every page that each has. So a census is asked for where memory is scarce, again only when what the last one told has
//! become doubtful, and not so often that it takes more than a small part of a CPU.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_engine::group::{Group, PAGE_BYTES};

/// Memory is scarce where less than one part in so many of the budget is left.
const SCARCE: u64 = 8;
/// What processes may have copied, dropped or brought in since passes for memory that they have. This part of the budget is too much.
const DOUBTFUL: u64 = 64;
/// How soon they look again.
const SOONEST: Duration = Duration::from_millis(100);
/// The same where one has not looked: it may be stopped.
const LATEST: Duration = Duration::from_secs(1);
/// For each page that they have: a look takes some 25 ns, and may take one part in 16 of a CPU.
const PER_PAGE: Duration = Duration::from_nanos(400);

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
        if group.processes().all(|(_, slot)| slot.parent().is_none()) {
            return;
        }
        let again = match group.last_census() {
            None => LATEST,
            Some(counted) => {
                self.least = self.least.min(counted.most);
                if (counted.most - self.least) * PAGE_BYTES <= limit / DOUBTFUL {
                    return;
                }
                SOONEST
            }
        };
        let pages: u64 = group.processes().map(|(_, slot)| slot.resident.anon_pages.load(Relaxed)).sum();
        let again = again.max(PER_PAGE * u32::try_from(pages).unwrap_or(u32::MAX));
        if self.announced.is_none_or(|at| at.elapsed() >= again) && group.announce_census(births) {
            *self = Censuses { announced: Some(Instant::now()), least: u64::MAX };
        }
    }
}
