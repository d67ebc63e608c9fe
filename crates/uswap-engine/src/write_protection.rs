//! Write protection: what a fork has left in common is copied only where there is room for it.
//!
//! Copy-on-write is the kernel's, and as fast as memory: nobody would see it before the budget is passed. So where not all can be copied
//! that a process has in common with others, its memory is write-protected by userfaultfd. The first write to a block then is a
//! fault, which waits for room as any other that takes memory, and lets the block be written to. That changes nothing in the books: they
//! do not know of it, and protection that is left over costs one fault more.

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::{BLOCK_PAGES, PAGE_SIZE, PageNumber, PageRange};
use uswap_system::faults::{Faults, Stop};

use crate::engine::Engine;
use crate::group::Counter;
use crate::host::Host;
use crate::memory::BLOCK_BYTES;
use crate::pending_fault::Served;

/// Bytes that are protected with one call, which keeps others from changing the mappings meanwhile: some 0.7 ms if all of it is there.
const PROTECTED_AT_ONCE: usize = 32 << 20;
/// Calls for one range of adopted memory: what is as large as that needs more is mostly empty.
const CALLS_MAX: usize = 1024;

impl<H: Host> Engine<H> {
    /// Protects all of adopted memory that is there, but for what the kernel writes to when a thread ends: for a task that is
    /// ending it takes no userfault. Whether all of it is; not while the program is changing its mappings.
    pub(crate) fn protect_adopted(&self) -> bool {
        let kept = H::notices().control_blocks.all();
        let ranges: Vec<PageRange> = self.core().pages().adopted_ranges().collect();
        ranges.into_iter().all(|range| {
            let mut start = range.start;
            let within = kept.iter().filter(|page| (range.start..range.end()).contains(page));
            for end in within.copied().chain([range.end()]) {
                if !self.protect(PageRange { start, pages: end.0 - start.0 }) {
                    return false;
                }
                start = end.plus(1);
            }
            true
        })
    }

    fn protect(&self, range: PageRange) -> bool {
        let (mut at, end) = (range.start.address(), range.end().address());
        let step = PROTECTED_AT_ONCE.max(((end - at) / CALLS_MAX).next_multiple_of(PAGE_SIZE));
        while at < end {
            let len = (end - at).min(step);
            match self.memory.uffd.protect(at, len, true).stop {
                Some(Stop::TryLater) => return false,
                // Unmapped meanwhile, or not registered: nothing that is in common is there.
                Some(_) | None => at += len,
            }
        }
        true
    }

    /// Nobody who writes to `range` waits for leave.
    pub(crate) fn let_write_to(&self, range: PageRange) {
        let _ = self.memory.uffd.protect(range.start.address(), range.pages as usize * PAGE_SIZE, false);
    }

    /// A thread waits to write to `page`, which is protected: it may, and to the block.
    pub(crate) fn let_write(&self, page: PageNumber) -> Served {
        if is_on(Sabotage::WriterNotWoken) {
            return Served::Done;
        }
        let first = page.block_start();
        let mut progress = self.memory.uffd.protect(first.address(), BLOCK_BYTES, false);
        if !progress.is_complete() && progress.stop != Some(Stop::TryLater) {
            // Other memory begins within the block.
            progress = self.memory.uffd.protect(page.address(), PAGE_SIZE, false);
        }
        match progress.stop {
            Some(Stop::TryLater) => return Served::AfterEvents,
            Some(_) => self.memory.wake(page, 1),
            None => {
                self.count(Counter::CopyFault, 1);
                self.core().may_be_copied(page);
                self.pressure.add(BLOCK_PAGES as u64);
            }
        }
        Served::Done
    }
}
