//! Chance: one seed, and everything that happens by chance follows from it.

use oorandom::Rand64;

/// A stream of random numbers. Streams of the same seed and different `stream` are independent.
#[derive(Clone, Debug)]
pub struct Chance {
    source: Rand64,
}

impl Chance {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self::stream(seed, 0)
    }

    /// Stream number `stream` of `seed`.
    pub fn stream(seed: u64, stream: u64) -> Self {
        // The generator's first numbers for neighbouring seeds are related; a multiplication parts them.
        let state =
            (u128::from(seed) << 64 | u128::from(stream)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let mut source = Rand64::new(state ^ state >> 71);
        let _ = source.rand_u64();
        Self { source }
    }

    /// Any number.
    #[inline]
    pub fn any(&mut self) -> u64 {
        self.source.rand_u64()
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        // The upper bits of a product: the bias is below bound / 2^64.
        ((u128::from(self.source.rand_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An index below `len`.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number from 0 (included) to 1 (excluded).
    #[inline]
    pub fn fraction(&mut self) -> f64 {
        self.source.rand_float()
    }

    /// True in `parts` of `of` cases.
    #[inline]
    pub fn happens(&mut self, parts: u64, of: u64) -> bool {
        parts > 0 && self.below(of) < parts
    }

    /// True with `probability` (0 to 1). Draws no number when the answer is certain.
    #[inline]
    pub fn with(&mut self, probability: f64) -> bool {
        probability > 0.0 && (probability >= 1.0 || self.fraction() < probability)
    }

    /// Normally distributed, mean 0, standard deviation 1.
    pub fn normal(&mut self) -> f64 {
        // Box and Muller; 1 - x is never 0.
        let radius = (-2.0 * (1.0 - self.fraction()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.fraction()).cos()
    }

    /// Puts `items` in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_others() {
        let draw = |seed, stream| {
            let mut chance = Chance::stream(seed, stream);
            (0..4).map(|_| chance.any()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 0), draw(7, 0));
        assert_ne!(draw(7, 0), draw(8, 0));
        assert_ne!(draw(7, 0), draw(7, 1));
    }

    #[test]
    fn numbers_are_spread_evenly() {
        let mut counts = [0u32; 10];
        // The first number of each of many seeds: what a soak of short schedules lives on.
        for seed in 0..100_000 {
            counts[Chance::new(seed).index(10)] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_normal_number_has_mean_0_and_deviation_1() {
        let mut chance = Chance::new(3);
        let numbers: Vec<f64> = (0..100_000).map(|_| chance.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn a_shuffle_keeps_all_items() {
        let mut items: Vec<u32> = (0..100).collect();
        Chance::new(1).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
