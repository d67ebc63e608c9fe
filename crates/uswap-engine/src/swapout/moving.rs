//! A block leaves the program: its pages are moved into frames, as many as possible with one call.

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::reclaim::IsolationOutcome;
use uswap_core::{BLOCK_PAGES, FrameBlock, Isolation, PAGE_SIZE, PageNumber};
use uswap_sys::private_memory;
use uswap_system::faults::{Holes, Stop, Wake};
use uswap_system::looks::Residency;

use crate::engine::Engine;
use crate::host::Host;
use crate::memory::BLOCK_BYTES;

/// A block that is being moved out. Masks have bit `i` for page `i`.
struct Moving {
    first: PageNumber,
    frames: FrameBlock,
    /// Pages that are to leave, and those without content that may be run across.
    mask: u16,
    gaps: u16,
    /// Pages that a call ran over, moved or found missing.
    passed: u16,
    /// Pages that were moved by a call of their own.
    moved: u16,
    /// How many could not be moved: shared after a fork, or pinned.
    busy: u64,
    /// Where nobody can tell what has become of the pages of a run, they go one by one.
    one_by_one: bool,
    /// Each page goes by a call of its own.
    single: bool,
    /// Whether the frames were made executable, if that was tried.
    executable: Option<bool>,
}

impl Moving {
    /// Pages from `index` on that are to leave.
    fn rest(&self, index: usize) -> u64 {
        (self.mask >> index).count_ones().into()
    }

    /// The next page that is to leave.
    fn next(&self, index: usize) -> Option<usize> {
        (index..BLOCK_PAGES).find(|index| self.mask >> index & 1 == 1)
    }

    /// Pages from `index` on that one call can move: gaps between resident pages are run across.
    fn run(&self, index: usize) -> usize {
        let across = ((self.mask | self.gaps) >> index).trailing_ones();
        let ahead = self.mask >> index & ((1u32 << across) - 1) as u16;
        if self.single { 1 } else { BLOCK_PAGES - ahead.leading_zeros() as usize }
    }
}

/// Pages of a block that the kernel writes to when a thread ends.
pub(super) fn must_stay<H: Host>(first: PageNumber) -> u16 {
    if is_on(Sabotage::ControlBlockMoves) { 0 } else { H::notices().control_blocks.kept(first, BLOCK_PAGES) }
}

impl<H: Host> Engine<H> {
    /// Moves the pages of an isolation, as many as possible with one call, because each call makes every other CPU that
    /// runs the process drop its TLB. Not those of `kept`. Returns how many were busy, too.
    pub(super) fn move_block(&self, isolation: Isolation, kept: u16) -> (IsolationOutcome, u64) {
        let Isolation { first, mask, gaps, frames, .. } = isolation;
        let address = first.address();
        if private_memory::overlaps(address, address + BLOCK_BYTES) {
            return (IsolationOutcome { refused: mask, ..IsolationOutcome::default() }, 0);
        }
        let kept = kept | must_stay::<H>(first);
        let one_by_one = !self.memory.pagemap.shows_absence();
        let mut moving = Moving {
            first,
            frames,
            mask: mask & !kept,
            gaps: gaps & !kept,
            passed: 0,
            moved: 0,
            busy: 0,
            one_by_one,
            single: one_by_one,
            executable: None,
        };
        let mut next = moving.next(0);
        while let Some(index) = next {
            next = self.move_run_out(&mut moving, index).and_then(|index| moving.next(index));
        }
        if moving.executable == Some(true) && !self.let_frames_execute(frames, false) {
            self.fatal(format_args!("uswap: frames cannot be made as they were"));
        }
        (self.outcome(&moving, mask), moving.busy)
    }

