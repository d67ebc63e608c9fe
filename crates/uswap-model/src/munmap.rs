//! munmap(2): all of a range goes, and is reported as one.

use std::ops::Range;

use crate::coverage::Happening;
use crate::process::ProcessId;
use crate::userfaultfd_ctx::{Mode, Report, unmapped};
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

impl World {
    pub(crate) fn unmap(&self, range: Range<usize>) {
        self.lock_mappings();
        self.note(Happening::Unmap, 1);
        let traced = range.clone();
        let mut kernel = self.kernel_mut();
        let reports: Vec<Report> = unmap(&mut kernel, self.this_process(), range).into_iter().collect();
        World::count(&mut kernel, &reports);
        drop(kernel);
        self.trace(&traced, format_args!("unmapped"));
        self.report(reports);
    }
}
