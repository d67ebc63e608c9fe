//! Random programs: threads that read, write, discard, move, unmap and fork.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use uswap_system::{PAGE_SIZE, System};

use super::at_rest;
use super::follower::SharedPlaces;
use super::{mapped_pages, read_everything};
use crate::chance::Chance;
use crate::hooks;
use crate::mremap::Place;
use crate::page_content::Content;
use crate::scheduler::Kind;
use crate::system::Model;
use crate::user_mode::{self, Claimed};
use crate::vma::{Attributes, Vma};
use crate::world::current;

/// Processes that one world has in all.
const PROCESSES_MAX: usize = 8;

/// No memory.
const NOTHING: Range<usize> = 0..0;
/// Advice in a flood.
const FLOOD: usize = 600;

/// What programs do.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Where they may have memory.
    pub space: Range<usize>,
    /// Threads of a process.
    pub threads: usize,
    /// Accesses and calls of each.
    pub steps: u64,
    /// Parts of 1000: what comes next is no access but a call.
    pub calls: u64,
    /// Parts of 1000 of those: a fork.
    pub forks: u64,
    /// Pages that accesses go to mostly.
    pub hot_pages: usize,
    /// Parts of 100 of the accesses that write.
    pub writes: u64,
    /// Parts of 100 of the accesses that go on beside the one before.
    pub streams: u64,
    /// Parts of 1000 of the steps after which a thread rests for a while.
    pub rests: u64,
    /// Parts of 100 of the pages that are written to before anything else.
    pub filled: u64,
    /// Parts of 100 of what is mapped that may be executed.
    pub executable: u64,
    /// Parts of 100 that are of a file.
    pub files: u64,
    /// Each thread has a control block, which the kernel writes to when it ends: a page that must be there then.
    pub control_blocks: bool,
    /// It gives pages to a pipe, and has guards, elsewhere.
    pub notes: [bool; 2],
    /// Now and then advice comes in such numbers that the monitor cannot keep up.
    pub floods: bool,
    /// What leaves finds a place: a process that rests has no more than its budget.
    pub rests_in_budget: bool,
    /// At the end an area leaves, and comes to be empty.
    pub swaps_off: bool,
    /// How many of its calls, beside forks, discard memory, unmap it, move it, grow it, keep it from forks, and lock it.
    pub calls_of: [u64; 6],
    /// Parts of 4 of what is discarded that goes by MADV_FREE.
    pub lazily: u64,
    /// Parts of 8 of its calls that are about exactly what an earlier one has left, brought or left mapped.
    pub follows: u64,
    /// Parts of 12 of the movings of memory that leave it mapped where it was.
    pub stays: u64,
    /// Parts of 8 of them that make it longer or shorter.
    pub resizes: u64,
}

impl Habits {
    /// Threads that change the same memory all the time, most of it by moving it.
    fn of_movers(self, chance: &mut Chance) -> Habits {
        let len = (self.space.len() / (1 + chance.index(3))).max(48);
        if chance.happens(1, 8) {
            return self.of_a_calm_mover(chance);
        }
        Habits {
            space: self.space.start..self.space.start + len,
            threads: 2 + chance.index(3),
            calls: 100 + chance.below(400),
            calls_of: [
                chance.below(4),
                1 + chance.below(4),
                4 + chance.below(6),
                1 + chance.below(4),
                0,
                chance.below(2),
            ],
            forks: if chance.happens(1, 2) { self.forks / 4 } else { 0 },
            follows: chance.below(7),
            stays: [0, 2, 6][chance.index(3)],
            resizes: chance.below(3),
            ..self
        }
    }

    /// One thread that moves memory as it is, so that little else than the order of its reports tells what it did.
    fn of_a_calm_mover(self, chance: &mut Chance) -> Habits {
        Habits {
            threads: 1,
            calls: 100 + chance.below(400),
            calls_of: [chance.below(3), 1, 6, 0, 0, 0],
            forks: 0,
            follows: 1 + chance.below(6),
            stays: 0,
            resizes: 0,
            ..self
        }
    }

    /// Threads that fork all the time, while the others go on.
    fn of_forkers(self, chance: &mut Chance) -> Habits {
        Habits { threads: 2 + chance.index(3), calls: 20 + chance.below(60), forks: 150 + chance.below(400), ..self }
    }

