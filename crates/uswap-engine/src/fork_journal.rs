//! The journal of a fork: what happens in its window, for the parent and for the child.
//!
//! It lies in memory that both share, so that the child sees each note whole, however the kernel interleaves its copying with
//! the parent's writing. How many notes are the child's is counted in private memory, which is copied with the fork. After
//! the fork the parent also tells there what other threads did to the mappings around it, in the order in which memory
//! changed ([`fork_changes`](crate::fork_changes)). What the parent looks up meanwhile it has for itself, and there is always
//! room for more of that: who waits for a fault may have a lock that the forking thread waits for.

#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags};
use uswap_core::event_order::{Event, EventOrder};
use uswap_core::fork_window::{ForkWindow, Note};
use uswap_core::{RangeSet, tuning};
use uswap_sys::placement;
use uswap_system::System;
use uswap_system::sync::SharedWord;

use crate::ledger::Ledger;
use crate::lock_order::{Level, Lock};

/// Notes that a child can read. Memory is taken only for those that are written.
const NOTES: usize = 1 << 16;
/// Changes of mappings that a child can be told of.
const CHANGES: usize = 1 << 14;
/// Entries that may come to be between the setting aside of a ledger and its fork.
const ENTRIES_MORE: u32 = 1 << 16;
/// How often it looks meanwhile whether its parent is there.
const LOOK: Duration = Duration::from_millis(10);

/// Of `progress`: a handler reads messages at this moment, or has not noted all that it has read.
const READING: u32 = 1 << 31;
/// Of `progress`: there was no room for some notes.
const FULL: u32 = 1 << 30;
const COUNT: u32 = FULL - 1;

const NOTHING_TOLD: u32 = 0;
const STILL: u32 = 1;
const CHANGED: u32 = 2;
const NEVER_STILL: u32 = 3;
const ADVISED: u32 = 4;

/// What a child is told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// No mapping was changed.
    Still,
    /// These changes were made around the fork.
    Changed(Vec<Event>),
    /// The program did not stop changing its mappings.
    NeverStill,
    /// It has given advice about forks in the window, and moved memory.
    Advised,
    /// The parent has ended, or is stopped.
    Nothing,
}

#[repr(C)]
struct Shared<H> {
    told: SharedWord<H>,
    changes_count: AtomicU32,
    changes: [Event; CHANGES],
    notes: [Note; NOTES],
}

/// A journal that is mapped until this is dropped.
struct Journal<H> {
    base: NonNull<Shared<H>>,
}

impl<H> Journal<H> {
    fn map() -> io::Result<Journal<H>> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let base = placement::map(size_of::<Shared<H>>(), protection, MapFlags::SHARED | MapFlags::NORESERVE, None)?;
        Ok(Journal { base: base.cast() })
    }
}

// SAFETY: a journal is an address; what is written to it, and by whom, see `Window`.
unsafe impl<H> Send for Journal<H> {}
// SAFETY: as above.
unsafe impl<H> Sync for Journal<H> {}

impl<H> Drop for Journal<H> {
    fn drop(&mut self) {
        // SAFETY: mapped with this length by `Window::open`, and nobody reads it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), size_of::<Shared<H>>()) };
    }
}

/// The window of a fork.
pub(crate) struct Window<H> {
    shared: AtomicPtr<Shared<H>>,
    /// Notes in the journal, and flags: one word, so that the child has all of it as it was at one moment.
    progress: AtomicU32,
    parent: AtomicU32,
    journal: Mutex<Option<Journal<H>>>,
    /// For the next fork.
    reserved: Mutex<Option<(Journal<H>, Ledger)>>,
    ledger: Mutex<Option<Ledger>>,
    /// Notes for which the journal had no room: the parent's alone.
    beyond: Mutex<Vec<Note>>,
    /// What the program keeps from the child.
    kept: Mutex<RangeSet>,
    pub(crate) seen: Lock<ForkWindow, H>,
}

