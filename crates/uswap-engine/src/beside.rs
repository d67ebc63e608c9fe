//! Beside the books: what a fork's window has, while the books must stay as they are.
//!
//! Faults are served as ever, by another source of truth: what the window has noted comes before what the books say. The content
//! is had the same way as by the books (`swapin.rs`), but nothing of it is written into them: nothing is pinned, for nothing is
//! freed meanwhile, and pages come in one by one, by a copy. What was done is noted, for both sides of the fork. All this with
//! the gate shut, so that the notes have the order in which memory changes.

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::event_order::Settlement;
use uswap_core::fork_window::{Beside, Note};
use uswap_core::{Location, PAGE_SIZE, PageNumber, PageRange, PageState};
use uswap_system::faults::{Stop, Wake};

use crate::engine::Engine;
use crate::group::Counter;
use crate::host::Host;
use crate::load::Load;
use crate::pending_fault::{PendingFault, Served};
use crate::worker::Worker;

impl<H: Host> Engine<H> {
    /// Writes notes, with the gate shut.
    pub(crate) fn note_aside(&self, notes: &[Note]) {
        self.forking.window.write(notes);
        let mut seen = self.forking.window.seen.lock();
        notes.iter().for_each(|&note| seen.note(note));
        self.memory.uffd.hold_events(seen.order().holds());
    }

    /// What was read before the window and could not be settled yet is settled in it.
    pub(crate) fn hand_over_events(&self) {
        let _gate = self.memory.gate.shut();
        let mut order = self.memory.order();
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
    pub(crate) fn serve_beside(&self, fault: &PendingFault, worker: &mut Worker) -> Served {
        let _gate = self.memory.gate.shut();
        if !self.is_frozen() {
            return Served::AfterEvents;
        }
        let page = fault.page;
        if fault.protected {
            return self.let_write(page);
        }
        if self.memory.frame_at(page).is_some() {
            // Who looks at it from outside waits until the fork is over.
            return Served::AfterEvents;
        }
        let source: *const u8 = match self.look_up_beside(page) {
            // The kernel may have dropped it meanwhile: then it is zeros, and otherwise it is found there.
            Beside::Known(known, Some(PageState::Resident { clean: None }))
                if self.core().pages().was_discarded(known) =>
            {
                self.memory.zeros()
            }
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
            Beside::Known(known, Some(PageState::Swapped { .. })) => match self.load_beside(known, worker) {
                Some(content) => content,
                None => {
                    self.tell_lost(page);
                    self.memory.poison(page);
                    return Served::Done;
                }
            },
            Beside::Known(known, Some(state)) => {
                self.fatal(format_args!("uswap: page {:#x} is {state:?} while a fork is under way", known.address()))
            }
        };
        let progress = self.memory.copy(page.address(), source, PAGE_SIZE, Wake::Wake);
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

    fn look_up_beside(&self, page: PageNumber) -> Beside {
        let seen = self.forking.window.seen.lock();
        seen.look_up(page, self.core().pages())
    }

    /// Gets the content of a swapped page into the worker's buffer.
    fn load_beside(&self, page: PageNumber, worker: &mut Worker) -> Option<*const u8> {
        let plan = self.core().load_beside(page)?;
        let mut load = [Load::beside(plan)];
        self.load(&mut load, worker);
        if !load[0].is_ready() && matches!(load[0].plan.pages()[0].location, Location::Pool { .. }) {
            self.count(Counter::ChecksumFailures, 1);
        }
        load[0].is_ready().then(|| worker.buffer_page(0).cast_const())
    }

    /// Makes the books say what the notes say.
    pub(crate) fn apply_notes(&self) {
        if is_on(Sabotage::NotesNotApplied) {
            return;
        }
        for note in self.forking.window.notes() {
            self.apply_note(*note);
        }
        let beyond = std::mem::take(&mut *self.forking.window.beyond());
        for note in beyond {
            self.apply_note(note);
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
            Note::Came(range) => self.memory.order().came(range),
            Note::Read(event) => self.memory.keep_event(event),
            Note::Applied(event) => self.apply(event),
            Note::Settled => self.memory.events_are_settled(),
        }
    }
}
