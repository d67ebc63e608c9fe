//! From reports to calls, and which of them have to do with each other.

use alloc::vec::Vec;

use super::Event;
use crate::units::PageRange;

/// Ends that may be none, at most, among calls that have to do with each other.
const DOUBTFUL_ENDS: usize = 5;

/// A call, by its reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call {
    /// Its first report.
    pub event: Event,
    /// When that was read.
    pub read: usize,
    /// When its last report was read, at the earliest: then it returned.
    pub last: usize,
    /// When it was reported a second time, as an unmapping of where it moved memory from.
    pub end: Option<usize>,
}

impl Call {
    /// Where it takes memory or content from.
    pub fn from(&self) -> PageRange {
        self.event.range()
    }

    /// Where it brings memory to.
    pub fn to(&self) -> Option<PageRange> {
        match self.event {
            Event::Remapped { from, to, .. } => Some(from.moved_to(to)),
            _ => None,
        }
    }

    /// Whether it leaves nothing where it takes memory from.
    pub fn takes(&self) -> bool {
        match self.event {
            Event::Removed(_) => false,
            Event::Remapped { .. } => self.end.is_some(),
            Event::Unmapped(_) | Event::Uncopied(_) => true,
        }
    }

    /// Whether what was taken for its end may be another call's, as it has none.
    pub fn has_doubtful_end(&self) -> bool {
        self.end.is_some() && matches!(self.event, Event::Remapped { may_stay: true, .. })
    }

    /// Whether it touches a page of `range`.
    pub fn touches(&self, range: PageRange) -> bool {
        self.from().overlaps(range) || self.to().is_some_and(|to| to.overlaps(range))
    }

    /// Whether both touch a page.
    pub fn meets(&self, other: &Call) -> bool {
        self.touches(other.from()) || other.to().is_some_and(|to| self.touches(to))
    }

    /// What is applied for it.
    pub fn append_to(&self, events: &mut Vec<Event>) {
        events.push(self.event);
        if self.end.is_some() {
            events.push(Event::Unmapped(self.from()));
        }
    }
}

/// The calls whose reports were read. Each mremap has the first unmapping of its old place behind it for its end, if no
/// other has it: which of several alike is whose does not matter, but for when it returned, and the earliest moment allows
/// most. One that must have an end comes before those that may have none.
pub(super) fn of(log: &[Event], has_ends: bool) -> Vec<Call> {
    let mut calls: Vec<Option<Call>> =
        log.iter().enumerate().map(|(read, &event)| Some(Call { event, read, last: read, end: None })).collect();
    let mut moves: Vec<(bool, usize, PageRange)> = Vec::new();
    for (read, &event) in log.iter().enumerate() {
        if let (Event::Remapped { from, may_stay, .. }, true) = (event, has_ends) {
            moves.push((may_stay, read, from));
        }
    }
    moves.sort_unstable_by_key(|&(may_stay, read, _)| (may_stay, read));
    for (_, read, from) in moves {
        let is_end = |&index: &usize| log[index] == Event::Unmapped(from);
        let last = (read + 1..log.len()).find(is_end);
        let own = (read + 1..log.len()).filter(is_end).find(|&index| calls[index].is_some());
        own.inspect(|&own| calls[own] = None);
        if let Some(call) = &mut calls[read] {
            // One without an end has returned when it was read.
            (call.end, call.last) = (own, own.and(last).unwrap_or(read));
        }
    }
    calls.into_iter().flatten().collect()
}

/// The same of one thread: a mremap's end is what it reports next.
pub(super) fn of_one_thread(log: &[Event], has_ends: bool) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::with_capacity(log.len());
    for (read, &event) in log.iter().enumerate() {
        if has_ends
            && let Some(call) = calls.last_mut()
            && let Event::Remapped { from, to, .. } = call.event
            && (event, read) == (Event::Unmapped(from), call.read + 1)
        {
            // Or it is a call of its own, which comes to the same.
            call.event = Event::Remapped { from, to, may_stay: false };
            (call.end, call.last) = (Some(read), read);
        } else {
            calls.push(Call { event, read, last: read, end: None });
        }
    }
    calls
}

/// As [`of`] has them, and each mremap that may have left its old place mapped as one that did, with what was taken for its end
/// on its own; and all mixtures. `None` if there are too many.
pub(super) fn with_and_without_ends(calls: &[Call]) -> Option<Vec<Vec<Call>>> {
    let with_end: Vec<usize> = (0..calls.len()).filter(|&index| calls[index].has_doubtful_end()).collect();
    (with_end.len() <= DOUBTFUL_ENDS).then(|| {
        let mixtures = 0..1u32 << with_end.len();
        let mixture = |chosen: u32| {
            let mut mixed = calls.to_vec();
            for (bit, &index) in with_end.iter().enumerate().filter(|(bit, _)| chosen >> bit & 1 != 0) {
                let _ = bit;
                let call = &mut mixed[index];
                let (read, range) = (call.end.take().expect("it has one"), call.from());
                call.last = call.read;
                mixed.push(Call { event: Event::Unmapped(range), read, last: read, end: None });
            }
            mixed.sort_unstable_by_key(|call| call.read);
            mixed
        };
        mixtures.map(mixture).collect()
    })
}

/// Calls that touch nothing in common, apart, also by way of others; each part as it was read.
pub(super) fn components(calls: Vec<Call>) -> Vec<Vec<Call>> {
    let mut parts: Vec<Vec<Call>> = Vec::new();
    for call in calls {
        let (met, mut rest): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| part.iter().any(|other| other.meets(&call)));
        let mut merged: Vec<Call> = met.into_iter().flatten().collect();
        merged.push(call);
        merged.sort_unstable_by_key(|call| call.read);
        rest.push(merged);
        parts = rest;
    }
    parts
}
