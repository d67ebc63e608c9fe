//! The order of events: from the one in which they were read back to the one in which memory changed.
//!
//! Linux changes the mappings first, lets go of mmap_lock, and reports second. Two threads may so be reported in the other
//! order: one thread's mremap or munmap frees a range, another's mremap takes it, and its report is read first. What Linux
//! promises is written down in docs/event-order.md; what follows here rests on four of its sentences:
//!
//! - **Counted.** A change is counted from before the lock of the mappings is let go until its report was read and its task
//!   has gone on, and while any is counted the kernel fills nothing. So when it counts none, every change has been read.
//! - **Blocked.** A task sleeps until its report is read. So a call changes memory before its first report is read, and a
//!   thread's next call begins after the last report of this one was.
//! - **Twice.** A mremap is reported at its new place and then, as an unmapping of just that range, at its old one (not with
//!   `MREMAP_DONTUNMAP`), and returns after that.
//! - **Owned.** A program does not unmap, move or discard memory that a call of another thread is about: before a mremap
//!   has returned, nobody else knows what it has moved. (A program that does has a race of its own, and may find either.)
//!
//! Nothing is applied as it is read. What was read is kept, and nothing is filled meanwhile (which the kernel refuses
//! anyway, most of that time); when the kernel counts no change, everything that has happened is known, and is applied:
//!
//! - Lemma 0: *the calls of one thread are in the order of its reports* (Blocked). If no other can have made any of what was read, nothing
//!   is left to be searched but what has grown, and an unmapping that was refused.
//! - Lemma 1: *without a mremap any order is right.* Unmapping and discarding only take content away, and nothing comes to
//!   be while changes are counted: what the books have was there before all of them. An unmapping may have been reported and then
//!   refused, so it is asked whether the memory has stayed ([`refused`]).
//! - Lemma 2: *what touches nothing that others touch has one place in every order.* A mremap is applied with its own
//!   unmapping behind it.
//! - The others are searched: all orders in which they may have happened ([`search`]), by Lemmas 3 to 6 there. If they all
//!   leave the same behind, that is what has happened. If not, they are searched again, and the kernel is asked what is
//!   registered (Lemma 7 of [`verdict`]): that tells of most calls which came first ([`precedence`]), and ends most orders
//!   before they are complete ([`prospects`]). If more than one outcome is left, pages are asked for (Lemmas 8 and 9). If
//!   these cannot tell either, the answer is [`Settlement::Unclear`], and the process must end: never a guess.
//! - Where something is registered that no order explains, unmappings were refused ([`refused`]): as few as may be.

mod calls;
mod ground;
mod precedence;
mod prospects;
#[cfg(test)]
mod recorded;
mod refused;
mod search;
#[cfg(test)]
mod tests;
mod verdict;

use alloc::vec::Vec;
use core::cell::Cell;

use self::calls::Call;
use self::ground::Questions;
use self::refused::{Registered, Stays, Unmapping, Why};
use self::search::{Orders, Outcome};
use self::verdict::{Asked, Changing};
use crate::defects::{Sabotage, is_on};
use crate::page_table::{PageState, PageTable};
use crate::units::{PageNumber, PageRange};

/// What the program did to adopted memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
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
        /// Whether it may have left `from` mapped (`MREMAP_DONTUNMAP`), so that no second report of it can be expected.
        may_stay: bool,
    },
    /// Not reported, but concluded: stored copies of pages that are there may be of another page's content.
    Uncopied(PageRange),
}

impl Event {
    /// The memory that it is about; of a mremap, where that was.
    pub fn range(self) -> PageRange {
        match self {
            Event::Removed(range)
            | Event::Unmapped(range)
            | Event::Uncopied(range)
            | Event::Remapped { from: range, .. } => range,
        }
    }
}

/// The kernel's mappings as they are. `None` when the program has begun to change its memory again.
pub trait Mappings {
    /// Whether all of `range` is one registered mapping.
    fn is_registered(&self, range: PageRange) -> Option<bool>;
    /// Whether `page` is populated.
    fn is_present(&self, page: PageNumber) -> Option<bool>;
    /// Whether what is called absent is. Otherwise the kernel may have swapped it out by itself.
    fn sees_absence(&self) -> bool;
    /// Whether one thread alone has made all changes that are not in the books. No, if that is not known.
    fn are_by_one_thread(&self) -> bool;
}

