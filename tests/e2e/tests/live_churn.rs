//! Threads that map, move, discard and unmap all the time, while the budget goes up and down and a swap area leaves.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use uswap_e2e::{Budget, Launch, TempDir, bare_only, c_program, repeat, seed, tool, uswap_binary};

/// All that `churn` can do, see its `enum operation`; MADV_PAGEOUT does nothing without kernel swap.
const EVERYTHING: &str = "0x1ffff";
const SECONDS: &str = "8";

fn area(file: &Path, priority: u32) -> String {
    format!("file:{},size=1G,prio={priority}", file.display())
}

#[track_caller]
fn succeeds(arguments: &[&str]) {
    let output = tool(Command::new(uswap_binary()).args(arguments));
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn budgets_and_areas_come_and_go_under_threads_that_change_their_mappings() {
    let test = TempDir::new("live-churn");
    let (first, second) = (test.join("first"), test.join("second"));
    for run in 0..repeat().div_ceil(2) as u64 {
        let seed = seed().wrapping_add(run) % 1_000_000;
        let launch = Launch::new(&test, c_program("churn"))
            .args([&seed.to_string(), SECONDS, "8", "192"])
            .env("MASK", EVERYTHING)
            .time_limit(Duration::from_secs(120));
        let budget = Budget::mib(64).flag("--zpool-percent").flag("0").flag("--compressor").flag("none");
        let budget = budget.flag("--swap").flag(area(&first, 5)).flag("--swap").flag(area(&second, 1));
        let mut running = launch.under(&budget);
        if !bare_only() {
            running.wait_until("it swaps", |_| std::fs::metadata(&first).is_ok_and(|file| blocks(&file) > 4096));
            let pid = running.id().to_string();
            for memory in ["40M", "200M", "30M", "96M"] {
                succeeds(&["set", "--pid", &pid, "--memory", memory]);
                std::thread::sleep(Duration::from_millis(300));
            }
            succeeds(&["swapoff", "--pid", &pid, first.to_str().expect("a plain path")]);
            succeeds(&["set", "--pid", &pid, "--memory", "48M"]);
        }
        let finished = running.finish();
        assert_eq!(finished.code(), 0, "seed {seed}\n{finished}");
        assert!(!finished.text().contains("WRONG"), "seed {seed}\n{finished}");
        finished.assert_swapped();
    }
}

fn blocks(file: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(file)
}
