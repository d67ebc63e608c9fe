//! Runs seeds of the soak: `soak FIRST COUNT [all|touches|no-forks [PAGE]]`, tells what is done to a page if one is named, and says what each came to.

use std::time::Instant;

use uswap_model::chance::Chance;
use uswap_model::soak::{self, Scenario};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, otherwise| arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (first, count) = (number(0, 0), number(1, 1));
    let kind = arguments.get(2).map(String::as_str);
    let begun = Instant::now();
    for seed in first..first + count {
        let mut chance = Chance::new(seed);
        let scenario = Scenario::draw(&mut chance);
        let scenario = match kind {
            Some("touches") => scenario.touching_only(),
            Some("no-forks") => scenario.without_forks(),
            _ => scenario,
        };
        if count == 1 {
            println!("{scenario:#?}");
        }
        let mut scenario = scenario;
        let page = arguments.get(3).map(|text| usize::from_str_radix(text, 16).expect("a page in hexadecimal"));
        scenario.world.trace = page;
        let soaked = soak::run(scenario, chance);
        println!("{seed}: {soaked:?}");
    }
    println!("{:.1} seeds per second", count as f64 / begun.elapsed().as_secs_f64());
}
