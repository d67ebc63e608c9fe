//! The order of events: from the one in which they were read back to the one in which memory changed.
//!
//! Linux changes the mappings first, lets go of mmap_lock, and reports second (`mremap_userfaultfd_complete`,
//! `userfaultfd_unmap_complete`). Two threads may so be reported in the other order: one thread's mremap or munmap frees a
//! range, another's mremap takes it, and its event is read first. In the order of the messages the books would drop what
//! the second thread has moved there. What is known:
//!
//! - Whatever memory is reported on stays so until an event frees it. So where a mremap goes to memory that the books still
//!   have, or that another mremap has left, the event that frees it is due, and the mremap *waits for it*.
//! - A mremap is reported twice, at its new place and then, as an unmapping, at its old one (not with
//!   `MREMAP_DONTUNMAP`). It returns after the second. So before that, the program cannot have unmapped what is at the new
//!   place, nor moved it on: an event that says so is an *older* one, and leaves it alone.
//! - The kernel counts a change from before it lets go of the lock until its task goes on, and fills nothing meanwhile. When
//!   it counts none, everything has been read, and nothing is due any more.
//!
//! While an event is held back, nothing may be filled, as if it were unread.

use alloc::vec::Vec;

use crate::units::{PageNumber, PageRange};

/// What the program did to adopted memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// madvise(MADV_DONTNEED, MADV_FREE): the content is given up, the memory stays.
    Removed(PageRange),
    /// munmap and the like.
    Unmapped(PageRange),
    /// mremap: what was at `from` is at `to`.
    Remapped {
        /// Where it was.
        from: PageRange,
        /// Its first page now.
        to: PageNumber,
    },
}

impl Event {
    /// The memory that it is about; of a mremap, where that was.
    pub fn range(self) -> PageRange {
        match self {
            Event::Removed(range) | Event::Unmapped(range) | Event::Remapped { from: range, .. } => range,
        }
    }

    /// Whether this one, which was read later than `earlier`, also is applied later, when `earlier` is held back.
    fn follows(self, earlier: Event) -> bool {
        let touches = |range: PageRange| match self {
            Event::Removed(own) | Event::Unmapped(own) => own.overlaps(range),
            Event::Remapped { from, to } => from.overlaps(range) || from.moved_to(to).overlaps(range),
        };
        match earlier {
            // It is held back for being about memory that has not arrived; what frees the place of that comes first.
            Event::Removed(_) => false,
            Event::Unmapped(range) => touches(range),
            Event::Remapped { from, to } => {
                let place = from.moved_to(to);
                // What frees the place that `earlier` waits for comes before it.
                let is_awaited = match self {
                    Event::Removed(_) => false,
                    Event::Unmapped(own) => !own.overlaps(from),
                    Event::Remapped { from: own, to: goes } => {
                        !own.overlaps(from) && !own.moved_to(goes).overlaps(from) && !own.moved_to(goes).overlaps(place)
                    }
                };
                !is_awaited && (touches(from) || touches(place))
            }
        }
    }
}

/// A mremap that was applied, and whose unmapping has not been.
#[derive(Clone, Debug)]
struct Move {
    from: PageRange,
    /// The parts of that to which nothing had been moved when it was applied.
    moved: Vec<PageRange>,
    place: PageRange,
}

/// Events between their reading and their application.
#[derive(Debug, Default)]
pub struct EventOrder {
    /// As they were read.
    held: Vec<Event>,
    /// Oldest first.
    moves: Vec<Move>,
    /// To be applied at once.
    ready: Vec<Event>,
    expects_no_unmappings: bool,
}

impl EventOrder {
    /// Takes in an event that was read.
    pub fn read(&mut self, event: Event) {
        self.held.push(event);
    }

    /// The program uses `MREMAP_DONTUNMAP`: whether a mremap is reported a second time cannot be foreseen.
    pub fn expect_no_unmappings(&mut self) {
        self.expects_no_unmappings = true;
        self.moves.clear();
    }

