//! A fork: the parent's books are made still, the child starts with a copy of them, and what happens in between is noted
//! beside them, as in `fork.rs` of the engine.

use std::collections::BTreeSet;

use uswap_core::event_order::EventOrder;
use uswap_core::fork_window::{Beside, ForkWindow, Note};
use uswap_core::{EntryId, Location, PageNumber, PageRange, PageState};

use super::super::coverage::Happening;
use super::super::group::{Ledger, Pool};
use super::super::mm::{Message, Stop, pages_of};
use super::super::process::{Process, World, decided};
use super::super::program::Doing;
use super::super::sabotage::Sabotage;
use super::super::violation::{Checked, Checker, ensure, violated};
use super::serve::Serve;
use super::swapoff::Swapoff;
use super::{Actor, PendingFault, Step, adopted_part, release_places};
use crate::page_content::Content;

/// Steps that a window may take; more mean that it never ends.
const PATIENCE: u32 = 10_000;

/// Forks `process`, of which nothing is under way; returns the child, with id `child`.
pub(in super::super) fn fork(process: &mut Process, child: usize, world: &mut World) -> Checked<Process> {
    world.coverage.note(Happening::Fork);
    while process.mm.is_changing() {
        read_events(process, world)?;
    }
    empty_swap_cache(process, world)?;
    release_places(process, world)?;
    let inherited: BTreeSet<EntryId> = process.books.look().inherited().collect();
    process.books.tell(|core| core.add_heir());
    let ledger = world.group.ledgers.len();
    world.group.ledgers.push(Ledger::new(inherited));
    process.heirs.push(ledger);
    for &(ancestor, _) in &process.ancestors {
        world.group.ledgers[ancestor].fork_begins();
    }
    let mut window = Window { seen: ForkWindow::default(), notes: Vec::new(), unnoted: None };
    let before = world.chance.below(30);
    window.run(before, process, world)?;
    // What another thread is mapping at that very moment, or moving, is nothing that the child can know of.
    window.finish_changes(process, world)?;
    let born = make_child(process, child, ledger, &window, world)?;
    window.note_late();
    let after = world.chance.below(30);
    window.run(after, process, world)?;
    window.note_late();
    for note in &window.notes {
        apply(*note, process, world);
    }
    release_places(process, world)?;
    process.freezing = false;
    for thread in &mut process.threads {
        if *thread == Doing::Forking {
            *thread = Doing::Ready;
        }
    }
    Ok(born)
}

/// Moves every cached page back into the program.
fn empty_swap_cache(process: &mut Process, world: &mut World) -> Checked {
    for _ in 0..PATIENCE {
        let Some(page) = process.books.look().cached_page() else { return Ok(()) };
        serve_now(page, process, world)?;
    }
    violated(Checker::NoLostWakeUp, "the swap cache cannot be emptied before a fork".into())
}

/// Serves a page at once; where an event stands in the way, messages are read and their tasks run.
fn serve_now(page: PageNumber, process: &mut Process, world: &mut World) -> Checked {
    let mut serve = Serve::wanted(page);
    loop {
        match serve.step(process, world)? {
            Step::Again => {}
            Step::Over | Step::Wanted(_) => return Ok(()),
            Step::AfterEvents(_) => {
                return read_events(process, world);
            }
        }
    }
}

/// Reads messages, and lets the tasks of the events among them run.
fn read_events(process: &mut Process, world: &mut World) -> Checked {
    let mut reader = Actor::new(0);
    reader.receive(process, world)?;
    for fault in reader.pending.drain(..) {
        // Its thread faults again, and a handler will see to it.
        process.wake(PageRange { start: fault.page, pages: 1 }, world);
    }
    run_event_tasks(process, world)
}

fn run_event_tasks(process: &mut Process, world: &mut World) -> Checked {
    for thread in 0..process.threads.len() {
        if matches!(process.threads[thread], Doing::Changed(_) | Doing::Read(_)) {
            process.step_thread(thread, world)?;
        }
    }
    Ok(())
}

