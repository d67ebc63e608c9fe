use super::*;

const PARENT: Process = Process(0);

fn page(era: ReuseEra) -> AnonPage {
    AnonPage::new(era, Surroundings::default())
}

/// Swapped out, and nothing left in memory.
fn evicted(era: ReuseEra) -> AnonPage {
    let mut page = page(era);
    evict(&mut page);
    page
}

fn evict(page: &mut AnonPage) {
    page.swap_out();
    page.written();
    page.drop_clean();
}

#[test]
fn a_read_and_then_a_write_copied_a_page_of_one_owner_from_5_9_to_5_17() {
    for era in ReuseEra::ALL {
        let mut page = evicted(era);
        assert_eq!(page.touch(PARENT, false), Touched::Mapped);
        let written = page.touch(PARENT, true);
        let expected = PageEvents { reads: 1, writes: 1, ..PageEvents::default() };
        if era == ReuseEra::From5_9 {
            assert_eq!(written, Touched::Copied);
            assert_eq!(page.events(), PageEvents { copies: 1, copies_of_own: 1, ..expected });
        } else {
            assert_ne!(written, Touched::Copied, "{}", era.name());
            assert_eq!(page.events(), expected);
        }
    }
}

#[test]
fn a_page_that_a_write_brings_in_is_copied_in_no_era() {
    for era in ReuseEra::ALL {
        let mut page = evicted(era);
        assert_eq!(page.touch(PARENT, true), Touched::Mapped, "{}", era.name());
        assert_eq!(page.pte(PARENT), Pte::Mapped { writable: true });
        assert!(!page.is_cached());
    }
}

#[test]
fn t10_after_a_fork_the_parent_copies_and_the_child_finds_the_original() {
    let mut page = evicted(ReuseEra::From5_19);
    assert_eq!(page.pte(PARENT), Pte::Swapped { exclusive: true });
    let child = page.fork(PARENT).unwrap();
    for process in [PARENT, child] {
        assert_eq!(page.pte(process), Pte::Swapped { exclusive: false });
    }
    assert_eq!(page.swap_count(), 2);
    assert_eq!(page.touch(PARENT, true), Touched::Copied);
    assert_eq!(page.events(), PageEvents { copies: 1, copies_of_own: 0, reads: 1, writes: 1 });
    assert_eq!(page.touch(child, false), Touched::Mapped);
    assert_eq!(page.events().reads, 1, "it was in the swap cache");
}

#[test]
fn a_read_keeps_the_slot_and_a_clean_page_leaves_without_a_write() {
    for era in ReuseEra::ALL {
        let mut page = evicted(era);
        assert_eq!(page.touch(PARENT, false), Touched::Mapped);
        assert!(page.is_cached());
        evict(&mut page);
        assert_eq!(page.events().writes, 1, "{}", era.name());
        assert_eq!(page.touch(PARENT, true), Touched::Mapped);
        evict(&mut page);
        assert_eq!(page.events().writes, 2);
    }
}

#[test]
fn on_a_synchronous_area_a_sole_owners_page_passes_the_cache_by() {
    let mut page = AnonPage::new(ReuseEra::From5_9, Surroundings { synchronous: true, ..Surroundings::default() });
    evict(&mut page);
    assert_eq!(page.touch(PARENT, false), Touched::Mapped);
    assert!(!page.is_cached());
    assert_eq!(page.touch(PARENT, true), Touched::Mapped, "one reference, so no copy even then");
}

#[test]
fn stable_writes_take_the_mark_away_while_the_page_is_written() {
    let around = Surroundings { stable_writes: true, ..Surroundings::default() };
    for (around, expected) in [(around, Touched::Copied), (Surroundings::default(), Touched::Mapped)] {
        let mut page = AnonPage::new(ReuseEra::From5_19, around);
        page.swap_out();
        assert_eq!(page.touch(PARENT, true), expected);
    }
}

#[test]
fn the_checker_fires() {
    let mut page = page(ReuseEra::From5_19);
    assert_eq!(page.check(), Ok(()));
    let child = page.fork(PARENT).unwrap();
    page.ptes[child.0] = Pte::Mapped { writable: true };
    assert_eq!(page.check(), Err(Violation::SharedButExclusive { owners: 2 }));
    page.ptes[child.0] = Pte::Swapped { exclusive: true };
    assert_eq!(page.check(), Err(Violation::SharedButExclusive { owners: 2 }));
    page.ptes[child.0] = Pte::Swapped { exclusive: false };
    assert_eq!(page.check(), Err(Violation::NamedButFreed));
    page.frame = None;
    assert_eq!(page.check(), Err(Violation::MappedButGone));
}
