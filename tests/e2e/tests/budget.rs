//! The budget holds at every moment, for programs that touch fresh memory as fast as 1 GB/s.
//!
//! Memory is what the kernel says, from outside, every 20 ms: RssAnon + RssShmem of the whole tree, `uswap run`
//! itself and uswap's pool, frames and tables included. (What forked processes have in common is in that sum several times: those are
//! held to what the kernel charges, see `in_common.rs`.) Allowed is the budget and 5 %, or 16 MiB where that is more.

use std::time::Duration;

use uswap_e2e::{Budget, Finished, Launch, MIB, TempDir, bare_only, c_program, record, repeat, uswap_binary};

/// Runs `touch` within `budget_mib`, and holds every sample to the budget.
fn touch_within(name: &str, budget_mib: u64, arguments: [&str; 5]) {
    touch_under(name, budget_mib, &Budget::mib(budget_mib), arguments);
}

fn touch_under(name: &str, budget_mib: u64, budget: &Budget, arguments: [&str; 5]) {
    let test = TempDir::new(name);
    let program = Launch::new(&test, c_program("touch")).args(arguments).time_limit(Duration::from_secs(180));
    let recorded = record(&program);
    for run in 1..=repeat() {
        let finished = program.under(budget).finish();
        report(run, budget_mib, &finished);
        assert_eq!(finished.code(), 0, "{finished}");
        assert_eq!(finished.stdout, recorded.stdout, "{finished}");
        if bare_only() {
            continue;
        }
        finished.assert_swapped();
        finished.samples.assert_within(budget_mib * MIB);
        let stats = finished.stats.as_ref().expect("the program has ended by itself");
        let peak = stats.number("peak_resident_bytes");
        let seen = finished.samples.peak().resident();
        assert!(peak * 10 >= seen * 8, "uswap says that the peak was {peak} bytes, but {seen} were seen");
    }
}

fn report(run: u32, budget_mib: u64, finished: &Finished) {
    let rate = finished.stderr.lines().next().unwrap_or("");
    eprintln!(
        "run {run}: {:.1?}, {} samples, peak {} MiB of {budget_mib} {rate}",
        finished.wall,
        finished.samples.list.len(),
        finished.samples.peak().resident() / MIB
    );
}

#[test]
fn fresh_memory_at_1_gb_a_second() {
    touch_within("fresh", 256, ["fresh", "2048", "1", "1000", "1"]);
}

#[test]
fn fresh_memory_at_1_gb_a_second_by_four_threads() {
    touch_within("fresh-threads", 256, ["fresh", "2048", "4", "1000", "1"]);
}

#[test]
fn fresh_memory_that_does_not_compress() {
    touch_within("random", 256, ["fresh", "1024", "1", "1000", "512"]);
}

#[test]
fn fresh_memory_that_does_not_compress_by_four_threads() {
    touch_within("random-threads", 256, ["fresh", "1024", "4", "1000", "512"]);
}

/// What malloc does: each piece is filled before it is known, so the program takes no fault that could make it wait.
#[test]
fn a_heap_that_grows_while_it_is_filled() {
    touch_within("heap", 320, ["heap", "768", "1", "1000", "400"]);
}

/// What is filled while a write takes its time must be seen, too.
#[test]
fn a_heap_that_grows_while_the_disk_is_slow() {
    let budget = Budget::mib(320).flag("--fault-injection").flag("slow-write:every=8");
    touch_under("heap-slow", 320, &budget, ["heap", "768", "1", "1000", "400"]);
}

#[test]
fn memory_that_comes_and_goes() {
    touch_within("wave", 128, ["wave", "384", "4", "1000", "64"]);
}

/// How many mappings a program has had does not matter, only how many it has.
#[test]
fn after_twenty_thousand_mappings() {
    touch_within("churn", 64, ["churn", "256", "320", "1000", "64"]);
}

#[test]
fn a_small_budget() {
    touch_within("small", 64, ["fresh", "512", "2", "1000", "64"]);
}

/// Below its budget, a program is left alone.
#[test]
fn a_program_below_its_budget_is_not_swapped() {
    let test = TempDir::new("below");
    let program = Launch::new(&test, c_program("touch")).args(["fresh", "64", "1", "1000", "64"]);
    record(&program);
    let finished = program.under(&Budget::mib(512)).finish();
    finished.assert_success();
    if let Some(stats) = &finished.stats {
        assert_eq!(stats.pages_swapped_out(), 0, "{:#}", stats.json());
    }
}

/// A tree in a tree counts there, and keeps within what that has.
#[test]
fn a_run_inside_of_a_run_counts_in_its_budget() {
    if bare_only() {
        return;
    }
    let test = TempDir::new("nested");
    let program = c_program("lossy");
    let launch = Launch::new(&test, uswap_binary()).args(["run", "-q", "-m", "1G", "--"]);
    let launch = launch.arg(program).args(["160", "2", "die"]).time_limit(Duration::from_secs(120));
    let finished = launch.under(&Budget::mib(64)).finish();
    finished.assert_success();
    assert_eq!((finished.text().as_str(), finished.stderr.as_str()), ("lost 0\n", ""), "{finished}");
    let stats = finished.stats.as_ref().expect("statistics");
    let peak = stats.number("peak_resident_bytes") >> 20;
    assert!((32..=80).contains(&peak), "the outer run has seen {peak} MiB of it\n{:#}", stats.json());
    let outside = finished.samples.peak().resident() >> 20;
    assert!(outside <= 96, "{outside} MiB resident under 64\n{finished}");
}

/// Memory that several processes share is in RAM once: it does not fill the budget once for each of them. What each has for
/// itself is swapped until they have looked at what they share, and not again and again.
fn counts_once(case: &str, budget_mib: u64, own_mib: u64) {
    let test = TempDir::new("shared");
    let launch = Launch::new(&test, c_program("processes")).arg(case);
    let finished = launch.under(&Budget::mib(budget_mib)).finish();
    assert_eq!((finished.code(), finished.text()), (0, format!("ok {case}\n")), "{finished}");
    if let Some(stats) = &finished.stats {
        let brought_in = stats.counter("zswpin") + stats.counter("pswpin");
        assert!(brought_in < 3 * own_mib * MIB / 4096, "{brought_in} pages swapped in\n{finished}");
    }
}

/// 40 MiB, and 4 in each of eight processes.
#[test]
fn shared_memory_counts_once() {
    counts_once("shared-by-all", 128, 8 * 4);
}

/// 3 MiB, and 3 in each of six processes, as in a server with workers.
#[test]
fn a_little_shared_memory_counts_once() {
    counts_once("little-shared-by-all", 40, 6 * 3);
}
