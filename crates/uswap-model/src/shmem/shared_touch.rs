//! An access to a page of shared memory.

use super::shared_mm::{SharedPte, SharedVma};
use super::shared_uffd::entry_of;
use crate::coverage::Happening;
use crate::page_content::Content;
use crate::touch::{Access, Signal};
use crate::userfaultfd_ctx::UserfaultId;
use crate::violation::Checker;
use crate::world::{Kernel, World};

/// What the kernel makes of a try.
enum Tried {
    Done(Content),
    Again,
    /// The page is not in memory; or it is there and protected.
    Waits {
        userfault: UserfaultId,
        protected: bool,
    },
}

impl World {
    /// The running thread touches a page; what it has read, or written over. It must be what was written last, by whomever.
    pub fn touch_shared(&self, page: usize, access: Access) -> Result<Content, Signal> {
        loop {
            self.point();
            match self.try_shared(page, access)? {
                Tried::Done(content) => return Ok(content),
                Tried::Again => {}
                Tried::Waits { userfault, protected } => {
                    // It has looked, and is not queued yet.
                    self.point();
                    self.stand_still(self.config.late_looks);
                    if self.must_wait(page, protected) {
                        self.wait_for_page(userfault, page, access != Access::Read, protected);
                    }
                }
            }
        }
    }

    /// Its own entry is all that is looked at once more.
    fn must_wait(&self, page: usize, for_protection: bool) -> bool {
        let kernel = self.kernel();
        let pte = kernel.shmem.mms.get(&self.this_process()).and_then(|mm| mm.ptes.get(&page));
        match pte {
            Some(SharedPte::Present { protected }) => *protected && for_protection,
            Some(SharedPte::Poison) => false,
            None | Some(SharedPte::Marker) => true,
        }
    }

    fn try_shared(&self, page: usize, access: Access) -> Result<Tried, Signal> {
        let mut kernel = self.kernel_mut();
        let process = self.this_process();
        let mm = kernel.shmem.mms.get(&process).ok_or(Signal::Segv)?;
        let vma = mm.vma_at(page).ok_or(Signal::Segv)?;
        let pte = mm.ptes.get(&page).copied();
        match pte {
            Some(SharedPte::Poison) => Err(Signal::Bus),
            Some(SharedPte::Present { protected: true }) if access != Access::Read => match vma.userfault {
                Some(userfault) => Ok(Tried::Waits { userfault, protected: true }),
                None => {
                    entry_of(&mut kernel, process, page, SharedPte::Present { protected: false });
                    Ok(Tried::Again)
                }
            },
            Some(SharedPte::Present { .. }) => Ok(Tried::Done(self.do_access(&mut kernel, vma, page, access))),
            None | Some(SharedPte::Marker) => {
                let place = &mut kernel.shmem.caches[vma.object.0].pages[vma.to_object(page)];
                match (*place, vma.userfault) {
                    (None, Some(userfault)) => return Ok(Tried::Waits { userfault, protected: false }),
                    (None, None) => *place = Some(Content::ZERO),
                    (Some(_), _) => self.note(Happening::SharedFound, 1),
                }
                entry_of(&mut kernel, process, page, SharedPte::Present { protected: pte.is_some() });
                let place = vma.to_object(page);
                self.trace(&(place..place + 1), format_args!("maps ({pte:?} before) object {}, page", vma.object.0));
                Ok(Tried::Again)
            }
        }
    }

    fn do_access(&self, kernel: &mut Kernel, vma: SharedVma, page: usize, access: Access) -> Content {
        self.note(Happening::Access, 1);
        let (object, page) = (vma.object.0, vma.to_object(page));
        let cache = &mut kernel.shmem.caches[object];
        let Some(found) = cache.pages[page] else {
            self.violate(
                Checker::RightUse,
                format!("page {page:#x} of object {object} is mapped in {:?}, and not in memory", self.this_process()),
            );
            return Content::UNKNOWN;
        };
        if found != cache.truth[page] {
            let truth = cache.truth[page];
            let process = self.this_process();
            self.violate(
                Checker::RightContent,
                format!("page {page:#x} of object {object} reads as {found:?} instead of {truth:?} in {process:?}"),
            );
        }
        if let Access::Write(content) = access {
            (cache.pages[page], cache.truth[page]) = (Some(content), content);
        }
        self.trace(&(page..page + 1), format_args!("{access:?} of object {object} finds {found:?} at page"));
        found
    }
}