struct Window {
    seen: ForkWindow,
    /// As they were written.
    notes: Vec<Note>,
    /// A page that was brought in, and whose note is not written yet.
    unnoted: Option<PageNumber>,
}

impl Window {
    fn note(&mut self, note: Note) {
        self.seen.note(note);
        self.notes.push(note);
    }

    fn note_late(&mut self) {
        if let Some(page) = self.unnoted.take() {
            self.note(Note::Installed(page));
        }
    }

    /// Some steps of the program and of handlers that change nothing but the notes.
    fn run(&mut self, steps: u64, process: &mut Process, world: &mut World) -> Checked {
        for _ in 0..steps {
            if world.chance.happens(1, 2) {
                let thread = world.chance.index(process.threads.len());
                if process.can_step(thread, world) {
                    process.step_thread(thread, world)?;
                }
            } else {
                self.note_late();
                self.handle(process, world)?;
            }
        }
        Ok(())
    }

    /// Until no thread is in the middle of a mremap or munmap.
    fn finish_changes(&mut self, process: &mut Process, world: &mut World) -> Checked {
        use super::super::program::Call;
        for _ in 0..PATIENCE {
            let mut calls = process.threads.iter().filter_map(|doing| doing.call());
            if calls.all(|call| matches!(call, Call::Discard { .. })) {
                return Ok(());
            }
            self.note_late();
            self.handle(process, world)?;
            run_event_tasks(process, world)?;
        }
        violated(Checker::NoLostWakeUp, "a mremap or munmap never ends in the window of a fork".into())
    }

    /// A handler reads messages: events are noted, faults served beside the books.
    fn handle(&mut self, process: &mut Process, world: &mut World) -> Checked {
        for message in process.mm.read(4) {
            match message {
                Message::Fault { page, write, .. } => {
                    let fault = PendingFault { page, write, nothing_unread: process.mm.events.is_empty() };
                    self.serve_frozen(fault, process, world)?;
                }
                Message::Event { thread, event } => {
                    self.note_late();
                    self.note(Note::Read(event));
                    process.event_read(thread);
                }
            }
        }
        if process.mm.changing == 0 && self.seen.order().holds() {
            let settlement = self.seen.settle(process.books.look().pages(), &process.mm);
            for event in decided(settlement, world)? {
                self.note(Note::Applied(event));
            }
            self.note(Note::Settled);
        }
        process.mm.held = self.seen.order().holds();
        Ok(())
    }

    fn serve_frozen(&mut self, fault: PendingFault, process: &mut Process, world: &mut World) -> Checked {
        self.note_late();
        world.coverage.note(Happening::FrozenFault);
        let page = fault.page;
        let alone = PageRange { start: page, pages: 1 };
        let content = match self.seen.look_up(page, process.books.look().pages()) {
            Beside::Known(_, None) if !fault.nothing_unread => None,
            Beside::Installed | Beside::Known(_, Some(PageState::Resident { .. } | PageState::Poisoned)) => None,
            Beside::Discarded | Beside::Known(_, None | Some(PageState::Untouched | PageState::SwappedZero)) => {
                Some(Content::ZERO)
            }
            Beside::Known(_, Some(PageState::Swapped { entry })) => read_frozen(entry, process, world)?,
            Beside::Known(known, Some(state)) => {
                return violated(Checker::Assertion, format!("{known:?} is {state:?} while a fork is under way"));
            }
        };
        if let Some(content) = content {
            let progress = process.mm.copy(page, &[content], world.chance);
            match progress.stop {
                None => self.unnoted = Some(page),
                Some(Stop::TryLater | Stop::NoMemory) => {
                    // Whoever reads it next tries again.
                }
                Some(_) => {}
            }
        }
        // A handler keeps the fault and tries again; a thread that is woken does the same.
        process.wake(alone, world);
        Ok(())
    }
}

