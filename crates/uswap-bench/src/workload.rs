//! The plain program under test: fills memory with known data, runs one access pattern, reports.
//!
//! It knows nothing of uswap and runs unchanged under every back end. Only the pattern is measured,
//! after the fill and one warm-up; nothing is allocated and nothing is printed while it runs. Every
//! access checks what it reads, and a last sweep checks every word, so a back end that hands out a wrong
//! byte cannot win.
//!
//! An access touches one page: a read looks at two words of it, a write stores one word and looks at
//! another. With several threads each works in its own part of the memory.

use std::fmt;
use std::ops::Range;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use uswap_sys::rusage::ProcessUsage;

use crate::report::Backend;

const PAGE_BYTES: usize = 4096;
/// 64-bit words of a page.
const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// Words of one record; a page is an array of 64 of them.
const RECORD_WORDS: usize = 8;
/// One access of so many is timed on its own, picked by chance so as not to march in step with a
/// readahead window.
const SAMPLE_EVERY: u64 = 16;
/// Skew of the zipf pattern, the one YCSB uses: some 80 % of accesses go to 20 % of the pages.
const ZIPF_THETA: f64 = 0.99;
/// How long the first half of the memory is left alone before a burst.
const STILL_BEFORE_BURST: Duration = Duration::from_secs(1);
/// Environment of the program under test: what the shell is to do so that all memory comes back.
pub const ALL_BACK: &str = "USWAP_BENCH_ALL_BACK";
/// Environment of that shell: the process that started the program under test.
pub const PARENT: &str = "USWAP_BENCH_PARENT";
/// The exit status when memory held something other than what was stored.
pub const EXIT_WRONG_DATA: u8 = 3;

type Page = [u64; PAGE_WORDS];

/// The order in which the pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Store every word of every page for the first time.
    Fill,
    /// The same, of the second half of the pages alone, when the first half has lain still for a second: with
    /// half of the size as its limit, the program begins at the limit, and all that it has is in the way.
    Burst,
    /// Read each page once, from the first to the last.
    SeqRead,
    /// Write to each page once, from the first to the last.
    SeqWrite,
    /// Read every seventh page, seven times over, until each was read once.
    Stride,
    /// Read pages picked at random.
    RandomRead,
    /// Write to pages picked at random.
    RandomWrite,
    /// Four reads to one write of pages picked by Zipf's law.
    Zipf,
    /// Lift the limit and turn the swap area off, when pages have been written to at random: all that is on it comes
    /// back. For back ends that have all of it on a file.
    Swapoff,
}

impl Workload {
    /// Its name on the command line and in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Fill => "fill",
            Workload::Burst => "burst",
            Workload::SeqRead => "seq-read",
            Workload::SeqWrite => "seq-write",
            Workload::Stride => "stride",
            Workload::RandomRead => "random-read",
            Workload::RandomWrite => "random-write",
            Workload::Zipf => "zipf",
            Workload::Swapoff => "swapoff",
        }
    }

    /// How many accesses are measured. Skewed ones miss less often, so there are more of them.
    fn measured_accesses(self, pages: u64) -> u64 {
        match self {
            Workload::Zipf => 2 * pages,
            _ => pages,
        }
    }

    /// Whether it is the first stores to memory that are measured.
    fn is_filling(self) -> bool {
        matches!(self, Workload::Fill | Workload::Burst)
    }

    /// Whether it can be measured under `backend`.
    pub fn is_for(self, backend: Backend) -> bool {
        self != Workload::Swapoff || matches!(backend, Backend::SwapFile | Backend::UswapFile | Backend::Ram)
    }

    /// How many accesses bring memory to a steady state before.
    fn warm_up_accesses(self, pages: u64) -> u64 {
        match self {
            Workload::Fill | Workload::Burst => 0,
            Workload::RandomRead | Workload::RandomWrite => pages / 2,
            _ => pages,
        }
    }
}

/// What the plain program is to do: fill memory, run one pattern.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Which accesses to measure.
    pub workload: Workload,
    /// Memory to fill.
    pub size_bytes: u64,
    /// Threads, each in its own part of the memory.
    pub threads: u32,
    /// Which random numbers to take.
    pub seed: u64,
}

