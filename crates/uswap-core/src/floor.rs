//! Floor: what a process keeps of its own memory when the budget is filled by what cannot be swapped.
//!
//! Shared memory, locked pages and uswap's own tables count against the budget and cannot leave. Where they fill it, private
//! memory would be driven out to make room that they never give, and a program whose working set finds no place takes a fault
//! at every step. So where they fill half of the budget or more, and what leaves a process comes straight back, the process
//! keeps what it works in: its floor grows until its pages stay, and sinks slowly when it no longer misses any.
//!
//! Memory that can be swapped never raises a floor: a working set that is merely too large for its budget thrashes, and the
//! budget holds.

/// What a process knows when it judges its floor, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evidence {
    /// The group's limit.
    pub limit: u64,
    /// Processes of the group that use memory.
    pub processes: u64,
    /// What cannot be swapped, of all processes together.
    pub fixed_of_all: u64,
    /// What this process has resident and could swap.
    pub swappable: u64,
    /// Pages of this process that came back, ever.
    pub came_back: u64,
}

/// How long evidence is gathered before it is judged.
const INTERVAL_MS: u64 = 100;
/// 512 KiB: where a floor begins.
const BEGIN: u64 = 128;
/// 2 MiB: less would not do for a process, however many there are.
const MOST_MIN: u64 = 512;
/// A floor of a process that misses nothing sinks by one part in so many in each interval.
const SINKS_BY: u64 = 64;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Floor {
    pages: u64,
    came_back: u64,
    begun_ms: Option<u64>,
}

impl Floor {
    /// Pages that the process keeps of what it could swap; 0 where nothing presses.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Judges anew. `now_ms` may begin anywhere.
    pub fn update(&mut self, evidence: &Evidence, now_ms: u64) {
        // Between the two nothing changes, so that it does not come and go.
        let fills = evidence.fixed_of_all >= evidence.limit / 2;
        if evidence.fixed_of_all < evidence.limit / 8 * 3 {
            self.pages = 0;
        }
        let begun_ms = *self.begun_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(begun_ms) < INTERVAL_MS {
            return;
        }
        let came_back = evidence.came_back.saturating_sub(self.came_back);
        self.came_back = evidence.came_back;
        self.begun_ms = Some(now_ms);
        // As much came back as half of what is there: it leaves as fast as it comes.
        let thrashes = came_back >= (evidence.swappable / 2).max(BEGIN);
        if fills && thrashes {
            let most = (evidence.limit / 2 / evidence.processes.max(1)).max(MOST_MIN);
            self.pages = (2 * self.pages).max(evidence.swappable).clamp(BEGIN, most);
        } else if came_back < self.pages / 16 {
            self.pages -= self.pages.div_ceil(SINKS_BY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a budget of 64 MiB, and four processes.
    fn evidence(fixed_of_all: u64, swappable: u64, came_back: u64) -> Evidence {
        Evidence { limit: 16384, processes: 4, fixed_of_all, swappable, came_back }
    }

    /// Thrashes for so many intervals, with all of `swappable` coming back in each.
    fn thrash(floor: &mut Floor, fixed_of_all: u64, swappable: u64, intervals: u64) {
        let (before, begun) = (floor.came_back, floor.begun_ms.unwrap_or(0));
        for interval in 0..=intervals {
            let came_back = before + interval * swappable.max(BEGIN);
            floor.update(&evidence(fixed_of_all, swappable, came_back), begun + interval * INTERVAL_MS);
        }
    }

    #[test]
    fn who_thrashes_because_of_what_cannot_be_swapped_keeps_more_and_more() {
        let mut floor = Floor::default();
        thrash(&mut floor, 16384, 10, 1);
        assert_eq!(floor.pages(), BEGIN);
        thrash(&mut floor, 16384, 200, 2);
        assert_eq!(floor.pages(), 512);
        thrash(&mut floor, 16384, 200, 10);
        assert_eq!(floor.pages(), 2048, "half of what would be its share");
    }

    #[test]
    fn a_working_set_that_is_merely_too_large_raises_no_floor() {
        let mut floor = Floor::default();
        thrash(&mut floor, 8191, 8000, 20);
        assert_eq!(floor.pages(), 0);
    }

    #[test]
    fn what_cannot_be_swapped_raises_no_floor_where_nothing_comes_back() {
        let mut floor = Floor::default();
        for interval in 0..20 {
            floor.update(&evidence(16384, 200, 0), interval * INTERVAL_MS);
        }
        assert_eq!(floor.pages(), 0);
    }

    #[test]
    fn a_floor_ends_with_its_reason() {
        let mut floor = Floor::default();
        thrash(&mut floor, 16384, 400, 5);
        let kept = floor.pages();
        floor.update(&evidence(7000, 400, floor.came_back), 501);
        assert_eq!(floor.pages(), kept, "it does not come and go");
        floor.update(&evidence(6000, 400, floor.came_back), 502);
        assert_eq!(floor.pages(), 0);
    }

    #[test]
    fn who_misses_nothing_gives_back_little_by_little() {
        let mut floor = Floor::default();
        thrash(&mut floor, 16384, 400, 5);
        let (kept, came_back) = (floor.pages(), floor.came_back);
        for interval in 6..=60 {
            floor.update(&evidence(16384, 400, came_back), interval * INTERVAL_MS);
        }
        assert!(floor.pages() > 0 && floor.pages() < kept / 2, "{} of {kept}", floor.pages());
    }

    #[test]
    fn many_processes_keep_a_little_each() {
        let mut floor = Floor::default();
        for interval in 0..20 {
            let evidence = Evidence { processes: 200, ..evidence(16384, 100, interval * 200) };
            floor.update(&evidence, interval * INTERVAL_MS);
        }
        assert_eq!(floor.pages(), MOST_MIN);
    }
}
