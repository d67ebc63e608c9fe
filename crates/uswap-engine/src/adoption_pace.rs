//! Adoption's pace: how often the monitor looks at what the program has mapped and filled.

use std::time::{Duration, Instant};

/// While it reclaims, the monitor looks this often at what the program has mapped and filled: what it fills at 1 GiB/s in
/// this time is much less than what is adopted ahead.
const EVERY: Duration = Duration::from_millis(4);
/// Not while so few pages more are resident than the books know of, in pages: reading the maps costs a process 0.1 to 0.2 ms.
const PAGES: u64 = 128;
/// The same past the limit.
const PAGES_URGENT: u64 = 16;
/// But so often at least: pages that leave memory which is not adopted hide others that come.
const EVERY_MAX: Duration = Duration::from_millis(20);
/// Looking in vain takes at most one part in this many of the monitor's time.
const COST: u32 = 8;
/// The same past the limit.
const COST_URGENT: u32 = 2;

/// What the last look came to, and when the next one is due.
pub(crate) struct AdoptionPace {
    ended: Instant,
    took: Duration,
    /// There was something new: a program that fills memory at this moment will soon have more.
    found: bool,
    /// Resident pages that the books do not know: the fewest since then.
    unmanaged: u64,
}

impl AdoptionPace {
    /// No look yet, at the time `now`.
    pub fn new(now: Instant) -> Self {
        Self { ended: now, took: Duration::ZERO, found: true, unmanaged: 0 }
    }

    /// A look that began at `begun` is over at `ended` and came to `found` new pages, with `unmanaged` resident pages unknown to the
    /// books before. Returns the time since the look before it.
    pub fn looked(&mut self, begun: Instant, ended: Instant, found: bool, unmanaged: u64) -> Duration {
        let since = ended - self.ended;
        *self = Self { ended, took: ended - begun, found, unmanaged };
        since
    }

    /// Until the next look, at least.
    fn pause(&self, urgent: bool) -> Duration {
        if urgent {
            return self.took * if self.found { 1 } else { COST_URGENT };
        }
        (self.took * if self.found { 1 } else { COST }).max(EVERY)
    }

    /// Whether `now` is the time for the next look, when `unmanaged` resident pages are unknown to the books. `is_likely`: there is
    /// something new, whatever their number.
    pub fn is_due(&mut self, now: Instant, urgent: bool, is_likely: bool, unmanaged: u64) -> bool {
        self.unmanaged = self.unmanaged.min(unmanaged);
        let since = now.saturating_duration_since(self.ended);
        let pages = if urgent { PAGES_URGENT } else { PAGES };
        let is_likely = is_likely || unmanaged > self.unmanaged + pages;
        since >= self.pause(urgent) && (is_likely || since > EVERY_MAX)
    }
}
