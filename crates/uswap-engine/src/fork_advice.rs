//! The program's own madvise for fork: what it keeps from its children.
//!
//! Adopted memory always carries MADV_DONTFORK outside of a fork window ([`fork`](crate::fork)), so the kernel no longer
//! tells which part of it the program wants to keep to itself. The wrapper of madvise posts what the program says, in
//! order, into a fixed table that needs no lock and no allocation; the monitor reads it before it adopts memory and before
//! it lets a child come into being. Memory that is not adopted yet carries the program's own flags alone: those are read
//! from the kernel when it is adopted.
//!
//! MADV_WIPEONFORK is never changed by the engine, so the child reads it from the kernel. It is enough to know that the
//! program ever used it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::*};

use uswap_core::{PAGE_SIZE, PageNumber, PageRange, RangeSet};

use crate::smaps::Mapping;

/// What was said about a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// MADV_DONTFORK.
    DontFork,
    /// MADV_DOFORK.
    DoFork,
    /// MADV_WIPEONFORK.
    WipeOnFork,
}

const DONT_FORK: u8 = 0;
const DO_FORK: u8 = 1;
/// mremap: advice goes with the memory.
const MOVED: u8 = 2;

/// Advice that can wait for the monitor.
const PLACES: usize = 512;

struct Place {
    /// The number of the posting that it holds, plus one.
    posted: AtomicUsize,
    kind: AtomicU8,
    start: AtomicUsize,
    len: AtomicUsize,
    to: AtomicUsize,
}

impl Place {
    const fn new() -> Place {
        Place {
            posted: AtomicUsize::new(0),
            kind: AtomicU8::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            to: AtomicUsize::new(0),
        }
    }
}

/// Postings from any thread to the monitor, oldest first.
struct Postings {
    places: [Place; PLACES],
    /// Postings that have been given a place.
    given: AtomicUsize,
    /// Postings that have been taken out.
    taken: AtomicUsize,
}

struct Posting {
    kind: u8,
    start: usize,
    len: usize,
    to: usize,
}

impl Postings {
    const fn new() -> Postings {
        Postings { places: [const { Place::new() }; PLACES], given: AtomicUsize::new(0), taken: AtomicUsize::new(0) }
    }

    /// `false` when there is no room.
    fn post(&self, posting: &Posting) -> bool {
        let mut number = self.given.load(Relaxed);
        loop {
            if number.wrapping_sub(self.taken.load(Acquire)) >= PLACES {
                return false;
            }
            match self.given.compare_exchange_weak(number, number.wrapping_add(1), AcqRel, Relaxed) {
                Ok(_) => break,
                Err(now) => number = now,
            }
        }
        let place = &self.places[number % PLACES];
        place.kind.store(posting.kind, Relaxed);
        place.start.store(posting.start, Relaxed);
        place.len.store(posting.len, Relaxed);
        place.to.store(posting.to, Relaxed);
        place.posted.store(number.wrapping_add(1), Release);
        true
    }

    /// The oldest, if it is written already. One thread only.
    fn take(&self) -> Option<Posting> {
        let number = self.taken.load(Relaxed);
        let place = &self.places[number % PLACES];
        if number == self.given.load(Acquire) || place.posted.load(Acquire) != number.wrapping_add(1) {
            return None;
        }
        let posting = Posting {
            kind: place.kind.load(Relaxed),
            start: place.start.load(Relaxed),
            len: place.len.load(Relaxed),
            to: place.to.load(Relaxed),
        };
        self.taken.store(number.wrapping_add(1), Release);
        Some(posting)
    }

    /// Drops everything, also what its thread has not finished writing: that thread does not live here.
    fn clear(&self) {
        self.taken.store(self.given.load(Relaxed), Release);
    }
}

static POSTINGS: Postings = Postings::new();
/// The program has used MADV_DONTFORK.
static KEEPS: AtomicBool = AtomicBool::new(false);
/// The program has used MADV_WIPEONFORK.
static WIPES: AtomicBool = AtomicBool::new(false);

/// Any thread, after the kernel has taken the advice. Takes no lock and allocates nothing. `false` when the monitor has to
/// read first: try again.
#[must_use]
pub fn post(advice: Advice, start: usize, len: usize) -> bool {
    let kind = match advice {
        Advice::WipeOnFork => {
            WIPES.store(true, Release);
            return true;
        }
        Advice::DontFork => {
            KEEPS.store(true, Release);
            DONT_FORK
        }
        Advice::DoFork if !is_used() => return true,
        Advice::DoFork => DO_FORK,
    };
    let Some(len) = len.checked_next_multiple_of(PAGE_SIZE).filter(|&len| len > 0) else {
        return true;
    };
    POSTINGS.post(&Posting { kind, start, len, to: 0 })
}

/// A handler: adopted memory was moved by mremap.
pub(crate) fn moved(from: PageNumber, to: PageNumber, pages: u64) {
    if is_used() {
        let len = pages as usize * PAGE_SIZE;
        // Without room the child gets memory that it was not to have; its content is as the parent's.
        let _ = POSTINGS.post(&Posting { kind: MOVED, start: from.address(), len, to: to.address() });
    }
}

/// Whether the program ever kept memory from its children.
pub(crate) fn is_used() -> bool {
    KEEPS.load(Acquire)
}

