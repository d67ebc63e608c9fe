//! fork(2): the child has the mappings, but for those that are kept from it, and the same pages, shared from here on. It has no
//! userfaultfd: what is missing in it reads as zeros until it registers its memory with one of its own.

use crate::coverage::Happening;
use crate::process::{Process, ProcessId};
use crate::pte::Pte;
use crate::world::World;

impl World {
    /// Copies the process of the running thread; the child has no thread yet.
    pub(crate) fn fork(&self) -> ProcessId {
        self.lock_mappings();
        self.note(Happening::Fork, 1);
        let mut kernel = self.kernel_mut();
        let (parent, child) = (self.this_process(), ProcessId(kernel.processes.len()));
        let mut copy = Process::new(child, Some(parent), (self.config.base, self.config.span), kernel.frames.clone());
        let old = kernel.process_mut(parent);
        copy.oracle = old.oracle.forked();
        copy.mm.no_huge_pages = old.mm.no_huge_pages;
        let vmas: Vec<_> = old.mm.vmas.iter().copied().collect();
        for vma in vmas {
            if vma.attributes.dont_fork {
                copy.oracle.fresh(vma.start..vma.end);
                continue;
            }
            let mut attributes = vma.attributes;
            (attributes.userfault, attributes.locked) = (None, false);
            copy.mm.map(vma.start..vma.end, attributes);
            for page in vma.start..vma.end {
                let pte = old.mm.pte(page);
                let pinned = pte.page().is_some_and(|found| found.is_pinned);
                // What a device has stays the parent's own, and the child gets a copy.
                let shared = pte.with(|found| found.is_exclusive = false);
                let copied =
                    if pinned { pte.with(|found| (found.is_pinned, found.frame) = (false, None)) } else { shared };
                // The child's memory is registered with no userfaultfd.
                copy.mm.set(page, copied.with(|found| found.is_protected = false));
                if !pinned && pte != Pte::Missing {
                    old.mm.set(page, shared);
                }
            }
        }
        kernel.processes.push(copy);
        self.trace(&(0..usize::MAX), format_args!("fork of {parent:?}: {child:?}"));
        child
    }
}
