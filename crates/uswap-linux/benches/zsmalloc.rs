//! How much of a zsmalloc pool is unused after churn, before and after compaction: `cargo bench -p uswap-core --bench zsmalloc`.
//!
//! 200,000 objects; rounds in which nine of ten are replaced and half are freed and come back later. Fails when compaction
//! leaves a tenth or more unused.

use std::time::Instant;

use uswap_linux::zsmalloc::{Handle, Zsmalloc};

const OBJECTS: usize = 200_000;
const ROUNDS: u32 = 5;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Lengths as LZ4 makes them of a program's pages: some small, most around a half, a few that hardly compress.
fn around_a_half(random: &mut Random) -> u16 {
    match random.below(10) {
        0..2 => 40 + random.below(400) as u16,
        2..8 => 800 + random.below(2000) as u16,
        _ => 2800 + random.below(1296) as u16,
    }
}

fn any_length(random: &mut Random) -> u16 {
    1 + random.below(4096) as u16
}

fn churn(name: &str, chain: u32, length: fn(&mut Random) -> u16) {
    let mut random = Random(88_172_645_463_325_252);
    let mut pool = Zsmalloc::new(chain);
    let mut handles: Vec<Handle> = (0..OBJECTS).map(|_| pool.alloc(length(&mut random))).collect();
    for round in 1..=ROUNDS {
        let start = Instant::now();
        for _ in 0..OBJECTS * 9 / 10 {
            let victim = random.below(handles.len());
            pool.free(handles[victim]);
            handles[victim] = pool.alloc(length(&mut random));
        }
        for _ in 0..OBJECTS / 2 {
            let victim = random.below(handles.len());
            pool.free(handles.swap_remove(victim));
        }
        let churned = start.elapsed();
        let before = pool.usage();
        let start = Instant::now();
        let freed = pool.compact();
        let compacted = start.elapsed();
        let after = pool.usage();
        println!(
            "{name}, chains of {chain}, round {round}: {:.1} % unused, after compaction {:.1} % ({freed} of {} pages back); \
             churn {churned:.0?}, compaction {compacted:.0?}",
            before.fragmentation_permille() as f64 / 10.0,
            after.fragmentation_permille() as f64 / 10.0,
            before.pages,
        );
        assert!(after.fragmentation_permille() < 100, "compaction leaves too much");
        while handles.len() < OBJECTS {
            handles.push(pool.alloc(length(&mut random)));
        }
    }
}

fn main() {
    for chain in [4, 8, 16] {
        churn("around a half", chain, around_a_half);
        churn("any length", chain, any_length);
    }
}
