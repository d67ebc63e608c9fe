//! Rest: a monitor of many has nothing to do while its process takes no faults.
//!
//! What a process has grows by faults alone. One that is below its share of the budget need not give way to others at once, either. So as long
//! as both hold, and nobody has posted anything, its monitor looks at its faults alone, and does the rest in longer steps. With 27
//! processes on two CPUs, the looks of those that did nothing had taken a third of the machine.

use std::time::{Duration, Instant};

use uswap_core::budget::Usage;
use uswap_core::tuning;
use uswap_system::looks::Footprint;

use crate::host::Host;

/// See the file's head.
#[derive(Default)]
pub(super) struct Rest {
    /// The process is one of many.
    is_of_many: bool,
    begun: Option<Begun>,
}

struct Begun {
    at: Instant,
    /// [`Footprint::sign_of_growth`] before its monitor last looked at everything.
    sign: u64,
    /// What had been posted before.
    posted: u32,
    /// How long to sleep, and whether forks may go on meanwhile.
    sleep: (Duration, bool),
}

/// A look at everything, which may be followed by rest; not where it is not known what had been before.
pub(super) struct Look {
    at: Instant,
    sign: Option<u64>,
    posted: u32,
}

impl Rest {
    /// What the last look at everything came to, if nothing has happened since and that is not long ago.
    pub fn goes_on<H: Host>(&self, posted: u32) -> Option<(Duration, bool)> {
        let begun = self.begun.as_ref()?;
        let goes_on = begun.posted == posted
            && H::since(begun.at) < tuning::REST_MAX
            && H::Footprint::sign_of_growth().is_ok_and(|sign| sign == begun.sign);
        goes_on.then_some(begun.sleep)
    }

    /// A look at everything begins: what comes from here on is seen by the next one at the latest.
    pub fn ends<H: Host>(&mut self, posted: u32) -> Look {
        self.begun = None;
        let sign = if self.is_of_many { H::Footprint::sign_of_growth().ok() } else { None };
        Look { at: H::now(), sign, posted }
    }

    /// It has ended.
    pub fn begins(&mut self, look: Look, usage: &Usage, sleep: (Duration, bool)) {
        self.is_of_many = usage.processes > tuning::FEW_PROCESSES;
        let Look { at, sign: Some(sign), posted } = look else { return };
        if self.is_of_many && usage.is_below_its_share() {
            self.begun = Some(Begun { at, sign, posted, sleep });
        }
    }
}

#[cfg(test)]
mod tests {
    use uswap_sys::linux::Linux;

    use super::*;

    const SLEEP: (Duration, bool) = (Duration::from_millis(3), false);

    /// After a look of a process that has `mine` pages of a share of 2000.
    fn after(mine: u64, processes: u64) -> Rest {
        let mut rest = Rest::default();
        let usage = Usage { limit: 2000 * processes, total: mine, mine, processes, ..Usage::default() };
        // No fault of this test's process comes between its look and this one's.
        let look = Look { sign: Some(u64::MAX), ..rest.ends::<Linux>(7) };
        rest.begins(look, &usage, SLEEP);
        rest
    }

    #[test]
    fn who_is_one_of_many_and_below_its_share_rests() {
        assert!(after(1000, 27).begun.is_some());
        assert!(after(1900, 27).begun.is_none(), "it may have to give way");
        assert!(after(1000, 2).begun.is_none());
    }

    #[test]
    fn it_does_not_rest_when_something_has_happened() {
        let rest = after(1000, 27);
        assert_eq!(rest.goes_on::<Linux>(7), None, "it has had other faults");
        let mut rest = Rest::default();
        let usage = Usage { limit: 54_000, total: 1000, mine: 1000, processes: 27, ..Usage::default() };
        let quiet = (0..1000).any(|_| {
            let look = rest.ends::<Linux>(7);
            rest.begins(look, &usage, SLEEP);
            rest.goes_on::<Linux>(7) == Some(SLEEP)
        });
        assert!(quiet);
        assert_eq!(rest.goes_on::<Linux>(8), None, "something was posted");
        rest.begun.as_mut().expect("it rests").at -= tuning::REST_MAX;
        assert_eq!(rest.goes_on::<Linux>(7), None, "it has rested for long enough");
    }
}
