//! Turns: of several processes that thrash, one at a time gets what it works in.
//!
//! Where each of several has less than it works in, each brings in what it let go of just before, and all get on at the speed of the swap
//! areas. The kernel's one LRU ends that by chance, for who waits for its pages loses more of them to who runs; a fair share
//! ([`crate::budget`]) would make it last. So there is a *swap token*, as Linux had one from 2.6.9 to 3.4 (Jiang and Zhang, "Token-ordered
//! LRU", 2005): who has it may use what the others that thrash give way, until it grows no more; then it goes to who has waited for
//! longest. Nobody is stopped: the others go on with a part of their fair share.
//!
//! Who begins to thrash takes a *ticket*. The token is with the lowest one of a living process, so that it is never lost. Who has one says
//! with each judgement that it goes on; those who wait take the ticket from one that has been stopped ([`Watch`]).

use crate::idle::Evidence;

/// How long evidence is gathered before it is judged.
const INTERVAL_MS: u64 = 50;
/// Who brings in so many pages in an interval (10 MiB/s), and moves out half as many, thrashes. Who moves out none lets go of what it has read
/// only, which costs little.
const THRASHES_PAGES: u64 = 128;
/// Who has not thrashed for so long gives its ticket back.
const THRASHED_MS: u64 = 200;
/// Who grows by so many pages, 1 MiB, brings in what it works in.
const GROWS_PAGES: u64 = 256;
/// Who has the token and has not grown for so long has what it works in, and has worked in it.
const SETTLED_MS: u64 = 300;
/// Whatever it does, it keeps the token for no longer than this.
const TURN_MAX_MS: u64 = 5000;
/// Who has the token and has not judged for so long has been stopped.
const SILENT_MS: u64 = 1000;

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Turn {
    /// Nobody's, or nobody waits for it.
    #[default]
    Open,
    /// This process's. So many others wait.
    Mine(u64),
    /// Another's. This process waits.
    Waits,
}

/// What a process does about its ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ticket {
    /// It keeps it, or goes on without one.
    Keep,
    /// It takes a new one, behind all others.
    Take,
    /// It gives it back.
    Return,
}

/// What a process knows when it judges.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Whose turn it is.
    pub turn: Turn,
    /// The process has a ticket.
    pub has_ticket: bool,
    /// Pages that it uses of the budget.
    pub uses: u64,
}

/// The time that a process has had the token.
#[derive(Clone, Copy, Debug)]
struct Possession {
    begun_ms: u64,
    /// The most that it has used since, and when that became more.
    most: u64,
    grew_ms: u64,
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct Turns {
    /// When evidence was last judged, and what there was.
    judged: Option<(u64, Evidence)>,
    possession: Option<Possession>,
    /// When it was last seen to thrash.
    thrashed_ms: Option<u64>,
}

impl Turns {
    /// Whether the evidence is to be judged again. To know the processor time costs a system call.
    pub fn is_due(&self, now_ms: u64) -> bool {
        self.judged.is_none_or(|(judged_ms, _)| now_ms.saturating_sub(judged_ms) >= INTERVAL_MS)
    }

    /// Judges anew. `now_ms` may begin anywhere.
    pub fn update(&mut self, evidence: &Evidence, standing: Standing, now_ms: u64) -> Ticket {
        let Some((judged_ms, then)) = self.judged.replace((now_ms, *evidence)) else { return Ticket::Keep };
        let passed_ms = now_ms.saturating_sub(judged_ms);
        let thrashes = then.shows_thrashing(evidence, passed_ms);
        if thrashes {
            self.thrashed_ms = Some(now_ms);
        }
        if let Turn::Mine(_) = standing.turn {
            let has_had_it = self.has_had_it(standing.uses, now_ms);
            return match then.shows_work(evidence, passed_ms) {
                // It may wait for one of the others.
                false => Ticket::Return,
                true if has_had_it => Ticket::Take,
                true => Ticket::Keep,
            };
        }
        self.possession = None;
        let has_thrashed = self.thrashed_ms.is_some_and(|then| now_ms.saturating_sub(then) < THRASHED_MS);
        match standing.has_ticket {
            false if thrashes => Ticket::Take,
            true if !has_thrashed => Ticket::Return,
            _ => Ticket::Keep,
        }
    }

