//! Content: where the bytes of pages are that are not in memory: the compressed pool, swap areas, and the pools of ancestors.
//!
//! A place belongs to the entry of the books that names it, and is given back only when the books have let it go
//! ([`release`](Content::release)), or by whoever took it and did not get it named. An object stays as it is for as long as its
//! entry is pinned; one that an heir may read stays until no heir holds it, or all are told where its content is by then (`ledger.rs`).

#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::entry::Epoch;
use uswap_core::{AreaId, Location, PAGE_SIZE, Released, Survey};
use uswap_system::System;

use crate::areas::Areas;
use crate::group::Holder;
use crate::ledger::Ledger;
use crate::lock_order::{Level, Lock};
use crate::zpool::{ForeignPool, Handle, PoolView, Zpool};

/// What this process inherited from an ancestor, by the epoch of the ancestor.
pub struct Ancestor {
    /// Who it was.
    pub owner: Holder,
    /// Its entries are named in this ledger.
    pub ledger: Ledger,
    /// Its compressed objects.
    pub pool: ForeignPool,
    /// How many of its entries have been given up here.
    pub given_up: AtomicU64,
}

impl Ancestor {
    /// An ancestor of which nothing has been given up yet.
    pub fn new(owner: Holder, ledger: Ledger, pool: ForeignPool) -> Ancestor {
        Ancestor { owner, ledger, pool, given_up: AtomicU64::new(0) }
    }
}

/// How far this process is with what was announced last about areas that are to become empty.
#[derive(Default)]
pub(crate) struct Swapoff {
    /// The announcement.
    pub announced: u32,
    /// By number of the area: nothing is left on it.
    emptied: u8,
    /// Of the area that is being emptied.
    pub survey: Option<Survey>,
}

impl Swapoff {
    /// Nothing was done yet about this announcement.
    pub fn of(announced: u32) -> Self {
        Swapoff { announced, ..Swapoff::default() }
    }

    pub fn is_emptied(&self, area: AreaId) -> bool {
        self.emptied >> area.0 & 1 == 1
    }

    pub fn has_emptied(&mut self, area: AreaId) {
        self.emptied |= 1 << area.0;
    }
}

/// Where content is.
pub(crate) struct Content<S: System> {
    pub areas: Areas<S>,
    pub pool: Lock<Zpool, S>,
    /// Of the pool, for who reads or writes an object without its lock.
    pub view: PoolView,
    pub ancestors: Vec<Ancestor>,
    /// Of children that have not let go of all that they inherited.
    pub heirs: Lock<Vec<Ledger>, S>,
    /// Held by whoever empties an area, while he asks the books what is next.
    pub swapoff: Lock<Swapoff, S>,
}

impl<S: System> Content<S> {
    pub fn new(areas: Areas<S>, pool: Zpool, ancestors: Vec<Ancestor>) -> Self {
        Content {
            areas,
            view: pool.view(),
            pool: Lock::new(Level::Pool, pool),
            ancestors,
            heirs: Lock::new(Level::Heirs, Vec::new()),
            swapoff: Lock::new(Level::Swapoff, Swapoff::default()),
        }
    }

    /// The compressed object of an entry of this process's own.
    ///
    /// # Safety
    /// The entry is pinned, or a zombie: its object stays as it is.
    pub unsafe fn object(&self, handle: u32, len: u16) -> &[u8] {
        S::others_may_go_on();
        // SAFETY: by the caller's promise the object is allocated and nobody frees it meanwhile; the pool it is in lives
        // as long as the engine, which lives as long as the process.
        unsafe { self.view.slice(Handle(handle), len as usize) }
    }

    /// Releases the places that the books have let go.
    pub fn release(&self, released: &mut Vec<Released>) {
        if released.is_empty() {
            return;
        }
        let own = Epoch(self.ancestors.len() as u16);
        let mut pool = None;
        for place in released.drain(..) {
            if place.epoch == own {
                if let Location::Pool { handle, len } = place.location {
                    let pool = pool.get_or_insert_with(|| self.pool.lock());
                    if is_on(Sabotage::DoubleFree) {
                        pool.free(Handle(handle), len as usize);
                    }
                    pool.free(Handle(handle), len as usize);
                }
            } else if let Some(ancestor) = self.ancestors.get(place.epoch.0 as usize) {
                ancestor.ledger.give_up(place.entry);
                ancestor.given_up.fetch_add(1, Relaxed);
            }
        }
    }

    /// Bytes of RAM that the compressed pool takes.
    pub fn pool_bytes(&self) -> usize {
        self.pool.lock().pool_bytes()
    }

    /// Pages of RAM that the compressed pool takes.
    pub fn pool_pages(&self) -> u64 {
        (self.pool_bytes() / PAGE_SIZE) as u64
    }

    /// In the copy that a forked child has: the ledger of this fork, the parent's pool, and what the parent had of its
    /// ancestors. Descriptors of areas are forgotten: they are those of other files here. So are the ledgers of other children.
    pub fn into_inherited(self) -> (Option<Ledger>, ForeignPool, Vec<Ancestor>) {
        let Content { areas, pool, view: _, ancestors, heirs, swapoff: _ } = self;
        std::mem::forget(areas);
        let mut heirs = heirs.into_inner();
        let ledger = heirs.pop();
        std::mem::forget(heirs);
        (ledger, pool.into_inner().into_foreign(), ancestors)
    }
}
