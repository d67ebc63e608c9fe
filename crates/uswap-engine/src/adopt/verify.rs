//! After memory was adopted: is it what the maps showed? They were out of date as soon as they were read.

use std::io;

use rustix::io::Errno;
use uswap_core::PageRange;
use uswap_core::defects::{Sabotage, is_on};
use uswap_core::tuning;
use uswap_sys::maps;
use uswap_sys::report::Reason;
use uswap_system::faults::Faults;
use uswap_system::looks::{Mappings, Vma};

use super::kept_from_forks::let_fork_unless_kept;
use super::{Adopter, adoptable_part};
use crate::engine::Engine;
use crate::host::Host;

impl<H: Host> Adopter<H> {
    /// Between the reading of the maps and the registration a mapping may have been replaced by one that is none of our
    /// business. It is let go again.
    pub(super) fn verify_fresh(&mut self, engine: &Engine<H>) -> io::Result<()> {
        let verified = self.verify_with_what_it_extends(engine);
        self.query = None;
        verified
    }

    fn verify_with_what_it_extends(&mut self, engine: &Engine<H>) -> io::Result<()> {
        // What is found to be longer is adopted as it is, and verified in turn: nothing is looked up before.
        for round in 0..tuning::VERIFY_ROUNDS {
            if is_on(Sabotage::NotVerified) {
                engine.note_lazily_freed(&self.fresh.ranges, self.fresh.moves);
                self.fresh.ranges.clear();
            }
            if !self.fresh.ranges.is_empty() {
                self.verify(engine, round + 1 < tuning::VERIFY_ROUNDS)?;
            }
        }
        Ok(())
    }

    /// `may_extend`: mappings of which only a part was adopted are adopted as a whole, and are to be verified after this.
    pub(super) fn verify(&mut self, engine: &Engine<H>, may_extend: bool) -> io::Result<()> {
        let mut listed = self.list()?;
        let mut fresh = std::mem::take(&mut self.fresh.ranges);
        fresh.sort_unstable();
        let mut verified = 0;
        for index in 0..fresh.len() {
            let (start, end) = fresh[index];
            let at = start.max(verified);
            verified = end.max(verified);
            if let Err(error) = self.verify_range(engine, at, end, &mut listed, may_extend) {
                engine.note_lazily_freed(&fresh, self.fresh.moves);
                // To be verified yet.
                self.fresh.ranges.extend_from_slice(&fresh[index..]);
                return Err(error);
            }
        }
        // What was mapped meanwhile is registered only now.
        engine.note_lazily_freed(&fresh, self.fresh.moves);
        if self.fresh.ranges.is_empty() {
            fresh.clear();
            self.fresh.ranges = fresh;
        }
        Ok(())
    }

