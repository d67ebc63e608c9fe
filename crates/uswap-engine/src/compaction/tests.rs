//! The real books, pool and ledger, and a program that is a map of what each page should hold.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use uswap_core::reclaim::IsolationOutcome;
use uswap_core::{
    CoreConfig, EntryId, FaultPlan, FrameLeft, Location, PageNumber, PageRange, PageState, StoreResult, Stored,
};

use uswap_sys::linux::Linux;

use super::*;
use crate::lock_order::{Level, LockGuard};

const PAGES: u64 = 8192;
const FRAME_BLOCKS: u32 = 4;

/// xorshift64*: chance from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }
}

/// Object number `id`: its length and its bytes follow from it, and its hash is it. There are eight size classes: each has
/// half a slab to spare at the end, which would be much of a pool as small as this one.
fn object_len(id: u64) -> usize {
    let mut chance = Chance(id.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    (256 * (1 + chance.below(8)) - chance.below(20)) as usize
}

fn object_bytes(id: u64) -> impl Iterator<Item = u8> {
    (0u64..).map(move |i| (id.wrapping_mul(0x9E37_79B9).wrapping_add(i * 7) >> 5) as u8)
}

fn is_object(bytes: &[u8], id: u64) -> bool {
    bytes.len() == object_len(id) && bytes.iter().zip(object_bytes(id)).all(|(found, expected)| *found == expected)
}

struct Rig {
    heirs: Lock<Vec<Ledger>, Linux>,
    core: Lock<Core, Linux>,
    pool: Lock<Zpool, Linux>,
    view: PoolView,
    /// Of each page that is not in the program, the number of its object. Locked after `core`.
    model: Mutex<HashMap<PageNumber, u64>>,
    last_id: AtomicU64,
}

impl Rig {
    /// A program with all its pages in memory.
    fn new() -> Rig {
        let mut core = Core::new(CoreConfig {
            frame_blocks: FRAME_BLOCKS,
            area_slots: Vec::new(),
            window_max: 1,
            ahead_max: 0,
            ..CoreConfig::default()
        });
        let all = PageRange { start: PageNumber(0), pages: PAGES };
        core.adopt(all);
        core.found_present(all);
        let pool = Zpool::new(64 << 20).unwrap();
        Rig {
            heirs: Lock::new(Level::Heirs, Vec::new()),
            core: Lock::new(Level::Books, core),
            view: pool.view(),
            pool: Lock::new(Level::Pool, pool),
            model: Mutex::default(),
            last_id: AtomicU64::new(0),
        }
    }

    fn round(&self, compaction: &mut Compaction) -> Round {
        self.round_with(compaction, &|released| self.free(released))
    }

    fn round_with(&self, compaction: &mut Compaction, release: &dyn Fn(&mut Vec<Released>)) -> Round {
        let Rig { heirs, core, pool, view, .. } = self;
        compaction.round(Parts { heirs, core, pool, view: *view, release })
    }

    /// Stores a block of pages, as swap-out does; says whether there was one. One thread at a time.
    fn evict(&self) -> bool {
        let mut core = self.core.lock();
        let Some(isolation) = core.isolate() else { return false };
        let outcome = IsolationOutcome { moved: isolation.mask, ..Default::default() };
        let _ = core.isolated(isolation, outcome);
        drop(core);
        loop {
            let Some(job) = self.core.lock().next_store() else { break };
            let index = (0..16).find(|&index| isolation.frames.frame(index) == job.frame).unwrap();
            let id = self.last_id.fetch_add(1, Relaxed) + 1;
            let len = object_len(id);
            let handle = self.pool.lock().alloc(len).unwrap();
            // SAFETY: the object is new, and nobody else knows of it until `stored`.
            let bytes = unsafe { self.view.slice_mut(handle, len) };
            bytes.iter_mut().zip(object_bytes(id)).for_each(|(byte, new)| *byte = new);
            let mut core = self.core.lock();
            self.model.lock().unwrap().insert(isolation.first.plus(index as u64), id);
            let result = StoreResult::Pool { handle: handle.0, len: len as u16, hash: id.into() };
            assert_eq!(core.stored(job, result), Stored::Done);
        }
        let mut core = self.core.lock();
        while let Some((block, _)) = core.take_trash() {
            core.trashed(block);
        }
        self.release(core);
        true
    }

    /// Brings a page in, as a fault does, and compares it; says whether it was out.
    fn load(&self, page: PageNumber) -> bool {
        let mut core = self.core.lock();
        if !matches!(core.pages().get(page), Some(PageState::Swapped { .. })) {
            return false;
        }
        let FaultPlan::Load(plan) = core.fault(page, false) else { panic!("a swapped page is loaded") };
        let [load] = plan.pages() else { panic!("nothing is read ahead") };
        let expected = self.model.lock().unwrap()[&page];
        drop(core);
        let Location::Pool { handle, len } = load.location else { panic!("all is in the pool") };
        std::thread::yield_now();
        // SAFETY: the load pins its entry, so its object stays as it is.
        let object = unsafe { self.view.slice(Handle(handle), len.into()) };
        assert!(load.hash == expected.into() && is_object(object, expected), "{page:?} is not {expected}");
        let mut core = self.core.lock();
        core.load_done(load, plan.op, FrameLeft::Populated, false, false);
        self.release(core);
        true
    }

    fn release(&self, mut core: LockGuard<'_, Core, Linux>) {
        let mut released = Vec::new();
        core.take_released(&mut released);
        drop(core);
        self.free(&mut released);
    }

    fn free(&self, released: &mut Vec<Released>) {
        let mut pool = self.pool.lock();
        for place in released.drain(..) {
            let Location::Pool { handle, len } = place.location else { panic!("all is in the pool") };
            pool.free(Handle(handle), len.into());
        }
    }

    fn evict_all(&self) {
        while self.evict() {}
    }

    /// Loads `percent` of the first `pages` pages, as far as they are out.
    fn load_percent_of(&self, pages: u64, percent: u64, chance: &mut Chance) {
        for page in (0..pages).map(PageNumber) {
            if chance.below(100) < percent {
                self.load(page);
            }
        }
    }

    fn load_percent(&self, percent: u64, chance: &mut Chance) {
        self.load_percent_of(PAGES, percent, chance);
    }

    /// A whole pass; says how many objects have moved.
    fn compact(&self, compaction: &mut Compaction) -> usize {
        let mut moved = 0;
        loop {
            moved += self.round(compaction).moved;
            if compaction.is_resting() {
                return moved;
            }
        }
    }

    /// Gives back what is empty beyond the reserve.
    fn trim(&self) {
        while self.pool.lock().trim(TRIMMED) > 0 {}
    }

    fn waste(&self) -> f64 {
        self.pool.lock().usage().waste()
    }

    fn check_all(&self) {
        let core = self.core.lock();
        let table = core.swap_table();
        for (&page, &id) in self.model.lock().unwrap().iter() {
            let Some(PageState::Swapped { entry }) = core.pages().get(page) else { continue };
            let Location::Pool { handle, len } = table.location(entry) else { panic!("all is in the pool") };
            // SAFETY: nobody else uses the rig at this moment.
            assert!(is_object(unsafe { self.view.slice(Handle(handle), len.into()) }, id));
        }
        // Zombies are counted by both.
        assert_eq!(self.pool.lock().objects() as u64, core.pool_objects());
    }
}

#[test]
fn after_churn_less_than_a_tenth_of_the_pool_is_waste() {
    let rig = Rig::new();
    let mut chance = Chance(1);
    let mut compaction = Compaction::new(Instant::now());
    rig.evict_all();
    for _ in 0..3 {
        rig.load_percent(60, &mut chance);
        rig.trim();
        let before = rig.waste();
        let moved = rig.compact(&mut compaction);
        rig.trim();
        let after = rig.waste();
        assert!(before > 0.4 && moved > 0, "{before} before: there is something to compact");
        assert!(after < 0.1, "{after} after, {before} before");
        rig.check_all();
        rig.evict_all();
        rig.check_all();
    }
}

#[test]
fn a_dense_pool_is_left_alone() {
    let rig = Rig::new();
    let mut compaction = Compaction::new(Instant::now());
    rig.evict_all();
    assert_eq!(rig.compact(&mut compaction), 0);
    rig.load_percent(80, &mut Chance(2));
    assert!(rig.compact(&mut compaction) > 0);
    assert_eq!(rig.compact(&mut compaction), 0, "nothing is left to do");
}

#[test]
fn contents_stay_whole_while_threads_load_store_and_compact() {
    for seed in 1..=2 {
        let rig = Rig::new();
        rig.evict_all();
        let (over, moved, begun) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
        std::thread::scope(|scope| {
            let compactor = scope.spawn(|| {
                let mut compaction = Compaction::new(Instant::now());
                while !over.load(Relaxed) {
                    moved.fetch_add(rig.round(&mut compaction).moved as u64, Relaxed);
                    if compaction.is_resting() {
                        std::thread::yield_now();
                    }
                }
            });
            let loaders: Vec<_> = (0..2)
                .map(|thread| {
                    let (rig, moved) = (&rig, &moved);
                    scope.spawn(move || {
                        let mut chance = Chance(seed * 16 + thread + 1);
                        // Most pages of one half come and go; in the other half few do.
                        for round in 0.. {
                            // On a busy machine the compactor has not had a turn by then.
                            let has_compacted = moved.load(Relaxed) > 0 || begun.elapsed() > Duration::from_secs(20);
                            if round >= 6000 && has_compacted {
                                break;
                            }
                            let within = if chance.below(8) == 0 { PAGES } else { PAGES / 2 };
                            rig.load(PageNumber(chance.below(within)));
                        }
                    })
                })
                .collect();
            while !loaders.iter().all(|loader| loader.is_finished()) {
                if !rig.evict() {
                    std::thread::yield_now();
                }
            }
            loaders.into_iter().for_each(|loader| loader.join().unwrap());
            over.store(true, Relaxed);
            compactor.join().unwrap();
        });
        assert!(moved.into_inner() > 0, "nothing was compacted");
        rig.check_all();
        rig.load_percent(100, &mut Chance(seed));
        assert_eq!(rig.pool.lock().objects(), 0);
    }
}

/// Forks; the child runs `test` and ends. Returns its id.
fn in_a_child(test: impl FnOnce()) -> i32 {
    // SAFETY: glibc makes malloc usable in the child of a process with threads; the child runs `test` and exits.
    match unsafe { libc::fork() } {
        0 => {
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).is_ok();
            // SAFETY: ends the child without running anything of the test harness.
            unsafe { libc::_exit(if passed { 0 } else { 1 }) }
        }
        child => child,
    }
}

