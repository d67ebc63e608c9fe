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
//! - After that, an unmapping of the place may be either, the late one of the memory that was there before, or the end of
//!   what has arrived (unless it is the second report of a mremap that is held back). It leaves alone what has arrived, and is
//!   a *doubt*: when all has been read, the kernel is asked what is there. Something else that arrives there answers it, too. A
//!   mremap that leaves the place may be either, too, and is *undecided* until the kernel has been asked.
//! - The kernel counts a change from before it lets go of the lock until its task goes on, and fills nothing meanwhile. When
//!   it counts none, everything has been read, and nothing is due any more.
//!
//! While an event is held back, or there is a doubt, nothing may be filled, as if it were unread.

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
    /// `may_have_returned`: the call of `earlier`, a mremap.
    fn follows(self, earlier: Event, may_have_returned: bool) -> bool {
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
                        let moves_on = may_have_returned && own.start == place.start;
                        !own.overlaps(from)
                            && !own.moved_to(goes).overlaps(from)
                            && !own.moved_to(goes).overlaps(place)
                            && !moves_on
                    }
                };
                !is_awaited && (touches(from) || touches(place))
            }
        }
    }
}

/// A mremap that was applied, until nothing is due.
#[derive(Clone, Debug)]
struct Move {
    from: PageRange,
    /// The parts of that to which nothing had been moved when it was applied.
    moved: Vec<PageRange>,
    place: PageRange,
    /// Its unmapping was applied, or cannot be told from others: the call may have returned.
    has_returned: bool,
    /// Its place was known to be taken when it was read: the event that freed it was late.
    has_waited: bool,
}

/// Memory that a mremap has moved, and that may or may not have been unmapped since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// What may have been unmapped.
    pub range: PageRange,
    /// Where the mremap has moved it, and more, to. If it is there still, a mapping begins here.
    pub place: PageRange,
    /// The unmapping began where the place begins.
    pub from_its_start: bool,
    /// The mremap was applied.
    has_arrived: bool,
}

impl Doubt {
    /// Of what has arrived at `place`, when `unmapped` was read.
    fn about(place: PageRange, unmapped: PageRange, has_arrived: bool) -> Option<Doubt> {
        let range = place.intersection(unmapped);
        let from_its_start = place.start == unmapped.start;
        (range.pages > 0).then_some(Doubt { range, place, from_its_start, has_arrived })
    }
}

impl Move {
    /// Whether a mremap of `from`, read later, may be older, or may have found what this one has moved there.
    fn leaves_undecided(&self, from: PageRange) -> bool {
        self.has_returned && from.start == self.place.start
    }

    /// Whether an unmapping of `range`, read later, leaves alone what this one has moved there, for now.
    fn withstands(&self, range: PageRange) -> bool {
        // What was there before, unknown to the books, had grown in its place, and began before.
        !self.has_returned || self.has_waited || range.start <= self.place.start
    }

    /// Whether a mremap of `from`, read later, does not find there what this one has moved there.
    fn is_newer_than(&self, from: PageRange) -> bool {
        !self.has_returned || !self.place.contains(from.start)
    }
}

/// Events between their reading and their application.
#[derive(Debug, Default)]
pub struct EventOrder {
    /// As they were read.
    held: Vec<Event>,
    /// How many of those had been read when something was last released: none of them has been released at once.
    waiting: usize,
    /// Oldest first.
    moves: Vec<Move>,
    /// To be applied at once.
    ready: Vec<Event>,
    /// Where something has arrived, and may or may not have been unmapped since.
    doubts: Vec<Doubt>,
    expects_no_unmappings: bool,
}

impl EventOrder {
    /// Takes in an event that was read.
    pub fn read(&mut self, event: Event) {
        if let Event::Unmapped(range) = event
            && !(0..self.held.len()).any(|index| self.awaits_end(index, range, self.held.len()))
        {
            for index in 0..self.held.len() {
                if self.may_have_returned(index, self.held.len())
                    && let Event::Remapped { from, to } = self.held[index]
                {
                    self.doubts.extend(Doubt::about(from.moved_to(to), range, false));
                }
            }
        }
        self.held.push(event);
    }

