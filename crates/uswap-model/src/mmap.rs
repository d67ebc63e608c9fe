//! mmap(2) of anonymous memory, and what grows in its place.

use std::ops::Range;

use crate::munmap;
use crate::userfaultfd_ctx::Report;
use crate::vma::Attributes;
use crate::world::World;

impl World {
    /// Maps `range`; what is there goes first (MAP_FIXED).
    pub(crate) fn map(&self, range: Range<usize>, attributes: Attributes) {
        self.lock_mappings();
        let traced = range.clone();
        let mut kernel = self.kernel_mut();
        let process = self.this_process();
        let reports: Vec<Report> = munmap::unmap(&mut kernel, process, range.clone()).into_iter().collect();
        kernel.process_mut(process).mm.map(range, attributes);
        World::count(&mut kernel, &reports);
        drop(kernel);
        self.trace(&traced, format_args!("mapped"));
        self.report(reports);
    }
}