/// What one run of the program under test measured. Printed as one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadReport {
    /// The pattern.
    pub workload: Workload,
    /// Pages filled.
    pub pages: u64,
    /// Threads that ran the pattern.
    pub threads: u32,
    /// Accesses measured, all threads together.
    pub accesses: u64,
    /// From the first measured access to the last.
    pub seconds: f64,
    /// Time per access as one thread sees it.
    pub us_per_access: f64,
    /// Median of the single accesses that were timed.
    pub p50_us: f64,
    /// 99th percentile of the single accesses that were timed.
    pub p99_us: f64,
    /// The slowest single access that was timed.
    pub max_us: f64,
    /// User time of the process while measuring, whoever's threads spent it.
    pub cpu_user_seconds: f64,
    /// System time of the process while measuring.
    pub cpu_system_seconds: f64,
    /// Major faults while measuring, by the kernel's count.
    pub major_faults: u64,
    /// Minor faults while measuring, by the kernel's count.
    pub minor_faults: u64,
}

/// A word that is not what was stored there.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongData {
    page: u64,
    word: usize,
    expected: u64,
    found: u64,
}

impl fmt::Display for WrongData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongData { page, word, expected, found } = self;
        write!(f, "word {word} of page {page} is {found:#018x}, not {expected:#018x}")
    }
}

/// Fills, warms up, measures, checks everything. It is to be the only thing that its process does.
pub fn run_load(args: &Load) -> Result<LoadReport, WrongData> {
    let threads = u64::from(args.threads);
    // Whole parts of equal length, so that all threads do the same work.
    let part_pages = (args.size_bytes / PAGE_BYTES as u64 / threads).max(2);
    let pages = part_pages * threads;
    let accesses = args.workload.measured_accesses(part_pages);

    let mut memory = Memory::reserve(pages);
    let mut samples: Vec<Samples> = (0..threads).map(|_| Samples::with_room_for(accesses)).collect();

    let before_burst = if args.workload == Workload::Burst { pages / 2 } else { 0 };
    if before_burst > 0 {
        memory.fill(0..before_burst, None);
        std::thread::sleep(STILL_BEFORE_BURST);
    }
    let before_fill = Instant::now();
    let usage_before_fill = ProcessUsage::now();
    memory.fill(before_burst..pages, if args.workload.is_filling() { Some(&mut samples[0]) } else { None });
    let fill_seconds = before_fill.elapsed().as_secs_f64();
    let fill_usage = ProcessUsage::now().since(&usage_before_fill);

    let measured = if args.workload.is_filling() {
        let filled = pages - before_burst;
        Measured { seconds: fill_seconds, usage: fill_usage, accesses_per_thread: filled, accesses: filled }
    } else {
        let (seconds, usage) = measure(args, &mut memory, part_pages, &mut samples)?;
        Measured { seconds, usage, accesses_per_thread: accesses, accesses: accesses * threads }
    };
    memory.check_all()?;

    let mut nanos: Vec<u32> = samples.into_iter().flat_map(|samples| samples.nanos).collect();
    nanos.sort_unstable();
    Ok(LoadReport {
        workload: args.workload,
        pages,
        threads: args.threads,
        accesses: measured.accesses,
        seconds: measured.seconds,
        us_per_access: measured.seconds * 1e6 / measured.accesses_per_thread as f64,
        p50_us: percentile_us(&nanos, 0.50),
        p99_us: percentile_us(&nanos, 0.99),
        max_us: percentile_us(&nanos, 1.0),
        cpu_user_seconds: measured.usage.user.as_secs_f64(),
        cpu_system_seconds: measured.usage.system.as_secs_f64(),
        major_faults: measured.usage.major_faults,
        minor_faults: measured.usage.minor_faults,
    })
}

/// Runs the command that brings all memory back under this back end; without one there is nothing to bring.
fn all_back() {
    let Some(command) = std::env::var_os(ALL_BACK) else { return };
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let status = Command::new("/bin/sh").arg("-c").arg(command).env(PARENT, parent.to_string()).status();
    assert!(status.is_ok_and(|status| status.success()), "the swap area cannot be turned off");
}

/// The raw figures of a measured phase.
struct Measured {
    seconds: f64,
    usage: ProcessUsage,
    accesses_per_thread: u64,
    accesses: u64,
}

