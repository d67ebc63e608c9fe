//! In common: private pages that processes have of a fork count once, as [`uswap_core::in_common`] has it.

use uswap_core::in_common::{Child, borne};
use uswap_core::newborn;
use uswap_system::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use super::census::Entries;
use super::{Group, Holder, ProcessSlot};

/// Parents whose children leave out pages, at a time. The children of others count in full.
const PARENTS_MAX: usize = 32;

/// What a process tells of the private pages that it has in common with others.
#[repr(C)]
pub struct InCommon {
    /// How many pages it may have copied or dropped, ever.
    pub changes: AtomicU64,
    /// Pages that it leaves out as long as its parent lives.
    pub left_out: AtomicU64,
    /// Pages that it had in common when it last looked: what it leaves out is fewer by all that it may have changed since.
    pub when_looked: AtomicU64,
    /// So many of them cannot be swapped.
    pub fixed: AtomicU64,
    /// The changes of its parent when it was born.
    pub born_at: AtomicU64,
    /// The [`Holder`] that is its parent, as a word; 0: none that is known.
    parent: AtomicU64,
    /// Its part in censuses.
    pub(super) entries: Entries,
}

impl InCommon {
    pub(super) fn clear(&self) {
        let InCommon { changes, left_out, when_looked, fixed, born_at, parent, entries } = self;
        entries.clear();
        [changes, left_out, when_looked, fixed, born_at, parent].into_iter().for_each(|word| word.store(0, Relaxed));
    }
}

/// A parent, and what its children leave out.
#[derive(Clone, Copy)]
struct Parent {
    index: u32,
    /// What it counts for them.
    borne: u64,
    /// Pages that it has in common with the one that has most.
    in_common: u64,
    /// The same when that one last looked.
    when_looked: u64,
}

/// What the processes of a group had in common at one moment.
pub struct Family {
    parents: [Parent; PARENTS_MAX],
    count: usize,
    /// What parents bear is no more than a census knows of.
    is_exact: bool,
}

impl Family {
    /// What a parent has dropped since a fork may be what its children still have, and passes for it. A census knows better.
    fn heed_census(&mut self, group: &Group) {
        if self.parents[..self.count].iter().all(|parent| parent.borne == 0) {
            return;
        }
        let Some(by_census) = group.by_census() else { return };
        self.is_exact = true;
        let counted: u64 = group.processes().map(|(index, slot)| self.private_pages(group, index, slot)).sum();
        let mut surplus = counted.saturating_sub(by_census.most);
        for parent in &mut self.parents[..self.count] {
            let less = parent.borne.min(surplus);
            (parent.borne, surplus) = (parent.borne - less, surplus - less);
        }
    }

    fn parent(&self, index: u32) -> Option<&Parent> {
        self.parents[..self.count].iter().find(|parent| parent.index == index)
    }

    /// Pages of a process that its parent counts: none as soon as that has ended.
    pub fn leaves_out(&self, group: &Group, slot: &ProcessSlot) -> u64 {
        match group.living_parent(slot) {
            Some(parent) if self.parent(parent.index).is_some() => slot.resident.in_common.left_out.load(Relaxed),
            _ => 0,
        }
    }

    /// Private pages that the process with this index counts.
    pub fn private_pages(&self, group: &Group, index: u32, slot: &ProcessSlot) -> u64 {
        let own = slot.resident.anon_pages.load(Relaxed).saturating_sub(self.leaves_out(group, slot));
        own + self.parent(index).map_or(0, |parent| parent.borne)
    }

    /// Whether the process has pages in common with a parent or a child that are counted so.
    pub fn has(&self, group: &Group, index: u32, slot: &ProcessSlot) -> bool {
        self.leaves_out(group, slot) > 0 || self.parent(index).is_some()
    }

    /// Resident pages of the process that count against the budget.
    pub fn usage_pages(&self, group: &Group, index: u32, slot: &ProcessSlot) -> u64 {
        self.private_pages(group, index, slot) + slot.beside_private_pages()
    }