    /// Whether the process, which has the token, has had it for long enough.
    fn has_had_it(&mut self, uses: u64, now_ms: u64) -> bool {
        let begins = Possession { begun_ms: now_ms, most: uses, grew_ms: now_ms };
        let possession = self.possession.get_or_insert(begins);
        if uses >= possession.most + GROWS_PAGES {
            (possession.most, possession.grew_ms) = (uses, now_ms);
        }
        let Possession { begun_ms, grew_ms, .. } = *possession;
        now_ms.saturating_sub(grew_ms) >= SETTLED_MS || now_ms.saturating_sub(begun_ms) >= TURN_MAX_MS
    }
}

/// The ticket that the token is with, as those see it who wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct First {
    /// The ticket.
    pub ticket: u64,
    /// How often its process has judged.
    pub judgements: u64,
}

/// What a process that waits knows of the one that it waits for.
#[derive(Debug, Default)]
pub struct Watch {
    /// What it was like when that was last another, and when.
    seen: Option<(First, u64)>,
}

impl Watch {
    /// Whether the process with the first ticket has been stopped: it has not judged for too long.
    pub fn is_silent(&mut self, first: First, now_ms: u64) -> bool {
        match self.seen {
            Some((seen, since_ms)) if seen == first => now_ms.saturating_sub(since_ms) >= SILENT_MS,
            _ => {
                self.seen = Some((first, now_ms));
                false
            }
        }
    }
}

