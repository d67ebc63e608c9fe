//! Adoption: which of the program's memory is managed.
//!
//! Private, anonymous, readable and writable mappings of which something is populated are adopted as a whole, when the
//! budget becomes scarce; until then first touches stay the kernel's. What belongs to the engine is clipped out by
//! address, because mappings merge. Adoption is books first, registration second, so that every fault of registered
//! memory is known; then the populated pages are looked up, and the books know them as resident.

pub(crate) mod kept_from_forks;
mod newborn;
mod registering;
mod verify;

use std::collections::VecDeque;
use std::io;
use std::iter::Peekable;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::scan_reach::ScanReach;
use uswap_core::{LEAF_PAGES, PAGE_SIZE, PageNumber, PageRange, tuning};
use uswap_sys::{maps, private_memory};
use uswap_system::looks::{Mappings, PopulatedRange, Residency, Vma};

use self::kept_from_forks::FromForks;
use crate::adoption_pace::AdoptionPace;
use crate::engine::Engine;
use crate::fork_advice::Kept;
use crate::host::Host;
use crate::smaps::{self, Mapping};

/// Addresses that are looked up at a time, at least.
const STEP: usize = 8 * LEAF_PAGES * PAGE_SIZE;
/// Populated ranges that one step can return.
const RANGES: usize = 256;

/// Walks over the program's memory and adopts it.
pub(crate) struct Adopter<H: Host> {
    /// The text of /proc/self/maps, whenever it is read.
    pub maps: Vec<u8>,
    /// The mappings that may be adopted, in a walk.
    candidates: Vec<(usize, usize)>,
    populated: Box<[PopulatedRange; RANGES]>,
    fresh: Fresh,
    unlooked: Unlooked,
    /// Mappings that were found adopted, or became so, in the last walk.
    adopted: usize,
    /// Memory that the program itself keeps from its children.
    pub kept: Kept,
    /// How often it looks at what is new.
    pub pace: AdoptionPace,
    /// What the kernel said about it when this walk first asked.
    mappings: Option<Vec<Mapping>>,
    /// Asks for single mappings in this walk, if it has asked for one.
    query: Option<Option<H::Mappings>>,
}

/// What was adopted and whose populated pages are to be looked up.
struct Unlooked {
    ranges: VecDeque<(usize, usize)>,
    /// In how large steps.
    reach: ScanReach,
}

/// What was adopted and is to be checked against the maps again.
struct Fresh {
    /// First bytes, and one past the last.
    ranges: Vec<(usize, usize)>,
    /// Moves that the books had seen when the first of them was adopted, or earlier.
    moves: u64,
}

/// Whether a walk also looks at memory that is adopted already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Only at what is new.
    New,
    /// At everything: pages that were discarded lazily and used again are unknown to the books.
    All,
    /// At what is new, and at what lies beside adopted memory even if nothing of it has been touched: both may be one mapping.
    Beside,
}

fn is_adoptable(vma: &Vma<'_>) -> bool {
    vma.is_anonymous_private() && vma.read && vma.write && !vma.is_main_stack() && !vma.is_special()
}

impl<H: Host> Adopter<H> {
    pub fn new() -> Self {
        Self {
            maps: Vec::with_capacity(64 << 10),
            candidates: Vec::with_capacity(1024),
            populated: Box::new([PopulatedRange::default(); RANGES]),
            fresh: Fresh { ranges: Vec::with_capacity(1024), moves: 0 },
            unlooked: Unlooked { ranges: VecDeque::with_capacity(1024), reach: ScanReach::default() },
            adopted: 0,
            pace: AdoptionPace::new(H::now()),
            kept: Kept::default(),
            mappings: None,
            query: None,
        }
    }

    /// Adopts every mapping in which the program has touched something; with `chase`, also what has grown at its end
    /// meanwhile. Returns how many pages are new, touched or not.
    pub fn adopt_more(&mut self, engine: &Engine<H>, look: Look, chase: bool) -> io::Result<u64> {
        H::Mappings::read_maps(&mut self.maps)?;
        self.mappings = None;
        self.adopted = 0;
        if self.fresh.ranges.is_empty() {
            self.fresh.moves = engine.core().moves();
        }
        let found = self.adopt_listed(engine, look, chase);
        // Also what was adopted before a look failed.
        self.verify_fresh(engine).and(found)
    }

