//! Which changes of the mappings by other threads are in a forked child, and which came after it.
//!
//! fork(2) copies the mappings at one moment, the *cut*. The child's notes end about there: what was read by then is in it.
//! What the parent read later may have been done before the cut, its report unread, or after it. The parent reads on until
//! nothing is being changed and passes on all changes in the order in which memory changed; so what is in the child is a
//! first part of that list, of those that have to do with each other. Which part, the child's own mappings tell:
//!
//! - **Content is mapped.** Where a part of the list leaves content that the books knew, the child has a mapping, or it is
//!   not that part; unless the program has kept that memory from its children.
//! - **Gone is not mapped.** What a part of the list takes away is not mapped in the child. Where it is, something else was mapped there
//!   within the same moment, or the child lacks only some of what was moved there, because the mark that keeps adopted memory from forks was
//!   lifted by the books, which did not know of the move: nothing tells which.
//! - **Blocked.** A thread sleeps until its report is read. So each thread has at most one call that is in the child and was
//!   not read before the cut; what is done with memory that such a call has moved (which nobody else knows of before it
//!   returns, **Owned** in `event_order`) came after the cut. Not so if a handler was just reading: what it read may have
//!   returned before the cut without being noted.
//! - **Left behind.** MREMAP_DONTUNMAP leaves the place mapped that it moves memory from. Whether such a move is in the child, only
//!   its target tells; and if that is not mapped there, nothing does.
//! - **Announced.** A discarding is reported before it takes effect, and so is not in the child if it was not read.
//!
//! An unmapping of memory that is mapped in the child came after the cut, or something else was mapped there within the
//! same moment: nothing tells. What is swapped out of it is *doubtful*: an access must be refused, in either case it was
//! memory that another thread was giving up. Where several parts of the list fit, and swapped content is at stake, the child
//! must not go on.

use alloc::vec::Vec;

use crate::event_order::Event;
use crate::ranges::RangeSet;
use crate::units::{PageNumber, PageRange};

/// A change, in the order in which memory changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// What was done.
    pub event: Event,
    /// It was noted before the cut.
    pub is_known: bool,
}

/// The child, before any of the changes is in its books.
pub trait Child {
    /// Whether all of `range` is mapped as memory of the program's own.
    fn is_mapped(&self, range: PageRange) -> bool;
    /// Whether any of `range` is.
    fn is_mapped_in_part(&self, range: PageRange) -> bool;
    /// The parts of `range` that its books have, but for what the program has kept from it: that is not mapped here, whatever the
    /// changes.
    fn adopted(&self, range: PageRange) -> Vec<PageRange>;
    /// Whether anything of `range` is swapped out.
    fn has_swapped(&self, range: PageRange) -> bool;
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// In the child, in this order.
    pub done: Vec<Event>,
    /// What is swapped out there may be what was there, or nothing.
    pub doubtful: Vec<PageRange>,
    /// What the books call resident there may be gone, and is zeros then.
    pub loose: Vec<PageRange>,
}

/// Cannot be told what is at this page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unclear(pub PageNumber);

/// Changes that have to do with each other, at most: each is tried as the last one.
const RELATED_MAX: usize = 512;

/// Marks those of `changes` that are known: as many of each kind, the first ones, as there are in `known`.
pub fn mark_known(events: impl Iterator<Item = Event>, mut known: Vec<Event>) -> Vec<Change> {
    events
        .map(|event| {
            let at = known.iter().position(|&other| is_same(other, event));
            let is_known = at.is_some();
            at.into_iter().for_each(|at| {
                known.swap_remove(at);
            });
            Change { event, is_known }
        })
        .collect()
}

fn is_same(read: Event, applied: Event) -> bool {
    match (read, applied) {
        (Event::Remapped { from, to, .. }, Event::Remapped { from: other, to: there, .. }) => {
            (from, to) == (other, there)
        }
        _ => read == applied,
    }
}

/// Tells what is in the child. `was_reading`: a handler was between reading and noting at the cut.
pub fn cut(changes: &[Change], was_reading: bool, child: &impl Child) -> Result<Cut, Unclear> {
    let mut cut = Cut::default();
    // What the parent has concluded costs nothing where it is not so, and concerns pages that are there.
    let (concluded, changes): (Vec<Change>, Vec<Change>) =
        changes.iter().partition(|change| matches!(change.event, Event::Uncopied(_)));
    for related in related(&changes) {
        if related.iter().all(|change| change.is_known) {
            cut.done.extend(related.iter().map(|change| change.event));
            continue;
        }
        let unknown = related.iter().filter(|change| !change.is_known);
        cut.loose.extend(unknown.flat_map(|change| touched(change.event)).flatten());
        if related.iter().any(|change| matches!(change.event, Event::Remapped { .. })) {
            cut_moves(&related, was_reading, child, &mut cut)?;
        } else {
            cut_losses(&related, was_reading, child, &mut cut);
        }
    }
    if !concluded.is_empty() {
        let all = concluded.iter().chain(&changes).flat_map(|change| touched(change.event)).flatten();
        cut.done.extend(all.map(Event::Uncopied));
    }
    Ok(cut)
}

