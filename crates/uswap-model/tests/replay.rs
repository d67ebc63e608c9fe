//! What a program meets on the engine, in a world without haste.

use uswap_core::{OwnerSearch, Policies, ReadaheadPolicy, ReclaimPolicy};
use uswap_model::Chance;
use uswap_model::replay::{Access, SIZE_MIN, replay};

const ALONE: Policies =
    Policies { reclaim: ReclaimPolicy::Lists, readahead: ReadaheadPolicy::Off, swapoff: OwnerSearch::Book };

fn reads(pages: impl IntoIterator<Item = u64>) -> Vec<Access> {
    pages.into_iter().map(|page| Access { page, writes: false }).collect()
}

#[test]
fn memory_is_never_more_than_its_size() {
    for size in [SIZE_MIN, 200, 700, 2000] {
        for policies in
            ReclaimPolicy::ALL.map(|reclaim| Policies { reclaim, ..ALONE }).into_iter().chain([Policies::default()])
        {
            let mut chance = Chance::new(size);
            let mut page = 0;
            let accesses: Vec<Access> = (0..8000)
                .map(|_| {
                    page = if chance.happens(1, 3) { chance.below(2 * size) } else { (page + 1) % (2 * size) };
                    Access { page, writes: chance.happens(1, 2) }
                })
                .collect();
            let met = replay(size, policies, &[], &accesses);
            // Reclaim begins at the size, some pages below the budget, and may pass over the sixteen that were asked for last.
            assert!(met.peak <= size + size / 64 + 4 + 16, "{size}: {met:?}");
            assert!(met.read > 0 && met.written > 0, "{size}: {met:?}");
            assert!(policies.readahead != ReadaheadPolicy::Off || met.used < met.misses / 10, "{size}: {met:?}");
        }
    }
}

#[test]
fn what_fits_is_missed_once() {
    let rounds = (0..3).flat_map(|_| 0..800);
    assert_eq!(replay(1000, ALONE, &[], &reads(rounds)).misses, 800);
}

#[test]
fn a_copy_that_is_still_good_is_not_written_again() {
    let rounds = (0..4).flat_map(|_| 0..2000);
    let met = replay(600, Policies::default(), &(0..2000).collect::<Vec<_>>(), &reads(rounds));
    // The last sixteen that were asked for need not have left before.
    assert!(met.written <= 16, "{met:?}");
    assert!(met.read > 7000, "{met:?}");
}

#[test]
fn a_stream_misses_markers_and_little_else() {
    let met = replay(4096, Policies::default(), &(0..16_384).collect::<Vec<_>>(), &reads(0..16_384));
    assert!(met.misses < 120 && met.wasted < 40, "{met:?}");
}

/// Runs of up to 24 pages that were used, and holes of up to 12 between them that never were.
#[test]
fn a_stream_goes_on_over_what_was_never_used() {
    let (mut chance, mut at, mut pages) = (Chance::new(1), 0, Vec::new());
    while at < 16_384 {
        let run = 1 + chance.below(24);
        pages.extend(at..at + run);
        at += run + 1 + chance.below(12);
    }
    let met = replay(4096, Policies::default(), &pages, &reads(pages.iter().copied()));
    assert!(met.misses < 150, "{met:?}");
}