    /// Whether the mremap that is held at `index` may have returned before what is held at `later` was read: its unmapping
    /// has been.
    fn may_have_returned(&self, index: usize, later: usize) -> bool {
        match self.held[index] {
            Event::Remapped { from, .. } => {
                self.expects_no_unmappings || self.held[index..later].contains(&Event::Unmapped(from))
            }
            _ => false,
        }
    }

    /// Whether what is held at `index` is a mremap whose second report is an unmapping of `range`, and was not read before
    /// what is held at `later`.
    fn awaits_end(&self, index: usize, range: PageRange, later: usize) -> bool {
        matches!(self.held[index], Event::Remapped { from, .. } if from == range)
            && !self.may_have_returned(index, later)
    }

    /// Whether what is held at `index` stays behind what is held at `earlier`.
    fn is_behind(&self, index: usize, earlier: usize) -> bool {
        let event = self.held[index];
        let follows = event.follows(self.held[earlier], self.may_have_returned(earlier, index));
        follows && !self.is_before_arrival(index, earlier)
    }

    /// Whether what is held at `index` is an unmapping that goes before a mremap to its range, and what is held at `earlier`
    /// is about what has arrived there: it was read when that mremap may have returned.
    fn is_before_arrival(&self, index: usize, earlier: usize) -> bool {
        let Event::Unmapped(range) = self.held[index] else { return false };
        let arrived = |arrival: usize| match self.held[arrival] {
            Event::Remapped { from, to } => {
                let place = from.moved_to(to);
                place.overlaps(range)
                    && place.overlaps(self.held[earlier].range())
                    && self.may_have_returned(arrival, earlier)
            }
            _ => false,
        };
        !self.awaits_end(earlier, range, index) && (0..earlier).any(arrived)
    }

    /// The program uses `MREMAP_DONTUNMAP`: whether a mremap is reported a second time cannot be foreseen.
    pub fn expect_no_unmappings(&mut self) {
        self.expects_no_unmappings = true;
        for moved in &mut self.moves {
            moved.has_returned = true;
        }
    }

    /// The next event to be applied. `is_adopted` tells whether the books have any page of a range.
    pub fn next(&mut self, is_adopted: impl Fn(PageRange) -> bool) -> Option<Event> {
        self.next_where(is_adopted, Self::is_behind)
    }

