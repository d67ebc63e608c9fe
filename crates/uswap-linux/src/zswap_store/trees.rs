//! The trees of zswap: one for each 64 MiB of an area, from slot to entry, and what looking into them costs.
//!
//! Every slot that is freed asks whether it has an entry. How that is done is the subject of the 2024 thread
//! ([`InvalidateRule`]): a test whether the tree is empty needs no lock, a lookup needs none either, erasing does. All of it is
//! counted here ([`TreeCosts`]), so that a simulation can put a price on each.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::swap_entry::SwapEntry;

/// Slots of one tree: 64 MiB.
pub const TREE_SLOTS: u64 = 1 << 14;

/// What happens for each slot that is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidateRule {
    /// 6.12: lock the tree, look up, erase what is there.
    Locked,
    /// 6.13 or so to 7.3: nothing when the tree is empty, otherwise as before.
    EmptyTest,
    /// A variant of the thread: nothing when zswap was never enabled, otherwise as before.
    NeverEnabled,
    /// A variant of the thread: look up without the lock, and take it on a find only.
    LookupFirst,
    /// What the thread agreed on and no kernel has: the empty test, then the lookup, then the lock.
    Combined,
}

impl InvalidateRule {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Locked, Self::EmptyTest, Self::NeverEnabled, Self::LookupFirst, Self::Combined];
}

/// What was done to trees.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TreeCosts {
    /// Looks at whether a tree is empty, or zswap ever enabled.
    pub tests: u64,
    /// Walks down a tree.
    pub lookups: u64,
    /// Locks taken.
    pub locks: u64,
    /// Entries erased.
    pub erases: u64,
}

impl core::ops::AddAssign for TreeCosts {
    fn add_assign(&mut self, more: Self) {
        self.tests += more.tests;
        self.lookups += more.lookups;
        self.locks += more.locks;
        self.erases += more.erases;
    }
}

impl core::ops::Sub for TreeCosts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            tests: self.tests - before.tests,
            lookups: self.lookups - before.lookups,
            locks: self.locks - before.locks,
            erases: self.erases - before.erases,
        }
    }
}

/// The trees of all areas.
#[derive(Clone, Default)]
pub(super) struct Trees {
    areas: BTreeMap<u8, Vec<BTreeMap<u16, u32>>>,
    costs: TreeCosts,
    entries: u64,
}

impl Trees {
    pub fn add_area(&mut self, area: u8, slots: u64) {
        self.areas.insert(area, alloc::vec![BTreeMap::new(); slots.div_ceil(TREE_SLOTS) as usize]);
    }

    pub fn remove_area(&mut self, area: u8) {
        let trees = self.areas.remove(&area).unwrap_or_default();
        assert!(trees.iter().all(BTreeMap::is_empty), "area {area} goes while zswap has a page of it");
    }

    pub fn costs(&self) -> TreeCosts {
        self.costs
    }

    /// Entries in all trees.
    pub fn len(&self) -> u64 {
        self.entries
    }

    /// What a slot has, for checks: counts nothing.
    pub fn get(&self, entry: SwapEntry) -> Option<u32> {
        let (tree, key) = Self::place(entry);
        self.areas.get(&entry.area)?.get(tree)?.get(&key).copied()
    }

    pub fn look_up(&mut self, entry: SwapEntry) -> Option<u32> {
        self.costs.lookups += 1;
        self.get(entry)
    }

    /// Puts an entry into its tree, in place of the one that the slot had.
    pub fn replace(&mut self, entry: SwapEntry, id: u32) -> Option<u32> {
        self.costs.locks += 1;
        self.costs.lookups += 1;
        let old = self.tree(entry).insert(Self::place(entry).1, id);
        self.entries += u64::from(old.is_none());
        old
    }

    /// Takes the lock, looks up and erases.
    pub fn erase(&mut self, entry: SwapEntry) -> Option<u32> {
        self.costs.locks += 1;
        self.costs.lookups += 1;
        let id = self.tree(entry).remove(&Self::place(entry).1);
        self.costs.erases += u64::from(id.is_some());
        self.entries -= u64::from(id.is_some());
        id
    }

    pub fn invalidate(&mut self, entry: SwapEntry, rule: InvalidateRule, ever_enabled: bool) -> Option<u32> {
        let tests_empty = matches!(rule, InvalidateRule::EmptyTest | InvalidateRule::Combined);
        if tests_empty {
            self.costs.tests += 1;
            if self.tree(entry).is_empty() {
                return None;
            }
        }
        if rule == InvalidateRule::NeverEnabled {
            self.costs.tests += 1;
            if !ever_enabled {
                return None;
            }
        }
        if matches!(rule, InvalidateRule::LookupFirst | InvalidateRule::Combined) {
            self.look_up(entry)?;
        }
        self.erase(entry)
    }

    fn tree(&mut self, entry: SwapEntry) -> &mut BTreeMap<u16, u32> {
        let trees = self.areas.get_mut(&entry.area).unwrap_or_else(|| panic!("area {} is not swapped on", entry.area));
        &mut trees[Self::place(entry).0]
    }

    fn place(entry: SwapEntry) -> (usize, u16) {
        ((entry.slot / TREE_SLOTS) as usize, (entry.slot % TREE_SLOTS) as u16)
    }
}