/// Who is asked when nothing is being changed: the kernel, and the books as they were before everything that was read.
pub(crate) trait Witness: Mappings {
    /// Whether the books know anything of a page of `range`.
    fn knows_any(&self, range: PageRange) -> bool;
    /// The pages of `range` of which the books know something, and what.
    fn known(&self, range: PageRange) -> Vec<(PageNumber, PageState)>;
    /// The first page of `range` of which the books know something that is so.
    fn find(&self, range: PageRange, is_so: &dyn Fn(PageNumber, PageState) -> bool) -> Option<PageNumber>;
    /// Whether the kernel may have dropped a page that the books call resident.
    fn may_have_gone(&self, page: PageNumber) -> bool;
}

/// Books and kernel.
struct Beside<'a, M> {
    pages: &'a PageTable,
    kernel: &'a M,
}

impl<M: Mappings> Mappings for Beside<'_, M> {
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

impl<M: Mappings> Witness for Beside<'_, M> {
    fn knows_any(&self, range: PageRange) -> bool {
        self.pages.known(range).next().is_some()
    }

    fn known(&self, range: PageRange) -> Vec<(PageNumber, PageState)> {
        self.pages.known(range).collect()
    }

    fn find(&self, range: PageRange, is_so: &dyn Fn(PageNumber, PageState) -> bool) -> Option<PageNumber> {
        self.pages.known(range).find(|&(page, state)| is_so(page, state)).map(|(page, _)| page)
    }

    fn may_have_gone(&self, page: PageNumber) -> bool {
        self.pages.was_discarded(page)
    }
}

/// What all that was read comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Settlement {
    /// To be applied in this order.
    Decided(Vec<Event>),
    /// The program has begun to change its memory again: to be asked again.
    Changing,
    /// More than one order is possible, and nothing tells them apart; or none is. It matters from this page on.
    Unclear(PageNumber),
}

/// The rules that the checker of all schedules drops in turn, to see that it finds what each is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Rule {
    /// What was read is put in order, not applied as it was read.
    Settled,
    /// The calls of one thread happened as they were read (Lemma 0).
    OneThread,
    /// A mremap's own unmapping takes nothing away (Twice).
    OwnEnd,
    /// What is read before a mremap's end was before what that brings (Lemma 3).
    BeforeReturn,
    /// A mremap that was read before a discarding was before it (Lemma 4).
    DiscardLast,
    /// A mremap goes to free memory only (Lemma 5).
    FreePlace,
    /// Memory that comes unreported has grown behind other (Lemma 6).
    Grown,
    /// Or it was adopted while the program was changing its memory (Lemma 6).
    Came,
    /// All orders are looked at, not the first that is possible.
    AllOrders,
    /// What has content is registered (Lemma 7).
    Registered,
    /// What is there was there (Lemma 8).
    Present,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 11] = [
        Rule::Settled,
        Rule::OneThread,
        Rule::OwnEnd,
        Rule::BeforeReturn,
        Rule::DiscardLast,
        Rule::FreePlace,
        Rule::Grown,
        Rule::Came,
        Rule::AllOrders,
        Rule::Registered,
        Rule::Present,
    ];
}

/// Events that are a [long list](EventOrder::is_long).
const LONG: usize = 64;
/// Among more calls that have to do with each other it is not asked which were refused: that takes too long, and the program waits.
const CALLS_MAX: usize = 16;
/// Ranges of memory that came that are kept apart.
const CAME_MAX: usize = 64;

/// Events between their reading and their application.
#[derive(Clone, Debug, Default)]
pub struct EventOrder {
    /// As they were read.
    log: Vec<Event>,
    /// Memory that was taken in while the program was changing its memory.
    came: Vec<PageRange>,
    /// So many of the first events have gone through, and were not refused: that is asked once.
    gone_through: Cell<usize>,
    dropped: Option<Rule>,
}

impl EventOrder {
    /// One that lacks a rule, for the checker alone.
    pub fn without(rule: Rule) -> EventOrder {
        EventOrder { dropped: Some(rule), ..EventOrder::default() }
    }

