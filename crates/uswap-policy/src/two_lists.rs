//! The kernel's two lists: inactive and active anonymous pages, and which of them leaves (Linux 5.9 to 6.18 without
//! multi-generational LRU).
//!
//! A page begins on the inactive list. A scan from the old end looks at its accessed bit: used again since the last look, it
//! stays one more round; used in two rounds, it becomes active; otherwise it leaves. Active pages become inactive, oldest
//! first and without a look, while the inactive list is too short. A page that comes back soon enough by its refault distance
//! begins on the active list.
//!
//! As a replacement policy of its own this is one node, one cgroup and no files, each page mapped once.

use alloc::vec::Vec;

use crate::queue::Queue;
use crate::refault_distance::{ListId, ListSizes, PageKind, Shadow, ShadowFormat, Workingset};
use crate::{PageIndex, Replacement, checked_capacity, cover, glance};
use uswap_core::units::PAGE_SIZE;

/// Pages that one look at a list takes (`SWAP_CLUSTER_MAX`).
const BATCH: usize = 32;

const INACTIVE: u8 = 1;
const ACTIVE: u8 = 2;
/// The accessed bit of the page-table entry.
const YOUNG: u8 = 4;
/// It was young at the last look.
const REFERENCED: u8 = 8;
/// It has been active: it belongs to the working set.
const WORKINGSET: u8 = 16;
/// It is out, and has a shadow.
const SHADOW: u8 = 32;

/// How many active pages there may be for each inactive one, where both lists together have `pages` pages.
pub fn inactive_ratio(pages: u64) -> u64 {
    let gigabytes = (pages * PAGE_SIZE as u64) >> 30;
    if gigabytes == 0 { 1 } else { (10 * gigabytes).isqrt() }
}

/// Whether active pages must become inactive.
pub fn inactive_is_low(inactive: u64, active: u64) -> bool {
    inactive * inactive_ratio(inactive + active) < active
}

/// The policy. 9 bytes a page, and 4 for each in memory.
#[derive(Clone, Debug)]
pub struct LinuxLru {
    capacity: usize,
    flags: Vec<u8>,
    /// Words of shadows.
    shadows: Vec<u64>,
    inactive: Queue,
    active: Queue,
    workingset: Workingset,
    list: ListId,
}

impl LinuxLru {
    /// What it is chosen by.
    pub const NAME: &str = "linux-lru";

    /// An empty memory of `capacity` pages.
    ///
    /// # Panics
    /// When `capacity` is 0.
    pub fn new(capacity: usize) -> Self {
        let capacity = checked_capacity(capacity);
        let mut workingset = Workingset::new(ShadowFormat::new(0, capacity as u64));
        let list = workingset.add_list(0, 0, None);
        Self {
            capacity,
            flags: Vec::new(),
            shadows: Vec::new(),
            inactive: Queue::default(),
            active: Queue::default(),
            workingset,
            list,
        }
    }

    /// The workingset counters, for looking.
    pub fn workingset(&self) -> crate::refault_distance::Counters {
        self.workingset.counters(self.list)
    }

    fn sizes(&self) -> ListSizes {
        let (active_anon, inactive_anon) = (self.active.len() as u64, self.inactive.len() as u64);
        ListSizes { active_anon, inactive_anon, swap_left: true, ..ListSizes::default() }
    }

    /// The oldest active pages become inactive, where those are too few.
    fn refill_inactive(&mut self) {
        if !inactive_is_low(self.inactive.len() as u64, self.active.len() as u64) {
            return;
        }
        for _ in 0..BATCH {
            let Some(page) = self.active.pop_back() else { return };
            self.flags[page as usize] = INACTIVE | WORKINGSET;
            self.inactive.push_front(page);
        }
    }

    fn activate(&mut self, page: PageIndex) {
        self.flags[page as usize] = ACTIVE | WORKINGSET;
        self.active.push_front(page);
    }
}

