//! Refault distance: how much larger memory would have had to be for a page to stay (Linux 6.18, `mm/workingset.c`).
//!
//! Each list of pages (one for a node and cgroup) has a clock that counts the pages that left it and those that became active
//! in it. A page that leaves puts the time into its place in the swap cache, together with its list and whether it belonged to
//! the working set: its *shadow*. When it comes back, the pages that the clock counted meanwhile are its refault distance: if
//! the lists that it competes with are at least that long, the page would have stayed had it been active, and becomes so.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Bits of a cgroup's id in a shadow.
const CGROUP_BITS: u32 = 16;
/// The lowest bit of a shadow is set, which a pointer's never is.
const ODD: u64 = 1;
const WORKINGSET: u64 = 2;
const FLAG_BITS: u32 = 2;

/// What is left of a page in the swap cache: an odd word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shadow(u64);

impl Shadow {
    /// The word.
    pub fn word(self) -> u64 {
        self.0
    }

    /// The shadow in a word of the swap cache; `None` where the word is empty or a page.
    pub fn from_word(word: u64) -> Option<Self> {
        (word & ODD != 0).then_some(Self(word))
    }
}

/// How a kernel packs its shadows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShadowFormat {
    node_bits: u32,
    /// Times are kept in units of `2^bucket_shift` pages.
    bucket_shift: u32,
}

impl ShadowFormat {
    /// `node_bits` is the kernel's `NODES_SHIFT`. Memory of more pages than a clock's bits can count makes times coarser.
    pub fn new(node_bits: u32, ram_pages: u64) -> Self {
        let needed = u64::BITS - ram_pages.saturating_sub(1).leading_zeros();
        Self { node_bits, bucket_shift: needed.saturating_sub(Self::clock_bits(node_bits)) }
    }

    /// Bits of the clock in a shadow.
    pub fn clock_bits(node_bits: u32) -> u32 {
        u64::BITS - FLAG_BITS - node_bits - CGROUP_BITS
    }

    fn clock_mask(self) -> u64 {
        (1 << Self::clock_bits(self.node_bits)) - 1
    }

    /// Packs the shadow of a page that left the list of (`cgroup`, `node`) at `time`.
    pub fn pack(self, cgroup: u16, node: u16, time: u64, workingset: bool) -> Shadow {
        debug_assert!(u32::from(node) < 1 << self.node_bits);
        let clock = time >> self.bucket_shift & self.clock_mask();
        let word = (clock << CGROUP_BITS | u64::from(cgroup)) << self.node_bits | u64::from(node);
        Shadow(word << FLAG_BITS | u64::from(workingset) << 1 | ODD)
    }

    /// The cgroup, the node, the time as far as it is kept, and whether the page belonged to the working set.
    pub fn unpack(self, shadow: Shadow) -> (u16, u16, u64, bool) {
        let word = shadow.0 >> FLAG_BITS;
        let node = word & ((1 << self.node_bits) - 1);
        let word = word >> self.node_bits;
        let clock = word >> CGROUP_BITS << self.bucket_shift;
        (word as u16, node as u16, clock, shadow.0 & WORKINGSET != 0)
    }

    /// Pages between two times, one of them from a shadow.
    fn distance(self, now: u64, then: u64) -> u64 {
        now.wrapping_sub(then) & self.clock_mask() << self.bucket_shift
    }
}

/// What kind of memory a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageKind {
    /// Memory of programs.
    Anon,
    /// Pages of files.
    File,
}

/// Lengths of the lists that a page competes with, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ListSizes {
    /// Active pages of files.
    pub active_file: u64,
    /// Inactive pages of files.
    pub inactive_file: u64,
    /// Active anonymous pages.
    pub active_anon: u64,
    /// Inactive anonymous pages.
    pub inactive_anon: u64,
    /// Whether there is swap left: only then anonymous pages can give way.
    pub swap_left: bool,
}

impl ListSizes {
    /// The longest refault distance at which a page of `kind` would have stayed.
    pub fn workingset(&self, kind: PageKind) -> u64 {
        let (file, anon) = match kind {
            PageKind::Anon => (self.active_file + self.inactive_file, self.active_anon),
            PageKind::File => (self.active_file, self.active_anon + self.inactive_anon),
        };
        file + if self.swap_left { anon } else { 0 }
    }
}

/// A page has come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refault {
    /// Pages that the clock counted while it was out.
    pub distance: u64,
    /// It goes to the active list.
    pub activate: bool,
    /// It belonged to the working set when it left, and does so again: its read is a cost that reclaim caused.
    pub restored: bool,
}

