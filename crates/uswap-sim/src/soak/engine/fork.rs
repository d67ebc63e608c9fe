//! A fork: the parent's books are made still, the child starts with a copy of them, and what happens in between is noted
//! beside them, as in `fork.rs` of the engine.

use std::collections::BTreeSet;

use uswap_core::{EntryId, Location, PageNumber, PageRange, PageState};

use super::super::coverage::Happening;
use super::super::group::{Ledger, Pool};
use super::super::mm::{Message, Stop, pages_of};
use super::super::process::{Process, World};
use super::super::program::Doing;
use super::super::sabotage::Sabotage;
use super::super::violation::{Checked, Checker, ensure, violated};
use super::serve::Serve;
use super::{Actor, PendingFault, Step, adopted_part, release_places};
use crate::content::Content;

/// Steps that a window may take; more mean that it never ends.
const PATIENCE: u32 = 10_000;

/// What happened in a window.
#[derive(Clone, Copy)]
enum Note {
    Installed(PageNumber),
    Removed(PageRange),
    Unmapped(PageRange),
    Remapped { from: PageNumber, to: PageNumber, pages: u64 },
}

/// What a page is in a window.
enum Beside {
    Known(PageNumber, Option<PageState>),
    Installed,
    Discarded,
}

fn look_up(notes: &[Note], page: PageNumber, process: &Process) -> Beside {
    let mut page = page;
    for note in notes.iter().rev() {
        match *note {
            Note::Installed(installed) if installed == page => return Beside::Installed,
            Note::Removed(range) | Note::Unmapped(range) if range.contains(page) => return Beside::Discarded,
            Note::Remapped { from, to, pages } => {
                if (PageRange { start: to, pages }).contains(page) {
                    page = PageNumber(page.0 - to.0 + from.0);
                } else if (PageRange { start: from, pages }).contains(page) {
                    return Beside::Discarded;
                }
            }
            _ => {}
        }
    }
    Beside::Known(page, process.books.look().pages().get(page))
}

/// Forks `process`, of which nothing is under way; returns the child, with id `child`.
pub(in super::super) fn fork(process: &mut Process, child: usize, world: &mut World) -> Checked<Process> {
    world.coverage.note(Happening::Fork);
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
    let mut window = Window { notes: Vec::new(), unnoted: None };
    let before = world.chance.below(30);
    window.run(before, process, world)?;
    // The child's copy of the memory must have a mremap of another thread whole, with its event, or not at all.
    window.finish_remaps(process, world)?;
    let born = make_child(process, child, ledger, &window, world)?;
    window.note_late();
    let after = world.chance.below(30);
    window.run(after, process, world)?;
    window.note_late();
    for note in &window.notes {
        apply(*note, process);
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
                let mut reader = Actor::new(0);
                reader.receive(process, world)?;
                for fault in reader.pending.drain(..) {
                    // Its thread faults again, and a handler will see to it.
                    process.wake(PageRange { start: fault.page, pages: 1 }, world);
                }
                run_event_tasks(process, world)?;
                return Ok(());
            }
        }
    }
}

fn run_event_tasks(process: &mut Process, world: &mut World) -> Checked {
    for thread in 0..process.threads.len() {
        if matches!(process.threads[thread], Doing::Read(_)) {
            process.step_thread(thread, world)?;
        }
    }
    Ok(())
}

struct Window {
    notes: Vec<Note>,
    /// A page that was brought in, and whose note is not written yet.
    unnoted: Option<PageNumber>,
}

impl Window {
    fn note_late(&mut self) {
        self.notes.extend(self.unnoted.take().map(Note::Installed));
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

    /// Until no thread is in the middle of a mremap.
    fn finish_remaps(&mut self, process: &mut Process, world: &mut World) -> Checked {
        use super::super::program::Call;
        for _ in 0..PATIENCE {
            let remapping =
                |doing: &Doing| matches!(doing, Doing::Posted(Call::Remap { .. }) | Doing::Read(Call::Remap { .. }));
            if !process.threads.iter().any(remapping) {
                return Ok(());
            }
            self.note_late();
            self.handle(process, world)?;
            run_event_tasks(process, world)?;
        }
        violated(Checker::NoLostWakeUp, "a mremap never ends in the window of a fork".into())
    }

    /// A handler reads messages: events are noted, faults served beside the books.
    fn handle(&mut self, process: &mut Process, world: &mut World) -> Checked {
        for message in process.mm.read(4) {
            match message {
                Message::Fault { page, write, .. } => {
                    let fault = PendingFault { page, write, nothing_unread: process.mm.events.is_empty() };
                    self.serve_frozen(fault, process, world)?;
                }
                Message::Remap { thread, from, to, pages } => {
                    self.note_late();
                    self.notes.push(Note::Remapped { from, to, pages });
                    process.event_read(thread);
                }
                Message::Remove { thread, range } => {
                    self.note_late();
                    self.notes.push(Note::Removed(range));
                    process.event_read(thread);
                }
                Message::Unmap { thread, range } => {
                    self.note_late();
                    self.notes.push(Note::Unmapped(range));
                    process.event_read(thread);
                }
            }
        }
        Ok(())
    }

    fn serve_frozen(&mut self, fault: PendingFault, process: &mut Process, world: &mut World) -> Checked {
        self.note_late();
        world.coverage.note(Happening::FrozenFault);
        let page = fault.page;
        let alone = PageRange { start: page, pages: 1 };
        let content = match look_up(&self.notes, page, process) {
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

fn apply(note: Note, process: &mut Process) {
    match note {
        Note::Installed(page) => {
            let range = PageRange { start: page, pages: 1 };
            process.books.tell(move |core| {
                core.adopt(range);
                core.found_present(range)
            });
        }
        Note::Removed(range) => process.books.tell(move |core| core.removed(range)),
        Note::Unmapped(range) => process.books.tell(move |core| core.unmapped(range)),
        Note::Remapped { from, to, pages } => process.books.tell(move |core| core.remapped(from, to, pages)),
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
        books,
        actors: (0..=world.scenario.handlers).map(Actor::new).collect(),
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
        apply(*note, &mut child);
    }
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