impl Evidence {
    /// Whether the process has thrashed between this and `later`, `ms` afterwards.
    fn shows_thrashing(&self, later: &Evidence, ms: u64) -> bool {
        let came_back = later.came_back.saturating_sub(self.came_back);
        let moved_out = later.moved_out.saturating_sub(self.moved_out);
        came_back * INTERVAL_MS >= THRASHES_PAGES * ms.max(INTERVAL_MS) && moved_out * 2 >= came_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process, 50 ms at a time.
    #[derive(Default)]
    struct Process {
        turns: Turns,
        now_ms: u64,
        evidence: Evidence,
        has_ticket: bool,
        uses: u64,
    }

    impl Process {
        /// It brings in and moves out so many pages, and uses a whole processor for it.
        fn goes_on(&mut self, turn: Turn, came_back: u64, moved_out: u64) -> Ticket {
            self.now_ms += INTERVAL_MS;
            self.evidence.came_back += came_back;
            self.evidence.moved_out += moved_out;
            let processor_us = self.evidence.processor_us.unwrap_or(0) + INTERVAL_MS * 1000;
            self.evidence.processor_us = Some(processor_us);
            self.judges(turn)
        }

        fn does_nothing(&mut self, turn: Turn) -> Ticket {
            self.now_ms += INTERVAL_MS;
            self.judges(turn)
        }

        fn judges(&mut self, turn: Turn) -> Ticket {
            assert!(self.turns.is_due(self.now_ms));
            let standing = Standing { turn, has_ticket: self.has_ticket, uses: self.uses };
            let ticket = self.turns.update(&self.evidence, standing, self.now_ms);
            match ticket {
                Ticket::Keep => {}
                Ticket::Take => self.has_ticket = true,
                Ticket::Return => self.has_ticket = false,
            }
            ticket
        }
    }

    #[test]
    fn who_thrashes_takes_a_ticket_and_who_ceases_to_gives_it_back() {
        let mut process = Process::default();
        assert_eq!(process.goes_on(Turn::Open, 1000, 1000), Ticket::Keep, "nothing to compare with");
        assert_eq!(process.goes_on(Turn::Open, 100, 100), Ticket::Keep, "that little is none");
        assert_eq!(process.goes_on(Turn::Open, 1000, 400), Ticket::Keep, "it lets go of what is stored");
        assert_eq!(process.goes_on(Turn::Open, 1000, 500), Ticket::Take);
        for _ in 0..3 {
            assert_eq!(process.goes_on(Turn::Waits, 10, 10), Ticket::Keep);
        }
        assert_eq!(process.goes_on(Turn::Waits, 10, 10), Ticket::Return);
        assert_eq!(process.goes_on(Turn::Open, 1000, 1000), Ticket::Take);
    }

    #[test]
    fn a_look_that_comes_late_makes_nobody_thrash() {
        let mut process = Process::default();
        process.goes_on(Turn::Open, 0, 0);
        process.now_ms += 9 * INTERVAL_MS;
        assert_eq!(process.goes_on(Turn::Open, 9 * THRASHES_PAGES, 9 * THRASHES_PAGES), Ticket::Keep);
        process.now_ms += 9 * INTERVAL_MS;
        assert_eq!(process.goes_on(Turn::Open, 10 * THRASHES_PAGES, 10 * THRASHES_PAGES), Ticket::Take);
    }

    #[test]
    fn a_turn_ends_a_while_after_the_process_has_grown() {
        let mut process = Process { has_ticket: true, ..Process::default() };
        process.goes_on(Turn::Waits, 1000, 1000);
        for _ in 0..40 {
            process.uses += GROWS_PAGES;
            assert_eq!(process.goes_on(Turn::Mine(3), 300, 0), Ticket::Keep);
        }
        // Slower than that is not growth.
        for _ in 1..SETTLED_MS / INTERVAL_MS {
            process.uses += 1;
            assert_eq!(process.goes_on(Turn::Mine(3), 0, 0), Ticket::Keep);
        }
        assert_eq!(process.goes_on(Turn::Mine(3), 0, 0), Ticket::Take, "behind the others");
        // The next turn is a new one.
        process.goes_on(Turn::Waits, 1000, 1000);
        assert_eq!(process.goes_on(Turn::Mine(3), 300, 0), Ticket::Keep);
    }

    #[test]
    fn nobody_keeps_the_token_by_growing() {
        let mut process = Process { has_ticket: true, ..Process::default() };
        process.goes_on(Turn::Waits, 1000, 1000);
        let mut kept = 0;
        while process.goes_on(Turn::Mine(1), 1000, 0) == Ticket::Keep {
            process.uses += 2 * GROWS_PAGES;
            kept += 1;
            assert!(kept <= TURN_MAX_MS / INTERVAL_MS);
        }
        assert_eq!(kept, TURN_MAX_MS / INTERVAL_MS);
    }

    #[test]
    fn who_says_nothing_has_been_stopped() {
        let mut watch = Watch::default();
        let first = |ticket, judgements| First { ticket, judgements };
        assert!(!watch.is_silent(first(7, 1), 100));
        assert!(!watch.is_silent(first(7, 1), 100 + SILENT_MS - 1));
        assert!(!watch.is_silent(first(7, 2), 100 + SILENT_MS), "it has judged");
        assert!(!watch.is_silent(first(9, 2), 100 + 2 * SILENT_MS), "it is another one");
        assert!(watch.is_silent(first(9, 2), 100 + 3 * SILENT_MS));
    }

    #[test]
    fn who_waits_for_another_does_not_keep_the_token() {
        let mut process = Process { has_ticket: true, ..Process::default() };
        process.goes_on(Turn::Waits, 1000, 1000);
        assert_eq!(process.goes_on(Turn::Mine(1), 1000, 0), Ticket::Keep);
        assert_eq!(process.does_nothing(Turn::Mine(1)), Ticket::Return);
    }
}
