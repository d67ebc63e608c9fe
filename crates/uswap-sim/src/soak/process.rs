//! One simulated process: its memory, its program, its books, and the threads of its engine.

use uswap_core::event_order::{Event, EventOrder, Settlement};
use uswap_core::{CoreConfig, PageNumber, PageRange};

use super::coverage::{Coverage, Happening};
use super::engine::Actor;
use super::engine::swapoff::Swapoff;
use super::group::Group;
use super::mm::{BASE, Message, Mm, Pte, pages_of};
use super::process_books::Books;
use super::program::{Access, Call, Doing, Truth};
use super::remedies::Remedies;
use super::sabotage::Sabotage;
use super::scenario::Scenario;
use super::violation::{Checked, Checker, ensure, violated};
use crate::chance::Chance;
use crate::page_content::Content;

/// A process.
pub(super) struct Process {
    pub id: usize,
    pub mm: Mm,
    pub truth: Truth,
    pub threads: Vec<Doing>,
    /// The page that a stream of accesses touched last.
    pub cursor: PageNumber,
    /// What the last mremap to return has moved, until its thread does something.
    pub arrived: Option<(usize, PageRange)>,
    pub books: Books,
    pub order: EventOrder,
    pub actors: Vec<Actor>,
    pub swapoff: Swapoff,
    /// Actors that hold the gate for reading.
    pub gate: usize,
    /// A fork is wanted: nobody begins anything.
    pub freezing: bool,
    /// Ledgers of its children.
    pub heirs: Vec<usize>,
    /// Ledger and pool of each ancestor, oldest first; its own pool is the one behind them.
    pub ancestors: Vec<(usize, usize)>,
    pub pool: usize,
    /// Slots that have no entry yet.
    pub slots_in_flight: u64,
    /// Objects that have no entry yet.
    pub objects_in_flight: u64,
    /// Pages that loads in flight are bringing in, and zero windows.
    pub loads_in_flight: u32,
}

/// What all steps need.
pub(super) struct World<'a> {
    pub scenario: &'a Scenario,
    pub group: &'a mut Group,
    pub chance: &'a mut Chance,
    pub coverage: &'a mut Coverage,
    pub sabotage: Option<Sabotage>,
    pub remedies: Remedies,
    /// The program starts nothing new.
    pub ending: bool,
}

impl Process {
    pub fn first(scenario: &Scenario, group: &mut Group) -> Process {
        let config = CoreConfig {
            frame_blocks: scenario.frame_blocks,
            area_slots: scenario.area_slots.clone(),
            window_max: scenario.window_max,
            ahead_max: scenario.ahead_max,
            policies: scenario.policies,
        };
        group.pools.push(super::group::Pool::default());
        Process {
            id: 0,
            mm: Mm::new(scenario.span, scenario.frame_blocks as usize * 16, scenario.no_memory),
            truth: Truth::new(scenario.span),
            threads: vec![Doing::Ready; scenario.threads],
            cursor: PageNumber(BASE),
            arrived: None,
            books: Books::new(config, scenario.forks > 0),
            order: EventOrder::default(),
            actors: (0..=scenario.handlers).map(Actor::new).collect(),
            swapoff: Swapoff::default(),
            gate: 0,
            freezing: false,
            heirs: Vec::new(),
            ancestors: Vec::new(),
            pool: 0,
            slots_in_flight: 0,
            objects_in_flight: 0,
            loads_in_flight: 0,
        }
    }

    /// Whether nothing of the engine is under way.
    pub fn is_still(&self) -> bool {
        self.actors.iter().all(Actor::is_between_tasks)
    }

    /// Whether `thread` can take a step.
    pub fn can_step(&self, thread: usize, world: &World) -> bool {
        match self.threads[thread] {
            Doing::Ready => !world.ending,
            Doing::Retry(_) | Doing::Changed(_) | Doing::Read(_) => true,
            Doing::Faulting(_) | Doing::Posted(_) | Doing::Forking => false,
        }
    }