impl Replacement for LinuxLru {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = checked_capacity(capacity);
    }

    fn resident(&self) -> usize {
        self.inactive.len() + self.active.len()
    }

    fn is_resident(&self, page: PageIndex) -> bool {
        self.flags.get(page as usize).is_some_and(|&flags| flags & (INACTIVE | ACTIVE) != 0)
    }

    fn touch(&mut self, page: PageIndex) {
        self.flags[page as usize] |= YOUNG;
    }

    fn insert(&mut self, page: PageIndex) {
        cover(&mut self.flags, page);
        cover(&mut self.shadows, page);
        let has_shadow = self.flags[page as usize] & SHADOW != 0;
        let shadow = has_shadow.then(|| self.shadows[page as usize]).and_then(Shadow::from_word);
        let sizes = self.sizes();
        let refault = shadow.and_then(|shadow| self.workingset.refaulted(shadow, self.list, PageKind::Anon, &sizes));
        if refault.is_some_and(|refault| refault.activate) {
            self.activate(page);
        } else {
            self.flags[page as usize] = INACTIVE;
            self.inactive.push_front(page);
        }
        // The access that brought it in is one that the page-table entry shows.
        self.touch(page);
    }

    fn evict(&mut self) -> Option<PageIndex> {
        loop {
            self.refill_inactive();
            let page = self.inactive.pop_back()?;
            let flags = &mut self.flags[page as usize];
            let (young, referenced) = (*flags & YOUNG != 0, *flags & REFERENCED != 0);
            if young && !referenced {
                *flags = *flags & !YOUNG | REFERENCED;
                self.inactive.push_front(page);
                continue;
            }
            let was_workingset = *flags & WORKINGSET != 0;
            if young {
                self.activate(page);
                self.workingset.age(self.list, 1);
                continue;
            }
            *flags = SHADOW;
            let shadow = self.workingset.evicted(self.list, was_workingset);
            self.shadows[page as usize] = shadow.word();
            return Some(page);
        }
    }

    fn forget(&mut self, page: PageIndex) {
        let Some(flags) = self.flags.get_mut(page as usize) else { return };
        match core::mem::take(flags) {
            flags if flags & INACTIVE != 0 => self.inactive.forget(page),
            flags if flags & ACTIVE != 0 => self.active.forget(page),
            _ => {}
        }
    }

    fn bytes(&self) -> usize {
        self.flags.len() + size_of_val(&*self.shadows) + self.inactive.bytes() + self.active.bytes()
    }

    fn look_ahead(&self, pages: &[PageIndex]) {
        glance(&self.flags, pages, |&flags| flags.into());
        glance(&self.shadows, pages, |&shadow| shadow as u32);
        // A miss lets the oldest go, after a round for those that were used.
        glance(&self.flags, self.inactive.oldest(pages.len()), |&flags| flags.into());
        glance(&self.shadows, self.inactive.oldest(pages.len()), |&shadow| shadow as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inactive_share_shrinks_with_memory() {
        let ratio = |gigabytes: u64| inactive_ratio(gigabytes << 18);
        assert_eq!([ratio(1), ratio(10), ratio(100), ratio(1024)], [3, 10, 31, 101]);
        assert_eq!(inactive_ratio((1 << 18) - 1), 1);
    }

    fn full(pages: PageIndex) -> LinuxLru {
        let mut lru = LinuxLru::new(pages as usize);
        (0..pages).for_each(|page| lru.insert(page));
        lru
    }

    #[test]
    fn a_page_stays_a_round_when_it_was_used_once_and_becomes_active_when_used_twice() {
        let mut lru = full(4);
        assert_eq!(lru.evict(), Some(0), "all had been used once: one round, then the oldest leaves");
        // Its second round has begun.
        lru.touch(1);
        assert_eq!(lru.evict(), Some(2));
        assert_eq!((lru.flags[1] & ACTIVE, lru.active.len()), (ACTIVE, 1));
        assert_eq!((lru.evict(), lru.evict(), lru.evict()), (Some(3), Some(1), None));
    }

    #[test]
    fn a_page_that_comes_back_within_the_active_lists_length_begins_there() {
        let mut lru = full(200);
        assert_eq!(lru.evict(), Some(0));
        (1..=100).for_each(|page| lru.touch(page));
        lru.insert(200);
        assert_eq!(lru.evict(), Some(101), "pages 1 to 100 became active");
        lru.insert(101);
        assert_eq!(lru.flags[101] & ACTIVE, ACTIVE);
        assert_eq!(lru.workingset().activate.anon, 1);
        assert_eq!(lru.workingset().refault.anon, 1);
    }
}
