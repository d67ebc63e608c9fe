use alloc::vec;

use super::recorded::by_place;
use super::*;
use crate::entry::EntryId;

fn range(start: u64, pages: u64) -> PageRange {
    PageRange { start: PageNumber(start), pages }
}

fn moved(from: PageRange, to: u64) -> Event {
    Event::Remapped { from, to: PageNumber(to), may_stay: false }
}

const A: PageRange = PageRange { start: PageNumber(100), pages: 10 };
const B: PageRange = PageRange { start: PageNumber(200), pages: 5 };

/// Mappings that a test has said.
#[derive(Default)]
struct Kernel {
    registered: Vec<PageRange>,
    present: Vec<PageNumber>,
    is_changing: bool,
    hides_absence: bool,
    has_one_thread: bool,
}

impl Mappings for Kernel {
    fn is_registered(&self, range: PageRange) -> Option<bool> {
        let holds = |other: &PageRange| other.intersection(range) == range;
        (!self.is_changing).then(|| self.registered.iter().any(holds))
    }

    fn sees_absence(&self) -> bool {
        !self.hides_absence
    }

    fn are_by_one_thread(&self) -> bool {
        self.has_one_thread
    }

    fn is_present(&self, page: PageNumber) -> Option<bool> {
        (!self.is_changing).then(|| self.present.contains(&page))
    }
}

fn registered(ranges: &[PageRange]) -> Kernel {
    Kernel { registered: ranges.to_vec(), ..Kernel::default() }
}

/// All pages of these are swapped.
fn swapped(ranges: &[PageRange]) -> PageTable {
    let mut books = PageTable::new();
    for range in ranges {
        books.adopt(*range);
        for page in range.start.0..range.end().0 {
            books.set(PageNumber(page), PageState::Swapped { entry: EntryId(page as u32) });
        }
    }
    books
}

fn settled(events: &[Event], books: &PageTable, kernel: &Kernel) -> Settlement {
    let mut order = EventOrder::default();
    events.iter().for_each(|&event| order.read(event));
    order.settle(books, kernel)
}

fn end(range: PageRange) -> Event {
    Event::Unmapped(range)
}

#[test]
fn without_a_mremap_events_stay_as_they_were_read() {
    let events = [end(A), Event::Removed(B), end(B)];
    assert_eq!(settled(&events, &swapped(&[A, B]), &registered(&[])), Settlement::Decided(events.to_vec()));
}

#[test]
fn a_mremap_takes_its_own_end_along() {
    let events = [moved(A, 300), Event::Removed(B), end(A)];
    let decided = vec![Event::Removed(B), moved(A, 300), end(A)];
    match settled(&events, &swapped(&[A, B]), &registered(&[])) {
        Settlement::Decided(mut events) => {
            events.sort_by_key(|event| event.range().start != B.start);
            assert_eq!(events, decided);
        }
        other => panic!("{other:?}"),
    }
}

/// The soak's first: what one thread has moved away is reported after another's mremap to that place.
#[test]
fn a_mremap_comes_after_what_made_its_place() {
    let events = [moved(B, 100), end(B), moved(A, 300), end(A)];
    let decided = vec![moved(A, 300), end(A), moved(B, 100), end(B)];
    assert_eq!(settled(&events, &swapped(&[A, B]), &registered(&[])), Settlement::Decided(decided));
}

#[test]
fn what_is_unmapped_before_a_mremap_returns_was_there_before() {
    let events = [moved(B, 102), end(A), end(B)];
    assert_eq!(
        settled(&events, &swapped(&[A, B]), &registered(&[])),
        Settlement::Decided(vec![end(A), moved(B, 102), end(B)])
    );
}

/// Three threads, each into the hole of the next one.
#[test]
fn a_chain_is_applied_from_its_end() {
    let c = range(300, 3);
    let events = [moved(c, 201), end(c), moved(B, 104), end(B), end(A)];
    let decided = vec![end(A), moved(B, 104), end(B), moved(c, 201), end(c)];
    assert_eq!(settled(&events, &swapped(&[A, B, c]), &registered(&[])), Settlement::Decided(decided));
}

