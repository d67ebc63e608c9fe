//! The shared-memory server on the model: programs that share memory read what was written last.

use uswap_engine::group::Counter;
use uswap_model::soak::sharing::{self, Sharing};
use uswap_model::{Chance, Coverage, Happening};

#[test]
fn what_is_shared_reads_as_it_was_written() {
    let (mut coverage, mut processes) = (Coverage::default(), 0);
    for seed in 0..40 {
        let soaked = sharing::run_seed(seed);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
        coverage.merge(&soaked.coverage);
        processes += soaked.processes;
    }
    let (came_in, went_out) = (coverage.counter(Counter::Pswpin), coverage.counter(Counter::Pswpout));
    assert!(came_in > 1000 && went_out > 1000, "{came_in} pages came in, {went_out} went out");
    assert!(processes > 120, "{processes} processes");
    assert!(coverage.count(Happening::Remap) > 100 && coverage.count(Happening::SharedFound) > 1000);
    assert!(coverage.count(Happening::SaidToBeThere) > 20);
}

/// A child that was forked, and what its parent unmapped then, were read while it was looked which objects nobody has: of one that the child
/// has, all that was swapped out was forgotten.
#[test]
fn what_only_a_new_child_has_is_not_forgotten() {
    for seed in [684, 1075] {
        let soaked = sharing::run_seed(seed);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
    }
}

/// Threads that do not take turns.
fn is_right_at_once(seed: u64) {
    let mut chance = Chance::new(seed);
    let mut sharing = Sharing::draw(&mut chance);
    sharing.habits.takes_turns = false;
    let soaked = sharing::run(sharing, chance);
    assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
}

/// A fork of one thread, and what another thread unmapped or moved after it, may be reported the other way round: the child then had memory of
/// which the server did not know.
#[test]
fn what_is_unmapped_just_after_a_fork_is_known_in_the_child() {
    for seed in (0..20).chain([39, 67, 146, 327, 942]) {
        is_right_at_once(seed);
    }
}

/// What several threads of a process did to the same addresses was taken in in the order in which it was reported (1040, 3252). And what was
/// read together with a fault, and not taken in, passed for done (208623).
#[test]
fn calls_of_several_threads_may_be_reported_in_any_order() {
    for seed in [1040, 3252, 208623] {
        is_right_at_once(seed);
    }
}

/// Mappings that are doubled, and grow.
#[test]
fn what_is_mapped_twice_and_grows_is_known() {
    for seed in 0..40 {
        let mut chance = Chance::new(seed);
        let sharing = Sharing::draw(&mut chance).crowded(seed);
        let soaked = sharing::run(sharing, chance);
        assert!(soaked.violation().is_none(), "seed {seed}: {soaked:?}");
    }
}
