//! How many accesses a second the counting mode takes, and what it keeps of a page.

use std::hint::black_box;
use std::time::Instant;

use uswap_core::replacement::{NAMES, by_name};
use uswap_sim::counting::{misses, numbered, run};
use uswap_sim::device::Profile;
use uswap_sim::workload::Spec;

fn main() {
    println!(
        "{:<44}{:>15}{:>12}{:>14}{:>8}",
        "million accesses a second", "policy", "numbered", "from accesses", "B/page"
    );
    for workload in [
        "zipf:pages=250000,accesses=10000000",
        "random:pages=250000,accesses=10000000",
        "loop:pages=250000,accesses=10000000",
    ] {
        let accesses: Vec<_> = Spec::parse(workload).expect("a workload").accesses(1).collect();
        let (trace, pages) = numbered(accesses.iter().copied());
        for name in NAMES {
            let capacity = pages as usize / 2;
            let rate = |begun: Instant| trace.len() as f64 / begun.elapsed().as_secs_f64() / 1e6;
            let mut policy = by_name(name, capacity).expect("a policy");
            let begun = Instant::now();
            black_box(misses(&trace, &mut *policy));
            let of_numbers = rate(begun);
            let mut policy = by_name(name, capacity).expect("a policy");
            let begun = Instant::now();
            let counts = run(accesses.iter().copied(), &mut *policy, &Profile::named("brd").expect("a device"), 1);
            let whole = rate(begun);
            println!("{workload:<44}{name:>15}{of_numbers:>12.1}{whole:>14.1}{:>8}", counts.bytes / counts.pages);
        }
    }
}
