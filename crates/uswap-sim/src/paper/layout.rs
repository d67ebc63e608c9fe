//! How pages lie in an area: the order in which they left, and what lies between them.

use std::ops::Range;

use uswap_core::{PageNumber, PageRange};
use uswap_linux::swapped_memory::SwappedMemory;
use uswap_linux::try_to_unuse::Place;

use super::machine::machine;
use crate::chance::Chance;
use crate::device::Profile;

/// How the pages of a machine lie.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    /// One large program that left in runs, and others that left one page here, one page there.
    Runs {
        /// Mean length of a run, in pages; lengths are from a quarter to seven quarters of it, all alike. Runs follow each other
        /// in any order.
        run: f64,
        /// Mean number of free slots between runs; each further one is as probable as the one before.
        gap: f64,
        /// Pages of the others: runs of one page.
        others: u64,
    },
    /// Any page after any other.
    Random,
}

/// A machine with `pages` pages in swap, in an area that they fill by half at most.
pub fn swapped_out(pages: u64, layout: Layout, profile: &Profile, chance: &mut Chance) -> SwappedMemory {
    let mut memory = machine((pages * 2).next_multiple_of(512) + 512, profile);
    let (run, gap, others) = match layout {
        Layout::Random => (1.0, 0.0, 0),
        Layout::Runs { run, gap, others } => (run, gap, others),
    };
    let mut free = Vec::new();
    for (pages, run) in [(pages - others, run), (others, 1.0)] {
        if pages == 0 {
            continue;
        }
        let program = Program::begin(&mut memory, pages);
        for run in runs(pages, run, chance) {
            while chance.with(gap / (gap + 1.0)) {
                free.push(memory.areas_mut().alloc(0, 0, &mut ()).expect("the area has room"));
            }
            run.for_each(|page| program.swap_out(page, &mut memory));
        }
    }
    // Freed only now, or the allocator would fill them.
    for entry in free {
        memory.drop_from_cache(entry);
    }
    memory
}

/// A process with one mapping.
struct Program {
    mapping: usize,
    region: PageRange,
}

impl Program {
    fn begin(memory: &mut SwappedMemory, pages: u64) -> Self {
        memory.add_space();
        let region = PageRange { start: PageNumber(512), pages };
        Self { mapping: memory.add_mapping(region), region }
    }

    fn swap_out(&self, page: u64, memory: &mut SwappedMemory) {
        let place = Place { mapping: self.mapping, page: self.region.start.plus(page) };
        memory.swap_out(place, 0, &mut ()).expect("the area has room");
    }
}

/// The pages in runs of `mean` pages, in any order.
fn runs(pages: u64, mean: f64, chance: &mut Chance) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    let mut start = 0;
    while start < pages {
        let len = if mean > 1.0 { (mean * (0.25 + 1.5 * chance.fraction())).round().max(1.0) as u64 } else { 1 };
        let end = (start + len).min(pages);
        runs.push(start..end);
        start = end;
    }
    chance.shuffle(&mut runs);
    runs
}

/// A file in memory whose `pages` pages are in swap, in the order of `order`.
pub fn swapped_file(pages: u64, order: FileOrder, profile: &Profile, chance: &mut Chance) -> SwappedMemory {
    let mut memory = machine((pages * 4 / 3).next_multiple_of(512) + 512, profile);
    let file = memory.files_mut().add_file();
    let mut indices: Vec<u64> = (0..pages).collect();
    match order {
        FileOrder::Forward => {}
        FileOrder::Backward => indices.reverse(),
        FileOrder::Random => chance.shuffle(&mut indices),
    }
    (0..pages).for_each(|index| memory.files_mut().add_page(file, index));
    for index in indices {
        memory.swap_out_file(file, index, 0, &mut ()).expect("the area has room");
    }
    memory
}

/// In which order the pages of a file left.
#[derive(Clone, Copy, Debug)]
pub enum FileOrder {
    /// The first page first.
    Forward,
    /// The last page first.
    Backward,
    /// Any.
    Random,
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_linux::swapped_memory::Pte;

    #[test]
    fn runs_cover_every_page_once_and_have_the_mean_that_was_asked_for() {
        let mut all = runs(100_000, 11.5, &mut Chance::new(1));
        let mean = 100_000.0 / all.len() as f64;
        assert!((11.0..12.0).contains(&mean), "{mean}");
        all.sort_by_key(|run| run.start);
        assert!(all.iter().zip(all.iter().skip(1)).all(|(run, next)| run.end == next.start));
    }

    #[test]
    fn gaps_stay_free_and_runs_stay_together() {
        const PAGES: u64 = 20_000;
        let layout = Layout::Runs { run: 10.0, gap: 5.0, others: 0 };
        let memory =
            swapped_out(PAGES, layout, &Profile::named("nvme").expect("a built-in device"), &mut Chance::new(2));
        let slots: Vec<u64> = (0..PAGES)
            .map(|page| match memory.pte(Place { mapping: 0, page: PageNumber(512 + page) }) {
                Pte::Swapped(entry) => entry.slot,
                other => panic!("page {page} is {other:?}"),
            })
            .collect();
        let breaks = slots.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() as u64;
        assert!((PAGES / 12..PAGES / 8).contains(&breaks), "{breaks}");
        let end = slots.iter().max().expect("there are pages");
        let free = end - PAGES;
        assert!((PAGES * 4 / 10..PAGES * 6 / 10).contains(&free), "{free} free slots");
    }
}
