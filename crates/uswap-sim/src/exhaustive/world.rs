//! A few places, a few threads, and the kernel between them.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;
use uswap_core::event_order::{Event, EventOrder, Mappings, Settlement};
use uswap_core::fork_window::{ForkWindow, Note};
use uswap_core::page_table::PageTable;
use uswap_core::{EntryId, PageNumber, PageRange, PageState};

use super::Size;

/// What is at a place at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// Nothing.
    Free,
    /// Memory that is not registered.
    Foreign,
    /// Registered memory that the books do not know: it has grown there.
    Grown,
    /// Its content is swapped.
    Swapped,
    /// Its content is there.
    Resident,
    /// Its content is there, and a stored copy of it.
    Copied,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = [Kind::Free, Kind::Foreign, Kind::Grown, Kind::Swapped, Kind::Resident, Kind::Copied];
}

/// What may happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A thread makes a call.
    Call(usize, Call),
    /// Its next report is read.
    Report(usize),
    /// The discarding that was reported takes effect.
    Discard(usize),
    /// The engine adopts a place, while the program is changing its memory.
    Adopt(usize),
}

/// A call, with which it does something to a place, or to one page of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// mremap to another place: `leaves` the old one mapped.
    Move {
        /// Place, page, pages.
        from: Part,
        /// The other place.
        to: usize,
        /// `MREMAP_DONTUNMAP`.
        leaves: bool,
    },
    /// munmap.
    Unmap(Part),
    /// munmap, or mmap over what is there, that is reported and refused.
    Refused(Part),
    /// mmap over what is there.
    Cover(usize),
    /// mmap of a free place.
    Map(usize),
    /// Growth of registered memory into a free place.
    Grow(usize),
    /// madvise.
    Discard(Part),
}

/// Some pages of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Part {
    /// Which place.
    pub place: usize,
    /// Its first page there.
    pub page: u64,
    /// How many.
    pub pages: u64,
}

impl Part {
    /// `pages`: of a place. Each place begins where the one before it ends.
    fn range(self, pages: u64) -> PageRange {
        PageRange { start: PageNumber(BEFORE + 1 + self.place as u64 * pages + self.page), pages: self.pages }
    }
}

/// The page before all places: nothing is mapped there.
const BEFORE: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
struct Page {
    is_mapped: bool,
    is_registered: bool,
    is_present: bool,
    /// 0: zeros.
    content: u8,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
struct Thread {
    calls: u8,
    /// As they will be read, last first.
    reports: Vec<(u8, u64, u64, u64)>,
    /// Memory that the call is about, until it returns: first page, pages.
    about: Vec<(u64, u64)>,
    /// What it discards when its report has been read.
    discards: Option<(u64, u64)>,
}

/// What a state comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Something is being changed, or nothing was read.
    NothingToDecide,
    /// The books are right.
    Right,
    /// The process ends and says so.
    Ends,
    /// The books are wrong.
    Wrong(String),
}

/// One state.
#[derive(Clone)]
pub(super) struct World {
    size: Size,
    begin: Vec<Kind>,
    /// By place, then by page.
    pages: Vec<Page>,
    threads: Vec<Thread>,
    order: EventOrder,
    /// As masks of pages, only where an unmapping may be refused: which were mapped at any time; at which ended what a mremap brought;
    /// before which began what was refused, and where it could be grown into from within.
    mapped: u64,
    brought: u64,
    refused: u64,
    refused_within: u64,
}

impl World {
    pub fn new(size: Size, begin: &[Kind], order: EventOrder) -> World {
        let page = |(index, kind): (usize, Kind)| {
            let content = index as u8 + 1;
            match kind {
                Kind::Free => Page::default(),
                Kind::Foreign => Page { is_mapped: true, ..Page::default() },
                Kind::Grown => Page { is_mapped: true, is_registered: true, ..Page::default() },
                Kind::Swapped => Page { is_mapped: true, is_registered: true, is_present: false, content },
                Kind::Resident | Kind::Copied => {
                    Page { is_mapped: true, is_registered: true, is_present: true, content }
                }
            }
        };
        let kinds = begin.iter().flat_map(|&kind| std::iter::repeat_n(kind, size.pages as usize));
        World {
            size,
            begin: begin.to_vec(),
            pages: kinds.enumerate().map(page).collect(),
            threads: vec![Thread::default(); size.threads],
            order,
            mapped: 0,
            brought: 0,
            refused: 0,
            refused_within: 0,
        }
    }

