//! What a process has mapped of objects: mappings, and its page table.

use std::collections::BTreeMap;
use std::ops::Range;

use super::page_cache::ObjectId;
use crate::userfaultfd_ctx::UserfaultId;

/// A mapping, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedVma {
    /// First page.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// What is mapped.
    pub object: ObjectId,
    /// The object's page that is at `start`.
    pub first: usize,
    /// With what it is registered.
    pub userfault: Option<UserfaultId>,
}

impl SharedVma {
    /// The object's page at `page`.
    pub fn to_object(&self, page: usize) -> usize {
        self.first + (page - self.start)
    }

    /// Its part of `range`; empty if there is none.
    pub fn within(&self, range: &Range<usize>) -> Range<usize> {
        self.start.max(range.start)..self.end.min(range.end)
    }
}

/// An entry of a page table, where there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedPte {
    /// The page of the cache.
    Present {
        /// A write waits.
        protected: bool,
    },
    /// Nothing is mapped, and what comes to be is protected.
    Marker,
    /// An access is a SIGBUS.
    Poison,
}

/// Mappings and page table.
#[derive(Clone, Default, Debug)]
pub struct SharedMm {
    /// In no order.
    pub vmas: Vec<SharedVma>,
    /// By page.
    pub ptes: BTreeMap<usize, SharedPte>,
}

impl SharedMm {
    /// The mapping of a page.
    pub fn vma_at(&self, page: usize) -> Option<SharedVma> {
        self.vmas.iter().find(|vma| (vma.start..vma.end).contains(&page)).copied()
    }

    /// Whether nothing is mapped in a range.
    pub fn is_free(&self, range: &Range<usize>) -> bool {
        self.vmas.iter().all(|vma| vma.within(range).is_empty())
    }

    /// Maps.
    pub fn map(&mut self, vma: SharedVma) {
        self.vmas.push(vma);
    }

    /// Unmaps a range; what was there.
    pub fn unmap(&mut self, range: &Range<usize>) -> Vec<SharedVma> {
        let mut gone = Vec::new();
        let parts = std::mem::take(&mut self.vmas);
        for vma in parts {
            let cut = vma.within(range);
            if cut.is_empty() {
                self.vmas.push(vma);
                continue;
            }
            let part = |from: usize, to: usize| SharedVma { start: from, end: to, first: vma.to_object(from), ..vma };
            let rest = [part(vma.start, cut.start), part(cut.end, vma.end)];
            self.vmas.extend(rest.into_iter().filter(|part| part.start < part.end));
            gone.push(part(cut.start, cut.end));
        }
        self.ptes.retain(|page, _| !range.contains(page));
        gone
    }

    /// Changes the entries of a page of an object, wherever it is mapped.
    pub fn change_where_mapped(
        &mut self,
        object: ObjectId,
        page: usize,
        change: impl Fn(SharedPte) -> Option<SharedPte>,
    ) {
        for vma in self.vmas.iter().filter(|vma| vma.object == object) {
            let pages = vma.first..vma.first + (vma.end - vma.start);
            if !pages.contains(&page) {
                continue;
            }
            let at = vma.start + (page - vma.first);
            match self.ptes.get(&at).copied().map(&change) {
                Some(Some(pte)) => self.ptes.insert(at, pte),
                Some(None) => self.ptes.remove(&at),
                None => None,
            };
        }
    }
}
