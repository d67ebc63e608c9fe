//! The memory that calls are about, cut wherever a call begins or ends, and what was asked of it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::calls::Call;
use super::{Event, Witness};
use crate::units::{PageNumber, PageRange};

/// Pages of which every call touches all or none.
pub(super) struct Part {
    pub range: PageRange,
    /// Calls that leave nothing here.
    pub takers: Vec<usize>,
    /// Calls that bring memory here.
    pub bringers: Vec<usize>,
}

/// All that a component of calls touches.
pub(super) struct Ground {
    /// What happens in one of these has nothing to do with another: there is memory between them that nobody touches.
    pub blocks: Vec<PageRange>,
    /// In order.
    pub parts: Vec<Part>,
}

impl Ground {
    /// Of `calls`, and of `others` that are looked at beside them.
    pub fn of(calls: &[Call], others: &[PageRange], came: &[PageRange]) -> Ground {
        let touched = calls.iter().flat_map(|call| [Some(call.from()), call.to()]).flatten();
        let touched: Vec<PageRange> = touched.chain(others.iter().copied()).collect();
        let cuts: BTreeSet<PageNumber> =
            touched.iter().chain(came).flat_map(|range| [range.start, range.end()]).collect();
        let blocks = blocks(touched);
        let cuts: Vec<PageNumber> = cuts.into_iter().collect();
        let between = cuts.windows(2).map(|ends| PageRange { start: ends[0], pages: ends[1].0 - ends[0].0 });
        let parts = between.filter(|range| blocks.iter().any(|block| block.contains(range.start)));
        let part = |range: PageRange| {
            let those =
                |which: &dyn Fn(&Call) -> bool| (0..calls.len()).filter(|&index| which(&calls[index])).collect();
            let takers = those(&|call| call.takes() && call.from().overlaps(range));
            let bringers = those(&|call| call.to().is_some_and(|to| to.overlaps(range)));
            Part { range, takers, bringers }
        };
        Ground { parts: parts.map(part).collect(), blocks }
    }

    /// The parts of `range`.
    pub fn parts_of(&self, range: PageRange) -> &[Part] {
        let first = self.parts.partition_point(|part| part.range.end() <= range.start);
        let end = self.parts.partition_point(|part| part.range.start < range.end());
        &self.parts[first..end.max(first)]
    }

    /// The block that `range` is in.
    pub fn block_of(&self, range: PageRange) -> PageRange {
        let block = self.blocks.iter().find(|block| block.contains(range.start));
        *block.expect("a call touches it")
    }
}

/// All that some range touches, in order.
fn blocks(mut ranges: Vec<PageRange>) -> Vec<PageRange> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut blocks: Vec<PageRange> = Vec::new();
    for range in ranges.into_iter().filter(|range| range.pages > 0) {
        match blocks.last_mut() {
            Some(last) if last.end() >= range.start => last.pages = last.pages.max(range.end().0 - last.start.0),
            _ => blocks.push(range),
        }
    }
    blocks
}

/// What the witness has answered: nothing is asked twice.
pub(super) struct Questions<'a, W> {
    pub witness: &'a W,
    /// What was read, of all components.
    log: &'a [Event],
    /// Whether one thread has made all of it.
    pub by_one_thread: bool,
    known: RefCell<BTreeMap<(u64, u64), bool>>,
    registered: RefCell<BTreeMap<(u64, u64, bool), bool>>,
    is_changing: Cell<bool>,
}

impl<'a, W: Witness> Questions<'a, W> {
    pub fn new(witness: &'a W, log: &'a [Event], by_one_thread: bool) -> Self {
        Questions {
            witness,
            log,
            by_one_thread,
            known: RefCell::default(),
            registered: RefCell::default(),
            is_changing: Cell::new(false),
        }
    }

    /// The program has begun to change its memory again: no answer counts.
    pub fn is_changing(&self) -> bool {
        self.is_changing.get()
    }

    /// The answer; no, if there is none.
    pub fn or_changing(&self, answer: Option<bool>) -> bool {
        answer.unwrap_or_else(|| {
            self.is_changing.set(true);
            false
        })
    }

    /// Whether the books know anything of a page of `range`.
    pub fn knows_any(&self, range: PageRange) -> bool {
        let ask = || self.witness.knows_any(range);
        *self.known.borrow_mut().entry((range.start.0, range.pages)).or_insert_with(ask)
    }

    /// Whether all of `range` is registered, in one mapping or several; or all of it that the books know anything of.
    pub fn is_registered(&self, range: PageRange, only_known: bool) -> bool {
        let key = (range.start.0, range.pages, only_known);
        if let Some(&answer) = self.registered.borrow().get(&key) {
            return answer;
        }
        let answer = self.ask(range, only_known).unwrap_or_else(|| {
            self.is_changing.set(true);
            true
        });
        self.registered.borrow_mut().insert(key, answer);
        answer
    }

    fn ask(&self, range: PageRange, only_known: bool) -> Option<bool> {
        let mut parts = vec![range];
        while let Some(part) = parts.pop() {
            if only_known && !self.knows_any(part) || self.witness.is_registered(part)? {
                continue;
            }
            if part.pages == 1 {
                return Some(false);
            }
            parts.extend(part.halves());
        }
        Some(true)
    }

    /// Whether a mapping that ended just before `start` may have grown: it is registered still, unless a call took it.
    pub fn may_grow_to(&self, start: PageNumber) -> bool {
        self.may_have_grown_to(start, self.log)
    }

    /// The same after `call`, which one thread has made that has made all others, too.
    pub fn may_grow_after(&self, call: &Call) -> bool {
        self.may_have_grown_to(call.from().start, &self.log[call.last + 1..])
    }

    /// As only calls that `log` reports on can have taken it.
    fn may_have_grown_to(&self, start: PageNumber, log: &[Event]) -> bool {
        let Some(before) = start.0.checked_sub(1).map(PageNumber) else { return false };
        let touches = |event: &Event| match *event {
            Event::Remapped { from, to, .. } => from.contains(before) || from.moved_to(to).contains(before),
            other => other.range().contains(before),
        };
        log.iter().any(touches) || self.is_registered(before.alone(), false)
    }
}
