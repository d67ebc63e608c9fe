//! Programs that share memory: threads that read and write it, map and unmap it, move it, map it twice, and fork.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use uswap_system::System;

use crate::chance::Chance;
use crate::scheduler::Kind;
use crate::shmem::page_cache::ObjectId;
use crate::shmem::shared_calls::Moved;
use crate::shmem::shared_host::Server;
use crate::shmem::shared_uffd::SharedUffd;
use crate::system::Model;
use crate::touch::{Access, Signal};
use crate::violation::Checker;
use crate::world::current;

/// Processes that one world has in all, and alive, with the server.
const PROCESSES_MAX: usize = 9;
const ALIVE_MAX: usize = 6;
/// Objects of one world.
const OBJECTS_MAX: usize = 6;
/// Mappings of one process.
const PLACES_MAX: usize = 12;

/// What programs do.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Pages of the objects that the first process maps.
    pub pages: usize,
    /// Threads of a process.
    pub threads: usize,
    /// Accesses and calls of each.
    pub steps: u64,
    /// Parts of 1000: what comes next is no access but a call.
    pub calls: u64,
    /// Pages that accesses go to mostly.
    pub hot_pages: usize,
    /// Parts of 100 of the pages that are written to before anything else.
    pub filled: u64,
    /// Parts of 100 of the accesses that write.
    pub writes: u64,
    /// Parts of 100 of the accesses that go on beside the one before.
    pub streams: u64,
    /// Parts of 1000 of the steps after which a thread rests for a while.
    pub rests: u64,
    /// Threads of a process change its mappings, and fork, one at a time.
    pub takes_turns: bool,
    /// How many of its calls fork, unmap, move, map again, grow, forget entries, and make an object.
    pub calls_of: [u64; 7],
}

impl Habits {
    /// Those of `chance`.
    pub fn draw(chance: &mut Chance) -> Habits {
        let pages = 80 + chance.index(200);
        Habits {
            pages,
            threads: 1 + chance.index(3),
            steps: 100 + chance.below(500),
            calls: if chance.happens(1, 4) { 0 } else { 1 + chance.below(120) },
            hot_pages: 4 + chance.index(pages),
            filled: 50 + chance.below(50),
            writes: 10 + chance.below(80),
            streams: chance.below(80),
            rests: 1 + chance.below(20),
            takes_turns: true,
            calls_of: [1 + chance.below(4), chance.below(4), chance.below(5), 0, 0, chance.below(3), chance.below(2)],
        }
    }
}

impl Habits {
    /// Threads of a process that change its mappings at the same time, map what they have once more, and make it longer: what the server
    /// does not follow in each case (docs/known-issues.md).
    pub fn crowded(self, chance: &mut Chance) -> Habits {
        let [forks, unmaps, moves, _, _, forgets, makes] = self.calls_of;
        let calls_of = [forks, unmaps, moves, chance.below(3), chance.below(2), forgets, makes];
        Habits { takes_turns: chance.happens(1, 4), calls_of, ..self }
    }
}

/// A mapping that threads of a process know of.
#[derive(Clone, Debug)]
struct Place {
    start: usize,
    end: usize,
    /// Pages of the object from `start` on.
    reach: usize,
    /// Threads that are using it just now.
    users: usize,
}

/// What the threads of a process have in common.
struct Common {
    server: Rc<Server>,
    uffd: Cell<Option<SharedUffd>>,
    makes_object: Cell<bool>,
    /// Threads that are changing the mappings.
    changing: Cell<usize>,
    places: RefCell<Vec<Place>>,
    /// Where something has been unmapped, the last first.
    freed: RefCell<Vec<usize>>,
}

/// A thread.
struct Thread {
    habits: Rc<Habits>,
    common: Rc<Common>,
    chance: Chance,
    cursor: usize,
}

/// The first process: makes objects, and lives.
pub(super) fn first_process(server: &Rc<Server>, habits: &Rc<Habits>) {
    let mut thread = Thread::new(habits, Common::new(server, Vec::new()));
    let mut left = habits.pages;
    while left > 0 {
        let pages = (16 + thread.chance.index(habits.pages)).min(left);
        thread.new_object(pages);
        left -= pages;
    }
    let places = thread.common.places.borrow().clone();
    for page in places.iter().flat_map(|place| place.start..place.end) {
        if thread.chance.happens(habits.filled, 100) {
            judge(page, current().touch_shared(page, Access::Write(current().new_content())));
        }
    }
    thread.life();
}

