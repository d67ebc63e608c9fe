//! Runs seeds of the soak: `soak FIRST COUNT [all|touches|no-forks [PAGE]]`. Tells each violation, and what happened in all. With
//! one seed it tells its world and its last steps, and what is done to a page if one is named.

use std::cell::Cell;
use std::time::Instant;

use uswap_model::chance::Chance;
use uswap_model::soak::{self, Scenario};
use uswap_model::{Coverage, world};

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, otherwise| arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (first, count) = (number(0, 0), number(1, 1));
    let kind = arguments.get(2).map(String::as_str);
    let page = arguments.get(3).map(|text| usize::from_str_radix(text, 16).expect("a page in hexadecimal"));
    std::panic::set_hook(Box::new(|panic| {
        world::last_steps().iter().for_each(|step| println!("{step}"));
        println!("seed {}: {panic}", SEED.get());
    }));
    let (begun, mut coverage) = (Instant::now(), Coverage::default());
    for seed in first..first + count {
        SEED.set(seed);
        let mut chance = Chance::new(seed);
        let scenario = Scenario::draw(&mut chance);
        let mut scenario = match kind {
            Some("touches") => scenario.touching_only(),
            Some("no-forks") => scenario.without_forks(),
            _ => scenario,
        };
        (scenario.world.trace, scenario.world.keeps_last_steps) = (page, count == 1);
        if count == 1 {
            println!("{scenario:#?}");
        }
        let soaked = soak::run(scenario, chance);
        coverage.merge(&soaked.coverage);
        if count == 1 {
            world::last_steps().iter().for_each(|step| println!("{step}"));
            println!("{:?}, {} processes, {:#?}", soaked.outcome, soaked.processes, soaked.lines);
        } else if let Some(violation) = soaked.violation() {
            println!("seed {seed}: step {}: {violation}", soaked.outcome.steps);
        }
    }
    for (name, count) in coverage.iter() {
        println!("{count:>12} {name}");
    }
    println!("{:.1} seeds per second", count as f64 / begun.elapsed().as_secs_f64());
}