/// Nothing was moved: in any order the same is gone.
fn cut_losses(related: &[Change], was_reading: bool, child: &impl Child, cut: &mut Cut) {
    for change in related {
        match change.event {
            event if change.is_known => cut.done.push(event),
            Event::Removed(_) if !was_reading => {}
            // What is not mapped any more is forgotten anyway.
            Event::Removed(range) | Event::Unmapped(range) if child.has_swapped(range) => cut.doubtful.push(range),
            _ => {}
        }
    }
}

fn cut_moves(related: &[Change], was_reading: bool, child: &impl Child, cut: &mut Cut) -> Result<(), Unclear> {
    let places = || related.iter().flat_map(|change| touched(change.event)).flatten();
    let first = related.iter().rposition(|change| change.is_known).map_or(0, |last| last + 1);
    let at_stake = places().find(|&place| child.has_swapped(place));
    let limit = if was_reading { related.len() } else { first_after_return(related) };
    let is_done = |change: &Change| change.is_known || !matches!(change.event, Event::Removed(_));
    let Some(at_stake) = at_stake else {
        cut.done.extend(related[..first].iter().filter(|change| is_done(change)).map(|change| change.event));
        return Ok(());
    };
    let unclear = Err(Unclear(at_stake.start));
    let may_be_discarded = was_reading && related.iter().any(|change| !is_done(change));
    if may_be_discarded || limit.saturating_sub(first) > RELATED_MAX {
        return unclear;
    }
    let mut adopted = RangeSet::default();
    places().flat_map(|place| child.adopted(place)).for_each(|part| adopted.insert(part));
    let mut content = Content::of(&adopted);
    related[..first].iter().for_each(|change| drop(content.apply(change.event)));
    // What the changes that were not read before the cut took away, and where from.
    let mut gone: Vec<(PageRange, PageNumber)> = Vec::new();
    let mut fitting: Option<(usize, Content)> = content.fits(child).then(|| (first, content.clone()));
    for (index, change) in related.iter().enumerate().take(limit).skip(first) {
        gone.extend(content.apply(change.event));
        if !content.fits(child) {
            continue;
        }
        match &fitting {
            None if content.lacks_what_is_mapped(&gone, child) => return unclear,
            None => fitting = Some((index + 1, content.clone())),
            Some((_, before)) if before.is_same(&content) => {}
            Some(_) => return unclear,
        }
    }
    let Some((end, _)) = fitting else { return unclear };
    if related[end..limit.max(end)].iter().any(|change| may_be_kept_from(child, change.event)) {
        return unclear;
    }
    cut.done.extend(related[..end].iter().filter(|change| is_done(change)).map(|change| change.event));
    Ok(())
}

/// Whether a move that seems to be none of the child's may be one all the same. What MREMAP_DONTUNMAP leaves behind is mapped before it
/// and after it; and if memory was moved before the mark was lifted that keeps it from forks, it is not mapped where it went.
fn may_be_kept_from(child: &impl Child, event: Event) -> bool {
    let Event::Remapped { from, to, may_stay: true } = event else { return false };
    child.has_swapped(from) && !child.is_mapped(from.moved_to(to))
}

/// The first change that was not read before the cut and touches what another such one has moved.
fn first_after_return(related: &[Change]) -> usize {
    let mut moved: Vec<PageRange> = Vec::new();
    for (index, change) in related.iter().enumerate().filter(|(_, change)| !change.is_known) {
        if touched(change.event).into_iter().flatten().any(|place| moved.iter().any(|to| to.overlaps(place))) {
            return index;
        }
        if let Event::Remapped { from, to, .. } = change.event {
            moved.push(from.moved_to(to));
        }
    }
    related.len()
}

/// The places that an event is about.
fn touched(event: Event) -> [Option<PageRange>; 2] {
    match event {
        Event::Remapped { from, to, .. } => [Some(from), Some(from.moved_to(to))],
        other => [Some(other.range()), None],
    }
}

