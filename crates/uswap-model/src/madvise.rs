//! madvise(2): what discards pages is reported before it takes effect, one mapping after the other.

use std::ops::Range;

use uswap_system::PAGE_SIZE;
use uswap_system::faults::Message;

use crate::coverage::Happening;
use crate::munmap::teller;
use crate::pte::Pte;
use crate::touch::Access;
use crate::userfaultfd_ctx::Report;
use crate::world::World;

/// Part of the range is not mapped (ENOMEM), or cannot be advised so (EINVAL).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAll;

impl World {
    /// The engine drops what is not the program's, where nothing reports it: else it would wait for itself.
    pub(crate) fn drop_for_the_engine(&self, range: Range<usize>) -> Result<(), NotAll> {
        self.point();
        let mut kernel = self.kernel_mut();
        let process = self.this_process();
        let mm = &mut kernel.process_mut(process).mm;
        assert!(mm.vmas.over(range.clone()).all(|vma| teller(vma).is_none()), "the engine drops what is reported");
        let is_mapped = !mm.vmas.is_free(range.clone());
        drop_pages(mm, range, false);
        if is_mapped { Ok(()) } else { Err(NotAll) }
    }

    /// MADV_DONTNEED, or MADV_FREE with `lazily`.
    pub(crate) fn discard(&self, range: Range<usize>, lazily: bool) -> Result<(), NotAll> {
        self.note(Happening::Discard, 1);
        let process = self.this_process();
        let mut at = range.start;
        let mut is_all = true;
        loop {
            self.point();
            let mut kernel = self.kernel_mut();
            let Some(vma) = kernel.process(process).mm.vmas.over(at..range.end).next().copied() else { break };
            let mut part = vma.within(&(at..range.end));
            self.trace(&part, format_args!("madvise begins, lazily: {lazily}"));
            is_all &= part.start == at;
            if vma.attributes.locked || lazily && vma.attributes.file {
                return Err(NotAll);
            }
            at = part.end;
            kernel.process_mut(process).oracle.discard_begins(part.clone());
            if let Some(userfault) = teller(&vma) {
                let (start, end) = (part.start * PAGE_SIZE, part.end * PAGE_SIZE);
                let reports = vec![Report { userfault, message: Message::Remove { start, end } }];
                World::count(&mut kernel, &reports);
                drop(kernel);
                self.report(reports);
                // It takes effect now, and nothing is counted any more.
                self.point();
                self.stand_still_long(self.config.late_drops);
                kernel = self.kernel_mut();
                let begun = part.clone();
                // What is mapped there by now is looked up again.
                let mm = &kernel.process(process).mm;
                let Some(now) = mm.vmas.at(part.start).copied() else {
                    kernel.process_mut(process).oracle.discard_ends(&begun, &begun, true);
                    return Err(NotAll);
                };
                part.end = part.end.min(now.end);
                at = part.end;
                self.trace(&part, format_args!("madvise takes effect"));
                let done = part.clone();
                drop_pages(&mut kernel.process_mut(process).mm, part, lazily);
                kernel.process_mut(process).oracle.discard_ends(&begun, &done, lazily);
            } else {
                drop_pages(&mut kernel.process_mut(process).mm, part.clone(), lazily);
                kernel.process_mut(process).oracle.discard_ends(&part, &part, lazily);
            }
        }
        if is_all && at >= range.end { Ok(()) } else { Err(NotAll) }
    }

    /// MADV_DONTFORK, or MADV_DOFORK.
    pub(crate) fn keep_from_forks(&self, range: Range<usize>, kept: bool) -> Result<(), NotAll> {
        self.lock_mappings();
        let mut kernel = self.kernel_mut();
        let vmas = &mut kernel.process_mut(self.this_process()).mm.vmas;
        let is_mapped = vmas.is_mapped(range.clone());
        vmas.change(range, |attributes| attributes.dont_fork = kept);
        if is_mapped { Ok(()) } else { Err(NotAll) }
    }

    /// MADV_POPULATE_WRITE.
    pub(crate) fn populate_write(&self, range: Range<usize>) -> Result<(), NotAll> {
        for page in range {
            self.touch(page, Access::WriteNothing).map_err(|_| NotAll)?;
        }
        Ok(())
    }
}

fn drop_pages(mm: &mut crate::mm::Mm, pages: Range<usize>, lazily: bool) {
    for page in pages {
        let pte = match mm.pte(page) {
            Pte::Present(found) if lazily && found.is_exclusive && !found.is_zero_page => {
                Pte::Present(crate::pte::Page { is_lazy: true, ..found })
            }
            Pte::Present(found) if lazily => Pte::Present(found),
            // A marker goes with either advice, and what the kernel has swapped out goes, too.
            _ => Pte::Missing,
        };
        mm.set(page, pte);
    }
}
