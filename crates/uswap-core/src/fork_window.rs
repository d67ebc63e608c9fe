//! What happens to the pages of a process while a fork needs its books still: noted beside them, and looked up there.

use alloc::vec::Vec;

use crate::event_order::{Event, EventOrder};
use crate::page_table::{PageState, PageTable};
use crate::units::{PageNumber, PageRange};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The page was brought in.
    Installed(PageNumber),
    /// An event was read.
    Read(Event),
    /// Everything had been read, and nothing was being changed.
    Settled,
    /// After that: what had arrived there, and was undecided, is there still, or is not.
    Decided(PageRange, bool),
    /// After that: what was in doubt has been unmapped.
    Gone(PageRange),
    /// After that: whatever else was in doubt is there.
    Certain,
}

/// What a page is, beside the books.
#[derive(Debug, PartialEq, Eq)]
pub enum Beside {
    /// What the books say of this page, which it was before.
    Known(PageNumber, Option<PageState>),
    /// Brought in since.
    Installed,
    /// Discarded since: zeros.
    Discarded,
}

/// The notes of one fork, in the order in which memory changed.
#[derive(Debug, Default)]
pub struct ForkWindow {
    done: Vec<Done>,
    order: EventOrder,
}

#[derive(Clone, Copy, Debug)]
enum Done {
    Installed(PageNumber),
    Event(Event),
}

impl ForkWindow {
    /// With room for `notes` notes.
    pub fn with_capacity(notes: usize) -> Self {
        Self { done: Vec::with_capacity(notes), order: EventOrder::default() }
    }

    /// As [`EventOrder::expect_no_unmappings`].
    pub fn expect_no_unmappings(&mut self) {
        self.order.expect_no_unmappings();
    }

    /// Takes a note.
    pub fn note(&mut self, note: Note, books: &PageTable) {
        match note {
            Note::Installed(page) => self.done.push(Done::Installed(page)),
            Note::Read(event) => {
                self.order.read(event);
                while let Some(event) = self.order.next(|range| any_adopted(range, &self.done, books)) {
                    self.done.push(Done::Event(event));
                }
            }
            Note::Settled | Note::Decided(..) => {
                if let Note::Decided(place, is_there) = note {
                    self.order.decide(place, is_there);
                }
                while let Some(event) = self.order.next_of_all(|range| any_adopted(range, &self.done, books)) {
                    self.done.push(Done::Event(event));
                }
            }
            Note::Gone(range) => self.done.push(Done::Event(Event::Unmapped(range))),
            Note::Certain => self.order.end_doubts(),
        }
    }

    /// The events that were read.
    pub fn order(&self) -> &EventOrder {
        &self.order
    }

    /// Looks `page` up in the notes, newest first; the books are asked for the page that it was before.
    pub fn look_up(&self, page: PageNumber, books: &PageTable) -> Beside {
        let mut page = page;
        for done in self.done.iter().rev() {
            match *done {
                Done::Installed(installed) if installed == page => return Beside::Installed,
                Done::Event(Event::Removed(range) | Event::Unmapped(range)) if range.contains(page) => {
                    return Beside::Discarded;
                }
                Done::Event(Event::Remapped { from, to }) => {
                    if from.moved_to(to).contains(page) {
                        page = PageNumber(page.0 - to.0 + from.start.0);
                    } else if from.contains(page) {
                        return Beside::Discarded;
                    }
                }
                _ => {}
            }
        }
        Beside::Known(page, books.get(page))
    }
}

