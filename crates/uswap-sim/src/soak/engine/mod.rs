//! The engine's threads, step by step.
//!
//! Each step is what the engine does under one hold of a lock, or one call of the kernel, or one transfer; between two
//! steps any other thread may take its own. The order of locks is the engine's: the gate is held from the look at the
//! books to the note of what became of it, and events are applied only while nobody holds it.

mod compaction;
pub(super) mod fork;
mod reclaim;
mod serve;
mod store;
pub(super) mod swapoff;
mod writeback;

use std::collections::VecDeque;

use uswap_core::{PageNumber, PageRange, RangeSet};

use super::check::check_pool;
use super::coverage::Happening;
use super::mm::{Message, Pte, pages_of};
use super::process::{Process, World};
use super::sabotage::Sabotage;
use super::violation::Checked;
use compaction::{Compaction, Pass};
use reclaim::{MoveOut, Trash};
use serve::Serve;
use store::Store;
use writeback::Writeback;

/// Messages read at a time.
const MESSAGES: usize = 16;

/// A fault that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingFault {
    pub page: PageNumber,
    pub write: bool,
    /// No event was unread when it was tried before.
    pub nothing_unread: bool,
}

/// What became of a step of a task.
enum Step {
    /// It has more steps.
    Again,
    /// It is over.
    Over,
    /// It is over, and these pages are to be served as faults.
    Wanted(Vec<PageNumber>),
    /// A fault that an event stood in the way of.
    AfterEvents(PendingFault),
}

enum Task {
    Serve(Box<Serve>),
    MoveOut(MoveOut),
    Store(Store),
    Writeback(Writeback),
    Compaction(Compaction),
    Trash(Trash),
}

/// A thread of the engine. The first one is the monitor.
pub(super) struct Actor {
    is_monitor: bool,
    task: Option<Task>,
    pending: VecDeque<PendingFault>,
    /// Must read messages before it goes on with this fault.
    retry: Option<PendingFault>,
    wanted: Vec<PageNumber>,
    pool_is_full: bool,
    compaction: Pass,
}

impl Actor {
    pub fn new(index: usize) -> Actor {
        Actor {
            is_monitor: index == 0,
            task: None,
            pending: VecDeque::new(),
            retry: None,
            wanted: Vec::new(),
            pool_is_full: false,
            compaction: Pass::default(),
        }
    }

    pub fn is_between_tasks(&self) -> bool {
        self.task.is_none() && self.wanted.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        self.is_between_tasks() && self.pending.is_empty() && self.retry.is_none()
    }

    /// One step.
    pub fn step(&mut self, process: &mut Process, world: &mut World) -> Checked {
        if let Some(mut task) = self.task.take() {
            let step = match &mut task {
                Task::Serve(serve) => serve.step(process, world)?,
                Task::MoveOut(task) => task.step(process, world)?,
                Task::Store(task) => task.step(process, world)?,
                Task::Writeback(task) => task.step(process, world)?,
                Task::Compaction(task) => {
                    let step = task.step(process, world)?;
                    self.compaction = task.pass();
                    step
                }
                Task::Trash(task) => task.step(process, world)?,
            };
            match step {
                Step::Again => self.task = Some(task),
                Step::Over => {}
                Step::Wanted(pages) => self.wanted.extend(pages),
                Step::AfterEvents(fault) => {
                    let is_fault = matches!(&task, Task::Serve(serve) if serve.answers_a_message());
                    if is_fault {
                        self.retry = Some(fault);
                    } else {
                        // Nobody sent this fault: its thread faults again by itself.
                        process.wake(PageRange { start: fault.page, pages: 1 }, world);
                    }
                }
            }
            return Ok(());
        }
        if let Some(page) = self.wanted.pop() {
            self.task = Some(Task::Serve(Box::new(Serve::wanted(page))));
            return Ok(());
        }
        if process.freezing {
            return Ok(());
        }
        if let Some(fault) = self.retry {
            if process.gate == 0 {
                let nothing_unread = self.receive(process, world)? == 0;
                self.retry = None;
                self.pending.push_back(PendingFault { nothing_unread, ..fault });
            }
            return Ok(());
        }
        if let Some(fault) = self.pending.pop_front() {
            world.coverage.note(Happening::Fault);
            self.task = Some(Task::Serve(Box::new(Serve::message(fault))));
            return Ok(());
        }
        self.begin_something(process, world)
    }