    /// Adopts what it may of the mappings that were read; as [`adopt_more`](Self::adopt_more).
    fn adopt_listed(&mut self, engine: &Engine<H>, look: Look, chase: bool) -> io::Result<u64> {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.extend(maps::vmas(&self.maps).filter(is_adoptable).map(|vma| (vma.start, vma.end)));
        if candidates.len() > tuning::FRESH_MAX {
            // Not all of them can be had, or not at once: the largest first.
            candidates.sort_unstable_by_key(|&(start, end)| std::cmp::Reverse(end - start));
        }
        let mut found = 0;
        for (mut at, end_of_mapping) in candidates.drain(..) {
            if self.fresh.ranges.len() >= tuning::FRESH_MAX {
                break;
            }
            while let Some((start, end)) =
                (at < end_of_mapping).then(|| private_memory::next_gap(at, end_of_mapping)).flatten()
            {
                found += self.adopt_mapping(engine, start, end, look)?;
                at = end;
            }
        }
        self.candidates = candidates;
        if chase {
            found += self.chase(engine)?;
        }
        Ok(found)
    }

    /// A heap grows by pieces that a fast program fills in less time than it takes to read the maps: the new ends of what
    /// was just adopted are followed until the program works in memory that is registered, where it waits for room.
    fn chase(&mut self, engine: &Engine<H>) -> io::Result<u64> {
        let mut found = 0;
        for index in 0..self.fresh.ranges.len() {
            let mut at = self.fresh.ranges[index].1;
            for _ in 0..tuning::CHASE_STEPS {
                let Some((start, end)) = self.query().and_then(|query| adoptable_part(query, at)) else { break };
                if start != at {
                    break;
                }
                let new = self.adopt_mapping(engine, start, end, Look::New)?;
                if new == 0 {
                    break;
                }
                found += new;
                at = end;
            }
        }
        Ok(found)
    }

    /// Whether the populated pages of all memory that was adopted have been looked up.
    pub fn has_looked_everywhere(&self) -> bool {
        self.unlooked.ranges.is_empty()
    }

    /// Looks up the populated pages of some memory that was adopted; `None` when there is no such memory. Registered
    /// first, looked at second: while this takes its time, what the program fills next is held back already.
    pub fn look_up(&mut self, engine: &Engine<H>) -> io::Result<Option<u64>> {
        // Before any of it can leave; mostly nothing is left to be verified.
        self.verify_fresh(engine)?;
        let Some((start, end)) = self.unlooked.ranges.pop_front() else { return Ok(None) };
        let (mut at, mut found) = (start, 0);
        let mut refused = None;
        self.unlooked.reach.begins();
        while at < end.min(start.saturating_add(STEP)) && refused.is_none() {
            match self.note_some(false, engine, at, end) {
                Ok((new, next)) => (at, found) = (next, found + new),
                Err(error) => refused = Some(error),
            }
        }
        if at < end {
            self.unlooked.ranges.push_front((at, end));
        }
        refused.map_or(Ok(Some(found)), Err)
    }

    /// Adopts `start..end` as a whole: a mapping of which only a part were registered would be two, and mremap refuses
    /// those.
    fn adopt_mapping(&mut self, engine: &Engine<H>, start: usize, end: usize, look: Look) -> io::Result<u64> {
        let range = PageRange::of_bytes(start, end);
        let new = range.pages - engine.core().pages().adopted_in(range);
        if new == 0 {
            self.adopted += 1;
            // What is in a hole of what this walk has adopted may not be registered yet.
            let is_verified =
                !self.fresh.ranges.iter().any(|&fresh| PageRange::of_bytes(fresh.0, fresh.1).overlaps(range));
            return if look == Look::All && is_verified { self.note_present(false, engine, start, end) } else { Ok(0) };
        }
        let is_known = new < range.pages;
        let may_be_cut = look == Look::Beside && is_beside_adopted(engine, range);
        if !is_known && !may_be_cut && !engine.memory.pagemap.has_populated(start, end)? {
            return Ok(0);
        }
        if self.adopted >= tuning::ADOPTED_MAX {
            return Ok(0);
        }
        let Some((start, end)) = self.as_it_is_now(start, end) else { return Ok(0) };
        if !self.register_whole(engine, start, end)? {
            return Ok(0);
        }
        self.adopted += 1;
        Ok(new)
    }

