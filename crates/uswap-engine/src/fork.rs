//! Fork: the child sees exactly what it would see without uswap.
//!
//! fork(2) copies the books with the rest of the memory, so they must be still at that moment, yet faults must be served:
//! between the agent's hook and the system call, libc and other libraries touch memory. So the parent prepares a *window*:
//! reclaim rests, no thread changes the books, faults are served beside them, and what happened is written into a journal
//! that both sides read afterwards.
//!
//! 1. A thread of the program asks, and waits (`fork_post.rs`, `prepare`). The monitor shrinks the process to what it may keep, moves the
//!    swap cache back into the program, writes the ledger of what the child inherits, lets the kernel copy adopted
//!    memory, opens the window, and answers.
//! 2. fork(2).
//! 3. The parent's thread says so (`parent`), and the monitor applies the journal and closes the window.
//! 4. The child's thread starts a monitor of its own (`child`) and waits. It takes the books over, applies its part of the
//!    journal, registers the memory with its own userfaultfd, starts handlers, and answers.
//!
//! A fork that goes round the hooks fails loudly: adopted memory carries MADV_DONTFORK outside of the window, so the child
//! does not have it at all.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use uswap_core::budget::{Usage, Watermarks};
use uswap_core::event_order::Settlement;
use uswap_core::fork_window::{Beside, Note};
use uswap_core::sabotage::{Sabotage, is_on};
use uswap_core::{Location, PAGE_SIZE, PageNumber, PageRange, PageState};
use uswap_sys::linux::Linux;
use uswap_sys::private_memory;
use uswap_sys::report::{self, Reason};
use uswap_system::faults::{Stop, Wake};
use xxhash_rust::xxh3::xxh3_128;

use crate::content::Ancestor;
use crate::engine::{Engine, Inheritance};
use crate::fork_copy::Inherited;
use crate::giving_way::Asking;
use crate::group::Counter;
use crate::host::Host;
use crate::ledger::Holder;
use crate::monitor::Monitor;
use crate::page_io::SlotPage;
use crate::pending_fault::{PendingFault, Served};
use crate::store::IoOutcome;
use crate::worker::Worker;

/// Pages of a child for which nobody has to give way: 4 MiB.
const PROMISE_MIN: u64 = 1024;
/// What a process needs to get on, beside what cannot be swapped: 2 MiB.
const CHILD_WORKS_IN: u64 = 512;
/// How long a fork waits for its process to become smaller, since it last did.
const SHRINK_PATIENCE: Duration = Duration::from_millis(250);
/// How long a fork waits for a moment in which no other thread changes the mappings.
const READ_PATIENCE: Duration = Duration::from_millis(20);

impl<H: Host> Engine<H> {
    /// Writes notes, with the gate shut.
    pub(crate) fn note_aside(&self, notes: &[Note]) {
        self.forking.window.write(notes);
        let mut seen = self.forking.window.seen.lock();
        notes.iter().for_each(|&note| seen.note(note));
        self.memory.uffd.hold_events(seen.order().holds());
    }

    /// What was read before the window and could not be settled yet is settled in it.
    fn hand_over_events(&self) {
        let _gate = self.memory.gate.shut();
        let mut order = self.memory.order.lock();
        let came = order.all_that_came().iter().map(|&range| Note::Came(range));
        let notes: Vec<Note> = came.chain(order.log().iter().map(|&event| Note::Read(event))).collect();
        order.clear();
        drop(order);
        self.note_aside(&notes);
    }

    /// What was read in a window comes to.
    pub(crate) fn settle_window(&self) -> Settlement {
        self.forking.window.seen.lock().settle(self.core().pages(), self)
    }

    /// Serves a fault in a window: nothing but the journal changes.
    pub(crate) fn serve_frozen(&self, fault: &PendingFault, worker: &mut Worker) -> Served {
        let _gate = self.memory.gate.shut();
        if !self.is_frozen() {
            return Served::AfterEvents;
        }
        let page = fault.page;
        if self.memory.frame_at(page).is_some() {
            // Who looks at it from outside waits until the fork is over.
            return Served::AfterEvents;
        }
        let source: *const u8 = match self.look_up_aside(page) {
            Beside::Installed | Beside::Known(_, Some(PageState::Resident { .. })) => {
                self.memory.wake(page, 1);
                return Served::Done;
            }
            Beside::Known(_, None) if !fault.nothing_unread => return Served::AfterEvents,
            Beside::Discarded | Beside::Known(_, None | Some(PageState::Untouched | PageState::SwappedZero)) => {
                self.memory.zeros()
            }
            Beside::Known(_, Some(PageState::Poisoned)) => {
                self.tell_refused(page);
                self.memory.poison(page);
                return Served::Done;
            }
            Beside::Known(known, Some(PageState::Swapped { .. })) => match self.read_frozen(known, worker) {
                Some(content) => content,
                None => {
                    self.count(Counter::PoisonedPages, 1);
                    let _ = self.books.say_lost(page);
                    self.member.alarm(format_args!(
                        "uswap: page {:#x} is lost: its copy cannot be read back; an access raises SIGBUS",
                        page.address()
                    ));
                    self.memory.poison(page);
                    return Served::Done;
                }
            },
            Beside::Known(known, Some(state)) => {
                self.fatal(format_args!("uswap: page {:#x} is {state:?} while a fork is under way", known.address()))
            }
        };
        let progress = self.memory.uffd.copy(page.address(), source, PAGE_SIZE, Wake::Wake);
        match progress.stop {
            None => {
                self.note_aside(&[Note::Installed(page)]);
                Served::Done
            }
            Some(Stop::TryLater | Stop::NoMemory) => Served::AfterEvents,
            Some(_) => {
                self.memory.wake(page, 1);
                Served::Done
            }
        }
    }

