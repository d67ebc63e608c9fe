//! How long one request takes: a distribution.

use serde::Deserialize;

use crate::chance::Chance;

/// A distribution of latencies.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Latency {
    /// Always the same, in microseconds.
    FixedUs(f64),
    /// Anything between two bounds, in microseconds.
    UniformUs {
        /// The shortest.
        least: f64,
        /// The longest.
        most: f64,
    },
    /// Log-normal: most near the median, a few much longer.
    SpreadUs {
        /// Half are shorter, in microseconds.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Percentiles in ascending order, each `[percent, microseconds]`; straight lines between them.
    PercentilesUs(Vec<[f64; 2]>),
}

impl Latency {
    /// What is wrong with it.
    pub fn problem(&self) -> Option<String> {
        let bad = |what: &str| Some(format!("{what} must be a number of microseconds from 0 to 10000000"));
        let is_time = |us: f64| (0.0..=1e7).contains(&us);
        match self {
            Self::FixedUs(us) if !is_time(*us) => bad("fixed_us"),
            Self::UniformUs { least, most } if !is_time(*least) || !is_time(*most) => bad("uniform_us"),
            Self::UniformUs { least, most } if least > most => Some("uniform_us: 'least' is more than 'most'".into()),
            Self::SpreadUs { median, .. } if !is_time(*median) => bad("spread_us.median"),
            Self::SpreadUs { sigma, .. } if !(0.0..=3.0).contains(sigma) => {
                Some("spread_us.sigma must be from 0 to 3".into())
            }
            Self::PercentilesUs(points) if points.len() < 2 => Some("percentiles_us needs at least two points".into()),
            Self::PercentilesUs(points) if points.iter().any(|[_, us]| !is_time(*us)) => bad("percentiles_us"),
            Self::PercentilesUs(points)
                if points[0][0] != 0.0
                    || points[points.len() - 1][0] != 100.0
                    || points.windows(2).any(|pair| pair[0][0] >= pair[1][0] || pair[0][1] > pair[1][1]) =>
            {
                Some("percentiles_us must go from 0 to 100 percent in ascending order".into())
            }
            _ => None,
        }
    }

    /// One latency, in nanoseconds.
    pub fn draw_ns(&self, chance: &mut Chance) -> u64 {
        let us = match self {
            Self::FixedUs(us) => *us,
            Self::UniformUs { least, most } => least + (most - least) * chance.fraction(),
            Self::SpreadUs { median, sigma } => median * (sigma * chance.normal()).exp(),
            Self::PercentilesUs(points) => {
                let percent = 100.0 * chance.fraction();
                let above = points.partition_point(|[at, _]| *at <= percent).clamp(1, points.len() - 1);
                let ([from, low], [to, high]) = (points[above - 1], points[above]);
                low + (high - low) * (percent - from) / (to - from)
            }
        };
        (us * 1000.0).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median_ns(latency: &Latency) -> u64 {
        let mut chance = Chance::new(5);
        let mut drawn: Vec<u64> = (0..10_001).map(|_| latency.draw_ns(&mut chance)).collect();
        drawn.sort_unstable();
        drawn[5000]
    }

    #[test]
    fn each_distribution_has_the_median_it_promises() {
        assert_eq!(median_ns(&Latency::FixedUs(80.0)), 80_000);
        let near = |found: u64, expected: f64| (found as f64 / expected - 1.0).abs() < 0.03;
        assert!(near(median_ns(&Latency::UniformUs { least: 50.0, most: 150.0 }), 100_000.0));
        assert!(near(median_ns(&Latency::SpreadUs { median: 80.0, sigma: 0.5 }), 80_000.0));
        let points = vec![[0.0, 10.0], [50.0, 20.0], [100.0, 1000.0]];
        assert!(near(median_ns(&Latency::PercentilesUs(points)), 20_000.0));
    }

    #[test]
    fn impossible_distributions_are_refused() {
        for latency in [
            Latency::FixedUs(-1.0),
            Latency::FixedUs(f64::NAN),
            Latency::UniformUs { least: 2.0, most: 1.0 },
            Latency::SpreadUs { median: 1.0, sigma: 30.0 },
            Latency::PercentilesUs(vec![[0.0, 1.0]]),
            Latency::PercentilesUs(vec![[0.0, 1.0], [50.0, 0.5], [100.0, 2.0]]),
        ] {
            assert!(latency.problem().is_some(), "{latency:?}");
        }
        assert_eq!(Latency::FixedUs(0.0).problem(), None);
    }
}
