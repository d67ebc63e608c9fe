//! Bugs that are put in on purpose, so that the checker that must find each can be seen to fire.

use uswap_core::{AreaId, Location};

use super::process::{Process, World};

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A slot's content is overwritten.
    OverwriteSlot,
    /// An object of the pool goes away under its entry.
    FreeObject,
    /// A cluster is given to another process as well.
    GrantTwice,
    /// A slot is handed out and nobody gets it.
    LeakSlot,
    /// The program reads something else than what is in memory.
    Misread,
    /// A free frame's memory goes away.
    DropFrame,
    /// Threads are not woken.
    ForgetWake,
    /// A readable page is given up as lost.
    LoseForNothing,
    /// A load is counted twice.
    MiscountLoad,
    /// A load ends without its entry.
    ForgetEntry,
    /// The books are not told that memory was unmapped.
    KeepAfterUnmap,
    /// A copy of the books misses what they were told last.
    ForgetVerb,
    /// A slot is freed twice.
    FreeTwice,
    /// Compaction moves what a child may still read.
    MoveHeld,
    /// Pages are stored on an area that leaves.
    StoreOnLeaving,
}

/// The bugs that are done to a state, not to a step; done again until one is found to do it to.
pub(super) fn apply(process: &mut Process, world: &mut World) {
    match world.sabotage {
        Some(Sabotage::OverwriteSlot) => {
            if let Some((area, slot)) = any_slot(process) {
                world.group.overwrite(area, slot);
            }
        }
        Some(Sabotage::FreeObject) => {
            let pool = &mut world.group.pools[process.pool];
            if let Some(handle) = pool.any_handle() {
                let _ = pool.free(handle);
            }
        }
        Some(Sabotage::GrantTwice) => {
            if let Some((area, slot)) = any_slot(process) {
                world.group.areas[area].owners[slot as usize / 512] = Some(usize::MAX);
            }
        }
        Some(Sabotage::LeakSlot) if any_slot(process).is_some() => {
            let _ = process.books.tell(|core| core.slots_mut(AreaId(0)).alloc());
        }
        Some(Sabotage::FreeTwice) => {
            if let Some((area, slot)) = any_slot(process) {
                let area = AreaId(area as u8);
                let _ = process.books.tell(move |core| core.slots_mut(area).free(slot));
                let _ = process.books.tell(move |core| core.slots_mut(area).free(slot));
            }
        }
        Some(Sabotage::DropFrame) => {
            let cache = process.books.look().swap_cache();
            // Nothing is on its way into or out of a frame.
            if process.gate == 0 && cache.free_frames() == cache.populated_frames() {
                for frame in &mut process.mm.frames {
                    *frame = None;
                }
            }
        }
        _ => {}
    }
}

/// A slot that an entry of the process is in.
fn any_slot(process: &Process) -> Option<(usize, u64)> {
    let table = process.books.look().swap_table();
    table.iter_in_use().filter(|&entry| table.is_live(entry) && !table.is_foreign(entry)).find_map(|entry| match table
        .location(entry)
    {
        Location::Slot { area, slot } => Some((area.0 as usize, slot)),
        Location::Pool { .. } => None,
    })
}
