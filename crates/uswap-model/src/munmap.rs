//! munmap(2): all of a range goes, and is reported as one; or it is reported and stays, where the call is refused late.

use std::ops::Range;

use crate::coverage::Happening;
use crate::process::ProcessId;
use crate::userfaultfd_ctx::{Mode, Report, Userfault, unmapped};
use crate::vma::Vma;
use crate::world::{Kernel, World};

/// Whose messages tell of `vma`.
pub(crate) fn teller(vma: &Vma) -> Option<crate::userfaultfd_ctx::UserfaultId> {
    vma.attributes.userfault.filter(|(_, mode)| *mode == Mode::Missing).map(|(userfault, _)| userfault)
}

/// Takes `range` out of a process; what is to be reported of it.
pub(crate) fn unmap(kernel: &mut Kernel, process: ProcessId, range: Range<usize>) -> Option<Report> {
    let process = kernel.process_mut(process);
    let gone = process.mm.unmap(range.clone());
    process.oracle.fresh(range.clone());
    let userfault = gone.iter().find_map(teller)?;
    Some(Report { userfault, message: unmapped(&range) })
}

/// Pages below a place from which a mapping might grow into it before the next report is settled.
const WITHIN_REACH: usize = 32;

/// Whether nothing can grow to `page`, nor could until a call that may not be settled yet took it away. Where something can, and all is
/// swapped out, nobody can tell a refused call from one after which the memory has grown again (docs/known-issues.md).
fn is_apart(kernel: &Kernel, process: ProcessId, page: usize) -> bool {
    let below = page.saturating_sub(WITHIN_REACH)..page;
    let was_there = |range: &Range<usize>| range.start < below.end && below.start < range.end;
    let is_unsettled =
        |userfault: &Userfault| userfault.process == process && userfault.unsettled.iter().any(was_there);
    kernel.process(process).mm.vmas.is_free(below.clone()) && !kernel.userfaults.iter().any(is_unsettled)
}

/// What is reported of an unmapping of `range` that is refused when all of it has been gathered.
fn would_be_reported(kernel: &Kernel, process: ProcessId, range: &Range<usize>) -> Option<Report> {
    let userfault = kernel.process(process).mm.vmas.over(range.clone()).find_map(teller)?;
    Some(Report { userfault, message: unmapped(range) })
}

impl World {
    pub(crate) fn unmap(&self, range: Range<usize>) {
        self.lock_mappings();
        self.note(Happening::Unmap, 1);
        let traced = range.clone();
        let is_refused =
            self.happens(self.config.refused_unmaps, 256) && is_apart(&self.kernel(), self.this_process(), range.start);
        let mut kernel = self.kernel_mut();
        let reports: Vec<Report> = match is_refused {
            true => would_be_reported(&kernel, self.this_process(), &range).into_iter().collect(),
            false => unmap(&mut kernel, self.this_process(), range).into_iter().collect(),
        };
        World::count(&mut kernel, &reports);
        drop(kernel);
        match is_refused {
            true => self.note(Happening::UnmapRefused, 1),
            false => self.has_left(),
        }
        self.trace(&traced, format_args!("{}", if is_refused { "refused to unmap" } else { "unmapped" }));
        self.report(reports);
    }
}
