//! Readahead of the kernel: by slot or by address, and the accounting of what it brought.
//!
//! Which of the two is used is one decision for the machine: by address where a mapping is at hand, unless that is turned off
//! or an area is a rotating disk; by slot otherwise. A page that came along carries a flag until somebody wants it; clearing
//! the flag is a hit, and hits are what windows grow by.

pub mod check;
pub mod presets;
pub mod swap_cluster_readahead;
pub mod swap_vma_readahead;
pub mod window;

pub use check::{HitLedger, Violation, check_reads, check_window};
pub use presets::{Preset, UnknownPreset};
pub use swap_cluster_readahead::{ClusterReadahead, SlotBlock, aligned_block};
pub use swap_vma_readahead::{PageWindow, VmaReadahead};

use core::ops::Range;

use uswap_core::units::{PageNumber, PageRange};

/// A page of a mapping, and the readahead state of that mapping.
#[derive(Debug)]
pub struct Mapping<'a> {
    /// The state; one for each mapping, kept by whoever has the mappings.
    pub state: &'a mut VmaReadahead,
    /// The mapping.
    pub region: PageRange,
    /// The page in it.
    pub page: PageNumber,
}

/// What to read for a miss.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Window {
    /// Slots of the missed slot's area.
    Slots(SlotBlock),
    /// Pages of the mapping, each from wherever its PTE says.
    Pages(PageWindow),
}

impl Window {
    /// What the window rule said: slots or pages, before the range was cut to what exists.
    pub fn size(&self) -> u32 {
        match self {
            Self::Slots(block) => block.window,
            Self::Pages(pages) => pages.window,
        }
    }

    /// The slots or page numbers to look at.
    pub fn range(&self) -> Range<u64> {
        match self {
            Self::Slots(block) => block.slots.clone(),
            Self::Pages(pages) => pages.pages.clone(),
        }
    }
}

/// The readahead state of a machine.
#[derive(Clone, Debug)]
pub struct Readahead {
    page_cluster: u32,
    vma_enabled: bool,
    rotational_areas: u32,
    cluster: ClusterReadahead,
    brought: u64,
    hits: u64,
}

impl Readahead {
    /// A machine that has not swapped yet, with `vm.page-cluster` (see [`ClusterReadahead::new`]) and `vma_ra_enabled` set.
    pub fn new(page_cluster: u32, vma_enabled: bool) -> Self {
        let cluster = ClusterReadahead::new(page_cluster);
        Self { page_cluster, vma_enabled, rotational_areas: 0, cluster, brought: 0, hits: 0 }
    }

    /// An area on a rotating disk is on: there is no readahead by address from here on.
    pub fn rotational_area_on(&mut self) {
        self.rotational_areas += 1;
    }

    /// An area on a rotating disk is off.
    ///
    /// # Panics
    /// When none was on.
    pub fn rotational_area_off(&mut self) {
        self.rotational_areas = self.rotational_areas.checked_sub(1).expect("an area goes off after it was on");
    }

    /// Whether readahead goes by address where a mapping is at hand.
    pub fn goes_by_address(&self) -> bool {
        self.vma_enabled && self.rotational_areas == 0
    }

    /// The window for a miss at slot `offset` of an area with `slots` slots; `mapping` is `None` for shared memory.
    pub fn miss(&mut self, offset: u64, slots: u64, mapping: Option<Mapping>) -> Window {
        match mapping.filter(|_| self.goes_by_address()) {
            Some(mapping) => Window::Pages(mapping.state.miss(mapping.page, mapping.region, self.page_cluster)),
            None => Window::Slots(self.cluster.miss(offset, slots)),
        }
    }

    /// A page was wanted and found in the swap cache; `ahead` is its readahead flag, which the caller has cleared.
    pub fn found(&mut self, ahead: bool, mapping: Option<Mapping>) {
        self.hits += u64::from(ahead);
        match mapping.filter(|_| self.goes_by_address()) {
            Some(mapping) => mapping.state.found(mapping.page, ahead),
            None if ahead => self.cluster.hit(),
            None => {}
        }
    }

    /// A page was read that nobody had asked for.
    pub fn note_ahead(&mut self) {
        self.brought += 1;
    }

    /// Pages that readahead brought (`swap_ra`).
    pub fn swap_ra(&self) -> u64 {
        self.brought
    }

    /// Those of them that were wanted (`swap_ra_hit`).
    pub fn swap_ra_hit(&self) -> u64 {
        self.hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: PageRange = PageRange { start: PageNumber(0), pages: 512 };

    fn miss(readahead: &mut Readahead, state: Option<&mut VmaReadahead>) -> Window {
        let mapping = state.map(|state| Mapping { state, region: REGION, page: PageNumber(100) });
        readahead.miss(40, 64, mapping)
    }

    #[test]
    fn a_fault_reads_by_address_and_shared_memory_by_slot() {
        let (mut readahead, mut state) = (Readahead::new(3, true), VmaReadahead::default());
        assert_eq!(miss(&mut readahead, Some(&mut state)).range(), 97..105);
        assert_eq!(miss(&mut readahead, None), Window::Slots(SlotBlock { window: 8, slots: 40..48 }));
    }

    #[test]
    fn a_rotating_disk_turns_readahead_by_address_off_for_all() {
        let (mut readahead, mut state) = (Readahead::new(3, true), VmaReadahead::default());
        readahead.rotational_area_on();
        assert_eq!(miss(&mut readahead, Some(&mut state)).range(), 40..48);
        assert_eq!(state, VmaReadahead::default());
        readahead.rotational_area_off();
        assert_eq!(miss(&mut readahead, Some(&mut state)).range(), 97..105);
    }

    #[test]
    fn it_can_be_turned_off_by_hand() {
        let (mut readahead, mut state) = (Readahead::new(3, false), VmaReadahead::default());
        assert_eq!(miss(&mut readahead, Some(&mut state)).range(), 40..48);
    }

    #[test]
    fn a_hit_counts_for_the_mapping_or_else_for_the_machine() {
        let (mut readahead, mut state) = (Readahead::new(3, true), VmaReadahead::default());
        // The four hits that both states begin with.
        let _ = (miss(&mut readahead, None), miss(&mut readahead, Some(&mut state)));
        let mapping = Mapping { state: &mut state, region: REGION, page: PageNumber(101) };
        readahead.found(true, Some(mapping));
        (0..7).for_each(|_| readahead.found(true, None));
        readahead.found(false, None);
        assert_eq!(readahead.swap_ra_hit(), 8);
        assert_eq!(miss(&mut readahead, Some(&mut state)).size(), 4);
        assert_eq!(miss(&mut readahead, None).size(), 8);
    }
}
