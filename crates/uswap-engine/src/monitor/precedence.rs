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
        let Judgement { idle, turns, .. } = &self.share.precedence;
        let (idle_is_due, turn_is_due) = (idle.is_due(self.came_back(), now_ms), turns.is_due(now_ms));
        if idle_is_due || turn_is_due {
            let evidence = self.evidence();
            if idle_is_due {
                self.share.precedence.idle.update(&evidence, now_ms);
            }
            if turn_is_due {
                self.judge_turn(&evidence, uses, now_ms);
            }
        }
        let turn = self.member().group.turn_of(self.member().index);
        Precedence { halvings: self.share.precedence.idle.halvings(now_ms), turn }
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

    /// Takes or returns a ticket.
    fn judge_turn(&mut self, evidence: &Evidence, uses: u64, now_ms: u64) {
        let (group, index) = (self.member().group, self.member().index);
        let standing = Standing { turn: group.turn_of(index), has_ticket: group.has_ticket(index), uses };
        group.has_judged(index);
        if standing.turn == Turn::Waits {
            self.watch_whose_turn_it_is(now_ms);
        }
        match self.share.precedence.turns.update(evidence, standing, now_ms) {
            Ticket::Keep => {}
            Ticket::Take => group.take_ticket(index),
            Ticket::Return => group.return_ticket(index),
        }
    }

    /// One that has been stopped would keep the token for ever.
    fn watch_whose_turn_it_is(&mut self, now_ms: u64) {
        let group = self.member().group;
        let Some((index, first)) = group.first_ticket() else { return };
        if self.share.precedence.watch.is_silent(first, now_ms) {
            group.take_away(index, first.ticket);
        }
    }
}
