//! UFFDIO_WRITEPROTECT: a write to a page that is there becomes a message; or no more, and those who wait are woken.

use uswap_system::faults::{Progress, Stop};

use crate::mm::pages_of;
use crate::userfaultfd_ctx::UserfaultId;
use crate::world::World;

impl World {
    pub(crate) fn write_protect(&self, id: UserfaultId, start: usize, len: usize, protect: bool) -> Progress {
        self.point();
        let refused = |stop| Progress { bytes: 0, stop: Some(stop) };
        let Some(pages) = pages_of(start, len) else { return refused(Stop::Invalid) };
        let owner = match self.at_rest(id) {
            Ok(owner) => owner,
            Err(stop) => return refused(stop),
        };
        self.hold_mappings(owner);
        let mut stop = None;
        for page in pages.clone() {
            self.point();
            let mut kernel = self.kernel_mut();
            let mm = &mut kernel.process_mut(owner).mm;
            // It looks for nothing but whether the memory is registered, and goes on behind what is not mapped.
            match mm.vma_at(page) {
                Some(vma) if vma.attributes.userfault.is_none() => {
                    stop = Some(Stop::Missing);
                    break;
                }
                Some(_) => mm.set(page, mm.pte(page).with(|found| found.is_protected = protect)),
                None => {}
            }
        }
        self.let_go_of_mappings(owner);
        if !protect {
            self.wake_range(id, &pages);
        }
        Progress { bytes: if stop.is_none() { len } else { 0 }, stop }
    }
}
