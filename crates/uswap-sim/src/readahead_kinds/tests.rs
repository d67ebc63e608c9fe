//! Ours beside the kernel's on the suite.

use super::suite::{MEMORY, PAGES, foreseeable, foreseeable_in_part, unforeseeable};
use super::*;
use crate::trace::Access;

const STREAMS: Kind = Kind::Policy(ReadaheadKind::Streams);
/// By slot and by address. On faults all versions of the kernel follow the same rules.
const KERNEL: [Kind; 2] = [Kind::Policy(ReadaheadKind::LinuxCluster), Kind::Policy(ReadaheadKind::LinuxVma)];

/// Ours, and the kernel's.
fn scores(pattern: &Pattern) -> (Score, [Score; 2]) {
    let ours = run(STREAMS, MEMORY, pattern);
    let theirs = KERNEL.map(|kind| run(kind, MEMORY, pattern));
    println!("{}: ours {ours:?}, by slot {:?}, by address {:?}", pattern.name, theirs[0], theirs[1]);
    (ours, theirs)
}

#[test]
fn streams_beat_the_kernel_where_the_next_page_can_be_foreseen() {
    for pattern in foreseeable() {
        let (ours, theirs) = scores(&pattern);
        for theirs in theirs {
            assert!(ours.hits > theirs.hits && ours.misses < theirs.misses, "{}", pattern.name);
            assert!(ours.wasted <= theirs.wasted, "{}", pattern.name);
        }
    }
}

#[test]
fn where_it_cannot_be_foreseen_nearly_nothing_is_read_along() {
    for pattern in unforeseeable() {
        let (ours, theirs) = scores(&pattern);
        assert!((ours.hits + ours.wasted) * 200 < ours.misses, "{}", pattern.name);
        assert!(theirs.iter().all(|theirs| ours.wasted <= theirs.wasted), "{}", pattern.name);
    }
}

#[test]
fn streams_that_stop_or_pass_pages_by_miss_less_and_waste_a_fifth_at_most() {
    for pattern in foreseeable_in_part() {
        let (ours, theirs) = scores(&pattern);
        assert!(ours.wasted * 5 <= ours.hits + ours.wasted, "{}", pattern.name);
        assert!(theirs.iter().all(|theirs| ours.misses < theirs.misses), "{}", pattern.name);
    }
}

#[test]
fn without_readahead_each_first_touch_is_a_miss() {
    let accesses = (0..PAGES).map(|page| Access { process: 0, page, write: false });
    let none = Kind::Policy(ReadaheadKind::None);
    let Score { misses, hits, wasted } = run(none, MEMORY, &Pattern::of("sequential", accesses));
    assert_eq!((misses, hits, wasted), (PAGES, 0, 0));
}

#[test]
fn windows_that_do_not_fit_memory_shrink_until_they_do() {
    for limit in [64, 128, 256, 1024] {
        for pattern in foreseeable() {
            let ours = run(STREAMS, limit, &pattern);
            println!("{limit} pages, {}: {ours:?}", pattern.name);
            assert!(ours.wasted * 10 <= ours.hits + ours.wasted, "{limit} pages, {}", pattern.name);
            for kind in KERNEL {
                assert!(ours.misses < run(kind, limit, &pattern).misses, "{limit} pages, {}", pattern.name);
            }
        }
    }
}

#[test]
fn the_engine_misses_less_than_the_kernel_where_the_next_page_can_be_foreseen() {
    for pattern in foreseeable() {
        let engine = run(Kind::Engine, MEMORY, &pattern);
        println!("{}: engine {engine:?}", pattern.name);
        for kind in KERNEL {
            let theirs = run(kind, MEMORY, &pattern);
            println!("  {}: {theirs:?}", kind.name());
            assert!(engine.misses < theirs.misses, "{}", pattern.name);
        }
    }
}

#[test]
fn processes_and_mappings_are_regions_of_their_own() {
    let access = |(process, page)| Access { process, page, write: false };
    let pages = [(0, 10), (0, 13), (1, 5), (0, 10), (0, 1 << 40), (1, 6)];
    let pattern = Pattern::of("t", pages.map(access).into_iter());
    assert_eq!(pattern.accesses, [0, 3, 1024, 0, 512, 1025]);
    let regions: Vec<(u64, u64)> = pattern.regions.iter().map(|region| (region.start.0, region.pages)).collect();
    assert_eq!(regions, [(0, 4), (512, 1), (1024, 2)]);
    assert_eq!(pattern.absent, [1, 2].into());
    assert_eq!(pattern.on_swap().collect::<Vec<_>>(), [0, 3, 512, 1024, 1025]);
    assert_eq!([3, 4, 512, 1026].map(|page| pattern.region_of(page)), [Some(0), None, Some(1), None]);
}
