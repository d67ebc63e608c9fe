//! Registration of memory with a userfaultfd, as UFFDIO_REGISTER and UFFDIO_UNREGISTER.

use std::io;
use std::ops::Range;

use crate::coverage::Happening;
use crate::host_memory::HostRange;
use crate::mm::{is_host, pages_of};
use crate::userfaultfd_ctx::{Mode, UserfaultId};
use crate::world::World;

fn invalid() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidInput)
}

impl World {
    pub(crate) fn register(&self, id: UserfaultId, start: usize, len: usize, mode: Mode) -> io::Result<()> {
        self.stand_still(self.config.late_looks);
        self.lock_mappings();
        let pages = pages_of(start, len).ok_or_else(invalid)?;
        let mut kernel = self.kernel_mut();
        let process = kernel.userfaults[id.0].process;
        let mm = &mut kernel.process_mut(process).mm;
        if is_host(pages.start) && self.refuses(Happening::RegisterRefused) {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        if is_host(pages.start) {
            mm.hosts.push(HostRange::new(pages, id, mode));
            return Ok(());
        }
        if mm.vmas.is_free(pages.clone()) {
            return Err(invalid());
        }
        if mm.vmas.over(pages.clone()).any(|vma| vma.attributes.file) {
            return Err(invalid());
        }
        if self.refuses(Happening::RegisterRefused) {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        let is_another = |vma: &crate::vma::Vma| vma.attributes.userfault.is_some_and(|(other, _)| other != id);
        if mm.vmas.over(pages.clone()).any(is_another) {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy));
        }
        mm.vmas.change(pages, |attributes| attributes.userfault = Some((id, mode)));
        Ok(())
    }

    pub(crate) fn unregister(&self, id: UserfaultId, start: usize, len: usize) -> io::Result<()> {
        self.stand_still(self.config.late_looks);
        self.lock_mappings();
        let pages = pages_of(start, len).ok_or_else(invalid)?;
        let mut kernel = self.kernel_mut();
        let process = kernel.userfaults[id.0].process;
        let mm = &mut kernel.process_mut(process).mm;
        if mm.vmas.is_free(pages.clone()) {
            return Err(invalid());
        }
        mm.vmas.change(pages.clone(), |attributes| attributes.userfault = None);
        drop(kernel);
        self.wake_range(id, &pages);
        Ok(())
    }

    /// As UFFDIO_CONTINUE of anonymous memory answers: `None` while something is counted.
    pub(crate) fn is_registered(&self, id: UserfaultId, pages: Option<Range<usize>>) -> Option<bool> {
        self.point();
        let kernel = self.kernel();
        let Some(pages) = pages else { return Some(false) };
        let vma = kernel.process(kernel.userfaults[id.0].process).mm.vma_at(pages.start);
        let is_registered = || vma.is_some_and(|vma| vma.end >= pages.end && vma.attributes.userfault.is_some());
        (kernel.userfaults[id.0].changing == 0).then(is_registered)
    }
}
