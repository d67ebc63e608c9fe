//! Budget: how much of the group's memory a process may use at this moment.
//!
//! All processes of a group share one limit. A process may use what the others leave, and always at least its fair share.
//! Reclaim starts at a high watermark below that and goes on to a low one, so that the limit itself is a wall that only a
//! burst meets.

/// The state of the group, all in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// The group's limit.
    pub limit: u64,
    /// Used by all processes of the group.
    pub total: u64,
    /// Used by this process.
    pub mine: u64,
    /// Processes of the group that use memory.
    pub processes: u64,
}

/// What a process may use, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    /// Where reclaim stops.
    pub low: u64,
    /// Beyond it memory is scarce.
    pub high: u64,
    /// What the process may use.
    pub limit: u64,
}

impl Watermarks {
    /// Where the reclaim thread starts.
    pub fn start(&self) -> u64 {
        self.high - (self.high - self.low) / 2
    }

    /// Where whoever takes memory reclaims as well: the reclaim thread does not keep up.
    pub fn direct(&self) -> u64 {
        self.limit - (self.limit - self.high) / 2
    }
}

/// 1 MiB: below this distance a reclaim thread that wakes every millisecond comes too late for a fast program.
const GAP_MIN: u64 = 256;
/// 16 MiB: more only wastes memory of large budgets.
const GAP_MAX: u64 = 4096;

impl Usage {
    /// The watermarks of this process.
    pub fn watermarks(&self) -> Watermarks {
        let fair = self.limit / self.processes.max(1);
        let left = self.limit.saturating_sub(self.total.saturating_sub(self.mine));
        let limit = left.max(fair);
        let gap = (limit / 64).clamp(GAP_MIN, GAP_MAX);
        Watermarks { low: limit.saturating_sub(2 * gap), high: limit.saturating_sub(gap), limit }
    }

    /// What this process may keep when it forks, `shared` pages of it in shared mappings, which a child does not have in
    /// its page tables at first. Both sides count the rest, so each gets half of what is left.
    pub fn before_fork(&self, shared: u64) -> u64 {
        let others = self.total.saturating_sub(self.mine);
        let shared = shared.min(self.mine);
        let private = self.limit.saturating_sub(others + shared) / 2;
        (private + shared).max(self.limit / (self.processes + 1).max(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_a_process_may_use_the_whole_limit() {
        let marks = Usage { limit: 65536, total: 100, mine: 100, processes: 1 }.watermarks();
        assert_eq!(marks, Watermarks { low: 63488, high: 64512, limit: 65536 });
        assert_eq!((marks.start(), marks.direct()), (64000, 65024));
    }

    #[test]
    fn a_process_gets_what_the_others_leave_but_at_least_its_share() {
        let usage = Usage { limit: 1000 * 1000, total: 700 * 1000, mine: 100 * 1000, processes: 2 };
        assert_eq!(usage.watermarks().limit, 500 * 1000);
        let usage = Usage { limit: 1000 * 1000, total: 300 * 1000, mine: 100 * 1000, processes: 2 };
        assert_eq!(usage.watermarks().limit, 800 * 1000);
    }

    #[test]
    fn a_fork_leaves_half_to_the_child() {
        let usage = Usage { limit: 1000, total: 900, mine: 900, processes: 1 };
        assert_eq!(usage.before_fork(0), 500);
    }

    #[test]
    fn what_a_child_does_not_count_is_not_halved() {
        let usage = Usage { limit: 1000, total: 900, mine: 900, processes: 1 };
        let kept = usage.before_fork(300);
        assert_eq!(kept, 650, "350 private pages on both sides, and 300 once");
    }
}