/// Runs warm-up and pattern in all threads; the time is that of the pattern alone.
fn measure(
    args: &Load,
    memory: &mut Memory,
    part_pages: u64,
    samples: &mut [Samples],
) -> Result<(f64, ProcessUsage), WrongData> {
    let workload = args.workload;
    let mut parts = memory.parts(part_pages);
    if let [part] = parts.as_mut_slice() {
        let mut chance = Chance::new(args.seed);
        part.run(workload, workload.warm_up_accesses(part_pages), &mut chance, None)?;
        let usage = ProcessUsage::now();
        let start = Instant::now();
        if workload == Workload::Swapoff {
            all_back();
        } else {
            part.run(workload, workload.measured_accesses(part_pages), &mut chance, Some(&mut samples[0]))?;
        }
        return Ok((start.elapsed().as_secs_f64(), ProcessUsage::now().since(&usage)));
    }

    let warm = Barrier::new(parts.len() + 1);
    let go = Barrier::new(parts.len() + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = parts
            .iter_mut()
            .zip(samples)
            .enumerate()
            .map(|(index, (part, samples))| {
                let (warm, go) = (&warm, &go);
                scope.spawn(move || {
                    let mut chance = Chance::new(args.seed ^ mix(index as u64 + 1));
                    // A wrong word is reported after the barriers: the others wait there.
                    let warmed = part.run(workload, workload.warm_up_accesses(part_pages), &mut chance, None);
                    warm.wait();
                    go.wait();
                    warmed?;
                    part.run(workload, workload.measured_accesses(part_pages), &mut chance, Some(samples))
                })
            })
            .collect();
        warm.wait();
        let usage = ProcessUsage::now();
        let start = Instant::now();
        go.wait();
        let mut outcome = Ok(());
        for worker in workers {
            outcome = outcome.and(worker.join().expect("a load thread does not panic"));
        }
        let (seconds, usage) = (start.elapsed().as_secs_f64(), ProcessUsage::now().since(&usage));
        outcome.map(|()| (seconds, usage))
    })
}

/// Page-aligned memory with known content.
///
/// The first word of a page says how often the page was written to; the others never change.
struct Memory {
    words: Vec<u64>,
    /// Where the first whole page begins in `words`, once it is filled.
    first_word: usize,
    /// How often each page was written to since the fill.
    generations: Vec<u32>,
}

impl Memory {
    /// Address space for `pages` pages; none of it is touched.
    fn reserve(pages: u64) -> Memory {
        let page_count = usize::try_from(pages).expect("64-bit machine");
        let words: Vec<u64> = Vec::with_capacity((page_count + 1) * PAGE_WORDS);
        let misaligned = words.as_ptr().addr() % PAGE_BYTES;
        let first_word = (PAGE_BYTES - misaligned) % PAGE_BYTES / size_of::<u64>();
        Memory { words, first_word, generations: vec![0; page_count] }
    }

    /// Stores the first content of every page of `pages`, in address order. They follow those that have theirs.
    fn fill(&mut self, pages: Range<u64>, mut samples: Option<&mut Samples>) {
        if pages.start == 0 {
            self.words.resize(self.first_word, 0);
        }
        let mut chance = Chance::new(pages.start);
        for page in pages {
            let content = page_content(page);
            match &mut samples {
                Some(samples) if chance.one_in(SAMPLE_EVERY) => {
                    let start = Instant::now();
                    self.words.extend_from_slice(&content);
                    samples.add(start);
                }
                _ => self.words.extend_from_slice(&content),
            }
        }
    }

    /// Cuts the memory into parts of `part_pages` pages.
    fn parts(&mut self, part_pages: u64) -> Vec<Part<'_>> {
        let part_len = usize::try_from(part_pages).expect("64-bit machine");
        let (pages, _) = self.words[self.first_word..].as_chunks_mut::<PAGE_WORDS>();
        pages
            .chunks_mut(part_len)
            .zip(self.generations.chunks_mut(part_len))
            .enumerate()
            .map(|(index, (pages, generations))| Part { first_page: index as u64 * part_pages, pages, generations })
            .collect()
    }

    /// Compares every word of every page with what must be there.
    fn check_all(&self) -> Result<(), WrongData> {
        let (pages, _) = self.words[self.first_word..].as_chunks::<PAGE_WORDS>();
        for (page, (content, &generation)) in (0..).zip(pages.iter().zip(&self.generations)) {
            let mut expected = page_content(page);
            expected[0] = tag(page, generation);
            if let Some(word) = (0..PAGE_WORDS).find(|&word| content[word] != expected[word]) {
                return Err(WrongData { page, word, expected: expected[word], found: content[word] });
            }
        }
        Ok(())
    }
}

