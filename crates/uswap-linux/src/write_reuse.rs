//! A write to a read-only anonymous page: may the page be used, or must it be copied? (`do_wp_page`, by era)
//!
//! The 2022 thread is about the era in which every page that was still in the swap cache was copied, even where its process
//! was the only one to have it: 5.9 to 5.17 count all references, and the cache's is one. A copy costs a page, under a limit
//! its reclaim too, and the old page stays in the cache for nothing.

use core::fmt;
use core::str::FromStr;

/// Which rule a kernel follows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ReuseEra {
    /// Up to 5.8: mappings and references of page tables to the slot are counted.
    Until5_8,
    /// 5.9 to 5.17: all references are counted.
    From5_9,
    /// 5.18: the slot is freed first, then all references are counted.
    From5_18,
    /// 5.19 to 6.14: pages know that they have one owner; where they do not, as before.
    From5_19,
    /// From 6.15: large folios know whether another process has them.
    From6_15,
}

impl ReuseEra {
    /// All, oldest first.
    pub const ALL: [Self; 5] = [Self::Until5_8, Self::From5_9, Self::From5_18, Self::From5_19, Self::From6_15];

    /// What it is called, and parsed from.
    pub fn name(self) -> &'static str {
        match self {
            Self::Until5_8 => "-5.8",
            Self::From5_9 => "5.9-5.17",
            Self::From5_18 => "5.18",
            Self::From5_19 => "5.19-6.14",
            Self::From6_15 => "6.15-",
        }
    }

    /// Whether pages and swap PTEs carry a mark that says they have one owner.
    pub fn marks_exclusive(self) -> bool {
        self >= Self::From5_19
    }
}

/// No era has that name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownEra;

impl fmt::Display for UnknownEra {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("unknown era of write reuse; choose one of")?;
        ReuseEra::ALL.iter().try_for_each(|era| write!(out, " {}", era.name()))
    }
}

impl core::error::Error for UnknownEra {}

impl FromStr for ReuseEra {
    type Err = UnknownEra;

    fn from_str(name: &str) -> Result<Self, UnknownEra> {
        Self::ALL.into_iter().find(|era| era.name() == name).ok_or(UnknownEra)
    }
}

/// What is known of a page when somebody wants to write to it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageRefs {
    /// Page-table entries that map it.
    pub mapped: u32,
    /// Page-table entries that name its slot.
    pub swap_count: u32,
    /// In the swap cache, which holds a reference for each of its pages.
    pub cached: bool,
    /// Being written to its slot.
    pub writeback: bool,
    /// Its area needs that a page does not change while it is written.
    pub stable_writes: bool,
    /// Held by this CPU's batch of pages on their way to a list, which can be drained.
    pub in_lru_batch: bool,
    /// References of others: devices, other CPUs.
    pub other: u32,
    /// Merged with equal pages.
    pub ksm: bool,
    /// Marked as having one owner.
    pub exclusive: bool,
    /// Part of a large folio.
    pub large: Option<LargeFolio>,
}

/// What is known of a large folio. The counts of [`PageRefs`] are those of the whole folio then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeFolio {
    /// Its pages.
    pub pages: u32,
    /// Another process maps some of it.
    pub shared: bool,
}

impl PageRefs {
    /// All references (`folio_ref_count`).
    pub fn total(&self) -> u32 {
        let pages = self.large.map_or(1, |folio| folio.pages);
        self.mapped + u32::from(self.cached) * pages + u32::from(self.in_lru_batch) + self.other
    }

    /// Whether its slot can be freed (`folio_free_swap`): nobody names it, and it is not being written.
    pub fn may_free_swap(&self) -> bool {
        self.cached && !self.writeback && self.swap_count == 0
    }

    fn without_batch(self) -> Self {
        Self { in_lru_batch: false, ..self }
    }
}

/// What becomes of the write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum WriteFault {
    /// The page is made writable.
    Reuse {
        /// It leaves the swap cache, and its slot is free.
        slot_freed: bool,
    },
    /// The writer gets a copy.
    Copy {
        /// The page left the swap cache all the same, and its slot is free.
        slot_freed: bool,
    },
}

