//! Events: what the program does to adopted memory, put in order and written into the books, or beside them while a fork
//! needs them still.

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::event_order::{Event, Mappings, Settlement};
use uswap_core::fork_window::Note;
use uswap_core::{PAGE_SIZE, PageNumber, PageRange, PageState};
use uswap_system::faults::{Faults, Message};
use uswap_system::looks::Residency;

use crate::engine::Engine;
use crate::group::Counter;
use crate::host::Host;

impl<H: Host> Engine<H> {
    /// Takes in an event that was read, with the gate shut.
    pub(crate) fn read_event(&self, message: Message, frozen: bool) {
        self.count(Counter::UffdEvents, 1);
        let event = match message {
            Message::Remap { from, to, len } => {
                let pages = (len / PAGE_SIZE) as u64;
                let from = PageRange { start: PageNumber::containing(from), pages };
                let may_stay = H::notices().left_mapped.may_be_one(from.start.address());
                Event::Remapped { from, to: PageNumber::containing(to), may_stay }
            }
            Message::Remove { start, end } => Event::Removed(PageRange::of_bytes(start, end)),
            Message::Unmap { start, end } => Event::Unmapped(PageRange::of_bytes(start, end)),
            Message::Fault { .. } => unreachable!("faults are served, not applied"),
            Message::Other(kind) => {
                self.fatal(format_args!("uswap: userfaultfd sent a message of unknown kind {kind:#x}"))
            }
        };
        let is_lost = match event {
            Event::Remapped { .. } => is_on(Sabotage::RemapLost),
            Event::Removed(_) => is_on(Sabotage::RemoveLost),
            Event::Unmapped(_) => is_on(Sabotage::UnmapLost),
            _ => false,
        };
        if is_lost || frozen && is_on(Sabotage::ForkNoteLost) {
            return;
        }
        if H::notices().fork_advice.is_used() {
            self.memory.order().was_read(event, H::notices().fork_advice.last_read());
        }
        if frozen {
            self.note_aside(&[Note::Read(event)]);
        } else {
            self.memory.keep_event(event);
        }
    }

    /// With the gate shut: applies all that was read, if nothing is being changed, so that everything that has happened was
    /// read. Nothing is filled until then. What the program changes meanwhile is unread, and so comes later: it does not matter,
    /// unless the kernel was asked ([`Mappings`]).
    pub(crate) fn settle_events(&self, frozen: bool) {
        let holds = if frozen { self.forking.window.order(|order| order.holds()) } else { self.memory.order().holds() };
        if !holds || self.memory.uffd.kernel_is_changing() && !is_on(Sabotage::SettledTooEarly) {
            return;
        }
        let settlement =
            if frozen { self.settle_window() } else { self.memory.order().settle(self.core().pages(), self) };
        match settlement {
            Settlement::Decided(events) if frozen => self.settle_aside(events),
            Settlement::Decided(events) => self.settle(events),
            Settlement::Changing => {}
            Settlement::Unclear(page) => self.end_unclear(page),
        }
    }

    /// Before something is filled or moved, with `running` held: another thread may have read events since the last look.
    pub(crate) fn settle_what_is_held(&self) {
        if self.memory.uffd.holds_events() && !self.memory.uffd.kernel_is_changing() {
            let _gate = self.memory.gate.shut();
            self.settle_events(false);
        }
    }

    fn settle(&self, events: Vec<Event>) {
        events.into_iter().for_each(|event| self.apply(event));
        self.memory.events_are_settled();
        self.all_is_in_the_books();
    }

    /// With the gate shut: whatever has been read is in the books.
    pub(crate) fn all_is_in_the_books(&self) {
        if H::notices().fork_advice.is_used() {
            self.memory.order().forget_reads();
        }
        H::notices().fork_advice.all_is_settled();
    }