    /// The rule that this one lacks.
    fn dropped(&self) -> Option<Rule> {
        let planted = [
            (Sabotage::EventsAsRead, Rule::Settled),
            (Sabotage::OwnEndForgotten, Rule::OwnEnd),
            (Sabotage::FirstOrderTaken, Rule::AllOrders),
        ];
        planted.into_iter().find(|&(which, _)| is_on(which)).map(|(_, rule)| rule).or(self.dropped)
    }

    fn obeys(&self, rule: Rule) -> bool {
        self.dropped() != Some(rule)
    }

    /// Takes in an event that was read.
    pub fn read(&mut self, event: Event) {
        self.log.push(event);
    }

    /// `range` was adopted, if it could, while the program was changing its memory and nothing was held: what is there may have come
    /// after calls that are not read yet.
    pub fn came(&mut self, range: PageRange) {
        if self.came.len() < CAME_MAX {
            return self.came.push(range);
        }
        // One range that has them all tells less, and nothing wrong.
        let (first, last) =
            self.came.drain(..).chain([range]).fold((range.start, range.end()), |(first, last), range| {
                (first.min(range.start), last.max(range.end()))
            });
        self.came.push(PageRange { start: first, pages: last.0 - first.0 });
    }

    /// What was adopted meanwhile.
    pub fn all_that_came(&self) -> &[PageRange] {
        &self.came
    }

    /// What was read and is not applied.
    pub fn log(&self) -> &[Event] {
        &self.log
    }

    /// Whether anything was read and is not applied: nothing may be filled.
    pub fn holds(&self) -> bool {
        !self.log.is_empty()
    }

    /// Whether so much was read that it must not become much more: to put it in order takes longer than in proportion.
    pub fn is_long(&self) -> bool {
        self.log.len() >= LONG
    }

    /// Whether a mremap is among what was read: the longer that waits, the more there is to search.
    pub fn is_pressing(&self) -> bool {
        self.is_long() || self.log.iter().any(|event| matches!(event, Event::Remapped { .. }))
    }

    /// What was read has been applied.
    pub fn clear(&mut self) {
        self.log.clear();
        self.came.clear();
        self.gone_through.set(0);
    }

    /// What all that was read comes to, at a moment when nothing was being changed and everything had been read.
    pub fn settle(&self, books: &PageTable, kernel: &impl Mappings) -> Settlement {
        self.settle_with(&Beside { pages: books, kernel })
    }

    pub(crate) fn settle_with(&self, witness: &impl Witness) -> Settlement {
        if !self.obeys(Rule::Settled) {
            return Settlement::Decided(self.log.clone());
        }
        let by_one = self.are_by_one_thread(witness);
        let calls = if by_one { calls::of_one_thread } else { calls::of };
        let Some(calls) = self.done(calls(&self.log, self.obeys(Rule::OwnEnd)), witness) else {
            return Settlement::Changing;
        };
        let mut events = Vec::with_capacity(self.log.len());
        if !calls.iter().any(|call| matches!(call.event, Event::Remapped { .. })) {
            // Lemma 1.
            calls.iter().for_each(|call| call.append_to(&mut events));
            return Settlement::Decided(events);
        }
        for calls in calls::components(calls) {
            if let [call] = calls.as_slice()
                && !call.has_doubtful_end()
            {
                // Lemma 2.
                call.append_to(&mut events);
                continue;
            }
            match self.put_in_order(&calls, by_one, witness) {
                Ok(Some(outcome)) => events.extend(outcome.events),
                // As it was read it was. What has grown has no content, wherever that was.
                Ok(None) if by_one => calls.iter().for_each(|call| call.append_to(&mut events)),
                Ok(None) => return Settlement::Unclear(calls[0].from().start),
                Err(Changing) => return Settlement::Changing,
            }
        }
        Settlement::Decided(events)
    }

    /// Whether Lemma 0 is of use, and holds.
    fn are_by_one_thread(&self, witness: &impl Witness) -> bool {
        let may_matter = self.log.len() > 1 && self.log.iter().any(|event| matches!(event, Event::Remapped { .. }));
        may_matter && self.obeys(Rule::OneThread) && witness.are_by_one_thread()
    }