    /// A step of a thread of the program.
    pub fn step_thread(&mut self, thread: usize, world: &mut World) -> Checked {
        match self.threads[thread] {
            Doing::Ready => self.choose(thread, world),
            Doing::Retry(access) => self.access(thread, access, world),
            Doing::Changed(call) => {
                self.post(thread, call);
                Ok(())
            }
            Doing::Read(call) => {
                self.finish_call(thread, call);
                Ok(())
            }
            Doing::Faulting(_) | Doing::Posted(_) | Doing::Forking => Ok(()),
        }
    }

    fn choose(&mut self, thread: usize, world: &mut World) -> Checked {
        if world.chance.happens(world.scenario.calls, 1000) {
            return self.call(thread, world);
        }
        if let Some((_, place)) = self.arrived.take_if(|arrived| arrived.0 == thread)
            && world.chance.happens(1, 3)
        {
            return self.go_on_with(thread, place, world);
        }
        if let Some(hole) = self.fresh_hole()
            && world.chance.happens(1, 4)
        {
            self.remap_into(thread, hole, world);
            return Ok(());
        }
        let scenario = world.scenario;
        let hot = world.chance.happens(3, 4);
        let within = if hot { scenario.hot_pages.min(scenario.span) } else { scenario.span };
        let goes_on = world.chance.happens(scenario.streams, 100);
        let page = if goes_on { self.cursor.plus(1) } else { PageNumber(BASE + world.chance.below(within)) };
        self.cursor = if self.mm.all().contains(page) { page } else { PageNumber(BASE) };
        if !self.mm.all().contains(page) || self.mm.at(page).mapping == 0 {
            return Ok(());
        }
        let write = world
            .chance
            .happens(scenario.writes, 100)
            .then(|| if world.chance.happens(1, 12) { Content::ZERO } else { world.group.new_content() });
        self.access(thread, Access { page, write }, world)
    }

    /// An access, as the processor does it.
    pub fn access(&mut self, thread: usize, access: Access, world: &mut World) -> Checked {
        world.coverage.note(Happening::Access);
        let page = access.page;
        if self.mm.at(page).mapping == 0 {
            // Another thread has unmapped it: the program's own mistake.
            self.threads[thread] = Doing::Ready;
            return Ok(());
        }
        let place = self.mm.at_mut(page);
        match &mut place.pte {
            Pte::Poison => {
                self.threads[thread] = Doing::Ready;
                ensure(self.truth.is_lost(page), Checker::LostForAReason, || format!("{page:?} got SIGBUS"))
            }
            Pte::Present { content, shared, lazy_free } => {
                self.threads[thread] = Doing::Ready;
                let found = if world.sabotage == Some(Sabotage::Misread) { Content(u64::MAX >> 1) } else { *content };
                if let Some(new) = access.write {
                    (*content, *shared, *lazy_free) = (new, false, false);
                    self.truth.read(page, found)?;
                    self.truth.wrote(page, new);
                } else {
                    let may_go = *lazy_free;
                    self.truth.read(page, found)?;
                    if !may_go {
                        self.truth.settle(page, found);
                    }
                }
                Ok(())
            }
            Pte::Missing if place.registered => {
                let write = access.write.is_some();
                self.mm.faults.push_back(Message::Fault { thread, page, write });
                self.threads[thread] = Doing::Faulting(access);
                Ok(())
            }
            Pte::Missing => {
                place.pte = Pte::present(Content::ZERO);
                self.access(thread, access, world)
            }
        }
    }

    /// Wakes the threads that wait for pages of `range`; they take their unread messages with them.
    pub fn wake(&mut self, range: PageRange, world: &World) {
        if world.sabotage == Some(Sabotage::ForgetWake) {
            return;
        }
        for (index, thread) in self.threads.iter_mut().enumerate() {
            if let Doing::Faulting(access) = *thread
                && range.contains(access.page)
            {
                *thread = Doing::Retry(access);
                self.mm.faults.retain(|message| !matches!(*message, Message::Fault { thread, .. } if thread == index));
            }
        }
    }