impl Common {
    fn new(server: &Rc<Server>, places: Vec<Place>) -> Rc<Common> {
        Rc::new(Common {
            server: server.clone(),
            uffd: Cell::new(None),
            makes_object: Cell::new(false),
            changing: Cell::new(0),
            places: RefCell::new(places),
            freed: RefCell::default(),
        })
    }

    /// Where the kernel would put something now.
    fn wanted(&self, chance: &mut Chance) -> Vec<usize> {
        if self.changing.get() > 1 || chance.happens(1, 4) { Vec::new() } else { self.freed.borrow().clone() }
    }

    fn frees(&self, at: usize) {
        let mut freed = self.freed.borrow_mut();
        freed.insert(0, at);
        freed.truncate(4);
    }
}

/// What is accessed gets no signal, unless a store fails.
fn judge(page: usize, result: Result<crate::Content, Signal>) {
    let world = current();
    match result {
        Ok(_) => {}
        Err(Signal::Bus) if world.config.may_lose_pages => {}
        Err(signal) => world.violate(Checker::LostForAReason, format!("an access to page {page:#x} gets {signal:?}")),
    }
}

impl Thread {
    fn new(habits: &Rc<Habits>, common: Rc<Common>) -> Thread {
        Thread { habits: habits.clone(), common, chance: Chance::new(current().below(u64::MAX)), cursor: 0 }
    }

    /// Of a process: all its threads, and then its end.
    fn life(mut self) {
        let world = current();
        let mut others = Vec::new();
        for _ in 1..self.habits.threads {
            let mut other = Thread::new(&self.habits, self.common.clone());
            others.push(world.spawn(world.this_process(), "program", Kind::Program, move || other.run()));
        }
        self.run();
        others.into_iter().for_each(|thread| world.join(thread));
        let places = self.common.places.borrow().clone();
        for place in &places {
            for page in place.start..place.end {
                judge(page, world.touch_shared(page, Access::Read));
            }
        }
        if self.chance.happens(1, 2) {
            places.iter().for_each(|place| world.unmap_shared(place.start..place.end));
        }
    }

    fn run(&mut self) {
        for _ in 0..self.habits.steps {
            match self.chance.happens(self.habits.calls, 1000) {
                true if self.may_call() => {
                    let changing = &self.common.clone().changing;
                    changing.set(changing.get() + 1);
                    self.call();
                    changing.set(changing.get() - 1);
                }
                _ => self.access(),
            }
            if self.chance.happens(self.habits.rests, 1000) {
                Model::sleep(Duration::from_micros(1 + self.chance.below(3000)));
            }
        }
    }

    fn may_call(&self) -> bool {
        !self.habits.takes_turns || self.common.changing.get() == 0
    }

    fn access(&mut self) {
        let world = current();
        let total: usize = self.common.places.borrow().iter().map(|place| place.end - place.start).sum();
        if total == 0 {
            return;
        }
        self.cursor = match self.chance.happens(self.habits.streams, 100) {
            true => self.cursor + 1,
            false if self.chance.happens(3, 4) => self.chance.index(self.habits.hot_pages),
            false => self.chance.index(total),
        } % total;
        let (mut index, mut at) = (0, self.cursor);
        let mut places = self.common.places.borrow_mut();
        while at >= places[index].end - places[index].start {
            at -= places[index].end - places[index].start;
            index += 1;
        }
        places[index].users += 1;
        let (start, page) = (places[index].start, places[index].start + at);
        drop(places);
        let writes = self.chance.happens(self.habits.writes, 100);
        let access = if writes { Access::Write(world.new_content()) } else { Access::Read };
        judge(page, world.touch_shared(page, access));
        let mut places = self.common.places.borrow_mut();
        places.iter_mut().find(|place| place.start == start).expect("who uses it keeps it").users -= 1;
    }

    /// Takes a mapping that nobody uses out of what others know of.
    fn take(&mut self) -> Option<Place> {
        let mut places = self.common.places.borrow_mut();
        let free: Vec<usize> = (0..places.len()).filter(|&index| places[index].users == 0).collect();
        if free.is_empty() {
            return None;
        }
        Some(places.swap_remove(free[self.chance.index(free.len())]))
    }

    fn put(&self, start: usize, end: usize, reach: usize) {
        if start < end {
            self.common.places.borrow_mut().push(Place { start, end, reach, users: 0 });
        }
    }