fn passed(child: i32) -> bool {
    let mut status = 0;
    // SAFETY: `child` is ours, `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_child_reads_what_was_stored_before_the_fork_while_its_parent_compacts() {
    let rig = Rig::new();
    let mut chance = Chance(3);
    let mut compaction = Compaction::new(Instant::now());
    rig.evict_all();
    // As `Engine::write_ledger`.
    let inherited: Vec<(EntryId, Handle, u16, u64)> = {
        let mut core = rig.core.lock();
        let table = core.swap_table();
        let ledger = Ledger::new(table.len()).unwrap();
        ledger.fork_begins_with(core.inherited());
        let named = core.inherited().iter().map(|entry| match table.location(entry) {
            Location::Pool { handle, len } => (entry, Handle(handle), len, table.hash(entry) as u64),
            Location::Slot { .. } => panic!("all is in the pool"),
        });
        let named = named.collect();
        core.add_heir();
        drop(core);
        rig.heirs.lock().push(ledger);
        named
    };
    let read_all = || {
        inherited.iter().all(|&(_, handle, len, id)| {
            // SAFETY: the parent keeps what its ledger names.
            is_object(unsafe { rig.view.slice(handle, len.into()) }, id)
        })
    };
    let (mut parent_is_done, done) = std::io::pipe().unwrap();
    let mut done = Some(done);
    let (mut has_read, reading) = std::io::pipe().unwrap();
    let child = in_a_child(|| {
        drop(done.take());
        rig.heirs.lock()[0].register(crate::group::Holder { index: 0, generation: 0 });
        assert!(read_all());
        (&reading).write_all(&[1]).unwrap();
        for _ in 0..20 {
            assert!(read_all());
        }
        // Returns when the parent has closed its end.
        assert_eq!(parent_is_done.read(&mut [0]).unwrap(), 0);
        assert!(read_all());
    });
    drop(reading);
    has_read.read_exact(&mut [0]).unwrap();
    let mut moved = 0;
    for _ in 0..4 {
        // A quarter of the pages is never touched: its objects are still the parent's when the child has ended.
        rig.load_percent_of(PAGES / 4 * 3, 70, &mut chance);
        moved += rig.compact(&mut compaction);
        rig.evict_all();
    }
    rig.load_percent_of(PAGES / 4 * 3, 70, &mut chance);
    rig.check_all();
    assert!(moved > 0, "what was stored after the fork may move");
    assert!(read_all());
    drop(done);
    assert!(passed(child), "the child found something else");
    // As `Engine::settle_heirs`.
    assert!(!rig.heirs.lock()[0].is_alive(crate::group::Heirs::Present, |_| false));
    rig.heirs.lock().remove(0).discard();
    let mut core = rig.core.lock();
    core.no_heirs();
    core.bury_unheld(|_, _| false);
    rig.release(core);
    rig.check_all();
    assert!(rig.compact(&mut compaction) > 0, "from here on the parent's objects may move again");
    rig.check_all();
}