/// An unmapping of what has arrived, or of memory that had grown there before: the kernel is asked.
#[test]
fn an_unmapping_that_may_be_older_is_asked_about() {
    let place = range(110, 5);
    let events = [moved(B, 110), end(B), end(place)];
    let Settlement::Decided(gone) = settled(&events, &swapped(&[B]), &registered(&[])) else { panic!("it is gone") };
    assert!(gone.starts_with(&[moved(B, 110), end(B), end(place)]), "{gone:?}");
    // It is there, and nothing can have grown there since: it was unmapped before.
    assert_eq!(
        settled(&events, &swapped(&[B]), &registered(&[place])),
        Settlement::Decided(vec![end(place), moved(B, 110), end(B)])
    );
    // It is there, and so is nothing of it, as of what would have grown since: nothing tells.
    let behind_other = registered(&[range(105, 10)]);
    assert_eq!(settled(&events, &swapped(&[B]), &behind_other), Settlement::Unclear(B.start));
    // One page of it had never left memory, and is there.
    let mut books = swapped(&[B]);
    books.set(PageNumber(202), PageState::Resident { clean: None });
    let there = Kernel { present: vec![PageNumber(112)], ..registered(&[place]) };
    assert_eq!(settled(&events, &books, &there), Settlement::Decided(vec![end(place), moved(B, 110), end(B)]));
    let changing = Kernel { is_changing: true, ..Kernel::default() };
    assert_eq!(settled(&events, &books, &changing), Settlement::Changing);
}

/// mmap over what a mremap has just brought, or munmap of it, refused by the kernel after it was reported.
#[test]
fn an_unmapping_of_what_was_brought_may_have_been_refused() {
    let place = range(100, 5);
    let brought = [end(place), moved(B, 100), end(B)];
    let (refused, twice) = ([&brought[..], &[end(place)]].concat(), [&brought[..], &[end(place), end(place)]].concat());
    let mut books = swapped(&[place, B]);
    for events in [&refused, &twice] {
        assert_eq!(settled(events, &books, &registered(&[place])), Settlement::Decided(brought.to_vec()));
        // Of two one has gone through: there was nothing for another.
        assert_eq!(settled(events, &books, &registered(&[])), Settlement::Decided(refused.clone()));
    }
    // It was moved on after that; or the first was refused, and another thread has moved what was there before: a page tells.
    let on = [&refused[..], &[moved(place, 300), end(place)]].concat();
    let (c, moved_on) = (range(300, 5), [&brought[..], &[moved(place, 300), end(place)]].concat());
    assert_eq!(settled(&on, &books, &registered(&[c])), Settlement::Unclear(place.start));
    let mut told = books.clone();
    told.set(PageNumber(203), PageState::Resident { clean: None });
    let there = Kernel { present: vec![PageNumber(303)], ..registered(&[c]) };
    assert_eq!(settled(&on, &told, &there), Settlement::Decided(moved_on));
    // What lies before it may have grown into it, before or since, unless a page tells.
    let behind_other = registered(&[range(95, 10)]);
    assert_eq!(settled(&refused, &books, &behind_other), Settlement::Unclear(place.start));
    books.set(PageNumber(203), PageState::Resident { clean: None });
    let there = Kernel { present: vec![PageNumber(103)], ..registered(&[range(95, 10)]) };
    let Settlement::Decided(stayed) = settled(&refused, &books, &there) else { panic!("the page tells") };
    assert!(stayed.ends_with(&[moved(B, 100), end(B)]), "{stayed:?}");
    assert_eq!(settled(&refused, &books, &behind_other), Settlement::Decided(refused.clone()));
}