    /// Programs that give most of their memory up again, mostly with MADV_FREE.
    fn of_wasters(self, chance: &mut Chance) -> Habits {
        Habits { calls: 50 + chance.below(100), calls_of: [8, 1, 1, 0, 0, 0], lazily: 3, writes: 80, ..self }
    }

    /// See [`Scenario::restless`](super::Scenario::restless).
    pub(super) fn of_the_restless(self, chance: &mut Chance) -> Habits {
        Habits {
            threads: 1 + chance.index(4),
            steps: 60 + chance.below(300),
            calls: 40 + chance.below(400),
            forks: if chance.happens(3, 4) { 10 + chance.below(150) } else { 0 },
            calls_of: [
                1 + chance.below(6),
                1 + chance.below(4),
                2 + chance.below(8),
                1 + chance.below(4),
                chance.below(3),
                chance.below(3),
            ],
            lazily: chance.below(4),
            follows: chance.below(6),
            stays: [0, 2, 6][chance.index(3)],
            resizes: chance.below(4),
            files: if chance.happens(1, 4) { chance.below(20) } else { 0 },
            rests_in_budget: false,
            swaps_off: false,
            rests: 1 + chance.below(40),
            ..self
        }
    }

    pub(super) fn of_a_large_pool(self, base: usize, span: usize) -> Habits {
        Habits {
            space: base..base + span,
            steps: 1500,
            calls: 250,
            forks: 0,
            calls_of: [12, 1, 1, 0, 0, 0],
            lazily: 0,
            hot_pages: 200,
            writes: 30,
            rests: 40,
            filled: 100,
            ..self
        }
    }

    pub(super) fn of_large_forks(self, base: usize, span: usize) -> Habits {
        Habits { space: base..base + span, steps: 200, calls: 30, forks: 400, filled: 100, hot_pages: 400, ..self }
    }

    /// The habits of `chance`.
    pub fn draw(chance: &mut Chance, base: usize, span: usize) -> Habits {
        let many_calls = chance.happens(1, 8);
        let habits = Habits {
            space: base..base + span,
            threads: 1 + chance.index(3),
            steps: 60 + chance.below(440),
            calls: if many_calls { 200 } else { chance.below(28).saturating_sub(3) },
            forks: if chance.happens(1, 3) { chance.below(150) } else { 0 },
            hot_pages: 8 + chance.index(100),
            writes: 10 + chance.below(80),
            streams: chance.below(100),
            rests: 1 + chance.below(20),
            filled: 50 + chance.below(50),
            executable: chance.below(20),
            files: if chance.happens(1, 4) { chance.below(20) } else { 0 },
            control_blocks: chance.happens(1, 2),
            notes: [chance.happens(1, 16), chance.happens(1, 16)],
            floods: chance.happens(1, 32),
            rests_in_budget: false,
            swaps_off: false,
            calls_of: [5, 1, 3, 1, 1, 1],
            lazily: 1,
            follows: if chance.happens(1, 2) { chance.below(5) } else { 0 },
            stays: 2,
            resizes: 2,
        };
        match chance.below(8) {
            0 | 1 => habits.of_movers(chance),
            2 => habits.of_forkers(chance),
            3 => habits.of_wasters(chance),
            _ => habits,
        }
    }
}

/// A thread of a random program.
pub(super) struct Random {
    pub habits: Rc<Habits>,
    pub chance: Chance,
    cursor: usize,
    pub places: SharedPlaces,
}

/// The first thread of the first process: maps memory, starts the others, and in the end reads every page.
pub(super) fn first_process(habits: &Rc<Habits>) {
    let mut random = Random::new(habits, SharedPlaces::default());
    hooks::note(habits.notes);
    let mut at = habits.space.start;
    while at < habits.space.end {
        let pages = (1 + random.chance.index(habits.space.len())).min(habits.space.end - at);
        user_mode::mmap_as(at..at + pages, random.attributes());
        at += pages + random.chance.index(8);
    }
    for page in mapped_pages() {
        if random.chance.happens(habits.filled, 100) {
            let _ = user_mode::write(page, current().new_content());
        }
    }
    life(habits, random);
}