    fn look_up_aside(&self, page: PageNumber) -> Beside {
        let seen = self.forking.window.seen.lock();
        seen.look_up(page, self.core().pages())
    }

    /// Reads the content of a swapped page into the worker's buffer.
    fn read_frozen(&self, page: PageNumber, worker: &mut Worker) -> Option<*const u8> {
        let target = worker.buffer_page(0);
        let core = self.core();
        let Some(PageState::Swapped { entry }) = core.pages().get(page) else { return None };
        let table = core.swap_table();
        let (location, epoch, hash) = (table.location(entry), table.epoch_of(entry), table.hash(entry));
        drop(core);
        for _ in 0..4 {
            // SAFETY: the buffer page is the worker's own.
            let content = unsafe { &mut *(target as *mut [u8; PAGE_SIZE]) };
            match location {
                Location::Pool { handle, len } => {
                    // SAFETY: nothing is freed in a window.
                    let object = unsafe { self.content.object(epoch, handle, len) };
                    worker.compression.decompress(object, content).ok()?;
                }
                Location::Slot { area, slot } => {
                    // SAFETY: the buffer page is the worker's own until the read is over.
                    let mut pages = [unsafe { SlotPage::new(slot, target, 0) }];
                    worker.io.read::<H>(&*self.content.areas.get(area).store, &mut pages);
                    if pages[0].outcome() != IoOutcome::Done {
                        self.count(Counter::ReadErrors, 1);
                        continue;
                    }
                }
            }
            if xxh3_128(&content[..]) == hash {
                self.count(Counter::Pswpin, 1);
                return Some(target);
            }
            self.count(Counter::ChecksumFailures, 1);
        }
        None
    }

    /// Makes the books say what the notes say.
    fn apply_notes(&self) {
        if is_on(Sabotage::NotesNotApplied) {
            return;
        }
        for note in self.forking.window.notes() {
            self.apply_note(*note);
        }
        for note in self.forking.window.beyond().iter() {
            self.apply_note(*note);
        }
    }

    /// A page was brought in while the books were still.
    pub(crate) fn installed_aside(&self, page: PageNumber) {
        let range = PageRange { start: page, pages: 1 };
        let mut core = self.core();
        core.adopt(range);
        core.found_present(range);
    }

    fn apply_note(&self, note: Note) {
        match note {
            Note::Installed(page) => self.installed_aside(page),
            Note::Came(range) => self.memory.order.lock().came(range),
            Note::Read(event) => self.keep_event(event),
            Note::Applied(event) => self.apply(event),
            Note::Settled => self.events_are_settled(),
        }
    }

    /// Moves every cached page back into the program. The caller holds `running` for writing.
    fn empty_swap_cache(&self, worker: &mut Worker) {
        loop {
            let Some(page) = self.core().cached_page() else { return };
            if self.serve(&PendingFault::wanted::<H>(page), worker) == Served::AfterEvents {
                self.read_before_fork(worker);
            }
        }
    }

    fn read_before_fork(&self, worker: &mut Worker) {
        self.read_messages(worker);
        while let Some(fault) = worker.serving.pending.pop_front() {
            if self.serve(&fault, worker) == Served::AfterEvents {
                // Its thread faults again, and a handler will see to it.
                self.memory.wake(fault.page, 1);
            }
        }
        crate::pause::pause::<H>();
    }
}

