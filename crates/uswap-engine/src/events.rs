//! Events: what the program does to adopted memory, put in order and written into the books, or beside them while a fork
//! needs them still.

use uswap_core::event_order::Event;
use uswap_core::fork_window::Note;
use uswap_core::{PAGE_SIZE, PageNumber, PageRange};
use uswap_sys::uffd::Message;

use crate::engine::Engine;
use crate::fork_advice;
use crate::group::Counter;
use crate::left_mapped;

impl Engine {
    /// Takes in an event that was read, with the gate shut.
    pub(crate) fn read_event(&self, message: Message, frozen: bool) {
        self.count(Counter::UffdEvents, 1);
        let event = match message {
            Message::Remap { from, to, len } => {
                let pages = (len / PAGE_SIZE) as u64;
                let from = PageRange { start: PageNumber::containing(from), pages };
                Event::Remapped { from, to: PageNumber::containing(to) }
            }
            Message::Remove { start, end } => Event::Removed(PageRange::of_bytes(start, end)),
            Message::Unmap { start, end } => Event::Unmapped(PageRange::of_bytes(start, end)),
            Message::Fault { .. } => unreachable!("faults are served, not applied"),
            Message::Other(kind) => {
                self.fatal(format_args!("uswap: userfaultfd sent a message of unknown kind {kind:#x}"))
            }
        };
        if frozen {
            self.note_aside(Note::Read(event));
        } else {
            self.put_in_order(event);
        }
    }

    /// After messages have been read, with the gate still shut: when nothing is being changed, no event is due.
    pub(crate) fn settle_events(&self, frozen: bool) {
        let is_settled = if frozen { self.window.is_settled() } else { self.order.lock().is_empty() };
        if is_settled || self.uffd.kernel_is_changing() {
            return;
        }
        if frozen {
            self.note_aside(Note::Settled);
        } else {
            self.apply_all();
        }
    }

    /// Applies the events that may be applied, now that `event` has been read.
    pub(crate) fn put_in_order(&self, event: Event) {
        let mut order = self.order.lock();
        if left_mapped::is_used() {
            order.expect_no_unmappings();
        }
        order.read(event);
        while let Some(event) = order.next(|range| self.core().pages().has_adopted(range)) {
            self.apply(event);
        }
        self.uffd.hold_events(order.holds());
    }

    /// Applies everything that is held back.
    pub(crate) fn apply_all(&self) {
        let mut order = self.order.lock();
        while let Some(event) = order.next_of_all(|range| self.core().pages().has_adopted(range)) {
            self.apply(event);
        }
        self.uffd.hold_events(false);
    }

    fn apply(&self, event: Event) {
        self.core().apply(event);
        if let Event::Remapped { from, to } = event {
            fork_advice::moved(from.start, to, from.pages);
        }
        // What threads wait for there may have ended with it, unknown to whoever would have woken them.
        let range = event.range();
        self.wake(range.start, range.pages);
    }
}
