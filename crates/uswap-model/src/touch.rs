//! An access to a page, as the processor and the kernel's fault handling do it.

use crate::coverage::Happening;
use crate::page_content::Content;
use crate::pte::{Page, Pte};
use crate::userfaultfd_ctx::{Mode, UserfaultId};
use crate::violation::Checker;
use crate::world::{Kernel, World};

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads the page.
    Read,
    /// Writes it, whole.
    Write(Content),
    /// A write that changes no byte.
    WriteNothing,
}

impl Access {
    fn writes(self) -> bool {
        self != Access::Read
    }
}

/// The signal that an access gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// Nothing is mapped there, or not for this.
    Segv,
    /// The page is poisoned.
    Bus,
}

/// What the kernel makes of a try.
enum Tried {
    Done(Content),
    Again,
    Waits(UserfaultId),
    /// The same, for a page that is there, and protected.
    WaitsToWrite(UserfaultId),
}

impl World {
    /// The running thread touches a page of its process; what it has read, or written over. The oracle is told.
    pub(crate) fn touch(&self, page: usize, access: Access) -> Result<Content, Signal> {
        let mut has_waited = false;
        loop {
            self.point();
            let tried = self.try_access(page, access, has_waited)?;
            has_waited |= matches!(tried, Tried::Waits(_));
            if !matches!(tried, Tried::Done(_)) {
                self.kernel_mut().process_mut(self.this_process()).mm.faults += 1;
            }
            match tried {
                Tried::Done(content) => return Ok(content),
                Tried::Again => {}
                Tried::Waits(userfault) => self.wait_for_page(userfault, page, access.writes(), false),
                Tried::WaitsToWrite(userfault) => self.wait_for_page(userfault, page, true, true),
            }
        }
    }

    fn try_access(&self, page: usize, access: Access, has_waited: bool) -> Result<Tried, Signal> {
        let mut kernel = self.kernel_mut();
        let process = kernel.process_mut(self.this_process());
        let attributes = process.mm.vmas.at(page).ok_or(Signal::Segv)?.attributes;
        if !attributes.read || access.writes() && !attributes.write {
            return Err(Signal::Segv);
        }
        match process.mm.pte(page) {
            Pte::Poison => Err(Signal::Bus),
            Pte::Present(Page { is_protected: true, .. }) if access.writes() => match attributes.userfault {
                Some((userfault, Mode::Missing)) => Ok(Tried::WaitsToWrite(userfault)),
                _ => {
                    process.mm.set(page, process.mm.pte(page).with(|found| found.is_protected = false));
                    Ok(Tried::Again)
                }
            },
            Pte::Present(found) => {
                process.mm.faults += u64::from(access.writes() && (found.is_zero_page || !found.is_exclusive));
                let used = Page { is_accessed: true, ..found };
                // The last who has a page writes to it where it is.
                let is_copied = process.mm.frames.is_had_elsewhere(&found);
                assert!(!(is_copied && found.is_exclusive), "{page:#x} is exclusive, and another has it");
                self.note(Happening::CopiedOnWrite, usize::from(access.writes() && is_copied));
                let frame = found.frame.filter(|_| !is_copied);
                let is_pinned = found.is_pinned;
                let written = |content| Page { is_accessed: true, is_pinned, frame, ..Page::new(content) };
                let after = match access {
                    Access::Read => used,
                    Access::Write(content) => written(content),
                    Access::WriteNothing => written(found.content),
                };
                match access.writes() {
                    true => process.mm.allocate(page, Pte::Present(after)),
                    false => process.mm.set(page, Pte::Present(after)),
                }
                self.note(Happening::Access, 1);
                let came_along = !found.is_accessed && !has_waited && found.content != Content::ZERO;
                self.note(Happening::CameAlong, usize::from(came_along));
                self.compare(&mut kernel, page, found, access);
                Ok(Tried::Done(found.content))
            }
            Pte::Swapped(found) => {
                // One that was still being written out counts as shared until it is written to.
                let is_exclusive = found.is_exclusive && !self.happens(1, 8);
                process.mm.set(page, Pte::Present(Page { is_exclusive, ..found }));
                Ok(Tried::Again)
            }
            Pte::Missing => match attributes.userfault {
                Some((userfault, Mode::Missing)) => Ok(Tried::Waits(userfault)),
                _ => {
                    match access.writes() {
                        true => process.mm.allocate(page, Pte::Present(Page::new(Content::ZERO))),
                        false => process.mm.set(page, Pte::Present(Page::zero())),
                    }
                    Ok(Tried::Again)
                }
            },
        }
    }

    /// What is found is what the oracle says.
    fn compare(&self, kernel: &mut Kernel, page: usize, found: Page, access: Access) {
        let process = kernel.process_mut(self.this_process());
        let misread = self.config.misreads > 0 && self.happens(1, self.config.misreads);
        let content = if misread { self.new_content() } else { found.content };
        if !process.oracle.read(page, content, found.is_lazy) {
            let expected = process.oracle.expected(page);
            let detail =
                format!("page {page:#x} of {:?} reads as {:?} instead of one of {expected:?}", process.id, content);
            self.violate(Checker::RightContent, detail);
        }
        self.trace(&(page..page + 1), format_args!("{access:?} finds {found:?}"));
        if let Access::Write(content) = access {
            process.oracle.wrote(page, content);
        }
    }
}
