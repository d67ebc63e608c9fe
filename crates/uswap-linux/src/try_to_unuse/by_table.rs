//! swapoff with a swap table between page tables and slots, as ours: nobody is searched for, so it is reading and nothing
//! else.
//!
//! The area is read in slot order, in blocks of 2 MiB, with some blocks ahead of the one that is being taken home. Holes that
//! cost less to read than to skip are read over.

use alloc::collections::VecDeque;

use super::Op;
use super::unuse_books::SlotTable;
use crate::errno::Errno;

/// Slots of one read at most: 2 MiB.
const BLOCK_SLOTS: u64 = 512;
/// Blocks that are being read while one is taken home.
const BLOCKS_AHEAD: usize = 4;
/// A hole of up to so many slots is read over. A request costs what ten pages cost on the NVMe of the 2020 thread
/// (56 us against 5.7 us), and less on others.
const HOLE_MAX: u64 = 8;

/// A swapoff under way.
pub struct TableDrain {
    area: u8,
    /// Slots up to here have been asked for.
    asked: u64,
    /// Blocks that have been asked for and not been taken home: first slot, slots.
    blocks: VecDeque<(u64, u64)>,
    told: VecDeque<Op>,
    /// A block whose bytes were waited for last.
    arrived: Option<(u64, u64)>,
    interrupted: bool,
    result: Option<Result<(), Errno>>,
}

impl TableDrain {
    /// A swapoff of an area that is out of service.
    pub fn new(area: u8) -> Self {
        Self {
            area,
            asked: 1,
            blocks: VecDeque::new(),
            told: VecDeque::new(),
            arrived: None,
            interrupted: false,
            result: None,
        }
    }

    /// How it ended; `None` while it has not.
    pub fn result(&self) -> Option<Result<(), Errno>> {
        self.result
    }

    /// A signal is pending: blocks that have been asked for are taken home, and it ends with [`Errno::EINTR`].
    pub fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// The next operation; `None` at the end.
    pub fn next_op<T: SlotTable>(&mut self, table: &mut T) -> Option<Op> {
        loop {
            if let Some(op) = self.told.pop_front() {
                return Some(op);
            }
            if self.result.is_some() {
                return None;
            }
            if let Some(block) = self.arrived.take() {
                self.take_home(block, table);
                continue;
            }
            while self.blocks.len() <= BLOCKS_AHEAD && !self.interrupted && self.ask(table) {}
            match self.blocks.pop_front() {
                Some(block) => {
                    self.told.push_back(Op::Wait { slot: block.0 + block.1 - 1 });
                    self.arrived = Some(block);
                }
                None if self.interrupted => self.result = Some(Err(Errno::EINTR)),
                // Every page is asked for once: what was written meanwhile did not go to an area that is out of service.
                None => self.result = Some(Ok(())),
            }
        }
    }

    /// Asks for the next block in which a slot is in use; false when there is none.
    fn ask<T: SlotTable>(&mut self, table: &T) -> bool {
        let Some(first) = table.next_used(self.asked) else {
            self.told.push_back(Op::ScanMap { slots: table.slots().saturating_sub(self.asked) });
            self.asked = table.slots();
            return false;
        };
        let end = ((first / BLOCK_SLOTS + 1) * BLOCK_SLOTS).min(table.slots());
        self.told.push_back(Op::ScanMap { slots: end - self.asked });
        let mut run = (first, first + 1, 1);
        let mut from = first + 1;
        while let Some(slot) = table.next_used(from).filter(|&slot| slot < end) {
            let (start, run_end, live) = run;
            if slot - run_end <= HOLE_MAX {
                run = (start, slot + 1, live + 1);
            } else {
                self.tell_run(run);
                run = (slot, slot + 1, 1);
            }
            from = slot + 1;
        }
        self.tell_run(run);
        self.told.push_back(Op::Submit);
        self.blocks.push_back((first, run.1 - first));
        self.asked = end;
        true
    }

    fn tell_run(&mut self, (first, end, live): (u64, u64, u32)) {
        self.told.push_back(Op::Read { area: self.area, first, slots: (end - first) as u32, live });
    }

    /// The bytes of a block are there: what is still in use of it goes to memory, and its slots are free.
    fn take_home<T: SlotTable>(&mut self, (first, slots): (u64, u64), table: &mut T) {
        let mut pages = 0;
        let mut from = first;
        while let Some(slot) = table.next_used(from).filter(|&slot| slot < first + slots) {
            table.relocate(slot);
            pages += 1;
            from = slot + 1;
        }
        if pages > 0 {
            self.told.push_back(Op::Relocate { pages });
            self.told.push_back(Op::Free { slots: pages });
        }
    }
}
