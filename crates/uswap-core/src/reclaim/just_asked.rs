//! Pages that threads have just asked for: they stay until those threads have had a chance to run.
//!
//! The kernel evicts no page from under the instruction that faulted on it: the fault ends in the task itself, which goes on at
//! once. Here a thread is woken, and runs when it gets a processor. Where memory is so scarce that every block that is left is
//! one of those, its page would leave again before it has been touched, and an instruction that needs several pages would
//! never have them all at a time. So the last few pages that were asked for are passed over, until nobody asks for
//! anything. Where there are more blocks, those are the last in their order anyway; but of the others all may be such as cannot be
//! moved.

use crate::units::{BLOCK_PAGES, PageNumber};

/// Four threads, each with as many pages as one instruction of x86-64 is likely to need.
const PAGES: usize = 16;

/// The last pages that were asked for.
#[derive(Clone, Debug)]
pub(crate) struct JustAsked {
    /// The newest first.
    pages: [PageNumber; PAGES],
    /// Whether anything was asked for since [`grow_old`](Self::grow_old) was last called.
    is_young: bool,
}

impl Default for JustAsked {
    fn default() -> Self {
        JustAsked { pages: [PageNumber(u64::MAX); PAGES], is_young: false }
    }
}

impl JustAsked {
    /// A thread has faulted on `page`, or has just been given it. Fault path.
    pub fn note(&mut self, page: PageNumber) {
        self.is_young = true;
        let place = self.pages.iter().position(|&other| other == page).unwrap_or(PAGES - 1);
        self.pages.copy_within(..place, 1);
        self.pages[0] = page;
    }

    /// Time has passed: if nothing was asked for since this was last called, all may leave.
    pub fn grow_old(&mut self) {
        if !core::mem::take(&mut self.is_young) {
            *self = JustAsked::default();
        }
    }

    /// Which pages of the block that begins at `first` stay.
    pub fn in_block(&self, first: PageNumber) -> u16 {
        let distances = self.pages.iter().map(|page| page.0.wrapping_sub(first.0));
        distances.filter(|&distance| distance < BLOCK_PAGES as u64).fold(0, |stay, index| stay | 1 << index)
    }
}
