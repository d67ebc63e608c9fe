//! What others may do to a forked child's memory before the child has it registered: read it (process_vm_readv(2), /proc/PID/mem, a
//! tracer, ps the arguments). Where a page is swapped out the kernel has put its page of zeros then, and no touch of it would be
//! told.
//!
//! The program has that page only where the books do not call it swapped out, or lost: what is brought in beside a fork is a copy.
//! Where the kernel does not show it (a process that has changed its user), what was read stays zeros.

use std::io;

use uswap_core::{Core, PAGE_SIZE, PageNumber, PageRange, PageState, tuning};
use uswap_system::Advice;
use uswap_system::faults::Faults;
use uswap_system::looks::{PopulatedRange, Residency};

use crate::engine::Engine;
use crate::host::Host;

/// Whether a page where the page of zeros is was read from outside.
fn is_read(core: &Core, page: PageNumber) -> bool {
    !matches!(core.pages().get(page), None | Some(PageState::Untouched | PageState::Resident { .. }))
}

/// Notes where the page of zeros was found. Returns how many pages the books did not know.
pub(super) fn found_zeros(core: &mut Core, range: PageRange) -> u64 {
    let pages = (range.start.0..range.end().0).map(PageNumber);
    pages
        .map(|page| match is_read(core, page) {
            true => 0,
            false => core.found_by_scan(PageRange { start: page, pages: 1 }),
        })
        .sum()
}

impl<H: Host> Engine<H> {
    /// In a forked child, whose program waits: drops what others' reads have left in `start..end`, which is registered. `found` is room
    /// for what a look finds.
    pub(super) fn undo_reads(&self, start: usize, end: usize, found: &mut [PopulatedRange]) -> io::Result<()> {
        for _ in 0..tuning::UNDO_READS_MAX {
            let read = self.read_from_outside(start, end, found)?;
            if read.is_empty() {
                return Ok(());
            }
            // What is registered reports that it is dropped, and waits for an answer.
            self.memory.uffd.unregister(start, end - start)?;
            for page in read {
                H::advise(page.address(), PAGE_SIZE, Advice::DontNeed)?;
            }
            if self.register_again(start, end) != Some(true) {
                return Err(io::Error::other("it cannot be registered once more"));
            }
        }
        Err(io::Error::other("somebody reads it from outside all the time"))
    }

    fn read_from_outside(&self, start: usize, end: usize, found: &mut [PopulatedRange]) -> io::Result<Vec<PageNumber>> {
        let mut read = Vec::new();
        let mut at = start;
        while at < end {
            let _gate = self.memory.gate.shut();
            let (count, next) = self.memory.pagemap.populated(at, end, found)?;
            let core = self.core();
            for zeros in found[..count].iter().filter(|range| range.zero_page()) {
                let range = PageRange::of_bytes(zeros.start, zeros.end);
                let pages = (range.start.0..range.end().0).map(PageNumber);
                read.extend(pages.filter(|&page| is_read(&core, page)));
            }
            at = next;
        }
        Ok(read)
    }
}