    /// Moves the run that begins at `index`; where to go on, if it makes sense to.
    fn move_run_out(&self, moving: &mut Moving, index: usize) -> Option<usize> {
        let run = moving.run(index);
        let target = self.memory.frame_address(moving.frames.frame(index));
        let source = moving.first.plus(index as u64).address();
        let holes = if moving.one_by_one { Holes::Refuse } else { Holes::Allow };
        let progress = self.memory.uffd.move_pages(target, source, run * PAGE_SIZE, holes, Wake::DontWake);
        let done = progress.bytes / PAGE_SIZE;
        let counted = (((1u32 << done) - 1) as u16) << index;
        match holes {
            Holes::Allow => moving.passed |= counted,
            Holes::Refuse => moving.moved |= counted,
        }
        let index = index + done;
        let Some(stop) = progress.stop else { return Some(index) };
        if moving.one_by_one && self.memory.has_moved_uncounted(target, source, stop) {
            moving.moved |= 1 << index;
            return Some(index + 1);
        }
        match stop {
            // Mostly others of a fork have all of the block, and each page would be asked about in vain.
            Stop::Busy if self.others_have_the_rest(moving, index) => {
                moving.busy += moving.rest(index);
                return None;
            }
            Stop::Busy => moving.busy += u64::from(moving.mask >> index & 1),
            // The run crosses from one mapping to another, or is not as the frames' mapping is.
            Stop::Invalid if run > 1 && !moving.single => {
                moving.single = true;
                return Some(index);
            }
            // Pages move only between mappings of the same protection. That of the program's may be executable.
            Stop::Invalid if moving.executable.is_none() => {
                moving.executable = Some(self.let_frames_execute(moving.frames, true));
                moving.single = moving.one_by_one || moving.executable != Some(true);
                return Some(index);
            }
            // AlreadyThere: moved by the call before and not counted; looked at below. Fault: a marker without content,
            // see `presence`.
            Stop::Invalid | Stop::Missing | Stop::AlreadyThere | Stop::Fault => {}
            Stop::TryLater | Stop::NoMemory | Stop::ProcessGone => return None,
            Stop::Other(_) => self.fatal(format_args!(
                "uswap: page {:#x} cannot be moved out: {stop:?}",
                moving.first.plus(index as u64).address()
            )),
        }
        Some(index + 1)
    }

    /// Whether no page of those from `index` on could be moved, for other processes have them as well. Asked for the first alone: where it
    /// is not so, most can.
    fn others_have_the_rest(&self, moving: &Moving, index: usize) -> bool {
        let (start, end) = (moving.first.plus(index as u64).address(), moving.first.address() + BLOCK_BYTES);
        moving.busy == 0 && self.memory.pagemap.in_common(start, end).is_ok_and(|pages| pages == moving.rest(index))
    }

    /// What became of the pages of `mask`. What is in the frames tells what was moved.
    fn outcome(&self, moving: &Moving, mask: u16) -> IsolationOutcome {
        let there = if moving.one_by_one { moving.moved } else { self.memory.populated(moving.frames) };
        if there & !(moving.mask | moving.gaps) != 0 {
            let address = moving.first.address();
            self.fatal(format_args!("uswap: pages beside those at {address:#x} were moved out"));
        }
        // Whatever the kernel counted as passed, a page that is where it was has stayed there.
        let left = moving.passed & moving.mask & !there;
        let gone =
            |index: &usize| left >> index & 1 == 1 && !self.memory.is_populated(moving.first.plus(*index as u64));
        let missing = (0..BLOCK_PAGES).filter(gone).fold(0, |gone, index| gone | 1 << index);
        let there = if is_on(Sabotage::RefusedIsMoved) { mask } else { there };
        IsolationOutcome { moved: there, missing, refused: mask & !there & !missing, kernel_swapped: 0 }
    }

    /// Whether the frames of a block now are executable, or now are not. What is in them leaves by a copy, or to where
    /// only the others' protection is.
    fn let_frames_execute(&self, block: FrameBlock, may_execute: bool) -> bool {
        let start = self.memory.frame_address(block.frame(0));
        H::let_execute(start, BLOCK_BYTES, may_execute)
    }
}
