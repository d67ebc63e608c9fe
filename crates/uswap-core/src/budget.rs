//! Budget: how much of the group's memory a process may use at this moment.
//!
//! All processes of a group share one limit. A process may use what the others leave, and always at least its fair share.
//! Where others hold so much that it would be beyond the limit with its share, it claims what it lacks: those with more than
//! their share give way, and until they have, it gets no more than it has ([`Claim`]).
//!
//! Reclaim starts at a high watermark below that and goes on to a low one, so that the limit itself is a wall that only a
//! burst meets.

/// The state of the group, all in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The group's limit.
    pub limit: u64,
    /// Used by all processes of the group.
    pub total: u64,
    /// Used by this process.
    pub mine: u64,
    /// Processes of the group that use memory.
    pub processes: u64,
    /// What the others claim.
    pub claims: u64,
    /// Until the others have given way, this process has to do with so much of its fair share.
    pub held_at: Option<u64>,
    /// What this process may fill before anybody sees it.
    pub unseen: u64,
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
/// The part of what a process may use that is kept free for what it fills unseen, at most.
const UNSEEN_MAX: u64 = 32;
/// How long a process waits for others to give way before it takes its fair share.
const PATIENCE_MS: u64 = 1000;

/// What a process lacks of its fair share, because others have more than theirs.
#[derive(Debug, Default)]
pub struct Claim {
    lacks: u64,
    /// When it began, and how much the process had.
    begun: Option<(u64, u64)>,
}

impl Claim {
    /// Judges the claim of a process anew; returns the pages that it claims. `now_ms` may begin anywhere.
    pub fn update(&mut self, usage: &Usage, now_ms: u64) -> u64 {
        self.lacks = usage.fair().saturating_sub(usage.left());
        let wants = usage.mine + 2 * gap(usage.fair()) > usage.left().max(usage.fair() / 2);
        if self.lacks == 0 || !wants {
            self.begun = None;
            return 0;
        }
        self.begun.get_or_insert((now_ms, usage.mine));
        self.lacks
    }

    /// What the process has to do with meanwhile. `None`: nothing is lacking, or nobody has given way for too long.
    pub fn held_at(&self, now_ms: u64) -> Option<u64> {
        match self.begun {
            Some((begun, _)) if now_ms.saturating_sub(begun) >= PATIENCE_MS => None,
            Some((_, mine)) => Some(mine),
            None => (self.lacks > 0).then_some(0),
        }
    }
}

fn gap(limit: u64) -> u64 {
    (limit / 64).clamp(GAP_MIN, GAP_MAX)
}

impl Usage {
    fn fair(&self) -> u64 {
        self.limit / self.processes.max(1)
    }

