//! How many accesses a second the counting mode takes, and what it keeps of a page. Seconds are those on a CPU, the best of
//! three: others on the machine take time from a run, and the caches too. Arguments choose workloads and policies by a part of
//! their names: `cargo bench -p uswap-sim --bench counting -- random:pages=1000000 lirs`.

use std::fs;
use std::hint::black_box;

use uswap_policy::{NAMES, by_name};
use uswap_sim::counting::{misses, numbered, run};
use uswap_sim::device::Profile;
use uswap_sim::workload::Spec;

const RUNS: usize = 3;

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    println!(
        "{:<44}{:>15}{:>12}{:>14}{:>8}",
        "million accesses a second", "policy", "numbered", "from accesses", "B/page"
    );
    for workload in [
        "zipf:pages=250000,accesses=10000000",
        "random:pages=250000,accesses=10000000",
        "loop:pages=250000,accesses=10000000",
        "zipf:pages=1000000,accesses=10000000",
        "random:pages=1000000,accesses=10000000",
    ] {
        let wanted = |name: &&str| {
            let run = format!("{workload} {name}");
            chosen.iter().all(|part| run.contains(part.as_str()))
        };
        if !NAMES.iter().any(wanted) {
            continue;
        }
        let accesses: Vec<_> = Spec::parse(workload).expect("a workload").accesses(1).collect();
        let (trace, pages) = numbered(accesses.iter().copied());
        let brd = Profile::named("brd").expect("a device");
        for name in NAMES.iter().copied().filter(wanted) {
            let policy = || by_name(name, pages as usize / 2).expect("a policy");
            let rate = |seconds: f64| trace.len() as f64 / seconds / 1e6;
            let mut bytes = 0;
            let of_numbers = best_of(RUNS, || {
                black_box(misses(&trace, &mut *policy()));
            });
            let whole = best_of(RUNS, || {
                let counts = run(accesses.iter().copied(), &mut *policy(), &brd, 1);
                bytes = counts.bytes / counts.pages;
            });
            println!("{workload:<44}{name:>15}{:>12.1}{:>14.1}{bytes:>8}", rate(of_numbers), rate(whole));
        }
    }
}

/// The fewest seconds on a CPU of so many runs.
fn best_of(runs: usize, mut work: impl FnMut()) -> f64 {
    let seconds = (0..runs).map(|_| {
        let begun = cpu_seconds();
        work();
        cpu_seconds() - begun
    });
    seconds.fold(f64::MAX, f64::min)
}

/// Seconds that this thread was on a CPU.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("a kernel that counts (CONFIG_SCHED_INFO)");
    let nanoseconds = stat.split(' ').next().and_then(|number| number.parse::<u64>().ok());
    nanoseconds.expect("nanoseconds on a CPU come first") as f64 / 1e9
}
