//! Accesses a second of each replacement policy: `cargo bench -p uswap-core --bench replacement`.
//!
//! A million distinct pages, memory for a quarter of them. Prints a line for each policy and workload, with the share of
//! misses and the bytes that it keeps for a page. Seconds are those on the CPU: on a busy machine only the caches suffer.

use uswap_policy::{Access, NAMES, PageIndex, by_name};

const PAGES: u64 = 1 << 20;
const ACCESSES: usize = 20_000_000;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// Page `n` with a chance near `1 / (n + 1)`, page numbers mixed.
fn zipf(random: &mut Random) -> PageIndex {
    let scale = 1 << random.below(20);
    let rank = scale - 1 + random.below(scale);
    (rank.wrapping_mul(0x9e37_79b1) % PAGES) as PageIndex
}

/// Nanoseconds that this thread has been on a CPU.
fn on_cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells how long a thread ran");
    stat.split(' ').next().and_then(|field| field.parse().ok()).expect("the first field is nanoseconds")
}

fn main() {
    let mut random = Random(88_172_645_463_325_252);
    let workloads: [(&str, Vec<PageIndex>); 3] = [
        ("zipf", (0..ACCESSES).map(|_| zipf(&mut random)).collect()),
        ("loop", (0..ACCESSES).map(|index| (index as u64 % PAGES) as PageIndex).collect()),
        ("random", (0..ACCESSES).map(|_| random.below(PAGES) as PageIndex).collect()),
    ];
    for name in NAMES {
        for (workload, trace) in &workloads {
            let mut policy = by_name(name, (PAGES / 4) as usize).expect("a name of the list");
            let start = on_cpu_ns();
            let misses = trace.iter().filter(|&&page| policy.access(page) != Access::Hit).count();
            let rate = ACCESSES as f64 * 1e3 / (on_cpu_ns() - start) as f64;
            let share = misses as f64 * 100.0 / ACCESSES as f64;
            let bytes = policy.bytes() as f64 / PAGES as f64;
            println!("{name:14} {workload:7} {rate:6.1} M accesses/s  {share:5.1} % misses  {bytes:4.1} bytes a page");
        }
    }
}
