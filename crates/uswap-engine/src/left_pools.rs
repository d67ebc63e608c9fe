//! Left pools: compressed pools whose processes have ended.
//!
//! A forked child reads its parent's pool. Once the parent has ended, nobody frees what is in it: the memory stays until the last heir
//! has ended, and counts for all ([`Group::left_pool_pages`](crate::group::Group::left_pool_pages)). Which heir needs what, none of them
//! knows of another. So the last one gives back what it does not need itself.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::entry::Epoch;
use uswap_core::{Location, PAGE_SIZE};

use crate::content::Ancestor;
use crate::engine::Engine;
use crate::host::Host;

/// Looks in a row at which this process was the only heir, 20 ms apart at least. As with [ledgers](crate::ledger), the supervisor may take a
/// child for dead that is only late.
const LOOKS_ALONE: u32 = 100;
/// In simulations of small budgets, which are over by then.
const LOOKS_ALONE_SIMULATED: u32 = 2;
/// One part in so many of what was needed must have been given up before all is looked at anew.
const GIVEN_UP_PART: u64 = 8;

/// What the monitor of an heir knows of the pools that it has inherited.
#[derive(Default)]
pub(crate) struct LeftPools(Vec<LeftPool>);

/// Of one ancestor.
#[derive(Default)]
struct LeftPool {
    /// Looks in a row at which nobody else could read it.
    alone: u32,
    /// What was needed when it was last gone through.
    needed: Option<Needed>,
}

/// Pages of a pool that somebody needs, and how much lies there.
#[derive(Default)]
struct Needed {
    /// One bit for each page, up to the last that is needed.
    pages: Vec<u64>,
    objects: u64,
    /// How many entries had been given up before.
    given_up: u64,
}

impl Needed {
    fn add(&mut self, handle: usize, len: usize) {
        self.objects += 1;
        for page in handle / PAGE_SIZE..(handle + len).div_ceil(PAGE_SIZE) {
            if self.pages.len() <= page / 64 {
                self.pages.resize(page / 64 + 1, 0);
            }
            self.pages[page / 64] |= 1 << (page % 64);
        }
    }

    fn has(&self, page: usize) -> bool {
        self.pages.get(page / 64).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    fn count(&self) -> u64 {
        self.pages.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether enough has been given up since that it is worth looking.
    fn is_old(&self, given_up: u64) -> bool {
        given_up - self.given_up > self.objects / GIVEN_UP_PART
    }

    /// Runs of pages below `end` that are not needed, and of which `before` has some.
    fn gaps(&self, before: Option<&Needed>, end: usize) -> Vec<Range<usize>> {
        let mut gaps = Vec::new();
        let mut start = None;
        let last = (self.pages.len() * 64).min(end);
        for page in 0..=last {
            match (page < last && self.has(page), start) {
                (false, None) => start = Some(page),
                (true, Some(from)) => {
                    gaps.push(from..page);
                    start = None;
                }
                _ => {}
            }
        }
        gaps.extend(start.map(|from| from..end));
        let had_some = |gap: &Range<usize>| match before {
            Some(before) => (gap.start..gap.end.min(before.pages.len() * 64)).any(|page| before.has(page)),
            None => true,
        };
        gaps.retain(|gap| !gap.is_empty() && had_some(gap));
        gaps
    }
}

impl<H: Host> Engine<H> {
    /// Gives back what nobody needs of pools whose processes have ended. No fork of this process is under way.
    pub(crate) fn give_back_left_pools(&self, pools: &mut LeftPools) {
        let ancestors = &self.content.ancestors;
        pools.0.resize_with(ancestors.len(), LeftPool::default);
        let is_simulated = self.member.group.config().gap_min_pages != 0;
        let looks_alone = if is_simulated { LOOKS_ALONE_SIMULATED } else { LOOKS_ALONE };
        for ((epoch, ancestor), pool) in ancestors.iter().enumerate().zip(&mut pools.0) {
            pool.alone = if self.is_alone_with(ancestor) { pool.alone.saturating_add(1) } else { 0 };
            let given_up = ancestor.given_up.load(Relaxed);
            let is_old = pool.needed.as_ref().is_none_or(|needed| needed.is_old(given_up));
            if pool.alone >= looks_alone && is_old {
                self.give_back(Epoch(epoch as u16), ancestor, &mut pool.needed);
            }
        }
    }

    /// Whether nobody else can read what an ancestor has left.
    fn is_alone_with(&self, ancestor: &Ancestor) -> bool {
        let group = self.member.group;
        group.is_only_heir(ancestor.owner, self.member.index)
            || is_on(Sabotage::OtherHeirsForgotten) && !group.has(ancestor.owner)
    }

    fn give_back(&self, epoch: Epoch, ancestor: &Ancestor, before: &mut Option<Needed>) {
        let mut needed = Needed { given_up: ancestor.given_up.load(Relaxed), ..Needed::default() };
        for location in self.core().needed_of(epoch) {
            if let Location::Pool { handle, len } = location {
                needed.add(crate::zpool::Handle(handle).byte_offset(), usize::from(len));
            }
        }
        // After that: a child of a fork that begins later needs no more than this process does. One that began before is on its way, or
        // an heir.
        if !self.is_alone_with(ancestor) {
            return;
        }
        for gap in needed.gaps(before.as_ref(), ancestor.pool.pages()) {
            // SAFETY: its owner has ended, and this process alone can read what is in the pool. It needs nothing there by its books, in
            // which no entry of an ancestor is ever made.
            if unsafe { ancestor.pool.give_back(gap) }.is_err() {
                return;
            }
        }
        self.member.group.process(ancestor.owner.index).leaves_pool(needed.count() * PAGE_SIZE as u64);
        *before = Some(needed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_nobody_needs() {
        let mut needed = Needed::default();
        assert!(needed.gaps(None, 300) == vec![0..300usize; 1], "nothing is needed");
        needed.add(2 * PAGE_SIZE, PAGE_SIZE);
        // Over the edge of a page.
        needed.add(5 * PAGE_SIZE - 64, 128);
        needed.add(5 * PAGE_SIZE + 128, 64);
        assert_eq!(needed.gaps(None, 300), [0..2, 3..4, 6..300]);
        assert_eq!((needed.count(), needed.objects), (3, 3));
        let mut more = Needed::default();
        for page in [2, 4, 5, 9] {
            more.add(page * PAGE_SIZE, 100);
        }
        assert!(needed.gaps(Some(&more), 300) == vec![6..300usize; 1], "the others were no different before");
        assert!(more.gaps(Some(&more), 300).is_empty());
    }

    #[test]
    fn all_is_looked_at_anew_when_an_eighth_has_been_given_up() {
        let mut needed = Needed { given_up: 7, ..Needed::default() };
        assert!(!needed.is_old(7), "nothing has changed");
        (0..80).for_each(|object| needed.add(object * 64, 64));
        assert!(!needed.is_old(17) && needed.is_old(18));
    }
}
