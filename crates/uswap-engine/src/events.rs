//! Events: what the program does to adopted memory, put in order and written into the books, or beside them while a fork
//! needs them still.

use uswap_core::event_order::{Doubt, Event};
use uswap_core::fork_window::Note;
use uswap_core::{PAGE_SIZE, PageNumber, PageRange};
use uswap_sys::maps::MapQuery;
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
            self.settle_aside();
        } else {
            self.settle();
        }
    }

    fn settle(&self) {
        self.apply_all();
        let undecided = || self.order.lock().undecided();
        while let Some(place) = undecided() {
            let Some(is_there) = self.is_there(place) else { return };
            self.decide(place, is_there);
        }
        let doubts = self.order.lock().doubts().to_vec();
        let Some(gone) = self.gone(&doubts) else { return };
        gone.into_iter().for_each(|part| self.apply(Event::Unmapped(part)));
        self.end_doubts();
    }

    /// As [`settle`](Self::settle), as far as the journal has room. The rest is settled when the window has been closed.
    fn settle_aside(&self) {
        self.note_aside(Note::Settled);
        let undecided = || self.window.order(|order| order.undecided());
        while let Some(place) = undecided().filter(|_| self.window.has_room_for(1)) {
            let Some(is_there) = self.is_there(place) else { return };
            self.note_aside(Note::Decided(place, is_there));
        }
        let doubts = self.window.order(|order| order.doubts().to_vec());
        let Some(gone) = self.gone(&doubts) else { return };
        if !doubts.is_empty() && self.window.has_room_for(gone.len() + 1) {
            gone.into_iter().for_each(|part| self.note_aside(Note::Gone(part)));
            self.note_aside(Note::Certain);
        }
    }

    /// Whether what a mremap has moved to `place` is there still; `None` when the program is changing its memory.
    fn is_there(&self, place: PageRange) -> Option<bool> {
        let begins_here = begins_at(place.start.address());
        let is_there = begins_here && self.uffd.is_registered(place.start.address(), PAGE_SIZE)?;
        // In this order: what an unread event tells of is counted still.
        (!self.uffd.kernel_is_changing()).then_some(is_there)
    }

    /// What of `doubts` has been unmapped; `None` when the program is changing its memory.
    fn gone(&self, doubts: &[Doubt]) -> Option<Vec<PageRange>> {
        let mut gone = Vec::new();
        for doubt in doubts {
            let start = doubt.place.start.address();
            if doubt.from_its_start && self.uffd.is_registered(start, PAGE_SIZE)? && !begins_at(start) {
                // Something has grown over it.
                gone.push(doubt.range);
                continue;
            }
            let mut parts = vec![doubt.range];
            while let Some(part) = parts.pop() {
                match self.uffd.is_registered(part.start.address(), part.pages as usize * PAGE_SIZE)? {
                    true => {}
                    false if part.pages == 1 => gone.push(part),
                    false => parts.extend(part.halves()),
                }
            }
        }
        (doubts.is_empty() || !self.uffd.kernel_is_changing()).then_some(gone)
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
        self.uffd.hold_events(order.holds());
    }

    /// Applies everything, in a child that cannot ask any more what was there.
    pub(crate) fn end_events(&self) {
        self.apply_all();
        let undecided = || self.order.lock().undecided();
        while let Some(place) = undecided() {
            self.decide(place, false);
        }
        self.end_doubts();
    }

    /// What was undecided is decided.
    pub(crate) fn decide(&self, place: PageRange, is_there: bool) {
        self.order.lock().decide(place, is_there);
        self.apply_all();
    }

    /// What was in doubt is certain.
    pub(crate) fn end_doubts(&self) {
        let mut order = self.order.lock();
        order.end_doubts();
        self.uffd.hold_events(order.holds());
    }

    pub(crate) fn apply(&self, event: Event) {
        self.core().apply(event);
        if let Event::Remapped { from, to } = event {
            fork_advice::moved(from.start, to, from.pages);
        }
        // What threads wait for there may have ended with it, unknown to whoever would have woken them.
        let range = event.range();
        self.wake(range.start, range.pages);
    }
}

/// Whether a mapping begins at `address`; before Linux 6.11, whether one may.
fn begins_at(address: usize) -> bool {
    let found = MapQuery::open_self().ok().map(|mut query| query.at(address).is_some_and(|vma| vma.start == address));
    found.unwrap_or(true)
}
