//! Budget: how much of the group's memory a process may use at this moment.
//!
//! All processes of a group share one limit. A process may use what the others leave, and always at least its fair share, which is smaller
//! where it is idle or waits for its turn ([`Precedence`]).
//! Where others hold so much that it would be beyond the limit with its share, it claims what it lacks: those with more than
//! their share give way, and until they have, it gets no more than it has ([`Claim`]).
//!
//! Reclaim starts at a high watermark below that and goes on to a low one, so that the limit itself is a wall that only a
//! burst meets.

use crate::tuning;
use crate::turns::Turn;

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
    /// Whether it gives way to others, or they to it.
    pub precedence: Precedence,
    /// What the others claim.
    pub claims: u64,
    /// Until the others have given way, this process has to do with so much of its fair share; see [`Claim`].
    pub held_at: Option<u64>,
    /// What it keeps free.
    pub room: Room,
    /// What this process keeps, whatever the others use: with its floor ([`crate::floor`]) all that cannot be swapped.
    pub least: u64,
    /// Processes that may take what is left at the same moment, because forks have made them of one; 0 or 1: this one alone.
    pub siblings: u64,
}

/// What becomes of a process's fair share, by what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Precedence {
    /// How often its fair share is halved, because it is idle ([`crate::idle`]).
    pub halvings: u32,
    /// Whose turn it is to have more than that, of those that thrash.
    pub turn: Turn,
}

/// Room that a process keeps free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// What it may fill before anybody sees it.
    pub unseen: u64,
    /// The least distance of two watermarks, in simulations of small budgets; 0: as everywhere.
    pub gap_min: u64,
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
/// 128 KiB: the distance above what a process keeps in any case, where each page is one too many.
const LEAST_GAP_MIN: u64 = 32;
/// The part of what a process may use that is kept free for what it fills unseen, at most.
const UNSEEN_MAX: u64 = 32;
/// 16 MiB: nobody has to wait for so little.
const HELD_MIN: u64 = 4096;
/// Of a small budget, one part in so many.
const HELD_PART: u64 = 32;
/// So many may be beyond the budget by two megabytes each for a moment.
const FEW_SIBLINGS: u64 = 8;
/// A process that waits for its turn ([`crate::turns`]) has one part in so many of its fair share.
const WAITING_PART: u64 = 4;
/// How long a process waits for others to give way before it takes its fair share.
const PATIENCE_MS: u64 = 1000;

/// What a process wants of its fair share, and cannot have yet because others have more than theirs.
#[derive(Debug, Default)]
pub struct Claim {
    lack: Option<Lack>,
}

#[derive(Debug)]
struct Lack {
    /// The least that the process has had since it lacks something: who stays there wants no more.
    had: u64,
    /// The most that the others have left since.
    left: u64,
    /// Since when it waits, and they have not left more.
    waits_since: u64,
}

impl Claim {
    /// Judges the claim of a process anew; returns the pages that it claims beyond those that it has. `now_ms` may begin
    /// anywhere.
    pub fn update(&mut self, usage: &Usage, now_ms: u64) -> u64 {
        let (fair, left, gap) = (usage.fair(), usage.left_by_others(), usage.gap(usage.fair()));
        if left >= fair {
            self.lack = None;
            return 0;
        }
        let lack = self.lack.get_or_insert(Lack { had: usage.mine, left, waits_since: now_ms });
        lack.had = lack.had.min(usage.mine);
        let wants = usage.mine > lack.had + gap / 2;
        let waits = wants && usage.mine + gap >= left;
        if !waits || left > lack.left + gap / 2 {
            (lack.left, lack.waits_since) = (left, now_ms);
        }
        // Not all at once: what it may not need is better left to those who use it.
        if wants { fair.saturating_sub(usage.mine).min(4 * gap) } else { 0 }
    }

    /// What the process may have of its fair share meanwhile, if the others leave no more. `None`: all of it, because
    /// nothing is lacking or nobody has given way for too long.
    pub fn held_at(&self, usage: &Usage, now_ms: u64) -> Option<u64> {
        let lack = self.lack.as_ref()?;
        let is_patient = now_ms.saturating_sub(lack.waits_since) < PATIENCE_MS;
        // Enough above what it had that nothing of that is reclaimed.
        is_patient.then(|| lack.had + 2 * usage.gap(usage.fair()))
    }
}