    /// What the others leave.
    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.total.saturating_sub(self.mine))
    }

    /// What this process may use as soon as everybody keeps to it.
    pub fn entitled(&self) -> u64 {
        self.left().max(self.fair())
    }

    /// The watermarks of this process.
    pub fn watermarks(&self) -> Watermarks {
        let (fair, left) = (self.fair(), self.left());
        let limit = match self.held_at {
            _ if left > fair => left.saturating_sub(self.claims).max(fair),
            Some(held_at) => left.max(held_at.clamp(fair / 2, fair)),
            None => fair,
        };
        let limit = limit - self.unseen.min(limit / UNSEEN_MAX);
        let gap = gap(limit);
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
        let marks = Usage { limit: 65536, total: 100, mine: 100, processes: 1, ..Usage::default() }.watermarks();
        assert_eq!(marks, Watermarks { low: 63488, high: 64512, limit: 65536 });
        assert_eq!((marks.start(), marks.direct()), (64000, 65024));
    }

    #[test]
    fn a_process_gets_what_the_others_leave_but_at_least_its_share() {
        let usage = Usage { limit: 1000 * 1000, total: 700 * 1000, mine: 100 * 1000, processes: 2, ..Usage::default() };
        assert_eq!(usage.watermarks().limit, 500 * 1000);
        let usage = Usage { limit: 1000 * 1000, total: 300 * 1000, mine: 100 * 1000, processes: 2, ..Usage::default() };
        assert_eq!(usage.watermarks().limit, 800 * 1000);
    }

    #[test]
    fn a_fork_leaves_half_to_the_child() {
        let usage = Usage { limit: 1000, total: 900, mine: 900, processes: 1, ..Usage::default() };
        assert_eq!(usage.before_fork(0), 500);
    }

    #[test]
    fn what_a_child_does_not_count_is_not_halved() {
        let usage = Usage { limit: 1000, total: 900, mine: 900, processes: 1, ..Usage::default() };
        let kept = usage.before_fork(300);
        assert_eq!(kept, 650, "350 private pages on both sides, and 300 once");
    }

    /// Three processes with the same fair share, of which this one is at `mine` and the others at `others` together.
    fn three(mine: u64, others: u64) -> Usage {
        Usage { limit: 768 << 10, total: mine + others, mine, processes: 3, ..Usage::default() }
    }

    #[test]
    fn who_lacks_its_share_is_held_until_the_others_give_way() {
        let (mut claim, fair) = (Claim::default(), 256 << 10);
        let usage = three(200 << 10, 600 << 10);
        assert_eq!(claim.update(&usage, 5000), (256 - 168) << 10);
        let held = Usage { held_at: claim.held_at(5000), ..usage };
        assert_eq!(held.watermarks().limit, 200 << 10, "no more than it has");
        // Reclaim brings it lower, and that does not hold it there.
        let usage = three(190 << 10, 590 << 10);
        assert!(claim.update(&usage, 5010) > 0);
        assert_eq!(Usage { held_at: claim.held_at(5010), ..usage }.watermarks().limit, 200 << 10);
        // They have given way.
        let usage = three(190 << 10, 500 << 10);
        assert_eq!(claim.update(&usage, 5020), 0);
        assert_eq!(Usage { held_at: claim.held_at(5020), ..usage }.watermarks().limit, 268 << 10);
        assert_eq!(usage.entitled(), 268 << 10);
        assert!(usage.entitled() > fair);
    }

    #[test]
    fn who_waits_for_too_long_takes_its_share() {
        let mut claim = Claim::default();
        let usage = three(200 << 10, 600 << 10);
        for now in [0, 999] {
            claim.update(&usage, now);
            assert_eq!(claim.held_at(now), Some(200 << 10));
        }
        claim.update(&usage, 1000);
        let usage = Usage { held_at: claim.held_at(1000), ..usage };
        assert_eq!(usage.watermarks().limit, 256 << 10);
    }

    #[test]
    fn a_small_process_gets_half_of_its_share_at_once() {
        let mut claim = Claim::default();
        let usage = three(1 << 10, 768 << 10);
        // It does not want more.
        assert_eq!(claim.update(&usage, 0), 0);
        assert_eq!(Usage { held_at: claim.held_at(0), ..usage }.watermarks().limit, 128 << 10);
        let usage = three(127 << 10, 768 << 10);
        assert_eq!(claim.update(&usage, 0), 256 << 10);
        assert_eq!(Usage { held_at: claim.held_at(0), ..usage }.watermarks().limit, 128 << 10);
    }

    #[test]
    fn who_has_more_than_its_share_gives_way_to_claims() {
        let usage = three(400 << 10, 368 << 10);
        assert_eq!(usage.watermarks().limit, 400 << 10);
        assert_eq!(Usage { claims: 100 << 10, ..usage }.watermarks().limit, 300 << 10);
        assert_eq!(Usage { claims: 400 << 10, ..usage }.watermarks().limit, 256 << 10, "its share is its own");
    }

    #[test]
    fn room_is_kept_for_what_is_filled_unseen() {
        let usage = Usage { limit: 65536, total: 100, mine: 100, processes: 1, unseen: 500, ..Usage::default() };
        assert_eq!(usage.watermarks().limit, 65036);
        assert_eq!(Usage { unseen: 1 << 40, ..usage }.watermarks().limit, 65536 / 32 * 31);
    }
}