/// Whether the program ever asked for memory to be wiped in its children.
pub(crate) fn wipes() -> bool {
    WIPES.load(Acquire)
}

/// The only thread of a forked child: what was kept from it is not there.
pub(crate) fn child_begins() {
    POSTINGS.clear();
}

/// What the program keeps from its children. The monitor has it: unlike the table of postings it allocates.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pages: RangeSet,
}

impl Kept {
    /// Takes in what has been posted.
    pub fn catch_up(&mut self) {
        while let Some(Posting { kind, start, len, to }) = POSTINGS.take() {
            let range = PageRange::of_bytes(start, start.saturating_add(len));
            match kind {
                DONT_FORK => self.pages.insert(range),
                DO_FORK => self.pages.remove(range),
                _ => self.moved(range, PageNumber::containing(to)),
            }
        }
    }

    fn moved(&mut self, range: PageRange, to: PageNumber) {
        let moved: Vec<PageRange> = self
            .pages
            .within(range)
            .map(|part| PageRange { start: PageNumber(part.start.0 - range.start.0 + to.0), pages: part.pages })
            .collect();
        self.pages.remove(range.moved_to(to));
        for part in moved {
            self.pages.insert(part);
        }
    }

    /// The kernel's flags of `range`, which is not adopted, are the program's; but not where mremap has enlarged a mapping
    /// that is.
    pub fn learn(&mut self, range: PageRange, mappings: &[Mapping]) {
        self.pages.remove(range);
        for mapping in mappings.iter().filter(|mapping| mapping.kept) {
            let both = mapping.range.intersection(range);
            match mapping.managed {
                true => self.has_grown(both, mapping.range),
                false => self.pages.insert(both),
            }
        }
    }

    /// mremap has added `grown` to `mapping`: its flags are the engine's, and the program's advice is that of the memory
    /// before it.
    pub fn has_grown(&mut self, grown: PageRange, mapping: PageRange) {
        if mapping.start < grown.start && self.pages.contains(PageNumber(grown.start.0 - 1)) {
            self.pages.insert(grown);
        }
    }

    /// The parts of `range` that are not kept.
    pub fn outside(&self, range: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        self.pages.outside(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange { start: PageNumber(start), pages }
    }

    #[test]
    fn postings_keep_their_order_and_say_when_they_are_full() {
        let postings = Postings::new();
        for round in 0..3 {
            for start in 0..PLACES {
                assert!(postings.post(&Posting { kind: DONT_FORK, start: start + round, len: 1, to: 0 }));
            }
            assert!(!postings.post(&Posting { kind: DONT_FORK, start: 0, len: 1, to: 0 }));
            for start in 0..PLACES {
                assert_eq!(postings.take().map(|posting| posting.start), Some(start + round));
            }
            assert!(postings.take().is_none());
        }
        assert!(postings.post(&Posting { kind: DONT_FORK, start: 0, len: 1, to: 0 }));
        postings.clear();
        assert!(postings.take().is_none());
    }

    #[test]
    fn a_posting_that_is_not_written_yet_is_waited_for() {
        let postings = Postings::new();
        postings.given.store(1, Relaxed);
        assert!(postings.take().is_none());
    }

    fn kept(ranges: &[PageRange]) -> Kept {
        let mut kept = Kept::default();
        ranges.iter().for_each(|&range| kept.pages.insert(range));
        kept
    }

    fn all(kept: &Kept) -> Vec<PageRange> {
        kept.pages.within(range(0, 1000)).collect()
    }

    #[test]
    fn what_is_not_kept_is_what_lies_between() {
        let kept = kept(&[range(10, 5), range(20, 20)]);
        let outside = |range| kept.outside(range).collect::<Vec<_>>();
        assert_eq!(outside(range(12, 40)), [range(15, 5), range(40, 12)]);
        assert_eq!(outside(range(0, 20)), [range(0, 10), range(15, 5)]);
        assert_eq!(outside(range(20, 20)), []);
    }

    #[test]
    fn flags_of_the_kernel_replace_what_was_known() {
        let mut kept = kept(&[range(10, 5), range(20, 20)]);
        let mappings = [
            Mapping { range: range(5, 5), kept: true, ..Mapping::default() },
            Mapping { range: range(12, 2), wiped: true, ..Mapping::default() },
            Mapping { range: range(24, 50), kept: true, ..Mapping::default() },
        ];
        kept.learn(range(0, 26), &mappings);
        assert_eq!(all(&kept), [range(5, 5), range(24, 16)]);
    }

    #[test]
    fn flags_of_what_has_grown_are_the_engines() {
        let mut kept = kept(&[range(10, 10)]);
        let grown =
            |start, pages| Mapping { range: range(start, pages), kept: true, managed: true, ..Mapping::default() };
        let mappings = [grown(10, 15), grown(30, 10), grown(50, 5)];
        kept.learn(range(20, 10), &mappings);
        kept.learn(range(35, 5), &mappings);
        kept.learn(range(50, 5), &mappings);
        assert_eq!(all(&kept), [range(10, 15)]);
    }

    #[test]
    fn advice_moves_with_its_memory() {
        let mut kept = kept(&[range(10, 10), range(100, 50)]);
        kept.moved(range(15, 10), PageNumber(120));
        // What was at the target is gone; the old place stays until its unmapping.
        assert_eq!(all(&kept), [range(10, 10), range(100, 25), range(130, 20)]);
    }
}