/// Watermarks of a process that is left no less than this.
fn above(least: u64) -> Watermarks {
    let gap = (least / 16).clamp(LEAST_GAP_MIN, GAP_MIN);
    Watermarks { low: least, high: least + gap, limit: least + 2 * gap }
}

impl Usage {
    /// Between two watermarks of a process that may use `limit`. Many siblings share the room that it keeps free, as they share what is
    /// left: each with a whole one of its own, much would be nobody's.
    fn gap(&self, limit: u64) -> u64 {
        let least = if self.room.gap_min == 0 { GAP_MIN } else { self.room.gap_min };
        let gap = (limit / 64).clamp(least, GAP_MAX);
        if self.are_few() { gap } else { (gap / self.siblings).max(LEAST_GAP_MIN.min(least)) }
    }

    /// Those who may take what is left at the same moment.
    fn are_few(&self) -> bool {
        self.siblings <= FEW_SIBLINGS
    }

    /// The fair share of a process that works.
    fn whole_share(&self) -> u64 {
        self.limit / self.processes.max(1)
    }

    fn fair(&self) -> u64 {
        let whole = self.whole_share();
        let least = tuning::IDLE_KEEPS.min(whole);
        let waiting = (whole / WAITING_PART).max(least);
        match self.precedence.turn {
            Turn::Open => {
                let halvings = if self.is_idle() { self.precedence.halvings.min(63) } else { 0 };
                (whole >> halvings).max(least)
            }
            // What the others give way.
            Turn::Mine(others) => whole + others * (whole - waiting),
            Turn::Waits => waiting,
        }
    }

    /// Whether it does nothing, and there are others who may need what it has. What many siblings let go of is mostly what they have in
    /// common, which frees nothing before all have.
    fn is_idle(&self) -> bool {
        self.precedence.halvings > 0 && self.processes > 1 && self.are_few()
    }

    /// Whether the process has so little that it need not give way, whatever the others do, or not at once: it is idle,
    /// or waits for its turn.
    pub fn is_below_its_share(&self) -> bool {
        self.mine + 2 * self.gap(self.whole_share()) <= self.whole_share()
    }

    /// What the others leave, all that nobody has included.
    fn left_by_others(&self) -> u64 {
        self.limit.saturating_sub(self.total.saturating_sub(self.mine))
    }

    /// What the others leave, and of what nobody has its part.
    fn left(&self) -> u64 {
        let free = self.limit.saturating_sub(self.total);
        let waits = self.precedence.turn == Turn::Waits;
        // Of little there is nothing to share out among few, but where others are as short.
        let little = if self.are_few() && !waits { 2 * GAP_MIN } else { 0 };
        let takers = if waits { self.siblings.max(self.processes) } else { self.siblings };
        let part = (free / takers.max(1)).max(free.min(little));
        self.left_by_others() - (free - part)
    }

    /// What this process may use as soon as everybody keeps to it.
    pub fn entitled(&self) -> u64 {
        self.left().max(self.fair())
    }

    /// The watermarks of this process.
    pub fn watermarks(&self) -> Watermarks {
        // Who is idle gives way before anybody who works has to, however large the room is that that one keeps free.
        let ahead = if self.is_idle() { 2 * self.gap(self.limit) } else { 0 };
        let (fair, left) = (self.fair(), self.left().saturating_sub(ahead));
        let limit = match self.held_at {
            // What nobody has serves the claims, too.
            _ if left > fair => left.min(self.left_by_others().saturating_sub(self.claims)).max(fair),
            // Whose turn it is has what the others have given way, and no more at once than it would have without.
            Some(held_at) => {
                let at_once = (fair.min(self.whole_share()) / 2).max(HELD_MIN.min(self.limit / HELD_PART));
                left.max(held_at.max(at_once).min(fair))
            }
            None => fair,
        };
        let limit = limit - self.room.unseen.min(limit / UNSEEN_MAX);
        let gap = self.gap(limit);
        let marks = Watermarks { low: limit.saturating_sub(2 * gap), high: limit.saturating_sub(gap), limit };
        match self.least {
            least if least > marks.low => above(least),
            _ => marks,
        }
    }

