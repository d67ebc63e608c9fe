//! Random calls about memory in a tree of forks, of which each process knows what every page of its own must hold.

use std::path::PathBuf;
use std::time::Duration;

use uswap_e2e::{Budget, Launch, Random, TempDir, bare_only, c_program, is_root, repeat, skip};

/// What eight processes have is some 45, of which a part is in common and counts once.
const BUDGET_MIB: u64 = 24;

/// What the program is called with, but for its seed.
struct Mix {
    name: &'static str,
    operations: u64,
    /// Of a hundred children so many change their user.
    nobodies: u64,
    /// None: a mix of all.
    weights: Option<&'static str>,
}

impl Mix {
    fn launch(&self, test: &TempDir, program: PathBuf, seed: u64) -> Launch {
        let fixed = [self.operations, 8, 1024, 60, self.nobodies];
        let arguments = std::iter::once(seed).chain(fixed).map(|number| number.to_string());
        let launch = Launch::new(test, program).args(arguments).time_limit(Duration::from_secs(120));
        self.weights.iter().fold(launch, |launch, weights| launch.arg(weights))
    }

    /// Without uswap, then under it, from the same seed.
    fn run(&self) {
        let test = TempDir::new(self.name);
        let seed = Random::new(self.operations).below(1 << 32);
        let launch = self.launch(&test, c_program("random_memory"), seed);
        let recorded = launch.bare().finish();
        recorded.assert_success();
        if bare_only() {
            return;
        }
        let mut swapped_out = 0;
        for _ in 0..repeat() {
            let finished = launch.under(&Budget::mib(BUDGET_MIB)).finish();
            finished.assert_success();
            assert_eq!(finished.text(), recorded.text(), "{finished}");
            swapped_out += finished.stats.as_ref().map_or(0, uswap_e2e::Stats::pages_swapped_out);
        }
        assert!(swapped_out > 0, "nothing was swapped out");
    }
}

#[test]
fn all_calls_about_memory_in_a_tree_of_forks() {
    Mix { name: "everything", operations: 800, nobodies: 0, weights: None }.run();
}

#[test]
fn moves_in_a_tree_of_forks() {
    let weights = "map=20,write=30,read=12,move=25,leave=4,grow=12,shrink=4,cut=4,discard=4,fork=3";
    Mix { name: "moves", operations: 801, nobodies: 0, weights: Some(weights) }.run();
}

#[test]
fn discards_in_children_of_another_user_in_a_tree_of_forks() {
    if !is_root() {
        skip("it needs root");
        return;
    }
    let weights = "map=12,write=24,poke=6,read=20,discard=12,cut=4,advise=3,fork=3";
    Mix { name: "discards", operations: 802, nobodies: 100, weights: Some(weights) }.run();
}

#[test]
fn memory_that_is_given_up_in_a_tree_of_forks() {
    let weights = "map=12,write=24,poke=12,read=20,free=10,advise=3,move=4,cut=4,fork=3";
    Mix { name: "freed", operations: 803, nobodies: 0, weights: Some(weights) }.run();
}
