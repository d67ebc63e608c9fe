//! What must hold of every window, read and hit; checked by the simulator after each event.

use alloc::collections::BTreeSet;
use core::fmt;
use core::ops::Range;

/// A rule of readahead is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A window is neither a power of two up to the maximum nor half of the one before.
    Window {
        /// The window.
        window: u32,
        /// `2^page_cluster`.
        max: u32,
        /// The window before.
        previous: u32,
    },
    /// A slot was read that is the header, bad, free, or outside of its block.
    Read {
        /// The slot.
        slot: u64,
    },
    /// A hit was counted on a page that readahead did not bring, or for a second time.
    Hit {
        /// The slot of the page.
        slot: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Window { window, max, previous } => write!(
                out,
                "readahead window {window} is neither a power of two up to {max} nor half of the window before, {previous}"
            ),
            Self::Read { slot } => write!(out, "readahead read slot {slot}, which is no slot in use of its block"),
            Self::Hit { slot } => write!(out, "a readahead hit was counted on slot {slot}, which has none to count"),
        }
    }
}

impl core::error::Error for Violation {}

/// A window is 1, 2, 4, ... `max`, or half of the `previous` one.
///
/// # Errors
/// [`Violation::Window`].
pub fn check_window(window: u32, max: u32, previous: u32) -> Result<(), Violation> {
    let fits = window.is_power_of_two() && window <= max;
    let halved = window > 0 && window == previous / 2;
    if fits || halved { Ok(()) } else { Err(Violation::Window { window, max, previous }) }
}

/// The slots `read` lie in `block` and are in use; slot 0 never is. `in_use` is false for bad and free slots.
///
/// # Errors
/// [`Violation::Read`] with the first slot that must not be read.
pub fn check_reads(
    block: &Range<u64>,
    read: impl IntoIterator<Item = u64>,
    in_use: impl Fn(u64) -> bool,
) -> Result<(), Violation> {
    let allowed = |slot: &u64| *slot != 0 && block.contains(slot) && in_use(*slot);
    match read.into_iter().find(|slot| !allowed(slot)) {
        Some(slot) => Err(Violation::Read { slot }),
        None => Ok(()),
    }
}

/// Pages that readahead brought to one area and that may still be counted as a hit, each once.
#[derive(Clone, Default, Debug)]
pub struct HitLedger {
    brought: BTreeSet<u64>,
}

impl HitLedger {
    /// Readahead brought the page of `slot`.
    pub fn brought(&mut self, slot: u64) {
        self.brought.insert(slot);
    }

    /// The page of `slot` left the swap cache, wanted or not.
    pub fn dropped(&mut self, slot: u64) {
        self.brought.remove(&slot);
    }

    /// A hit was counted on the page of `slot`.
    ///
    /// # Errors
    /// [`Violation::Hit`] when there was none to count.
    pub fn hit(&mut self, slot: u64) -> Result<(), Violation> {
        if self.brought.remove(&slot) { Ok(()) } else { Err(Violation::Hit { slot }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_checker_fires() {
        for (window, previous) in [(1, 0), (2, 0), (4, 0), (8, 0), (8, 16), (12, 24)] {
            assert_eq!(check_window(window, 8, previous), Ok(()));
        }
        for (window, previous) in [(0, 0), (0, 1), (3, 0), (16, 16), (16, 0), (12, 16)] {
            assert_eq!(check_window(window, 8, previous), Err(Violation::Window { window, max: 8, previous }));
        }
    }

    #[test]
    fn the_read_checker_fires() {
        let in_use = |slot| slot != 13;
        assert_eq!(check_reads(&(8..16), [8, 12, 15], in_use), Ok(()));
        assert_eq!(check_reads(&(8..16), [8, 13], in_use), Err(Violation::Read { slot: 13 }));
        assert_eq!(check_reads(&(8..16), [16], in_use), Err(Violation::Read { slot: 16 }));
        assert_eq!(check_reads(&(0..8), [0], in_use), Err(Violation::Read { slot: 0 }));
    }

    #[test]
    fn the_hit_checker_fires() {
        let mut ledger = HitLedger::default();
        assert_eq!(ledger.hit(5), Err(Violation::Hit { slot: 5 }));
        ledger.brought(5);
        assert_eq!(ledger.hit(5), Ok(()));
        assert_eq!(ledger.hit(5), Err(Violation::Hit { slot: 5 }));
        ledger.brought(6);
        ledger.dropped(6);
        assert_eq!(ledger.hit(6), Err(Violation::Hit { slot: 6 }));
    }
}
