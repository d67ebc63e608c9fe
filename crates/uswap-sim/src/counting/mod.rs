//! Counting mode: which accesses miss, and what the misses cost on a device. No time passes but that of misses.

mod compare;
mod pages;

pub use compare::{Curve, compare, sizes_for};
pub use pages::{PageNames, numbered, placed};

use std::hint::black_box;

use uswap_policy::{Access as Touched, Replacement};

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

/// Accesses that are looked at together before they are made.
const BATCH: usize = 64;

/// A page that was in memory before.
const SEEN: u8 = 1;
/// It has changed since it came.
const DIRTY: u8 = 2;

/// Runs `accesses` through `policy`. Misses on pages that were there before are read from the device one by one; what
/// leaves changed is written behind the program's back.
pub fn run(
    mut accesses: impl Iterator<Item = Access>,
    policy: &mut dyn Replacement,
    profile: &Profile,
    seed: u64,
) -> Counts {
    let mut names = PageNames::default();
    let mut program = Program::new(profile, seed);
    let (mut batch, mut pages) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
    loop {
        batch.clear();
        batch.extend(accesses.by_ref().take(BATCH));
        if batch.is_empty() {
            break;
        }
        pages.clear();
        names.look_ahead(&batch);
        pages.extend(batch.iter().map(|&access| names.number(access)));
        policy.look_ahead(&pages);
        program.look_ahead(&pages, names.len());
        for (access, &page) in batch.iter().zip(&pages) {
            if let Touched::Miss { evicted } = policy.access(page) {
                program.miss(page, evicted);
            }
            program.used(page, access.write);
        }
    }
    let bytes = names.bytes() + program.flags.capacity() + policy.bytes();
    Counts { pages: u64::from(names.len()), bytes: bytes as u64, ..program.counts }
}

/// The program: what its pages are like, and what it waits for.
struct Program {
    flags: Vec<u8>,
    device: Device,
    fault_ns: u64,
    now_ns: u64,
    counts: Counts,
}

impl Program {
    fn new(profile: &Profile, seed: u64) -> Self {
        Self {
            flags: Vec::new(),
            device: Device::new(profile.clone(), Chance::stream(seed, 1)),
            fault_ns: CpuCosts::table().fault.ns,
            now_ns: 0,
            counts: Counts::default(),
        }
    }

    /// `pages` are used next, and there are `distinct` ones by now, see [`Replacement::look_ahead`].
    fn look_ahead(&mut self, pages: &[u32], distinct: u32) {
        self.flags.resize(distinct as usize, 0);
        black_box(pages.iter().fold(0, |seen, &page| seen | self.flags[page as usize]));
    }

    #[inline]
    fn used(&mut self, page: u32, write: bool) {
        self.counts.accesses += 1;
        if write {
            self.flags[page as usize] |= DIRTY;
        }
    }

    fn miss(&mut self, page: u32, evicted: Option<u32>) {
        self.counts.misses += 1;
        let begun_ns = self.now_ns;
        self.now_ns += self.fault_ns;
        if let Some(evicted) = evicted {
            let flag = &mut self.flags[evicted as usize];
            if *flag & DIRTY != 0 {
                self.counts.writes += 1;
                self.device.submit_one(self.now_ns, Direction::Write, one(evicted));
            } else {
                self.counts.clean += 1;
            }
            *flag &= !DIRTY;
        }
        let flag = &mut self.flags[page as usize];
        if *flag & SEEN != 0 {
            self.counts.reads += 1;
            self.now_ns = self.device.submit_one(self.now_ns, Direction::Read, one(page));
        } else {
            // Its first page is zeros, which are nowhere else: leaving, it must be written once.
            *flag |= SEEN | DIRTY;
        }
        self.counts.stalled_ns += self.now_ns - begun_ns;
    }
}

fn one(page: u32) -> Request {
    Request { slot: u64::from(page) + 1, pages: 1 }
}

/// Misses of `policy` on a trace of numbered pages.
pub fn misses(trace: &[u32], policy: &mut dyn Replacement) -> u64 {
    let missed = |policy: &mut dyn Replacement, pages: &[u32]| {
        policy.look_ahead(pages);
        pages.iter().filter(|&&page| policy.access(page) != Touched::Hit).count() as u64
    };
    trace.chunks(BATCH).map(|pages| missed(policy, pages)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Spec;
    use uswap_policy::{BYTES_PER_PAGE_MAX, by_name};

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
        for name in uswap_policy::NAMES {
            for far in [0, 1 << 40] {
                let mut policy = by_name(name, 20_000).unwrap();
                let accesses = Spec::parse("random:pages=200000,accesses=1000000").unwrap().accesses(3);
                // Real addresses are large, and lie far apart.
                let accesses =
                    accesses.map(|access| Access { page: access.page * (1 + far / 200_000) + far, ..access });
                let counts = run(accesses, &mut *policy, &Profile::named("zram").unwrap(), 1);
                let each = counts.bytes / counts.pages;
                assert!(each <= BYTES_PER_PAGE_MAX as u64, "{name}: {each} bytes for each of {} pages", counts.pages);
            }
        }
    }
}
