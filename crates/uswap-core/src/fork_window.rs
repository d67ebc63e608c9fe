//! What happens to the pages of a process while a fork needs its books still: noted beside them, and looked up there.

use alloc::vec;
use alloc::vec::Vec;

use crate::core::Core;
use crate::event_order::{Event, EventOrder, Mappings, Settlement, Witness};
use crate::fault::LoadPlan;
use crate::page_table::{PageState, PageTable};
use crate::ranges::RangeSet;
use crate::units::{PageNumber, PageRange};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The page was brought in.
    Installed(PageNumber),
    /// Memory was adopted while the program was changing its memory, before the window.
    Came(PageRange),
    /// An event was read.
    Read(Event),
    /// Everything that was read has been put in order: what it came to stands before this.
    Settled,
    /// What was read came to this, among others.
    Applied(Event),
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

impl Core {
    /// What a thread wants that waits for `page`, which is swapped out, while the books must stay as they are: nothing is freed
    /// meanwhile, so nothing is pinned, and the books are not told when it has ended.
    pub fn load_beside(&self, page: PageNumber) -> Option<LoadPlan> {
        let Some(PageState::Swapped { entry }) = self.pages.get(page) else { return None };
        Some(LoadPlan::alone(page, entry, &self.table))
    }
}

/// The notes of one fork, in the order in which memory changed.
#[derive(Debug, Default)]
pub struct ForkWindow {
    done: Vec<Done>,
    order: EventOrder,
}

#[derive(Debug)]
enum Done {
    /// Pages between two events; mostly they lie side by side, and there may be very many.
    Installed(RangeSet),
    Event(Event),
}

impl ForkWindow {
    /// With room for `events` events.
    pub fn with_capacity(events: usize) -> Self {
        Self { done: Vec::with_capacity(events), order: EventOrder::default() }
    }

    /// One that goes on with what was read.
    pub fn with_order(order: EventOrder) -> Self {
        Self { done: Vec::new(), order }
    }

    /// Takes a note.
    pub fn note(&mut self, note: Note) {
        match note {
            Note::Installed(page) => self.note_installed(page),
            Note::Came(range) => self.order.came(range),
            Note::Read(event) => self.order.read(event),
            Note::Settled => self.order.clear(),
            Note::Applied(event) => self.done.push(Done::Event(event)),
        }
    }

    fn note_installed(&mut self, page: PageNumber) {
        let page = PageRange { start: page, pages: 1 };
        if let Some(Done::Installed(pages)) = self.done.last_mut() {
            return pages.insert(page);
        }
        let mut pages = RangeSet::default();
        pages.insert(page);
        self.done.push(Done::Installed(pages));
    }

    /// As [`EventOrder::settle`], by the books and what was noted beside them.
    pub fn settle(&self, books: &PageTable, kernel: &impl Mappings) -> Settlement {
        self.order.settle_with(&Noted { window: self, books, kernel })
    }

    /// The events that were read.
    pub fn order(&self) -> &EventOrder {
        &self.order
    }