    /// The next event to be applied. `is_adopted` tells whether the books have any page of a range.
    pub fn next(&mut self, is_adopted: impl Fn(PageRange) -> bool) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop() {
                return Some(event);
            }
            let may_go = |(index, &event): (usize, &Event)| {
                let is_behind = self.held[..index].iter().any(|&earlier| event.follows(earlier));
                !is_behind
                    && !matches!(event, Event::Remapped { from, to } if self.is_taken(from.moved_to(to), &is_adopted))
            };
            let index = self.held.iter().enumerate().position(may_go)?;
            let event = self.held.remove(index);
            self.release(event);
        }
    }

    /// Whether something is at `place` whose end has not been reported.
    fn is_taken(&self, place: PageRange, is_adopted: impl Fn(PageRange) -> bool) -> bool {
        // Memory that has grown in its place may be reported on, and unknown to the books.
        is_adopted(place) || self.moves.iter().any(|moved| moved.from.overlaps(place))
    }

    /// Makes `event` ready, as far as it is not older than what has moved to its memory since.
    fn release(&mut self, event: Event) {
        match event {
            Event::Removed(_) => self.ready.push(event),
            Event::Unmapped(range) => {
                let parts = match self.moves.iter().position(|moved| moved.from == range) {
                    Some(own) => self.moves.remove(own).moved,
                    None => self.beside_arrivals(range),
                };
                self.ready.extend(parts.into_iter().map(Event::Unmapped));
            }
            Event::Remapped { from, to } => {
                let moved = self.beside_arrivals(from);
                let part = |&part: &PageRange| Event::Remapped { from: part, to: to.plus(part.start.0 - from.start.0) };
                self.ready.extend(moved.iter().map(part));
                if !self.expects_no_unmappings {
                    self.moves.push(Move { from, moved, place: from.moved_to(to) });
                }
            }
        }
    }

    /// The parts of `range` to which nothing has been moved that the program does not have yet.
    fn beside_arrivals(&self, range: PageRange) -> Vec<PageRange> {
        let mut places: Vec<PageRange> = self.moves.iter().map(|moved| moved.place.intersection(range)).collect();
        places.retain(|place| place.pages > 0);
        places.sort_unstable_by_key(|place| place.start);
        places.push(PageRange { start: range.end(), pages: 0 });
        let mut at = range.start;
        let parts = places.into_iter().map(|place| {
            let part = PageRange { start: at, pages: place.start.0.saturating_sub(at.0) };
            at = at.max(place.end());
            part
        });
        parts.filter(|part| part.pages > 0).collect()
    }

    /// As [`next`](Self::next), when nothing is being changed and everything was read: no event is due any more. A mremap
    /// then waits only for what is here too: whatever else the books have at its place is not there.
    pub fn next_of_all(&mut self, is_adopted: impl Fn(PageRange) -> bool) -> Option<Event> {
        let next = self.next(is_adopted).or_else(|| {
            let frees = |event: Event, place: PageRange| match event {
                Event::Removed(_) => false,
                Event::Unmapped(range) | Event::Remapped { from: range, .. } => range.overlaps(place),
            };
            let waits_in_vain = |&event: &Event| match event {
                Event::Remapped { from, to } => !self.held.iter().any(|&other| frees(other, from.moved_to(to))),
                _ => false,
            };
            let index = self.held.iter().position(waits_in_vain).unwrap_or(0);
            (!self.held.is_empty()).then(|| self.held.remove(index))
        });
        if next.is_none() {
            self.moves.clear();
        }
        next
    }

    /// Whether an event is held back: nothing may be filled.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether it is as new: nothing is held back, and no unmapping is due.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.moves.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::RangeSet;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange { start: PageNumber(start), pages }
    }

    fn moved(from: PageRange, to: u64) -> Event {
        Event::Remapped { from, to: PageNumber(to) }
    }

    /// Books that know nothing but which memory is adopted.
    struct Books {
        order: EventOrder,
        adopted: RangeSet,
    }

    impl Books {
        fn with(adopted: &[PageRange]) -> Books {
            let mut books = Books { order: EventOrder::default(), adopted: RangeSet::default() };
            for &range in adopted {
                books.adopted.insert(range);
            }
            books
        }

        fn apply(&mut self, event: Event) -> Event {
            match event {
                Event::Removed(_) => {}
                Event::Unmapped(range) => self.adopted.remove(range),
                Event::Remapped { from, to } => self.adopted.insert(from.moved_to(to)),
            }
            event
        }

        /// What is applied when `event` has been read.
        fn read(&mut self, event: Event) -> Vec<Event> {
            self.order.read(event);
            let mut applied = Vec::new();
            while let Some(event) = self.order.next(|range| self.adopted.within(range).next().is_some()) {
                applied.push(self.apply(event));
            }
            applied
        }

        /// What is applied when nothing is due.
        fn settle(&mut self) -> Vec<Event> {
            let mut applied = Vec::new();
            while let Some(event) = self.order.next_of_all(|range| self.adopted.within(range).next().is_some()) {
                applied.push(self.apply(event));
            }
            applied
        }
    }

    const A: PageRange = PageRange { start: PageNumber(100), pages: 10 };
    const B: PageRange = PageRange { start: PageNumber(200), pages: 5 };

    #[test]
    fn events_in_order_are_applied_at_once() {
        let mut books = Books::with(&[A, B]);
        for event in [Event::Removed(A), moved(A, 300), Event::Unmapped(A), moved(B, 100), Event::Unmapped(B)] {
            assert_eq!(books.read(event), [event]);
        }
        assert!(books.order.is_empty());
        // Returned to the program, it may be unmapped.
        assert_eq!(books.read(Event::Unmapped(range(100, 5))), [Event::Unmapped(range(100, 5))]);
    }

    /// Found by the soak: the unmapping of what one thread has moved away comes after another's mremap to that place.
    #[test]
    fn a_mremap_waits_for_the_unmapping_of_its_place() {
        let mut books = Books::with(&[A, B]);
        books.read(moved(A, 300));
        assert_eq!(books.read(moved(B, 100)), []);
        assert_eq!(books.read(Event::Unmapped(B)), []);
        assert!(books.order.holds());
        assert_eq!(books.read(Event::Unmapped(A)), [Event::Unmapped(A), moved(B, 100), Event::Unmapped(B)]);
        assert!(books.order.is_empty());
    }

    #[test]
    fn a_mremap_waits_for_the_munmap_that_made_its_place() {
        let mut books = Books::with(&[A, B]);
        assert_eq!(books.read(moved(B, 102)), []);
        assert_eq!(books.read(Event::Unmapped(B)), []);
        assert_eq!(books.read(Event::Unmapped(A)), [Event::Unmapped(A), moved(B, 102), Event::Unmapped(B)]);
    }

    /// What one thread has moved away is not what another has moved there since, whose event was read first.
    #[test]
    fn a_mremap_waits_for_the_mremap_that_made_its_place() {
        let mut books = Books::with(&[A, B]);
        assert_eq!(books.read(moved(B, 100)), []);
        assert_eq!(books.read(moved(A, 300)), [moved(A, 300)]);
        assert_eq!(books.read(Event::Unmapped(A)), [Event::Unmapped(A), moved(B, 100)]);
        assert_eq!(books.read(Event::Unmapped(B)), [Event::Unmapped(B)]);
        assert!(books.order.is_empty());
    }

    /// Three threads, each into the hole of the next one.
    #[test]
    fn a_chain_is_applied_from_its_end() {
        let c = range(300, 5);
        let mut books = Books::with(&[A, B, c]);
        for event in [moved(c, 200), Event::Unmapped(c), moved(B, 100), Event::Unmapped(B)] {
            assert_eq!(books.read(event), []);
        }
        let unmapped = Event::Unmapped(A);
        let chain = [unmapped, moved(B, 100), Event::Unmapped(B), moved(c, 200), Event::Unmapped(c)];
        assert_eq!(books.read(unmapped), chain);
    }

    /// Memory that has grown in its place is reported on, and the books do not have it.
    #[test]
    fn a_mremap_waits_for_the_unmapping_of_what_the_books_do_not_have() {
        let mut books = Books::with(&[B]);
        assert_eq!(books.read(moved(A, 300)), [moved(A, 300)]);
        assert_eq!(books.read(moved(B, 100)), []);
        assert_eq!(books.read(Event::Unmapped(A)), [Event::Unmapped(A), moved(B, 100)]);
    }

    /// Memory beside the adopted was unmapped with it, and a mremap went there: its books are not asked to wait.
    #[test]
    fn an_older_unmapping_leaves_what_came_since_alone() {
        let mut books = Books::with(&[A, B]);
        assert_eq!(books.read(moved(B, 110)), [moved(B, 110)]);
        let parts = books.read(Event::Unmapped(range(90, 50)));
        assert!(parts.contains(&Event::Unmapped(range(90, 20))) && parts.contains(&Event::Unmapped(range(115, 25))));
        assert_eq!(parts.len(), 2);
        books.read(Event::Unmapped(B));
        assert_eq!(books.read(Event::Unmapped(range(110, 5))), [Event::Unmapped(range(110, 5))]);
    }

    #[test]
    fn an_older_mremap_leaves_what_came_since_alone() {
        let mut books = Books::with(&[A, B]);
        assert_eq!(books.read(moved(B, 110)), [moved(B, 110)]);
        // It had grown to 20 pages, and the books know ten of them.
        assert_eq!(books.read(moved(range(100, 20), 300)), [moved(range(115, 5), 315), moved(A, 300)]);
        // The one that came there may have returned before the other is read again.
        assert_eq!(books.read(Event::Unmapped(B)), [Event::Unmapped(B)]);
        let beside = [Event::Unmapped(range(115, 5)), Event::Unmapped(A)];
        assert_eq!(books.read(Event::Unmapped(range(100, 20))), beside);
        assert!(books.order.is_empty());
    }

    #[test]
    fn where_no_unmapping_can_be_expected_none_is() {
        let mut books = Books::with(&[B]);
        books.order.expect_no_unmappings();
        books.read(moved(B, 100));
        assert!(books.order.is_empty());
        assert_eq!(books.read(moved(range(100, 5), 300)), [moved(range(100, 5), 300)]);
    }

    #[test]
    fn discarding_what_was_moved_waits_for_the_mremap() {
        let mut books = Books::with(&[A, B]);
        assert_eq!(books.read(moved(B, 100)), []);
        let discarded = Event::Removed(range(101, 1));
        assert_eq!(books.read(discarded), []);
        assert_eq!(books.read(Event::Unmapped(A)), [Event::Unmapped(A), moved(B, 100), discarded]);
    }

    /// The books have memory at the place of the first that is not there; the second still waits for the first.
    #[test]
    fn what_is_not_due_is_not_waited_for() {
        let mut books = Books::with(&[A, B, range(300, 1)]);
        let events = [moved(A, 300), moved(B, 100), Event::Unmapped(A), Event::Unmapped(B)];
        for event in events {
            assert_eq!(books.read(event), []);
        }
        assert_eq!(books.settle(), [events[0], events[2], events[1], events[3]]);
    }

    #[test]
    fn when_nothing_is_due_everything_is_applied() {
        let mut books = Books::with(&[A, B]);
        assert_eq!(books.read(moved(B, 100)), []);
        assert_eq!(books.settle(), [moved(B, 100)]);
        assert!(books.order.is_empty());
        // With MREMAP_DONTUNMAP no unmapping is due.
        let mut books = Books::with(&[B]);
        books.read(moved(B, 100));
        assert!(!books.order.is_empty() && !books.order.holds());
        assert_eq!(books.settle(), []);
        assert_eq!(books.read(Event::Unmapped(range(100, 5))), [Event::Unmapped(range(100, 5))]);
    }
}