    fn begin_something(&mut self, process: &mut Process, world: &mut World) -> Checked {
        let reclaims = !world.ending && world.chance.happens(world.scenario.pressure, 1000);
        if !reclaims {
            if !self.is_monitor && process.books.look().wants_ahead() && world.chance.happens(1, 2) {
                self.task = Serve::ahead(process, world).map(|serve| Task::Serve(Box::new(serve)));
            } else if !self.is_monitor && empties_areas(world) && world.chance.happens(1, 2) {
                self.task = Serve::swapoff(process, world).map(|serve| Task::Serve(Box::new(serve)));
            } else if process.gate == 0 && (!self.is_monitor || world.chance.happens(1, 8)) {
                self.receive(process, world)?;
            } else if self.is_monitor {
                self.keep_house(process, world)?;
            }
            return Ok(());
        }
        let stores = world.scenario.stores;
        let trashes = world.chance.happens(world.scenario.trashes, 100);
        self.task = Some(match world.chance.below(17) {
            _ if trashes => Task::Trash(Trash::new()),
            // Only the monitor compacts.
            14 | 15 if self.is_monitor => Task::Compaction(Compaction::new(self.compaction)),
            16 => Task::Writeback(Writeback::new()),
            drawn if drawn < stores => Task::Store(Store::new(self.judge_pool(process, world))),
            _ => Task::MoveOut(MoveOut::new()),
        });
        Ok(())
    }

    /// The pool takes nothing from its limit on until it is well below it.
    fn judge_pool(&mut self, process: &Process, world: &World) -> bool {
        let (len, most) = (world.group.pools[process.pool].len(), world.scenario.pool_objects);
        if len >= most {
            self.pool_is_full = true;
        } else if len * 10 <= most * 9 {
            self.pool_is_full = false;
        }
        self.pool_is_full
    }

    /// Reads messages with the gate shut: applies the events, keeps the faults. Returns how many there were.
    pub fn receive(&mut self, process: &mut Process, world: &mut World) -> Checked<usize> {
        let messages = process.mm.read(MESSAGES);
        for &message in &messages {
            match message {
                Message::Fault { page, write, .. } => {
                    self.pending.push_back(PendingFault { page, write, nothing_unread: false });
                }
                Message::Event { thread, event } => {
                    process.read_event(event, world);
                    process.event_read(thread);
                }
            }
        }
        if process.mm.changing == 0 {
            process.settle_events(world)?;
        }
        if process.mm.held {
            world.coverage.note(Happening::EventHeld);
        }
        Ok(messages.len())
    }

    /// What only the monitor does.
    fn keep_house(&self, process: &mut Process, world: &mut World) -> Checked {
        match world.chance.below(if world.ending { 3 } else { 8 + u64::from(world.scenario.swapoffs) }) {
            0 => settle_heirs(process, world),
            1 => release_empty_clusters(process, world),
            2 => release_places(process, world),
            3 | 4 => adopt(process, world),
            5 => {
                scan(process, world);
                Ok(())
            }
            6 => {
                break_sharing(process, world);
                Ok(())
            }
            7 => {
                process.drop_a_lazy_page(world);
                Ok(())
            }
            _ => {
                swapoff::change_mind(world);
                Ok(())
            }
        }
    }
}

/// Whether there may be something to bring in from an area that leaves. What cannot be read would be tried for ever.
fn empties_areas(world: &World) -> bool {
    !world.ending && world.group.areas.iter().any(|area| area.leaving.is_some())
}

/// Frees what was kept for children that need it no more.
pub(super) fn settle_heirs(process: &mut Process, world: &mut World) -> Checked {
    if process.heirs.is_empty() {
        return Ok(());
    }
    process.heirs.retain(|&ledger| world.group.ledgers[ledger].is_alive());
    if process.heirs.is_empty() {
        process.books.tell(|core| core.no_heirs());
    }
    world.coverage.add(Happening::Zombie, process.books.look().swap_table().zombies());
    let held = held_by_heirs(process, world);
    process.books.tell(move |core| core.bury_unheld(|entry| held.contains(&entry)));
    release_places(process, world)
}

/// Entries that a living heir may read, of those in use at this moment.
fn held_by_heirs(process: &Process, world: &World) -> std::collections::BTreeSet<uswap_core::EntryId> {
    let table = process.books.look().swap_table();
    (0..table.len())
        .map(uswap_core::EntryId)
        .filter(|&entry| process.heirs.iter().any(|&ledger| world.group.ledgers[ledger].holds(entry)))
        .collect()
}

/// Releases the places that the books have let go.
pub(super) fn release_places(process: &mut Process, world: &mut World) -> Checked {
    for place in process.books.take_released() {
        let epoch = place.epoch.0 as usize;
        if epoch == process.ancestors.len() {
            if let uswap_core::Location::Pool { handle, .. } = place.location {
                world.group.pools[process.pool].free(handle)?;
            }
        } else if let Some(&(ledger, _)) = process.ancestors.get(epoch) {
            world.group.ledgers[ledger].give_up(place.entry);
        }
    }
    check_pool(process, world.group)
}