    pub fn with_order(&self, mut order: EventOrder) -> World {
        self.order.all_that_came().iter().for_each(|&range| order.came(range));
        self.order.log().iter().for_each(|&event| order.read(event));
        World { order, ..self.clone() }
    }

    /// States with the same one come to the same.
    pub fn fingerprint(&self) -> u128 {
        let mut threads = self.threads.clone();
        threads.sort_unstable();
        let half = |salt: u64| {
            let mut hasher = FxHasher::default();
            salt.hash(&mut hasher);
            (&self.begin, &self.pages, &threads, self.order.log(), self.order.all_that_came()).hash(&mut hasher);
            (self.mapped, self.brought, self.refused, self.refused_within).hash(&mut hasher);
            hasher.finish()
        };
        u128::from(half(0x9e37_79b9)) << 64 | u128::from(half(0x85eb_ca6b_0000_0001))
    }

    fn index(&self, page: PageNumber) -> usize {
        (page.0 - BEFORE - 1) as usize
    }

    fn at(&self, page: PageNumber) -> &Page {
        &self.pages[self.index(page)]
    }

    fn of(&self, range: PageRange) -> impl Iterator<Item = &Page> {
        numbers(range).map(|page| self.at(page))
    }

    fn change(&mut self, range: PageRange, change: impl Fn(&mut Page)) {
        for page in numbers(range) {
            let index = self.index(page);
            change(&mut self.pages[index]);
        }
    }

    fn whole(&self, place: usize) -> Part {
        Part { place, page: 0, pages: self.size.pages }
    }