    /// Those of the process's pages that cannot be swapped. Which of them its parent has, too, nobody knows: all that it leaves out may
    /// be among them.
    pub fn fixed_pages(&self, group: &Group, index: u32, slot: &ProcessSlot) -> u64 {
        let private = self.private_pages(group, index, slot);
        let parent_counts = self.leaves_out(group, slot) > 0;
        let left_out = if parent_counts { slot.resident.in_common.fixed.load(Relaxed) } else { 0 };
        let unmanaged = slot.resident.unmanaged_pages.load(Relaxed).saturating_sub(left_out);
        unmanaged.min(private) + slot.shared.pages.load(Relaxed)
    }

    /// Pages that the process counts for itself and for children that have them, too: it cannot give them back alone. It need not have them
    /// any more itself; what it bears is its children's together, of whom each may have others.
    pub fn in_common(&self, group: &Group, index: u32, slot: &ProcessSlot) -> u64 {
        let borne = if self.is_exact { self.parent(index).map_or(0, |parent| parent.borne) } else { 0 };
        self.in_common_with_one(index).max(borne).min(self.private_pages(group, index, slot))
    }

    /// Pages that the process has, or counts, in common with the child that has most of them.
    pub fn in_common_with_one(&self, index: u32) -> u64 {
        self.parent(index).map_or(0, |parent| parent.in_common)
    }

    /// Pages that children of `parent`'s come to have, as far as the living ones show.
    pub fn children_need(&self, group: &Group, parent: Holder) -> u64 {
        let of_children = group.processes().filter(|(_, slot)| slot.parent() == Some(parent));
        newborn::needs(of_children.map(|(index, slot)| self.private_pages(group, index, slot)).max().unwrap_or(0))
    }

    /// The same when its children last looked. It becomes less only where one has been seen to have let go.
    pub fn in_common_when_looked(&self, index: u32) -> u64 {
        self.parent(index).map_or(0, |parent| parent.when_looked)
    }
}

impl ProcessSlot {
    /// The process that it was forked from.
    pub fn parent(&self) -> Option<Holder> {
        Holder::of_word(self.resident.in_common.parent.load(Relaxed))
    }

    /// It is a child of `parent`'s.
    pub fn is_child_of(&self, parent: Holder) {
        self.resident.in_common.parent.store(parent.word(), Release);
    }
}

impl Group {
    /// The process that `slot`'s was forked from, as long as it lives.
    pub fn living_parent(&self, slot: &ProcessSlot) -> Option<Holder> {
        slot.parent().filter(|&parent| self.has(parent))
    }

    /// What its processes have in common at this moment.
    pub fn family(&self) -> Family {
        let none = Parent { index: u32::MAX, borne: 0, in_common: 0, when_looked: 0 };
        let mut family = Family { parents: [none; PARENTS_MAX], count: 0, is_exact: false };
        for (_, slot) in self.processes().filter(|(_, slot)| slot.resident.in_common.left_out.load(Relaxed) > 0) {
            let Some(parent) = self.living_parent(slot) else { continue };
            if family.parent(parent.index).is_none() && family.count < PARENTS_MAX {
                family.parents[family.count] = self.as_parent(parent);
                family.count += 1;
            }
        }
        family.heed_census(self);
        family
    }

    fn as_parent(&self, parent: Holder) -> Parent {
        let children = || {
            let is_child = |slot: &ProcessSlot| slot.parent() == Some(parent);
            self.processes().map(|(_, slot)| slot).filter(move |slot| is_child(slot))
        };
        let changes = self.process(parent.index).resident.in_common.changes.load(Relaxed);
        // What cannot be swapped need not be left alone, either.
        let swappable = |slot: &ProcessSlot| {
            let in_common = &slot.resident.in_common;
            in_common.left_out.load(Relaxed).saturating_sub(in_common.fixed.load(Relaxed))
        };
        let in_common = children().map(swappable).max().unwrap_or(0);
        let when_looked = children().map(|slot| slot.resident.in_common.when_looked.load(Relaxed)).max().unwrap_or(0);
        let children = children().map(|slot| Child {
            left_out: slot.resident.in_common.left_out.load(Relaxed),
            born_at: slot.resident.in_common.born_at.load(Relaxed),
        });
        Parent { index: parent.index, borne: borne(changes, children), in_common, when_looked }
    }
}
