//! Which page comes next, and by what chance.

use crate::workload::Workload;

/// Skew of the zipf pattern, the one YCSB uses: some 80 % of accesses go to 20 % of the pages.
const ZIPF_THETA: f64 = 0.99;

/// A splitmix64 stream: the same seed gives the same accesses under every back end.
pub struct Chance(u64);

impl Chance {
    /// By this seed.
    pub fn new(seed: u64) -> Chance {
        Chance(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// 0 up to `bound` - 1, each as likely as the other up to a part in 2^32.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// 0.0 up to, not including, 1.0.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Once in so many times.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// Which page comes next.
pub enum Order {
    Sequential { pages: u64, write: bool },
    Stride { pages: u64, next: u64, start: u64 },
    Random { pages: u64, write: bool },
    Zipf(Zipf),
}

impl Order {
    /// Of a pattern on so many pages.
    pub fn new(workload: Workload, pages: u64) -> Order {
        match workload {
            Workload::Fill | Workload::Burst | Workload::SeqWrite => Order::Sequential { pages, write: true },
            Workload::SeqRead => Order::Sequential { pages, write: false },
            Workload::Stride => Order::Stride { pages, next: 0, start: 0 },
            Workload::RandomRead => Order::Random { pages, write: false },
            Workload::RandomWrite | Workload::Swapoff => Order::Random { pages, write: true },
            Workload::Zipf => Order::Zipf(Zipf::new(pages)),
        }
    }

    /// The page of access number `step`, and whether it is written to.
    pub fn next(&mut self, step: u64, chance: &mut Chance) -> (u64, bool) {
        const STRIDE: u64 = 7;
        match self {
            Order::Sequential { pages, write } => (step % *pages, *write),
            Order::Stride { pages, next, start } => {
                let page = *next;
                *next += STRIDE;
                if *next >= *pages {
                    *start = (*start + 1) % STRIDE.min(*pages);
                    *next = *start;
                }
                (page, false)
            }
            Order::Random { pages, write } => (chance.below(*pages), *write),
            Order::Zipf(zipf) => (zipf.next(chance), chance.one_in(5)),
        }
    }
}

/// Pages by Zipf's law, after Gray et al., "Quickly generating billion-record synthetic databases" (1994).
pub struct Zipf {
    pages: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    fn new(pages: u64) -> Zipf {
        let zeta = |n: u64| (1..=n).map(|rank| libm::pow(rank as f64, -ZIPF_THETA)).sum::<f64>();
        let zeta_all = zeta(pages);
        let eta = (1.0 - libm::pow(2.0 / pages as f64, 1.0 - ZIPF_THETA)) / (1.0 - zeta(2) / zeta_all);
        Zipf { pages, zeta: zeta_all, alpha: 1.0 / (1.0 - ZIPF_THETA), eta }
    }

    fn next(&self, chance: &mut Chance) -> u64 {
        self.page_of_rank(self.rank(chance.fraction()))
    }

    /// The rank, most popular first, at `fraction` of the distribution.
    fn rank(&self, fraction: f64) -> u64 {
        let at = fraction * self.zeta;
        if at < 1.0 {
            0
        } else if at < 1.0 + libm::pow(0.5, ZIPF_THETA) {
            1
        } else {
            let rank = self.pages as f64 * libm::pow(self.eta * fraction - self.eta + 1.0, self.alpha);
            (rank as u64).min(self.pages - 1)
        }
    }

    /// Scatters the popular pages over the memory. A bijection: the prime does not divide a page count
    /// that is smaller than it.
    fn page_of_rank(&self, rank: u64) -> u64 {
        const PRIME: u128 = 2_654_435_761;
        (u128::from(rank) * PRIME % u128::from(self.pages)) as u64
    }
}
/// Spreads a number over 64 bits: the finalizer of splitmix64, a bijection.
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_and_stride_visit_each_page_once() {
        for workload in [Workload::SeqRead, Workload::SeqWrite, Workload::Stride] {
            for pages in [3, 7, 14, 100, 131] {
                let mut order = Order::new(workload, pages);
                let mut seen: Vec<u64> = (0..pages).map(|step| order.next(step, &mut Chance::new(0)).0).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..pages).collect::<Vec<_>>(), "{workload:?} of {pages}");
            }
        }
    }

    #[test]
    fn zipf_sends_most_accesses_to_a_fifth_of_the_pages() {
        let zipf = Zipf::new(10_000);
        let mut chance = Chance::new(3);
        let ranks: Vec<u64> = (0..100_000).map(|_| zipf.rank(chance.fraction())).collect();
        let popular = ranks.iter().filter(|&&rank| rank < 2_000).count();
        assert!((80_000..90_000).contains(&popular), "{popular}");
        assert!(ranks.iter().all(|&rank| rank < 10_000));
        let mut pages: Vec<u64> = (0..10_000).map(|rank| zipf.page_of_rank(rank)).collect();
        pages.sort_unstable();
        assert_eq!(pages, (0..10_000).collect::<Vec<_>>());
    }
}