/// What docs/limits.md called untellable: the pages that are there tell it, where they differ.
#[test]
fn the_pages_that_are_there_tell_one_move_from_another() {
    let place = A;
    let from = range(200, 10);
    let events = [moved(from, 100), end(from), end(place), moved(place, 300), end(place)];
    let kernel = registered(&[range(300, 10)]);
    let both = swapped(&[place, from]);
    assert_eq!(settled(&events, &both, &kernel), Settlement::Unclear(PageNumber(200)));
    let mut books = swapped(&[place, from]);
    books.set(PageNumber(104), PageState::Resident { clean: None });
    let older = Kernel { present: vec![PageNumber(304)], ..registered(&[range(300, 10)]) };
    let Settlement::Decided(decided) = settled(&events, &books, &older) else { panic!("the page tells") };
    assert_eq!(decided[..3], [moved(place, 300), end(place), moved(from, 100)]);
    let Settlement::Decided(decided) = settled(&events, &books, &kernel) else { panic!("the page tells") };
    assert_eq!(decided[..3], [end(place), moved(from, 100), end(from)]);
}

/// All pages are there: which memory it was does not matter, but for the copies.
#[test]
fn what_is_all_there_need_not_be_told_apart() {
    let mut books = PageTable::new();
    for page in [100, 200] {
        books.adopt(range(page, 1));
    }
    books.set(PageNumber(100), PageState::Resident { clean: Some(EntryId(1)) });
    books.set(PageNumber(200), PageState::Resident { clean: None });
    let (a, b) = (range(100, 1), range(200, 1));
    let events = [moved(b, 100), end(b), end(a), moved(a, 300), end(a)];
    let kernel = Kernel { present: vec![PageNumber(300)], ..registered(&[range(300, 1)]) };
    let Settlement::Decided(decided) = settled(&events, &books, &kernel) else { panic!("it does not matter") };
    assert!(decided.contains(&Event::Uncopied(range(300, 1))), "{decided:?}");
}

/// Memory is moved to a place and unmapped there, and other memory, moved to before that place, is registered there by what it
/// has grown by. Or the place was unmapped before the first move: then the kernel has dropped what was moved there, which reads as
/// zeros, too. (Seen on Linux 6.18, two threads.)
#[test]
fn what_the_kernel_may_drop_and_is_not_there_is_zeros() {
    let (place, other) = (range(110, 20), range(300, 10));
    let mut books = PageTable::new();
    for memory in [B, other] {
        books.adopt(memory);
        for page in memory.start.0..memory.end().0 {
            books.set(PageNumber(page), PageState::Resident { clean: None });
        }
    }
    let events = [moved(B, 110), end(B), end(place), moved(other, 100), end(other)];
    let there = (100..110).map(PageNumber).collect();
    let kernel = Kernel { present: there, ..registered(&[range(100, 20)]) };
    let gone = |books: &PageTable| match settled(&events, books, &kernel) {
        Settlement::Decided(decided) => decided.starts_with(&[moved(B, 110), end(B), end(place)]),
        other => panic!("{other:?}"),
    };
    assert!(gone(&books));
    // Where the kernel may have swapped out what does not show, nothing tells.
    let kernel_swaps = Kernel { hides_absence: true, registered: kernel.registered.clone(), ..Kernel::default() };
    assert_eq!(settled(&events, &books, &kernel_swaps), Settlement::Unclear(B.start));
    books.note_discarded(B);
    assert!(gone(&books));
    // What is away would read as itself.
    books.set(B.start, PageState::Swapped { entry: EntryId(1) });
    assert_eq!(settled(&events, &books, &kernel), Settlement::Unclear(B.start));
}

#[test]
fn a_discarding_follows_the_mremap_that_was_read_before_it() {
    let part = range(101, 1);
    let events = [moved(B, 100), end(B), Event::Removed(part), end(A)];
    let Settlement::Decided(decided) = settled(&events, &swapped(&[A, B]), &registered(&[range(100, 5)])) else {
        panic!("one order is possible")
    };
    assert_eq!(decided, [end(A), moved(B, 100), end(B), Event::Removed(part)]);
}

/// Where the program uses the flag, an unmapping of the old place may be one of its own; what is registered tells.
#[test]
fn a_place_that_is_left_mapped_is_registered() {
    let mut order = EventOrder::default();
    order.read(Event::Remapped { from: A, to: PageNumber(300), may_stay: true });
    order.read(end(A));
    let kernel = registered(&[range(300, 10)]);
    let Settlement::Decided(decided) = order.settle(&swapped(&[A]), &kernel) else { panic!("it is clear") };
    assert_eq!(decided[1..], [end(A)]);
}

