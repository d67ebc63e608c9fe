//! mprotect(2), mlock(2) and munlock(2): nothing of them is reported, but mappings are split.

use std::ops::Range;

use crate::touch::{Access, Signal};
use crate::world::World;

impl World {
    pub(crate) fn protect(&self, range: Range<usize>, read: bool, write: bool, exec: bool) {
        self.lock_mappings();
        let mut kernel = self.kernel_mut();
        kernel.process_mut(self.this_process()).mm.vmas.change(range, |attributes| {
            (attributes.read, attributes.write, attributes.exec) = (read, write, exec);
        });
    }

    /// Locks memory, and then brings all of it in.
    pub(crate) fn lock_memory(&self, range: Range<usize>) -> Result<(), Signal> {
        self.lock_mappings();
        let process = self.this_process();
        self.kernel_mut().process_mut(process).mm.vmas.change(range.clone(), |attributes| attributes.locked = true);
        for page in range {
            let writable = self.kernel().process(process).mm.vmas.at(page).is_some_and(|vma| vma.attributes.write);
            self.touch(page, if writable { Access::WriteNothing } else { Access::Read })?;
        }
        Ok(())
    }

    pub(crate) fn unlock_memory(&self, range: Range<usize>) {
        self.lock_mappings();
        let mut kernel = self.kernel_mut();
        kernel.process_mut(self.this_process()).mm.vmas.change(range, |attributes| attributes.locked = false);
    }
}
