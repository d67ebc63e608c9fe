//! A store that fails on purpose, to a plan, so that tests can see what becomes of each failure.
//!
//! Deterministic: transfers are counted, reads and writes apart, and the plan says which numbers fail. Whoever ignores
//! an outcome is found out: a read that fails here leaves a pattern in the memory that was to be filled, never what
//! the slot holds.
//!
//! | kind | what happens to the n-th transfer |
//! |---|---|
//! | `eio-read`, `eio-write` | nothing is transferred: EIO |
//! | `enospc` | a write is not done: no space left |
//! | `short-read`, `short-write` | its first half is transferred, then the area ends |
//! | `slow-write` | a write succeeds, 30 ms later: nobody may depend on a fast disk |
//! | `hang-read` | a read never ends |
//! | `flip-bit` | a read succeeds, with one bit of it wrong: only the content hash can tell |
#![allow(unsafe_code)]

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::Timespec;
use uswap_sys::ring::Ring;

use super::{IoOutcome, PageIo, Store, StoreError};

/// What a read that failed on purpose leaves in memory.
const GARBAGE: u8 = 0xBD;

/// What a slow write takes longer.
const SLOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000_000 };

/// What a read that never ends sleeps at a time.
const HANG: Timespec = Timespec { tv_sec: 3600, tv_nsec: 0 };

/// In which way transfers fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum FaultKind {
    /// Not at all.
    None = 0,
    /// Reads fail with EIO.
    ReadEio = 1,
    /// Writes fail with EIO.
    WriteEio = 2,
    /// Writes find no space.
    Enospc = 3,
    /// Reads end half-way.
    ShortRead = 4,
    /// Writes end half-way.
    ShortWrite = 5,
    /// Reads return one wrong bit.
    FlipBit = 6,
    /// Writes take long.
    SlowWrite = 7,
    /// Reads never end.
    HangRead = 8,
}

impl FaultKind {
    /// Each kind by its name in a plan.
    const NAMES: [(&'static str, FaultKind); 9] = [
        ("none", FaultKind::None),
        ("eio-read", FaultKind::ReadEio),
        ("eio-write", FaultKind::WriteEio),
        ("enospc", FaultKind::Enospc),
        ("short-read", FaultKind::ShortRead),
        ("short-write", FaultKind::ShortWrite),
        ("flip-bit", FaultKind::FlipBit),
        ("slow-write", FaultKind::SlowWrite),
        ("hang-read", FaultKind::HangRead),
    ];

    fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(_, kind)| *kind == self);
        named.expect("every kind has a name").0
    }
}

/// Which transfers fail, and in which way. All zeros is [`FaultPlan::default`]: none.
///
/// Plain numbers without padding, valid whatever their bits are, so that a plan can live in shared memory. Each process
/// that follows a plan counts for itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FaultPlan {
    kind: u32,
    /// Of the transfers in range, each `every`-th fails. 0 counts as 1.
    pub every: u32,
    /// The first `after` transfers are left alone.
    pub after: u32,
    /// Transfers after this many are left alone again; 0: no end.
    pub until: u32,
    /// Chooses the bits to flip.
    pub seed: u64,
}

impl FaultPlan {
    /// A plan by which each transfer of the kind fails.
    pub fn always(kind: FaultKind) -> FaultPlan {
        FaultPlan { kind: kind as u32, every: 1, ..FaultPlan::default() }
    }

    /// In which way transfers fail.
    pub fn kind(&self) -> FaultKind {
        let kinds = FaultKind::NAMES.map(|(_, kind)| kind);
        kinds.into_iter().find(|kind| *kind as u32 == self.kind).unwrap_or(FaultKind::None)
    }

    /// Whether transfer `number` fails; the first is 1.
    fn hits(&self, number: u64) -> bool {
        let after = u64::from(self.after);
        number > after
            && (self.until == 0 || number <= u64::from(self.until))
            && (number - after).is_multiple_of(u64::from(self.every.max(1)))
    }
}

