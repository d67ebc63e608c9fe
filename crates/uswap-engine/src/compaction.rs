//! Compaction of the pool while the program goes on: a little at a time, by the monitor.
//!
//! When too many slabs could be spared, the pool chooses those to run empty (`zpool/compaction.rs`), core finds the owners
//! of what is in them in one pass over the swap table (`core/compaction.rs`), and their objects are moved, a batch a round:
//!
//! 1. with `heirs` and `core` held: find entries of such objects that nobody reads and no heir may read, and pin them;
//! 2. with `pool` held: take a second place for each;
//! 3. without a lock: copy. The first place is stable, because its entry is pinned: who lets go of it meanwhile only condemns
//!    it. The second one is nobody else's yet. Others may read the first place all the while;
//! 4. with `core` held: name the second place, if the pin is still the only one. Who has pinned the entry since has also
//!    taken down the first place, and reads it outside of the lock: then the second place is given up;
//! 5. with `pool` held: free the places that are needed no more, and give empty slabs back.
//!
//! So the old object is freed only after its copy is complete and named, whatever fails in between, and a reader never sees
//! a place change under it. A writeback and a move of the same object exclude each other by the pin: who comes second
//! leaves it alone.
//!
//! A fork needs to know nothing of this: it is the monitor that follows forks, so none begins between 1 and 5, and what the
//! new child's ledger names is found to be held from the next round on. A child finds no slab of its own leaving, for its
//! parent's pool is read-only to it.
//!
//! What it costs is bounded by the round: locks that a fault needs are held for some microseconds, and rounds pause for
//! longer than they take. Nothing here fails: without a second place an object stays, and where objects stay the
//! slab takes new ones again.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use uswap_core::{CompactionJob, CompactionSearch, Core, PAGE_SIZE, Released};
use uswap_system::System;

use crate::content::Content;
use crate::engine::Engine;
use crate::group::Counter;
use crate::host::Host;
use crate::ledger::{Ledger, heirs_hold};
use crate::lock_order::Lock;
use crate::zpool::{Handle, PoolView, SLAB_BYTES, SlabSet, Zpool};

/// It begins when more than one slab in so many could be spared...
const SPARE_SHARE: usize = 32;
/// ...and these are at least 256 KiB.
const SPARE_MIN: usize = 8;
/// Objects that one round moves: some 100 KiB, a tenth of a millisecond.
const ROUND_OBJECTS: usize = 64;
/// Entries that are looked at with the books locked: 32 KiB, some microseconds.
const LOOKS: u32 = 1024;
/// Times that a round does so.
const ROUND_LOOKS: u32 = 8;
/// Slabs that change their place with the pool locked.
const SLABS: usize = 16;
/// Slabs that go back to the kernel with the pool locked: each is a system call.
const TRIMMED: usize = 4;
/// Between rounds, and between looks at whether there is something to do.
const PAUSE: Duration = Duration::from_millis(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After a pass that could not empty half of what it had chosen, most likely because children hold it: twice as long each
/// time.
const FUTILE_PAUSE: Duration = Duration::from_secs(1);
const FUTILE_PAUSE_MAX: Duration = Duration::from_secs(8);

/// What compaction works on.
pub(crate) struct Parts<'a, H> {
    pub heirs: &'a Lock<Vec<Ledger>, H>,
    pub core: &'a Lock<Core, H>,
    pub pool: &'a Lock<Zpool, H>,
    pub view: PoolView,
    /// Releases places that the books have let go, whoever stored them.
    pub release: &'a dyn Fn(&mut Vec<Released>),
}

impl<H> Clone for Parts<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for Parts<'_, H> {}

/// An object and its second place.
struct Move {
    job: CompactionJob,
    target: Option<Handle>,
}

/// How far a pass is.
enum Stage {
    /// None is under way.
    Resting,
    /// Slabs are being chosen.
    Choosing,
    /// Their objects are being moved.
    Moving(CompactionSearch),
    /// Slabs that could not be emptied are being put back.
    Ending {
        /// How many could.
        emptied: usize,
    },
}

/// Compaction of one process's pool.
pub(crate) struct Compaction {
    stage: Stage,
    chosen: SlabSet,
    chosen_count: usize,
    moves: Vec<Move>,
    released: Vec<Released>,
    next: Instant,
    /// How long to rest when the pass comes to its end.
    pause: Duration,
    futile_pause: Duration,
}

/// What a round achieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Round {
    /// Objects that have a new place.
    pub moved: usize,
    /// Slabs that the pass that came to its end in this round has emptied.
    pub emptied_slabs: usize,
}

impl Compaction {
    /// At the time `now`.
    pub fn new(now: Instant) -> Compaction {
        Compaction {
            stage: Stage::Resting,
            chosen: SlabSet::default(),
            chosen_count: 0,
            moves: Vec::new(),
            released: Vec::new(),
            next: now,
            pause: LOOK_EVERY,
            futile_pause: FUTILE_PAUSE,
        }
    }

    /// When the next round of a pass is due; `None` when none is under way.
    pub fn due(&self, now: Instant) -> Option<Duration> {
        (!self.is_resting()).then(|| self.next.saturating_duration_since(now))
    }