    /// As [`settle`](Self::settle), beside the books.
    fn settle_aside(&self, events: Vec<Event>) {
        let mut notes: Vec<Note> = events.into_iter().map(Note::Applied).collect();
        notes.push(Note::Settled);
        self.note_aside(&notes);
    }

    /// Several threads have moved memory on to places of each other, and nothing tells which of it is where.
    fn end_unclear(&self, page: PageNumber) {
        self.fatal(format_args!(
            "uswap: process {} moved memory by several threads at a time, and the kernel's reports do not tell which of it is \
             at {:#x} now; it is ended, for it could read wrong data (docs/event-order.md)",
            H::process_id(),
            page.address()
        ));
    }

    /// In which read `event` was, which is applied.
    fn take_read_of(&self, event: Event) -> Option<u64> {
        if H::notices().fork_advice.is_used() { self.memory.order().take_read_of(event) } else { None }
    }

    /// Does something while no page is on its way in or out.
    pub fn while_nothing_moves<R>(&self, act: impl FnOnce() -> R) -> R {
        let _gate = self.memory.gate.shut();
        act()
    }

    /// Pages between `start` and `end` whose content is not in memory, or not where it belongs: their addresses, at most so many. Whoever wants
    /// them back has them asked for. What is lost, and what is all zeros, is none of them.
    pub fn swapped_within(&self, start: usize, end: usize, most: usize) -> Vec<usize> {
        let core = self.core();
        let known = core.pages().known(PageRange::of_bytes(start, end));
        let is_away = |state| {
            matches!(
                state,
                PageState::InFrame { .. } | PageState::Swapped { .. } | PageState::ReadingIn { entry: Some(_), .. }
            )
        };
        known.filter(|&(_, state)| is_away(state)).map(|(page, _)| page.address()).take(most).collect()
    }

    /// Memory from `start` to `end` is managed no more, and nothing that was swapped out of it is needed: whoever has it has said so by
    /// another way than an event.
    pub fn manages_no_more(&self, start: usize, end: usize) {
        let _gate = self.memory.gate.shut();
        self.apply(Event::Unmapped(PageRange::of_bytes(start, end)));
    }

    pub(crate) fn apply(&self, event: Event) {
        // Told first: who sees in the books that something has been moved has been told, or will find them changed.
        let said = &H::notices().fork_advice;
        match event {
            Event::Remapped { from, to, .. } => said.moved(from, to, self.take_read_of(event)),
            Event::Unmapped(range) => said.gone(range, self.take_read_of(event)),
            _ => {}
        }
        self.core().apply(event);
        self.books.begins_anew(event.range());
        if let Event::Remapped { from, to, .. } = event {
            self.books.begins_anew(from.moved_to(to));
        }
        // What threads wait for there may have ended with it, unknown to whoever would have woken them.
        let range = event.range();
        self.memory.wake(range.start, range.pages);
    }
}

impl<H: Host> Mappings for Engine<H> {
    fn is_registered(&self, range: PageRange) -> Option<bool> {
        match self.memory.uffd.is_registered(range.start.address(), range.pages as usize * PAGE_SIZE) {
            // A change may have begun since the kernel asked itself whether there is one.
            Some(false) if self.memory.uffd.kernel_is_changing() => None,
            answer => answer,
        }
    }

    fn is_present(&self, page: PageNumber) -> Option<bool> {
        let is_present = self.memory.has_populated(page.address(), page.address() + PAGE_SIZE);
        // With the gate shut nothing is read: whatever has been changed since the events were read is counted still.
        (!self.memory.uffd.kernel_is_changing()).then_some(is_present)
    }

    fn sees_absence(&self) -> bool {
        self.memory.pagemap.shows_absence()
    }

    /// A thread that a program has made by a system call in its own machine code is counted while it lives.
    fn are_by_one_thread(&self) -> bool {
        is_on(Sabotage::ThreadsNotCounted) || !H::notices().uses.threads.is_noted() && H::program_has_one_thread()
    }
}
