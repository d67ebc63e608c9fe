//! Core's policies, in a memory where what was not used for longest leaves.

use std::collections::BTreeMap;

use crate::readahead_kinds::kinds::{ReadAlong, ReadaheadKind, SwapReadahead};
use uswap_core::PageNumber;
use uswap_policy::streams::Tag;

use super::{Pattern, Score};

/// What is in memory, and which of it nobody has used.
#[derive(Default)]
struct Memory {
    /// Page -> when it was used or brought, and the tag of what was brought and not used.
    pages: BTreeMap<u64, (u64, Option<Option<Tag>>)>,
    by_age: BTreeMap<u64, u64>,
    clock: u64,
}

impl Memory {
    fn put(&mut self, page: u64, unused: Option<Option<Tag>>) {
        self.clock += 1;
        if let Some((age, _)) = self.pages.insert(page, (self.clock, unused)) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.clock, page);
    }

    fn shrink(&mut self, limit: usize) -> Option<(u64, Option<Option<Tag>>)> {
        if self.pages.len() <= limit {
            return None;
        }
        let (_, page) = self.by_age.pop_first().expect("each page has an age");
        self.pages.remove(&page).map(|(_, unused)| (page, unused))
    }
}

/// The pages of an answer.
fn pages_of(along: &ReadAlong) -> Vec<u64> {
    match along {
        ReadAlong::Nothing => Vec::new(),
        ReadAlong::Slots(slots) => slots.clone().map(|slot| slot - 1).collect(),
        ReadAlong::Pages(pages) => pages.clone().collect(),
        ReadAlong::Steps(ahead) => ahead.pages().map(|page| page.0).collect(),
    }
}

pub(super) fn run(kind: ReadaheadKind, limit: usize, pattern: &Pattern) -> Score {
    let slots = pattern.end() + 1;
    let mut readahead = SwapReadahead::new(kind, 3);
    let mut regions: Vec<_> = pattern.regions.iter().map(|&region| readahead.region(region)).collect();
    let region_of = |page| pattern.region_of(page).expect("a page of a region");
    let mut memory = Memory::default();
    let mut score = Score::default();
    for &page in &pattern.accesses {
        let number = PageNumber(page);
        let along = match memory.pages.get(&page).copied() {
            Some((_, None)) => ReadAlong::Nothing,
            Some((_, Some(tag))) => {
                score.hits += 1;
                readahead.found(&mut regions[region_of(page)], number, tag)
            }
            None => {
                score.misses += 1;
                readahead.missed(&mut regions[region_of(page)], number, page + 1, slots)
            }
        };
        memory.put(page, None);
        let here = pattern.region_of(page);
        for page in pages_of(&along) {
            // Slots go on where regions do not.
            let by_slot = matches!(along, ReadAlong::Slots(_));
            assert!(by_slot || pattern.region_of(page) == here, "page {page} is outside of the region");
            let is_on_swap = pattern.region_of(page).is_some() && !pattern.absent.contains(&page);
            if is_on_swap && !memory.pages.contains_key(&page) {
                memory.put(page, Some(along.tag()));
            }
        }
        while let Some((page, unused)) = memory.shrink(limit) {
            if let Some(tag) = unused {
                score.wasted += 1;
                readahead.dropped(&mut regions[region_of(page)], PageNumber(page), tag);
            }
        }
    }
    score.wasted += memory.pages.values().filter(|(_, unused)| unused.is_some()).count() as u64;
    score
}
