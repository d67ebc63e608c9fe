//! What other threads do to the mappings in the very moment of a fork.
//!
//! The books that a child gets are those of its parent, and the mappings are those of the moment in which the kernel copied
//! them. A mremap that was done by then and not yet read would leave the child with memory that its books do not know, whose
//! swapped pages read as zeros. So after fork(2) the parent reads on until nothing is being changed, and passes on what it
//! has read; and the child asks its own mappings what of that is in it ([`fork_cut`](uswap_core::fork_cut)). Where that cannot
//! be told, it ends with a line.

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::event_order::Event;
use uswap_core::fork_cut::{self, Child, Unclear};
use uswap_core::fork_window::Note;
use uswap_core::{PageNumber, PageRange, PageState, RangeSet, tuning};
use uswap_sys::maps;
use uswap_sys::report::Reason;
use uswap_system::looks::{Mappings, Vma};

use crate::adopt::kept_from_forks::let_fork;
use crate::engine::Engine;
use crate::fork_advice::take_along;
use crate::fork_journal::{JournalAtFork, Told};
use crate::giving_way::Asking;
use crate::host::Host;
use crate::monitor::Monitor;
use crate::names::PageName;
use crate::pending_fault::Served;
use crate::staffed::Staffed;
use crate::worker::Worker;

impl<H: Staffed> Monitor<H> {
    /// With the window open: the child gets adopted memory, but for what the program keeps from it. What other threads move
    /// meanwhile takes along how it was. What the child will lack is written down for it: that it is not there tells nothing.
    pub(crate) fn give_child_its_memory(&mut self, engine: &Engine<H>) {
        self.let_shared_fork();
        // What was moved since the last look has taken its advice along.
        self.adopter.kept.catch_up(&H::notices().fork_advice);
        let mut kept = self.adopter.kept.pages().clone();
        let mut refused = RangeSet::default();
        engine.let_adopted_fork(&self.adopter.kept).into_iter().for_each(|range| refused.insert(range));
        let (begun, mut seen, mut asking) = (H::now(), 0, Asking::new(&H::notices().giving_way));
        loop {
            let (moved, count) = engine.moved_since(seen);
            seen = count;
            for (from, place, may_stay) in moved {
                take_along(&mut kept, from, place.start);
                refused.remove(place);
                if !may_stay {
                    refused.remove(from);
                }
                let lacking = kept.outside(place).flat_map(let_fork::<H>);
                lacking.for_each(|range| refused.insert(range));
            }
            let is_still = engine.is_still();
            if (is_still && engine.moved_since(seen).1 == seen) || H::since(begun) >= tuning::LIFT_PATIENCE {
                break;
            }
            if !is_still {
                asking.for_fault_of(begun);
                engine.read_aside(self.worker());
                crate::pause::pause::<H>();
            }
        }
        refused.within(PageRange::ALL).for_each(|range| kept.insert(range));
        engine.forking.window.keeps(kept);
    }

    /// In the parent, after fork(2) and with the window still open: tells the child what other threads have done.
    pub(crate) fn tell_child(&mut self, engine: &Engine<H>) {
        let (begun, mut asking) = (H::now(), Asking::new(&H::notices().giving_way));
        while !engine.tell_if_still(|| self.adopter.kept.catch_up(&H::notices().fork_advice)) {
            asking.for_fault_of(begun);
            if H::since(begun) >= tuning::STILL_PATIENCE {
                return engine.forking.window.tell_never_still();
            }
            engine.read_aside(self.worker());
            crate::pause::pause::<H>();
        }
    }

    /// In the child, before its memory is registered: makes its books say what happened in the window.
    pub(crate) fn take_over_changes(&mut self, engine: &Engine<H>, journal: &JournalAtFork<H>) {
        let changes = match journal.wait_to_be_told() {
            Told::Still => {
                engine.apply_installed(journal);
                if !journal.lacks_notes() {
                    return;
                }
                Vec::new()
            }
            Told::Changed(changes) => changes,
            Told::NeverStill => end_child::<H>("its parent's other threads did not stop changing their mappings"),
            Told::Advised => {
                end_child::<H>("its parent's other threads also gave advice about forks (MADV_DONTFORK, MADV_DOFORK)")
            }
            Told::Nothing => end_child::<H>("its parent ended or was stopped in that very moment"),
        };
        engine.apply_changes(journal, changes);
        if let Err(error) = self.adopter.look_at_all(engine) {
            engine.fatal(format_args!("uswap: a forked child cannot look at its memory: {}", Reason(&error)));
        }
    }
}

fn end_child<H: Host>(why: &str) -> ! {
    H::end(format_args!("it was forked while memory was being moved, and cannot tell what of it is where: {why}"))
}