impl<H: Host> Monitor<H> {
    /// Answers a thread that wants to fork, and closes the window when it has.
    pub(crate) fn follow_fork(&mut self) {
        if self.post.fork.is_asked() {
            let answer = self.engine().is_none_or(|engine| engine.reserve_for_fork().is_ok());
            return self.post.fork.answer(answer);
        }
        self.make_room_for_child();
        let Some(engine) = self.engine() else {
            self.post.fork.let_fork(&self.threads);
            return self.post.fork.is_over();
        };
        let running = engine.forking.phase.freeze();
        // What the forking thread can know of has been done before; the child's books must have it, too.
        let (begun, mut asking) = (H::now(), Asking::<H>::new());
        while engine.memory.uffd.is_changing() && (engine.memory.uffd.holds_events() || H::since(begun) < READ_PATIENCE)
        {
            asking.for_fault_of(begun);
            engine.read_before_fork(self.worker());
        }
        self.adopter.kept.catch_up(&H::notices().fork_advice);
        self.adopt_grown(engine, begun);
        if !is_on(Sabotage::CacheNotEmptied) {
            engine.empty_swap_cache(self.worker());
        }
        drop(asking);
        engine.take_and_release(self.worker());
        let opened = engine.forking.window.open().and_then(|()| engine.write_ledger());
        if let Err(error) = opened {
            // Whoever called `fork` was told so before. Here libc forks by itself, and it cannot be kept from it.
            engine.fatal(format_args!("uswap: no memory to follow a fork: {}", Reason(&error)));
        }
        engine.hand_over_events();
        engine.forking.phase.is_still();
        self.post.fork.lift(true);
        self.let_adopted_fork(engine);
        let forked = self.post.fork.let_fork(&self.threads);
        if forked {
            self.tell_child(engine);
            self.post.fork.child_is_told();
        }
        {
            let _gate = engine.memory.gate.shut();
            engine.apply_notes();
            engine.forking.window.close();
            engine.forking.phase.goes_on();
        }
        drop(running);
        self.keep_from_forks(engine);
        engine.count(Counter::Forks, 1);
        if !forked {
            engine.fork_failed();
        }
        engine.take_and_release(self.worker());
        self.post.fork.is_over();
    }

    /// After a fork: adopted memory goes to no child of a fork that goes round the hooks, until the next window.
    pub(crate) fn keep_from_forks(&self, engine: &Engine<H>) {
        if self.post.fork.is_lifted() && engine.keep_all_adopted_from_forks(&self.adopter.kept) {
            self.post.fork.lift(false);
        }
    }

    /// A child must have what its parent's mappings have grown by, too.
    fn adopt_grown(&mut self, engine: &Engine<H>, begun: Instant) {
        let mut from = 0;
        loop {
            match self.adopter.adopt_grown(engine, from) {
                Ok(Some(stopped)) if H::since(begun) < READ_PATIENCE => {
                    from = stopped;
                    engine.read_before_fork(self.worker());
                }
                // What is growing right now, another thread makes grow.
                Ok(_) => return,
                Err(error) => {
                    let why = Reason(&error);
                    return engine.member.alarm(format_args!(
                        "uswap: cannot look for memory that has grown, and a child may miss some: {why}"
                    ));
                }
            }
        }
    }

    /// Both sides of a fork count the pages that they share, so this process shrinks to the half of its share first, and
    /// the others of the group give way to what the child will have. Where they have not that much, the fork waits until
    /// some have ended.
    fn make_room_for_child(&mut self) {
        let usage = self.usage();
        let (target, promised) = self.room_for_child(&usage);
        if promised < PROMISE_MIN {
            return;
        }
        if usage.mine > target && self.ready() {
            let engine = self.engine().expect("it is ready");
            self.shrink_for_child(engine, target);
        }
        let mut wait = self.fork_patience.wait(H::now());
        loop {
            self.promise(promised);
            let usage = self.usage();
            if !wait.goes_on(&usage, H::now()) {
                return self.fork_patience.waited(&wait, usage.total <= usage.limit);
            }
            H::sleep(Duration::from_millis(1));
        }
    }

    /// Pages that this process keeps when it forks, and pages that the child will have.
    fn room_for_child(&self, usage: &Usage) -> (u64, u64) {
        let slot = self.member().slot();
        let shared = slot.shmem_pages.load(Relaxed);
        // Neither can do with less, and reclaim would try in vain.
        let least = match self.engine() {
            Some(engine) => slot.fixed_pages() + engine.content.pool_pages() + CHILD_WORKS_IN,
            None => 0,
        };
        let target = usage.before_fork(shared).max(least);
        (target, usage.mine.min(target).saturating_sub(shared))
    }

    /// Whether a fork needs nothing from the monitor.
    pub(crate) fn forks_are_trivial(&self, usage: &Usage) -> bool {
        self.engine().is_none() && self.room_for_child(usage).1 < PROMISE_MIN
    }