/// A mremap that may have none does not get the end of one that must have one. (Found by the exhaustive checker.)
#[test]
fn an_end_is_that_of_the_mremap_that_must_have_one() {
    let page = |number: u64| range(number, 1);
    let left = |from: u64, to: u64| Event::Remapped { from: page(from), to: PageNumber(to), may_stay: true };
    let mut order = EventOrder::default();
    let events =
        [left(19, 17), end(page(17)), left(19, 17), left(17, 18), end(page(19)), moved(page(17), 19), end(page(17))];
    events.iter().for_each(|&event| order.read(event));
    let kernel = registered(&[page(18), page(19)]);
    // The content has gone, or it is at 18: an order each.
    assert_eq!(order.settle(&swapped(&[page(19)]), &kernel), Settlement::Unclear(PageNumber(19)));
}

#[test]
fn a_sabotaged_order_is_another() {
    let events = [moved(B, 100), end(B), moved(A, 300), end(A)];
    let mut order = EventOrder::without(Rule::FreePlace);
    events.iter().for_each(|&event| order.read(event));
    let kernel = registered(&[range(300, 5), range(300, 10), range(100, 5)]);
    assert_ne!(
        order.settle(&swapped(&[A, B]), &kernel),
        Settlement::Decided(vec![moved(A, 300), end(A), moved(B, 100), end(B)])
    );
}

/// Mappings of which it is counted what was asked.
struct Counted {
    kernel: Kernel,
    registered: core::cell::Cell<usize>,
    present: core::cell::Cell<usize>,
}

impl Counted {
    fn new(kernel: Kernel) -> Counted {
        Counted { kernel, registered: 0.into(), present: 0.into() }
    }
}

impl Mappings for Counted {
    fn is_registered(&self, range: PageRange) -> Option<bool> {
        self.registered.set(self.registered.get() + 1);
        self.kernel.is_registered(range)
    }

    fn sees_absence(&self) -> bool {
        true
    }

    fn are_by_one_thread(&self) -> bool {
        false
    }

    fn is_present(&self, page: PageNumber) -> Option<bool> {
        self.present.set(self.present.get() + 1);
        self.kernel.is_present(page)
    }
}

/// They are decided as they were read, but for the order of what touches nothing in common; how many questions that took.
fn as_read(events: &[Event], books: &PageTable, kernel: Kernel) -> (usize, usize) {
    let mut order = EventOrder::default();
    events.iter().for_each(|&event| order.read(event));
    let counted = Counted::new(kernel);
    let Settlement::Decided(decided) = order.settle(books, &counted) else { panic!("one order is possible") };
    assert_eq!(by_place(decided), by_place(events.to_vec()));
    if counted.registered.get() > 0 {
        assert_eq!(order.settle(books, &Kernel { is_changing: true, ..Kernel::default() }), Settlement::Changing);
    }
    (counted.registered.get(), counted.present.get())
}

/// One thread, and nothing is settled in between, as on one CPU.
#[test]
fn pieces_are_moved_out_of_an_arena_that_is_unmapped() {
    for count in [5, 12, 40] {
        let arena = range(100, 10 * count);
        let (mut events, mut places) = (Vec::new(), Vec::new());
        for index in 0..count {
            let piece = range(100 + 10 * index, 5);
            places.push(range(10_000 + 20 * index, 5));
            events.extend([moved(piece, 10_000 + 20 * index), end(piece)]);
        }
        events.push(end(arena));
        let (asked, looked) = as_read(&events, &swapped(&[arena]), registered(&places));
        assert!(asked < 30 * count as usize && looked == 0, "{asked} {looked}");
    }
}