/// Changes that touch nothing in common, apart, also by way of others; each part in order.
fn related(changes: &[Change]) -> Vec<Vec<Change>> {
    let mut parts: Vec<(RangeSet, Vec<(usize, Change)>)> = Vec::new();
    for (index, &change) in changes.iter().enumerate() {
        let (mut places, mut all) = (RangeSet::default(), alloc::vec![(index, change)]);
        touched(change.event).into_iter().flatten().for_each(|place| places.insert(place));
        let is_met = |part: &RangeSet| touched(change.event).into_iter().flatten().any(|place| meets(part, place));
        parts.retain_mut(|(other, others)| {
            let is_met = is_met(other);
            if is_met {
                ranges(other).for_each(|range| places.insert(range));
                all.append(others);
            }
            !is_met
        });
        all.sort_unstable_by_key(|&(index, _)| index);
        parts.push((places, all));
    }
    parts.into_iter().map(|(_, part)| part.into_iter().map(|(_, change)| change).collect()).collect()
}

fn meets(set: &RangeSet, range: PageRange) -> bool {
    set.next(range.start).is_some_and(|next| next.start < range.end())
}

fn ranges(set: &RangeSet) -> impl Iterator<Item = PageRange> + '_ {
    let mut from = PageNumber(0);
    core::iter::from_fn(move || {
        let next = set.next(from)?;
        from = next.end();
        Some(next)
    })
}

/// Where the content is that the books knew, and where it was.
#[derive(Clone, Debug)]
struct Content(Vec<(PageRange, PageNumber)>);

impl Content {
    fn of(adopted: &RangeSet) -> Content {
        Content(ranges(adopted).map(|range| (range, range.start)).collect())
    }

    /// Returns what is not where it was any more, with its origin.
    fn apply(&mut self, event: Event) -> Vec<(PageRange, PageNumber)> {
        match event {
            // Whether content or zeros: it is mapped.
            Event::Removed(_) | Event::Uncopied(_) => Vec::new(),
            Event::Unmapped(range) => self.take(range),
            Event::Remapped { from, to, may_stay } => {
                let moved = self.take(from);
                self.take(from.moved_to(to));
                let at = |range: PageRange| range.moved_to(PageNumber(range.start.0 - from.start.0 + to.0));
                self.0.extend(moved.iter().map(|&(range, origin)| (at(range), origin)));
                if may_stay { Vec::new() } else { moved }
            }
        }
    }

    /// Whether the child has mapped, and this knows nothing of, a place that something swapped out is `gone` from.
    fn lacks_what_is_mapped(&self, gone: &[(PageRange, PageNumber)], child: &impl Child) -> bool {
        let mut here = RangeSet::default();
        self.0.iter().for_each(|&(place, _)| here.insert(place));
        gone.iter()
            .filter(|(place, origin)| child.has_swapped(place.moved_to(*origin)))
            .any(|&(place, _)| here.outside(place).any(|lacking| child.is_mapped_in_part(lacking)))
    }

    fn take(&mut self, range: PageRange) -> Vec<(PageRange, PageNumber)> {
        let mut taken = Vec::new();
        let mut left = Vec::with_capacity(self.0.len());
        for &(place, origin) in &self.0 {
            let part = |from: PageNumber, to: PageNumber| {
                let part = PageRange { start: from, pages: to.0.saturating_sub(from.0) };
                (part, PageNumber(origin.0 + (from.0 - place.start.0)))
            };
            let both = place.intersection(range);
            if both.pages == 0 {
                left.push((place, origin));
                continue;
            }
            taken.push(part(both.start, both.end()));
            left.extend(
                [part(place.start, both.start), part(both.end(), place.end())].iter().filter(|it| it.0.pages > 0),
            );
        }
        self.0 = left;
        taken
    }

    fn fits(&self, child: &impl Child) -> bool {
        self.0.iter().all(|&(place, _)| child.is_mapped(place))
    }

    fn is_same(&self, other: &Content) -> bool {
        self.joined() == other.joined()
    }

    fn joined(&self) -> Vec<(PageRange, PageNumber)> {
        let mut all = self.0.clone();
        all.sort_unstable_by_key(|(place, _)| place.start);
        let mut joined: Vec<(PageRange, PageNumber)> = Vec::with_capacity(all.len());
        for (place, origin) in all {
            match joined.last_mut() {
                Some((last, from)) if last.end() == place.start && from.0 + last.pages == origin.0 => {
                    last.pages += place.pages;
                }
                _ => joined.push((place, origin)),
            }
        }
        joined
    }
}

#[cfg(test)]
mod tests;