    /// Pages that a child works in, at least at first, beside those that it has in common with its parent: an eighth, or its share; but no
    /// less than it needs for uswap's tables and its own.
    pub fn for_child(&self) -> u64 {
        (self.limit / 8).min(self.limit / (self.processes + 1).max(2)).max(tuning::CHILD_NEEDS.min(self.limit / 4))
    }

    /// What this process may keep when it forks: what the others leave, without what the child works in; but its share. It has
    /// `promised` pages to an earlier child, which may as well have what this one works in.
    pub fn before_fork(&self, promised: u64) -> u64 {
        let others = self.total.saturating_sub(self.mine + promised);
        self.limit.saturating_sub(others + self.for_child()).max(self.limit / (self.processes + 1).max(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halved(halvings: u32) -> Precedence {
        Precedence { halvings, ..Precedence::default() }
    }

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
    fn whose_turn_it_is_has_what_those_who_wait_give_way() {
        let usage =
            Usage { limit: 1000 * 1000, total: 1000 * 1000, mine: 200 * 1000, processes: 5, ..Usage::default() };
        let limit = |turn| Usage { precedence: Precedence { turn, halvings: 0 }, ..usage }.watermarks().limit;
        assert_eq!(limit(Turn::Open), 200 * 1000);
        // Two others that thrash wait, and two do not thrash.
        assert_eq!(limit(Turn::Mine(2)), 500 * 1000);
        // It gives way as those do that have more than their share: as fast as that is claimed.
        assert_eq!(limit(Turn::Waits), 200 * 1000);
        let claimed = Usage { precedence: Precedence { turn: Turn::Waits, halvings: 0 }, claims: 80 * 1000, ..usage };
        assert_eq!(claimed.watermarks().limit, 120 * 1000);
        assert_eq!(Usage { claims: 900 * 1000, ..claimed }.watermarks().limit, 50 * 1000);
    }

    #[test]
    fn nothing_is_reclaimed_of_what_a_process_keeps_in_any_case() {
        let usage = Usage { limit: 1 << 16, total: 1 << 17, mine: 30000, processes: 4, ..Usage::default() };
        assert_eq!(usage.watermarks().limit, 1 << 14);
        let marks = Usage { least: 20000, ..usage }.watermarks();
        assert_eq!(marks, Watermarks { low: 20000, high: 20256, limit: 20512 });
        assert_eq!(Usage { least: 10000, ..usage }.watermarks(), usage.watermarks(), "it has more anyway");
    }

    #[test]
    fn a_fork_leaves_the_child_what_it_works_in() {
        let usage = Usage { limit: 100_000, total: 90_000, mine: 90_000, processes: 1, ..Usage::default() };
        assert_eq!((usage.for_child(), usage.before_fork(0)), (12_500, 87_500));
        let usage = Usage { total: 100_000, ..usage };
        assert_eq!(usage.before_fork(10_000), 87_500);
        let usage = Usage { limit: 100_000, total: 95_000, mine: 5000, processes: 19, ..Usage::default() };
        assert_eq!((usage.for_child(), usage.before_fork(0)), (5000, 5000), "its share");
        let usage = Usage { processes: 99, ..usage };
        assert_eq!(usage.for_child(), 2048, "what it needs");
    }

    /// Three processes with a fair share of 1 GiB each, of which this one is at `mine` and the others at `others` together.
    fn three(mine: u64, others: u64) -> Usage {
        Usage { limit: 768 << 10, total: mine + others, mine, processes: 3, ..Usage::default() }
    }

    /// What the process claims, and what it may use.
    fn judge(claim: &mut Claim, usage: Usage, now_ms: u64) -> (u64, u64) {
        let claimed = claim.update(&usage, now_ms);
        let usage = Usage { held_at: claim.held_at(&usage, now_ms), ..usage };
        (claimed, usage.watermarks().limit)
    }

    const MIB: u64 = 256;
    /// Of a fair share of 1 GiB.
    const GAP: u64 = 4096;

    #[test]
    fn who_wants_more_than_the_others_leave_is_held_and_claims_until_they_give_way() {
        let mut claim = Claim::default();
        assert_eq!(judge(&mut claim, three(800 * MIB, 2300 * MIB), 0), (0, 832 * MIB), "it has not asked for more yet");
        assert_eq!(judge(&mut claim, three(820 * MIB, 2300 * MIB), 10), (4 * GAP, 832 * MIB));
        // They leave more, step by step.
        assert_eq!(judge(&mut claim, three(820 * MIB, 2172 * MIB), 20), (4 * GAP, 900 * MIB));
        assert_eq!(judge(&mut claim, three(1000 * MIB, 2052 * MIB), 30), (24 * MIB, 1020 * MIB));
        assert_eq!(judge(&mut claim, three(1010 * MIB, 2048 * MIB), 40), (0, 1024 * MIB));
    }

    #[test]
    fn who_wants_no_more_keeps_what_it_has_and_claims_nothing() {
        let mut claim = Claim::default();
        for now in [0, 500, 5000] {
            let usage = three(800 * MIB, 2272 * MIB);
            assert_eq!(judge(&mut claim, usage, now), (0, 832 * MIB));
            let usage = Usage { held_at: claim.held_at(&usage, now), ..usage };
            assert!(usage.watermarks().start() > 800 * MIB, "nothing of it is reclaimed");
        }
    }

    #[test]
    fn who_waits_in_vain_for_too_long_takes_its_share() {
        let mut claim = Claim::default();
        for now in (0..=5000).step_by(100) {
            judge(&mut claim, three(800 * MIB, 2272 * MIB), now);
        }
        assert_eq!(judge(&mut claim, three(830 * MIB, 2272 * MIB), 5000).1, 832 * MIB);
        assert_eq!(judge(&mut claim, three(830 * MIB, 2272 * MIB), 5000 + PATIENCE_MS - 1).1, 832 * MIB);
        // They gave way once more, and then no more.
        assert_eq!(judge(&mut claim, three(830 * MIB, 2240 * MIB), 6000).1, 832 * MIB);
        assert_eq!(judge(&mut claim, three(830 * MIB, 2240 * MIB), 6999).1, 832 * MIB);
        assert_eq!(judge(&mut claim, three(830 * MIB, 2240 * MIB), 7000).1, 1024 * MIB);
    }

    #[test]
    fn a_small_process_gets_half_of_its_share_at_once() {
        let mut claim = Claim::default();
        assert_eq!(judge(&mut claim, three(10 * MIB, 3062 * MIB), 0), (0, 512 * MIB));
        assert_eq!(judge(&mut claim, three(500 * MIB, 3062 * MIB), 1), (4 * GAP, 512 * MIB));
    }

    /// It may have 2560 MiB of 3072, and the others leave 332.
    #[test]
    fn whose_turn_it_is_gets_at_once_what_it_would_without() {
        let precedence = Precedence { turn: Turn::Mine(2), ..Precedence::default() };
        let usage = Usage { precedence, ..three(300 * MIB, 2740 * MIB) };
        assert_eq!(usage.fair(), 2560 * MIB);
        assert_eq!(judge(&mut Claim::default(), usage, 0).1, 512 * MIB);
        assert_eq!(judge(&mut Claim::default(), Usage { mine: 900 * MIB, total: 3072 * MIB, ..usage }, 0).1, 932 * MIB);
        let left = Usage { mine: 900 * MIB, total: 1000 * MIB, ..usage };
        assert_eq!(judge(&mut Claim::default(), left, 0).1, 2972 * MIB, "they have");
    }

    /// 30 MiB are free, and all three are short.
    #[test]
    fn who_waits_for_its_turn_takes_its_part_of_what_is_free() {
        let usage =
            |turn| Usage { precedence: Precedence { turn, ..Precedence::default() }, ..three(900 * MIB, 2142 * MIB) };
        assert_eq!(usage(Turn::Waits).watermarks().limit, 910 * MIB);
        assert_eq!(usage(Turn::Open).watermarks().limit, 1024 * MIB);
        assert_eq!(usage(Turn::Mine(2)).left(), 930 * MIB);
        let little = Usage { limit: 6144, total: 6000, mine: 1800, ..usage(Turn::Waits) };
        assert_eq!((little.left(), Usage { precedence: Precedence::default(), ..little }.left()), (1848, 1944));
    }

    #[test]
    fn nobody_waits_for_little() {
        let limit = HELD_PART * HELD_MIN;
        let usage = Usage { limit, total: limit, mine: 10, processes: 20, ..Usage::default() };
        assert_eq!(judge(&mut Claim::default(), usage, 0).1, HELD_MIN);
        let usage = Usage { limit: limit / 4, total: limit / 4, ..usage };
        assert_eq!(judge(&mut Claim::default(), usage, 0).1, HELD_MIN / 4, "of less it is less");
        let usage = Usage { processes: 64, ..usage };
        assert_eq!(judge(&mut Claim::default(), usage, 0).1, HELD_MIN / 8, "its share is smaller");
    }

    #[test]
    fn who_has_more_than_its_share_gives_way_to_claims() {
        let usage = three(400 << 10, 368 << 10);
        assert_eq!(usage.watermarks().limit, 400 << 10);
        assert_eq!(Usage { claims: 100 << 10, ..usage }.watermarks().limit, 300 << 10);
        assert_eq!(Usage { claims: 400 << 10, ..usage }.watermarks().limit, 256 << 10, "its share is its own");
    }

    /// Of a family of 27 with 210 MiB, in which the others have `others` pages and claim some.
    fn of_many(mine: u64, others: u64, claims: u64) -> Usage {
        Usage { limit: 210 * MIB, total: mine + others, mine, processes: 27, claims, siblings: 27, ..Usage::default() }
    }

    #[test]
    fn an_idle_process_keeps_no_share_from_those_that_work() {
        let usage = Usage { limit: 65536, total: 65536, mine: 16384, processes: 4, ..Usage::default() };
        assert!(usage.watermarks().start() >= 16000, "its share is its own");
        let idle = Usage { mine: 14000, precedence: halved(3), ..usage };
        assert!(idle.watermarks().start() < 14000, "it gives way as room is short");
        let works = Usage { limit: 65536, total: 65536 - 2000, mine: 40000, processes: 4, ..Usage::default() };
        let sleeps = Usage { mine: 8000, precedence: halved(3), ..works };
        assert!(works.watermarks().start() > 40000, "nobody who works has to");
        assert!(sleeps.watermarks().start() < 8000, "who is idle does so before");
        let free = Usage { total: 60000, ..idle };
        assert!(free.watermarks().start() > 14000, "and only then");
        let least = Usage { mine: 1000, precedence: halved(32), ..usage };
        assert!(least.watermarks().start() + 2 * GAP_MIN > tuning::IDLE_KEEPS);
        let alone = Usage { mine: 65000, total: 65000, processes: 1, ..least };
        assert_eq!(
            alone.watermarks(),
            Usage { precedence: Precedence::default(), ..alone }.watermarks(),
            "nobody needs what it has"
        );
    }

    #[test]
    fn siblings_share_the_room_that_is_kept_free() {
        let usage = of_many(20 * MIB, 170 * MIB, 0);
        let marks = usage.watermarks();
        assert_eq!(marks.limit, 20 * MIB + 20 * MIB / 27);
        assert!(marks.start() > usage.mine, "of 20 MiB that nobody has this one may take a part");
        let marks = of_many(20 * MIB, 186 * MIB, 0).watermarks();
        assert!(marks.start() < 20 * MIB, "of 4 MiB not");
    }

    #[test]
    fn what_nobody_has_serves_claims() {
        let usage = of_many(20 * MIB, 170 * MIB, 16 * MIB);
        assert_eq!(usage.watermarks().limit, Usage { claims: 0, ..usage }.watermarks().limit);
        assert_eq!(of_many(20 * MIB, 170 * MIB, 25 * MIB).watermarks().limit, 15 * MIB);
        assert_eq!(Claim::default().update(&of_many(5 * MIB, 185 * MIB, 0), 0), 0, "and so nothing is lacking");
    }

    #[test]
    fn room_is_kept_for_what_is_filled_unseen() {
        let room = |unseen| Room { unseen, gap_min: 0 };
        let usage = Usage { limit: 65536, total: 100, mine: 100, processes: 1, room: room(500), ..Usage::default() };
        assert_eq!(usage.watermarks().limit, 65036);
        assert_eq!(Usage { room: room(1 << 40), ..usage }.watermarks().limit, 65536 / 32 * 31);
    }
}