/// Whether any page of `range` is adopted, by the notes and the books.
fn any_adopted(range: PageRange, notes: &[Done], books: &PageTable) -> bool {
    let is_adopted = |page: PageNumber| {
        let noted = notes.iter().rev().find_map(|done| match *done {
            Done::Installed(installed) => (installed == page).then_some(true),
            Done::Event(Event::Unmapped(range)) => range.contains(page).then_some(false),
            Done::Event(Event::Remapped { from, to }) => from.moved_to(to).contains(page).then_some(true),
            Done::Event(Event::Removed(_)) => None,
        });
        noted.unwrap_or_else(|| books.get(page).is_some())
    };
    // What is adopted begins at one of these.
    let begins = |done: &Done| match *done {
        Done::Installed(page) => page,
        Done::Event(Event::Unmapped(range) | Event::Removed(range)) => range.end(),
        Done::Event(Event::Remapped { to, .. }) => to,
    };
    let mut at = Some(range.start);
    let in_books = core::iter::from_fn(|| {
        let next = books.next_adopted_range(at?).filter(|next| next.start < range.end());
        at = next.map(PageRange::end);
        next.map(|next| next.start.max(range.start))
    });
    notes
        .iter()
        .map(begins)
        .chain(in_books)
        .chain([range.start])
        .any(|start| range.contains(start) && is_adopted(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange { start: PageNumber(start), pages }
    }

    fn moved(from: PageRange, to: u64) -> Note {
        Note::Read(Event::Remapped { from, to: PageNumber(to) })
    }

    fn books(adopted: &[PageRange]) -> PageTable {
        let mut books = PageTable::new();
        for &range in adopted {
            books.adopt(range);
        }
        for page in [100, 200] {
            books.set(PageNumber(page), PageState::SwappedZero);
        }
        books
    }

    #[test]
    fn a_page_is_looked_up_newest_first() {
        let books = books(&[range(100, 10), range(200, 5)]);
        let mut window = ForkWindow::with_capacity(8);
        let known = |page| Beside::Known(PageNumber(page), Some(PageState::SwappedZero));
        assert_eq!(window.look_up(PageNumber(100), &books), known(100));
        window.note(moved(range(100, 10), 300), &books);
        assert_eq!(window.look_up(PageNumber(300), &books), known(100));
        assert_eq!(window.look_up(PageNumber(100), &books), Beside::Discarded);
        window.note(Note::Installed(PageNumber(300)), &books);
        assert_eq!(window.look_up(PageNumber(300), &books), Beside::Installed);
        window.note(Note::Read(Event::Unmapped(range(100, 10))), &books);
        window.note(moved(range(300, 10), 100), &books);
        // It may be older than the first, and leave it alone.
        assert!(window.order().holds());
        window.note(Note::Settled, &books);
        assert_eq!(window.order().undecided(), Some(range(300, 10)));
        window.note(Note::Decided(range(300, 10), false), &books);
        assert_eq!(window.look_up(PageNumber(100), &books), Beside::Installed);
        window.note(Note::Read(Event::Removed(range(100, 1))), &books);
        assert_eq!(window.look_up(PageNumber(100), &books), Beside::Discarded);
    }

    #[test]
    fn events_are_put_in_order() {
        let books = books(&[range(100, 10), range(200, 5)]);
        let mut window = ForkWindow::with_capacity(8);
        window.note(moved(range(100, 10), 300), &books);
        window.note(moved(range(200, 5), 100), &books);
        window.note(Note::Read(Event::Unmapped(range(200, 5))), &books);
        assert!(window.order().holds());
        window.note(Note::Read(Event::Unmapped(range(100, 10))), &books);
        // By the events alone, what was moved to page 100 may have gone as well.
        assert!(window.order().holds());
        let known = |page| Beside::Known(PageNumber(page), Some(PageState::SwappedZero));
        assert_eq!(window.look_up(PageNumber(100), &books), known(200));
        assert_eq!(window.look_up(PageNumber(300), &books), known(100));
        window.note(Note::Settled, &books);
        window.note(Note::Gone(range(103, 2)), &books);
        window.note(Note::Certain, &books);
        assert!(!window.order().holds());
        assert_eq!(window.look_up(PageNumber(100), &books), known(200));
        assert_eq!(window.look_up(PageNumber(103), &books), Beside::Discarded);
    }

    /// Against a plain set of pages.
    #[test]
    fn what_is_adopted_is_found() {
        let mut random = 88_172_645_463_325_252u64;
        let mut draw = |below: u64| {
            for shift in [13i32, -7, 17] {
                random ^= if shift > 0 { random << shift } else { random >> -shift };
            }
            random % below
        };
        for _ in 0..2000 {
            let mut books = PageTable::new();
            let mut plain = [false; 64];
            for _ in 0..draw(4) {
                let part = range(draw(50), draw(10));
                books.adopt(part);
                plain[part.start.0 as usize..part.end().0 as usize].fill(true);
            }
            let mut notes = Vec::new();
            for _ in 0..draw(6) {
                let part = range(draw(50), 1 + draw(10));
                let place = |part: PageRange| part.start.0 as usize..part.end().0 as usize;
                notes.push(match draw(4) {
                    0 => {
                        plain[part.start.0 as usize] = true;
                        Done::Installed(part.start)
                    }
                    1 => {
                        plain[place(part)].fill(false);
                        Done::Event(Event::Unmapped(part))
                    }
                    2 => {
                        let to = PageNumber(draw(50));
                        plain[place(part.moved_to(to))].fill(true);
                        Done::Event(Event::Remapped { from: part, to })
                    }
                    _ => Done::Event(Event::Removed(part)),
                });
            }
            let asked = range(draw(50), 1 + draw(13));
            let expected = plain[asked.start.0 as usize..asked.end().0 as usize].contains(&true);
            assert_eq!(any_adopted(asked, &notes, &books), expected, "{asked:?} {notes:?}");
        }
    }
}
