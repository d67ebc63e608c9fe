//! Trash: where free frames are given back to the kernel.
//!
//! Dropping them in the frame area would be an event, and wait for who reads it. So they are moved to a range of a userfaultfd
//! without events, and dropped there.

use std::io;
use std::time::Instant;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::{BLOCK_PAGES, FrameBlock, PAGE_SIZE, PageNumber, tuning};
use uswap_system::faults::{Faults, Holes, Stop, Wake};
use uswap_system::looks::{PopulatedRange, Residency};

use crate::engine::Engine;
use crate::host::Host;
use crate::memory::{BLOCK_BYTES, TRASH_BLOCKS, Trash};

impl<H: Host> Engine<H> {
    /// Gives free frames beyond `reserve` back to the kernel; returns how many pages.
    pub(crate) fn trash_free_frames(&self, reserve: u64) -> u64 {
        let mut blocks = [None::<FrameBlock>; TRASH_BLOCKS];
        let mut trash = self.memory.trash();
        let is_fresh = |since: Instant| H::since(since) < tuning::TRASH_REST;
        let mut tries = if trash.refused.is_some_and(is_fresh) { 1 } else { tuning::TRASH_TRIES };
        let mut pages = 0;
        for (index, place) in blocks.iter_mut().enumerate() {
            let (block, mask) = {
                let mut core = self.core();
                if u64::from(core.swap_cache().free_frames()) <= reserve {
                    break;
                }
                let Some(taken) = core.take_trash() else { break };
                taken
            };
            let target = trash.memory.start() + index * BLOCK_BYTES;
            if self.move_to_trash(&trash, target, block, tries) {
                *place = Some(block);
                pages += u64::from(mask.count_ones());
                continue;
            }
            let left = self.move_singly_to_trash(&trash, target, block, mask);
            pages += u64::from((mask & !left).count_ones());
            self.core().trash_refused(block, left);
            if left != 0 {
                (tries, trash.refused) = (1, Some(H::now()));
            }
        }
        if pages > 0 {
            self.empty(&trash);
            let mut core = self.core();
            for block in blocks.into_iter().flatten() {
                core.trashed(block);
            }
        }
        pages
    }

    /// Whether all of a block has left.
    fn move_to_trash(&self, trash: &Trash<H>, target: usize, block: FrameBlock, tries: u32) -> bool {
        let source = self.memory.frame_address(block.frame(0));
        let mut unlocked = false;
        for _ in 0..tries {
            let progress = trash.uffd.move_pages(target, source, BLOCK_BYTES, Holes::Allow, Wake::DontWake);
            match progress.stop {
                None => return true,
                Some(Stop::Busy | Stop::TryLater | Stop::NoMemory | Stop::AlreadyThere) => {
                    self.empty(trash);
                    if progress.stop == Some(Stop::Busy) {
                        self.make_frame_exclusive(source + progress.bytes);
                    }
                    crate::pause::pause::<H>();
                }
                // The program has just locked all that is mapped: one of the two ranges is locked, the other is not.
                Some(Stop::Invalid) if !unlocked => {
                    H::unlock_all();
                    unlocked = true;
                }
                Some(stop) => self.fatal(format_args!("uswap: a free frame cannot be given back: {stop:?}")),
            }
        }
        false
    }

    /// A frame that the kernel has brought back while it was still writing it out counts as shared until it is written to.
    fn make_frame_exclusive(&self, address: usize) {
        if self.memory.pagemap.is_exact() && self.memory.is_populated(PageNumber::containing(address)) {
            // A free frame of a block that this thread has taken: nobody moves it.
            H::make_exclusive(address);
        }
    }

    /// Which frames of `mask` stay, when each is tried once.
    fn move_singly_to_trash(&self, trash: &Trash<H>, target: usize, block: FrameBlock, mask: u16) -> u16 {
        let mut left = mask;
        for index in (0..BLOCK_PAGES).filter(|index| mask >> index & 1 == 1) {
            let (source, target) = (self.memory.frame_address(block.frame(index)), target + index * PAGE_SIZE);
            let progress = trash.uffd.move_pages(target, source, PAGE_SIZE, Holes::Refuse, Wake::DontWake);
            if matches!(progress.stop, None | Some(Stop::Missing)) {
                left &= !(1 << index);
            }
        }
        self.empty(trash);
        left
    }

    /// Drops what is in `trash`, and counts what goes with that of what the process has resident: not the zero page, nor what the kernel
    /// has swapped out. Nobody asks for it where no fork has left anything in common, and where nobody can tell nothing is counted.
    fn empty(&self, trash: &Trash<H>) {
        let is_counted = self.forking.post.fork.has_forked() || self.member.slot().parent().is_some();
        let pages = if is_counted { self.resident_in(trash).unwrap_or(0) } else { 0 };
        self.memory.uffd.gives_back(pages, || trash.empty());
    }

    fn resident_in(&self, trash: &Trash<H>) -> io::Result<u64> {
        if !self.memory.pagemap.is_exact() {
            return Ok(0);
        }
        let (mut at, end) = (trash.memory.start(), trash.memory.start() + TRASH_BLOCKS * BLOCK_BYTES);
        let (mut pages, mut ranges) = (0, [PopulatedRange::default(); 32]);
        while at < end {
            let (count, next) = self.memory.pagemap.populated(at, end, &mut ranges)?;
            let is_resident = |range: &&PopulatedRange| {
                !range.kernel_swapped() && (!range.zero_page() || is_on(Sabotage::ZerosGivenBack))
            };
            let resident = ranges[..count].iter().filter(is_resident);
            pages += resident.map(|range| (range.end - range.start) / PAGE_SIZE).sum::<usize>();
            at = next;
        }
        Ok(pages as u64)
    }
}
