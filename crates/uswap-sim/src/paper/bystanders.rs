//! Programs that go on while swapoff works: now and then one of them touches pages that readahead has brought, and those
//! are hits that swapoff's next window is reckoned with.

use crate::chance::Chance;

/// How they go on.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Bursts a second; they come at any time.
    pub bursts_per_second: f64,
    /// Mean number of hits in a burst; each further one is as probable as the one before.
    pub hits_mean: f64,
}

/// Their hits, as time passes.
pub(super) struct Hits {
    faults: Faults,
    next_ns: f64,
    chance: Chance,
}

impl Hits {
    pub fn new(faults: Faults, chance: Chance) -> Self {
        let mut hits = Self { faults, next_ns: 0.0, chance };
        hits.wait();
        hits
    }

    /// Hits that there were up to `now_ns` and were not told yet.
    pub fn until(&mut self, now_ns: u64) -> u64 {
        let mut hits = 0;
        while self.next_ns <= now_ns as f64 {
            hits += 1;
            while self.chance.with(1.0 - 1.0 / self.faults.hits_mean) {
                hits += 1;
            }
            self.wait();
        }
        hits
    }

    fn wait(&mut self) {
        self.next_ns += -(1.0 - self.chance.fraction()).ln() / self.faults.bursts_per_second * 1e9;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_hits_as_were_asked_for() {
        let faults = Faults { bursts_per_second: 1000.0, hits_mean: 12.0 };
        let mut hits = Hits::new(faults, Chance::new(1));
        let told: u64 = (1..=1000).map(|step| hits.until(step * 10_000_000)).sum();
        assert!((110_000..130_000).contains(&told), "{told} hits in ten seconds");
    }
}