    /// Reclaims until this process uses at most `target` pages. Its other threads go on and bring pages back; when they are
    /// as fast as reclaim is, the fork goes on all the same: beyond the budget for a moment is better than never.
    fn shrink_for_child(&mut self, engine: &Engine<H>, target: u64) {
        // Handlers stop a little earlier than asked, so that both do not chase the last pages.
        let stop = target - target / 32;
        let marks = Watermarks { low: stop, high: stop, limit: stop };
        let (mut least, mut since) = (u64::MAX, H::now());
        self.reclaim_while(engine, |usage| {
            if usage.mine < least.saturating_sub(usage.limit / 256) {
                (least, since) = (usage.mine, H::now());
            }
            (usage.mine > target && H::since(since) < SHRINK_PATIENCE).then_some(marks)
        });
        // That a child needs more says nothing of what this process can have.
        self.fruitless = false;
    }

    /// In a forked child: goes on with what the parent's engine left. Elsewhere there is nothing to go on with.
    pub fn inherit(&mut self, take: impl FnOnce() -> Option<Inherited<H>>) {
        if H::notices().has_engine() {
            // What this process has counts from here on, and no more as what its parent was promised.
            self.usage();
        }
        if let Some(inherited) = take() {
            self.take_over(inherited);
        }
        self.post.fork.child_is_ready();
    }

    fn take_over(&mut self, inherited: Inherited<H>) {
        let Inherited { core, ledger, pool, mut ancestors, journal } = inherited;
        let holder = Holder { index: self.member().index, generation: self.member().generation };
        ledger.register(holder);
        for ancestor in &ancestors {
            ancestor.ledger.register(holder);
        }
        self.member().slot().inherits();
        ancestors.push(Ancestor { ledger, pool });
        let engine = match self.start_child_engine(Inheritance { core, ancestors }) {
            Ok(engine) => engine,
            Err(error) => H::end(format_args!("its memory is partly swapped out, and it cannot swap: {error}")),
        };
        self.take_over_changes(engine, &journal);
        drop(journal);
        if let Err(error) = engine.wipe().and_then(|()| self.adopter.take_over(engine)) {
            engine.fatal(format_args!("uswap: a forked child cannot look at its memory: {}", Reason(&error)));
        }
        // Readers ahead have waited until here: a page on its way would pass for one that is not swapped out.
        engine.forking.phase.goes_on();
        engine.take_and_release(self.worker());
    }
}

/// Child, before anything is mapped: the parent's frame area was not copied, and what is mapped in its place from here on
/// belongs to whoever maps it. Returns whether the parent was swapping.
pub fn child_begins() -> bool {
    Linux::notices().child_begins();
    // A copy of the parent's engine; its threads do not run here.
    let Some(old) = Linux::notices().engine() else { return false };
    for (start, end) in old.memory.ranges_without_copy() {
        private_memory::forget(start, end);
    }
    true
}

/// A process could not join its group. A child whose memory is partly swapped out cannot live without.
pub(crate) fn cannot_join(error: &str) {
    if Linux::notices().has_engine() {
        report::end(format_args!("its memory is partly swapped out, and it cannot join its group: {error}"));
    }
    report::stderr_line(format_args!(
        "uswap: process {} cannot join its group: {error}; it runs unmanaged",
        std::process::id(),
    ));
}

impl<H: Host> Engine<H> {
    /// Sets the memory aside that a fork takes.
    fn reserve_for_fork(&self) -> io::Result<()> {
        let entries = self.core().swap_table().len();
        self.forking.window.reserve(entries)
    }

    /// Writes down what the child of the fork that begins will inherit.
    fn write_ledger(&self) -> io::Result<()> {
        let mut core = self.core();
        let ledger = self.forking.window.ledger(core.swap_table().len())?;
        ledger.fork_begins_with(core.inherited());
        core.add_heir();
        drop(core);
        self.content.heirs.lock().push(ledger);
        for ancestor in &self.content.ancestors {
            ancestor.ledger.fork_begins();
        }
        self.member.slot().fork_begins();
        Ok(())
    }

    /// In a forked child: memory that the program wanted to be wiped is empty, whatever it was in the parent.
    fn wipe(&self) -> io::Result<()> {
        if H::notices().fork_advice.wipes() {
            for mapping in crate::smaps::mappings::<H>()?.iter().filter(|mapping| mapping.wiped) {
                self.core().removed(mapping.range);
            }
        }
        Ok(())
    }

    fn fork_failed(&self) {
        let mut heirs = self.content.heirs.lock();
        if let Some(ledger) = heirs.pop() {
            ledger.discard();
        }
        if heirs.is_empty() {
            let mut core = self.core();
            core.no_heirs();
            core.bury_unheld(|_| false);
        }
        drop(heirs);
        for ancestor in &self.content.ancestors {
            ancestor.ledger.fork_failed();
        }
        self.member.slot().fork_failed();
    }
}
