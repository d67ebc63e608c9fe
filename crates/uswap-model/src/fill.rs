//! What fills missing pages of registered memory: UFFDIO_COPY, UFFDIO_ZEROPAGE, UFFDIO_POISON.
//!
//! Whether anything is counted is looked at once, at the start; from there on the lock of the mappings is held for reading, so that
//! nothing is unmapped or moved, but other threads touch pages and fill them.
//!
//! Where nothing is there all three may say that something is, or that it is to be tried again: the page table has just gone
//! ([`tables_go`](crate::WorldConfig::tables_go)). Those of frames never go: nobody drops 2 MiB of them.

use std::ops::Range;

use uswap_system::PAGE_SIZE;
use uswap_system::faults::{Progress, Stop, Wake};

use crate::coverage::Happening;
use crate::host_memory;
use crate::mm::{Mm, is_host, pages_of};
use crate::page_content::Content;
use crate::process::ProcessId;
use crate::pte::{Page, Pte};
use crate::userfaultfd_ctx::UserfaultId;
use crate::violation::Checker;
use crate::world::World;

/// Parts of 16 pages of one call between which others may go on.
const BETWEEN_PAGES: u64 = 2;

impl World {
    /// Allocates pages with a copy of what is at `source`.
    pub(crate) fn copy(&self, id: UserfaultId, target: usize, source: usize, len: usize, wake: Wake) -> Progress {
        self.fill(id, target, len, wake, |mm, page, index| {
            // A marker is overwritten.
            if mm.pte(page).page().is_some() {
                return Err(Stop::AlreadyThere);
            }
            if self.happens(self.config.no_memory, 1000) {
                self.note(Happening::NoMemory, 1);
                return Err(Stop::NoMemory);
            }
            let content = host_memory::read(source + index * PAGE_SIZE);
            self.refuse_garbage(content, page);
            self.note(Happening::Copied, 1);
            self.trace(&(page..page + 1), format_args!("copy of {content:?}"));
            mm.allocate(page, Pte::Present(Page::new(content)));
            if is_host(page) {
                host_memory::write(page, content);
            }
            Ok(())
        })
    }

    /// Maps the zero page.
    pub(crate) fn zeropage(&self, id: UserfaultId, start: usize, len: usize, wake: Wake) -> Progress {
        self.fill(id, start, len, wake, |mm, page, _| {
            if mm.pte(page) != Pte::Missing {
                return Err(Stop::AlreadyThere);
            }
            if self.happens(self.config.no_memory, 1000) {
                self.note(Happening::NoMemory, 1);
                return Err(Stop::NoMemory);
            }
            self.note(Happening::Zeroed, 1);
            self.trace(&(page..page + 1), format_args!("zero page"));
            mm.set(page, Pte::Present(Page::zero()));
            if is_host(page) {
                host_memory::clear(page);
            }
            Ok(())
        })
    }

    /// Makes every later access a SIGBUS.
    pub(crate) fn poison(&self, id: UserfaultId, start: usize, len: usize) -> Progress {
        self.fill(id, start, len, Wake::Wake, |mm, page, _| {
            if mm.pte(page) != Pte::Missing {
                return Err(Stop::AlreadyThere);
            }
            self.note(Happening::Poisoned, 1);
            self.trace(&(page..page + 1), format_args!("poison"));
            mm.set(page, Pte::Poison);
            self.refuse_poison(self.this_process(), page);
            Ok(())
        })
    }

    /// A page is given up for lost only where a store has failed, or, in a child, where another thread of its parent was giving it up
    /// at the moment of the fork: the user is told which page.
    fn refuse_poison(&self, process: ProcessId, page: usize) {
        let (address, pid) = (page * PAGE_SIZE, process.pid());
        let why = format!("uswap: page {address:#x} of process {pid} may be lost:");
        if !self.config.may_lose_pages && !self.lines().iter().any(|line| line.starts_with(&why)) {
            self.violate(Checker::LostForAReason, format!("page {page:#x} of {process:?} is poisoned"));
        }
    }

    /// No page is ever filled with bytes that no program has written.
    pub(crate) fn refuse_garbage(&self, content: Content, page: usize) {
        if content.is_garbage() {
            self.violate(Checker::RightContent, format!("page {page:#x} is filled with what nobody wrote"));
        }
    }

    fn fill(
        &self,
        id: UserfaultId,
        start: usize,
        len: usize,
        wake: Wake,
        mut one: impl FnMut(&mut Mm, usize, usize) -> Result<(), Stop>,
    ) -> Progress {
        self.point();
        let refused = |stop| Progress { bytes: 0, stop: Some(stop) };
        let Some(pages) = pages_of(start, len) else { return refused(Stop::Invalid) };
        let process = match self.may_fill(id, &pages) {
            Ok(process) => process,
            Err(stop) => return refused(stop),
        };
        self.hold_mappings(process);
        let (done, stop) = self.each_page(pages.len(), |index| {
            let (mut kernel, page) = (self.kernel_mut(), pages.start + index);
            let mm = &mut kernel.process_mut(process).mm;
            if mm.pte(page) == Pte::Missing && !is_host(page) {
                self.has_a_table()?;
            }
            one(mm, page, index)
        });
        self.let_go_of_mappings(process);
        if wake == Wake::Wake {
            self.wake_range(id, &(pages.start..pages.start + done));
        }
        Progress { bytes: done * PAGE_SIZE, stop }
    }

    /// One page after the other, between which others may go on; how many were done, and why not all.
    pub(crate) fn each_page(
        &self,
        count: usize,
        mut one: impl FnMut(usize) -> Result<(), Stop>,
    ) -> (usize, Option<Stop>) {
        for index in 0..count {
            if index > 0 && self.happens(BETWEEN_PAGES, 16) {
                self.point();
            }
            if let Err(stop) = one(index) {
                return (index, Some(stop));
            }
        }
        (count, None)
    }

    fn may_fill(&self, id: UserfaultId, pages: &Range<usize>) -> Result<ProcessId, Stop> {
        let owner = self.at_rest(id)?;
        let kernel = self.kernel();
        let process = kernel.process(owner);
        let vma = process.mm.vma_at(pages.start).ok_or(Stop::Missing)?;
        // With whichever: the kernel does not ask.
        if vma.attributes.userfault.is_none() || pages.end > vma.end {
            return Err(Stop::Missing);
        }
        Ok(process.id)
    }
}