impl<H: System> Window<H> {
    pub fn new() -> Window<H> {
        Window {
            shared: AtomicPtr::new(std::ptr::null_mut()),
            progress: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            journal: Mutex::new(None),
            reserved: Mutex::new(None),
            ledger: Mutex::new(None),
            beyond: Mutex::new(Vec::new()),
            kept: Mutex::new(RangeSet::default()),
            seen: Lock::new(Level::Window, ForkWindow::default()),
        }
    }

    /// Sets memory aside for the next fork, with so many entries, and some that come to be until then.
    pub fn reserve(&self, entries: u32) -> io::Result<()> {
        let mut reserved = self.reserved.lock().expect("no thread panics with this lock");
        if reserved.as_ref().is_some_and(|(_, ledger)| ledger.has_room_for(entries)) {
            return Ok(());
        }
        if let Some((_, small)) = reserved.take() {
            small.discard();
        }
        *reserved = Some((Journal::map()?, Ledger::new(entries.saturating_add(ENTRIES_MORE))?));
        Ok(())
    }

    /// The ledger of the fork whose window was opened, for so many entries.
    pub fn ledger(&self, entries: u32) -> io::Result<Ledger> {
        match self.ledger.lock().expect("no thread panics with this lock").take() {
            Some(ledger) if ledger.has_room_for(entries) => return Ok(ledger),
            Some(small) => small.discard(),
            None => {}
        }
        Ledger::new(entries)
    }

    pub fn open(&self) -> io::Result<()> {
        let reserved = self.reserved.lock().expect("no thread panics with this lock").take();
        let (journal, ledger) = match reserved {
            Some((journal, ledger)) => (journal, Some(ledger)),
            None => (Journal::map()?, None),
        };
        let base = journal.base;
        *self.ledger.lock().expect("no thread panics with this lock") = ledger;
        // The journal of an earlier fork goes; a child of that fork has its own mapping of it.
        *self.journal.lock().expect("no thread panics with this lock") = Some(journal);
        self.progress.store(0, Release);
        self.parent.store(H::process_id(), Release);
        self.shared.store(base.as_ptr(), Release);
        *self.seen.lock() = ForkWindow::with_capacity(1024);
        Ok(())
    }

    /// The journal's words, of a window that was opened.
    fn shared(&self) -> (&SharedWord<H>, &AtomicU32) {
        // SAFETY: the window was opened, so this is a journal that stays mapped until the next one is.
        unsafe { words(self.shared.load(Acquire)) }
    }

    /// Writes notes, of which a child has all or none; the gate is held for writing.
    pub fn write(&self, notes: &[Note]) {
        let progress = self.progress.load(Acquire);
        let count = (progress & COUNT) as usize;
        if progress & FULL != 0 || count + notes.len() > NOTES {
            self.progress.fetch_or(FULL, AcqRel);
            self.beyond().extend_from_slice(notes);
            return;
        }
        let shared = self.shared.load(Acquire);
        for (index, &note) in notes.iter().enumerate() {
            // SAFETY: the window is open, and there is room; the gate makes this thread the only writer.
            unsafe { (&raw mut (*shared).notes).cast::<Note>().add(count + index).write(note) };
        }
        self.progress.fetch_add(notes.len() as u32, AcqRel);
    }

    /// With the gate shut: messages are read from here on, and noted.
    pub fn begins_reading(&self) {
        self.progress.fetch_or(READING, AcqRel);
    }

    /// With the gate still shut: what was read has been noted.
    pub fn ends_reading(&self) {
        self.progress.fetch_and(!READING, AcqRel);
    }

    /// What the journal has.
    pub fn notes(&self) -> &[Note] {
        let progress = self.progress.load(Acquire);
        // SAFETY: the window was opened where there are notes, and what `progress` counts was written before.
        unsafe { notes(self.shared.load(Acquire), progress) }
    }