    fn verify_range(
        &mut self,
        engine: &Engine<H>,
        mut at: usize,
        end: usize,
        listed: &mut Vec<Piece>,
        may_extend: bool,
    ) -> io::Result<()> {
        let mut tries = 0;
        let moves = engine.core().moves();
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
                if !self.let_go_of_others(engine, from, to)? {
                    tries += 1;
                    if tries < tuning::VERIFY_TRIES {
                        engine.pause_and_settle();
                        *listed = self.list()?;
                        continue;
                    }
                    // Not now.
                    self.fresh.ranges.push((from, to));
                }
                engine.core().let_go_untouched(range);
            } else if may_extend && let Some(adopted) = self.adopt_rest(engine, from)? {
                at = adopted.min(to);
                continue;
            } else if engine.register_again(from, to) == Some(false) {
                engine.forget_unless_swapped(range);
            } else if !engine.is_registered(range) {
                tries += 1;
                if tries < tuning::VERIFY_TRIES {
                    // What has been registered just now may be moved away.
                    self.kept.look_again(range);
                    engine.pause_and_settle();
                    *listed = self.list()?;
                    continue;
                }
                // Not now. Where the kernel has it registered, faults bring it back to the books.
                engine.core().let_go_untouched(range);
            }
            self.keep_from_forks(engine, range, moves);
            tries = 0;
            at = to;
        }
        if at < end {
            engine.core().let_go_untouched(PageRange::of_bytes(at, end));
        }
        Ok(())
    }

    /// All mappings, where single ones cannot be asked for.
    fn list(&mut self) -> io::Result<Vec<Piece>> {
        if self.query().is_some() {
            return Ok(Vec::new());
        }
        H::Mappings::read_maps(&mut self.maps)?;
        Ok(maps::vmas(&self.maps).map(|vma| Piece::of(&vma)).collect())
    }

    /// What is none of our business is not registered, and its children have it. `false`: ours may be there by now, moved there with
    /// what it has swapped out, and is registered; it is to be looked at again.
    fn let_go_of_others(&mut self, engine: &Engine<H>, start: usize, end: usize) -> io::Result<bool> {
        // What is moved away from there takes that along.
        self.kept.look_again(PageRange::of_bytes(start, end));
        self.kept.catch_up(&H::notices().fork_advice);
        // Nothing is read meanwhile: what is moved there after the look stays counted.
        let _gate = engine.memory.gate.pass();
        if self.has_anonymous(start, end)? {
            return Ok(false);
        }
        let _ = engine.memory.uffd.unregister(start, end - start);
        // It was marked as ours before it was verified.
        let others = PageRange::of_bytes(start, end);
        let_fork_unless_kept::<H>(others, &self.kept);
        if is_on(Sabotage::OthersLetGoUnasked) || !engine.memory.uffd.kernel_is_changing() {
            return Ok(true);
        }
        self.register_what_came(engine, start, end)?;
        engine.note_if_changing(others);
        Ok(false)
    }

    /// With the gate held: registers what has been moved to where others were let go. Mapping by mapping, for where one of several cannot
    /// be registered the kernel registers none.
    fn register_what_came(&mut self, engine: &Engine<H>, start: usize, end: usize) -> io::Result<()> {
        let mut pieces = Vec::new();
        self.for_pieces(start, end, |piece| {
            pieces.push(piece);
            true
        })?;
        for piece in pieces {
            let (from, to) = (piece.start.max(start), piece.end.min(end));
            let refused = engine.memory.uffd.register(from, to - from).err();
            if let Some(error) = refused.filter(|error| piece.is_anonymous_private && !may_be_of_others(error)) {
                engine.fatal(format_args!("uswap: memory at {from:#x} cannot be registered: {}", Reason(&error)));
            }
        }
        Ok(())
    }

    /// Whether any of `start..end` is private and anonymous.
    fn has_anonymous(&mut self, start: usize, end: usize) -> io::Result<bool> {
        let mut found = false;
        self.for_pieces(start, end, |piece| {
            found |= piece.is_anonymous_private;
            !found
        })?;
        Ok(found)
    }

    /// Visits what is mapped of `start..end`, until `goes_on` says no.
    fn for_pieces(&mut self, start: usize, end: usize, mut goes_on: impl FnMut(Piece) -> bool) -> io::Result<()> {
        let listed = self.list()?;
        let mut of_list = listed.iter().filter(|piece| piece.start < end && start < piece.end);
        let mut at = start;
        loop {
            let piece = match self.query() {
                Some(query) => query.at_or_after(at).map(|vma| Piece::of(&vma)).filter(|piece| piece.start < end),
                None => of_list.next().copied(),
            };
            let Some(piece) = piece.filter(|&piece| goes_on(piece)) else { return Ok(()) };
            at = piece.end;
        }
    }

    /// Adopts the mapping at `address` as a whole, if only a part of it is; returns its end if it did.
    pub(super) fn adopt_rest(&mut self, engine: &Engine<H>, address: usize) -> io::Result<Option<usize>> {
        let part = self.query().and_then(|query| adoptable_part(query, address));
        let Some((start, end)) = part else { return Ok(None) };
        let whole = PageRange::of_bytes(start, end);
        let is_whole = engine.core().pages().adopted_in(whole) == whole.pages;
        Ok((!is_whole && self.register_whole(engine, start, end)?).then_some(end))
    }
}

/// Whether the kernel has refused to register memory because it is not there any more, or registered with the program's own
/// userfaultfd, so that it is not what was managed.
fn may_be_of_others(refused: &io::Error) -> bool {
    [Errno::INVAL, Errno::BUSY].iter().any(|errno| refused.raw_os_error() == Some(errno.raw_os_error()))
}

/// A mapping, as far as it matters whether it is adopted by mistake.
#[derive(Clone, Copy)]
struct Piece {
    start: usize,
    end: usize,
    is_anonymous_private: bool,
}

impl Piece {
    pub(super) fn of(vma: &Vma<'_>) -> Piece {
        Piece { start: vma.start, end: vma.end, is_anonymous_private: vma.is_anonymous_private() }
    }
}
