//! Chance: one seed, and everything that happens by chance follows from it. The algorithm is that of the simulator's.

use oorandom::Rand64;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Chance {
    source: Rand64,
}

impl Chance {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        // The generator's first numbers for neighbouring seeds are related; a multiplication parts them.
        let state = (u128::from(seed) << 64).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let mut source = Rand64::new(state ^ state >> 71);
        let _ = source.rand_u64();
        Self { source }
    }

    /// Another stream, of what came later than the seeds that are on record: from this one nothing is drawn, so that what follows of it stays as
    /// it is.
    pub fn apart(&self) -> Self {
        Self::new(self.clone().any())
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.source.rand_u64()
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        // The upper bits of a product: the bias is below bound / 2^64.
        ((u128::from(self.source.rand_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in `parts` of `of` cases. Draws no number when it never is.
    pub fn happens(&mut self, parts: u64, of: u64) -> bool {
        parts > 0 && self.below(of) < parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let draw = |seed| {
            let mut chance = Chance::new(seed);
            (0..4).map(|_| chance.any()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn a_stream_apart_takes_nothing_of_the_other() {
        let (mut one, mut two) = (Chance::new(7), Chance::new(7));
        let mut apart = two.apart();
        assert_ne!(apart.any(), two.clone().any());
        assert_eq!((one.any(), one.any()), (two.any(), two.any()));
    }
}
