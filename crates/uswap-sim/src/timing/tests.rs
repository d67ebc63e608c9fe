//! What timing mode shows, and that each of its checkers and knobs works.

use uswap_policy::by_name;

use super::*;

fn policy(pages: usize) -> Box<dyn Replacement> {
    by_name("second-chance", pages).unwrap()
}

fn try_run(workload: &str, setup: &Setup) -> Result<Timed, Violation> {
    run(&Spec::parse(workload).unwrap(), setup, &policy, &Profile::named("nvme").unwrap())
}

#[track_caller]
fn timed(workload: &str, setup: &Setup) -> Timed {
    try_run(workload, setup).unwrap_or_else(|violation| panic!("{violation}"))
}

fn setup(limit_pages: u64) -> Setup {
    Setup { preset: Preset::LINUX_5_8, seed: 3, check_every: 64, ..Setup::new(limit_pages) }
}

/// A rate of one in `of` transfers.
fn one_in(of: u16) -> u16 {
    FaultRates::OF / of
}

#[test]
fn what_fits_takes_no_fault_and_what_does_not_takes_time() {
    let fits = timed("loop:pages=1000,accesses=10000", &setup(1000));
    assert_eq!((fits.major, fits.pages_written, fits.lost), (0, 0, 0));
    let half = timed("loop:pages=1000,accesses=10000", &setup(500));
    assert!(half.major > 500 && half.ns > 10 * fits.ns, "{half:?}");
}

#[test]
fn neighbours_come_along_where_they_are_wanted() {
    let sequential = timed("sequential:pages=4000,accesses=20000", &setup(1000));
    let random = timed("random:pages=4000,accesses=20000", &setup(1000));
    assert!(sequential.cached > 3 * sequential.major, "{sequential:?}");
    assert!(random.cached * 10 < random.major, "{random:?}");
    assert!(random.median_ns > 200_000 && random.p99_ns > random.median_ns);
}

#[test]
fn processes_share_the_limit_and_a_run_can_be_repeated() {
    let two = Setup { processes: 2, ..setup(1000) };
    let both = timed("zipf:pages=1000,accesses=20000", &two);
    let alone = timed("zipf:pages=1000,accesses=20000", &setup(1000));
    assert_eq!((alone.major, both.accesses), (0, 40_000));
    assert!(both.major > 0);
    // However many wait for memory at a time, all get it.
    let many = timed("zipf:pages=1000,accesses=5000", &Setup { processes: 12, ..setup(500) });
    assert_eq!((many.accesses, many.killed), (60_000, 0));
    assert_eq!(both, timed("zipf:pages=1000,accesses=20000", &two));
}

#[test]
fn a_cgroup_of_its_own_keeps_a_process_from_the_memory_of_others() {
    let own = Setup { processes: 2, own_cgroups: true, ..setup(1000) };
    assert_eq!(timed("zipf:pages=1000,accesses=20000", &own).major, 0);
}

#[test]
fn who_goes_past_high_sleeps_when_nothing_can_be_freed() {
    let limits = Limits { high: 500, max: 100_000 };
    let freed = timed("random:pages=1000,accesses=20000", &Setup { limits, ..setup(0) });
    assert!(freed.major > 0 && freed.throttled_ns == 0, "{freed:?}");
    // The area is full at once, so the rest stays in memory, and is paid for.
    let full = timed("random:pages=1000,accesses=20000", &Setup { limits, slots: Some(64), ..setup(0) });
    assert!(full.no_slot > 0 && full.throttled_ns > 100_000_000, "{full:?}");
}

#[test]
fn a_full_area_ends_in_a_kill_at_the_limit() {
    let full = timed("random:pages=1000,accesses=20000", &Setup { slots: Some(64), ..setup(500) });
    assert_eq!((full.killed, full.out_of_memory, full.lost), (1, 1, 0), "{full:?}");
    assert!(full.accesses < 20_000);
}

