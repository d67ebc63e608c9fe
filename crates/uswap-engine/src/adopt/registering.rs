//! Registration of what is adopted, and letting go of what the kernel does not register: books first, and never while it cannot be
//! told whether what is there is what the books mean.

use uswap_core::{PAGE_SIZE, PageNumber, PageRange, PageState, RangeSet, tuning};
use uswap_sys::private_memory;
use uswap_system::faults::Faults;

use crate::engine::Engine;
use crate::host::Host;

/// Adopted parts of a mapping that are looked up one by one: each takes some system calls, while no event is read.
const PIECES_MAX: usize = 32;

impl<H: Host> Engine<H> {
    /// Adopts `start..end`: books first. `false` when the kernel refuses, or the program does not rest.
    pub(super) fn register(&self, start: usize, end: usize) -> bool {
        let range = PageRange::of_bytes(start, end);
        match self.register_when_still(range) {
            Some(true) => {}
            Some(false) => {
                self.forget_unless_swapped(range);
                return false;
            }
            None => return false,
        }
        // Memory of the engine may have been mapped where the maps still showed the program's. Beside it there may be memory by now
        // that has been moved there, with what it has swapped out.
        if private_memory::overlaps(start, end) {
            let mut at = start;
            while at < end {
                let (gap, next) = private_memory::next_gap(at, end).unwrap_or((end, end));
                if at < gap {
                    let _ = self.memory.uffd.unregister(at, gap - at);
                }
                at = next;
            }
            self.forget_unless_swapped(range);
            return false;
        }
        true
    }

    /// Registers what the books have. Memory that was mapped into a hole after the registration is not registered by it: a
    /// page moved out of it would read as zeros. Registering again what is registered changes nothing. `Some(false)` when
    /// the kernel refuses, `None` when events are held back.
    pub(super) fn register_again(&self, start: usize, end: usize) -> Option<bool> {
        let _gate = self.memory.gate.pass();
        if self.memory.uffd.holds_events() {
            return None;
        }
        if self.memory.sees_registered(PageRange::of_bytes(start, end)) {
            return Some(true);
        }
        Some(self.register_and_note(PageRange::of_bytes(start, end)))
    }

    /// With the gate held: whether the kernel has registered `range`. If the program is changing its memory, what is there may be newer
    /// than what is unread.
    fn register_and_note(&self, range: PageRange) -> bool {
        let registered = self.memory.uffd.register(range.start.address(), range.pages as usize * PAGE_SIZE).is_ok();
        self.note_if_changing(range);
        registered
    }

    /// With the gate held: `range`, but for what is adopted and registered already, as far as that is looked up. It is left alone: to
    /// register it once more would do so with what is mapped there by now, too, if it has been unmapped meanwhile; and it could not be
    /// told any more whether an unmapping of it that is unread has been refused.
    fn not_registered(&self, range: PageRange) -> Vec<PageRange> {
        let adopted: Vec<PageRange> = self.core().pages().adopted_within(range).take(PIECES_MAX).collect();
        let mut parts = RangeSet::default();
        parts.insert(range);
        let is_registered = |&part: &PageRange| self.memory.sees_registered(part);
        adopted.into_iter().filter(is_registered).for_each(|part| parts.remove(part));
        parts.within(range).collect()
    }

    /// What is mapped there may have been moved there, and its event be unread: adopted now, it would pass for what was
    /// there before. A program that never rests has its memory adopted all the same. Not while events are held back, when
    /// they are about to be told apart by what is registered. Returns what the kernel says; `None` if it was not asked.
    pub(super) fn register_when_still(&self, range: PageRange) -> Option<bool> {
        for looks in 0..2 * tuning::CHANGING_LOOKS_MAX {
            if looks > 0 {
                self.pause_and_settle();
            }
            // Until it is registered: no event is read in between.
            let _gate = self.memory.gate.pass();
            if !self.memory.uffd.holds_events()
                && (looks + 1 >= tuning::CHANGING_LOOKS_MAX || !self.memory.uffd.is_changing())
            {
                let parts = self.not_registered(range);
                self.core().adopt(range);
                let is_whole = parts == [range];
                let refused = parts.into_iter().filter(|&part| !self.register_and_note(part)).count();
                // Of a mapping that is managed in part, what the kernel has not taken is found when it is verified.
                return Some(!is_whole || refused == 0);
            }
        }
        None
    }

    /// With the gate held, after `range` was registered: if the program is changing its memory, what is there may be newer than
    /// what is unread, and whoever puts that in order must know.
    pub(crate) fn note_if_changing(&self, range: PageRange) {
        if self.memory.uffd.kernel_is_changing() {
            self.memory.order().came(range);
        }
    }

    /// Whether all of `range` is adopted and registered. Where there was a hole when it was registered, what is mapped there
    /// by now is not, and its end would not be told.
    pub(super) fn is_registered(&self, range: PageRange) -> bool {
        // In this order: what had been registered and went before the look is still counted, or gone from the books.
        self.memory.uffd.is_registered(range.start.address(), range.pages as usize * PAGE_SIZE) == Some(true)
            && !self.memory.uffd.is_changing()
            && self.core().pages().adopted_in(range) == range.pages
    }

    /// With the gate held: whether all that was adopted when the books had seen so many `moves` is where it was.
    pub(crate) fn has_not_moved_since(&self, moves: u64) -> bool {
        // In this order: what is unread is counted, and what was read is in the books.
        !self.memory.uffd.is_changing() && self.core().moves() == moves
    }

    /// Lets the program go on, and applies what is held back if it rests.
    pub(crate) fn pause_and_settle(&self) {
        crate::pause::pause::<H>();
        let _gate = self.memory.gate.shut();
        if !self.is_frozen() {
            self.settle_events(false);
        }
    }

    /// The kernel did not register `range`. Harmless as long as nothing of it is swapped out: what is, would read as
    /// zeros, if it is not registered by itself.
    pub(super) fn forget_unless_swapped(&self, range: PageRange) {
        // With it, every event that has been read is in the books; and nobody is bringing in what the books forget.
        let _gate = self.memory.gate.shut();
        if self.memory.uffd.is_changing() {
            // It may have been moved or unmapped a moment ago.
            return self.core().let_go_untouched(range);
        }
        let mut core = self.core();
        let is_swapped =
            |&(_, state): &(_, PageState)| !matches!(state, PageState::Untouched | PageState::Resident { .. });
        let swapped: Vec<(PageNumber, PageState)> = core.pages().known(range).filter(is_swapped).collect();
        // What is zeros is so without us; it may be brought in just now by who was asked for it before it was unmapped.
        let has_content = |state| !matches!(state, PageState::SwappedZero | PageState::ReadingIn { entry: None, .. });
        if !swapped.iter().any(|&(_, state)| has_content(state)) {
            return core.manages_no_more(range);
        }
        // Something may have been mapped over another part of it.
        core.let_go_untouched(range);
        drop(core);
        let is_registered = |page: PageNumber| self.memory.uffd.is_registered(page.address(), PAGE_SIZE);
        if let Some((page, _)) =
            swapped.iter().find(|&&(page, state)| has_content(state) && is_registered(page) == Some(false))
            // Asked last: what has changed before is still counted.
            && !self.memory.uffd.is_changing()
        {
            self.fatal(format_args!(
                "uswap: memory at {:#x} has swapped pages and cannot be registered",
                page.address()
            ));
        }
    }
}
