//! What the pool wastes while objects come and go, and what its books cost.
//!
//!     cargo bench -p uswap-engine --bench pool_churn -- [MIB]
//!
//! Fills a pool with so many MiB (default 256) of objects, then frees most of them at random, stores others, replaces
//! some, and frees again. After each phase it tells where the memory is, then compacts, and tells again. Fails when a tenth
//! or more is waste after compaction. The lengths are those of real pages.
#![allow(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use uswap_engine::zpool::{Handle, PoolView, SlabSet, Zpool};

/// Of 10,000 pages with content, how many LZ4 compresses to 1..=64, 65..=128, ... bytes: private memory of live python,
/// node and redis processes (43,972 pages, each program with the same weight; 3 did not compress).
const LENGTHS_OF_PROGRAMS: [u32; 60] = [
    134, 12, 57, 11, 10, 360, 387, 164, 27, 19, 18, 37, 239, 104, 53, 389, 64, 333, 58, 95, 617, 502, 371, 601, 508,
    217, 122, 77, 137, 256, 139, 164, 173, 692, 152, 69, 93, 63, 39, 11, 30, 26, 50, 171, 46, 20, 56, 113, 233, 370,
    445, 509, 305, 50, 1, 0, 0, 0, 0, 0,
];

/// xorshift64*: chance from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

/// Which lengths are stored.
#[derive(Clone, Copy)]
enum Lengths {
    /// Those of programs.
    Programs,
    /// Short ones: sparse pages, tables.
    Short,
    /// Every length alike.
    Any,
}

impl Lengths {
    fn draw(self, chance: &mut Chance) -> usize {
        match self {
            Lengths::Programs => {
                let mut left = chance.below(LENGTHS_OF_PROGRAMS.iter().sum::<u32>() as usize) as u32;
                let bucket = LENGTHS_OF_PROGRAMS.iter().position(|&count| {
                    let here = left < count;
                    left = left.saturating_sub(count);
                    here
                });
                bucket.expect("the draw is below the sum") * 64 + 1 + chance.below(64)
            }
            Lengths::Short => 20 + chance.below(1000),
            Lengths::Any => 1 + chance.below(3840),
        }
    }
}

struct Churn {
    pool: Zpool,
    view: PoolView,
    objects: Vec<(Handle, usize)>,
    chance: Chance,
}

impl Churn {
    fn store(&mut self, lengths: Lengths) {
        let len = lengths.draw(&mut self.chance);
        let handle = self.pool.alloc(len).expect("the pool is large enough");
        // SAFETY: the object is new, and this is the only thread.
        unsafe { self.view.slice_mut(handle, len) }.fill(len as u8);
        self.objects.push((handle, len));
    }

    fn free_one(&mut self) {
        let victim = self.chance.below(self.objects.len());
        let (handle, len) = self.objects.swap_remove(victim);
        self.pool.free(handle, len);
    }

    // Each returns how many objects came or went.

    fn store_bytes(&mut self, bytes: usize, lengths: Lengths) -> usize {
        let (before, until) = (self.objects.len(), self.pool.stored_bytes() + bytes);
        while self.pool.stored_bytes() < until {
            self.store(lengths);
        }
        self.objects.len() - before
    }

    fn free_percent(&mut self, percent: usize) -> usize {
        let count = self.objects.len() * percent / 100;
        (0..count).for_each(|_| self.free_one());
        count
    }

    fn replace_all(&mut self, lengths: Lengths) -> usize {
        for _ in 0..self.objects.len() {
            self.free_one();
            self.store(lengths);
        }
        2 * self.objects.len()
    }

    fn report(&self, phase: &str, took: Duration, operations: usize) {
        let usage = self.pool.usage();
        let percent = |bytes: usize| bytes as f64 * 100.0 / usage.pool_bytes.max(1) as f64;
        println!(
            "{phase:<34} {:>6.1} {:>6.1} {:>6.1} {:>7.1} {:>6.1} {:>6.1} {:>6.1} {:>7.2} {:>6.0}",
            usage.pool_bytes as f64 / (1 << 20) as f64,
            usage.stored_bytes as f64 / (1 << 20) as f64,
            usage.waste() * 100.0,
            percent(usage.rounding_bytes),
            percent(usage.tail_bytes),
            percent(usage.hole_bytes),
            percent(usage.empty_bytes),
            usage.metadata_bytes as f64 / usage.objects.max(1) as f64,
            took.as_nanos() as f64 / operations.max(1) as f64,
        );
    }

    /// Moves objects as the engine does, but all of them at once. Returns how many.
    fn compact(&mut self) -> usize {
        let mut chosen = SlabSet::default();
        self.pool.choose_leaving(&mut chosen, usize::MAX);
        let mut moved = 0;
        for (handle, len) in &mut self.objects {
            if !chosen.contains(*handle) {
                continue;
            }
            let Some(target) = self.pool.move_target(*handle, *len) else { continue };
            // SAFETY: both are objects of this length, and this is the only thread.
            unsafe { self.view.slice_mut(target, *len).copy_from_slice(self.view.slice(*handle, *len)) };
            self.pool.free(*handle, *len);
            *handle = target;
            moved += 1;
        }
        self.pool.stop_leaving(usize::MAX);
        while self.pool.trim(usize::MAX) > 0 {}
        moved
    }

    /// Whether less than a tenth is waste at the end.
    fn phase(&mut self, name: &str, work: impl FnOnce(&mut Self) -> usize) -> bool {
        let start = Instant::now();
        let operations = work(self);
        self.report(name, start.elapsed(), operations);
        let start = Instant::now();
        let moved = self.compact();
        self.report(&format!("    compacted: {moved} moved"), start.elapsed(), moved);
        self.pool.usage().waste() < 0.1
    }
}

fn main() -> ExitCode {
    let mib = std::env::args().skip(1).find_map(|word| word.parse::<usize>().ok()).unwrap_or(256);
    let bytes = mib << 20;
    println!(
        "{:<34} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6} {:>6} {:>7} {:>6}",
        "", "MiB", "stored", "waste%", "round%", "tail%", "hole%", "empty%", "B/objct", "ns/op"
    );
    let mut dense = true;
    for (name, lengths) in [("programs", Lengths::Programs), ("any length", Lengths::Any)] {
        let pool = Zpool::new(bytes * 4).expect("address space is left");
        let view = pool.view();
        let mut churn = Churn { pool, view, objects: Vec::new(), chance: Chance(0x9E37_79B9_7F4A_7C15) };
        dense &= churn.phase(&format!("{name}: fill"), |churn| churn.store_bytes(bytes, lengths));
        dense &= churn.phase("  free 70 %", |churn| churn.free_percent(70));
        dense &= churn.phase("  store short ones", |churn| churn.store_bytes(bytes / 4, Lengths::Short));
        dense &= churn.phase("  replace all once", |churn| churn.replace_all(lengths));
        dense &= churn.phase("  free 70 %", |churn| churn.free_percent(70));
        dense &= churn.phase("  free 70 %", |churn| churn.free_percent(70));
    }
    if dense {
        return ExitCode::SUCCESS;
    }
    println!("a tenth of the pool or more is waste after compaction");
    ExitCode::FAILURE
}
