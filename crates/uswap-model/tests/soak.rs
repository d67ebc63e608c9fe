//! The production engine on the model: random programs read what they wrote.

use uswap_engine::group::Counter;
use uswap_model::soak::{self, Scenario, Soaked};
use uswap_model::{Chance, End, Happening};

fn run(seeds: std::ops::Range<u64>, change: impl Fn(Scenario) -> Scenario) -> Vec<Soaked> {
    let run = |seed| {
        let mut chance = Chance::new(seed);
        let scenario = change(Scenario::draw(&mut chance));
        let soaked = soak::run(scenario, chance);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
        soaked
    };
    seeds.map(run).collect()
}

#[test]
fn pages_come_back_as_they_were() {
    let soaked = run(0..60, Scenario::touching_only);
    assert!(soaked.iter().all(|soaked| soaked.outcome.end == End::Rest));
    let sum = |counter| soaked.iter().map(|one| one.coverage.counter(counter)).sum::<u64>();
    let (came_in, went_out) = (sum(Counter::Pswpin), sum(Counter::Pswpout));
    assert!(came_in > 5000 && went_out > 5000, "{came_in} pages came in, {went_out} went out");
}

#[test]
fn calls_and_forks_change_nothing() {
    let soaked = run(0..60, |scenario| scenario);
    assert!(soaked.iter().any(|soaked| soaked.processes > 4), "some fork");
    let said_to_be_there: u64 = soaked.iter().map(|soaked| soaked.coverage.count(Happening::SaidToBeThere)).sum();
    assert!(said_to_be_there > 20, "{said_to_be_there} pages");
}

/// What was given up with MADV_FREE is known, also where the kernel does not tell.
#[test]
fn looks_that_fail_lose_nothing() {
    run(0..300, |mut scenario| {
        scenario.world.failed_looks = 300;
        (scenario.world.lazy_drops, scenario.world.spoils_dropped) = (400, true);
        (scenario.habits.calls_of, scenario.habits.lazily) = ([8, 1, 1, 0, 0, 0], 3);
        scenario.habits.rests_in_budget = false;
        scenario.without_forks()
    });
}

/// Several threads that store at a time do not each fill what is left of the pool's share.
#[test]
fn a_small_share_of_the_pool_is_kept() {
    for seed in [10_570_505, 10_779_426] {
        let soaked = soak::run_seed(seed);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
    }
}

/// Where hardly any page may stay, each left again before the thread that had asked for it ran: twenty million steps, and a
/// monitor that did not come to see that its supervisor was gone. 60014435: so did the monitor itself wait, which would have made room.
#[test]
fn who_has_asked_for_a_page_comes_to_use_it() {
    for seed in [10_026_220, 10_057_617, 60_014_435] {
        let soaked = soak::run_seed(seed);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
        assert!(soaked.outcome.steps < 1_000_000, "seed {seed}: {soaked:?}");
    }
}

/// 10657335: where the kernel has swapped nearly everything out, handlers looked for something to reclaim for two seconds before they served
/// a fault. 11645534: a forked child had a part of what had been moved, and its books had unmapped all of it. 12117459: a process ended itself
/// because a page of zeros that was just being brought in had been unmapped. 12207746: what was given up with MADV_FREE in a mapping that was
/// made while its place was being adopted was called lost. 12219761: an old fault had the books adopt what was not registered, a scan
/// found it filled, and what was moved out of it read as zeros. 15054090: what was used again after MADV_FREE was found too late. 15511540:
/// memory that had grown again and been split passed for that of an unmapping that was refused; 13500862: so did what a mremap had
/// made longer. 15879769: an unmapping that was refused was believed, for a mremap had just brought the memory. 14023182: of a page that the
/// kernel had dropped nothing was known, for there was no memory to fill it, and it was stored. 17545282: memory that the kernel refused to register was
/// forgotten while it was being brought in. 20018130 and 20020986: what others had read of a forked child stayed there as zeros, for the books
/// called it swapped out.
/// 24187261: what was given up with MADV_FREE was forgotten where it was moved while it was being adopted. 39050290: an unmapping that was
/// refused was believed, for the memory around it had just been registered once more. 6461: what a thread discards that gets no processor
/// for a second came back, as long as only time told that it was done. 45438578: the model refused an unmapping right behind memory that had
/// been unmapped itself, unread: that memory may have grown, and nothing tells. 47642224: in a process that has changed its user, a frame
/// whose page the kernel had dropped after MADV_FREE could not be filled while the program was changing its memory, and was read. 90043129: as 95001346 below.
/// 90140003: the model kept what a parent's call had filled in a child that had just been killed (what that schedule counts it does no longer, since
/// pools of parents are written back).
#[test]
fn seeds_of_single_findings() {
    for seed in [
        10_657_335, 11_645_534, 12_117_459, 12_207_746, 12_219_761, 15_054_090, 15_511_540, 13_500_862, 15_879_769,
        14_023_182, 17_545_282, 20_018_130, 20_020_986, 24_187_261, 39_050_290, 6_461, 45_438_578, 47_642_224,
        90_043_129, 90_140_003,
    ] {
        let soaked = soak::run_seed(seed);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
    }
}

/// 376: what a child had that its parent had not told of passed for pages that it had taken faults for, so that as many copies of its
/// own were not seen when it was a parent itself. 1076 and 3205: pages of zeros that were given back passed for memory that was. 1120, 70006235 and
/// 70006496: what came in while a process looked at what it had passed for changes, and as many real ones were not seen later. 90071963: the
/// model kept what a parent's call had filled in a child that had just been killed.
#[test]
fn all_that_forked_processes_have_counts() {
    for seed in [376, 1_076, 3_205, 1_120, 70_006_235, 70_006_496, 90_071_963] {
        let soaked = soak::run_seed(seed);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
        assert!(soaked.coverage.count(Happening::Counted) > 0, "seed {seed}");
    }
}

/// 38206: a forked child that the kernel had refused some memory took it for moved away, and what it had been moved to for overwritten.
/// 4053881: what was given up with MADV_FREE was forgotten where the books had let go of it for a moment.
/// 95001346: handlers waited for the monitor, which waited for one of them: up to 50 ms at each fault, and twenty million steps.
#[test]
fn seeds_where_nothing_rests() {
    for seed in (0..60).chain([38_206, 4_053_881, 95_001_346]) {
        let soaked = soak::run_restless_seed(seed);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
    }
}

/// Blocks that the kernel had swapped out were looked at again for each page that had to leave, by processes whose pools alone
/// are more than the budget: twenty million steps. Each fault waits for room, and each gets on.
#[test]
fn who_has_more_than_its_budget_gets_on() {
    for seed in [80_002_809, 95_014_118, 95_012_279, 110_511_990] {
        let soaked = soak::run_restless_seed(seed);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
        assert!(soaked.outcome.steps < 5_000_000, "seed {seed}: {soaked:?}");
    }
}

#[test]
fn what_is_in_common_is_copied_within_the_budget() {
    for seed in 0..60 {
        let soaked = soak::run_copying_seed(seed);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
        assert!(soaked.coverage.count(Happening::CopiedOnWrite) > 0, "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let again = |seed| soak::run_seed(seed);
    for seed in 0..8 {
        assert_eq!(again(seed), again(seed));
    }
}