    fn is_resting(&self) -> bool {
        matches!(self.stage, Stage::Resting)
    }

    /// A round, a little of everything.
    fn round<H: System>(&mut self, parts: Parts<'_, H>) -> Round {
        let mut round = Round::default();
        match self.stage {
            Stage::Resting => self.look(parts),
            Stage::Choosing => self.choose(parts),
            Stage::Moving(search) => round.moved = self.move_some(search, parts),
            Stage::Ending { emptied } => round.emptied_slabs = self.end(emptied, parts),
        }
        parts.pool.lock().trim(TRIMMED);
        round
    }

    fn look<H: System>(&mut self, parts: Parts<'_, H>) {
        let pool = parts.pool.lock();
        let spare = pool.spare_slabs();
        if spare >= SPARE_MIN && spare * SLAB_BYTES > pool.pool_bytes() / SPARE_SHARE {
            self.stage = Stage::Choosing;
        }
    }

    fn choose<H: System>(&mut self, parts: Parts<'_, H>) {
        let count = parts.pool.lock().choose_leaving(&mut self.chosen, SLABS);
        self.chosen_count += count;
        if count < SLABS {
            self.stage = Stage::Moving(CompactionSearch::default());
        }
    }

    /// Moves up to [`ROUND_OBJECTS`]; says how many.
    fn move_some<H: System>(&mut self, mut search: CompactionSearch, parts: Parts<'_, H>) -> usize {
        for _ in 0..ROUND_LOOKS {
            let heirs = parts.heirs.lock();
            let mut core = parts.core.lock();
            let mut looks = LOOKS;
            while self.moves.len() < ROUND_OBJECTS {
                let leaving = |handle| self.chosen.contains(Handle(handle));
                let held = |entry| heirs_hold(&heirs, entry);
                let Some(job) = core.next_compaction(&mut search, &mut looks, leaving, held) else { break };
                self.moves.push(Move { job, target: None });
            }
            if self.moves.len() == ROUND_OBJECTS || core.is_searched(&search) {
                break;
            }
        }
        {
            let mut pool = parts.pool.lock();
            for Move { job, target } in &mut self.moves {
                *target = pool.move_target(Handle(job.handle), job.len.into());
            }
        }
        for Move { job, target } in &self.moves {
            let Some(target) = *target else { continue };
            // SAFETY: the job pins its entry, so the object stays as it is; it is of this process's own pool.
            let source = unsafe { parts.view.slice(Handle(job.handle), job.len.into()) };
            // SAFETY: the place was taken above, and nobody else knows of it until `compacted`.
            unsafe { parts.view.slice_mut(target, job.len.into()) }.copy_from_slice(source);
        }
        let mut moved = 0;
        let mut core = parts.core.lock();
        let is_searched = core.is_searched(&search);
        for Move { job, target } in self.moves.drain(..) {
            moved += usize::from(core.compacted(job, target.map(|target| target.0)));
        }
        core.take_released(&mut self.released);
        drop(core);
        // Among them may be what other threads have let go a moment ago, places of ancestors too.
        (parts.release)(&mut self.released);
        let pool = parts.pool.lock();
        self.stage = if is_searched {
            Stage::Ending { emptied: self.chosen_count.saturating_sub(pool.leaving_slabs()) }
        } else {
            Stage::Moving(search)
        };
        moved
    }

    /// Slabs that could not be emptied take objects again. Returns how many were, when the pass is over.
    fn end<H: System>(&mut self, emptied: usize, parts: Parts<'_, H>) -> usize {
        if !parts.pool.lock().stop_leaving(SLABS) {
            return 0;
        }
        if emptied * 2 < self.chosen_count {
            self.pause = self.futile_pause;
            self.futile_pause = (self.futile_pause * 2).min(FUTILE_PAUSE_MAX);
        } else {
            self.pause = LOOK_EVERY;
            self.futile_pause = FUTILE_PAUSE;
        }
        self.chosen.clear();
        self.chosen_count = 0;
        self.stage = Stage::Resting;
        emptied
    }
}

impl<H: Host> Engine<H> {
    /// A round of compaction, if one is due. The monitor's: see above.
    pub(crate) fn compact(&self, compaction: &mut Compaction) {
        let now = H::now();
        if now < compaction.next {
            return;
        }
        let _running = self.forking.phase.pass();
        let Content { heirs, pool, view, .. } = &self.content;
        let release = |released: &mut Vec<Released>| self.content.release(released);
        let round = compaction.round(Parts { heirs, core: self.books.lock(), pool, view: *view, release: &release });
        compaction.next =
            now + if compaction.is_resting() { std::mem::replace(&mut compaction.pause, LOOK_EVERY) } else { PAUSE };
        self.count(Counter::CompactMoved, round.moved as u64);
        self.count(Counter::CompactFreed, (round.emptied_slabs * SLAB_BYTES / PAGE_SIZE) as u64);
    }
}

#[cfg(all(test, not(uswap_words)))]
mod tests;
