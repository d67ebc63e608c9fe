//! Adopted memory and forks: a child has it when it is forked in a window, and not when its fork goes round the hooks.

use rustix::io::Errno;
use uswap_core::{PAGE_SIZE, PageNumber, PageRange, tuning};
use uswap_sys::maps;
use uswap_system::Advice;
use uswap_system::looks::Mappings;

use crate::engine::Engine;
use crate::fork_advice::Kept;
use crate::giving_way::Asking;
use crate::host::Host;

/// Whether memory is kept from forks that go round the hooks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum FromForks {
    /// It is.
    Kept,
    /// It cannot be told, because the program is changing its memory.
    Changing,
    /// The kernel refuses.
    Refused,
}

impl<H: Host> Engine<H> {
    /// Before a fork: the child gets adopted memory, but for what the program keeps from it. Returns what the kernel refuses to give it.
    pub(crate) fn let_adopted_fork(&self, kept: &Kept) -> Vec<PageRange> {
        let mut refused = Vec::new();
        self.for_adopted(|range| refused.extend(let_fork_unless_kept::<H>(range, kept)));
        refused
    }

    /// After a fork, and at all other times: a fork that goes round the hooks gets no adopted memory. Otherwise it is to be
    /// tried again, for some may be left.
    pub(crate) fn keep_all_adopted_from_forks(&self, kept: &Kept) -> FromForks {
        let (begun, mut asking) = (H::now(), Asking::new(&H::notices().giving_way));
        for _ in 0..tuning::KEEP_TRIES {
            let moves = self.core().moves();
            let outcome = self.keep_adopted_from_forks(PageRange::ALL, kept, tuning::KEEP_PAUSES);
            let is_over = {
                let _gate = self.memory.gate.pass();
                outcome == FromForks::Refused || outcome == FromForks::Kept && self.has_not_moved_since(moves)
            };
            if is_over {
                return outcome;
            }
            asking.for_fault_of(begun);
            self.pause_and_settle();
        }
        FromForks::Changing
    }

    /// Adopted memory that the program has let its children have goes to no child of a fork that goes round the hooks. Whether it is all
    /// kept from them: what is not is to be looked at again.
    pub(crate) fn keep_lifted_from_forks(&self, kept: &mut Kept) -> bool {
        let (said, mut pauses) = (&H::notices().fork_advice, tuning::ADOPT_PAUSES);
        for _ in 0..tuning::KEEP_TRIES {
            let moves = self.core().moves();
            kept.catch_up(said);
            let (mut left, is_heard) = (Vec::new(), said.is_heard());
            for range in kept.take_lifted() {
                // Whoever moves it tells before the books have it: what is looked at again is looked at where it is by then.
                let is_kept = self.keep_adopted_from_forks(range, kept, pauses) == FromForks::Kept;
                pauses = 0;
                left.push((range, is_kept));
            }
            let is_where_it_was = is_heard && self.core().moves() == moves;
            left.retain(|&(_, is_kept)| !is_kept || !is_where_it_was);
            left.iter().for_each(|&(range, _)| kept.look_again(range));
            if left.is_empty() || is_where_it_was {
                return left.is_empty() && is_heard;
            }
        }
        false
    }

    /// As [`keep_all_adopted_from_forks`](Self::keep_all_adopted_from_forks), of what is adopted of `range` by now: the worst
    /// of its parts. It is waited for `pauses` times.
    pub(crate) fn keep_adopted_from_forks(&self, range: PageRange, kept: &Kept, mut pauses: u32) -> FromForks {
        let (mut from, mut all) = (range.start, FromForks::Kept);
        loop {
            let left = PageRange { start: from, pages: range.end().0 - from.0 };
            let Some((next, outcome)) = self.keep_next_from_forks(left, kept) else { return all };
            if outcome == FromForks::Changing && pauses > 0 {
                pauses -= 1;
                self.pause_and_settle();
                continue;
            }
            all = all.max(outcome);
            from = next;
        }
    }

    /// Of the first adopted memory in `range`: its end, and whether it is kept from forks.
    pub(super) fn keep_next_from_forks(&self, range: PageRange, kept: &Kept) -> Option<(PageNumber, FromForks)> {
        // With the gate held nothing is read: what the program gives up from here on stays counted.
        let _gate = self.memory.gate.pass();
        let is_changing = self.memory.uffd.is_changing();
        let next = self.core().pages().adopted_within(range).next();
        if is_changing && range.pages > 0 {
            // The books have what was there. What a thread has mapped there meanwhile, its children must have.
            return Some((next.unwrap_or(range).end(), FromForks::Changing));
        }
        let next = next?;
        let is_taken = advise_for_fork::<H>(next, Advice::DontFork);
        let outcome = match (is_taken, self.memory.uffd.kernel_is_changing()) {
            (_, true) => FromForks::Changing,
            (true, false) => FromForks::Kept,
            (false, false) => FromForks::Refused,
        };
        if outcome == FromForks::Changing {
            // Something else may be mapped there by now, and a child that lacked it would die.
            let_fork_unless_kept::<H>(next, kept);
        }
        Some((next.end(), outcome))
    }

    pub(super) fn for_adopted(&self, mut visit: impl FnMut(PageRange)) {
        let mut from = PageNumber(0);
        loop {
            let next = self.core().pages().next_adopted_range(from);
            let Some(range) = next else { return };
            visit(range);
            from = range.end();
        }
    }
}

/// Children get `range`, but for what the program keeps from them. Returns what the kernel refuses to give them.
pub(super) fn let_fork_unless_kept<H: Host>(range: PageRange, kept: &Kept) -> Vec<PageRange> {
    kept.outside(range).flat_map(let_fork::<H>).collect()
}

/// Children get `range`. Returns what the kernel refuses to give them: at the first mapping that it refuses, it stops, so the others are
/// asked for one by one.
pub(crate) fn let_fork<H: Host>(range: PageRange) -> Vec<PageRange> {
    if advise_for_fork::<H>(range, Advice::DoFork) {
        return Vec::new();
    }
    let mut text = Vec::new();
    if H::Mappings::read_maps(&mut text).is_err() {
        return vec![range];
    }
    let parts = maps::vmas(&text).map(|vma| PageRange::of_bytes(vma.start, vma.end).intersection(range));
    parts.filter(|part| part.pages > 0 && !advise_for_fork::<H>(*part, Advice::DoFork)).collect()
}

/// Whether the kernel has taken the advice: not where that would make too many mappings, nor for what is sealed (mseal) and may
/// not be written to. A range that is not mapped any more needs none.
fn advise_for_fork<H: Host>(range: PageRange, advice: Advice) -> bool {
    match H::advise(range.start.address(), range.pages as usize * PAGE_SIZE, advice) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()),
    }
}
