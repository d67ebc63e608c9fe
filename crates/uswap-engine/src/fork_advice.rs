//! The program's own madvise for fork: what it keeps from its children.
//!
//! Adopted memory always carries MADV_DONTFORK outside of a fork window ([`fork`](crate::fork)), so the kernel no longer
//! tells which part of it the program wants to keep to itself. The wrapper of madvise posts what the program says, in
//! order; the monitor reads it now and then, before it adopts memory, and before it lets a child come into being. Memory
//! that is not adopted yet carries the program's own flags alone: those are read from the kernel when it is adopted. So
//! where there is no engine yet nothing needs to be posted, and nobody would read it. Nobody ever waits here: V8 gives such
//! advice thousands of times, and what the program's other threads wait for meanwhile is not known.
//!
//! Moves and unmappings are posted when their events are applied, and advice that was given later may have been posted before.
//! So reads of events are numbered, and advice has the number of the last one that had begun: advice that was posted before the
//! read of a move had begun came before that. Of what was posted since, advice at the place to which memory was moved came
//! after the move.
//!
//! The program's MADV_DOFORK of adopted memory is done by the kernel, too, and a fork that goes round the hooks would have
//! holes there: the monitor keeps such memory from forks again ([`Kept::take_lifted`]).
//!
//! MADV_WIPEONFORK is never changed by the engine, so the child reads it from the kernel. It is enough to know that the
//! program ever used it.

use uswap_core::{PAGE_SIZE, PageNumber, PageRange, RangeSet};
use uswap_system::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};

use crate::postings::{Posting, Postings};
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
/// Unmapped.
const GONE: u8 = 3;
/// mremap has added it to adopted memory, and it has been adopted by a fault.
const GROWN: u8 = 4;

/// Advice that a move may still overtake: more of it comes in one moment only where the monitor has not looked for long.
const RECENT_MAX: usize = 4096;

/// What the program has said.
pub struct ForkAdvice {
    postings: Postings,
    /// The program has used MADV_DONTFORK.
    keeps: AtomicBool,
    /// The program has used MADV_WIPEONFORK.
    wipes: AtomicBool,
    /// There was no memory for a posting: what the program wants to keep from its children is not known any more.
    lost: AtomicBool,
    reads: Reads,
}

/// Reads of events. Changed only while the gate is shut.
struct Reads {
    /// How many have begun.
    begun: AtomicU64,
    /// The first of which not all events are in the books; 0: there is none.
    unsettled: AtomicU64,
}

impl Reads {
    /// The last of those of which all that they have brought is posted, and will be before what is taken next.
    fn settled(&self) -> u64 {
        // In this order: a read is unsettled before it is counted.
        let begun = self.begun.load(SeqCst);
        match self.unsettled.load(SeqCst) {
            0 => begun,
            unsettled => unsettled - 1,
        }
    }
}

impl ForkAdvice {
    pub(crate) const fn new() -> ForkAdvice {
        ForkAdvice {
            postings: Postings::new(),
            keeps: AtomicBool::new(false),
            wipes: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            reads: Reads { begun: AtomicU64::new(0), unsettled: AtomicU64::new(0) },
        }
    }

    /// With the gate shut: events are read from here on.
    pub(crate) fn begins_reading(&self) {
        let number = self.reads.begun.load(Relaxed) + 1;
        let _ = self.reads.unsettled.compare_exchange(0, number, SeqCst, Relaxed);
        self.reads.begun.store(number, SeqCst);
    }

    /// With the gate shut: all that has been read is in the books.
    pub(crate) fn all_is_settled(&self) {
        self.reads.unsettled.store(0, SeqCst);
    }

    /// Any thread, after the kernel has taken the advice. Takes no lock and waits for nobody. Where there is no engine, nobody
    /// reads what is posted.
    pub fn post(&self, advice: Advice, start: usize, len: usize, has_engine: impl FnOnce() -> bool) {
        self.note(advice);
        let kind = match advice {
            Advice::WipeOnFork => return,
            Advice::DontFork => DONT_FORK,
            Advice::DoFork => DO_FORK,
        };
        // Either this thread sees the engine, or the engine, which adopts only later, sees what has been said before this.
        fence(SeqCst);
        if !has_engine() {
            return;
        }
        if let Some(len) = len.checked_next_multiple_of(PAGE_SIZE).filter(|&len| len > 0) {
            self.hand_over(&Posting { kind, start, len, to: 0, number: self.last_read() });
        }
    }

    /// Advice was given at a time when nothing is adopted, or by a process in which nothing ever is.
    pub fn note(&self, advice: Advice) {
        match advice {
            Advice::WipeOnFork => self.wipes.store(true, Release),
            Advice::DontFork => self.keeps.store(true, Release),
            Advice::DoFork => {}
        }
    }

