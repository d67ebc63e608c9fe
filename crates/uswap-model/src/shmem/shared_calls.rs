//! mmap, munmap, mremap, madvise and fork of shared memory. What is registered is reported, as of private memory.

use std::ops::Range;

use uswap_system::PAGE_SIZE;
use uswap_system::faults::Message;

use super::Birth;
use super::page_cache::{ObjectId, PageCache};
use super::shared_mm::{SharedMm, SharedPte, SharedVma};
use super::shared_uffd::{FORKED, SharedUffd};
use crate::coverage::Happening;
use crate::process::{Process, ProcessId};
use crate::userfaultfd_ctx::{Report, UserfaultId, unmapped};
use crate::world::{Kernel, World};

/// Pages where something may be mapped.
const SPACE: usize = 4000;

/// What mremap makes of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// It goes elsewhere.
    Away,
    /// It stays, and so many pages of its object are mapped once more (an old length of 0).
    Again(usize),
}

impl World {
    /// A new object of so many pages.
    pub fn new_object(&self, pages: usize) -> ObjectId {
        let mut kernel = self.kernel_mut();
        kernel.shmem.caches.push(PageCache::new(pages));
        ObjectId(kernel.shmem.caches.len() - 1)
    }

    fn this_mm<'a>(&self, kernel: &'a mut Kernel) -> &'a mut SharedMm {
        kernel.shmem.mms.entry(self.this_process()).or_default()
    }

    /// Where so many pages are free: at one of `wanted`, or anywhere.
    fn room(&self, mm: &SharedMm, pages: usize, wanted: &[usize]) -> usize {
        let is_free = |at: &usize| mm.is_free(&(*at..*at + pages));
        let anywhere = || 1 + self.below(SPACE as u64) as usize;
        wanted
            .iter()
            .copied()
            .find(is_free)
            .unwrap_or_else(|| std::iter::repeat_with(anywhere).find(is_free).expect("programs leave room"))
    }

    /// Maps all of an object, registered with `userfault`, before anybody knows the address: where the kernel likes, `wanted` first.
    pub fn map_shared(&self, object: ObjectId, userfault: SharedUffd, wanted: &[usize]) -> usize {
        self.lock_mappings();
        let mut kernel = self.kernel_mut();
        let pages = kernel.shmem.caches[object.0].pages.len();
        let mm = self.this_mm(&mut kernel);
        let at = self.room(mm, pages, wanted);
        mm.map(SharedVma { start: at, end: at + pages, object, first: 0, userfault: Some(userfault.0) });
        drop(kernel);
        self.trace(&(at..at + pages), format_args!("mapped object {}", object.0));
        at
    }

    /// munmap.
    pub fn unmap_shared(&self, range: Range<usize>) {
        self.lock_mappings();
        self.note(Happening::Unmap, 1);
        let mut kernel = self.kernel_mut();
        let mut reports: Vec<Report> = Vec::new();
        for vma in self.this_mm(&mut kernel).unmap(&range) {
            if let Some(userfault) = vma.userfault.filter(|one| reports.iter().all(|other| other.userfault != *one)) {
                reports.push(Report { userfault, message: unmapped(&range) });
            }
        }
        World::count(&mut kernel, &reports);
        drop(kernel);
        self.trace(&range, format_args!("unmapped"));
        self.report(reports);
    }

    /// mremap of a range of one mapping to where nothing is: where the kernel likes, `wanted` first. Returns the place.
    pub fn remap_shared(&self, old: Range<usize>, moved: Moved, wanted: &[usize]) -> usize {
        self.lock_mappings();
        self.note(Happening::Remap, 1);
        let mut kernel = self.kernel_mut();
        let mm = self.this_mm(&mut kernel);
        let vma = mm.vma_at(old.start).expect("a right program moves what it has");
        let (is_again, pages) = match moved {
            Moved::Away => (false, old.len()),
            Moved::Again(pages) => (true, pages),
        };
        let to = self.room(mm, pages, wanted);
        if !is_again {
            let ptes: Vec<(usize, SharedPte)> = mm.ptes.range(old.clone()).map(|(&page, &pte)| (page, pte)).collect();
            mm.unmap(&old);
            mm.ptes.extend(ptes.into_iter().map(|(page, pte)| (to + page - old.start, pte)));
        }
        let first = vma.to_object(old.start);
        mm.map(SharedVma { start: to, end: to + pages, first, ..vma });
        let mut reports = Vec::new();
        if let Some(userfault) = vma.userfault {
            let len = if is_again { 0 } else { old.len() * PAGE_SIZE };
            let message = Message::Remap { from: old.start * PAGE_SIZE, to: to * PAGE_SIZE, len };
            reports.push(Report { userfault, message });
            if !is_again {
                reports.push(Report { userfault, message: unmapped(&old) });
            }
        }
        World::count(&mut kernel, &reports);
        drop(kernel);
        self.trace(&old, format_args!("page {first:x} of object {} {moved:x?} to {to:x} from", vma.object.0));
        self.report(reports);
        to
    }

    /// mremap that makes a mapping longer where it is: nothing is reported. Whether there was room.
    pub fn grow_shared(&self, end: usize, more: usize) -> bool {
        self.lock_mappings();
        let mut kernel = self.kernel_mut();
        let mm = self.this_mm(&mut kernel);
        let is_free = mm.is_free(&(end..end + more));
        let vma = mm.vmas.iter_mut().find(|vma| vma.end == end && is_free);
        let has_grown = vma.map(|vma| vma.end += more).is_some();
        drop(kernel);
        self.trace(&(end..end + more), format_args!("{}", if has_grown { "grown to" } else { "cannot grow to" }));
        has_grown
    }

    /// madvise(MADV_DONTNEED): the content stays in the object, and protection in its place.
    pub fn forget_shared(&self, range: Range<usize>) {
        self.point();
        let mut kernel = self.kernel_mut();
        let mm = self.this_mm(&mut kernel);
        for page in range {
            match mm.ptes.get(&page) {
                Some(SharedPte::Present { protected: true }) => mm.ptes.insert(page, SharedPte::Marker),
                Some(SharedPte::Present { protected: false }) => mm.ptes.remove(&page),
                _ => None,
            };
        }
    }

    /// fork. The child, which has no thread yet, has entries of what is registered, and a userfaultfd for each of the parent's. `copy` copies what
    /// the program has in its private memory.
    pub fn fork_shared<T>(&self, copy: impl FnOnce() -> T) -> (ProcessId, T) {
        self.lock_mappings();
        self.note(Happening::Fork, 1);
        let mut kernel = self.kernel_mut();
        let (parent, child) = (self.this_process(), ProcessId(kernel.processes.len()));
        let place = (self.config.base, self.config.span);
        let process = Process::new(child, Some(parent), place, kernel.frames.clone());
        kernel.processes.push(process);
        let mut mm = self.this_mm(&mut kernel).clone();
        let mut userfaults: Vec<UserfaultId> = mm.vmas.iter().filter_map(|vma| vma.userfault).collect();
        userfaults.sort_unstable_by_key(|userfault| userfault.0);
        userfaults.dedup();
        let thread = self.this_thread();
        for &userfault in &userfaults {
            let new = SharedUffd::open(&mut kernel, child).0;
            kernel.shmem.births.push(Birth { userfault, thread, child: new });
            mm.vmas.iter_mut().filter(|vma| vma.userfault == Some(userfault)).for_each(|vma| vma.userfault = Some(new));
        }
        kernel.shmem.mms.insert(child, mm);
        kernel.shmem.unborn.push(child);
        let report = |&userfault: &UserfaultId| Report { userfault, message: FORKED };
        let reports: Vec<Report> = userfaults.iter().map(report).collect();
        World::count(&mut kernel, &reports);
        drop(kernel);
        let copied = copy();
        self.trace(&(0..usize::MAX), format_args!("fork of {parent:?}: {child:?}"));
        self.report(reports);
        self.kernel_mut().shmem.unborn.retain(|&other| other != child);
        (child, copied)
    }
}