impl<H: Host> Engine<H> {
    /// Tells the child, if nothing is being changed: then everything that was done has been read. `is_advised`: whether the program has
    /// given advice about forks since the child was promised its memory. Then what the child lacks may have been kept from it before it
    /// was moved, and it cannot be told from what was moved before the fork.
    fn tell_if_still(&self, is_advised: impl FnOnce() -> bool) -> bool {
        let _gate = self.memory.gate.shut();
        let is_still = self.is_still();
        if is_still {
            // Asked last: advice is posted before its thread moves anything.
            match is_advised() && !self.moved_since(0).0.is_empty() {
                true => self.forking.window.tell_advised(),
                false => self.forking.window.tell_changes(),
            }
        }
        is_still
    }

    /// Whether nothing is being changed, and everything that was read is settled.
    fn is_still(&self) -> bool {
        !self.memory.uffd.kernel_is_changing() && self.forking.window.is_settled()
    }

    /// From where to where memory was moved in this window, after so many changes, and whether it may have been left mapped; and how
    /// many changes there are by now.
    fn moved_since(&self, seen: usize) -> (Vec<(PageRange, PageRange, bool)>, usize) {
        let window = self.forking.window.seen.lock();
        let places = window.events().skip(seen).filter_map(|event| match event {
            Event::Remapped { from, to, may_stay } => Some((from, from.moved_to(to), may_stay)),
            _ => None,
        });
        (places.collect(), window.events().count())
    }

    fn read_aside(&self, worker: &mut Worker) {
        let gate = self.memory.gate.shut();
        self.read_with(worker, true, gate);
        while let Some(fault) = worker.serving.pending.pop_front() {
            if self.serve_beside(&fault, worker) == Served::AfterEvents {
                // Its thread faults again, and a handler will see to it.
                self.memory.wake(fault.page, 1);
            }
        }
    }

    fn apply_installed(&self, journal: &JournalAtFork<H>) {
        for &note in journal.notes() {
            if let Note::Installed(page) = note {
                self.installed_aside(page);
            }
        }
    }

    fn apply_changes(&self, journal: &JournalAtFork<H>, changes: Vec<Event>) {
        let known = journal.notes().iter().filter_map(|note| match *note {
            Note::Read(event) => Some(event),
            _ => None,
        });
        let changes = fork_cut::mark_known(changes.into_iter(), known.collect());
        let cut = match fork_cut::cut(&changes, journal.was_reading(), &Born::look(self, &journal.kept)) {
            Ok(cut) => cut,
            Err(Unclear(PageNumber(page))) => {
                end_child::<H>(&format!("several threads moved it, near {:#x}", PageNumber(page).address()))
            }
        };
        cut.done.into_iter().filter(|_| !is_on(Sabotage::ChangesNotApplied)).for_each(|event| self.apply(event));
        let mut core = self.core();
        cut.loose.into_iter().for_each(|range| core.given_up_lazily(range));
        cut.doubtful.into_iter().for_each(|range| core.doubt(range));
    }

    /// A page is touched that is given up for lost. If the user does not know, it was doubtful when this process was forked, or when
    /// its parent was; it may have been moved since.
    pub(crate) fn tell_refused(&self, page: PageNumber) {
        if self.books.say_lost(page) {
            self.member.alarm(format_args!(
                "uswap: {} may be lost: another thread was giving it up when the process was forked; an access raises SIGBUS",
                PageName::<H>::new(page)
            ));
        }
    }
}

/// The child as it was born.
struct Born<'a, H: Host> {
    engine: &'a Engine<H>,
    mapped: RangeSet,
    kept: &'a RangeSet,
}

impl<'a, H: Host> Born<'a, H> {
    fn look(engine: &'a Engine<H>, kept: &'a RangeSet) -> Self {
        let (mut text, mut mapped) = (Vec::with_capacity(64 << 10), RangeSet::default());
        if let Err(error) = H::Mappings::read_maps(&mut text) {
            engine.fatal(format_args!("uswap: a forked child cannot look at its memory: {}", Reason(&error)));
        }
        for vma in maps::vmas(&text).filter(Vma::is_anonymous_private) {
            mapped.insert(PageRange::of_bytes(vma.start, vma.end));
        }
        Born { engine, mapped, kept }
    }
}

impl<H: Host> Child for Born<'_, H> {
    fn is_mapped(&self, range: PageRange) -> bool {
        self.mapped.outside(range).next().is_none()
    }

    fn is_mapped_in_part(&self, range: PageRange) -> bool {
        self.mapped.within(range).next().is_some()
    }

    fn adopted(&self, range: PageRange) -> Vec<PageRange> {
        let adopted: Vec<PageRange> = self.engine.core().pages().adopted_within(range).collect();
        let mut parts = RangeSet::default();
        adopted.iter().for_each(|&part| parts.insert(part));
        let absent = |&part: &PageRange| self.kept.within(part).filter(|_| !is_on(Sabotage::KeptIsUnmapped));
        for kept in adopted.iter().flat_map(absent) {
            self.mapped.outside(kept).for_each(|absent| parts.remove(absent));
        }
        parts.within(range).collect()
    }

    fn has_swapped(&self, range: PageRange) -> bool {
        self.engine.core().pages().known(range).any(|(_, state)| matches!(state, PageState::Swapped { .. }))
    }
}
