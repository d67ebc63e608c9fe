//! Counting mode: which accesses miss, and what the misses cost on a device. No time passes but that of misses.

mod compare;
mod pages;

pub use compare::{Curve, compare, sizes_for};
pub use pages::{PageNames, numbered};

use uswap_core::replacement::{Access as Touched, Replacement};

use crate::chance::Chance;
use crate::costs::CpuCosts;
use crate::device::{Device, Direction, Profile, Request};
use crate::trace::Access;

/// What a run came to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Counts {
    /// Accesses.
    pub accesses: u64,
    /// Distinct pages.
    pub pages: u64,
    /// Accesses to pages that were not in memory.
    pub misses: u64,
    /// Misses on pages that had been there before: they are read from the device.
    pub reads: u64,
    /// Pages that left and had changed since they came: they are written.
    pub writes: u64,
    /// Pages that left unchanged.
    pub clean: u64,
    /// Time that the program waited, in nanoseconds.
    pub stalled_ns: u64,
    /// Bytes for what is kept of each distinct page, at the end.
    pub bytes: u64,
}

impl Counts {
    /// Misses of an access.
    pub fn miss_ratio(&self) -> f64 {
        self.misses as f64 / self.accesses.max(1) as f64
    }
}

/// A page that was in memory before.
const SEEN: u8 = 1;
/// It has changed since it came.
const DIRTY: u8 = 2;

/// Runs `accesses` through `policy`. Misses on pages that were there before are read from the device one by one; what
/// leaves changed is written behind the program's back.
pub fn run(
    accesses: impl Iterator<Item = Access>,
    policy: &mut dyn Replacement,
    profile: &Profile,
    seed: u64,
) -> Counts {
    let mut device = Device::new(profile.clone(), Chance::stream(seed, 1));
    let fault_ns = CpuCosts::table().fault.ns;
    let mut names = PageNames::default();
    let mut flags: Vec<u8> = Vec::new();
    let mut counts = Counts::default();
    let mut now_ns = 0;
    for access in accesses {
        counts.accesses += 1;
        let page = names.number(access);
        if page as usize == flags.len() {
            flags.push(0);
        }
        if let Touched::Miss { evicted } = policy.access(page) {
            counts.misses += 1;
            let begun_ns = now_ns;
            now_ns += fault_ns;
            if let Some(evicted) = evicted {
                let flag = &mut flags[evicted as usize];
                if *flag & DIRTY != 0 {
                    counts.writes += 1;
                    device.submit_one(now_ns, Direction::Write, one(evicted));
                } else {
                    counts.clean += 1;
                }
                *flag &= !DIRTY;
            }
            let flag = &mut flags[page as usize];
            if *flag & SEEN != 0 {
                counts.reads += 1;
                now_ns = device.submit_one(now_ns, Direction::Read, one(page));
            } else {
                // Its first page is zeros, which are nowhere else: leaving, it must be written once.
                *flag |= SEEN | DIRTY;
            }
            counts.stalled_ns += now_ns - begun_ns;
        }
        if access.write {
            flags[page as usize] |= DIRTY;
        }
    }
    counts.pages = flags.len() as u64;
    counts.bytes = (names.bytes() + flags.capacity() + policy.bytes()) as u64;
    counts
}

fn one(page: u32) -> Request {
    Request { slot: u64::from(page) + 1, pages: 1 }
}

/// Misses of `policy` on a trace of numbered pages.
pub fn misses(trace: &[u32], policy: &mut dyn Replacement) -> u64 {
    trace.iter().filter(|&&page| policy.access(page) != Touched::Hit).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Spec;
    use uswap_core::replacement::{BYTES_PER_PAGE_MAX, by_name};

    fn counts(workload: &str, capacity: usize) -> Counts {
        let mut policy = by_name("second-chance", capacity).unwrap();
        let profile = Profile::named("nvme").unwrap();
        run(Spec::parse(workload).unwrap().accesses(1), &mut *policy, &profile, 1)
    }

    #[test]
    fn a_loop_that_fits_misses_once_a_page_and_reads_nothing() {
        let counts = counts("loop:pages=100,accesses=1000", 100);
        assert_eq!((counts.misses, counts.reads, counts.writes, counts.pages), (100, 0, 0, 100));
    }

    #[test]
    fn what_was_not_changed_is_written_once_only() {
        let counts = counts("loop:pages=100,accesses=1000", 50);
        assert_eq!(counts.reads + 100, counts.misses);
        assert_eq!(counts.writes, 100, "each page once: after that the copy is good");
        assert!(counts.clean > 0 && counts.stalled_ns > counts.reads * 100_000);
    }

    #[test]
    fn a_distinct_page_takes_at_most_64_bytes() {
        for name in uswap_core::replacement::NAMES {
            let mut policy = by_name(name, 20_000).unwrap();
            let accesses = Spec::parse("random:pages=200000,accesses=2000000").unwrap().accesses(3);
            let counts = run(accesses, &mut *policy, &Profile::named("zram").unwrap(), 1);
            let each = counts.bytes / counts.pages;
            assert!(each <= BYTES_PER_PAGE_MAX as u64, "{name}: {each} bytes for each of {} pages", counts.pages);
        }
    }
}