/// Of a process: all its threads, and then its end.
fn life(habits: &Rc<Habits>, mut random: Random) {
    let world = current();
    let mut others = Vec::new();
    for _ in 1..habits.threads {
        let mut other = Random::new(habits, random.places.clone());
        others.push(world.spawn(world.this_process(), "program", Kind::Program, move || other.run()));
    }
    random.run();
    others.into_iter().for_each(|thread| world.join(thread));
    read_everything();
    if habits.rests_in_budget {
        at_rest::is_within_budget();
    }
    if habits.swaps_off {
        at_rest::swaps_off();
        read_everything();
    }
    while let Some(&first) = mapped_pages().first() {
        user_mode::munmap(first..habits.space.end);
    }
}

impl Random {
    fn new(habits: &Rc<Habits>, places: SharedPlaces) -> Random {
        let chance = Chance::new(current().below(u64::MAX));
        Random { habits: habits.clone(), chance, cursor: habits.space.start, places }
    }

    pub fn attributes(&mut self) -> Attributes {
        let Habits { executable, files, .. } = *self.habits;
        let (exec, file) = (self.chance.happens(executable, 100), self.chance.happens(files, 100));
        Attributes { exec, file, ..Attributes::PLAIN }
    }

    fn run(&mut self) {
        let block = self.control_block();
        for _ in 0..self.habits.steps {
            match self.chance.happens(self.habits.calls, 1000) {
                true => self.call(),
                false => self.access(),
            }
            if self.chance.happens(self.habits.rests, 1000) {
                Model::sleep(Duration::from_micros(1 + self.chance.below(3000)));
            }
        }
        if let Some(page) = block {
            user_mode::clear_tid(page);
        }
    }

    /// Of a thread that begins: its page, of which the agent's wrapper has told, if nothing moves or discards it.
    fn control_block(&mut self) -> Option<usize> {
        let Habits { control_blocks, calls, forks, space, .. } = &*self.habits;
        let page = space.start + self.chance.index(space.len());
        if !control_blocks || calls + forks > 0 || Self::vma_at(page).is_none() {
            return None;
        }
        hooks::environment().notices.control_blocks.keep(page * PAGE_SIZE);
        user_mode::write(page, current().new_content()).ok().map(|_| page)
    }

    fn access(&mut self) {
        let Habits { space, hot_pages, writes, streams, .. } = &*self.habits;
        let within = if self.chance.happens(3, 4) { (*hot_pages).min(space.len()) } else { space.len() };
        let goes_on = self.chance.happens(*streams, 100) && self.cursor + 1 < space.end;
        self.cursor = if goes_on { self.cursor + 1 } else { space.start + self.chance.index(within) };
        if self.chance.happens(*writes, 100) {
            let content = if self.chance.happens(1, 12) { Content::ZERO } else { current().new_content() };
            let _ = user_mode::write(self.cursor, content);
        } else {
            let _ = user_mode::read(self.cursor);
        }
    }

    /// The mapping at `page`; none where there is none.
    fn vma_at(page: usize) -> Option<Vma> {
        let world = current();
        world.kernel().process(world.this_process()).mm.vmas.at(page).copied()
    }

    pub fn is_free(range: &Range<usize>) -> bool {
        let world = current();
        world.kernel().process(world.this_process()).mm.vmas.is_free(range.clone())
    }

    fn call(&mut self) {
        if self.chance.happens(self.habits.forks, 1000) {
            return self.fork();
        }
        if self.chance.happens(self.habits.follows, 8) && self.follow() {
            return;
        }
        let space = self.habits.space.clone();
        let page = space.start + self.chance.index(space.len());
        let Some(vma) = Self::vma_at(page) else { return self.map(page) };
        let end = if self.chance.happens(1, 4) { vma.end } else { vma.end.min(page + 1 + self.chance.index(24)) };
        // Now and then across several mappings.
        let end = if self.chance.happens(1, 24) { (page + 1 + self.chance.index(60)).min(space.end) } else { end };
        let range = page..end;
        if user_mode::is_claimed(&range) {
            return;
        }
        match self.which_call() {
            0 => {
                let lazily = self.chance.happens(self.habits.lazily, 4);
                if let Some(_claimed) = Claimed::claim(std::slice::from_ref(&range), &NOTHING) {
                    hooks::discard(range, lazily);
                }
            }
            1 => self.unmap(range),
            2 => self.remap(range),
            3 => self.grow(vma),
            4 if self.habits.floods && self.chance.happens(1, 4) => self.flood(&range),
            4 => hooks::keep_from_forks(range, self.chance.happens(1, 2)),
            _ => self.lock(range),
        }
    }

