//! Zipf's law: the page of rank k is touched in proportion to 1/k^theta.

use crate::chance::Chance;

/// Draws ranks by the method of Gray and others (SIGMOD 1994): one number and one power a draw.
#[derive(Clone, Debug)]
pub struct Zipf {
    ranks: f64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Ranks below `ranks`; `theta` from 0 (all alike) to below 1.
    pub fn new(ranks: u64, theta: f64) -> Self {
        let sum = |ranks: u64| (1..=ranks).map(|rank| (rank as f64).powf(-theta)).sum::<f64>();
        let zeta = sum(ranks);
        let count = ranks as f64;
        let eta = (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - sum(2.min(ranks)) / zeta);
        Self { ranks: count, theta, zeta, eta }
    }

    /// A rank, 0 the most likely.
    pub fn draw(&self, chance: &mut Chance) -> u64 {
        let drawn = chance.fraction();
        let scaled = drawn * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.ranks as u64 - 1);
        }
        let rank = self.ranks * (self.eta * drawn - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
        (rank as u64).min(self.ranks as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_is_twice_as_likely_as_the_second_when_theta_is_near_1() {
        let (zipf, mut chance) = (Zipf::new(1000, 0.99), Chance::new(1));
        let mut counts = [0u64; 1000];
        (0..200_000).for_each(|_| counts[zipf.draw(&mut chance) as usize] += 1);
        let ratio = counts[0] as f64 / counts[1] as f64;
        assert!((1.8..2.2).contains(&ratio), "{ratio}");
        assert!(counts[0] > 20_000 && counts[999] < 100);
    }

    #[test]
    fn theta_0_is_even() {
        let (zipf, mut chance) = (Zipf::new(100, 0.0), Chance::new(1));
        let mut counts = [0u64; 100];
        (0..100_000).for_each(|_| counts[zipf.draw(&mut chance) as usize] += 1);
        assert!(counts[2..].iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