    fn call(&mut self, thread: usize, world: &mut World) -> Checked {
        let chance = &mut *world.chance;
        if chance.happens(world.scenario.forks, 1000) && !self.freezing {
            self.threads[thread] = Doing::Forking;
            self.freezing = true;
            return Ok(());
        }
        let page = PageNumber(BASE + chance.below(world.scenario.span));
        if self.mm.at(page).mapping == 0 {
            // mmap: of memory that the engine does not know yet.
            let range = PageRange { start: page, pages: 1 + chance.below(60) };
            if self.mm.is_free(range) {
                self.mm.map(range, chance.happens(1, 20));
                self.truth.mapped(range);
            }
            return Ok(());
        }
        let around = self.mm.mapping_around(page);
        let start = PageNumber(around.start.0 + chance.below(around.pages));
        let range = PageRange { start, pages: 1 + chance.below(around.end().0 - start.0) };
        if self.is_another_calls(range) {
            return Ok(());
        }
        match chance.below(8) {
            0..4 => self.discard(thread, range, chance.happens(1, 4), world),
            4 => self.unmap(thread, range, world),
            5 | 6 => {
                let to = PageNumber(BASE + world.chance.below(world.scenario.span));
                self.remap(thread, range, to, world);
                Ok(())
            }
            _ => {
                let more = PageRange { start: around.end(), pages: 1 + chance.below(8) };
                if self.mm.is_free(more) {
                    world.coverage.note(Happening::Grow);
                    self.mm.grow(more);
                    self.truth.mapped(more);
                }
                Ok(())
            }
        }
    }

    /// The mappings have changed; the event of it follows.
    fn change(&mut self, thread: usize, call: Call) {
        self.mm.changing += 1;
        self.threads[thread] = Doing::Changed(call);
    }

    fn post(&mut self, thread: usize, call: Call) {
        let event = match call {
            Call::Discard { range, .. } => Event::Removed(range),
            Call::Remap { from, to } => Event::Remapped { from, to, may_stay: false },
            Call::Unmap { range, .. } => Event::Unmapped(range),
        };
        self.mm.events.push_back(Message::Event { thread, event });
        self.threads[thread] = Doing::Posted(call);
    }

    fn discard(&mut self, thread: usize, range: PageRange, lazily: bool, world: &mut World) -> Checked {
        world.coverage.note(Happening::Discard);
        self.truth.discard_begins(range);
        if self.mm.at(range.start).registered {
            self.mm.changing += 1;
            self.post(thread, Call::Discard { range, lazily });
        } else {
            self.mm.drop_pages(range, lazily);
            self.truth.discard_ends(range, lazily);
        }
        Ok(())
    }

    fn unmap(&mut self, thread: usize, range: PageRange, world: &mut World) -> Checked {
        world.coverage.note(Happening::Unmap);
        let registered = self.mm.at(range.start).registered;
        self.mm.unmap(range);
        if registered {
            self.change(thread, Call::Unmap { range, arrived: None });
        }
        Ok(())
    }

    /// Whether a call is under way that is about memory of `range`: no thread of a right program makes another.
    fn is_another_calls(&self, range: PageRange) -> bool {
        let mut arriving = self.threads.iter().filter_map(|doing| doing.call()?.arriving());
        arriving.any(|place| place.overlaps(range)) || self.truth.is_discarding(range)
    }

    /// What another thread has just left, and not reported yet.
    fn fresh_hole(&self) -> Option<PageRange> {
        self.threads.iter().find_map(|doing| match *doing {
            Doing::Changed(Call::Remap { from: hole, .. } | Call::Unmap { range: hole, .. })
            | Doing::Posted(Call::Remap { from: hole, .. } | Call::Unmap { range: hole, .. }) => Some(hole),
            _ => None,
        })
    }

    /// mremap into a fresh hole: the kernel likes those.
    fn remap_into(&mut self, thread: usize, hole: PageRange, world: &mut World) {
        let page = PageNumber(BASE + world.chance.below(world.scenario.span));
        if self.mm.at(page).mapping != 0 {
            let around = self.mm.mapping_around(page);
            let from = PageRange { start: around.start, pages: around.pages.min(hole.pages) };
            if !self.is_another_calls(from) {
                self.remap(thread, from, hole.start, world);
            }
        }
    }