/// Pages by kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ByKind {
    /// Anonymous pages.
    pub anon: u64,
    /// Pages of files.
    pub file: u64,
}

impl ByKind {
    fn add(&mut self, kind: PageKind) {
        match kind {
            PageKind::Anon => self.anon += 1,
            PageKind::File => self.file += 1,
        }
    }
}

/// The counters of one list (`workingset_*` of vmstat).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Pages that came back.
    pub refault: ByKind,
    /// Those that became active by that.
    pub activate: ByKind,
    /// Those that had been of the working set when they left.
    pub restore: ByKind,
}

/// The list of one node and cgroup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListId(usize);

#[derive(Clone, Debug)]
struct List {
    cgroup: u16,
    node: u16,
    parent: Option<ListId>,
    clock: u64,
    counters: Counters,
}

/// The clocks and counters of a machine.
#[derive(Clone, Debug)]
pub struct Workingset {
    format: ShadowFormat,
    lists: Vec<List>,
    by_name: BTreeMap<(u16, u16), ListId>,
}

impl Workingset {
    /// A machine without lists.
    pub fn new(format: ShadowFormat) -> Self {
        Self { format, lists: Vec::new(), by_name: BTreeMap::new() }
    }

    /// A list for the pages of `cgroup` on `node`; `parent` is that of the cgroup above, on the same node.
    ///
    /// # Panics
    /// When there is one already.
    pub fn add_list(&mut self, cgroup: u16, node: u16, parent: Option<ListId>) -> ListId {
        let id = ListId(self.lists.len());
        let old = self.by_name.insert((cgroup, node), id);
        assert_eq!(old, None, "cgroup {cgroup} has a list on node {node} already");
        self.lists.push(List { cgroup, node, parent, clock: 0, counters: Counters::default() });
        id
    }

    /// The cgroup of `list` is gone. Shadows that name it say nothing any more.
    pub fn remove_list(&mut self, list: ListId) {
        let List { cgroup, node, .. } = self.lists[list.0];
        self.by_name.remove(&(cgroup, node));
    }

    /// The clock of `list` (`nonresident_age`), in pages.
    pub fn clock(&self, list: ListId) -> u64 {
        self.lists[list.0].clock
    }

    /// The counters of `list`.
    pub fn counters(&self, list: ListId) -> Counters {
        self.lists[list.0].counters
    }

    /// `pages` of `list` became active or left: the clock goes on, and those of the cgroups above.
    pub fn age(&mut self, list: ListId, pages: u64) {
        let mut next = Some(list);
        while let Some(ListId(index)) = next {
            self.lists[index].clock += pages;
            next = self.lists[index].parent;
        }
    }

    /// A page leaves `list`. `workingset` tells whether it belongs to the working set. Returns what to keep of it.
    pub fn evicted(&mut self, list: ListId, workingset: bool) -> Shadow {
        let List { cgroup, node, clock, .. } = self.lists[list.0];
        let shadow = self.format.pack(cgroup, node, clock, workingset);
        self.age(list, 1);
        shadow
    }

