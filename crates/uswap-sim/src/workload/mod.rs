//! Workloads: programs that touch pages, made from a few numbers and a seed.
//!
//! A workload is written as `NAME` or `NAME:key=value,...`; what is not given has a default.

mod build;
mod database;
mod simple;
mod zipf;

use std::collections::BTreeMap;

pub use zipf::Zipf;

use crate::chance::Chance;
use crate::trace::Access;

/// The names, each with what it is.
pub const NAMES: &[(&str, &str)] = &[
    ("sequential", "page after page, round after round, half of the rounds written"),
    ("random", "any page, all alike"),
    ("zipf", "few pages often, most rarely (theta=0.99)"),
    ("loop", "the same pages round and round"),
    ("stride", "every stride-th page, then the ones beside them (stride=16)"),
    ("sysbench", "OLTP transactions: point reads, short ranges, a few writes; some rows are hotter"),
    ("memtier", "a key-value store: an index page and a value page, one write in eleven"),
    ("zero", "memory that is filled with zeros once and then read"),
    ("kernel-build", "32 compilers at a time, each with memory of its own and the same headers"),
];

/// What a workload was asked for.
#[derive(Clone, PartialEq, Debug)]
pub struct Spec {
    name: &'static str,
    /// Pages of the program.
    pub pages: u64,
    /// Accesses.
    pub accesses: u64,
    /// Skew of what is skewed.
    pub theta: f64,
    /// Distance of strided accesses.
    pub stride: u64,
    /// Percent of writes, where the workload leaves that open.
    pub writes: u64,
}

impl Spec {
    /// Reads `NAME:key=value,...`. The error says what is wrong and what there is.
    pub fn parse(text: &str) -> Result<Spec, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        let name = *names
            .iter()
            .find(|known| **known == name)
            .ok_or_else(|| format!("unknown workload '{name}'; choose one of {}", names.join(" ")))?;
        let mut given: BTreeMap<&str, &str> = BTreeMap::new();
        for pair in rest.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("'{pair}' is not of the form key=value"))?;
            if given.insert(key, value).is_some() {
                return Err(format!("'{key}' is given twice"));
            }
        }
        let mut number = |key: &str, default: u64, least: u64, most: u64| match given.remove(key) {
            None => Ok(default),
            Some(value) => value
                .parse()
                .ok()
                .filter(|number| (least..=most).contains(number))
                .ok_or_else(|| format!("{key}={value}: it must be a number from {least} to {most}")),
        };
        let pages = number("pages", 100_000, 2, 1 << 32)?;
        let accesses = number("accesses", 1_000_000, 1, 1 << 40)?;
        let stride = number("stride", 16, 1, pages)?;
        let writes = number("writes", 30, 0, 100)?;
        let theta = match given.remove("theta") {
            None => 0.99,
            Some(value) => value
                .parse()
                .ok()
                .filter(|theta| (0.0..1.0).contains(theta))
                .ok_or_else(|| format!("theta={value}: it must be from 0 to below 1"))?,
        };
        match given.keys().next() {
            Some(key) => Err(format!("unknown key '{key}'; there are pages accesses theta stride writes")),
            None => Ok(Spec { name, pages, accesses, theta, stride, writes }),
        }
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its accesses.
    pub fn accesses(&self, seed: u64) -> Box<dyn Iterator<Item = Access>> {
        let chance = Chance::new(seed);
        let count = self.accesses as usize;
        let endless: Box<dyn Iterator<Item = Access>> = match self.name {
            "sequential" => Box::new(simple::sequential(self)),
            "random" => Box::new(simple::random(self, chance)),
            "zipf" => Box::new(simple::zipf(self, chance)),
            "loop" => Box::new(simple::round_and_round(self)),
            "stride" => Box::new(simple::strided(self)),
            "sysbench" => Box::new(database::sysbench(self, chance)),
            "memtier" => Box::new(database::memtier(self, chance)),
            "zero" => Box::new(simple::zero(self)),
            "kernel-build" => Box::new(build::kernel_build(self, chance)),
            other => unreachable!("{other} is in the list of names"),
        };
        Box::new(endless.take(count))
    }
}

/// Another order of 0..`ranks`, so that hot pages do not lie side by side.
fn scattered(rank: u64, ranks: u64) -> u64 {
    // Multiplication by a number that shares no factor with `ranks` reaches each page once.
    let mut step = ranks / 2 + ranks / 8 + 1;
    while gcd(step, ranks) != 1 {
        step += 1;
    }
    (u128::from(rank) * u128::from(step) % u128::from(ranks)) as u64
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn take(text: &str) -> Vec<Access> {
        Spec::parse(text).unwrap().accesses(1).collect()
    }

    #[test]
    fn every_workload_gives_what_was_asked_for_and_the_same_again() {
        for (name, _) in NAMES {
            let text = format!("{name}:pages=5000,accesses=20000");
            let accesses = take(&text);
            assert_eq!(accesses.len(), 20_000, "{name}");
            assert_eq!(accesses, take(&text));
            let distinct: BTreeSet<(u32, u64)> = accesses.iter().map(|access| (access.process, access.page)).collect();
            assert!((100..=20_000).contains(&distinct.len()), "{name}: {} pages", distinct.len());
        }
    }

    #[test]
    fn each_has_its_shape() {
        let pages = |text: &str| take(text).iter().map(|access| access.page).collect::<Vec<_>>();
        assert_eq!(pages("sequential:pages=3,accesses=5"), [0, 1, 2, 0, 1]);
        assert_eq!(pages("loop:pages=3,accesses=4"), [0, 1, 2, 0]);
        assert_eq!(pages("stride:pages=6,stride=3,accesses=6"), [0, 3, 1, 4, 2, 5]);
        let zero = take("zero:pages=2,accesses=4");
        assert_eq!(zero.iter().map(|access| access.write).collect::<Vec<_>>(), [true, true, false, false]);
        let processes: BTreeSet<u32> =
            take("kernel-build:pages=5000,accesses=50000").iter().map(|access| access.process).collect();
        assert!(processes.len() > 32);
    }

    #[test]
    fn a_scattered_order_reaches_every_page_once() {
        for ranks in [2, 7, 100, 4096] {
            assert_eq!((0..ranks).map(|rank| scattered(rank, ranks)).collect::<BTreeSet<_>>().len() as u64, ranks);
        }
    }

    #[test]
    fn bad_specifications_are_refused_in_one_line() {
        for (text, part) in [
            ("zipfy", "unknown workload 'zipfy'"),
            ("zipf:pages", "key=value"),
            ("zipf:pages=1", "pages=1: it must be"),
            ("zipf:theta=1.5", "theta=1.5"),
            ("zipf:size=3", "unknown key 'size'"),
            ("zipf:pages=5,pages=6", "twice"),
        ] {
            let error = Spec::parse(text).unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
    }
}
