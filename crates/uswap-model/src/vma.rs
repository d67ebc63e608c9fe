//! Mappings: they are split where a part is treated otherwise, and merge where neighbours have become alike.

use std::ops::Range;

use crate::userfaultfd_ctx::{Mode, UserfaultId};

/// What is the same in all of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub exec: bool,
    /// MADV_DONTFORK.
    pub dont_fork: bool,
    /// A private mapping of a file, whose bytes are zeros: it cannot be registered.
    pub file: bool,
    /// mlock(2).
    pub locked: bool,
    /// Registered.
    pub userfault: Option<(UserfaultId, Mode)>,
    /// By how many pages it lies before where it was first touched (vm_pgoff): neighbours of other origin do not merge.
    pub origin: isize,
    /// Which reverse mapping its pages have (anon_vma), once one has been written to: neighbours that have two do not merge.
    pub anon: Option<u32>,
}

impl Attributes {
    /// Readable and writable memory.
    pub const PLAIN: Attributes = Attributes {
        read: true,
        write: true,
        exec: false,
        dont_fork: false,
        file: false,
        locked: false,
        userfault: None,
        origin: 0,
        anon: None,
    };

    /// Whether neighbours like that are one mapping.
    fn merges_with(&self, next: &Attributes) -> bool {
        let is_one = self.anon == next.anon || self.anon.is_none() || next.anon.is_none();
        is_one && Attributes { anon: None, ..*self } == Attributes { anon: None, ..*next }
    }

    /// Whether UFFDIO_MOVE goes from one to the other, as far as they have to be alike.
    pub fn is_like(&self, other: &Attributes) -> bool {
        let of = |one: &Attributes| (one.read, one.write, one.exec, one.file, one.locked);
        of(self) == of(other)
    }
}

/// A mapping, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vma {
    /// First page.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// What it is like.
    pub attributes: Attributes,
}

impl Vma {
    /// Its part of `range`.
    pub fn within(&self, range: &Range<usize>) -> Range<usize> {
        self.start.max(range.start)..self.end.min(range.end)
    }
}

/// The mappings of a process, in order.
#[derive(Clone, Default, Debug)]
pub struct Vmas(Vec<Vma>);

impl Vmas {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Vma> {
        self.0.iter()
    }

    /// The first that ends behind `page`.
    pub fn at_or_after(&self, page: usize) -> Option<&Vma> {
        self.0.get(self.0.partition_point(|vma| vma.end <= page))
    }

    /// That of `page`.
    pub fn at(&self, page: usize) -> Option<&Vma> {
        self.at_or_after(page).filter(|vma| vma.start <= page)
    }

    /// Those that have something of `range`.
    pub fn over(&self, range: Range<usize>) -> impl Iterator<Item = &Vma> {
        let first = self.0.partition_point(|vma| vma.end <= range.start);
        self.0[first..].iter().take_while(move |vma| vma.start < range.end && !range.is_empty())
    }

    /// Whether nothing is mapped in `range`.
    pub fn is_free(&self, range: Range<usize>) -> bool {
        self.over(range).next().is_none()
    }

    /// Whether all of `range` is mapped.
    pub fn is_mapped(&self, range: Range<usize>) -> bool {
        let mut at = range.start;
        for vma in self.over(range.clone()) {
            if vma.start > at {
                return false;
            }
            at = vma.end;
        }
        at >= range.end
    }

    fn split(&mut self, page: usize) {
        let index = self.0.partition_point(|vma| vma.end <= page);
        if let Some(vma) = self.0.get_mut(index)
            && vma.start < page
        {
            let before = Vma { end: page, ..*vma };
            vma.start = page;
            self.0.insert(index, before);
        }
    }

    fn merge(&mut self) {
        self.0.dedup_by(|next, before| {
            let grows = before.end == next.start && before.attributes.merges_with(&next.attributes);
            if grows {
                before.end = next.end;
                before.attributes.anon = before.attributes.anon.or(next.attributes.anon);
            }
            grows
        });
    }

    /// Adds a mapping where there is none.
    pub fn insert(&mut self, range: Range<usize>, attributes: Attributes) {
        debug_assert!(self.is_free(range.clone()));
        let index = self.0.partition_point(|vma| vma.end <= range.start);
        self.0.insert(index, Vma { start: range.start, end: range.end, attributes });
        self.merge();
    }

    /// Takes `range` out; returns what was there.
    pub fn remove(&mut self, range: Range<usize>) -> Vec<Vma> {
        self.split(range.start);
        self.split(range.end);
        let (inside, outside) = self.0.iter().partition(|vma| vma.start >= range.start && vma.end <= range.end);
        self.0 = outside;
        inside
    }

    /// A page is written to for the first time, or allocated: its mapping has a reverse mapping from here on, that of a neighbour that
    /// it might merge with if that has one, or else `fresh`.
    pub fn touched(&mut self, page: usize, fresh: u32) {
        let index = self.0.partition_point(|vma| vma.end <= page);
        let Some(vma) = self.0.get(index).copied().filter(|vma| vma.attributes.anon.is_none()) else { return };
        let alike = |other: &Vma| {
            // Protection may differ.
            let Attributes { read, write, exec, .. } = vma.attributes;
            Attributes { read, write, exec, ..other.attributes }.merges_with(&vma.attributes)
        };
        let after = self.0.get(index + 1).filter(|next| next.start == vma.end && alike(next));
        let before = index.checked_sub(1).and_then(|before| self.0.get(before));
        let before = before.filter(|before| before.end == vma.start && alike(before));
        let anon = after.and_then(|next| next.attributes.anon).or(before.and_then(|before| before.attributes.anon));
        self.0[index].attributes.anon = anon.or(Some(fresh));
    }

    /// Changes what is mapped in `range`.
    pub fn change(&mut self, range: Range<usize>, change: impl Fn(&mut Attributes)) {
        self.split(range.start);
        self.split(range.end);
        for vma in self.0.iter_mut().filter(|vma| vma.start >= range.start && vma.end <= range.end) {
            change(&mut vma.attributes);
        }
        self.merge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_split_and_merge() {
        let mut vmas = Vmas::default();
        vmas.insert(10..20, Attributes::PLAIN);
        vmas.insert(20..25, Attributes::PLAIN);
        assert_eq!(vmas.iter().count(), 1);
        vmas.change(12..14, |attributes| attributes.locked = true);
        assert_eq!(vmas.iter().map(|vma| (vma.start, vma.end)).collect::<Vec<_>>(), [(10, 12), (12, 14), (14, 25)]);
        vmas.change(0..100, |attributes| attributes.locked = false);
        assert_eq!(vmas.iter().count(), 1);
        assert_eq!(vmas.remove(15..18).len(), 1);
        assert!(vmas.is_free(15..18) && vmas.is_mapped(10..15) && !vmas.is_mapped(14..19));
        assert_eq!(vmas.at(17), None);
        assert_eq!(vmas.at_or_after(17).map(|vma| vma.start), Some(18));
    }

    #[test]
    fn neighbours_of_another_origin_stay_apart() {
        let mut vmas = Vmas::default();
        vmas.insert(10..20, Attributes::PLAIN);
        vmas.insert(20..25, Attributes { origin: 7, ..Attributes::PLAIN });
        assert_eq!(vmas.iter().count(), 2);
    }
}