    /// All steps that may be next, of those alike the first.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let made: u8 = self.threads.iter().map(|thread| thread.calls).sum();
        for (index, thread) in self.threads.iter().enumerate() {
            if !thread.reports.is_empty() {
                steps.push(Step::Report(index));
            } else if thread.discards.is_some() {
                steps.push(Step::Discard(index));
            } else if made < self.size.calls
                && thread.calls < self.size.calls_each
                && !self.threads[..index].contains(thread)
            {
                steps.extend(self.calls().into_iter().map(|call| Step::Call(index, call)));
            }
        }
        // Not while events are held; and where nothing is changing it is how a schedule may begin.
        let is_changing = self.threads.iter().any(|thread| !thread.reports.is_empty());
        if is_changing && !self.order.holds() {
            let is_foreign = |&place: &usize| {
                self.of(self.whole(place).range(self.size.pages)).all(|page| page.is_mapped && !page.is_registered)
            };
            steps.extend((0..self.size.places).filter(is_foreign).map(Step::Adopt));
        }
        steps
    }

    fn calls(&self) -> Vec<Call> {
        let mut calls = Vec::new();
        for place in 0..self.size.places {
            let whole = self.whole(place);
            let is_free = self.of(whole.range(self.size.pages)).all(|page| !page.is_mapped);
            if is_free {
                calls.push(Call::Map(place));
                let before = place.checked_sub(1).map(|before| self.whole(before).range(self.size.pages));
                if before.is_some_and(|before| self.of(before).last().is_some_and(|page| page.is_registered)) {
                    calls.push(Call::Grow(place));
                }
                continue;
            }
            let halves = (0..self.size.pages).map(|page| Part { place, page, pages: 1 });
            let parts: Vec<Part> = if self.size.pages > 1 { halves.chain([whole]).collect() } else { vec![whole] };
            for part in parts.into_iter().filter(|part| self.is_own(part.range(self.size.pages))) {
                let has = |what: fn(&Page) -> bool| self.of(part.range(self.size.pages)).any(what);
                if has(|page| page.is_mapped) {
                    calls.push(Call::Unmap(part));
                }
                if self.size.refuses && has(|page| page.is_registered) {
                    calls.push(Call::Refused(part));
                }
                if self.of(part.range(self.size.pages)).all(|page| page.is_registered) {
                    calls.push(Call::Discard(part));
                    calls.extend(self.moves(part));
                }
            }
            if self.is_own(whole.range(self.size.pages)) {
                calls.push(Call::Cover(place));
            }
        }
        calls
    }

    fn moves(&self, from: Part) -> Vec<Call> {
        let targets = (0..self.size.places).filter(|&to| to != from.place);
        let mut moves = Vec::new();
        for to in targets {
            let place = Part { place: to, ..from }.range(self.size.pages);
            // Over what is there: `MREMAP_FIXED`.
            if !self.is_own(place) {
                continue;
            }
            moves.push(Call::Move { from, to, leaves: false });
            if self.size.leaves_mapped {
                moves.push(Call::Move { from, to, leaves: true });
            }
        }
        moves
    }

    /// Whether no unfinished call is about memory of `range`.
    fn is_own(&self, range: PageRange) -> bool {
        let mut about = self.threads.iter().flat_map(|thread| &thread.about);
        !about.any(|&(start, pages)| PageRange { start: PageNumber(start), pages }.overlaps(range))
    }

    /// Takes a step.
    pub fn take(&mut self, step: Step) {
        self.note_mapped();
        match step {
            Step::Call(thread, call) => {
                self.threads[thread].calls += 1;
                self.call(thread, call);
                self.threads[thread].reports.reverse();
                self.return_if_done(thread);
            }
            Step::Report(thread) => {
                let report = self.threads[thread].reports.pop().expect("it has one");
                self.order.read(unpacked(report));
                self.return_if_done(thread);
            }
            Step::Adopt(place) => {
                let range = self.whole(place).range(self.size.pages);
                self.order.came(range);
                self.change(range, |page| {
                    (page.is_registered, page.is_present) = (page.is_mapped, page.is_mapped || page.is_present);
                });
            }
            Step::Discard(thread) => {
                let (start, pages) = self.threads[thread].discards.take().expect("it discards");
                self.change(PageRange { start: PageNumber(start), pages }, |page| {
                    (page.content, page.is_present) = (0, false);
                });
                self.return_if_done(thread);
            }
        }
    }

    fn note_mapped(&mut self) {
        if self.size.refuses {
            self.mapped |= self.mapped_now();
        }
    }

    fn mapped_now(&self) -> u64 {
        self.pages.iter().enumerate().map(|(index, page)| u64::from(page.is_mapped) << index).sum()
    }

    /// Whether memory may have grown to where an unmapping was refused, from what has been before it, or was brought there. Where all of it
    /// is swapped out nobody can tell the one from the other (docs/known-issues.md).
    fn may_have_grown(&self) -> bool {
        let first = (self.mapped | self.mapped_now()).trailing_zeros();
        let behind_other = u64::MAX.checked_shl(first + 1).unwrap_or(0);
        (behind_other & self.refused) | (self.brought & self.refused_within) != 0
    }

    fn return_if_done(&mut self, thread: usize) {
        let thread = &mut self.threads[thread];
        if thread.reports.is_empty() && thread.discards.is_none() {
            thread.about.clear();
        }
    }

    fn report(&mut self, thread: usize, event: Event) {
        self.threads[thread].reports.push(packed(event));
    }

    fn unmap(&mut self, thread: usize, range: PageRange) {
        if self.of(range).any(|page| page.is_registered) {
            self.report(thread, Event::Unmapped(range));
        }
        self.change(range, |page| *page = Page::default());
    }

    fn call(&mut self, thread: usize, call: Call) {
        match call {
            Call::Move { from, to, leaves } => {
                let (from, place) = (from.range(self.size.pages), Part { place: to, ..from }.range(self.size.pages));
                self.unmap(thread, place);
                self.report(thread, Event::Remapped { from, to: place.start, may_stay: leaves });
                for index in 0..from.pages {
                    let (old, new) = (self.index(from.start.plus(index)), self.index(place.start.plus(index)));
                    self.pages[new] = std::mem::take(&mut self.pages[old]);
                    if leaves {
                        self.pages[old] = Page { is_mapped: true, is_registered: true, ..Page::default() };
                    }
                }
                if self.size.refuses {
                    self.brought |= 1 << self.index(place.start.plus(place.pages - 1));
                }
                self.threads[thread].about.push((place.start.0, place.pages));
                if leaves {
                    self.threads[thread].about.push((from.start.0, from.pages));
                } else {
                    self.report(thread, Event::Unmapped(from));
                }
            }
            Call::Unmap(part) => {
                self.unmap(thread, part.range(self.size.pages));
            }
            Call::Refused(part) => {
                let range = part.range(self.size.pages);
                self.refused |= 1 << self.index(range.start);
                self.refused_within |= ((1 << (range.pages - 1)) - 1) << self.index(range.start);
                self.report(thread, Event::Unmapped(range));
                // Nobody else knows before it returns that the memory has stayed.
                self.threads[thread].about.push((range.start.0, range.pages));
            }
            Call::Cover(place) => {
                let range = self.whole(place).range(self.size.pages);
                self.unmap(thread, range);
                self.change(range, |page| page.is_mapped = true);
                self.threads[thread].about.push((range.start.0, range.pages));
            }
            Call::Map(place) | Call::Grow(place) => {
                let is_registered = matches!(call, Call::Grow(_));
                self.change(self.whole(place).range(self.size.pages), |page| {
                    *page = Page { is_mapped: true, is_registered, ..Page::default() };
                });
            }
            Call::Discard(part) => {
                let range = part.range(self.size.pages);
                self.report(thread, Event::Removed(range));
                self.threads[thread].about.push((range.start.0, range.pages));
                self.threads[thread].discards = Some((range.start.0, range.pages));
            }
        }
    }

    /// The books as they were at first.
    fn books(&self) -> PageTable {
        let mut books = PageTable::new();
        for (place, kind) in self.begin.iter().enumerate() {
            let range = self.whole(place).range(self.size.pages);
            if matches!(kind, Kind::Free | Kind::Foreign | Kind::Grown) {
                continue;
            }
            books.adopt(range);
            for page in numbers(range) {
                let entry = EntryId(self.index(page) as u32 + 1);
                let state = match kind {
                    Kind::Swapped => PageState::Swapped { entry },
                    Kind::Copied => PageState::Resident { clean: Some(entry) },
                    _ => PageState::Resident { clean: None },
                };
                books.set(page, state);
            }
        }
        books
    }

    /// Whether the books are right, if nothing is being changed.
    pub fn judge(&self) -> Verdict {
        // While a discarding has been read and not taken effect, it is not counted any more.
        if !self.order.holds() || self.threads.iter().any(|thread| !thread.reports.is_empty()) {
            return Verdict::NothingToDecide;
        }
        let mut books = self.books();
        let settlement = self.order.settle(&books, self);
        let in_window = self.in_window(&books);
        if in_window != settlement {
            return Verdict::Wrong(format!("{settlement:?}, but {in_window:?} in the window of a fork"));
        }
        match settlement {
            Settlement::Unclear(_) => Verdict::Ends,
            Settlement::Changing => Verdict::Wrong("nothing is changing".to_owned()),
            Settlement::Decided(events) => {
                events.iter().for_each(|&event| apply(&mut books, event));
                match self.compare(&books) {
                    None => Verdict::Right,
                    Some(_) if self.may_have_grown() => Verdict::Ends,
                    Some(what) => Verdict::Wrong(format!("{what}, by {events:?}")),
                }
            }
        }
    }

    /// The same, read while a fork needs the books still.
    fn in_window(&self, books: &PageTable) -> Settlement {
        let mut window = ForkWindow::with_order(self.order.clone());
        window.note(Note::Installed(PageNumber(1)));
        window.settle(books, self)
    }

    fn compare(&self, books: &PageTable) -> Option<String> {
        for place in 0..self.size.places {
            for page in numbers(self.whole(place).range(self.size.pages)) {
                let found = *self.at(page);
                let state = books.get(page).filter(|&state| state != PageState::Untouched);
                let is_going = self
                    .threads
                    .iter()
                    .filter_map(|thread| thread.discards)
                    .any(|(start, pages)| PageRange { start: PageNumber(start), pages }.contains(page));
                let content = found.content;
                let is_right = match state {
                    _ if is_going => true,
                    Some(_) if !found.is_registered => false,
                    None => !found.is_registered || found.is_present || content == 0,
                    Some(PageState::Swapped { entry }) => !found.is_present && entry.0 == u32::from(content),
                    Some(PageState::Resident { clean }) => {
                        found.is_present && clean.is_none_or(|entry| entry.0 == u32::from(content))
                    }
                    Some(_) => false,
                };
                if !is_right {
                    return Some(format!("the books have {state:?} at {page:?}, where {found:?} is"));
                }
            }
        }
        None
    }
}