#[test]
fn compressed_pages_and_zeros_spare_the_device() {
    let workload = "random:pages=2000,accesses=20000";
    let plain = timed(workload, &setup(1000));
    let pooled = timed(workload, &Setup { zswap_percent: 40, ..setup(1000) });
    assert!(pooled.io.zswpin > 0 && pooled.major < plain.major && pooled.zswpwb > 0, "{pooled:?}");
    let zeros = timed(workload, &Setup { zero_percent: 50, ..setup(1000) });
    assert!(zeros.io.swpin_zero > 1000 && zeros.pages_written * 3 < plain.pages_written * 2, "{zeros:?}");
    assert_eq!((plain.io.zswpout, plain.io.swpout_zero), (0, 0));
}

#[test]
fn by_slot_a_stranger_brings_pages_to_the_wrong_node_unless_their_owner_is_asked() {
    let two = Setup { by_address: false, processes: 2, nodes: 2, ..setup(1500) };
    let toucher = timed("sequential:pages=2000,accesses=20000", &two);
    assert!(toucher.misplaced.wrong > 100, "{toucher:?}");
    let owner = Setup { placement: Placement::Owner, ..two.clone() };
    assert_eq!(timed("sequential:pages=2000,accesses=20000", &owner).misplaced.wrong, 0);
    let one = Setup { nodes: 1, ..two };
    assert_eq!(timed("sequential:pages=2000,accesses=20000", &one).misplaced.wrong, 0);
}

#[test]
fn killed_processes_leave_nothing() {
    let kills = Setup { processes: 4, kills: 2, zswap_percent: 20, ..setup(1000) };
    let killed = timed("random:pages=1000,accesses=5000", &kills);
    assert_eq!((killed.killed, killed.lost), (2, 0), "{killed:?}");
    assert!(killed.accesses < 20_000);
}

/// Half as much memory as pages, and one thing goes wrong with one transfer in ten.
fn with(faults: FaultRates) -> Timed {
    timed("random:pages=800,accesses=8000", &Setup { faults, ..setup(400) })
}

#[test]
fn a_failed_write_leaves_its_page_in_memory() {
    for faults in [
        FaultRates { write_fails: one_in(10), ..FaultRates::NONE },
        FaultRates { write_tears: one_in(10), ..FaultRates::NONE },
        FaultRates { write_is_short: one_in(10), ..FaultRates::NONE },
        FaultRates { no_space: one_in(10), ..FaultRates::NONE },
    ] {
        let timed = with(faults);
        assert!(timed.failed_writes > 100 && timed.lost == 0, "{faults:?} {timed:?}");
    }
}

#[test]
fn reads_are_tried_again_and_what_stays_unreadable_is_told() {
    for faults in [
        FaultRates { read_fails: one_in(10), ..FaultRates::NONE },
        FaultRates { read_corrupts: one_in(10), ..FaultRates::NONE },
    ] {
        let (timed, fine) = (with(faults), with(FaultRates::NONE));
        assert!(timed.pages_read > fine.pages_read && timed.lost < timed.major / 100, "{timed:?}");
    }
    let all = with(FaultRates { read_fails: FaultRates::OF, ..FaultRates::NONE });
    assert!(all.lost > 0 && all.lost == all.major, "{all:?}");
}

#[test]
fn a_silent_corruption_is_told_where_hashes_are_checked_and_goes_unnoticed_where_not() {
    let faults = FaultRates { write_corrupts: one_in(10), ..FaultRates::NONE };
    let ours = with(faults);
    assert!(ours.lost > 100 && ours.wrong == 0, "{ours:?}");
    let kernels = Setup { faults, hashes: false, ..setup(400) };
    let kernels = timed("random:pages=800,accesses=8000", &kernels);
    assert!(kernels.wrong > 100 && kernels.lost == 0, "{kernels:?}");
}

#[test]
fn delayed_transfers_take_their_time_and_harm_nobody() {
    let (slow, fine) = (with(FaultRates { delays: one_in(10), ..FaultRates::NONE }), with(FaultRates::NONE));
    assert!(slow.ns > 2 * fine.ns && slow.p99_ns > 5 * fine.p99_ns && slow.lost == 0, "{slow:?} {fine:?}");
}

