//! What a fork copies of an engine, and a child goes on with.
//!
//! fork(2) copies the whole engine with the rest of the memory. Most of it means nothing in the child: descriptors, whose
//! numbers are those of other files there, locks that other threads held, frames that were not copied. What does mean
//! something are these parts.

#![allow(unsafe_code)]

use std::io;

use uswap_core::Core;
use uswap_sys::linux::Linux;
use uswap_sys::private_memory;

use crate::content::Ancestor;
use crate::engine::Engine;
use crate::fork_journal::JournalAtFork;
use crate::group::Holder;
use crate::host::{Host, notices};
use crate::ledger::Ledger;
use crate::zpool::ForeignPool;

/// The parts.
pub struct Inherited<H: Host> {
    /// The parent.
    pub(crate) owner: Holder,
    pub(crate) core: Core,
    /// Of this fork.
    pub(crate) ledger: Ledger,
    /// The parent's pool.
    pub(crate) pool: ForeignPool,
    /// The parent's ancestors.
    pub(crate) ancestors: Vec<Ancestor>,
    /// What happened in the window of the fork until the copy.
    pub(crate) journal: JournalAtFork<H>,
}

impl Inherited<Linux> {
    /// In a forked child: takes the parent's engine apart, if it had one.
    pub(crate) fn take() -> Option<Inherited<Linux>> {
        let old = notices().set_engine(std::ptr::null_mut()).cast::<Engine<Linux>>();
        // SAFETY: the value is the parent's engine, copied by fork. None of its threads runs here, the one thread of the program
        // waits for this one, and nobody else has the pointer. It is taken apart below, and what belongs to the parent
        // (descriptors, whose numbers mean something else here) is forgotten, not dropped.
        (!old.is_null()).then(|| Self::of_copy(unsafe { std::ptr::read(old) }))
    }

    fn of_copy(old: Engine<Linux>) -> Inherited<Linux> {
        // Each part by name: a descriptor that were dropped here would close a descriptor of this process.
        let Engine { member, memory, books, content, pressure, forking, staff: _ } = old;
        let owner = member.holder();
        std::mem::forget(member);
        memory.forget();
        pressure.forget();
        let (ledger, pool, ancestors) = content.into_inherited();
        let journal = forking.window.at_fork();
        std::mem::forget(forking);
        Inherited { owner, core: books.into_core(), ledger: ledger.expect(HAS_LEDGER), pool, ancestors, journal }
    }
}

impl<H: Host> Inherited<H> {
    /// What a child gets of an engine that goes on, where a fork is no copy of memory: in a model of it.
    ///
    /// To be called in the very step in which the program's memory is copied. What changes in the window of a fork is looked at
    /// first, before a lock is taken; the rest stays as it is until the window is closed.
    ///
    /// # Errors
    /// There are no addresses to map memory again that both share.
    ///
    /// # Panics
    /// No fork is under way.
    pub fn of(engine: &Engine<H>) -> io::Result<Inherited<H>> {
        let journal = engine.forking.window.map_at_fork()?;
        let ledger = engine.content.heirs.lock().last().expect(HAS_LEDGER).map_again()?;
        let core = engine.core().clone();
        let pool = engine.content.pool.lock().foreign()?;
        let again = |ancestor: &Ancestor| {
            Ok(Ancestor::new(ancestor.owner, ancestor.ledger.map_again()?, ancestor.pool.map_again()?))
        };
        let ancestors = engine.content.ancestors.iter().map(again).collect::<io::Result<Vec<Ancestor>>>()?;
        Ok(Inherited { owner: engine.member.holder(), core, ledger, pool, ancestors, journal })
    }
}

const HAS_LEDGER: &str = "the window of a fork has a ledger";

/// Child, before anything is mapped: the parent's frame area was not copied, and what is mapped in its place from here on
/// belongs to whoever maps it. Returns whether the parent was swapping.
pub fn child_begins() -> bool {
    notices().child_begins();
    // A copy of the parent's engine; its threads do not run here.
    let Some(old) = Engine::<Linux>::of_process() else { return false };
    for (start, end) in old.memory.ranges_without_copy() {
        private_memory::forget(start, end);
    }
    true
}
