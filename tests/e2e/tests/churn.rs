//! The long matrix of `churn`: seeds, masks and kinds of kernel swap. `cargo xtask churn` runs it; the tests that CI runs are in
//! `kernel_swap.rs`.

use std::collections::BTreeMap;

use uswap_e2e::{Budget, Finished, KernelSwap, Launch, SwapKind, TempDir, c_program};

/// What the threads of `churn` do, see its `enum operation`.
const MASKS: [(&str, &str); 8] = [
    ("0x00ff", "map, write, read, discard, unmap"),
    ("0x80ff", "and MADV_PAGEOUT, MADV_COLD"),
    ("0x01ff", "mremap"),
    ("0x81ff", "mremap and MADV_PAGEOUT"),
    ("0x94ff", "mmap over it, mprotect, MADV_PAGEOUT"),
    ("0xa8ff", "MADV_HUGEPAGE, MADV_FREE, MADV_PAGEOUT"),
    ("0xc1ff", "mremap, MREMAP_DONTUNMAP, MADV_PAGEOUT"),
    ("0xffff", "everything"),
];

fn setting(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

fn number(name: &str, otherwise: u64) -> u64 {
    let text = setting(name, &otherwise.to_string());
    text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not '{text}'"))
}

fn outcome(finished: &Finished) -> String {
    match finished.code() {
        0 if finished.stderr.is_empty() => "ok".to_owned(),
        0 => "ok, but said something".to_owned(),
        1 => "WRONG".to_owned(),
        135 => "LOST".to_owned(),
        other => format!("status {other}"),
    }
}

#[test]
#[ignore = "takes an hour: cargo xtask churn"]
fn the_whole_matrix() {
    let (first, seeds) = (number("USWAP_E2E_CHURN_FIRST", 1), number("USWAP_E2E_CHURN_SEEDS", 50));
    let seconds = number("USWAP_E2E_CHURN_SECONDS", 1);
    let kinds = setting("USWAP_E2E_CHURN_SWAP", "none,zram,file");
    let mut table: BTreeMap<(String, usize), BTreeMap<String, u64>> = BTreeMap::new();
    let mut bad = 0;
    for kind in kinds.split(',') {
        let test = TempDir::new("churn");
        let swap = match kind {
            "none" => None,
            "zram" => Some(SwapKind::Zram),
            "file" => Some(SwapKind::File),
            other => panic!("kernel swap to '{other}': say none, zram or file"),
        };
        let swap = swap.map(|kind| KernelSwap::on(&test, kind, 1024).expect("kernel swap can be had"));
        for seed in first..first + seeds {
            for (index, (mask, _)) in MASKS.iter().enumerate() {
                let arguments = [seed.to_string(), seconds.to_string(), "8".to_owned()];
                let launch = Launch::new(&test, c_program("churn")).args(arguments).env("MASK", mask);
                let finished = launch.under(&Budget::mib(64)).finish();
                let outcome = outcome(&finished);
                if outcome != "ok" {
                    bad += 1;
                    eprintln!("seed {seed} mask {mask} swap {kind}: {outcome}\n{finished}");
                }
                *table.entry((kind.to_owned(), index)).or_default().entry(outcome).or_default() += 1;
            }
        }
        drop(swap);
    }
    println!("churn, seeds {first} to {}, {seconds} s each, 8 threads in 64 MiB", first + seeds - 1);
    for ((kind, index), outcomes) in &table {
        let (mask, what) = MASKS[*index];
        let outcomes: Vec<_> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        println!("kernel swap {kind:5} {mask} {:45} {}", what, outcomes.join(", "));
    }
    assert_eq!(bad, 0, "runs that were not right");
}