impl Mappings for World {
    fn is_registered(&self, range: PageRange) -> Option<bool> {
        // Beside the places nothing is.
        let has_page = |page: PageNumber| page.0 > BEFORE && self.index(page) < self.pages.len();
        Some(numbers(range).all(|page| has_page(page) && self.at(page).is_registered))
    }

    fn sees_absence(&self) -> bool {
        true
    }

    fn are_by_one_thread(&self) -> bool {
        self.size.threads == 1
    }

    fn is_present(&self, page: PageNumber) -> Option<bool> {
        Some(self.at(page).is_present)
    }
}

fn numbers(range: PageRange) -> impl Iterator<Item = PageNumber> {
    (range.start.0..range.end().0).map(PageNumber)
}

/// As [`uswap_core::Core::apply`], of content alone.
fn apply(books: &mut PageTable, event: Event) {
    let known: Vec<(PageNumber, PageState)> = books.known(event.range()).collect();
    match event {
        Event::Removed(_) => forget(books, known),
        Event::Unmapped(range) => {
            forget(books, known);
            books.forget(range);
        }
        Event::Remapped { from, to, .. } => {
            apply(books, Event::Unmapped(from.moved_to(to)));
            books.adopt(from.moved_to(to));
            forget(books, known.clone());
            for (page, state) in known {
                books.set(PageNumber(page.0 - from.start.0 + to.0), state);
            }
        }
        Event::Uncopied(_) => {
            for (page, _) in known.into_iter().filter(|(_, state)| matches!(state, PageState::Resident { .. })) {
                books.set(page, PageState::Resident { clean: None });
            }
        }
    }
}

fn forget(books: &mut PageTable, known: Vec<(PageNumber, PageState)>) {
    for (page, _) in known {
        books.set(page, PageState::Untouched);
    }
}

fn packed(event: Event) -> (u8, u64, u64, u64) {
    match event {
        Event::Removed(range) => (0, range.start.0, range.pages, 0),
        Event::Unmapped(range) => (1, range.start.0, range.pages, 0),
        Event::Remapped { from, to, may_stay } => (2 + u8::from(may_stay), from.start.0, from.pages, to.0),
        Event::Uncopied(_) => unreachable!("it is never reported"),
    }
}

fn unpacked((kind, start, pages, to): (u8, u64, u64, u64)) -> Event {
    let range = PageRange { start: PageNumber(start), pages };
    match kind {
        0 => Event::Removed(range),
        1 => Event::Unmapped(range),
        _ => Event::Remapped { from: range, to: PageNumber(to), may_stay: kind == 3 },
    }
}
