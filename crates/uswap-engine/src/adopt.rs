//! Adoption: which of the program's memory is managed.
//!
//! Private, anonymous, readable and writable mappings of which something is populated are adopted as a whole, when the
//! budget becomes scarce; until then first touches stay the kernel's. What belongs to the engine is clipped out by
//! address, because mappings merge. Adoption is books first, registration second, so that every fault of registered
//! memory is known; then the populated pages are looked up, and the books know them as resident.

use std::collections::VecDeque;
use std::io;
use std::iter::Peekable;

use uswap_core::sabotage::{Sabotage, is_on};
use uswap_core::{LEAF_PAGES, PAGE_SIZE, PageNumber, PageRange, PageState};
use uswap_sys::{maps, private_memory};
use uswap_system::Advice;
use uswap_system::faults::Faults;
use uswap_system::looks::{Mappings, PopulatedRange, Residency, Vma};

use crate::engine::Engine;
use crate::fork_advice::Kept;
use crate::host::Host;
use crate::smaps::{self, Mapping};

/// Looked at in one step: reclaim and handlers wait no longer than that takes.
const STEP: usize = 8 * LEAF_PAGES * PAGE_SIZE;
/// Looks at memory that the program is changing; each at half as much as the one before.
const LOOKS_MAX: u32 = 8;
/// Populated ranges that one step can return.
const RANGES: usize = 256;
/// Steps in which one piece of memory is followed while it grows.
const CHASE_STEPS: u32 = 16;
/// Mappings that are adopted at a time, at most: a quarter of vm.max_map_count, 65530 by default.
const ADOPTED_MAX: usize = 16_000;
/// Mappings that one walk adopts: what is populated must be looked up, and pages leave, before it goes on.
const FRESH_MAX: usize = 1024;
/// How often what was adopted is verified, when it turns out to be larger.
const VERIFY_ROUNDS: u32 = 4;
/// How often memory is kept from forks again that the program is moving meanwhile.
const KEEP_TRIES: u32 = 4;
/// How often each time a look waits for the program to rest: 0.3 ms, and what the scheduler makes of it.
const KEEP_PAUSES: u32 = 16;
/// The same when a mapping is adopted. There may be thousands, and what cannot be told is looked at again.
const ADOPT_PAUSES: u32 = 1;
/// How often a mapping that changes meanwhile is verified.
const VERIFY_TRIES: u32 = 8;