/// Everything at once, from many seeds, looked at after every few faults.
#[test]
fn a_page_is_right_or_its_owner_is_told_whatever_goes_wrong() {
    let one = one_in(50);
    let faults = FaultRates {
        read_fails: one,
        read_corrupts: one,
        write_fails: one,
        write_tears: one,
        write_is_short: one,
        write_corrupts: one,
        no_space: one,
        delays: one,
    };
    let mut told = 0;
    for seed in 0..24 {
        let setup = Setup {
            processes: 3,
            own_cgroups: seed % 2 == 0,
            by_address: seed % 3 != 0,
            limits: Limits { high: if seed % 4 == 0 { 100 } else { u64::MAX }, max: 150 },
            slots: (seed % 5 == 0).then_some(512),
            zswap_percent: seed % 7 * 5,
            zero_percent: seed % 3 * 10,
            nodes: 2,
            kills: 1,
            faults,
            seed,
            check_every: 8,
            ..setup(0)
        };
        let outcome = try_run("zipf:pages=200,accesses=2000", &setup);
        let timed = outcome.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert_eq!(timed.wrong, 0, "seed {seed}");
        told += timed.lost;
    }
    assert!(told > 0);
}

/// With the defect in, the right checker notices.
#[track_caller]
fn fires(sabotage: Sabotage, checker: Checker) {
    let zswap_percent = if sabotage == Sabotage::KeepCompressed { 20 } else { 0 };
    // Slow writes are met in flight.
    let delays = if sabotage == Sabotage::FreeInFlight { one_in(2) } else { 0 };
    let faults = FaultRates { delays, ..FaultRates::NONE };
    let setup = Setup { processes: 2, zswap_percent, faults, check_every: 1, ..setup(200) };
    // Hits of readahead need a program that goes on where it was.
    let name = if sabotage == Sabotage::CountHitTwice { "sequential" } else { "random" };
    let spec = Spec::parse(&format!("{name}:pages=200,accesses=1000")).unwrap();
    let found = run_sabotaged(&spec, &setup, &policy, &Profile::named("nvme").unwrap(), sabotage);
    let violation = found.expect_err("nobody notices");
    assert_eq!(violation.checker, checker, "{violation}");
}

#[test]
fn no_slot_has_two_owners_can_fire() {
    fires(Sabotage::FreeInFlight, Checker::OneOwner);
}

#[test]
fn every_page_is_recoverable_can_fire() {
    fires(Sabotage::OverwriteSlot, Checker::Recoverable);
}

#[test]
fn a_page_reads_as_what_was_written_last_can_fire() {
    fires(Sabotage::Misread, Checker::RightContent);
}

#[test]
fn a_page_is_lost_only_for_a_reason_can_fire() {
    fires(Sabotage::LoseForNothing, Checker::LostForAReason);
}

#[test]
fn readahead_follows_its_rules_can_fire() {
    fires(Sabotage::OddWindow, Checker::Readahead);
    fires(Sabotage::ReadHeader, Checker::Readahead);
    fires(Sabotage::CountHitTwice, Checker::Readahead);
}

#[test]
fn cgroups_are_charged_for_what_they_have_can_fire() {
    fires(Sabotage::ForgetCharge, Checker::Limits);
}

#[test]
fn nothing_is_left_of_what_has_ended_can_fire() {
    fires(Sabotage::KeepSlot, Checker::NothingLeft);
    fires(Sabotage::KeepCompressed, Checker::NothingLeft);
}

/// The pool's own checker: a slot that is said to be zero while it has a compressed page.
#[test]
fn the_compressed_pool_agrees_with_itself_can_fire() {
    let mut pool = Pool::new(64, 1000, 20);
    let entry = SwapEntry { area: 0, slot: 5 };
    let content = (1..).map(crate::page_content::Content).find(|content| content.compresses()).unwrap();
    pool.write(disk::Write { entry, content, is_charged: true }, 0);
    assert!(pool.zswap().check(|entry| pool.is_zero(entry)).is_ok());
    assert!(pool.zswap().check(|_| true).is_err());
}
