//! Followers: programs whose calls are about exactly what an earlier call, mostly another thread's, has left, brought, or left mapped.
//!
//! Allocators do so, and nothing is as hard to tell apart by reports: the range of one is the range of the other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use super::random_program::Random;
use crate::chance::Chance;
use crate::hooks;
use crate::mremap::Place;
use crate::user_mode::{self, Claimed};
use crate::world::current;

/// Ranges of a kind that are remembered.
const KEPT: usize = 4;

/// The last ranges of a kind, the newest last.
#[derive(Default)]
struct Ranges(VecDeque<Range<usize>>);

impl Ranges {
    fn note(&mut self, range: &Range<usize>) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(range.clone());
    }

    fn any(&self, chance: &mut Chance) -> Option<Range<usize>> {
        (!self.0.is_empty()).then(|| self.0[chance.index(self.0.len())].clone())
    }

    fn any_of_len(&self, len: usize) -> Option<Range<usize>> {
        self.0.iter().rev().find(|range| range.len() == len).cloned()
    }
}

/// What the threads of a process have done of late.
#[derive(Default)]
struct Places {
    /// Nothing was there from then on.
    left: Ranges,
    /// Memory was moved there.
    brought: Ranges,
    /// It was moved away, and stayed mapped.
    stayed: Ranges,
}

/// The same, as they all know it.
#[derive(Clone, Default)]
pub(super) struct SharedPlaces(Rc<RefCell<Places>>);

impl SharedPlaces {
    /// Before a munmap: others take the place as soon as it is free.
    pub fn leaves(&self, range: &Range<usize>) {
        self.0.borrow_mut().left.note(range);
    }

    /// Before a mremap.
    pub fn moves(&self, old: &Range<usize>, new: &Range<usize>, stays: bool) {
        let mut places = self.0.borrow_mut();
        places.brought.note(new);
        if stays { places.stayed.note(old) } else { places.left.note(old) }
    }
}

/// Whether all of `range` is mapped, and no call is about it.
fn may_be_taken(range: &Range<usize>) -> bool {
    let world = current();
    let kernel = world.kernel();
    let process = kernel.process(world.this_process());
    process.mm.vmas.is_mapped(range.clone()) && !process.is_claimed(range)
}

impl Random {
    /// One such call; false if there is nothing to follow.
    pub fn follow(&mut self) -> bool {
        match self.chance.below(4) {
            0 | 1 => self.take_what_was_left(),
            2 => self.send_on(),
            _ => self.end_what_stayed(),
        }
    }

    /// Maps exactly what is free again, or moves something there.
    fn take_what_was_left(&mut self) -> bool {
        let Some(range) = self.places.0.borrow().left.any(&mut self.chance) else { return false };
        if !Random::is_free(&range) || user_mode::is_claimed(&range) {
            return false;
        }
        if self.chance.happens(1, 3) && self.grow_into(&range) {
            return true;
        }
        if self.chance.happens(1, 3) {
            let attributes = self.attributes();
            user_mode::mmap_as(range, attributes);
            return true;
        }
        let space = self.habits.space.clone();
        let start = space.start + self.chance.index(space.len());
        let some = start..start + range.len();
        let brought = self.places.0.borrow().brought.any_of_len(range.len());
        let source = [brought, Some(some)].into_iter().flatten().find(may_be_taken);
        source.is_some_and(|source| {
            self.move_to(source, range);
            true
        })
    }

    /// The mapping before a free range grows all over it, unreported, and what has grown goes elsewhere.
    fn grow_into(&mut self, range: &Range<usize>) -> bool {
        let Some(before) = range.start.checked_sub(1).map(|last| last..range.start).filter(may_be_taken) else {
            return false;
        };
        let Some(claimed) = Claimed::claim(std::slice::from_ref(range), &before) else { return false };
        let has_grown = hooks::mremap(before, 1 + range.len(), Place::Here, false).is_ok();
        drop(claimed);
        let space = self.habits.space.clone();
        let to = space.start + self.chance.index(space.len());
        let place = to..to + range.len();
        if has_grown && self.chance.happens(3, 4) && may_be_taken(range) && Random::is_free(&place) {
            self.move_to(range.clone(), place);
        }
        true
    }

    /// Unmaps exactly what was moved, or moves it on.
    fn send_on(&mut self) -> bool {
        let Some(range) = self.places.0.borrow().brought.any(&mut self.chance).filter(may_be_taken) else {
            return false;
        };
        if self.chance.happens(1, 3) {
            self.unmap(range);
            return true;
        }
        let left = self.places.0.borrow().left.any_of_len(range.len());
        let space = self.habits.space.clone();
        let start = space.start + self.chance.index(space.len());
        let place = left.unwrap_or(start..start + range.len());
        if Random::is_free(&place) {
            self.move_to(range, place);
        }
        true
    }

    /// Unmaps exactly what was moved away and stayed mapped; now and then something larger is moved over it before.
    pub fn end_what_stayed(&mut self) -> bool {
        let Some(range) = self.places.0.borrow().stayed.any(&mut self.chance).filter(may_be_taken) else {
            return false;
        };
        if self.chance.happens(1, 2) {
            let space = self.habits.space.clone();
            let larger = range.start..range.end + 1 + self.chance.index(3);
            let start = space.start + self.chance.index(space.len());
            let source = start..start + larger.len();
            if may_be_taken(&source) {
                self.move_to(source, larger);
            }
        }
        if may_be_taken(&range) {
            self.unmap(range);
        }
        true
    }
}
