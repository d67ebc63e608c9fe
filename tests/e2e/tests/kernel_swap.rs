//! Beside the kernel's own swap: what the kernel swaps out by itself is neither lost nor taken for zeros.
//!
//! The kernel's multi-generational LRU (MGLRU) is not tried: whether there is one is a matter of the kernel's configuration,
//! and the first line of each test says so.

use std::path::Path;
use std::time::Duration;

use uswap_e2e::{Budget, Finished, KernelSwap, Launch, MemoryCgroup, SwapKind, TempDir, c_program, seed, skip};

/// Everything but the operations of mappings that other tests are for.
const WITH_PAGEOUT: &str = "0x80ff";
/// The same, and nobody but the kernel itself reclaims.
const WITHOUT_PAGEOUT: &str = "0x00ff";

fn say_what_reclaims() {
    let has_mglru = Path::new("/sys/kernel/mm/lru_gen/enabled").exists();
    eprintln!(
        "seed {}; MGLRU: {}",
        seed(),
        if has_mglru { "in this kernel" } else { "not in this kernel, not tested" }
    );
}

fn churn(test: &TempDir, mask: &str, seconds: u32) -> Launch {
    Launch::new(test, c_program("churn"))
        .args([seed().to_string(), seconds.to_string(), "8".to_owned()])
        .env("MASK", mask)
        .time_limit(Duration::from_secs(90))
}

/// A program in a memory cgroup.
fn inside(test: &TempDir, group: &MemoryCgroup, program: &str) -> Launch {
    Launch::new(test, "sh")
        .args(["-c", "echo $$ > \"$1\"; shift; exec \"$@\"", "sh"])
        .arg(group.entrance())
        .arg(c_program(program))
        .time_limit(Duration::from_secs(90))
}

/// Runs it while the kernel reclaims from the group all the time, beyond what the limit makes it do.
fn under_reclaim(launch: &Launch, group: &MemoryCgroup, budget_mib: u64, every: Duration) -> Finished {
    let mut running = launch.under(&Budget::mib(budget_mib));
    while running.is_running() {
        group.reclaim();
        std::thread::sleep(every);
    }
    running.finish()
}

/// How often the kernel is made to reclaim all that it can.
const OFTEN: Duration = Duration::from_millis(20);

/// Nothing was wrong and nothing was lost.
fn assert_right(finished: &Finished) {
    eprintln!("{}", finished.text().trim());
    assert!(finished.code() == 0 && finished.stderr.is_empty(), "{finished}");
    let Some(stats) = &finished.stats else { return };
    assert_eq!(stats.counter("poisoned_pages"), 0, "{:#}", stats.json());
}

/// The same, and both swapped.
fn assert_both_swapped(finished: &Finished) {
    assert_right(finished);
    finished.assert_swapped();
    let Some(stats) = &finished.stats else { return };
    let by_kernel = stats.number("kernel_swapped_bytes");
    assert!(by_kernel > 0, "the kernel has swapped nothing\n{:#}", stats.json());
}

fn pages_out(kind: SwapKind) {
    let test = TempDir::new("pageout");
    say_what_reclaims();
    let Some(_swap) = KernelSwap::on(&test, kind, 512) else { return };
    assert_both_swapped(&churn(&test, WITH_PAGEOUT, 6).under(&Budget::mib(64)).finish());
}

#[test]
fn pages_that_a_program_pages_out_to_zram_are_right() {
    pages_out(SwapKind::Zram);
}

#[test]
fn pages_that_a_program_pages_out_to_a_file_are_right() {
    pages_out(SwapKind::File);
}

/// The kernel reclaims from the program, the frames and the pool.
fn reclaims(kind: SwapKind) {
    let test = TempDir::new("reclaim");
    say_what_reclaims();
    let Some(_swap) = KernelSwap::on(&test, kind, 512) else { return };
    let Some(group) = MemoryCgroup::new("reclaim", 56) else { return };
    let launch = inside(&test, &group, "churn")
        .args([seed().to_string(), "6".to_owned(), "8".to_owned(), "160".to_owned()])
        .env("MASK", WITHOUT_PAGEOUT);
    let mut finished = under_reclaim(&launch, &group, 32, OFTEN);
    // Where the disk is slow, the kernel may leave it so little that it never has to swap by itself: then with less reclaim, and less.
    for times in [5, 25] {
        if finished.stats.as_ref().is_none_or(|stats| stats.pages_swapped_out() > 0) {
            break;
        }
        assert_right(&finished);
        finished = under_reclaim(&launch, &group, 32, times * OFTEN);
    }
    assert_both_swapped(&finished);
}

#[test]
fn what_the_kernel_reclaims_to_zram_is_right() {
    reclaims(SwapKind::Zram);
}

#[test]
fn what_the_kernel_reclaims_to_a_file_is_right() {
    reclaims(SwapKind::File);
}

/// A fork shares what the kernel has swapped out, and what uswap has.
#[test]
fn a_fork_is_right_while_the_kernel_reclaims() {
    let test = TempDir::new("fork");
    say_what_reclaims();
    let Some(_swap) = KernelSwap::on(&test, SwapKind::Zram, 1024) else { return };
    let Some(group) = MemoryCgroup::new("fork", 1024) else { return };
    let finished = under_reclaim(&inside(&test, &group, "processes").arg("fork"), &group, 64, OFTEN);
    assert_eq!(finished.text(), "ok fork\n", "{finished}");
    assert_both_swapped(&finished);
}

/// It cannot look at its own page table.
#[test]
fn a_process_that_has_changed_its_user_loses_nothing_beside_kernel_swap() {
    let test = TempDir::new("user");
    say_what_reclaims();
    let Some(_swap) = KernelSwap::on(&test, SwapKind::Zram, 512) else { return };
    let launch = churn(&test, WITH_PAGEOUT, 6).env("RUN_AS", "65534");
    assert_both_swapped(&launch.under(&Budget::mib(64)).finish());
}

/// Memory that the kernel moves shows as swapped for a moment, with kernel swap or without.
#[test]
fn pages_that_the_kernel_is_moving_are_right() {
    let test = TempDir::new("compaction");
    let compaction = Path::new("/proc/sys/vm/compact_memory");
    if std::fs::write(compaction, "1").is_err() {
        return skip("memory cannot be compacted here");
    }
    let mut running = churn(&test, WITHOUT_PAGEOUT, 4).under(&Budget::mib(64));
    while running.is_running() {
        std::fs::write(compaction, "1").expect("it could be written before");
        std::thread::sleep(Duration::from_millis(10));
    }
    let finished = running.finish();
    eprintln!("{}", finished.text().trim());
    assert!(finished.code() == 0 && finished.stderr.is_empty(), "{finished}");
    finished.assert_swapped();
}