/// Reads what `entry` names; `None` where a fault keeps it from being read, and its thread tries again.
fn read_frozen(entry: EntryId, process: &Process, world: &mut World) -> Checked<Option<Content>> {
    let table = process.books.look().swap_table();
    let (location, epoch, hash) = (table.location(entry), table.epoch_of(entry).0 as usize, table.hash(entry));
    match location {
        Location::Pool { handle, .. } => {
            let pool = process.ancestors.get(epoch).map_or(process.pool, |&(_, pool)| pool);
            match world.group.pools[pool].get(handle) {
                Some(content) if content.hash() == hash => Ok(Some(content)),
                other => violated(Checker::Recoverable, format!("{entry:?} finds {other:?} in its pool")),
            }
        }
        Location::Slot { area, slot } => {
            let found = world.group.read(area.0 as usize, slot, world.coverage, world.chance);
            Ok(found.filter(|content| content.hash() == hash))
        }
    }
}

fn apply(note: Note, process: &mut Process, world: &mut World) {
    match note {
        Note::Installed(page) => {
            let range = PageRange { start: page, pages: 1 };
            process.books.tell(move |core| {
                core.adopt(range);
                core.found_present(range)
            });
        }
        Note::Came(range) => process.order.came(range),
        Note::Read(event) => process.read_event(event, world),
        Note::Applied(event) => process.apply(event, world),
        Note::Settled => process.events_are_settled(),
    }
}

/// The child, with its books taken over, its notes applied and its memory registered.
fn make_child(parent: &mut Process, id: usize, ledger: usize, window: &Window, world: &mut World) -> Checked<Process> {
    let frame_blocks = world.scenario.frame_blocks;
    let missing = if world.sabotage == Some(Sabotage::ForgetVerb) { 40 } else { 0 };
    let mut books = parent.books.copy(missing)?;
    books.tell(move |core| core.become_child(frame_blocks));
    let pool = world.group.pools.len();
    world.group.pools.push(Pool::default());
    world.group.ledgers[ledger].register();
    for &(ancestor, _) in &parent.ancestors {
        world.group.ledgers[ancestor].register();
    }
    let mut ancestors = parent.ancestors.clone();
    ancestors.push((ledger, parent.pool));
    let mut child = Process {
        id,
        mm: parent.mm.fork(frame_blocks as usize * 16),
        truth: parent.truth.forked(),
        threads: vec![Doing::Ready; 1 + world.chance.index(2)],
        cursor: parent.cursor,
        arrived: None,
        books,
        order: EventOrder::default(),
        actors: (0..=world.scenario.handlers).map(Actor::new).collect(),
        swapoff: Swapoff::default(),
        gate: 0,
        freezing: false,
        heirs: Vec::new(),
        ancestors,
        pool,
        slots_in_flight: 0,
        objects_in_flight: 0,
        loads_in_flight: 0,
    };
    for note in &window.notes {
        apply(*note, &mut child, world);
    }
    let left = child.order.settle_unasked(child.books.look().pages());
    left.into_iter().for_each(|event| child.apply(event, world));
    child.events_are_settled();
    // What is not mapped any more is forgotten; the rest is registered with the child's own userfaultfd.
    let all = child.mm.all();
    let adopted = adopted_part(&child, PageRange { start: PageNumber(0), pages: 1 << 40 });
    for page in pages_of(all).filter(|&page| adopted.contains(page)) {
        if child.mm.at(page).mapping != 0 {
            child.mm.at_mut(page).registered = true;
        } else {
            child.books.tell(move |core| core.unmapped(PageRange { start: page, pages: 1 }));
        }
    }
    release_places(&mut child, world)?;
    ensure(child.books.look().cached_page().is_none(), Checker::Frames, || "a child has a swap cache".into())?;
    Ok(child)
}