/// Why a text is not a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultPlanError {
    /// There is no such kind.
    #[error(
        "unknown fault '{0}': use none, eio-read, eio-write, enospc, short-read, short-write, flip-bit, slow-write or \
         hang-read"
    )]
    UnknownKind(String),
    /// There is no such option.
    #[error("unknown fault option '{0}': use every=, after=, until= or seed=")]
    UnknownOption(String),
    /// The value is not a number, or too large.
    #[error("fault option '{option}={value}' needs a whole number that fits")]
    NotANumber {
        /// The option.
        option: String,
        /// What it was set to.
        value: String,
    },
    /// `every` is 0.
    #[error("fault option 'every=0' makes no sense: use every=1 to fail each transfer")]
    EveryZero,
    /// `until` is not after `after`.
    #[error("fault option 'until={until}' is not after 'after={after}': nothing would fail")]
    Empty {
        /// The first transfers that are left alone.
        after: u32,
        /// The last transfer that may fail.
        until: u32,
    },
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    /// `KIND[:OPTION=NUMBER[,OPTION=NUMBER]...]`, as in `eio-read:every=10,after=5,until=100,seed=7`.
    fn from_str(text: &str) -> Result<FaultPlan, FaultPlanError> {
        let (kind, options) = match text.split_once(':') {
            Some((kind, options)) => (kind, Some(options)),
            None => (text, None),
        };
        let kind = FaultKind::NAMES
            .iter()
            .find(|(name, _)| *name == kind)
            .ok_or_else(|| FaultPlanError::UnknownKind(kind.to_owned()))?
            .1;
        if kind == FaultKind::None && options.is_none() {
            return Ok(FaultPlan::default());
        }
        let mut plan = FaultPlan::always(kind);
        for assignment in options.into_iter().flat_map(|options| options.split(',')) {
            let (option, value) =
                assignment.split_once('=').ok_or_else(|| FaultPlanError::UnknownOption(assignment.to_owned()))?;
            let not_a_number = || FaultPlanError::NotANumber { option: option.to_owned(), value: value.to_owned() };
            let number: u64 = value.parse().map_err(|_| not_a_number())?;
            let small = || u32::try_from(number).map_err(|_| not_a_number());
            match option {
                "every" => plan.every = small()?,
                "after" => plan.after = small()?,
                "until" => plan.until = small()?,
                "seed" => plan.seed = number,
                _ => return Err(FaultPlanError::UnknownOption(option.to_owned())),
            }
        }
        if plan.every == 0 {
            return Err(FaultPlanError::EveryZero);
        }
        if plan.until != 0 && plan.until <= plan.after {
            return Err(FaultPlanError::Empty { after: plan.after, until: plan.until });
        }
        Ok(plan)
    }
}

impl fmt::Display for FaultPlan {
    /// What `FromStr` reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        if kind == FaultKind::None {
            return f.write_str(kind.name());
        }
        let (every, after, until) = (self.every.max(1), self.after, self.until);
        write!(f, "{}:every={every},after={after},until={until},seed={}", kind.name(), self.seed)
    }
}

