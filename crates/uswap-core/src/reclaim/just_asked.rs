//! Pages that threads have just asked for: they stay until those threads have had a chance to run.
//!
//! The kernel evicts no page from under the instruction that faulted on it: the fault ends in the task itself, which goes on at
//! once. Here a thread is woken, and runs when it gets a processor. Where memory is so scarce that every block that is left is
//! one of those, its page would leave again before it has been touched, and an instruction that needs several pages would
//! never have them all at a time. So the last few pages that were asked for are passed over, until some blocks have left.

use crate::units::{BLOCK_PAGES, PageNumber};

/// Two threads, each with as many pages as one instruction of x86-64 is likely to need.
const PAGES: usize = 8;
/// Blocks that leave until a page may, even if nothing else is asked for meanwhile: one for each of those, and the block beside it
/// that readahead brought in.
const BLOCKS: u32 = 16;

/// The last pages that were asked for.
#[derive(Clone, Debug)]
pub(crate) struct JustAsked {
    /// When each was: so many blocks had left.
    pages: [(PageNumber, u32); PAGES],
    next: usize,
}

impl Default for JustAsked {
    fn default() -> Self {
        JustAsked { pages: [(PageNumber(u64::MAX), 0); PAGES], next: 0 }
    }
}

impl JustAsked {
    /// A thread has faulted on `page`, or has just been given it, when `left` blocks had left. Fault path.
    pub fn note(&mut self, page: PageNumber, left: u32) {
        match self.pages.iter_mut().find(|(asked, _)| *asked == page) {
            Some((_, at)) => *at = left,
            None => {
                self.pages[self.next] = (page, left);
                self.next = (self.next + 1) % PAGES;
            }
        }
    }

    /// Which pages of the block that begins at `first` stay, when `left` blocks have left.
    pub fn in_block(&self, first: PageNumber, left: u32) -> u16 {
        let recent = self.pages.iter().filter(|(_, at)| left.wrapping_sub(*at) < BLOCKS);
        let distances = recent.map(|(page, _)| page.0.wrapping_sub(first.0));
        distances.filter(|&distance| distance < BLOCK_PAGES as u64).fold(0, |stay, index| stay | 1 << index)
    }
}