/// What lies before the arena is registered, too: it may have grown over the first piece, and no further.
#[test]
fn pieces_are_moved_out_of_an_arena_behind_other_memory() {
    let arena = range(100, 200);
    let (mut events, mut places) = (Vec::new(), vec![range(50, 50)]);
    for index in 0..20 {
        let piece = range(100 + 10 * index, 5);
        places.push(range(10_000 + 20 * index, 5));
        events.extend([moved(piece, 10_000 + 20 * index), end(piece)]);
    }
    events.push(end(arena));
    let mut books = swapped(&[arena]);
    assert_eq!(settled(&events, &books, &registered(&places)), Settlement::Unclear(PageNumber(100)));
    books.set(PageNumber(100), PageState::Resident { clean: None });
    as_read(&events, &books, Kernel { present: vec![PageNumber(10_000)], ..registered(&places) });
}

#[test]
fn a_block_is_moved_through_many_places() {
    for count in [12, 40] {
        let mut events = Vec::new();
        for index in 0..count {
            let place = range(100 + 10 * index, 5);
            events.extend([moved(place, 110 + 10 * index), end(place)]);
        }
        let last = range(100 + 10 * count, 5);
        let books = swapped(&[range(100, 5)]);
        as_read(&events, &books, registered(&[last]));
        events.push(end(last));
        as_read(&events, &books, registered(&[]));
    }
}

#[test]
fn a_place_is_filled_many_times() {
    let place = range(100, 5);
    for count in [10, 30] {
        let (mut events, mut from) = (Vec::new(), Vec::new());
        for index in 0..count {
            let source = range(1000 + 10 * index, 5);
            from.push(source);
            events.extend([moved(source, 100), end(source), end(place)]);
        }
        as_read(&events, &swapped(&from), registered(&[]));
        events.pop();
        // The place has one filling at a time, whatever is registered.
        assert_eq!(as_read(&events, &swapped(&from), registered(&[place])), (0, 0));
    }
}

/// Other memory is moved in, over what was there, and all of it is moved away.
#[test]
fn an_arena_is_gathered_and_moved() {
    let (mut events, mut from) = (Vec::new(), vec![range(100, 200)]);
    for index in 0..20 {
        let (source, place) = (range(1000 + 10 * index, 5), range(100 + 10 * index, 5));
        from.push(source);
        events.extend([end(place), moved(source, 100 + 10 * index), end(source)]);
    }
    events.extend([moved(range(100, 200), 5000), end(range(100, 200))]);
    as_read(&events, &swapped(&from), registered(&[range(5000, 200)]));
}

/// What is registered nowhere cannot have grown.
#[test]
fn memory_grows_only_behind_what_is_registered() {
    let (front, whole, place) = (range(100, 5), range(100, 10), range(300, 5));
    let events = [moved(front, 300), end(front), end(whole)];
    let books = swapped(&[whole]);
    as_read(&events, &books, registered(&[place]));
    assert_eq!(settled(&events, &books, &registered(&[place, range(99, 1)])), Settlement::Unclear(front.start));
    // It was registered, and a call that has nothing to do with these has taken it.
    let mut more = vec![moved(range(90, 5), 500), end(range(90, 5)), end(range(99, 1))];
    more.extend(events);
    assert_eq!(settled(&more, &books, &registered(&[place, range(500, 5)])), Settlement::Unclear(front.start));
}

/// Once one outcome is left, no page is looked at.
#[test]
fn what_is_told_already_is_not_looked_at() {
    let mut books = swapped(&[B]);
    books.set(PageNumber(200), PageState::Resident { clean: None });
    let place = range(110, 5);
    let events = [moved(B, 110), end(B), end(place)];
    let kernel = Kernel { present: vec![PageNumber(110)], ..registered(&[range(109, 6)]) };
    let counted = Counted::new(kernel);
    let mut order = EventOrder::default();
    events.iter().for_each(|&event| order.read(event));
    assert_eq!(order.settle(&books, &counted), Settlement::Decided(vec![end(place), moved(B, 110), end(B)]));
    assert_eq!(counted.present.get(), 1);
}

