//! One program of one thread on the engine, in a world in which nothing goes wrong and nobody is in a hurry: what its accesses
//! meet, under a policy and a budget.
//!
//! After each fault the program rests until the engine's threads have nothing to do: what it is faster than is not asked here. All that
//! leaves goes to an area; there is no pool.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use uswap_core::budget::{Room, Usage};
use uswap_core::{Policies, ReadaheadPolicy};
use uswap_engine::group::{Compressor, Counter, GroupConfig};
use uswap_system::System;

use crate::coverage::Happening;
use crate::scheduler::Kind;
use crate::switching::Switching;
use crate::system::Model;
use crate::tree::{Crew, Tree};
use crate::world::{Outcome, World, current};
use crate::world_config::WorldConfig;
use crate::{Chance, End, hooks, user_mode};

/// Where the program's memory begins, in pages.
const BASE: usize = 512;
/// Pages from which on a process keeps to its budget: its handlers work with less than that.
pub const SIZE_MIN: u64 = 128;
/// How long the program rests after a fault.
const REST: Duration = Duration::from_millis(2);
/// The least distance of two watermarks, in pages.
const GAP_MIN: u64 = 4;
/// How long it takes at most that something more leaves.
const PATIENCE: Duration = Duration::from_millis(300);

/// One access of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Which of its pages.
    pub page: u64,
    /// Whether it writes. The first access to a page always does.
    pub writes: bool,
}

/// What the accesses met.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Replayed {
    /// Accesses to pages that had to be read, or were used for the first time.
    pub misses: u64,
    /// Faults that found their page in the swap cache.
    pub cached: u64,
    /// Pages read.
    pub read: u64,
    /// Pages written.
    pub written: u64,
    /// Pages that came along and were used.
    pub used: u64,
    /// Pages that came along and left unused, or are there still.
    pub wasted: u64,
    /// The most pages that were in memory when a fault had been served and everything was at rest, frames included.
    pub peak: u64,
}

impl Replayed {
    fn minus(self, before: Replayed) -> Replayed {
        Replayed {
            misses: self.misses - before.misses,
            cached: self.cached - before.cached,
            read: self.read - before.read,
            written: self.written - before.written,
            used: self.used - before.used,
            wasted: self.wasted - before.wasted,
            peak: self.peak,
        }
    }
}

/// Runs a program that first writes each page of `on_swap`, has them leave (but for those, perhaps, that were asked for last), and
/// then makes `accesses`, within `size` pages; what the accesses met.
///
/// # Panics
/// `size` is below [`SIZE_MIN`], or the engine does something wrong.
pub fn replay(size: u64, policies: Policies, on_swap: &[u64], accesses: &[Access]) -> Replayed {
    assert!(size >= SIZE_MIN, "the engine cannot keep to {size} pages");
    let named = on_swap.iter().copied().chain(accesses.iter().map(|access| access.page));
    let pages = named.max().map_or(1, |last| last + 1);
    let config = WorldConfig {
        base: BASE,
        span: pages as usize,
        switching: Switching::Priorities { one_in: 1 << 20 },
        step_ns: 200,
        lazy_drops: 0,
        steps_max: u64::MAX,
        ..WorldConfig::plain()
    };
    let world = World::with(config, Chance::new(1));
    let group = GroupConfig {
        memory_limit_bytes: budget(size) * crate::PAGE_SIZE as u64,
        zpool_percent: 0,
        compressor: Compressor::None,
        policies,
        gap_min_pages: GAP_MIN as u32,
        ..GroupConfig::default()
    };
    let readers = usize::from(policies.readahead != ReadaheadPolicy::Off);
    // A page may have its old copy while the new one is written.
    let slots = (4 * pages).next_multiple_of(512) + 64 * 512;
    let tree = Tree::new(group, &[slots], Crew { handlers: 1, readers, has_writer: true }).expect("there is memory");
    let process = world.new_process();
    hooks::start(&world, process, &tree);
    let met = Rc::new(Cell::new(Replayed::default()));
    let mut run = Run { tree, met: met.clone(), is_known: vec![false; pages as usize], peak: 0 };
    let (on_swap, accesses) = (on_swap.to_vec(), accesses.to_vec());
    world.spawn(process, "program", Kind::Program, move || run.all(&on_swap, &accesses));
    let Outcome { end, .. } = world.run();
    assert_eq!(end, End::Rest, "{:?}", world.lines());
    met.get()
}

