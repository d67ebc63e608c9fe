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

use std::io;
use std::time::Instant;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::{FrameId, PageNumber, tuning};
use uswap_sys::report::Reason;

use crate::adopt::kept_from_forks::FromForks;
use crate::engine::Engine;
use crate::giving_way::Asking;
use crate::group::Counter;
use crate::host::Host;
use crate::monitor::Monitor;
use crate::pending_fault::{PendingFault, Served};
use crate::staffed::Staffed;
use crate::worker::Worker;

impl<H: Host> Engine<H> {
    /// Moves every cached page back into the program. The caller holds `running` for writing.
    fn empty_swap_cache(&self, worker: &mut Worker) {
        let (mut stays, mut tries, mut near) = ((PageNumber(0), H::now()), 0, FrameId(0));
        loop {
            let Some((frame, page)) = self.core().cached_page(near) else { return };
            near = frame;
            let served = self.serve(&PendingFault::wanted::<H>(page), worker);
            if served == Served::Done && self.core().cached_page(near) != Some((frame, page)) {
                continue;
            }
            self.read_before_fork(worker);
            if stays.0 != page {
                (stays, tries) = ((page, H::now()), 0);
            }
            tries += 1;
            // Everybody waits for this. The process may have been stopped meanwhile.
            if tries > tuning::PUT_BACK_TRIES && H::since(stays.1) > tuning::PUT_BACK_WITHIN {
                self.fatal(format_args!("uswap: page {:#x} cannot be put back before a fork", page.address()));
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

impl<H: Staffed> Monitor<H> {
    /// Answers a thread that wants to fork, and closes the window when it has.
    pub(crate) fn follow_fork(&mut self) {
        if self.post.fork.is_asked() {
            let answer = self.engine().is_none_or(|engine| engine.reserve_for_fork().is_ok());
            return self.post.fork.answer(answer);
        }
        self.make_room_for_child();
        let Some(engine) = self.engine() else {
            self.let_shared_fork();
            self.post.fork.let_fork(&self.threads);
            self.keep_shared_without_engine();
            return self.post.fork.is_over();
        };
        let running = engine.forking.phase.freeze();
        // What the forking thread can know of has been done before; the child's books must have it, too.
        let (begun, mut asking) = (H::now(), Asking::new(&H::notices().giving_way));
        while engine.memory.uffd.is_changing()
            && (engine.memory.uffd.holds_events() || H::since(begun) < tuning::READ_PATIENCE)
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
        self.open_window(engine);
        let forked = self.post.fork.let_fork(&self.threads);
        self.post.fork.allow_huge_pages();
        if forked {
            self.tell_child(engine);
            self.post.fork.child_is_told();
        }
        {
            let _gate = engine.memory.gate.shut();
            engine.apply_notes();
            if !engine.memory.uffd.holds_events() {
                engine.all_is_in_the_books();
            }
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

    /// What follows, until the fork is over, is written into the journal.
    fn open_window(&mut self, engine: &Engine<H>) {
        let opened = engine.forking.window.open().and_then(|()| engine.write_ledger());
        if let Err(error) = opened {
            // Whoever called `fork` was told so before. Here libc forks by itself, and it cannot be kept from it.
            engine.fatal(format_args!("uswap: no memory to follow a fork: {}", Reason(&error)));
        }
        engine.hand_over_events();
        engine.forking.phase.is_still();
        self.post.fork.lift(true);
        self.give_child_its_memory(engine);
        self.protect_for_child(engine);
        self.post.fork.forbid_huge_pages();
    }

    /// After a fork: adopted memory goes to no child of a fork that goes round the hooks, until the next window.
    pub(crate) fn keep_from_forks(&mut self, engine: &Engine<H>) {
        if !self.post.fork.all_is_lifted() || self.looks.refused.is_some_and(|at| H::since(at) < tuning::REFUSED_AGAIN)
        {
            return;
        }
        let outcome = engine.keep_all_adopted_from_forks(&self.adopter.kept);
        self.looks.refused = (outcome == FromForks::Refused).then(H::now);
        if self.keep_shared_from_forks() && outcome == FromForks::Kept {
            self.post.fork.lift(false);
        }
    }

    /// A child must have what its parent's mappings have grown by, too.
    fn adopt_grown(&mut self, engine: &Engine<H>, begun: Instant) {
        let mut from = 0;
        loop {
            match self.adopter.adopt_grown(engine, from) {
                Ok(Some(stopped)) if H::since(begun) < tuning::READ_PATIENCE => {
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

    fn fork_failed(&self) {
        let mut heirs = self.content.heirs.lock();
        if let Some(ledger) = heirs.pop() {
            ledger.discard();
        }
        if heirs.is_empty() {
            let mut core = self.core();
            core.no_heirs();
            core.bury_unheld(|_, _| false);
        }
        drop(heirs);
        for ancestor in &self.content.ancestors {
            ancestor.ledger.fork_failed();
        }
        self.member.slot().fork_failed();
    }
}