    /// In the parent: what the journal had no room for.
    pub fn beyond(&self) -> MutexGuard<'_, Vec<Note>> {
        self.beyond.lock().expect("no thread panics with this lock")
    }

    /// Before the fork: the child will not have these, though its books do.
    pub fn keeps(&self, ranges: RangeSet) {
        *self.kept.lock().expect("no thread panics with this lock") = ranges;
    }

    fn kept_at_fork(&self) -> RangeSet {
        self.kept.lock().expect("no thread panics with this lock").clone()
    }

    /// Closes the window.
    pub fn close(&self) {
        *self.seen.lock() = ForkWindow::default();
        *self.beyond() = Vec::new();
    }

    /// Whether no event is held back or due.
    pub fn is_settled(&self) -> bool {
        !self.seen.lock().order().holds()
    }

    /// Looks at the events that were read.
    pub fn order<T>(&self, look: impl FnOnce(&EventOrder) -> T) -> T {
        look(self.seen.lock().order())
    }

    /// Parent, with the gate shut: everything has been read and is settled; the child may know.
    pub fn tell_changes(&self) {
        let seen = self.seen.lock();
        let shared = self.shared.load(Acquire);
        let mut count = 0;
        for event in seen.events() {
            if count == CHANGES {
                return self.tell_never_still();
            }
            // SAFETY: the window is open and `count` is below `CHANGES`; the child reads when it has been told.
            unsafe { (&raw mut (*shared).changes).cast::<Event>().add(count).write(event) };
            count += 1;
        }
        let (told, changes_count) = self.shared();
        changes_count.store(count as u32, Release);
        told.store_and_wake(if count == 0 { STILL } else { CHANGED });
    }

    /// Parent: it cannot be told what was done, for it does not end.
    pub fn tell_never_still(&self) {
        self.shared().0.store_and_wake(NEVER_STILL);
    }

    /// Parent: what was kept from the child, and then moved, cannot be told from what was moved.
    pub fn tell_advised(&self) {
        self.shared().0.store_and_wake(ADVISED);
    }

    /// In a child that has a copy of the parent's window: its journal, which the child has mapped.
    pub fn at_fork(&self) -> JournalAtFork<H> {
        let base = NonNull::new(self.shared.load(Acquire)).expect("the window of a fork was opened");
        let (progress, parent) = (self.progress.load(Acquire), self.parent.load(Acquire));
        JournalAtFork { journal: Journal { base }, progress, parent, kept: self.kept_at_fork() }
    }

    /// The same where the parent's window is at hand, and the journal must be mapped once more.
    pub fn map_at_fork(&self) -> io::Result<JournalAtFork<H>> {
        let (progress, parent) = (self.progress.load(Acquire), self.parent.load(Acquire));
        let base = NonNull::new(self.shared.load(Acquire)).expect("the window of a fork was opened");
        // SAFETY: the window was opened, so this is a journal that stays mapped until the next one is.
        let base = unsafe { placement::map_again(base.cast(), size_of::<Shared<H>>())? };
        let kept = self.kept_at_fork();
        Ok(JournalAtFork { journal: Journal { base: base.cast() }, progress, parent, kept })
    }
}

/// # Safety
/// A journal is mapped at `shared` for as long as the words are used.
unsafe fn words<'a, H>(shared: *const Shared<H>) -> (&'a SharedWord<H>, &'a AtomicU32) {
    // SAFETY: by the caller's promise; fresh memory is zeros, which both words may be.
    unsafe { (&(*shared).told, &(*shared).changes_count) }
}

/// # Safety
/// A journal is mapped at `shared` for as long as the notes are used, if `progress` counts any, and those were written whole
/// before.
unsafe fn notes<'a, H>(shared: *const Shared<H>, progress: u32) -> &'a [Note] {
    let count = (progress & COUNT) as usize;
    if count == 0 {
        return &[];
    }
    // SAFETY: by the caller's promise; notes are never changed once written.
    unsafe { std::slice::from_raw_parts((&raw const (*shared).notes).cast::<Note>(), count) }
}