pub(super) fn release_empty_clusters(process: &mut Process, world: &mut World) -> Checked {
    for area in 0..world.group.areas.len() {
        let id = uswap_core::AreaId(area as u8);
        let leaves = world.group.areas[area].leaving.is_some();
        let take = move |slots: &mut uswap_core::slots::Slots| match leaves {
            true => slots.take_last_empty_cluster(),
            false => slots.take_empty_cluster(),
        };
        while let Some(cluster) = process.books.tell(move |core| take(core.slots_mut(id))) {
            world.coverage.note(Happening::ClusterGiven);
            world.group.release(area, cluster, process.id)?;
        }
    }
    Ok(())
}

/// A run of slots for up to `max` pages, from the first area that has one.
fn alloc_slots(process: &mut Process, world: &mut World, max: u32) -> Option<(usize, u64, u32)> {
    for area in 0..world.group.areas.len() {
        if world.group.areas[area].leaving.is_some() && world.sabotage != Some(Sabotage::StoreOnLeaving) {
            continue;
        }
        let id = uswap_core::AreaId(area as u8);
        loop {
            if let Ok((slot, count)) = process.books.tell(move |core| core.slots_mut(id).alloc_run(max)) {
                process.slots_in_flight += u64::from(count);
                return Some((area, slot, count));
            }
            let Some(cluster) = world.group.claim(area, process.id, world.chance) else { break };
            process.books.tell(move |core| core.slots_mut(id).grant(cluster));
        }
    }
    None
}

fn free_slot(process: &mut Process, area: usize, slot: u64) {
    let id = uswap_core::AreaId(area as u8);
    let _ = process.books.tell(move |core| core.slots_mut(id).free(slot));
    process.slots_in_flight -= 1;
}

/// A mapping that the engine does not have yet becomes its own: books first, then the kernel; a look at what is populated
/// follows at some time.
fn adopt(process: &mut Process, world: &mut World) -> Checked {
    let all = process.mm.all();
    let page = PageNumber(all.start.0 + world.chance.below(all.pages));
    if process.mm.at(page).mapping == 0 || world.remedies.scans_when_still && process.mm.is_changing() {
        return Ok(());
    }
    // What is registered may be forgotten: it was mapped where something else had been, whose unmapping was unread.
    let range = process.mm.mapping_around(page);
    if process.books.look().pages().adopted_in(range) == range.pages {
        return Ok(());
    }
    world.coverage.note(Happening::Adopt);
    process.books.tell(move |core| core.adopt(range));
    let is_lazy = |page| matches!(process.mm.at(page).pte, Pte::Present { lazy_free: true, .. });
    if world.remedies.lazy_pages_are_seen && pages_of(range).any(is_lazy) {
        process.books.tell(move |core| core.given_up_lazily(range));
    }
    for page in pages_of(range) {
        process.mm.at_mut(page).registered = true;
    }
    Ok(())
}

/// Tells the books which pages of registered memory are populated, with the gate shut, and no event due.
fn scan(process: &mut Process, world: &mut World) {
    if process.gate > 0 || world.remedies.scans_when_still && process.mm.is_changing() {
        return;
    }
    let all = process.mm.all();
    let start = world.chance.below(all.pages);
    let pages = 1 + world.chance.below(all.pages - start);
    for page in pages_of(PageRange { start: all.start.plus(start), pages }) {
        let is_adopted = process.books.look().pages().get(page).is_some();
        if process.mm.is_present(page) && process.mm.at(page).registered && is_adopted {
            process.books.tell(move |core| core.found_present(PageRange { start: page, pages: 1 }));
        }
    }
}

/// Pages that are shared after a fork become this process's own.
fn break_sharing(process: &mut Process, world: &mut World) {
    let shared =
        pages_of(process.mm.all()).filter(|&page| matches!(process.mm.at(page).pte, Pte::Present { shared: true, .. }));
    let shared: Vec<PageNumber> = shared.collect();
    if shared.is_empty() {
        return;
    }
    let range = PageRange { start: shared[world.chance.index(shared.len())], pages: 1 };
    process.books.tell(move |core| core.reclaim_soon(range));
    if let Pte::Present { shared, .. } = &mut process.mm.at_mut(range.start).pte {
        *shared = false;
    }
}

/// Whether the program may be told that a page is lost.
fn may_lose(hash: u128, world: &World) -> bool {
    world.sabotage == Some(Sabotage::LoseForNothing) || world.group.is_excused(hash)
}

/// The adopted part of `range`.
fn adopted_part(process: &Process, range: PageRange) -> RangeSet {
    let mut set = RangeSet::default();
    let mut from = range.start;
    while let Some(next) = process.books.look().pages().next_adopted_range(from).filter(|next| next.start < range.end())
    {
        set.insert(next);
        from = next.end();
    }
    set
}
