//! How long faults take, by where they found their page.

use uswap_system::atomic::{AtomicU64, Ordering::Relaxed};

/// Where a fault found its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum LatencyKind {
    /// Nowhere: it reads as zero.
    Zero,
    /// In the swap cache.
    SwapCache,
    /// In the compressed pool.
    Zswap,
    /// In a swap area.
    Area,
}

impl LatencyKind {
    /// Every kind, in the order of the shared array.
    pub const ALL: &'static [LatencyKind] =
        &[LatencyKind::Zero, LatencyKind::SwapCache, LatencyKind::Zswap, LatencyKind::Area];
    /// How many there are.
    pub const COUNT: usize = LatencyKind::ALL.len();

    /// The name that users see.
    pub const fn name(self) -> &'static str {
        match self {
            LatencyKind::Zero => "zero",
            LatencyKind::SwapCache => "swap_cache",
            LatencyKind::Zswap => "zswap",
            LatencyKind::Area => "area",
        }
    }
}

/// Octaves 0 to 33 of nanoseconds (17 s), 8 linear buckets in each; the first two share octave 0 to 2.
const BUCKETS: usize = 32 * 8;

/// A histogram of durations that several threads fill, exact to one eighth.
#[repr(C)]
pub struct Histogram {
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Histogram {
    /// An empty one.
    pub const fn new() -> Histogram {
        Histogram { max_ns: AtomicU64::new(0), buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }

    /// Counts one duration.
    pub fn record(&self, ns: u64) {
        self.buckets[Histogram::bucket(ns)].fetch_add(1, Relaxed);
        self.max_ns.fetch_max(ns, Relaxed);
    }

    fn bucket(ns: u64) -> usize {
        if ns < 8 {
            return ns as usize;
        }
        let octave = ns.ilog2();
        let eighth = (ns >> (octave - 3)) & 7;
        ((octave as usize - 2) * 8 + eighth as usize).min(BUCKETS - 1)
    }

    /// The largest duration that falls into a bucket.
    fn bucket_top_ns(bucket: usize) -> u64 {
        if bucket < 8 {
            return bucket as u64;
        }
        let octave = bucket / 8 + 2;
        let eighth = (bucket % 8) as u64;
        ((8 + eighth + 1) << (octave - 3)) - 1
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Relaxed)).sum()
    }

    /// The longest.
    pub fn max_ns(&self) -> u64 {
        self.max_ns.load(Relaxed)
    }

    /// The duration that `fraction` (0 to 1) of all did not exceed; None when nothing was counted.
    pub fn percentile_ns(&self, fraction: f64) -> Option<u64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let rank = ((total as f64 * fraction).ceil() as u64).clamp(1, total);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count.load(Relaxed);
            if seen >= rank {
                return Some(Histogram::bucket_top_ns(bucket).min(self.max_ns()));
            }
        }
        Some(self.max_ns())
    }

    /// Counts what `from` has counted, too.
    pub(super) fn add(&self, from: &Histogram) {
        self.max_ns.fetch_max(from.max_ns(), Relaxed);
        for (to, from) in self.buckets.iter().zip(&from.buckets) {
            to.fetch_add(from.load(Relaxed), Relaxed);
        }
    }

    /// Moves everything counted in `from` to `self`.
    pub(super) fn absorb(&self, from: &Histogram) {
        self.max_ns.fetch_max(from.max_ns.swap(0, Relaxed), Relaxed);
        for (to, from) in self.buckets.iter().zip(&from.buckets) {
            // Looking first spares a page of a histogram that was never used.
            if from.load(Relaxed) != 0 {
                to.fetch_add(from.swap(0, Relaxed), Relaxed);
            }
        }
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_is_exact_to_an_eighth() {
        let histogram = Histogram::new();
        assert_eq!(histogram.percentile_ns(0.5), None);
        let mut before = 0;
        for shift in 0..34 {
            for ns in [1u64 << shift, (1 << shift) + (1 << shift) / 2, (2 << shift) - 1] {
                let bucket = Histogram::bucket(ns);
                let top = Histogram::bucket_top_ns(bucket);
                assert!(top >= ns && top <= ns + ns / 8, "{ns} in bucket {bucket} up to {top}");
                assert!(bucket >= before);
                before = bucket;
            }
        }
        assert_eq!(Histogram::bucket(u64::MAX), BUCKETS - 1);
        for ns in 1..=1000 {
            histogram.record(ns * 1000);
        }
        let median = histogram.percentile_ns(0.5).unwrap();
        assert!((500_000..=570_000).contains(&median), "{median}");
        assert_eq!(histogram.percentile_ns(1.0), Some(1_000_000));
    }
}