/// The budget of which reclaim begins when `size` pages are in use.
fn budget(size: u64) -> u64 {
    let room = Room { gap_min: GAP_MIN, ..Room::default() };
    let usage = |limit| Usage { limit, total: size, mine: size, processes: 1, room, ..Usage::default() };
    (size..).find(|&limit| usage(limit).watermarks().start() >= size).expect("some limit is large enough")
}

struct Run {
    tree: Rc<Tree>,
    met: Rc<Cell<Replayed>>,
    /// Pages that have been used.
    is_known: Vec<bool>,
    peak: u64,
}

impl Run {
    fn all(&mut self, on_swap: &[u64], accesses: &[Access]) {
        user_mode::mmap(BASE..BASE + self.is_known.len());
        for &page in on_swap {
            let _ = self.access(Access { page, writes: true });
        }
        if !on_swap.is_empty() {
            self.have_all_leave();
        }
        self.peak = 0;
        let before = self.counted(0);
        let misses = accesses.iter().filter(|access| self.access(**access)).count() as u64;
        let mut met = self.counted(misses).minus(before);
        met.wasted += self.never_used();
        self.met.set(met);
    }

    /// The budget is nearly nothing for a while.
    fn have_all_leave(&self) {
        let group = self.tree.group;
        let bytes = group.limit_bytes();
        let set = |bytes| {
            group.set_limit_bytes(bytes);
            group.announce::<Model>();
        };
        set(crate::PAGE_SIZE as u64);
        let mut before = usize::MAX;
        while before > self.present() {
            before = self.present();
            Model::sleep(PATIENCE);
        }
        set(bytes);
        Model::sleep(PATIENCE);
    }

    /// Pages of the program that are in memory.
    fn present(&self) -> usize {
        let world = current();
        let kernel = world.kernel();
        let mm = &kernel.process(world.this_process()).mm;
        (BASE..BASE + self.is_known.len()).filter(|&page| mm.pte(page).is_resident()).count()
    }

    /// Whether it misses.
    fn access(&mut self, access: Access) -> bool {
        let world = current();
        let (faults, major) = (world.happened(Happening::Fault), self.tree.group.count(Counter::Pgmajfault));
        let is_first = !std::mem::replace(&mut self.is_known[access.page as usize], true);
        let page = BASE + access.page as usize;
        let touched = match access.writes || is_first {
            true => user_mode::write(page, world.new_content()),
            false => user_mode::read(page),
        };
        touched.expect("nothing is lost");
        if is_first || world.happened(Happening::Fault) > faults {
            Model::sleep(REST);
            self.peak = self.peak.max(world.kernel().process(world.this_process()).mm.resident());
        }
        is_first || self.tree.group.count(Counter::Pgmajfault) > major
    }

    fn counted(&self, misses: u64) -> Replayed {
        let world = current();
        let count = |counter| self.tree.group.count(counter);
        Replayed {
            misses,
            cached: count(Counter::SwapCacheHit),
            read: count(Counter::AreaPagesRead),
            written: count(Counter::AreaPagesWritten),
            used: world.happened(Happening::CameAlong),
            wasted: world.happened(Happening::CameForNothing),
            peak: self.peak,
        }
    }

    /// Pages that have come in and were not used since.
    fn never_used(&self) -> u64 {
        let world = current();
        let kernel = world.kernel();
        let mm = &kernel.process(world.this_process()).mm;
        let is_unused = |page: usize| {
            mm.pte(page).page().is_some_and(|page| !page.is_accessed && page.content != crate::Content::ZERO)
        };
        (BASE..BASE + self.is_known.len()).filter(|&page| is_unused(page)).count() as u64
    }
}