    fn next_where(
        &mut self,
        is_adopted: impl Fn(PageRange) -> bool,
        is_behind: impl Fn(&Self, usize, usize) -> bool,
    ) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop() {
                return Some(event);
            }
            let may_go = |&index: &usize| {
                !(0..index).any(|earlier| is_behind(self, index, earlier))
                    && match self.held[index] {
                        Event::Remapped { from, to } => {
                            !self.is_undecided(from) && !self.is_taken(from.moved_to(to), &is_adopted)
                        }
                        _ => true,
                    }
            };
            let next = (0..self.held.len()).find(may_go);
            let waiting = core::mem::replace(&mut self.waiting, self.held.len());
            let index = next?;
            let event = self.held.remove(index);
            self.waiting -= 1;
            self.release(event, index < waiting);
        }
    }

    fn is_undecided(&self, from: PageRange) -> bool {
        self.moves.iter().any(|moved| moved.leaves_undecided(from))
    }

    /// Whether something is at `place` whose end has not been reported.
    fn is_taken(&self, place: PageRange, is_adopted: impl Fn(PageRange) -> bool) -> bool {
        // What is in doubt has gone, or nothing could go there.
        let arrived = self.doubts.iter().filter(|doubt| doubt.has_arrived);
        let certain = beside(place, arrived.map(|doubt| doubt.range));
        // Memory that has grown in its place may be reported on, and unknown to the books.
        certain.into_iter().any(is_adopted)
            || self.moves.iter().any(|moved| !moved.has_returned && moved.from.overlaps(place))
    }

    /// Makes `event` ready, as far as it is not older than what has moved to its memory since. `has_waited`: it was held
    /// back when it was read.
    fn release(&mut self, event: Event, has_waited: bool) {
        match event {
            Event::Removed(_) => self.ready.push(event),
            Event::Unmapped(range) => {
                let parts = match self.moves.iter_mut().find(|moved| moved.from == range && !moved.has_returned) {
                    Some(own) => {
                        own.has_returned = true;
                        core::mem::take(&mut own.moved)
                    }
                    None => {
                        let in_doubt = self.moves.iter().filter(|moved| moved.has_returned && moved.withstands(range));
                        self.doubts.extend(in_doubt.filter_map(|moved| Doubt::about(moved.place, range, true)));
                        self.beside_arrivals(range, |arrived| arrived.withstands(range))
                    }
                };
                self.ready.extend(parts.into_iter().map(Event::Unmapped));
            }
            Event::Remapped { from, to } => {
                let moved = self.beside_arrivals(from, |arrived| arrived.is_newer_than(from));
                let part = |&part: &PageRange| Event::Remapped { from: part, to: to.plus(part.start.0 - from.start.0) };
                self.ready.extend(moved.iter().map(part));
                let place = from.moved_to(to);
                self.free(place);
                self.moves.push(Move { from, moved, place, has_returned: self.expects_no_unmappings, has_waited });
            }
        }
    }

    /// Something has arrived at `place`, so what was in doubt there had gone. That is ready before what is.
    fn free(&mut self, place: PageRange) {
        let Self { doubts, ready, .. } = self;
        doubts.retain_mut(|doubt| {
            let is_gone = doubt.has_arrived && doubt.range.overlaps(place);
            if is_gone {
                ready.push(Event::Unmapped(doubt.range));
            }
            doubt.has_arrived |= doubt.place == place;
            !is_gone
        });
    }

    /// The parts of `range` to which none of the moves that `count` has moved anything.
    fn beside_arrivals(&self, range: PageRange, count: impl Fn(&Move) -> bool) -> Vec<PageRange> {
        beside(range, self.moves.iter().filter(|moved| count(moved)).map(|moved| moved.place))
    }

    /// As [`next`](Self::next), when nothing is being changed and everything was read: no event is due any more. A mremap
    /// then waits only for what is here too: whatever else the books have at its place is not there. `None` also when
    /// something is [`undecided`](Self::undecided).
    pub fn next_of_all(&mut self, is_adopted: impl Fn(PageRange) -> bool) -> Option<Event> {
        let next = self.next(&is_adopted);
        if next.is_none() && self.undecided().is_some() {
            return None;
        }
        // A mremap that still waits for its place waits for the one that was taken for newer.
        let is_behind = |this: &Self, index: usize, earlier: usize| this.held[index].follows(this.held[earlier], false);
        let next = next.or_else(|| self.next_where(&is_adopted, is_behind));
        if next.is_none() && self.undecided().is_some() {
            return None;
        }
        let next = next.or_else(|| {
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
        self.waiting = self.waiting.min(self.held.len());
        if next.is_none() {
            self.moves.clear();
        }
        next
    }

    /// Where something has arrived, and may have been moved on since, by a mremap that waits for the answer: to be asked
    /// about, and [`decide`](Self::decide)d, when [`next_of_all`](Self::next_of_all) has no more, which then may have more.
    pub fn undecided(&self) -> Option<PageRange> {
        let from = |event: &Event| matches!(event, Event::Remapped { .. }).then_some(event.range());
        let leaves_undecided = |from| self.moves.iter().find(|moved| moved.leaves_undecided(from));
        self.held.iter().filter_map(from).find_map(leaves_undecided).map(|moved| moved.place)
    }

    /// What has arrived at `place`, which was undecided, is there still, or has gone, by the mappings of now.
    pub fn decide(&mut self, place: PageRange, is_there: bool) {
        // What has arrived there later had to find it free. And if there is another end of just this place, that is its own.
        let arrives =
            |event: &Event| matches!(event, Event::Remapped { from, to } if from.moved_to(*to).overlaps(place));
        let leaves = |event: &Event| matches!(event, Event::Remapped { from, .. } if *from == place);
        let has_own_end = self.held.contains(&Event::Unmapped(place)) && !self.held.iter().any(leaves);
        let is_there = has_own_end || is_there && !self.held.iter().any(arrives);
        self.moves.retain_mut(|moved| {
            if moved.place == place {
                // Whatever leaves the place is older.
                moved.has_returned = false;
            }
            is_there || moved.place != place
        });
    }

    /// Where something may have been unmapped: to be asked about when [`next_of_all`](Self::next_of_all) has no more. What
    /// then is not there has been unmapped.
    pub fn doubts(&self) -> &[Doubt] {
        &self.doubts
    }

    /// All doubts have been asked about.
    pub fn end_doubts(&mut self) {
        self.doubts.clear();
    }

    /// Whether an event is held back, or there is a doubt: nothing may be filled.
    pub fn holds(&self) -> bool {
        !self.held.is_empty() || !self.doubts.is_empty()
    }

    /// Whether it is as new: nothing is held back, in doubt, or due.
    pub fn is_empty(&self) -> bool {
        !self.holds() && self.moves.is_empty()
    }
}

/// The parts of `range` that are in none of `others`.
fn beside(range: PageRange, others: impl Iterator<Item = PageRange>) -> Vec<PageRange> {
    let mut others: Vec<PageRange> = others.map(|other| other.intersection(range)).collect();
    others.retain(|other| other.pages > 0);
    others.sort_unstable_by_key(|other| other.start);
    others.push(PageRange { start: range.end(), pages: 0 });
    let mut at = range.start;
    let parts = others.into_iter().map(|other| {
        let part = PageRange { start: at, pages: other.start.0.saturating_sub(at.0) };
        at = at.max(other.end());
        part
    });
    parts.filter(|part| part.pages > 0).collect()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

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

        /// What is applied when nothing is due, without doubts.
        fn settle(&mut self) -> Vec<Event> {
            let mut applied = Vec::new();
            while let Some(event) = self.order.next_of_all(|range| self.adopted.within(range).next().is_some()) {
                applied.push(self.apply(event));
            }
            applied
        }

        fn is_settled(&mut self) -> bool {
            self.settle().is_empty() && self.order.is_empty()
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
        assert!(!books.order.holds() && books.is_settled());
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
        // By the events alone, the last one may also be the end of what has arrived.
        assert_eq!(books.order.doubts()[0].range, range(100, 5));
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
        assert!(books.is_settled());
    }

    /// Three threads, each into the hole of the next one.
    #[test]
    fn a_chain_is_applied_from_its_end() {
        let c = range(300, 3);
        let mut books = Books::with(&[A, B, c]);
        for event in [moved(c, 201), Event::Unmapped(c), moved(B, 104), Event::Unmapped(B)] {
            assert_eq!(books.read(event), []);
        }
        let unmapped = Event::Unmapped(A);
        let chain = [unmapped, moved(B, 104), Event::Unmapped(B), moved(c, 201), Event::Unmapped(c)];
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
        assert!(!books.order.holds());
        assert_eq!(books.read(Event::Unmapped(B)), [Event::Unmapped(B)]);
        assert!(books.is_settled());
        assert_eq!(books.read(Event::Unmapped(range(110, 5))), [Event::Unmapped(range(110, 5))]);
    }

    /// As soon as the mremap has returned, an unmapping of its place may be either.
    #[test]
    fn an_unmapping_that_may_be_older_is_a_doubt() {
        let place = range(110, 5);
        let mut books = Books::with(&[A, B]);
        books.read(moved(B, 110));
        books.read(Event::Unmapped(B));
        assert!(!books.order.holds());
        assert_eq!(books.read(Event::Unmapped(place)), []);
        assert!(books.order.holds() && books.settle().is_empty());
        assert_eq!(books.order.doubts(), [Doubt { range: place, place, from_its_start: true, has_arrived: true }]);
        books.order.end_doubts();
        assert!(books.is_settled());
        assert_eq!(books.read(Event::Unmapped(place)), [Event::Unmapped(place)]);
    }

    /// What a mremap has brought, and its thread has unmapped while the mremap waited, must not stay. Without the doubt it
    /// did, and what was mapped there later was called lost.
    #[test]
    fn what_has_arrived_may_be_unmapped_before_its_place_is_free() {
        let mut books = Books::with(&[A, B]);
        books.read(moved(A, 300));
        for event in [moved(B, 102), Event::Unmapped(B)] {
            assert_eq!(books.read(event), []);
        }
        let end = Event::Unmapped(range(102, 10));
        assert_eq!(books.read(end), [end]);
        assert_eq!(books.read(Event::Unmapped(A)), [Event::Unmapped(A), moved(B, 102), Event::Unmapped(B)]);
        assert!(books.settle().is_empty());
        assert_eq!(books.order.doubts()[0].range, range(102, 5));
    }

    /// Both threads' memory begins at the same page: what leaves it may be what has arrived, or what was there.
    #[test]
    fn a_mremap_from_a_place_that_is_waited_for_waits_too() {
        let onward = [moved(range(100, 5), 400), Event::Unmapped(range(100, 5))];
        let mut books = Books::with(&[A, B]);
        for event in [moved(B, 100), Event::Unmapped(B), onward[0], onward[1]] {
            assert_eq!(books.read(event), []);
        }
        assert_eq!(books.read(Event::Unmapped(A)), [Event::Unmapped(A), moved(B, 100), Event::Unmapped(B)]);
        books.order.decide(range(100, 5), false);
        assert_eq!(books.settle(), onward);

        let mut books = Books::with(&[A, B]);
        let events = [moved(A, 300), Event::Unmapped(A), moved(B, 100), Event::Unmapped(B)];
        for event in [events[2], events[3], events[0], events[1]] {
            assert_eq!(books.read(event), []);
        }
        // Nothing else makes the place.
        assert_eq!(books.settle(), events);
    }

    /// What arrives answers it.
    #[test]
    fn what_was_in_doubt_has_gone_when_something_arrives() {
        let c = range(300, 3);
        let mut books = Books::with(&[A, B, c]);
        for event in [moved(B, 110), Event::Unmapped(B), Event::Unmapped(range(110, 5))] {
            books.read(event);
        }
        assert_eq!(books.read(moved(c, 112)), [Event::Unmapped(range(110, 5)), moved(c, 112)]);
        assert!(!books.order.holds());
    }

    /// Found by the soak: all of what was there before may have grown in its place, unknown to the books.
    #[test]
    fn what_has_arrived_may_be_moved_on_at_once() {
        let place = range(110, 5);
        let onward = [moved(place, 300), Event::Unmapped(place)];
        for is_there in [false, true] {
            let mut books = Books::with(&[A, B]);
            for event in [moved(B, 110), Event::Unmapped(B)] {
                assert_eq!(books.read(event), [event]);
            }
            assert_eq!((books.read(onward[0]), books.settle()), (vec![], vec![]));
            assert_eq!(books.order.undecided(), Some(place));
            books.order.decide(place, is_there);
            assert_eq!(books.order.undecided(), None);
            assert_eq!(books.settle(), onward[..usize::from(!is_there)]);
            assert!(books.order.is_empty());
        }
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
        assert!(!books.order.holds() && books.is_settled());
    }

    /// Found by the soak: while the second of three is undecided, the third does not pass it.
    #[test]
    fn what_is_moved_on_twice_stays_in_order() {
        let (second, third) = (range(110, 5), range(120, 5));
        let mut books = Books::with(&[A, B]);
        books.read(moved(B, 110));
        books.read(Event::Unmapped(B));
        let onward = [moved(second, 120), Event::Unmapped(second), moved(third, 300), Event::Unmapped(third)];
        for event in onward {
            assert_eq!(books.read(event), []);
        }
        assert_eq!(books.settle(), []);
        books.order.decide(second, false);
        assert_eq!(books.settle(), onward[..2]);
        assert_eq!(books.order.undecided(), Some(third));
        books.order.decide(third, false);
        assert_eq!(books.settle(), onward[2..]);
    }

    #[test]
    fn where_no_unmapping_can_be_expected_none_is() {
        let mut books = Books::with(&[B]);
        books.order.expect_no_unmappings();
        books.read(moved(B, 100));
        assert!(!books.order.holds());
        assert_eq!(books.read(moved(range(100, 5), 300)), []);
        books.order.decide(range(100, 5), false);
        assert_eq!(books.settle(), [moved(range(100, 5), 300)]);
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
