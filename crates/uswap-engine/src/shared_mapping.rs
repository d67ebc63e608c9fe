//! Anonymous shared memory: the agent gives the program a mapping of a memory file in its place, of which others can hold the
//! descriptor.
//!
//! The file is made and mapped by the monitor, whose descriptors the program does not see. A thread of the program asks for it, and
//! waits for a moment: where there is no answer it gets what the kernel has for it, as if there were no uswap.

use std::time::{Duration, Instant};

use uswap_system::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use uswap_system::sync::Word;
use uswap_system::{MapShared, System};

use crate::notices::Noted;

/// How long a thread waits for its turn, and how long for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

const IDLE: u32 = 0;
/// A thread writes down what it wants.
const WRITTEN: u32 = 1;
/// It has.
const ASKED: u32 = 2;
/// The monitor is at it.
const TAKEN: u32 = 3;
/// It has done it.
const DONE: u32 = 4;
/// Nobody wants it any more.
const GIVEN_UP: u32 = 5;

const ANSWERED: u64 = u64::MAX;

const UNKNOWN: usize = 0;
const NO: usize = 1;
const YES: usize = 2;

/// What one thread at a time asks for.
pub struct SharedMappings<S> {
    state: Word<S>,
    start: AtomicUsize,
    len: AtomicUsize,
    protection: AtomicUsize,
    flags: AtomicUsize,
    /// What mmap answers: an address, or an error below 0.
    answer: AtomicUsize,
    /// The process does direct I/O, and the shared-memory server knows.
    pub direct_io: Noted,
    /// Whether what has a name is to be swapped, too: `UNKNOWN`, `NO` or `YES`.
    names: AtomicUsize,
    /// The server has not answered in time: what its word was before, or `ANSWERED`. What it answers later would pass for the answer to
    /// something else: nothing is asked before.
    unanswered: AtomicU64,
}

impl<S: System> SharedMappings<S> {
    pub(crate) const fn new() -> Self {
        SharedMappings {
            state: Word::new(IDLE),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            protection: AtomicUsize::new(0),
            flags: AtomicUsize::new(0),
            answer: AtomicUsize::new(0),
            direct_io: Noted::new(),
            names: AtomicUsize::new(UNKNOWN),
            unanswered: AtomicU64::new(ANSWERED),
        }
    }

    /// Monitor: whether threads are to ask before they use shared memory that has a name.
    pub(crate) fn names_are_swapped(&self, names: bool) {
        self.names.store(if names { YES } else { NO }, Relaxed);
    }

    /// Program thread: whether that is so, `None` where nobody has said so yet.
    pub fn are_names_swapped(&self) -> Option<bool> {
        let names = self.names.load(Relaxed);
        (names != UNKNOWN).then_some(names == YES)
    }

    /// Monitor: the server, whose word was `before`, has not answered in time; or now it has.
    pub(crate) fn is_unanswered(&self, before: Option<u32>) {
        self.unanswered.store(before.map_or(ANSWERED, u64::from), Relaxed);
    }

    /// Monitor: whether it has still to answer, and what its word was before.
    pub(crate) fn unanswered(&self) -> Option<u32> {
        u32::try_from(self.unanswered.load(Relaxed)).ok()
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.atomic().compare_exchange(from, to, AcqRel, Acquire).is_ok()
    }

    /// Program thread: asks for a mapping. What mmap answers; `None` where there is no answer. `ring` wakes the monitor, of which
    /// `is_inert` says that it does nothing.
    pub fn ask(&self, wanted: MapShared, ring: impl FnOnce(), is_inert: impl Fn() -> bool) -> Option<isize> {
        let begun = S::now();
        while !self.change(IDLE, WRITTEN) {
            self.wait_for_change(begun, &is_inert)?;
        }
        self.start.store(wanted.start, Relaxed);
        self.len.store(wanted.len, Relaxed);
        self.protection.store(wanted.protection as usize, Relaxed);
        self.flags.store(wanted.flags as usize, Relaxed);
        self.state.store_and_wake(ASKED);
        let mut begun = S::now();
        ring();
        while self.state.load() != DONE {
            if self.wait_for_change(begun, &is_inert).is_some() {
                continue;
            }
            if self.change(ASKED, IDLE) {
                self.state.wake_all();
                return None;
            }
            // Who does not know whether it has been detached cannot use the place again.
            if wanted.as_detached().is_some() && !is_inert() {
                begun = S::now();
                continue;
            }
            if self.change(TAKEN, GIVEN_UP) {
                return None;
            }
        }
        let answer = self.answer.load(Relaxed) as isize;
        self.state.store_and_wake(IDLE);
        Some(answer)
    }

    fn wait_for_change(&self, begun: Instant, is_inert: &impl Fn() -> bool) -> Option<()> {
        let left = PATIENCE.checked_sub(S::since(begun)).filter(|_| !is_inert())?;
        let state = self.state.load();
        if !matches!(state, IDLE | DONE) {
            let _ = self.state.wait(state, Some(left));
        }
        Some(())
    }

    /// Monitor: does what is asked for by `map`, if anything is. What has been mapped for nobody is given back by `unmap`.
    pub(crate) fn serve(&self, map: impl FnOnce(MapShared) -> isize, unmap: impl FnOnce(isize, usize)) {
        if self.state.load() != ASKED || !self.change(ASKED, TAKEN) {
            return;
        }
        let wanted = MapShared {
            start: self.start.load(Relaxed),
            len: self.len.load(Relaxed),
            protection: self.protection.load(Relaxed) as u32,
            flags: self.flags.load(Relaxed) as u32,
        };
        let answer = map(wanted);
        self.answer.store(answer as usize, Relaxed);
        if !self.change(TAKEN, DONE) {
            if answer > 0 {
                unmap(answer, wanted.len);
            }
            self.state.store(IDLE);
        }
        self.state.wake_all();
    }

    /// The only thread of a forked child: who asked in the parent does not live here.
    pub fn child_begins(&self) {
        self.state.store(IDLE);
        // It has a word of its own.
        self.is_unanswered(None);
    }
}