    /// The events in the order in which memory changed, as far as that is settled.
    pub fn events(&self) -> impl Iterator<Item = Event> + '_ {
        self.done.iter().filter_map(|done| match *done {
            Done::Event(event) => Some(event),
            Done::Installed(_) => None,
        })
    }

    /// Looks `page` up in the notes, newest first; the books are asked for the page that it was before.
    pub fn look_up(&self, page: PageNumber, books: &PageTable) -> Beside {
        let mut page = page;
        for done in self.done.iter().rev() {
            match done {
                Done::Installed(pages) if pages.contains(page) => return Beside::Installed,
                &Done::Event(Event::Removed(range) | Event::Unmapped(range)) if range.contains(page) => {
                    return Beside::Discarded;
                }
                &Done::Event(Event::Remapped { from, to, .. }) => {
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

/// The books, with what was noted beside them, and the kernel.
struct Noted<'a, M> {
    window: &'a ForkWindow,
    books: &'a PageTable,
    kernel: &'a M,
}

/// Pages, and where they were before some of the events.
#[derive(Clone, Copy)]
struct Traced {
    now: PageNumber,
    was: PageRange,
}

impl Traced {
    /// The pages of it that were at `part` then.
    fn part(self, part: PageRange) -> Traced {
        Traced { now: self.now_of(part.start), was: part }
    }

    /// Where that is now which was at `page` then.
    fn now_of(self, page: PageNumber) -> PageNumber {
        PageNumber(page.0 - self.was.start.0 + self.now.0)
    }
}

/// What of a range is not as it was discarded last.
struct Content {
    /// Brought in since.
    installed: Vec<PageRange>,
    /// As in the books, where it was then.
    in_books: Vec<Traced>,
}

impl Content {
    /// Its pages, and what is known of each.
    fn pages<'a>(&'a self, books: &'a PageTable) -> impl Iterator<Item = (PageNumber, PageState)> + 'a {
        let installed = self.installed.iter().flat_map(|range| (range.start.0..range.end().0).map(PageNumber));
        let known =
            self.in_books.iter().flat_map(|part| books.known(part.was).map(|(page, state)| (part.now_of(page), state)));
        installed.map(|page| (page, PageState::Resident { clean: None })).chain(known)
    }
}

impl<M> Noted<'_, M> {
    /// What is in `range`, range by range, back from the newest note: it may be large.
    fn content(&self, range: PageRange) -> Content {
        let mut content = Content { installed: Vec::new(), in_books: Vec::new() };
        let mut parts = vec![Traced { now: range.start, was: range }];
        for done in self.window.done.iter().rev() {
            let mut before = Vec::with_capacity(parts.len());
            for part in parts {
                match *done {
                    Done::Installed(ref pages) => {
                        let now = |installed: PageRange| installed.moved_to(part.now_of(installed.start));
                        content.installed.extend(pages.within(part.was).map(now));
                        before.extend(pages.outside(part.was).map(|was| part.part(was)));
                    }
                    Done::Event(Event::Removed(gone) | Event::Unmapped(gone)) => {
                        before.extend(part.was.outside(gone).map(|was| part.part(was)));
                    }
                    Done::Event(Event::Remapped { from, to, .. }) => {
                        let moved = part.was.intersection(from.moved_to(to));
                        if moved.pages > 0 {
                            let was = moved.moved_to(PageNumber(moved.start.0 - to.0 + from.start.0));
                            before.push(Traced { was, ..part.part(moved) });
                        }
                        let others = part.was.outside(from.moved_to(to)).flat_map(|other| other.outside(from));
                        before.extend(others.map(|was| part.part(was)));
                    }
                    Done::Event(Event::Uncopied(_)) => before.push(part),
                }
            }
            parts = before;
        }
        content.in_books = parts;
        content
    }
}

impl<M: Mappings> Mappings for Noted<'_, M> {
    fn is_registered(&self, range: PageRange) -> Option<bool> {
        self.kernel.is_registered(range)
    }

    fn is_present(&self, page: PageNumber) -> Option<bool> {
        self.kernel.is_present(page)
    }

    fn sees_absence(&self) -> bool {
        self.kernel.sees_absence()
    }

    fn are_by_one_thread(&self) -> bool {
        self.kernel.are_by_one_thread()
    }
}

impl<M: Mappings> Witness for Noted<'_, M> {
    fn knows_any(&self, range: PageRange) -> bool {
        let content = self.content(range);
        let is_known = |part: &Traced| self.books.known(part.was).next().is_some();
        !content.installed.is_empty() || content.in_books.iter().any(is_known)
    }

    fn known(&self, range: PageRange) -> Vec<(PageNumber, PageState)> {
        self.content(range).pages(self.books).collect()
    }

    fn find(&self, range: PageRange, is_so: &dyn Fn(PageNumber, PageState) -> bool) -> Option<PageNumber> {
        self.content(range).pages(self.books).find(|&(page, state)| is_so(page, state)).map(|(page, _)| page)
    }

    fn may_have_gone(&self, page: PageNumber) -> bool {
        let is_discarding = |done: &Done| matches!(done, Done::Event(Event::Removed(_)));
        let was_discarded = |page| self.books.was_discarded(page);
        let before = match self.window.look_up(page, self.books) {
            Beside::Known(before, _) => was_discarded(before),
            Beside::Installed | Beside::Discarded => true,
        };
        before || was_discarded(page) || self.window.done.iter().any(is_discarding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange { start: PageNumber(start), pages }
    }

    fn moved(from: PageRange, to: u64) -> Event {
        Event::Remapped { from, to: PageNumber(to), may_stay: false }
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

    /// Everything is registered, and nothing there.
    struct Registered;

    impl Mappings for Registered {
        fn is_registered(&self, _: PageRange) -> Option<bool> {
            Some(true)
        }

        fn is_present(&self, _: PageNumber) -> Option<bool> {
            Some(false)
        }

        fn sees_absence(&self) -> bool {
            true
        }

        fn are_by_one_thread(&self) -> bool {
            false
        }
    }

    fn settle(window: &mut ForkWindow, books: &PageTable) {
        let Settlement::Decided(events) = window.settle(books, &Registered) else { panic!("it is clear") };
        events.into_iter().for_each(|event| window.note(Note::Applied(event)));
        window.note(Note::Settled);
    }

    #[test]
    fn a_page_is_looked_up_newest_first() {
        let books = books(&[range(100, 10), range(200, 5)]);
        let mut window = ForkWindow::with_capacity(8);
        let known = |page| Beside::Known(PageNumber(page), Some(PageState::SwappedZero));
        assert_eq!(window.look_up(PageNumber(100), &books), known(100));
        window.note(Note::Read(moved(range(100, 10), 300)));
        window.note(Note::Read(Event::Unmapped(range(100, 10))));
        // What was read counts when it is settled.
        assert!(window.order().holds());
        assert_eq!(window.look_up(PageNumber(100), &books), known(100));
        settle(&mut window, &books);
        assert!(!window.order().holds());
        assert_eq!(window.look_up(PageNumber(300), &books), known(100));
        assert_eq!(window.look_up(PageNumber(100), &books), Beside::Discarded);
        window.note(Note::Installed(PageNumber(300)));
        assert_eq!(window.look_up(PageNumber(300), &books), Beside::Installed);
        window.note(Note::Read(moved(range(300, 10), 100)));
        window.note(Note::Read(Event::Unmapped(range(300, 10))));
        settle(&mut window, &books);
        assert_eq!(window.look_up(PageNumber(100), &books), Beside::Installed);
        window.note(Note::Read(Event::Removed(range(100, 1))));
        settle(&mut window, &books);
        assert_eq!(window.look_up(PageNumber(100), &books), Beside::Discarded);
    }

    #[test]
    fn events_are_put_in_order() {
        let books = books(&[range(100, 10), range(200, 5)]);
        let mut window = ForkWindow::with_capacity(8);
        let unmapped = [Event::Unmapped(range(200, 5)), Event::Unmapped(range(100, 10))];
        for event in [moved(range(200, 5), 100), unmapped[0], moved(range(100, 10), 300), unmapped[1]] {
            window.note(Note::Read(event));
        }
        settle(&mut window, &books);
        let known = |page| Beside::Known(PageNumber(page), Some(PageState::SwappedZero));
        assert_eq!(window.look_up(PageNumber(100), &books), known(200));
        assert_eq!(window.look_up(PageNumber(300), &books), known(100));
    }

    /// Content by ranges is the content by pages, whatever was noted; and a range of a terabyte takes no time.
    #[test]
    fn ranges_are_followed_back_as_pages_are() {
        let mut random = 88_172_645_463_325_252u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for _ in 0..300 {
            let mut books = PageTable::new();
            books.adopt(range(0, 96));
            for page in (0..96).filter(|_| next(2) == 0) {
                books.set(PageNumber(page), PageState::SwappedZero);
            }
            let mut window = ForkWindow::with_capacity(8);
            for _ in 0..next(12) {
                let (place, pages) = (next(48), 1 + next(16));
                window.note(match next(5) {
                    0 => Note::Applied(Event::Unmapped(range(place, pages))),
                    1 => Note::Applied(Event::Removed(range(place, pages))),
                    2 => Note::Applied(moved(range(place, pages), 64 + next(16))),
                    3 => Note::Applied(moved(range(64 + next(16), pages), place)),
                    _ => Note::Installed(PageNumber(place)),
                });
            }
            let noted = Noted { window: &window, books: &books, kernel: &Registered };
            let by_page = |page| match window.look_up(PageNumber(page), &books) {
                Beside::Known(_, state) => state.filter(|&state| state != PageState::Untouched),
                Beside::Installed => Some(PageState::Resident { clean: None }),
                Beside::Discarded => None,
            };
            for (start, pages) in [(0, 96), (next(40), next(20)), (64, 8)] {
                let mut known = noted.known(range(start, pages));
                known.sort_unstable_by_key(|&(page, _)| page);
                let state = |page| Some((PageNumber(page), by_page(page)?));
                assert_eq!(known, (start..start + pages).filter_map(state).collect::<Vec<_>>(), "{window:?}");
                assert_eq!(noted.knows_any(range(start, pages)), !known.is_empty());
            }
            assert!(!noted.knows_any(range(1 << 40, 1 << 28)));
        }
    }
}
