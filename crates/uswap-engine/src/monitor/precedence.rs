//! Precedence: whether this process gives way to others, or they to it, by what it does.

use uswap_core::budget::Precedence;
use uswap_core::idle::{Evidence, Idle};
use uswap_core::turns::{Standing, Ticket, Turn, Turns, Watch};
use uswap_system::looks::Footprint;

use super::Monitor;
use crate::group::Counter;
use crate::staffed::Staffed;

/// What is known of it.
#[derive(Default)]
pub(super) struct Judgement {
    idle: Idle,
    turns: Turns,
    watch: Watch,
}

impl<H: Staffed> Monitor<H> {
    /// Whether it does, while it uses so many pages of the budget.
    pub(super) fn precedence(&mut self, uses: u64, now_ms: u64) -> Precedence {
        Precedence { halvings: self.halvings(now_ms), turn: self.whose_turn(uses, now_ms) }
    }

    /// Pages of this process that came back, ever.
    pub(super) fn came_back(&self) -> u64 {
        let tally = &self.member().slot().tally;
        tally.get(Counter::Pswpin) + tally.get(Counter::SwapCacheHit)
    }

    /// What this process has done, ever.
    fn evidence(&self) -> Evidence {
        let processor_us = H::Footprint::processor_time().ok().map(|time| time.as_micros() as u64);
        let moved_out = self.member().slot().tally.get(Counter::Pswpout);
        Evidence { came_back: self.came_back(), moved_out, processor_us }
    }

    /// How often the fair share of this process is halved, because it does nothing.
    fn halvings(&mut self, now_ms: u64) -> u32 {
        if self.share.precedence.idle.is_due(self.came_back(), now_ms) {
            let evidence = self.evidence();
            self.share.precedence.idle.update(&evidence, now_ms);
        }
        self.share.precedence.idle.halvings(now_ms)
    }

    /// Whose turn it is, of the processes that thrash. This one uses so many pages of the budget.
    fn whose_turn(&mut self, uses: u64, now_ms: u64) -> Turn {
        let (group, index) = (self.member().group, self.member().index);
        let turn = group.turn_of(index);
        if !self.share.precedence.turns.is_due(now_ms) {
            return turn;
        }
        let standing = Standing { turn, has_ticket: group.has_ticket(index), uses };
        group.has_judged(index);
        self.watch_whose_turn_it_is(turn, now_ms);
        let evidence = self.evidence();
        match self.share.precedence.turns.update(&evidence, standing, now_ms) {
            Ticket::Keep => return turn,
            Ticket::Take => group.take_ticket(index),
            Ticket::Return => group.return_ticket(index),
        }
        group.turn_of(index)
    }

    /// One that has been stopped would keep the token for ever.
    fn watch_whose_turn_it_is(&mut self, turn: Turn, now_ms: u64) {
        let group = self.member().group;
        let Some((index, first)) = group.first_ticket().filter(|_| turn == Turn::Waits) else { return };
        if self.share.precedence.watch.is_silent(first, now_ms) {
            group.take_away(index, first.ticket);
        }
    }
}