/// The pages that one thread works on.
struct Part<'a> {
    first_page: u64,
    pages: &'a mut [Page],
    generations: &'a mut [u32],
}

impl Part<'_> {
    /// Makes `accesses` accesses in the order of `workload`.
    fn run(
        &mut self,
        workload: Workload,
        accesses: u64,
        chance: &mut Chance,
        mut samples: Option<&mut Samples>,
    ) -> Result<(), WrongData> {
        let page_count = self.pages.len() as u64;
        let mut order = Order::new(workload, page_count);
        for step in 0..accesses {
            let (page, write) = order.next(step, chance);
            let sampled = chance.one_in(SAMPLE_EVERY);
            match &mut samples {
                Some(samples) if sampled => {
                    let start = Instant::now();
                    self.access(page, write, chance)?;
                    samples.add(start);
                }
                _ => self.access(page, write, chance)?,
            }
        }
        Ok(())
    }

    /// One access. A write stores before it looks at anything, so that it is a write fault at once.
    fn access(&mut self, index: u64, write: bool, chance: &mut Chance) -> Result<(), WrongData> {
        let page = self.first_page + index;
        let index = index as usize;
        let content = &mut self.pages[index];
        if write {
            self.generations[index] += 1;
            content[0] = tag(page, self.generations[index]);
        } else {
            check(page, 0, content[0], tag(page, self.generations[index]))?;
        }
        let word = 1 + chance.below(PAGE_WORDS as u64 - 1) as usize;
        check(page, word, content[word], page_word(page, word))
    }
}

fn check(page: u64, word: usize, found: u64, expected: u64) -> Result<(), WrongData> {
    if found == expected { Ok(()) } else { Err(WrongData { page, word, expected, found }) }
}

/// Word 0 of `page` after it was written to `generation` times.
fn tag(page: u64, generation: u32) -> u64 {
    mix(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(generation))
}

/// Word `word` of `page` as the fill stores it.
///
/// A page is an array of records: three random words, a pointer-like word of which the low 16 bits are
/// random, and four fields that are the same in all records of the page and differ between pages. LZ4
/// finds 26 literals and one match of 38 bytes in each record: 31 bytes of 64, a ratio of two to one. No
/// page compresses to nothing and none is like another.
fn page_word(page: u64, word: usize) -> u64 {
    let field = word % RECORD_WORDS;
    let random = tag(page, 0).wrapping_add((word as u64).wrapping_mul(0xd6e8_feb8_6659_fd93));
    match field {
        0 if word == 0 => tag(page, 0),
        0..=2 => mix(random),
        3 => (page_constant(page, field) & !0xffff) | (mix(random) & 0xffff),
        _ => page_constant(page, field),
    }
}

/// What `field` is in all records of `page`.
fn page_constant(page: u64, field: usize) -> u64 {
    mix(page ^ ((field as u64) << 56))
}

/// All words of `page` as the fill stores them.
fn page_content(page: u64) -> Page {
    std::array::from_fn(|word| page_word(page, word))
}