    /// Adopts a mapping. `false` when the kernel refuses.
    fn register_whole(&mut self, engine: &Engine<H>, start: usize, end: usize) -> io::Result<bool> {
        let before = self.neighbours(start, end);
        if !self.register(engine, start, end)? {
            return Ok(false);
        }
        for (before, after) in before.into_iter().zip(self.neighbours(start, end)) {
            // A mapping that was made meanwhile has been cut. What is still untouched grows together again, later it may
            // not.
            if let Some((start, end)) = after.filter(|_| after != before) {
                self.register(engine, start, end)?;
            }
        }
        Ok(true)
    }

    /// Adopts `start..end`, to be verified and looked up. `false` when the kernel refuses.
    fn register(&mut self, engine: &Engine<H>, start: usize, end: usize) -> io::Result<bool> {
        self.learn_what_is_kept(engine, PageRange::of_bytes(start, end))?;
        let moves = engine.core().moves();
        let registered = engine.register(start, end);
        if registered {
            self.keep_from_forks(engine, PageRange::of_bytes(start, end), moves);
            self.fresh.ranges.push((start, end));
            self.unlooked.ranges.push_back((start, end));
        }
        Ok(registered)
    }

    /// Adopted memory goes to no child of a fork that goes round the hooks. It has been adopted since the books had seen so many `moves`.
    fn keep_from_forks(&mut self, engine: &Engine<H>, range: PageRange, moves: u64) {
        let outcome = engine.keep_adopted_from_forks(range, &self.kept, tuning::ADOPT_PAUSES);
        if outcome != FromForks::Kept || engine.core().moves() != moves {
            self.kept.look_again(range);
        }
    }

    /// What may be adopted and lies right before and right after `start..end`.
    fn neighbours(&mut self, start: usize, end: usize) -> [Option<(usize, usize)>; 2] {
        let Some(query) = self.query() else { return [None; 2] };
        [
            adoptable_part(query, start.saturating_sub(PAGE_SIZE)).filter(|part| part.1 == start),
            adoptable_part(query, end).filter(|part| part.0 == end),
        ]
    }

    /// The maps were read a while ago: another mapping, and a longer one, may be there by now.
    fn as_it_is_now(&mut self, start: usize, end: usize) -> Option<(usize, usize)> {
        match self.query() {
            Some(query) => adoptable_part(query, start),
            None => Some((start, end)),
        }
    }

    /// To ask for single mappings in this walk; `None` before Linux 6.11, and where one descriptor more is one too many.
    fn query(&mut self) -> Option<&mut H::Mappings> {
        self.query.get_or_insert_with(|| H::Mappings::open().ok()).as_mut()
    }

    /// Memory that is not adopted carries the program's own advice: it is asked for before it is covered by the
    /// engine's.
    fn learn_what_is_kept(&mut self, engine: &Engine<H>, range: PageRange) -> io::Result<()> {
        if !H::notices().fork_advice.is_used() {
            return Ok(());
        }
        if self.mappings.is_none() {
            // In this order: what is posted from here on is newer than the flags.
            self.kept.catch_up(&H::notices().fork_advice);
            self.mappings = Some(smaps::mappings::<H>()?);
        }
        let new: Vec<PageRange> = engine.core().pages().not_adopted(range).collect();
        for part in new {
            self.kept.learn(part, self.mappings.as_deref().unwrap_or_default());
        }
        Ok(())
    }

    /// Tells the books which pages of `start..end` are populated. Returns how many they did not know. `newborn`: in a forked child.
    fn note_present(&mut self, newborn: bool, engine: &Engine<H>, start: usize, end: usize) -> io::Result<u64> {
        let (mut at, mut found) = (start, 0);
        self.unlooked.reach.begins();
        while at < end {
            let (new, next) = self.note_some(newborn, engine, at, end)?;
            (at, found) = (next, found + new);
        }
        Ok(found)
    }

