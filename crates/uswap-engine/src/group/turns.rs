//! The swap token: it is with the living process that has the lowest ticket ([`uswap_core::turns`]).

use uswap_core::turns::{First, Turn};
use uswap_system::atomic::Ordering::{AcqRel, Relaxed};

use super::Group;

impl Group {
    /// Whether the process with this index has a ticket.
    pub(crate) fn has_ticket(&self, index: u32) -> bool {
        self.process(index).wants.ticket.load(Relaxed) > 0
    }

    /// The process with this index takes a ticket, behind all others.
    pub(crate) fn take_ticket(&self, index: u32) {
        let ticket = self.header().budget.tickets.fetch_add(1, AcqRel) + 1;
        self.process(index).wants.ticket.store(ticket, Relaxed);
    }

    /// It gives it back.
    pub(crate) fn return_ticket(&self, index: u32) {
        self.process(index).wants.ticket.store(0, Relaxed);
    }

    /// The process with this index has judged once more whether it keeps its ticket.
    pub(crate) fn has_judged(&self, index: u32) {
        self.process(index).wants.judgements.fetch_add(1, Relaxed);
    }

    /// All tickets, and who has them.
    fn tickets(&self) -> impl Iterator<Item = (u64, u32)> {
        let tickets = self.processes().map(|(index, slot)| (slot.wants.ticket.load(Relaxed), index));
        tickets.filter(|&(ticket, _)| ticket > 0)
    }

    /// The lowest ticket, and the index of the process that has it.
    pub(crate) fn first_ticket(&self) -> Option<(u32, First)> {
        let (ticket, index) = self.tickets().min()?;
        Some((index, First { ticket, judgements: self.process(index).wants.judgements.load(Relaxed) }))
    }

    /// Takes that ticket from the process with this index, if it still has it.
    pub(crate) fn take_away(&self, index: u32, ticket: u64) {
        let _ = self.process(index).wants.ticket.compare_exchange(ticket, 0, AcqRel, Relaxed);
    }

    /// Whose turn it is, for the process with this index.
    pub(crate) fn turn_of(&self, index: u32) -> Turn {
        let mine = self.process(index).wants.ticket.load(Relaxed);
        if mine == 0 {
            return Turn::Open;
        }
        let others = self.tickets().filter(|&(ticket, _)| ticket != mine).count() as u64;
        match self.tickets().min() {
            _ if others == 0 => Turn::Open,
            Some((first, _)) if first < mine => Turn::Waits,
            _ => Turn::Mine(others),
        }
    }
}