/// Walks over the program's memory and adopts it.
pub(crate) struct Adopter<H: Host> {
    /// The text of /proc/self/maps, whenever it is read.
    pub maps: Vec<u8>,
    /// The mappings that may be adopted, in a walk.
    candidates: Vec<(usize, usize)>,
    populated: Box<[PopulatedRange; RANGES]>,
    /// Ranges that were adopted and are to be checked against the maps again.
    fresh: Vec<(usize, usize)>,
    /// Ranges that were adopted and whose populated pages are to be looked up.
    unlooked: VecDeque<(usize, usize)>,
    /// Mappings that were found adopted, or became so, in the last walk.
    adopted: usize,
    /// Memory that the program itself keeps from its children.
    pub kept: Kept,
    /// What the kernel said about it when this walk first asked.
    mappings: Option<Vec<Mapping>>,
    /// Asks for single mappings in this walk, if it has asked for one.
    query: Option<Option<H::Mappings>>,
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
            fresh: Vec::with_capacity(1024),
            unlooked: VecDeque::with_capacity(1024),
            adopted: 0,
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
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.extend(maps::vmas(&self.maps).filter(is_adoptable).map(|vma| (vma.start, vma.end)));
        if candidates.len() > FRESH_MAX {
            // Not all of them can be had, or not at once: the largest first.
            candidates.sort_unstable_by_key(|&(start, end)| std::cmp::Reverse(end - start));
        }
        let mut found = 0;
        for (mut at, end_of_mapping) in candidates.drain(..) {
            if self.fresh.len() >= FRESH_MAX {
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
        self.note_lazily_freed(engine)?;
        self.verify_fresh(engine)?;
        self.query = None;
        Ok(found)
    }

    /// A heap grows by pieces that a fast program fills in less time than it takes to read the maps: the new ends of what
    /// was just adopted are followed until the program works in memory that is registered, where it waits for room.
    fn chase(&mut self, engine: &Engine<H>) -> io::Result<u64> {
        let mut found = 0;
        for index in 0..self.fresh.len() {
            let mut at = self.fresh[index].1;
            for _ in 0..CHASE_STEPS {
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
        self.unlooked.is_empty()
    }

    /// Looks up the populated pages of some memory that was adopted; `None` when there is no such memory. Registered
    /// first, looked at second: while this takes its time, what the program fills next is held back already.
    pub fn look_up(&mut self, engine: &Engine<H>) -> io::Result<Option<u64>> {
        let Some((start, end)) = self.unlooked.pop_front() else { return Ok(None) };
        let step = end.min(start + STEP);
        if step < end {
            self.unlooked.push_front((step, end));
        }
        self.note_present(engine, start, step).map(Some)
    }

    /// Adopts `start..end` as a whole: a mapping of which only a part were registered would be two, and mremap refuses
    /// those.
    fn adopt_mapping(&mut self, engine: &Engine<H>, start: usize, end: usize, look: Look) -> io::Result<u64> {
        let range = PageRange::of_bytes(start, end);
        let new = range.pages - engine.core().pages().adopted_in(range);
        if new == 0 {
            self.adopted += 1;
            return if look == Look::All { self.note_present(engine, start, end) } else { Ok(0) };
        }
        let is_known = new < range.pages;
        let may_be_cut = look == Look::Beside && is_beside_adopted(engine, range);
        if !is_known && !may_be_cut && !engine.memory.pagemap.has_populated(start, end)? {
            return Ok(0);
        }
        if self.adopted >= ADOPTED_MAX {
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
        let registered = engine.register(start, end);
        if registered {
            self.keep_from_forks(engine, PageRange::of_bytes(start, end));
            self.fresh.push((start, end));
            self.unlooked.push_back((start, end));
        }
        Ok(registered)
    }

    /// Adopted memory goes to no child of a fork that goes round the hooks.
    fn keep_from_forks(&mut self, engine: &Engine<H>, range: PageRange) {
        if !engine.keep_adopted_from_forks(range, &self.kept, ADOPT_PAUSES) {
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

    /// Asked after the registration: what is given up from there on is reported.
    fn note_lazily_freed(&mut self, engine: &Engine<H>) -> io::Result<()> {
        if self.fresh.is_empty() || !H::notices().lazy_free.is_noted() {
            return Ok(());
        }
        for mapping in smaps::mappings::<H>()?.iter().filter(|mapping| mapping.lazily_freed) {
            for &(start, end) in &self.fresh {
                let both = PageRange::of_bytes(start, end).intersection(mapping.range);
                engine.core().given_up_lazily(both);
            }
        }
        Ok(())
    }

    /// Tells the books which pages of `start..end` are populated. Returns how many they did not know.
    fn note_present(&mut self, engine: &Engine<H>, start: usize, end: usize) -> io::Result<u64> {
        let mut at = start;
        let mut found = 0;
        let mut looks = 0;
        while at < end {
            // Pages must not be moved between the look and the note.
            let gate = engine.memory.gate.shut();
            let step = if looks < LOOKS_MAX { STEP >> looks } else { STEP };
            let (count, next) = engine.memory.pagemap.populated(at, end.min(at + step), &mut self.populated[..])?;
            // Asked last: what had changed before the look is still counted. What is there may have been moved there, and
            // the books would take it for what was there before.
            let is_changing = engine.memory.uffd.is_changing() && !is_on(Sabotage::ScanWhileChanging);
            if is_changing {
                if looks < LOOKS_MAX {
                    looks += 1;
                    drop(gate);
                    crate::pause::pause::<H>();
                    continue;
                }
                // The program changes its memory all the time. A page that is not where the books have it then must not be
                // called lost; and what they have elsewhere is that still, whatever lies in its place by now.
                engine.core().given_up_lazily(PageRange::of_bytes(at, next));
            } else {
                looks /= 2;
            }
            let mut core = engine.core();
            for populated in &self.populated[..count] {
                let range = PageRange::of_bytes(populated.start, populated.end);
                found += if is_changing { core.found_while_changing(range) } else { core.found_by_scan(range) };
            }
            at = next;
        }
        Ok(found)
    }

    /// Between the reading of the maps and the registration a mapping may have been replaced by one that is none of our
    /// business. It is let go again.
    fn verify_fresh(&mut self, engine: &Engine<H>) -> io::Result<()> {
        // What is found to be longer is adopted as it is, and verified in turn: nothing is looked up before.
        for round in 0..VERIFY_ROUNDS {
            if is_on(Sabotage::NotVerified) {
                self.fresh.clear();
            }
            if !self.fresh.is_empty() {
                self.verify(engine, round + 1 < VERIFY_ROUNDS)?;
            }
        }
        Ok(())
    }

    /// `may_extend`: mappings of which only a part was adopted are adopted as a whole, and are to be verified after this.
    fn verify(&mut self, engine: &Engine<H>, may_extend: bool) -> io::Result<()> {
        let mut listed = Vec::new();
        if self.query().is_none() {
            H::Mappings::read_maps(&mut self.maps)?;
            listed.extend(maps::vmas(&self.maps).map(|vma| Piece::of(&vma)));
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.sort_unstable();
        let mut verified = 0;
        for (start, end) in fresh.drain(..) {
            let mut at = start.max(verified);
            verified = end.max(verified);
            let mut tries = 0;
            while at < end {
                let piece = match self.query() {
                    Some(query) => query.at_or_after(at).map(|vma| Piece::of(&vma)),
                    None => listed.get(listed.partition_point(|piece| piece.end <= at)).copied(),
                };
                let Some(piece) = piece.filter(|piece| piece.start < end) else { break };
                let (from, to) = (piece.start.max(at), piece.end.min(end));
                if from > at {
                    // A hole: the books must not know what the kernel does not report. What has content there has been
                    // moved or unmapped a moment ago, and the event is unread.
                    engine.core().let_go_untouched(PageRange::of_bytes(at, from));
                }
                let range = PageRange::of_bytes(from, to);
                if !piece.is_anonymous_private {
                    let _ = engine.memory.uffd.unregister(from, to - from);
                    engine.core().let_go_untouched(range);
                } else if may_extend && let Some(adopted) = self.adopt_rest(engine, from)? {
                    at = adopted.min(to);
                    continue;
                } else if engine.register_again(from, to) == Some(false) {
                    engine.forget_unless_swapped(range);
                } else if !engine.is_registered(range) {
                    tries += 1;
                    if tries < VERIFY_TRIES {
                        engine.pause_and_settle();
                        continue;
                    }
                    // Not now. Where the kernel has it registered, faults bring it back to the books.
                    engine.core().let_go_untouched(range);
                }
                self.keep_from_forks(engine, range);
                tries = 0;
                at = to;
            }
            if at < end {
                engine.core().let_go_untouched(PageRange::of_bytes(at, end));
            }
        }
        if self.fresh.is_empty() {
            self.fresh = fresh;
        }
        Ok(())
    }

    /// Adopts the mapping at `address` as a whole, if only a part of it is; returns its end if it did.
    fn adopt_rest(&mut self, engine: &Engine<H>, address: usize) -> io::Result<Option<usize>> {
        let part = self.query().and_then(|query| adoptable_part(query, address));
        let Some((start, end)) = part else { return Ok(None) };
        let whole = PageRange::of_bytes(start, end);
        let is_whole = engine.core().pages().adopted_in(whole) == whole.pages;
        Ok((!is_whole && self.register_whole(engine, start, end)?).then_some(end))
    }

    /// In a forked child, of which not everything was noted: what of adopted memory is there.
    pub fn look_at_all(&mut self, engine: &Engine<H>) -> io::Result<()> {
        let ranges: Vec<PageRange> = engine.core().pages().adopted_ranges().collect();
        for range in ranges {
            self.note_present(engine, range.start.address(), range.end().address())?;
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

/// A mapping, as far as it matters whether it is adopted by mistake.
#[derive(Clone, Copy)]
struct Piece {
    start: usize,
    end: usize,
    is_anonymous_private: bool,
}

impl Piece {
    fn of(vma: &Vma<'_>) -> Piece {
        Piece { start: vma.start, end: vma.end, is_anonymous_private: vma.is_anonymous_private() }
    }
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

impl<H: Host> Engine<H> {
    /// Adopts `start..end`: books first. `false` when the kernel refuses, or the program does not rest.
    fn register(&self, start: usize, end: usize) -> bool {
        let range = PageRange::of_bytes(start, end);
        match self.register_when_still(range) {
            Some(true) => {}
            Some(false) => {
                self.forget_unless_swapped(range);
                return false;
            }
            None => return false,
        }
        // Memory of the engine may have been mapped where the maps still showed the program's.
        if private_memory::overlaps(start, end) {
            let _ = self.memory.uffd.unregister(start, end - start);
            self.forget_unless_swapped(range);
            return false;
        }
        true
    }

    /// Registers what the books have. Memory that was mapped into a hole after the registration is not registered by it: a
    /// page moved out of it would read as zeros. Registering again what is registered changes nothing. `Some(false)` when
    /// the kernel refuses, `None` when events are held back.
    fn register_again(&self, start: usize, end: usize) -> Option<bool> {
        let _gate = self.memory.gate.pass();
        if self.memory.uffd.holds_events() {
            return None;
        }
        let registered = self.memory.uffd.register(start, end - start).is_ok();
        self.note_if_changing(PageRange::of_bytes(start, end));
        Some(registered)
    }

    /// What is mapped there may have been moved there, and its event be unread: adopted now, it would pass for what was
    /// there before. A program that never rests has its memory adopted all the same. Not while events are held back, when
    /// they are about to be told apart by what is registered. Returns what the kernel says; `None` if it was not asked.
    fn register_when_still(&self, range: PageRange) -> Option<bool> {
        for looks in 0..2 * LOOKS_MAX {
            if looks > 0 {
                self.pause_and_settle();
            }
            // Until it is registered: no event is read in between.
            let _gate = self.memory.gate.pass();
            if !self.memory.uffd.holds_events() && (looks + 1 >= LOOKS_MAX || !self.memory.uffd.is_changing()) {
                self.core().adopt(range);
                let registered =
                    self.memory.uffd.register(range.start.address(), range.pages as usize * PAGE_SIZE).is_ok();
                self.note_if_changing(range);
                return Some(registered);
            }
        }
        None
    }

    /// With the gate held, after `range` was registered: if the program is changing its memory, what is there may be newer than
    /// what is unread, and whoever puts that in order must know.
    pub(crate) fn note_if_changing(&self, range: PageRange) {
        if self.memory.uffd.kernel_is_changing() {
            self.memory.order.lock().came(range);
        }
    }

    /// Whether all of `range` is adopted and registered. Where there was a hole when it was registered, what is mapped there
    /// by now is not, and its end would not be told.
    fn is_registered(&self, range: PageRange) -> bool {
        // In this order: what had been registered and went before the look is still counted, or gone from the books.
        self.memory.uffd.is_registered(range.start.address(), range.pages as usize * PAGE_SIZE) == Some(true)
            && !self.memory.uffd.is_changing()
            && self.core().pages().adopted_in(range) == range.pages
    }

    /// Lets the program go on, and applies what is held back if it rests.
    fn pause_and_settle(&self) {
        crate::pause::pause::<H>();
        let _gate = self.memory.gate.shut();
        if !self.is_frozen() {
            self.settle_events(false);
        }
    }

    /// The kernel did not register `range`. Harmless as long as nothing of it is swapped out: what is, would read as
    /// zeros.
    fn forget_unless_swapped(&self, range: PageRange) {
        // With it, every event that has been read is in the books.
        let _gate = self.memory.gate.pass();
        let changing = self.memory.uffd.is_changing();
        let mut core = self.core();
        if changing {
            // It may have been moved or unmapped a moment ago.
            return core.let_go_untouched(range);
        }
        let swapped = core
            .pages()
            .known(range)
            .any(|(_, state)| !matches!(state, PageState::Untouched | PageState::Resident { .. }));
        if swapped {
            drop(core);
            self.fatal(format_args!(
                "uswap: memory at {:#x} has swapped pages and cannot be registered",
                range.start.address()
            ));
        }
        core.unmapped(range);
    }

    /// Before a fork: the child gets adopted memory, but for what the program keeps from it.
    pub(crate) fn let_adopted_fork(&self, kept: &Kept) {
        self.for_adopted(|range| {
            for part in kept.outside(range) {
                advise_for_fork::<H>(part, Advice::DoFork);
            }
        });
    }

    /// Memory that was moved meanwhile.
    pub(crate) fn let_fork(&self, range: PageRange) {
        advise_for_fork::<H>(range, Advice::DoFork);
    }

    /// After a fork, and at all other times: a fork that goes round the hooks gets no adopted memory. `false` when some that the
    /// program is moving may be left: it is to be tried again.
    pub(crate) fn keep_all_adopted_from_forks(&self, kept: &Kept) -> bool {
        for _ in 0..KEEP_TRIES {
            let moves = self.core().moves();
            let all = PageRange { start: PageNumber(0), pages: u64::MAX };
            // In this order: what is unread is counted, and what was read is in the books.
            let is_kept = self.keep_adopted_from_forks(all, kept, KEEP_PAUSES);
            if is_kept && !self.memory.uffd.is_changing() && self.core().moves() == moves {
                return true;
            }
            self.pause_and_settle();
        }
        false
    }

    /// As [`keep_all_adopted_from_forks`](Self::keep_all_adopted_from_forks), of what is adopted of `range` by now. `false` when
    /// it cannot be told of some whether it is, because the program is changing its memory; it is waited for `pauses` times.
    pub(crate) fn keep_adopted_from_forks(&self, range: PageRange, kept: &Kept, mut pauses: u32) -> bool {
        let (mut from, mut is_all_kept) = (range.start, true);
        loop {
            let left = PageRange { start: from, pages: range.end().0 - from.0 };
            let Some((next, is_kept)) = self.keep_next_from_forks(left, kept) else { return is_all_kept };
            if !is_kept && pauses > 0 {
                pauses -= 1;
                self.pause_and_settle();
                continue;
            }
            is_all_kept &= is_kept;
            from = next;
        }
    }

    /// Of the first adopted memory in `range`: its end, and whether it is kept from forks.
    fn keep_next_from_forks(&self, range: PageRange, kept: &Kept) -> Option<(PageNumber, bool)> {
        // With the gate held nothing is read: what the program gives up from here on stays counted.
        let _gate = self.memory.gate.pass();
        let is_changing = self.memory.uffd.is_changing();
        let next = self.core().pages().adopted_within(range).next()?;
        if is_changing {
            // The books have what was there. What a thread has mapped there meanwhile, its children must have.
            return Some((next.end(), false));
        }
        advise_for_fork::<H>(next, Advice::DontFork);
        let is_kept = !self.memory.uffd.kernel_is_changing();
        if !is_kept {
            // Something else may be mapped there by now, and a child that lacked it would die.
            kept.outside(next).for_each(|part| advise_for_fork::<H>(part, Advice::DoFork));
        }
        Some((next.end(), is_kept))
    }

    fn for_adopted(&self, visit: impl Fn(PageRange)) {
        let mut from = PageNumber(0);
        loop {
            let next = self.core().pages().next_adopted_range(from);
            let Some(range) = next else { return };
            visit(range);
            from = range.end();
        }
    }
}

/// A range that is not mapped any more needs no advice.
fn advise_for_fork<H: Host>(range: PageRange, advice: Advice) {
    let _ = H::advise(range.start.address(), range.pages as usize * PAGE_SIZE, advice);
}