/// A store that passes transfers on to another one, except for those that its plan picks.
pub struct FaultyStore<S> {
    store: S,
    plan: FaultPlan,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl<S: Store> FaultyStore<S> {
    /// Fails some of the transfers of `store`.
    pub fn new(store: S, plan: FaultPlan) -> FaultyStore<S> {
        FaultyStore { store, plan, reads: AtomicU64::new(0), writes: AtomicU64::new(0) }
    }

    /// Passes on what the plan does not pick, and gives what it picks to `fail`, with its number.
    fn pick(
        &self,
        counter: &AtomicU64,
        batch: &mut [PageIo],
        mut pass_on: impl FnMut(&mut [PageIo]),
        mut fail: impl FnMut(&mut PageIo, u64),
    ) {
        let first = 1 + counter.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let mut passed_to = 0;
        for index in 0..batch.len() {
            let number = first + index as u64;
            if self.plan.hits(number) {
                pass_on(&mut batch[passed_to..index]);
                fail(&mut batch[index], number);
                passed_to = index + 1;
            }
        }
        pass_on(&mut batch[passed_to..]);
    }

    /// Transfers the first half of `io`, and nothing of a single page.
    fn half(io: &PageIo, transfer: impl FnOnce(&mut [PageIo])) {
        if io.pages >= 2 {
            transfer(&mut [io.first_pages(io.pages / 2)]);
        }
    }
}

/// Fills the pages of a read from `page` on with what nobody can take for content.
fn fill_with_garbage(io: &mut PageIo, page: u32) {
    let from = page as usize * super::SLOT_BYTES;
    // SAFETY: the memory of a read belongs to it, by the invariant of `PageIo`; `from` is inside of it.
    unsafe { io.address.add(from).write_bytes(GARBAGE, io.bytes() - from) };
}

/// Turns over one bit of what was read; `chance` says which.
fn flip_bit(io: &mut PageIo, chance: u64) {
    let bit = (chance % (io.bytes() as u64 * 8)) as usize;
    // SAFETY: as above: the byte is inside of the memory of this read.
    unsafe { *io.address.add(bit / 8) ^= 1 << (bit % 8) };
}

/// A well-spread number for each transfer and seed (the mixing step of splitmix64).
fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl<S: Store> Store for FaultyStore<S> {
    fn read(&self, ring: &mut Ring, batch: &mut [PageIo]) {
        let kind = self.plan.kind();
        if !matches!(kind, FaultKind::ReadEio | FaultKind::ShortRead | FaultKind::FlipBit | FaultKind::HangRead) {
            return self.store.read(ring, batch);
        }
        let ring = std::cell::RefCell::new(ring);
        let read = |batch: &mut [PageIo]| self.store.read(&mut ring.borrow_mut(), batch);
        self.pick(&self.reads, batch, read, |io, number| match kind {
            FaultKind::HangRead => loop {
                let _ = rustix::thread::nanosleep(&HANG);
            },
            FaultKind::ReadEio => {
                fill_with_garbage(io, 0);
                io.fail(StoreError::Io(libc::EIO));
            }
            FaultKind::ShortRead => {
                Self::half(io, read);
                fill_with_garbage(io, io.pages / 2);
                io.fail(StoreError::Short);
            }
            _ => {
                read(std::slice::from_mut(io));
                if io.outcome == IoOutcome::Done {
                    flip_bit(io, mix(self.plan.seed, number));
                }
            }
        });
    }

    fn write(&self, ring: &mut Ring, batch: &mut [PageIo]) {
        let kind = self.plan.kind();
        if !matches!(kind, FaultKind::WriteEio | FaultKind::Enospc | FaultKind::ShortWrite | FaultKind::SlowWrite) {
            return self.store.write(ring, batch);
        }
        let ring = std::cell::RefCell::new(ring);
        let write = |batch: &mut [PageIo]| self.store.write(&mut ring.borrow_mut(), batch);
        self.pick(&self.writes, batch, write, |io, _| {
            if kind == FaultKind::SlowWrite {
                let _ = rustix::thread::nanosleep(&SLOW);
                return write(std::slice::from_mut(io));
            }
            io.fail(match kind {
                FaultKind::WriteEio => StoreError::Io(libc::EIO),
                FaultKind::Enospc => StoreError::NoSpace,
                _ => {
                    Self::half(io, write);
                    StoreError::Short
                }
            });
        });
    }

    fn discard(&self, slot: u64, pages: u32) {
        self.store.discard(slot, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{Pages, memory_store};

    const ALL: [FaultKind; 6] = [
        FaultKind::ReadEio,
        FaultKind::WriteEio,
        FaultKind::Enospc,
        FaultKind::ShortRead,
        FaultKind::ShortWrite,
        FaultKind::FlipBit,
    ];

    fn is_for_reads(kind: FaultKind) -> bool {
        matches!(kind, FaultKind::ReadEio | FaultKind::ShortRead | FaultKind::FlipBit)
    }

    /// What a run of transfers through a plan came to: the numbers of those that failed, and their outcome.
    /// A flipped bit counts as a failure with the outcome `Done`.
    fn failures(plan: &str, transfers: usize, pages_each: u32, batch_len: usize) -> Vec<(usize, IoOutcome)> {
        let plan: FaultPlan = plan.parse().unwrap();
        let mut ring = Ring::new_or_synchronous(8);
        let slots = transfers as u64 * u64::from(pages_each) + 1;
        let store = FaultyStore::new(memory_store(slots), plan);
        let per = pages_each as usize;
        let fill = |page: usize| page as u8 % 100 + 1;
        let mut written = Pages::each(transfers * per, fill);
        let mut ios: Vec<PageIo> =
            (0..transfers).map(|i| written.io(1 + (i * per) as u64, i * per, pages_each)).collect();
        let write_faults = !is_for_reads(plan.kind()) && plan.kind() != FaultKind::None;
        let mut failed = Vec::new();
        for batch in ios.chunks_mut(batch_len) {
            store.write(&mut ring, batch);
        }
        for (i, io) in ios.iter().enumerate() {
            if io.outcome() != IoOutcome::Done {
                assert!(write_faults);
                failed.push((i + 1, io.outcome()));
            }
        }
        let mut read = Pages::filled(transfers * per, 0xEE);
        let mut ios: Vec<PageIo> = (0..transfers).map(|i| read.io(1 + (i * per) as u64, i * per, pages_each)).collect();
        for batch in ios.chunks_mut(batch_len) {
            store.read(&mut ring, batch);
        }
        for (i, io) in ios.iter().enumerate() {
            let good_pages = (i * per..(i + 1) * per).take_while(|&page| read.is(page, fill(page))).count();
            let write_failed = failed.iter().find(|(number, _)| *number == i + 1);
            if let Some(&(_, outcome)) = write_failed {
                // Nothing was written, or the first half.
                let expected = if outcome == IoOutcome::Failed(StoreError::Short) { per / 2 } else { 0 };
                assert_eq!(good_pages, expected);
                assert!((i * per + good_pages..(i + 1) * per).all(|page| read.is(page, 0)));
            } else if io.outcome() != IoOutcome::Done {
                let expected = if plan.kind() == FaultKind::ShortRead { per / 2 } else { 0 };
                assert_eq!(good_pages, expected);
                assert!((i * per + good_pages..(i + 1) * per).all(|page| read.is(page, GARBAGE)));
                failed.push((i + 1, io.outcome()));
            } else if good_pages < per {
                assert_eq!(plan.kind(), FaultKind::FlipBit);
                let wrong_bits: u32 = (i * per..(i + 1) * per)
                    .map(|page| {
                        let bytes = read.page(page).iter();
                        bytes.map(|byte| (byte ^ fill(page)).count_ones()).sum::<u32>()
                    })
                    .sum();
                assert_eq!(wrong_bits, 1);
                failed.push((i + 1, IoOutcome::Done));
            }
        }
        failed
    }

    fn numbers(plan: &str) -> Vec<usize> {
        let failures = failures(plan, 30, 1, 7);
        failures.into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn without_a_plan_nothing_fails() {
        assert_eq!(failures("none", 30, 3, 8), []);
    }

    #[test]
    fn each_kind_fails_in_its_way() {
        let io_error = IoOutcome::Failed(StoreError::Io(libc::EIO));
        let short = IoOutcome::Failed(StoreError::Short);
        for pages in [1, 2, 5] {
            for (kind, outcome) in [
                ("eio-read", io_error),
                ("eio-write", io_error),
                ("enospc", IoOutcome::Failed(StoreError::NoSpace)),
                ("short-read", short),
                ("short-write", short),
                ("flip-bit", IoOutcome::Done),
            ] {
                let expected: Vec<_> = (1..=10).map(|number| (number, outcome)).collect();
                assert_eq!(failures(kind, 10, pages, 4), expected, "{kind} of {pages}");
            }
        }
    }

    #[test]
    fn every_picks_each_nth() {
        for kind in ["eio-read", "eio-write", "enospc", "short-read", "short-write", "flip-bit"] {
            assert_eq!(numbers(&format!("{kind}:every=7")), [7, 14, 21, 28], "{kind}");
        }
    }

    #[test]
    fn after_leaves_the_first_ones_alone() {
        assert_eq!(numbers("eio-read:after=26"), [27, 28, 29, 30]);
        assert_eq!(numbers("eio-write:after=5,every=10"), [15, 25]);
    }

    #[test]
    fn until_ends_it() {
        assert_eq!(numbers("eio-read:until=3"), [1, 2, 3]);
        assert_eq!(numbers("enospc:after=2,until=9,every=3"), [5, 8]);
    }

    #[test]
    fn the_count_does_not_depend_on_the_batches() {
        for batch_len in [1, 2, 5, 30] {
            let failures = failures("short-read:every=4", 30, 2, batch_len);
            let numbers: Vec<usize> = failures.iter().map(|&(number, _)| number).collect();
            assert_eq!(numbers, [4, 8, 12, 16, 20, 24, 28]);
        }
    }

    #[test]
    fn the_seed_chooses_the_bit() {
        let flipped = |seed: u64| {
            let plan: FaultPlan = format!("flip-bit:seed={seed}").parse().unwrap();
            let mut ring = Ring::new_or_synchronous(4);
            let store = FaultyStore::new(memory_store(2), plan);
            let mut page = Pages::filled(1, 0xEE);
            store.read(&mut ring, &mut [page.io(1, 0, 1)]);
            page.page(0).iter().position(|&byte| byte != 0)
        };
        assert!(flipped(1).is_some());
        assert_eq!(flipped(1), flipped(1));
        assert!((2..10).any(|seed| flipped(seed) != flipped(1)));
    }

    #[test]
    fn discarding_goes_through() {
        let mut ring = Ring::new_or_synchronous(4);
        let store = FaultyStore::new(memory_store(2), FaultPlan::always(FaultKind::Enospc));
        let mut page = Pages::filled(1, 7);
        store.store.write(&mut ring, &mut [page.io(1, 0, 1)]);
        store.discard(1, 1);
        store.read(&mut ring, &mut [page.io(1, 0, 1)]);
        assert!(page.is(0, 0));
    }

    #[test]
    fn plans_are_read_from_text() {
        let plan: FaultPlan = "eio-read:every=10,after=5".parse().unwrap();
        assert_eq!(plan, FaultPlan { kind: 1, every: 10, after: 5, until: 0, seed: 0 });
        let plan: FaultPlan = "flip-bit:seed=18446744073709551615,until=4".parse().unwrap();
        assert_eq!((plan.kind(), plan.seed), (FaultKind::FlipBit, u64::MAX));
        assert_eq!("none".parse(), Ok(FaultPlan::default()));
        for kind in ALL {
            let plan = FaultPlan { after: 3, seed: 9, ..FaultPlan::always(kind) };
            assert_eq!(plan.to_string().parse(), Ok(plan));
            assert_eq!(plan.kind(), kind);
        }
        assert_eq!(FaultPlan::default().to_string(), "none");
    }

    #[test]
    fn what_is_no_plan_is_refused_in_one_line() {
        for (text, expected) in [
            ("", "unknown fault ''"),
            ("eio", "unknown fault 'eio'"),
            ("eio-read:", "unknown fault option ''"),
            ("eio-read:every", "unknown fault option 'every'"),
            ("eio-read:often=3", "unknown fault option 'often'"),
            ("eio-read:every=x", "'every=x' needs a whole number"),
            ("eio-read:after=-1", "'after=-1' needs a whole number"),
            ("eio-read:every=4294967296", "'every=4294967296' needs"),
            ("eio-read:every=0", "every=0"),
            ("enospc:after=5,until=5", "'until=5' is not after 'after=5'"),
        ] {
            let error = text.parse::<FaultPlan>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn slow_writes_are_made_and_take_long() {
        let store = FaultyStore::new(memory_store(8), "slow-write:every=2".parse().unwrap());
        let mut memory = Pages::each(3, |i| i as u8 + 1);
        let begun = std::time::Instant::now();
        let mut batch = [memory.io(1, 0, 1), memory.io(2, 1, 1), memory.io(3, 2, 1)];
        store.write(&mut Ring::new_or_synchronous(8), &mut batch);
        assert!(begun.elapsed() >= std::time::Duration::from_millis(30));
        assert!(batch.iter().all(|io| io.outcome() == IoOutcome::Done));
    }

    #[test]
    fn unknown_bits_in_shared_memory_are_no_plan() {
        let plan = FaultPlan { kind: 77, ..FaultPlan::default() };
        assert_eq!(plan.kind(), FaultKind::None);
        assert_eq!(plan.to_string(), "none");
    }
}