/// The journal as it was in the moment of the fork: the child's.
pub(crate) struct JournalAtFork<H> {
    journal: Journal<H>,
    progress: u32,
    parent: u32,
    /// What the program keeps from this child.
    pub kept: RangeSet,
}

impl<H: System> JournalAtFork<H> {
    /// What the journal had.
    pub fn notes(&self) -> &[Note] {
        // SAFETY: the journal is mapped as long as this lives, and what `progress` counts was written before.
        unsafe { notes(self.journal.base.as_ptr(), self.progress) }
    }

    /// Whether notes are missing.
    pub fn lacks_notes(&self) -> bool {
        self.progress & FULL != 0
    }

    /// Whether what was read before the fork may not have been noted.
    pub fn was_reading(&self) -> bool {
        self.progress & (READING | FULL) != 0
    }

    /// Waits for what the parent tells.
    pub fn wait_to_be_told(&self) -> Told {
        let shared = self.journal.base.as_ptr();
        // SAFETY: the journal is mapped as long as this lives.
        let (told, changes_count) = unsafe { words(shared) };
        let begun = H::now();
        while told.load() == NOTHING_TOLD && H::since(begun) < tuning::TOLD_WITHIN && H::parent_is(self.parent) {
            let _ = told.wait(NOTHING_TOLD, Some(LOOK));
        }
        match told.load() {
            STILL => Told::Still,
            CHANGED => {
                let count = changes_count.load(Acquire) as usize;
                // SAFETY: so many were written before the parent told, and are never changed.
                let changes = unsafe { std::slice::from_raw_parts((&raw const (*shared).changes).cast(), count) };
                Told::Changed(changes.to_vec())
            }
            NEVER_STILL => Told::NeverStill,
            ADVISED => Told::Advised,
            _ => Told::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use uswap_sys::linux::Linux;

    use super::*;
    use uswap_core::{PageNumber, PageRange};

    #[test]
    fn a_full_journal_takes_notes_for_the_parent_alone() {
        let window = Window::<Linux>::new();
        window.open().unwrap();
        for page in 0..NOTES as u64 {
            window.write(&[Note::Installed(PageNumber(page))]);
        }
        let child = |window: &Window<Linux>| window.map_at_fork().unwrap();
        assert!(!child(&window).was_reading() && !child(&window).lacks_notes());
        window.write(&[Note::Installed(PageNumber(7))]);
        assert_eq!((window.notes().len(), window.beyond().len()), (NOTES, 1));
        let full = child(&window);
        assert!(full.was_reading() && full.lacks_notes() && full.notes().len() == NOTES);
        window.close();
        assert!(window.beyond().is_empty());
    }

    #[test]
    fn a_child_is_told_what_changed() {
        let window = Window::<Linux>::new();
        window.open().unwrap();
        window.begins_reading();
        assert!(window.map_at_fork().unwrap().was_reading());
        window.ends_reading();
        assert!(!window.map_at_fork().unwrap().was_reading());
        let event = Event::Unmapped(PageRange { start: PageNumber(5), pages: 2 });
        window.seen.lock().note(Note::Applied(event));
        std::thread::scope(|scope| {
            // A thread's parent is the process's: here nobody ends.
            window.parent.store(rustix::process::getppid().unwrap().as_raw_nonzero().get() as u32, Release);
            let child = window.map_at_fork().unwrap();
            let child = scope.spawn(move || child.wait_to_be_told());
            window.tell_changes();
            assert_eq!(child.join().unwrap(), Told::Changed(vec![event]));
        });
    }

    #[test]
    fn a_child_whose_parent_has_ended_is_told_nothing() {
        let window = Window::<Linux>::new();
        window.open().unwrap();
        // This process is not its own parent.
        assert_eq!(window.map_at_fork().unwrap().wait_to_be_told(), Told::Nothing);
    }
}