impl WriteFault {
    /// Whether a page is copied.
    pub fn copies(self) -> bool {
        matches!(self, Self::Copy { .. })
    }

    /// Whether the page left the swap cache.
    pub fn slot_freed(self) -> bool {
        let (Self::Reuse { slot_freed } | Self::Copy { slot_freed }) = self;
        slot_freed
    }
}

const COPY: WriteFault = WriteFault::Copy { slot_freed: false };

/// A write to `page`, which is mapped read-only by a private mapping that may be written.
pub fn write_fault(era: ReuseEra, page: &PageRefs) -> WriteFault {
    match era {
        ReuseEra::Until5_8 => by_mappings(page),
        ReuseEra::From5_9 => by_references(page),
        ReuseEra::From5_18 => by_references_after_freeing(page),
        ReuseEra::From5_19 | ReuseEra::From6_15 if page.exclusive => WriteFault::Reuse { slot_freed: false },
        ReuseEra::From5_19 => by_references_after_freeing(page),
        ReuseEra::From6_15 => match page.large {
            Some(folio) => large(page, folio),
            None => by_references_after_freeing(page),
        },
    }
}

/// Up to 5.8 for each write; up to 5.17 for the write that brings a page in (known, not read in the source).
pub(super) fn by_mappings(page: &PageRefs) -> WriteFault {
    if page.ksm || page.mapped + page.swap_count != 1 {
        return COPY;
    }
    if page.cached && page.writeback && page.stable_writes {
        return COPY;
    }
    WriteFault::Reuse { slot_freed: page.may_free_swap() }
}

fn by_references(page: &PageRefs) -> WriteFault {
    if page.ksm || page.total() != 1 { COPY } else { WriteFault::Reuse { slot_freed: false } }
}

fn by_references_after_freeing(page: &PageRefs) -> WriteFault {
    let page = page.without_batch();
    if page.ksm || page.total() > 1 + u32::from(page.cached) {
        return COPY;
    }
    let slot_freed = page.may_free_swap();
    match page.total() - u32::from(slot_freed) {
        1 => WriteFault::Reuse { slot_freed },
        _ => WriteFault::Copy { slot_freed },
    }
}

fn large(page: &PageRefs, folio: LargeFolio) -> WriteFault {
    let page = page.without_batch();
    if page.ksm || folio.shared {
        return COPY;
    }
    let slot_freed = page.may_free_swap();
    let references = page.total() - if slot_freed { folio.pages } else { 0 };
    match references == page.mapped {
        true => WriteFault::Reuse { slot_freed },
        false => WriteFault::Copy { slot_freed },
    }
}

