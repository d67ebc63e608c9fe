//! The rules of readahead, looked at with each fault: windows, what is read, and what counts as a hit.

use uswap_linux::do_swap_page::Read;
use uswap_linux::swapin_readahead::{HitLedger, Violation, Window, check_reads, check_window};

/// page_cluster, as Linux has it.
pub(super) const PAGE_CLUSTER: u32 = 3;

pub(super) struct ReadaheadRules {
    slots: u64,
    ledger: HitLedger,
    /// The window before: by slot for all, by address for each process.
    last_by_slot: u32,
    last_by_address: Vec<u32>,
}

impl ReadaheadRules {
    pub fn new(slots: u64, processes: u32) -> Self {
        let last_by_address = vec![0; processes as usize];
        Self { slots, ledger: HitLedger::default(), last_by_slot: 0, last_by_address }
    }

    /// A window of so many slots or pages was worked out for a miss of `process`, and these slots are read.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn missed(
        &mut self,
        process: usize,
        window: &Window,
        size: u32,
        reads: &[Read],
        in_use: impl Fn(u64) -> bool,
    ) -> Result<(), Violation> {
        let (last, block) = match window {
            Window::Slots(block) => (&mut self.last_by_slot, block.slots.clone()),
            Window::Pages(_) => (&mut self.last_by_address[process], 1..self.slots),
        };
        check_window(size, 1 << PAGE_CLUSTER, *last)?;
        *last = size;
        check_reads(&block, reads.iter().map(|read| read.entry.slot), in_use)?;
        reads.iter().filter(|read| read.ahead).for_each(|read| self.ledger.brought(read.entry.slot));
        Ok(())
    }

    /// So many hits were counted on the page of a slot.
    ///
    /// # Errors
    /// It has not so many.
    pub fn found(&mut self, slot: u64, hits: u64) -> Result<(), Violation> {
        (0..hits).try_for_each(|_| self.ledger.hit(slot))
    }

    /// The page of a slot left the swap cache and was not touched.
    pub fn dropped(&mut self, slot: u64) {
        self.ledger.dropped(slot);
    }
}
