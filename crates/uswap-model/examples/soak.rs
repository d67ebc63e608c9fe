//! Runs seeds of the soak: `soak FIRST COUNT [all|touches|no-forks|restless|copying|sharing|at-once|crowded] [DEFECT] [PAGE]`. Tells each violation, and what happened in all.
//! With one seed it tells its world and its last steps, and what is done to a page if one is named. With a defect, in a build with
//! the feature `sabotage`, that is planted, and the first violation ends it. `soak quietly ...` tells nothing but the first
//! violation, `soak defects` lists the defects.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use uswap_core::defects::Sabotage;
use uswap_model::chance::Chance;
use uswap_model::soak::sharing::{self, Sharing};
use uswap_model::soak::{self, Scenario, Soaked};
use uswap_model::{Coverage, world};

/// The seed that runs.
static SEED: AtomicU64 = AtomicU64::new(u64::MAX);
/// What can be made of a seed.
const KINDS: [&str; 8] = ["all", "touches", "no-forks", "restless", "copying", "sharing", "at-once", "crowded"];
/// A seed that takes longer than this hangs where nobody else gets on.
const HANGS_AFTER: Duration = Duration::from_secs(20);

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["defects"] {
        return Sabotage::ALL.iter().for_each(|it| println!("{}\t{}\t{}", it.name(), it.place(), it.what()));
    }
    let is_quiet = arguments.first().is_some_and(|word| word == "quietly");
    arguments.drain(..usize::from(is_quiet));
    let number = |index: usize, otherwise| arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (first, count) = (number(0, 0), number(1, 1));
    let (mut kind, mut defect, mut page) = ("all", None, None);
    for word in arguments.iter().skip(2) {
        match Sabotage::ALL.iter().find(|defect| defect.name() == word) {
            Some(it) => defect = Some(*it),
            None if KINDS.contains(&word.as_str()) => kind = word,
            None => page = Some(usize::from_str_radix(word, 16).expect("a kind, a defect, or a page in hexadecimal")),
        }
    }
    plant(defect);
    std::panic::set_hook(Box::new(|panic| {
        world::last_steps().iter().for_each(|step| println!("{step}"));
        println!("seed {}: Assertion: {}", SEED.load(Relaxed), panic.to_string().replace('\n', " "));
        std::process::exit(1);
    }));
    std::thread::spawn(watch);
    let (begun, mut coverage) = (Instant::now(), Coverage::default());
    for seed in first..first + count {
        SEED.store(seed, Relaxed);
        let soaked = run(seed, kind, page, count == 1 && !is_quiet);
        coverage.merge(&soaked.coverage);
        if count == 1 && !is_quiet {
            world::last_steps().iter().for_each(|step| println!("{step}"));
            println!("{:?}, {} processes, {:#?}", soaked.outcome, soaked.processes, soaked.lines);
        } else if let Some(violation) = soaked.violation() {
            println!("seed {seed}: step {}: {:?}: {}", soaked.outcome.steps, violation.checker, violation.detail);
            if defect.is_some() || is_quiet {
                std::process::exit(1);
            }
        }
    }
    for (name, count) in coverage.iter().filter(|_| defect.is_none() && !is_quiet) {
        println!("{count:>12} {name}");
    }
    println!("{:.1} seeds per second", count as f64 / begun.elapsed().as_secs_f64());
}

/// Runs one seed; `alone`: tells its world, and keeps its last steps.
fn run(seed: u64, kind: &str, page: Option<usize>, alone: bool) -> Soaked {
    let mut chance = Chance::new(seed);
    if ["sharing", "at-once", "crowded"].contains(&kind) {
        let sharing = Sharing::draw(&mut chance);
        let mut sharing = if kind == "crowded" { sharing.crowded(seed) } else { sharing };
        sharing.habits.takes_turns &= kind != "at-once";
        (sharing.scenario.world.trace, sharing.scenario.world.keeps_last_steps) = (page, alone);
        if alone {
            println!("{sharing:#?}");
        }
        return sharing::run(sharing, chance);
    }
    let scenario = Scenario::draw(&mut chance);
    let mut scenario = match kind {
        "touches" => scenario.touching_only(),
        "no-forks" => scenario.without_forks(),
        "restless" => scenario.restless(seed),
        "copying" => scenario.copying(seed),
        _ => scenario,
    };
    (scenario.world.trace, scenario.world.keeps_last_steps) = (page, alone);
    if alone {
        println!("{scenario:#?}");
    }
    soak::run(scenario, chance)
}

/// Ends the process when a seed comes to no end.
fn watch() {
    loop {
        let seed = SEED.load(Relaxed);
        std::thread::sleep(HANGS_AFTER);
        if SEED.load(Relaxed) == seed {
            println!("seed {seed}: ComesToRest: it takes longer than {HANGS_AFTER:?}");
            std::process::exit(1);
        }
    }
}

#[cfg(feature = "sabotage")]
fn plant(defect: Option<Sabotage>) {
    uswap_core::defects::plant(defect);
}

#[cfg(not(feature = "sabotage"))]
fn plant(defect: Option<Sabotage>) {
    assert!(defect.is_none(), "defects can be planted only in a build with the feature sabotage");
}