    /// As [`note_present`](Self::note_present), in one step: reclaim and handlers wait no longer than that takes. How many pages the books
    /// did not know, and where to go on.
    fn note_some(&mut self, newborn: bool, engine: &Engine<H>, at: usize, end: usize) -> io::Result<(u64, usize)> {
        loop {
            // Pages must not be moved between the look and the note.
            let gate = engine.memory.gate.shut();
            let begun = H::now();
            let end = end.min(at.saturating_add(self.unlooked.reach.bytes()));
            let (count, next) = engine.memory.pagemap.populated(at, end, &mut self.populated[..])?;
            // Asked last: what had changed before the look is still counted. What is there may have been moved there, and
            // the books would take it for what was there before.
            let is_changing = engine.memory.uffd.is_changing() && !is_on(Sabotage::ScanWhileChanging);
            if is_changing {
                if self.unlooked.reach.was_disturbed() {
                    drop(gate);
                    crate::pause::pause::<H>();
                    continue;
                }
                // The program changes its memory all the time. A page that is not where the books have it then must not be
                // called lost; and what they have elsewhere is that still, whatever lies in its place by now.
                engine.core().given_up_lazily(PageRange::of_bytes(at, next));
            } else {
                self.unlooked.reach.was_still(H::since(begun));
            }
            let mut core = engine.core();
            let mut found = 0;
            for populated in &self.populated[..count] {
                let range = PageRange::of_bytes(populated.start, populated.end);
                found += if is_changing {
                    core.found_unknown(range)
                } else if newborn && populated.zero_page() {
                    newborn::found_zeros(&mut core, range)
                } else {
                    core.found_by_scan(range)
                };
            }
            return Ok((found, next));
        }
    }

    /// In a forked child, of which not everything was noted: what of adopted memory is there.
    pub fn look_at_all(&mut self, engine: &Engine<H>) -> io::Result<()> {
        let ranges: Vec<PageRange> = engine.core().pages().adopted_ranges().collect();
        for range in ranges {
            self.note_present(true, engine, range.start.address(), range.end().address())?;
        }
        Ok(())
    }

    /// In a forked child: registers what the parent had adopted with the child's own userfaultfd. What is not mapped
    /// any more is forgotten.
    pub fn take_over(&mut self, engine: &Engine<H>) -> io::Result<()> {
        H::Mappings::read_maps(&mut self.maps)?;
        let ranges: Vec<PageRange> = engine.core().pages().adopted_ranges().collect();
        let mut vmas = maps::vmas(&self.maps).filter(Vma::is_anonymous_private).peekable();
        for range in ranges {
            let (mut at, end) = (range.start.address(), range.end().address());
            while let Some(vma) = next_in(&mut vmas, at, end) {
                // What the program kept from this child may have made room for memory of this engine. Otherwise nothing
                // is clipped: memory that was noted as private after it had been adopted may have content in the books.
                let part = |from: usize, to: usize| match H::notices().fork_advice.is_used() {
                    true => private_memory::next_gap(from, to),
                    false => (from < to).then_some((from, to)),
                };
                while let Some((from, to)) = part(vma.start.max(at), vma.end.min(end)) {
                    engine.core().unmapped(PageRange::of_bytes(at, from));
                    if engine.register_again(from, to) == Some(false) {
                        engine.forget_unless_swapped(PageRange::of_bytes(from, to));
                    } else {
                        engine.undo_reads(from, to, &mut self.populated[..])?;
                    }
                    at = to;
                }
                if vma.end >= end {
                    // The next range may begin in it.
                    break;
                }
                vmas.next();
            }
            if at < end {
                engine.core().unmapped(PageRange::of_bytes(at, end));
            }
        }
        Ok(())
    }
}

/// Whether the page before or after `range` is adopted.
fn is_beside_adopted<H: Host>(engine: &Engine<H>, range: PageRange) -> bool {
    let core = engine.core();
    let is_adopted = |page: u64| core.pages().adopted_in(PageRange { start: PageNumber(page), pages: 1 }) > 0;
    range.start.0.checked_sub(1).is_some_and(is_adopted) || is_adopted(range.end().0)
}

/// The first mapping that has something of `at..end`, of those that are left: what lies before is passed over for ever.
fn next_in<'a>(vmas: &mut Peekable<impl Iterator<Item = Vma<'a>>>, at: usize, end: usize) -> Option<Vma<'a>> {
    while vmas.next_if(|vma| vma.end <= at).is_some() {}
    vmas.peek().filter(|vma| vma.start < end).copied()
}

/// What there is at `address`, as far as it may be adopted: the whole mapping, but for memory of the engine.
fn adoptable_part(query: &mut impl Mappings, address: usize) -> Option<(usize, usize)> {
    let vma = query.at(address).filter(is_adoptable)?;
    let mut at = vma.start;
    loop {
        let (start, end) = private_memory::next_gap(at, vma.end)?;
        if end > address {
            return (start <= address).then_some((start, end));
        }
        at = end;
    }
}