/// Whether a page that comes in gives its slot up at once (`should_try_to_free_swap`, Linux 6.18), as far as
/// [`PageRefs::may_free_swap`] lets it. `page` is not mapped by the faulting process yet, which holds one reference.
pub fn should_try_to_free_swap(page: &PageRefs, write: bool, swap_is_full: bool, locked: bool) -> bool {
    let pages = page.large.map_or(1, |folio| folio.pages);
    let sole_user = page.total() == pages;
    page.cached && (swap_is_full || locked || (write && !page.ksm && sole_user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const REUSE: WriteFault = WriteFault::Reuse { slot_freed: false };
    const REUSE_AND_FREE: WriteFault = WriteFault::Reuse { slot_freed: true };

    fn cached() -> PageRefs {
        PageRefs { mapped: 1, cached: true, ..PageRefs::default() }
    }

    fn all(page: PageRefs) -> [WriteFault; 5] {
        ReuseEra::ALL.map(|era| write_fault(era, &page))
    }

    #[test]
    fn t4b_a_cached_page_of_one_owner_was_copied_from_5_9_to_5_17() {
        assert_eq!(all(cached()), [REUSE_AND_FREE, COPY, REUSE_AND_FREE, REUSE_AND_FREE, REUSE_AND_FREE]);
    }

    #[test]
    fn t4c_a_page_that_another_process_has_on_swap_is_copied_in_all_eras() {
        assert_eq!(all(PageRefs { swap_count: 1, ..cached() }), [COPY; 5]);
    }

    #[test]
    fn t4d_a_page_that_is_being_written_is_reused_up_to_5_8_only() {
        let page = PageRefs { writeback: true, ..cached() };
        assert_eq!(all(page), [REUSE, COPY, COPY, COPY, COPY]);
        assert_eq!(all(PageRefs { stable_writes: true, ..page }), [COPY; 5]);
    }

    #[test]
    fn t4a_when_a_slot_is_freed_at_swap_in() {
        let page = PageRefs { mapped: 0, ..cached() };
        assert!(!should_try_to_free_swap(&page, false, false, false), "a read keeps the copy on swap");
        assert!(should_try_to_free_swap(&page, true, false, false), "a write by the only user makes it stale");
        assert!(should_try_to_free_swap(&page, false, true, false), "swap is more than half full");
        assert!(should_try_to_free_swap(&page, false, false, true), "a locked page never leaves");
        assert!(!should_try_to_free_swap(&PageRefs { mapped: 1, ..page }, true, false, false), "somebody else has it");
        assert!(!should_try_to_free_swap(&PageRefs { ksm: true, ..page }, true, false, false));
        assert!(!should_try_to_free_swap(&PageRefs { cached: false, ..page }, true, true, true));
    }

    #[test]
    fn a_page_that_was_never_on_swap_is_reused_by_its_only_owner() {
        let page = PageRefs { mapped: 1, ..PageRefs::default() };
        assert_eq!(all(page), [REUSE; 5]);
        assert_eq!(all(PageRefs { mapped: 2, ..page }), [COPY; 5]);
        assert_eq!(all(PageRefs { ksm: true, ..page }), [COPY; 5]);
    }

    #[test]
    fn a_batch_of_this_cpu_is_drained_since_5_18() {
        let page = PageRefs { in_lru_batch: true, ..cached() };
        assert_eq!(page.total(), 3);
        assert_eq!(all(page), [REUSE_AND_FREE, COPY, REUSE_AND_FREE, REUSE_AND_FREE, REUSE_AND_FREE]);
        assert_eq!(all(PageRefs { other: 1, ..page })[1..], [COPY; 4]);
    }

    #[test]
    fn a_marked_page_is_reused_whatever_holds_it() {
        let page = PageRefs { exclusive: true, other: 3, writeback: true, ..cached() };
        assert_eq!(all(page), [REUSE, COPY, COPY, REUSE, REUSE]);
    }

    #[test]
    fn a_large_folio_is_reused_since_6_15_while_one_process_has_it() {
        let folio = LargeFolio { pages: 4, shared: false };
        let page = PageRefs { mapped: 4, cached: true, large: Some(folio), ..PageRefs::default() };
        assert_eq!(write_fault(ReuseEra::From6_15, &page), REUSE_AND_FREE);
        assert_eq!(write_fault(ReuseEra::From5_19, &page), COPY);
        let pinned = PageRefs { other: 1, ..page };
        assert_eq!(write_fault(ReuseEra::From6_15, &pinned), WriteFault::Copy { slot_freed: true });
        let shared = PageRefs { large: Some(LargeFolio { shared: true, ..folio }), ..page };
        assert_eq!(write_fault(ReuseEra::From6_15, &shared), COPY);
        let written = PageRefs { writeback: true, ..page };
        assert_eq!(write_fault(ReuseEra::From6_15, &written), COPY);
    }

    #[test]
    fn an_era_is_parsed_from_its_name() {
        for era in ReuseEra::ALL {
            assert_eq!(era.name().parse(), Ok(era));
        }
        let refused = "5.10".parse::<ReuseEra>().unwrap_err().to_string();
        assert_eq!(refused, "unknown era of write reuse; choose one of -5.8 5.9-5.17 5.18 5.19-6.14 6.15-");
    }
}
