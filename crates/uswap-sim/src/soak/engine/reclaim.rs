//! Pages move out of the program in blocks, and frames without content are given back: `swapout.rs` of the engine.

use uswap_core::reclaim::{Isolated, IsolationOutcome};
use uswap_core::{BLOCK_PAGES, FrameBlock, Isolation};

use super::super::coverage::Happening;
use super::super::mm::Stop;
use super::super::process::{Process, World};
use super::super::violation::{Checked, Checker, ensure, violated};
use super::{Step, release_places};

/// Blocks that one giving back takes.
const TRASH_BLOCKS: u64 = 4;

fn bits(mask: u16) -> impl Iterator<Item = usize> {
    (0..BLOCK_PAGES).filter(move |index| mask >> index & 1 == 1)
}

enum Moving {
    Isolate,
    Move(Isolation),
    Tell(Isolation, IsolationOutcome),
}

/// The oldest block moves out.
pub(super) struct MoveOut(Moving);

impl MoveOut {
    pub fn new() -> MoveOut {
        MoveOut(Moving::Isolate)
    }

    pub fn step(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        match self.0 {
            Moving::Isolate => {
                let Some(isolation) = process.books.tell(|core| core.isolate()) else { return Ok(Step::Over) };
                process.gate += 1;
                self.0 = Moving::Move(isolation);
                Ok(Step::Again)
            }
            Moving::Move(isolation) => {
                self.0 = Moving::Tell(isolation, move_block(isolation, process, world)?);
                Ok(Step::Again)
            }
            Moving::Tell(isolation, outcome) => {
                let Isolated { wanted, lost } = process.books.tell(move |core| core.isolated(isolation, outcome));
                process.gate -= 1;
                release_places(process, world)?;
                ensure(lost == 0, Checker::LostForAReason, || format!("{lost:#b} of {isolation:?} vanished"))?;
                world.coverage.add(Happening::MovedOut, u64::from(outcome.moved.count_ones()));
                world.coverage.add(Happening::MoveRefused, u64::from(outcome.refused.count_ones()));
                world.coverage.add(Happening::FoundMissing, u64::from(outcome.missing.count_ones()));
                Ok(Step::Wanted(bits(wanted).map(|index| isolation.first.plus(index as u64)).collect()))
            }
        }
    }
}

/// The kernel moves what it can, running across gaps between the pages.
fn move_block(isolation: Isolation, process: &mut Process, world: &mut World) -> Checked<IsolationOutcome> {
    let Isolation { first, mask, gaps, frames, .. } = isolation;
    let mut outcome = IsolationOutcome::default();
    let last = BLOCK_PAGES - mask.leading_zeros() as usize;
    for index in bits(mask | gaps).take_while(|&index| index < last) {
        let (page, frame) = (first.plus(index as u64), frames.frame(index));
        let is_gap = gaps >> index & 1 == 1;
        match process.mm.move_out(page, frame, world.chance) {
            None => outcome.moved |= 1 << index,
            // Stays so: an event that is under way keeps the kernel from the rest as well.
            Some(Stop::TryLater) => {
                world.coverage.note(Happening::TryLater);
                break;
            }
            Some(Stop::AlreadyThere) => {
                return violated(Checker::Frames, format!("{frame:?} of an empty block has memory"));
            }
            Some(Stop::Missing) if !is_gap && !process.mm.is_present(page) => outcome.missing |= 1 << index,
            Some(Stop::Missing | Stop::Busy | Stop::Invalid | Stop::NoMemory) => {}
        }
    }
    outcome.refused = mask & !outcome.moved & !outcome.missing;
    Ok(outcome)
}

/// Frames without content are given back.
pub(super) struct Trash {
    taken: Vec<(FrameBlock, u16)>,
    giving: bool,
}

impl Trash {
    pub fn new() -> Trash {
        Trash { taken: Vec::new(), giving: false }
    }

    pub fn step(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        if !self.giving {
            let taken = process.books.tell(|core| core.take_trash());
            self.giving = taken.is_none() || self.taken.len() as u64 + 1 >= TRASH_BLOCKS;
            if let Some((block, mask)) = taken {
                world.coverage.add(Happening::Trashed, u64::from(mask.count_ones()));
                for index in bits(mask) {
                    let frame = block.frame(index);
                    let given = process.mm.frames[frame.0 as usize].take();
                    ensure(given.is_some(), Checker::Frames, || format!("{frame:?} is given back twice"))?;
                }
                self.taken.push((block, mask));
            }
            return Ok(Step::Again);
        }
        for (block, _) in self.taken.drain(..) {
            process.books.tell(move |core| core.trashed(block));
        }
        Ok(Step::Over)
    }
}
