//! Which calls happened before which, whatever else there was.
//!
//! Lemmas 0, 3 and 4, and, where the kernel may be asked, what follows of others:
//!
//! - Of Lemma 7: *where a mremap has brought memory, and some of it is not registered, a call has taken that since.* If only
//!   one can have, that one came later.
//! - Of Lemma 6: *a mremap or a discarding came before what unmaps the place of it, if nothing can have come there after that.*
//!   What comes is brought, or adopted, or has grown: then over all from where that unmapping began, and it is there still,
//!   registered, where no call took it.

use alloc::vec::Vec;

use super::calls::Call;
use super::search::Search;
use super::{Event, Rule, Witness};
use crate::units::{PageNumber, PageRange};

/// Calls of which it is worth knowing what follows from what.
const CLOSED_MAX: usize = 256;

/// For each two calls, whether the first happened before the second for certain.
#[derive(Default)]
pub(super) struct Precedence(Vec<Vec<bool>>);

impl Precedence {
    pub fn is_before(&self, earlier: usize, later: usize) -> bool {
        self.0[earlier][later]
    }

    /// What was before one that was before another was before that. Of very many calls it is not asked what follows: that takes
    /// long, and the program waits. The less is known, the more orders are looked at.
    fn close(&mut self) {
        if self.0.len() > CLOSED_MAX {
            return;
        }
        for middle in 0..self.0.len() {
            let later = self.0[middle].clone();
            for row in self.0.iter_mut().filter(|row| row[middle]) {
                row.iter_mut().zip(&later).for_each(|(is_before, &is_later)| *is_before |= is_later);
            }
        }
    }

    fn add(&mut self, found: Vec<(usize, usize)>) -> bool {
        let is_more = !found.is_empty();
        found.into_iter().for_each(|(earlier, later)| self.0[earlier][later] = true);
        if is_more {
            self.close();
        }
        is_more
    }
}

impl<W: Witness> Search<'_, W> {
    /// All that is known before the search.
    pub fn precedence(&self) -> Precedence {
        let count = self.calls.len();
        if self.questions.by_one_thread {
            return Precedence((0..count).map(|earlier| (0..count).map(|later| earlier < later).collect()).collect());
        }
        let row = |earlier: usize| {
            let is_before = |later| {
                earlier != later && self.rules.is_owned && self.was_before(&self.calls[earlier], &self.calls[later])
            };
            (0..count).map(is_before).collect()
        };
        let mut known = Precedence((0..count).map(row).collect());
        known.close();
        while self.asks && (known.add(self.before_their_end(&known)) | known.add(self.before_what_unmaps(&known))) {}
        known
    }

    /// Lemmas 3 and 4.
    fn was_before(&self, earlier: &Call, later: &Call) -> bool {
        let is_discarding = |call: &Call| matches!(call.event, Event::Removed(_));
        let reaches = later.to().is_some_and(|to| earlier.touches(to));
        if is_discarding(earlier) {
            return self.rules.obey(Rule::DiscardLast) && reaches && earlier.read < later.read;
        }
        if is_discarding(later) {
            let is_moved = earlier.to().is_some() && earlier.meets(later);
            return self.rules.obey(Rule::DiscardLast) && is_moved && earlier.read < later.read;
        }
        self.rules.obey(Rule::BeforeReturn) && reaches && earlier.read < later.last
    }

    /// Of Lemma 7: mremaps, each before the one call that can have taken what it brought.
    fn before_their_end(&self, known: &Precedence) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        if !self.rules.obey(Rule::Registered) {
            return found;
        }
        for part in self.ground.parts.iter().filter(|part| !part.bringers.is_empty()) {
            if self.questions.is_registered(part.range, false) {
                continue;
            }
            for &bringer in &part.bringers {
                let mut later = part.takers.iter().filter(|&&taker| !known.is_before(taker, bringer));
                if let (Some(&taker), None) = (later.next(), later.next())
                    && !known.is_before(bringer, taker)
                {
                    found.push((bringer, taker));
                }
            }
        }
        found
    }

    /// Of Lemma 6: mremaps and discardings, each before what unmaps its place.
    fn before_what_unmaps(&self, known: &Precedence) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for (index, call) in self.calls.iter().enumerate().filter(|(_, call)| self.finds_all(call)) {
            let takers = self.ground.parts_of(call.from()).iter().flat_map(|part| &part.takers);
            for &taker in takers {
                let is_open = taker != index && !known.is_before(index, taker) && !known.is_before(taker, index);
                if is_open && !found.contains(&(index, taker)) && !self.may_follow(index, taker, known) {
                    found.push((index, taker));
                }
            }
        }
        found
    }

    /// Whether memory may have come to where `call` found it after `taker` had taken that.
    fn may_follow(&self, call: usize, taker: usize, known: &Precedence) -> bool {
        let freed = self.calls[taker].from();
        let first = freed.intersection(self.calls[call].from()).start;
        let way = PageRange { start: freed.start, pages: first.0 + 1 - freed.start.0 };
        let brings = |&index: &usize| {
            let is_later = index == call || known.is_before(call, index);
            !is_later && self.calls[index].to().is_some_and(|to| to.overlaps(way))
        };
        if (0..self.calls.len()).any(|index| brings(&index)) {
            return true;
        }
        let has_come = self.came.iter().any(|came| came.overlaps(way));
        if has_come && self.rules.obey(Rule::Came) {
            return true;
        }
        self.rules.obey(Rule::Grown) && self.may_have_grown(way, first, taker, known)
    }

    /// Whether memory may have grown along `way`, to `first`, after `taker` had taken what was there.
    fn may_have_grown(&self, way: PageRange, first: PageNumber, taker: usize, known: &Precedence) -> bool {
        if way.start == self.ground.block_of(way).start && !self.questions.may_grow_to(way.start) {
            return false;
        }
        let before = PageRange { start: way.start, pages: first.0 - way.start.0 };
        let is_left = |range: PageRange, takers: &[usize]| {
            let is_taken = takers.iter().any(|&other| other != taker && !known.is_before(other, taker));
            !is_taken && !self.questions.is_registered(range, false)
        };
        !self.rules.obey(Rule::Registered)
            || !self.ground.parts_of(before).iter().any(|part| is_left(part.range, &part.takers))
    }
}