    fn call(&mut self) {
        let sum: u64 = self.habits.calls_of.iter().sum();
        let mut left = self.chance.below(sum);
        let kinds = self.habits.calls_of;
        let kind = kinds
            .iter()
            .position(|&count| {
                left < count || {
                    left -= count;
                    false
                }
            })
            .unwrap_or(0);
        if kind == 0 {
            return self.fork();
        }
        if kind == 6 {
            let pages = 4 + self.chance.index(40);
            return self.new_object(pages);
        }
        let is_last = self.common.places.borrow().len() < 2;
        let Some(place) = self.take() else { return };
        let part = self.part(&place);
        match kind {
            1 if is_last && self.chance.happens(7, 8) => self.put(place.start, place.end, place.reach),
            1 => self.unmap(&place, part),
            2 => self.remap(&place, part),
            3 => self.map_again(&place, part),
            4 => self.grow(&place),
            _ => {
                current().forget_shared(part);
                self.put(place.start, place.end, place.reach);
            }
        }
    }

    /// Some of a mapping, or all.
    fn part(&mut self, place: &Place) -> Range<usize> {
        if self.chance.happens(1, 2) {
            return place.start..place.end;
        }
        let from = place.start + self.chance.index(place.end - place.start);
        from..from + 1 + self.chance.index(place.end - from)
    }

    /// What is left of a mapping of which a part has gone can be used at once.
    fn rest(&self, place: &Place, part: &Range<usize>) {
        self.put(place.start, part.start, place.reach);
        self.put(part.end, place.end, place.reach - (part.end - place.start));
        self.common.frees(part.start);
    }

    fn unmap(&mut self, place: &Place, part: Range<usize>) {
        self.rest(place, &part);
        current().unmap_shared(part);
    }

    fn remap(&mut self, place: &Place, part: Range<usize>) {
        let wanted = self.common.wanted(&mut self.chance);
        self.rest(place, &part);
        let to = current().remap_shared(part.clone(), Moved::Away, &wanted);
        self.put(to, to + part.len(), place.reach - (part.start - place.start));
    }

    fn map_again(&mut self, place: &Place, part: Range<usize>) {
        if self.common.places.borrow().len() >= PLACES_MAX {
            return self.put(place.start, place.end, place.reach);
        }
        let wanted = self.common.wanted(&mut self.chance);
        let to = current().remap_shared(part.clone(), Moved::Again(part.len()), &wanted);
        self.put(place.start, place.end, place.reach);
        self.put(to, to + part.len(), place.reach - (part.start - place.start));
    }

    fn grow(&mut self, place: &Place) {
        let room = place.reach - (place.end - place.start);
        let more = if room > 0 { 1 + self.chance.index(room) } else { 0 };
        let end = if more > 0 && current().grow_shared(place.end, more) { place.end + more } else { place.end };
        self.put(place.start, end, place.reach);
    }

    fn new_object(&mut self, pages: usize) {
        let world = current();
        let common = self.common.clone();
        // The monitor of a process makes one object at a time.
        if world.kernel().shmem.caches.len() >= OBJECTS_MAX || common.makes_object.replace(true) {
            return;
        }
        let object: ObjectId = world.new_object(pages);
        let uffd = common.uffd.get().unwrap_or_else(|| common.server.becomes_client());
        common.uffd.set(Some(uffd));
        let wanted = common.wanted(&mut self.chance);
        let start = world.map_shared(object, uffd, &wanted);
        common.server.has_mapped(object, start);
        common.makes_object.set(false);
        self.put(start, start + pages, pages);
    }

    fn fork(&mut self) {
        let world = current();
        let alive = world.kernel().processes.iter().filter(|process| process.is_alive).count();
        if alive >= ALIVE_MAX || world.kernel().processes.len() >= PROCESSES_MAX {
            return;
        }
        let steps = self.chance.below(self.habits.steps);
        let habits = Rc::new(Habits { steps, threads: 1 + self.chance.index(2), ..(*self.habits).clone() });
        let server = self.common.server.clone();
        let common = self.common.clone();
        // What the child has is what there is at the moment of the copy.
        let (child, places) = world.fork_shared(|| common.places.borrow().clone());
        let places = places.into_iter().map(|place| Place { users: 0, ..place }).collect();
        if !world.kernel().process(child).is_alive {
            return;
        }
        world.spawn(child, "program", Kind::Program, move || {
            Thread::new(&habits, Common::new(&server, places)).life();
        });
    }
}