    /// The number of the last read that has begun.
    pub(crate) fn last_read(&self) -> u64 {
        self.reads.begun.load(SeqCst)
    }

    /// A handler: memory was unmapped. What comes to be there is another's. `read`: in which that was told, if it was.
    pub(crate) fn gone(&self, range: PageRange, read: Option<u64>) {
        if self.is_used() {
            self.post_of_engine(GONE, range, 0, read);
        }
    }

    /// A handler: adopted memory was moved by mremap. `read`: as for [`gone`](Self::gone).
    pub(crate) fn moved(&self, from: PageRange, to: PageNumber, read: Option<u64>) {
        self.post_of_engine(MOVED, from, to.address(), read);
    }

    /// A handler: what mremap has added to adopted memory has been adopted.
    pub(crate) fn grown(&self, range: PageRange) {
        self.post_of_engine(GROWN, range, 0, None);
    }

    fn post_of_engine(&self, kind: u8, range: PageRange, to: usize, read: Option<u64>) {
        let (start, len) = (range.start.address(), range.pages as usize * PAGE_SIZE);
        let number = read.unwrap_or_else(|| match self.reads.unsettled.load(SeqCst) {
            // Not of an event that was read.
            0 => u64::MAX,
            // Noted by nobody, for the program had kept nothing from its children by then.
            unsettled => unsettled,
        });
        self.hand_over(&Posting { kind, start, len, to, number });
    }

    fn hand_over(&self, posting: &Posting) {
        if !self.postings.post(posting) {
            self.lost.store(true, Release);
        }
    }

    /// The monitor: whether it has taken in all that has been posted.
    pub(crate) fn is_heard(&self) -> bool {
        self.postings.is_empty()
    }

    /// Whether the program ever kept memory from its children.
    pub(crate) fn is_used(&self) -> bool {
        self.keeps.load(Acquire)
    }

    /// Whether the program ever asked for memory to be wiped in its children.
    pub(crate) fn wipes(&self) -> bool {
        self.wipes.load(Acquire)
    }

    /// The only thread of a forked child: what was kept from it is not there.
    pub(crate) fn child_begins(&self) {
        self.postings.clear();
        self.all_is_settled();
    }
}

/// The engine's start, once it can be seen and before it adopts anything: see [`post`].
pub(crate) fn engine_begins() {
    fence(SeqCst);
}

/// What the program keeps from its children. The monitor has it: unlike the postings it allocates.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pages: RangeSet,
    /// What the program has said that its children shall have, or has been added to adopted memory, and has not been looked at since.
    lifted: RangeSet,
    /// It is not known any more what the program has let its children have.
    is_anywhere: bool,
    /// What mremap has added to adopted memory, and is not known yet to be kept or not.
    grown: RangeSet,
    /// Advice that may have been given after a move that is not posted yet.
    recent: Vec<Posting>,
}

impl Kept {
    /// Takes in what has been posted. Whether the program has given advice.
    pub fn catch_up(&mut self, said: &ForkAdvice) -> bool {
        let settled = said.reads.settled();
        let mut is_advised = false;
        while let Some(posting) = said.postings.take() {
            let range = posting.range();
            match posting.kind {
                DONT_FORK | DO_FORK => {
                    is_advised = true;
                    self.advise(posting.kind, range);
                    self.recent.push(posting);
                }
                GONE => {
                    self.pages.remove(range);
                    self.grown.remove(range);
                    self.advise_anew(range, posting.number);
                }
                GROWN if said.is_used() => self.has_grown(range),
                GROWN => self.look_again(range),
                _ => {
                    let to = PageNumber::containing(posting.to);
                    take_along(&mut self.pages, range, to);
                    take_along(&mut self.grown, range, to);
                    let lifted: Vec<PageRange> = moved_parts(&self.lifted, range, to);
                    lifted.into_iter().for_each(|part| self.lifted.insert(part));
                    self.advise_anew(range.moved_to(to), posting.number);
                }
            }
        }
        if said.is_heard() {
            self.recent.retain(|advice| advice.number > settled);
        }
        // Too old to be what a move has yet to overtake, if there are so many.
        let too_many = self.recent.len().saturating_sub(RECENT_MAX);
        self.recent.drain(..too_many);
        if said.lost.swap(false, AcqRel) {
            // A child that has too much sees what its parent has; one that has too little dies.
            (self.pages, self.recent) = (RangeSet::default(), Vec::new());
            self.is_anywhere = true;
            is_advised = true;
        }
        is_advised
    }

    fn advise(&mut self, kind: u8, range: PageRange) {
        self.decide_grown(range);
        match kind {
            DONT_FORK => self.pages.insert(range),
            _ => {
                self.pages.remove(range);
                self.lifted.insert(range);
            }
        }
    }