/// Spreads a number over 64 bits: the finalizer of splitmix64, a bijection.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A splitmix64 stream: the same seed gives the same accesses under every back end.
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Chance {
        Chance(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// 0 up to `bound` - 1, each as likely as the other up to a part in 2^32.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// 0.0 up to, not including, 1.0.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// Which page comes next.
enum Order {
    Sequential { pages: u64, write: bool },
    Stride { pages: u64, next: u64, start: u64 },
    Random { pages: u64, write: bool },
    Zipf(Zipf),
}

impl Order {
    fn new(workload: Workload, pages: u64) -> Order {
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
    fn next(&mut self, step: u64, chance: &mut Chance) -> (u64, bool) {
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
struct Zipf {
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

/// Times of single accesses; its memory is touched before the measuring begins.
struct Samples {
    nanos: Vec<u32>,
}

impl Samples {
    fn with_room_for(accesses: u64) -> Samples {
        // Twice what is expected, by chance, plus some.
        let room = accesses / SAMPLE_EVERY * 2 + 64;
        let mut nanos = vec![1; usize::try_from(room).expect("64-bit machine")];
        nanos.clear();
        Samples { nanos }
    }

    fn add(&mut self, start: Instant) {
        if self.nanos.len() < self.nanos.capacity() {
            self.nanos.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
    }
}

/// The smallest value that at least `fraction` of the sorted `nanos` do not exceed.
fn percentile_us(nanos: &[u32], fraction: f64) -> f64 {
    let rank = (nanos.len() as f64 * fraction).ceil() as usize;
    nanos.get(rank.saturating_sub(1)).map_or(0.0, |&nanos| f64::from(nanos) / 1000.0)
}

#[cfg(test)]
mod tests {
    use uswap_engine::compress::PageCompressor;
    use uswap_engine::group::Compressor;

    use super::*;

    #[test]
    fn a_page_compresses_two_to_one() {
        let mut compressor = PageCompressor::new(Compressor::Lz4);
        let mut lengths = 0;
        for page in 0..1000 {
            let words = page_content(page * 131);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let bytes: [u8; PAGE_BYTES] = bytes.try_into().unwrap();
            let mut out = [0; PAGE_BYTES];
            let length = compressor.compress(&bytes, &mut out).expect("compressible");
            // No page by itself is far from the others: a pool gains nothing by luck.
            assert!((1900..2200).contains(&length), "page {page}: {length}");
            lengths += length;
        }
        let ratio = 1000.0 * PAGE_BYTES as f64 / lengths as f64;
        assert!((1.95..2.05).contains(&ratio), "{ratio}");
    }

    #[test]
    fn pages_share_no_word() {
        let mut words: Vec<u64> = (0..64)
            .flat_map(|page| {
                let mut words = page_content(page).to_vec();
                words.sort_unstable();
                words.dedup();
                words
            })
            .collect();
        let all = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), all);
    }

    #[test]
    fn every_write_gives_a_page_a_new_tag() {
        let mut tags: Vec<u64> =
            (0..64).flat_map(|page| (0..64).map(move |generation| tag(page, generation))).collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), 64 * 64);
    }

    #[test]
    fn memory_begins_at_a_page_boundary() {
        let mut memory = Memory::reserve(16);
        memory.fill(0..16, None);
        let parts = memory.parts(8);
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].pages.as_ptr().addr() % PAGE_BYTES, 0);
        assert_eq!(parts[0].pages.len(), 8);
        assert_eq!(parts[1].first_page, 8);
    }

    #[test]
    fn each_workload_runs_and_leaves_what_it_should() {
        for &workload in Workload::value_variants() {
            for threads in [1, 3] {
                let report = run_load(&Load { workload, size_bytes: 1 << 20, threads, seed: 5 }).unwrap();
                assert_eq!(report.workload, workload);
                assert!(report.accesses >= if workload == Workload::Burst { 125 } else { 250 }, "{report:?}");
                assert!(report.seconds > 0.0 && report.max_us >= report.p99_us && report.p99_us >= report.p50_us);
                let line = serde_json::to_string(&report).unwrap();
                let back: LoadReport = serde_json::from_str(&line).unwrap();
                assert_eq!(back.accesses, report.accesses);
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let mut memory = Memory::reserve(16);
        memory.fill(0..16, None);
        memory.check_all().unwrap();
        let word = memory.first_word + 5 * PAGE_WORDS + 123;
        memory.words[word] ^= 1 << 40;
        let wrong = memory.check_all().unwrap_err();
        assert_eq!((wrong.page, wrong.word), (5, 123));
    }

    #[test]
    fn a_lost_write_is_found_by_the_next_read() {
        let mut memory = Memory::reserve(16);
        memory.fill(0..16, None);
        let mut chance = Chance::new(1);
        let mut parts = memory.parts(16);
        parts[0].access(3, true, &mut chance).unwrap();
        parts[0].pages[3][0] = tag(3, 0);
        let wrong = parts[0].access(3, false, &mut chance).unwrap_err();
        assert_eq!((wrong.page, wrong.word), (3, 0));
    }

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

    #[test]
    fn percentiles_are_of_the_samples() {
        let nanos: Vec<u32> = (1..=100).map(|i| i * 1000).collect();
        assert_eq!(percentile_us(&nanos, 0.50), 50.0);
        assert_eq!(percentile_us(&nanos, 0.99), 99.0);
        assert_eq!(percentile_us(&nanos, 1.0), 100.0);
        assert_eq!(percentile_us(&[], 0.5), 0.0);
    }
}