    /// The page of `shadow` comes back. `sizes` are those of the list that it left; `list` is where it goes, which is another
    /// one when another cgroup or node asks for it. `None`: the list that it left is gone, and nothing is known.
    pub fn refaulted(&mut self, shadow: Shadow, list: ListId, kind: PageKind, sizes: &ListSizes) -> Option<Refault> {
        let (cgroup, node, time, workingset) = self.format.unpack(shadow);
        let left = self.by_name.get(&(cgroup, node))?;
        let distance = self.format.distance(self.clock(*left), time);
        let activate = distance <= sizes.workingset(kind);
        let counters = &mut self.lists[list.0].counters;
        counters.refault.add(kind);
        if activate {
            counters.activate.add(kind);
            if workingset {
                counters.restore.add(kind);
            }
            self.age(list, 1);
        }
        Some(Refault { distance, activate, restored: activate && workingset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: ListSizes =
        ListSizes { active_file: 100, inactive_file: 50, active_anon: 200, inactive_anon: 70, swap_left: true };

    fn machine() -> (Workingset, ListId) {
        let mut workingset = Workingset::new(ShadowFormat::new(10, 1 << 20));
        let list = workingset.add_list(7, 1, None);
        (workingset, list)
    }

    #[test]
    fn t5d_a_page_is_activated_up_to_the_length_of_the_lists_it_competes_with() {
        for (clock, active) in [(1350, true), (1351, false)] {
            let (mut workingset, list) = machine();
            workingset.age(list, 1000);
            let shadow = workingset.evicted(list, false);
            workingset.age(list, clock - 1001);
            let refault = workingset.refaulted(shadow, list, PageKind::Anon, &SIZES).unwrap();
            assert_eq!(refault, Refault { distance: clock - 1000, activate: active, restored: false });
        }
    }

    #[test]
    fn what_a_page_competes_with_depends_on_its_kind_and_on_swap() {
        assert_eq!(SIZES.workingset(PageKind::Anon), 350);
        assert_eq!(SIZES.workingset(PageKind::File), 370);
        let full = ListSizes { swap_left: false, ..SIZES };
        assert_eq!(full.workingset(PageKind::Anon), 150);
        assert_eq!(full.workingset(PageKind::File), 100);
    }

    #[test]
    fn counters_tell_refaults_activations_and_restores_apart() {
        let (mut workingset, list) = machine();
        let near = workingset.evicted(list, true);
        let plain = workingset.evicted(list, false);
        let file = workingset.evicted(list, false);
        assert!(workingset.refaulted(near, list, PageKind::Anon, &SIZES).unwrap().restored);
        assert!(!workingset.refaulted(plain, list, PageKind::Anon, &SIZES).unwrap().restored);
        let _ = workingset.refaulted(file, list, PageKind::File, &SIZES);
        workingset.age(list, 10_000);
        let far = workingset.evicted(list, true);
        workingset.age(list, 351);
        assert!(!workingset.refaulted(far, list, PageKind::Anon, &SIZES).unwrap().activate);
        let expected = Counters {
            refault: ByKind { anon: 3, file: 1 },
            activate: ByKind { anon: 2, file: 1 },
            restore: ByKind { anon: 1, file: 0 },
        };
        assert_eq!(workingset.counters(list), expected);
    }

    #[test]
    fn clocks_of_the_cgroups_above_go_on_too() {
        let (mut workingset, root) = machine();
        let child = workingset.add_list(8, 1, Some(root));
        let _ = workingset.evicted(child, false);
        workingset.age(root, 1);
        assert_eq!((workingset.clock(child), workingset.clock(root)), (1, 2));
    }

    #[test]
    fn an_activation_is_counted_by_the_clock() {
        let (mut workingset, list) = machine();
        let shadow = workingset.evicted(list, false);
        let _ = workingset.refaulted(shadow, list, PageKind::Anon, &SIZES);
        assert_eq!(workingset.clock(list), 2);
    }

    #[test]
    fn a_shadow_of_a_cgroup_that_is_gone_says_nothing() {
        let (mut workingset, list) = machine();
        let other = workingset.add_list(9, 0, None);
        let shadow = workingset.evicted(list, true);
        workingset.remove_list(list);
        assert_eq!(workingset.refaulted(shadow, other, PageKind::Anon, &SIZES), None);
        assert_eq!(workingset.counters(other), Counters::default());
    }

    #[test]
    fn a_shadow_survives_packing_and_is_odd() {
        let format = ShadowFormat::new(10, 1 << 30);
        for (cgroup, node, time, workingset) in [(0, 0, 0, false), (u16::MAX, 1023, (1 << 36) - 1, true)] {
            let shadow = format.pack(cgroup, node, time, workingset);
            assert_eq!(shadow.word() & 1, 1);
            assert_eq!(format.unpack(Shadow::from_word(shadow.word()).unwrap()), (cgroup, node, time, workingset));
        }
        assert_eq!(Shadow::from_word(0), None);
    }

    #[test]
    fn the_clock_may_wrap() {
        let (mut workingset, list) = machine();
        workingset.age(list, (1 << ShadowFormat::clock_bits(10)) - 5);
        let shadow = workingset.evicted(list, false);
        workingset.age(list, 99);
        assert_eq!(workingset.refaulted(shadow, list, PageKind::Anon, &SIZES).unwrap().distance, 100);
    }

    #[test]
    fn times_are_coarser_only_where_memory_needs_more_bits() {
        assert_eq!(ShadowFormat::clock_bits(10), 36);
        assert_eq!(ShadowFormat::new(10, 1 << 36).bucket_shift, 0);
        let coarse = ShadowFormat::new(10, 1 << 39);
        assert_eq!(coarse.bucket_shift, 3);
        assert_eq!(coarse.unpack(coarse.pack(1, 2, 1005, false)).2, 1000);
        assert_eq!(coarse.distance(1005, 1000), 0, "less than a bucket is no distance");
    }
}