    /// Advice comes about `range`: what mremap has added to it, or right behind it, has had the advice of before.
    fn decide_grown(&mut self, range: PageRange) {
        let with_next = PageRange { pages: range.pages + 1, ..range };
        let touched: Vec<PageRange> =
            self.grown.within(PageRange::ALL).filter(|part| part.overlaps(with_next)).collect();
        for part in touched {
            self.extend_to(part);
            self.grown.remove(part);
        }
    }

    /// What has been added to memory has its advice.
    fn extend_to(&mut self, grown: PageRange) {
        if grown.start.0.checked_sub(1).is_some_and(|before| self.pages.contains(PageNumber(before))) {
            self.pages.insert(grown);
        }
    }

    /// What is at `place` has come there, or been mapped there, by an event that was read in the read of this number, or later: advice
    /// about it that has been given since is that of what is there now.
    fn advise_anew(&mut self, place: PageRange, number: u64) {
        let later: Vec<(u8, PageRange)> = self
            .recent
            .iter()
            .filter(|advice| advice.number >= number)
            .map(|advice| (advice.kind, advice.range().intersection(place)))
            .filter(|(_, part)| part.pages > 0)
            .collect();
        later.into_iter().for_each(|(kind, part)| self.advise(kind, part));
    }

    /// Takes out what has not been looked at since the program has let its children have it.
    pub fn take_lifted(&mut self) -> Vec<PageRange> {
        std::mem::take(&mut self.lifted).within(PageRange::ALL).collect()
    }

    /// What of `range` is adopted, or is when it has been moved by moves that are not heard of yet, may go to children as it is.
    pub fn look_again(&mut self, range: PageRange) {
        self.lifted.insert(range);
    }

    /// Whether it is not known what the program has let its children have, so that all is to be looked at. Once.
    pub fn take_is_anywhere(&mut self) -> bool {
        std::mem::take(&mut self.is_anywhere)
    }

    /// The kernel's flags of `range`, which is not adopted, are the program's; but not where mremap has enlarged a mapping
    /// that is.
    pub fn learn(&mut self, range: PageRange, mappings: &[Mapping]) {
        self.pages.remove(range);
        for mapping in mappings.iter().filter(|mapping| mapping.kept) {
            let both = mapping.range.intersection(range);
            match mapping.managed {
                true => {
                    self.has_grown(both);
                    self.extend_to_grown(mapping.range);
                }
                false => self.pages.insert(both),
            }
        }
    }

    /// mremap has added `grown` to a mapping, whose mark may have been lifted then.
    pub fn has_grown(&mut self, grown: PageRange) {
        self.grown.insert(grown);
        self.lifted.insert(grown);
    }

    /// What mremap has added to `mapping` has the engine's flags, and the program's advice is that of the memory before it.
    pub fn extend_to_grown(&mut self, mapping: PageRange) {
        let grown: Vec<PageRange> = self.grown.within(mapping).collect();
        for part in grown {
            if mapping.start < part.start {
                self.extend_to(part);
            }
        }
        self.grown.remove(mapping);
    }

    /// Nothing is known of those parts of what is kept that `not_adopted` tells.
    pub fn forget_all_of(&mut self, not_adopted: impl Fn(PageRange) -> Vec<PageRange>) {
        let gone: Vec<PageRange> = self.pages.within(PageRange::ALL).flat_map(not_adopted).collect();
        gone.into_iter().for_each(|range| self.pages.remove(range));
    }

    /// All that is kept.
    pub fn pages(&self) -> &RangeSet {
        &self.pages
    }

    /// The parts of `range` that are not kept.
    pub fn outside(&self, range: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        self.pages.outside(range)
    }
}

/// What is kept of `range` is kept where it has been moved to as well, and nothing else there.
pub(crate) fn take_along(kept: &mut RangeSet, range: PageRange, to: PageNumber) {
    let moved = moved_parts(kept, range, to);
    kept.remove(range.moved_to(to));
    moved.into_iter().for_each(|part| kept.insert(part));
}

/// Where what there is of `range` is when that has been moved.
fn moved_parts(set: &RangeSet, range: PageRange, to: PageNumber) -> Vec<PageRange> {
    let at = |page: PageNumber| PageNumber(page.0 - range.start.0 + to.0);
    set.within(range).map(|part| PageRange { start: at(part.start), pages: part.pages }).collect()
}