    /// By number, as in [`Habits::calls_of`].
    fn which_call(&mut self) -> usize {
        let mut rest = self.chance.below(self.habits.calls_of.iter().sum());
        let is_it = |&parts: &u64| {
            let is_it = rest < parts;
            rest = rest.saturating_sub(parts);
            is_it
        };
        self.habits.calls_of.iter().position(is_it).expect("it is below their sum")
    }

    fn map(&mut self, page: usize) {
        let range = page..(page + 1 + self.chance.index(60)).min(self.habits.space.end);
        if Self::is_free(&range) && !user_mode::is_claimed(&range) {
            let attributes = self.attributes();
            user_mode::mmap_as(range, attributes);
        }
    }

    fn remap(&mut self, old: Range<usize>) {
        let space = self.habits.space.clone();
        let to = space.start + self.chance.index(space.len());
        let pages = if self.chance.happens(self.habits.resizes, 8) { 1 + self.chance.index(20) } else { old.len() };
        let new = to..to + pages;
        // Over what is there only now and then.
        if Self::is_free(&new) || self.chance.happens(1, 8) {
            self.move_to(old, new);
        }
    }

    /// mremap of a range to exactly another, if no call is about either.
    pub fn move_to(&mut self, old: Range<usize>, new: Range<usize>) {
        let overlaps = new.start < old.end && old.start < new.end;
        if overlaps || new.end > self.habits.space.end || user_mode::is_claimed(&new) {
            return;
        }
        let stays = new.len() == old.len() && self.chance.happens(self.habits.stays, 12);
        let both = [new.clone(), old.clone()];
        let Some(claimed) = Claimed::claim(&both[..1 + usize::from(stays)], &old) else { return };
        self.places.moves(&old, &new, stays);
        let moved = hooks::mremap(old, new.len(), Place::Fixed(new.start), stays);
        drop(claimed);
        if stays && moved.is_ok() && self.chance.happens(self.habits.follows, 16) {
            self.end_what_stayed();
        }
    }

    /// munmap, now and then of what was discarded just before.
    pub fn unmap(&mut self, range: Range<usize>) {
        if self.chance.happens(self.habits.follows, 16) {
            let Some(_claimed) = Claimed::claim(std::slice::from_ref(&range), &NOTHING) else { return };
            hooks::discard(range.clone(), false);
        }
        self.places.leaves(&range);
        user_mode::munmap(range);
    }

    fn grow(&mut self, vma: Vma) {
        let pages = 1 + self.chance.index(8);
        let more = vma.end..vma.end + pages;
        if more.end <= self.habits.space.end && !user_mode::is_claimed(&more) && Self::is_free(&more) {
            let start = vma.end - 1;
            let Some(_claimed) = Claimed::claim(&[more], &(start..vma.end)) else { return };
            let _ = hooks::mremap(start..vma.end, 1 + pages, Place::Here, false);
        }
    }

    /// More advice than a segment of postings has places for, and none in the end.
    fn flood(&mut self, range: &Range<usize>) {
        for number in 0..FLOOD {
            hooks::keep_from_forks(range.start..range.start + 1, number % 2 == 0);
        }
    }

    fn lock(&mut self, range: Range<usize>) {
        let range = range.start..range.end.min(range.start + 4);
        let _ = user_mode::mlock(range.clone());
        user_mode::munlock(range);
    }

    fn fork(&mut self) {
        let world = current();
        let alive = world.kernel().processes.iter().filter(|process| process.is_alive).count();
        if alive >= 4 || world.kernel().processes.len() >= PROCESSES_MAX {
            return;
        }
        let steps = self.chance.below(self.habits.steps) / 2;
        let habits = Rc::new(Habits { steps, threads: 1 + self.chance.index(2), ..(*self.habits).clone() });
        hooks::fork(move || {
            let random = Random::new(&habits, SharedPlaces::default());
            life(&habits, random);
        });
    }
}