/// Other threads let go of places under one lock of the books and take them under the next. What they have not taken yet, a
/// round takes: it must not take it for its own.
#[test]
fn what_others_have_let_go_is_released_as_theirs() {
    let rig = Rig::new();
    rig.evict_all();
    let mut chance = Chance(5);
    rig.load_percent(70, &mut chance);
    let mut compaction = Compaction::new(Instant::now());
    while !matches!(compaction.stage, Stage::Moving(_)) {
        rig.round(&mut compaction);
    }
    // As an install does that has not come to the taking.
    let (page, entry) = {
        let core = rig.core.lock();
        let out = |page: &PageNumber| matches!(core.pages().get(*page), Some(PageState::Swapped { .. }));
        let page = (0..PAGES).map(PageNumber).find(out).unwrap();
        let Some(PageState::Swapped { entry }) = core.pages().get(page) else { unreachable!() };
        (page, entry)
    };
    let mut core = rig.core.lock();
    let FaultPlan::Load(plan) = core.fault(page, false) else { panic!("a swapped page is loaded") };
    core.load_done(&plan.pages()[0], plan.op, FrameLeft::Populated, false, false);
    drop(core);
    let seen = Mutex::new(Vec::new());
    rig.round_with(&mut compaction, &|released| {
        seen.lock().unwrap().extend(released.iter().map(|place| place.entry));
        rig.free(released);
    });
    assert!(seen.lock().unwrap().contains(&entry), "it was left to nobody");
}