/// A page that was lost may be there: it was discarded since, and filled.
#[test]
fn a_page_that_was_lost_tells_nothing() {
    let mut books = swapped(&[B]);
    books.set(PageNumber(200), PageState::Poisoned);
    let place = range(110, 5);
    let events = [moved(B, 110), end(B), end(place)];
    for present in [vec![], vec![PageNumber(110)]] {
        let kernel = Kernel { present, ..registered(&[range(109, 6)]) };
        assert!(!matches!(settled(&events, &books, &kernel), Settlement::Decided(events) if events[0] == events[2]));
    }
    books.set(PageNumber(201), PageState::Resident { clean: None });
    let kernel = Kernel { present: vec![PageNumber(110), PageNumber(111)], ..registered(&[range(109, 6)]) };
    assert_eq!(settled(&events, &books, &kernel), Settlement::Decided(vec![end(place), moved(B, 110), end(B)]));
}

/// Linux 6.12 and later report an unmapping while they gather what is to go, and may refuse it after that.
#[test]
fn an_unmapping_that_was_refused_takes_nothing() {
    let is_done = |events: &[Event], books: &PageTable, kernel: &Kernel| {
        let Settlement::Decided(decided) = settled(events, books, kernel) else { panic!("it is clear") };
        decided.contains(&end(A))
    };
    let before = range(99, 1);
    let all = range(99, 11);
    let books = swapped(&[A]);
    assert!(is_done(&[end(A)], &books, &registered(&[])), "nothing is registered there");
    assert!(!is_done(&[end(A)], &books, &registered(&[A])), "nothing can have grown there");
    assert!(is_done(&[end(A)], &books, &registered(&[all])), "what lies before may have grown");
    assert!(is_done(&[end(A)], &books, &registered(&[before, A])), "and have been split since");
    let mut books = swapped(&[A]);
    books.set(PageNumber(105), PageState::Resident { clean: None });
    let present = |page| Kernel { present: vec![PageNumber(page)], ..registered(&[all]) };
    assert!(!is_done(&[end(A)], &books, &present(105)), "what has grown is empty");
    assert!(is_done(&[end(A)], &books, &present(104)));
    // Beside a mremap that meets it, too.
    let moved = moved(range(102, 1), 300);
    let events = [end(A), moved, end(range(102, 1))];
    let kernel = Kernel { present: vec![PageNumber(105)], ..registered(&[range(99, 3), range(103, 7), range(300, 1)]) };
    assert!(!is_done(&events, &books, &kernel));
    // A mremap that makes longer what it brings there is reported with the length that it had.
    let longer = [end(A), Event::Remapped { from: range(50, 1), to: A.start, may_stay: false }, end(range(50, 1))];
    assert!(is_done(&longer, &swapped(&[A, range(50, 1)]), &registered(&[A])));
    // Refused again, and in part: that takes nothing either.
    let Settlement::Decided(decided) = settled(&[end(A), end(A)], &swapped(&[A]), &registered(&[A])) else {
        panic!("it is clear")
    };
    assert_eq!(decided, []);
    let Settlement::Decided(decided) =
        settled(&[end(A), end(range(100, 2))], &swapped(&[A]), &registered(&[range(102, 8)]))
    else {
        panic!("it is clear")
    };
    assert_eq!(decided, [end(range(100, 2))]);
    // A page that is there has not grown, also if the kernel might have dropped it.
    books.note_discarded(A);
    assert!(!is_done(&[end(A)], &books, &present(105)));
    // What came while the program was changing its memory may be there in its place.
    let mut order = EventOrder::default();
    order.came(A);
    order.read(end(A));
    assert_eq!(order.settle(&books, &present(105)), Settlement::Decided(vec![end(A)]));
    let changing = Kernel { is_changing: true, ..present(105) };
    assert_eq!(settled(&[end(A)], &books, &changing), Settlement::Changing);
}

/// A discarding is reported before it takes effect, a mremap after: of two threads, either may have come first.
#[test]
fn what_one_thread_has_done_happened_as_it_was_read() {
    let page = range(100, 1);
    let events = [Event::Removed(page), Event::Remapped { from: page, to: PageNumber(300), may_stay: true }];
    let kernel = |has_one_thread| Kernel { has_one_thread, ..registered(&[page, range(300, 1)]) };
    assert!(matches!(settled(&events, &swapped(&[page]), &kernel(false)), Settlement::Unclear(_)));
    assert_eq!(settled(&events, &swapped(&[page]), &kernel(true)), Settlement::Decided(events.to_vec()));
}