    fn remap(&mut self, thread: usize, from: PageRange, to: PageNumber, world: &mut World) {
        let to = from.moved_to(to);
        if !self.mm.is_free(to) {
            return;
        }
        world.coverage.note(Happening::Remap);
        let registered = self.mm.at(from.start).registered;
        self.mm.remap(from, to.start);
        self.truth.moved(from, to.start);
        if registered {
            self.change(thread, Call::Remap { from, to: to.start });
        }
    }

    /// The event of a call was read, and its task runs.
    fn finish_call(&mut self, thread: usize, call: Call) {
        self.mm.changing -= 1;
        self.threads[thread] = Doing::Ready;
        match call {
            Call::Discard { range, lazily } => {
                self.mm.drop_pages(range, lazily);
                self.truth.discard_ends(range, lazily);
            }
            // The old range is reported next; the kernel counted it as changing all the time.
            Call::Remap { from, .. } => self.change(thread, Call::Unmap { range: from, arrived: call.arriving() }),
            Call::Unmap { arrived, .. } => self.arrived = arrived.map(|place| (thread, place)),
        }
    }

    /// A mremap has returned to `thread`: what it has moved is unmapped, or moved on, at once.
    fn go_on_with(&mut self, thread: usize, place: PageRange, world: &mut World) -> Checked {
        let is_there = pages_of(place).all(|page| self.mm.at(page).mapping != 0);
        if !is_there || self.is_another_calls(place) {
            return Ok(());
        }
        if world.chance.happens(2, 3) {
            return self.unmap(thread, place, world);
        }
        let to = PageNumber(BASE + world.chance.below(world.scenario.span));
        self.remap(thread, place, to, world);
        Ok(())
    }

    /// The kernel drops a page that was given up with MADV_FREE.
    pub fn drop_a_lazy_page(&mut self, world: &mut World) {
        let lazy = pages_of(self.mm.all())
            .filter(|&page| matches!(self.mm.at(page).pte, Pte::Present { lazy_free: true, shared: false, .. }));
        let lazy: Vec<PageNumber> = lazy.collect();
        if !lazy.is_empty() {
            let page = lazy[world.chance.index(lazy.len())];
            self.mm.at_mut(page).pte = Pte::Missing;
            self.truth.dropped(page);
            world.coverage.note(Happening::LazilyDropped);
        }
    }

    /// Takes in an event that was read.
    pub fn read_event(&mut self, event: Event, world: &mut World) {
        if !world.remedies.events_in_order {
            return self.apply(event, world);
        }
        self.order.read(event);
        self.mm.held = true;
    }

    /// Nothing is being changed, and everything was read: all of that is applied.
    pub fn settle_events(&mut self, world: &mut World) -> Checked {
        let moves = self.order.log().iter().filter(|event| matches!(event, Event::Remapped { .. })).count();
        if moves > 1 {
            world.coverage.note(Happening::Decided);
        }
        let pages = self.books.look().pages();
        let settlement = match world.remedies.mappings_are_asked {
            true => self.order.settle(pages, &self.mm),
            false => Settlement::Decided(self.order.settle_unasked(pages)),
        };
        let events = decided(settlement, world)?;
        events.into_iter().for_each(|event| self.apply(event, world));
        self.events_are_settled();
        Ok(())
    }

    pub fn events_are_settled(&mut self) {
        self.order.clear();
        self.mm.held = false;
    }

    pub fn apply(&mut self, event: Event, world: &World) {
        self.books.tell(move |core| core.apply(event));
        if world.remedies.events_wake {
            self.wake(event.range(), world);
        }
    }

    /// The event of `thread` was read.
    pub fn event_read(&mut self, thread: usize) {
        if let Doing::Posted(call) = self.threads[thread] {
            self.threads[thread] = Doing::Read(call);
        }
    }
}

/// What was read comes to this, or the process ends with a line.
pub(super) fn decided(settlement: Settlement, world: &mut World) -> Checked<Vec<Event>> {
    match settlement {
        Settlement::Decided(events) => Ok(events),
        Settlement::Changing => unreachable!("the program stands still while it is asked"),
        Settlement::Unclear(page) => {
            world.coverage.note(Happening::EndedUnclear);
            violated(Checker::EndsWithALine, format!("nothing tells what is at {page:?}"))
        }
    }
}