    /// What calls that have to do with each other come to, if nothing else can have happened.
    fn put_in_order(&self, calls: &[Call], by_one: bool, witness: &impl Witness) -> Asked<Option<Outcome>> {
        let questions = Questions::new(witness, &self.log, by_one);
        let (orders, is_owned) = search::orders(calls, &self.came, self.dropped(), &questions);
        let mut found = verdict::decide(orders, self.dropped(), witness)?;
        let unmappings = refused::unmappings(calls);
        if !unmappings.is_empty() && !is_on(Sabotage::RefusedCallsBelieved) && self.dropped().is_none() {
            let registered = Registered::new(calls, &unmappings, &self.came, &questions);
            found = self.reconsidered(found, is_owned, calls, &unmappings, &registered)?;
        }
        if questions.is_changing() { Err(Changing) } else { Ok(found) }
    }

    /// What has happened, if what was `found` does not agree with what is registered: in another order, or because unmappings were refused,
    /// as few as may be.
    fn reconsidered<W: Witness>(
        &self,
        found: Option<Outcome>,
        is_owned: bool,
        calls: &[Call],
        unmappings: &[Unmapping],
        registered: &Registered<'_, W>,
    ) -> Asked<Option<Outcome>> {
        let decide = |orders: Orders| verdict::decide(orders, self.dropped(), registered.questions.witness);
        let explained = |calls: &[Call]| {
            let others = &registered.unmapped;
            let mut orders = search::registered_orders(calls, others, &self.came, self.dropped(), registered.questions);
            orders.keep(|outcome| registered.beside(outcome) != Why::Unknown);
            orders
        };
        let why = match &found {
            Some(found) if is_owned && !found.needs_more => registered.beside_unmapped(found),
            _ => Why::Unknown,
        };
        if why == Why::None {
            return Ok(found);
        }
        if why == Why::Unknown {
            match explained(calls) {
                Orders::TooMany => return Ok(found),
                orders if orders.are_none() => {}
                orders => return decide(orders),
            }
        }
        if calls.len() > CALLS_MAX {
            return Ok(found);
        }
        for possible in refused::possibilities(unmappings) {
            let mut orders = Orders::All(Vec::new());
            for refused in possible {
                orders = orders.and(explained(&refused.others(calls)));
            }
            if let (Why::Grown, Some(grown)) = (why, &found) {
                orders.keep(|outcome| registered.tells_from(outcome, grown));
            }
            match orders {
                Orders::TooMany => return Ok(found),
                orders if orders.are_none() => {}
                orders => return decide(orders),
            }
        }
        Ok(found)
    }

    /// Those of the calls that the kernel has not refused after they had been reported. `None` when it cannot be told now.
    fn done(&self, mut calls: Vec<Call>, witness: &impl Witness) -> Option<Vec<Call>> {
        if is_on(Sabotage::RefusedCallsBelieved) {
            return Some(calls);
        }
        // One that was refused has taken nothing from others that could not be told of before.
        while let Some(index) = self.first_refused(&calls, witness)? {
            calls.remove(index);
        }
        Some(calls)
    }

    fn first_refused(&self, calls: &[Call], witness: &impl Witness) -> Option<Option<usize>> {
        for (index, call) in calls.iter().enumerate().filter(|(_, call)| call.read >= self.gone_through.get()) {
            match self.stays(calls, call, witness)? {
                Stays::Yes => return Some(Some(index)),
                Stays::No if call.read == self.gone_through.get() => self.gone_through.set(call.read + 1),
                Stays::No | Stays::Unknown => {}
            }
        }
        Some(None)
    }

    fn stays(&self, calls: &[Call], call: &Call, witness: &impl Witness) -> Option<Stays> {
        let Event::Unmapped(range) = call.event else { return Some(Stays::No) };
        if !witness.knows_any(range) {
            return Some(Stays::No);
        }
        // Those of just this memory are refused with it, or went through after it.
        let others = || calls.iter().filter(|other| other.event != call.event);
        let is_near = |other: &PageRange| other.overlaps(with_page_before(range));
        let brought = others().filter_map(Call::to).chain(self.came.iter().copied()).filter(is_near).collect();
        let taken = others().map(Call::from).filter(is_near).collect();
        refused::stays(range, &refused::Others { brought, taken }, witness)
    }
}

fn with_page_before(range: PageRange) -> PageRange {
    let start = range.start.0.saturating_sub(1);
    PageRange { start: PageNumber(start), pages: range.end().0 - start }
}