#[cfg(all(test, uswap_words))]
mod words;

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange { start: PageNumber(start), pages }
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
    fn of_what_is_not_adopted_the_kernel_knows() {
        let mut kept = kept(&[range(10, 10), range(30, 10)]);
        kept.forget_all_of(|kept| vec![kept.intersection(range(15, 20))]);
        assert_eq!(all(&kept), [range(10, 5), range(35, 5)]);
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
    fn advice_ends_with_its_memory() {
        let (said, mut kept) = (ForkAdvice::new(), Kept::default());
        let len = 10 * PAGE_SIZE;
        said.post(Advice::DontFork, range(10, 10).start.address(), len, || true);
        said.begins_reading();
        said.gone(range(12, 3), Some(1));
        kept.catch_up(&said);
        assert_eq!(all(&kept), [range(10, 2), range(15, 5)]);
    }

    fn advise(said: &ForkAdvice, advice: Advice, about: PageRange) {
        said.post(advice, about.start.address(), about.pages as usize * PAGE_SIZE, || true);
    }

    #[test]
    fn advice_at_a_new_place_outruns_the_report_of_the_move() {
        for is_heard_first in [false, true] {
            let (said, mut kept) = (ForkAdvice::new(), Kept::default());
            advise(&said, Advice::DontFork, range(10, 10));
            said.begins_reading();
            // The program has moved it, and thinks better of a half of it.
            advise(&said, Advice::DoFork, range(105, 5));
            if is_heard_first {
                kept.catch_up(&said);
            }
            said.moved(range(10, 10), PageNumber(100), Some(1));
            said.gone(range(10, 10), Some(1));
            said.all_is_settled();
            kept.catch_up(&said);
            assert_eq!(all(&kept), [range(100, 5)]);
        }
    }

    #[test]
    fn advice_about_what_a_move_replaces_ends_with_it() {
        let (said, mut kept) = (ForkAdvice::new(), Kept::default());
        // An event of other memory, which is held until this one comes.
        said.begins_reading();
        advise(&said, Advice::DontFork, range(100, 10));
        said.begins_reading();
        said.moved(range(10, 10), PageNumber(100), Some(2));
        said.all_is_settled();
        kept.catch_up(&said);
        assert_eq!(all(&kept), []);
        assert!(kept.recent.is_empty(), "what was read is settled");
    }

    #[test]
    fn advice_about_what_is_mapped_anew_is_not_that_of_what_is_gone() {
        let (said, mut kept) = (ForkAdvice::new(), Kept::default());
        advise(&said, Advice::DontFork, range(10, 10));
        said.begins_reading();
        advise(&said, Advice::DontFork, range(12, 2));
        kept.catch_up(&said);
        said.gone(range(10, 10), Some(1));
        kept.catch_up(&said);
        assert_eq!(all(&kept), [range(12, 2)]);
    }

    #[test]
    fn what_was_touched_first_of_what_has_grown_is_kept_as_well() {
        let (said, mut kept) = (ForkAdvice::new(), Kept::default());
        advise(&said, Advice::DontFork, range(10, 10));
        said.grown(range(20, 1));
        kept.catch_up(&said);
        kept.has_grown(range(21, 9));
        kept.extend_to_grown(range(10, 20));
        assert_eq!(all(&kept), [range(10, 20)]);
        assert!(kept.grown.within(range(0, 1000)).next().is_none());
    }

    #[test]
    fn advice_about_what_has_grown_is_its_own() {
        let (said, mut kept) = (ForkAdvice::new(), Kept::default());
        advise(&said, Advice::DontFork, range(10, 10));
        said.grown(range(20, 10));
        advise(&said, Advice::DoFork, range(25, 5));
        kept.catch_up(&said);
        kept.extend_to_grown(range(10, 20));
        assert_eq!(all(&kept), [range(10, 15)]);
        // What is kept later does not keep what had grown before.
        said.grown(range(110, 10));
        advise(&said, Advice::DontFork, range(100, 10));
        kept.catch_up(&said);
        kept.extend_to_grown(range(100, 20));
        assert_eq!(all(&kept), [range(10, 15), range(100, 10)]);
    }

    #[test]
    fn what_children_shall_have_is_looked_at_where_it_has_been_moved_to() {
        let (said, mut kept) = (ForkAdvice::new(), Kept::default());
        advise(&said, Advice::DoFork, range(10, 10));
        said.moved(range(5, 10), PageNumber(100), Some(1));
        kept.catch_up(&said);
        assert_eq!(kept.take_lifted(), [range(10, 10), range(105, 5)]);
        assert_eq!(kept.take_lifted(), []);
    }

    #[test]
    fn advice_moves_with_its_memory() {
        let mut kept = kept(&[range(10, 10), range(100, 50)]);
        take_along(&mut kept.pages, range(15, 10), PageNumber(120));
        // What was at the target is gone; the old place stays until its unmapping.
        assert_eq!(all(&kept), [range(10, 10), range(100, 25), range(130, 20)]);
    }
}
