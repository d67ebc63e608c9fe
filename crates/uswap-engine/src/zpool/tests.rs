use super::*;
use std::collections::BTreeMap;

/// xorshift64*: chance from a seed.
struct Chance(u64);
impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

/// A byte pattern that differs between objects and along one object.
fn pattern(tag: u32) -> impl Iterator<Item = u8> {
    (0u32..).map(move |i| (tag.wrapping_mul(0x9E37_79B9).wrapping_add(i * 7) >> 5) as u8)
}

fn store(pool: &mut Zpool, tag: u32, len: usize) -> Handle {
    let handle = pool.alloc(len).expect("the pool has room");
    // SAFETY: the object was allocated on the line above and only this thread has its handle.
    let bytes = unsafe { pool.slice_mut(handle, len) };
    bytes.iter_mut().zip(pattern(tag)).for_each(|(b, p)| *b = p);
    handle
}

fn check(bytes: &[u8], tag: u32) -> bool {
    bytes.iter().zip(pattern(tag)).all(|(b, p)| *b == p)
}

/// RssShmem of this process, in bytes.
fn rss_shmem() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssShmem:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// Runs `test` in a forked child, where no other test changes the resident memory. Says whether it returned.
fn passes_in_a_child(test: impl FnOnce()) -> bool {
    // SAFETY: glibc makes malloc usable in the child of a process with threads; the child runs `test` and exits.
    match unsafe { libc::fork() } {
        0 => {
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).is_ok();
            // SAFETY: ends the child without running anything of the test harness.
            unsafe { libc::_exit(if passed { 0 } else { 1 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `child` is ours, `status` outlives the call.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(waited, child);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

const MIB: usize = 1 << 20;

/// Counts everything anew.
fn check_books(pool: &Zpool) {
    let mut classes = [ClassUse::default(); CLASS_UNITS_MAX + 1];
    let (mut empty, mut returned, mut leaving) = (0, 0, 0);
    for index in 0..pool.first_fresh as u32 {
        let slab = pool.slab(index);
        let used: u32 = slab.taken.iter().map(|word| word.count_ones()).sum();
        assert_eq!(used, u32::from(slab.used));
        match slab.place {
            Place::Fresh => panic!("slab {index} was used and is fresh"),
            Place::Empty => empty += 1,
            Place::Returned => returned += 1,
            Place::Leaving => leaving += 1,
            Place::Partial { .. } | Place::Full => assert_eq!(slab.place, slab.place_by_use()),
        }
        if slab.class_units == 0 {
            assert!(used == 0 && matches!(slab.place, Place::Empty | Place::Returned));
            continue;
        }
        assert!(used > 0);
        let class = &mut classes[usize::from(slab.class_units)];
        class.slabs += 1;
        class.leaving += usize::from(slab.place == Place::Leaving);
        class.objects += used as usize;
    }
    assert_eq!((pool.empty.len, pool.returned.len, pool.leaving.len), (empty, returned, leaving));
    assert_eq!(pool.classes, classes);
    for (units, groups) in pool.partial.iter().enumerate() {
        for (group, list) in groups.iter().enumerate() {
            let (mut index, mut len) = (list.first, 0);
            while index != NO_SLAB {
                let slab = pool.slab(index);
                assert_eq!(slab.place, Place::Partial { group: group as u8 });
                assert_eq!(usize::from(slab.class_units), units);
                (index, len) = (slab.next, len + 1);
            }
            assert_eq!(list.len, len);
        }
    }
}

/// A pool with the place of each object by its number, as an owner would have it.
struct Owner {
    pool: Zpool,
    chosen: SlabSet,
    objects: BTreeMap<u32, (Handle, usize)>,
}

impl Owner {
    fn new(bytes: usize) -> Owner {
        Owner { pool: Zpool::new(bytes).unwrap(), chosen: SlabSet::default(), objects: BTreeMap::new() }
    }

    fn store(&mut self, tag: u32, len: usize) {
        let handle = store(&mut self.pool, tag, len);
        assert!(self.objects.insert(tag, (handle, len)).is_none());
    }

    fn free(&mut self, tag: u32) {
        let (handle, len) = self.objects.remove(&tag).unwrap();
        // SAFETY: the object is live, and this is the only thread.
        assert!(check(unsafe { self.pool.slice(handle, len) }, tag));
        self.pool.free(handle, len);
    }

    /// Moves an object that is to leave its slab; says whether it did.
    fn move_one(&mut self, tag: u32) -> bool {
        let (handle, len) = self.objects[&tag];
        if !self.chosen.contains(handle) {
            return false;
        }
        let Some(target) = self.pool.move_target(handle, len) else { return false };
        assert_ne!(target.slab(), handle.slab());
        let view = self.pool.view();
        // SAFETY: both are live objects of this length, and this is the only thread.
        unsafe { view.slice_mut(target, len).copy_from_slice(view.slice(handle, len)) };
        self.pool.free(handle, len);
        self.objects.insert(tag, (target, len));
        true
    }

    fn compact(&mut self) -> usize {
        self.pool.choose_leaving(&mut self.chosen, usize::MAX);
        let tags: Vec<u32> = self.objects.keys().copied().collect();
        let moved = tags.into_iter().filter(|&tag| self.move_one(tag)).count();
        assert!(self.pool.stop_leaving(usize::MAX));
        self.chosen.clear();
        moved
    }

    fn check(&self) {
        check_books(&self.pool);
        for (&tag, &(handle, len)) in &self.objects {
            // SAFETY: the object is live, and this is the only thread.
            assert!(check(unsafe { self.pool.slice(handle, len) }, tag));
        }
        assert_eq!(self.pool.objects(), self.objects.len());
    }
}

#[test]
fn classes_hold_their_lengths_and_fill_their_slabs() {
    for len in 1..=OBJECT_BYTES_MAX {
        let units = class_units(len);
        assert!(units * UNIT_BYTES >= len && units <= CLASS_UNITS_MAX);
        assert!(units == len.div_ceil(UNIT_BYTES) || (SLAB_UNITS % units) * 8 < SLAB_UNITS, "{len}");
    }
    assert_eq!(class_units(1), 1);
    assert_eq!(class_units(64), 1);
    assert_eq!(class_units(65), 2);
    // 15 objects a slab either way.
    assert_eq!(class_units(33 * 64), 34);
    assert_eq!(class_units(3840), 64);
    assert_eq!(class_units(4096), 64);
}

#[test]
fn contents_never_overlap() {
    for seed in 1..=4u64 {
        let mut chance = Chance(0x9E37_79B9_7F4A_7C15 ^ seed);
        let mut pool = Zpool::new(64 * MIB).unwrap();
        let mut model: BTreeMap<Handle, (u32, usize)> = BTreeMap::new();
        for step in 0..20_000u32 {
            let grow = step / 4000 % 2 == 0;
            if chance.below(10) < if grow { 7 } else { 3 } {
                // Sizes of one phase lie together, so that slabs change their class between phases.
                let len = match step / 3000 % 3 {
                    0 => 1 + chance.below(4096),
                    1 => 1 + chance.below(300),
                    _ => 2000 + chance.below(2097),
                };
                let handle = store(&mut pool, step, len);
                assert!(model.insert(handle, (step, len)).is_none());
            } else if !model.is_empty() {
                let from = Handle(chance.below(pool.capacity() / UNIT_BYTES) as u32);
                let (&handle, &(tag, len)) = model.range(from..).next().or_else(|| model.first_key_value()).unwrap();
                // SAFETY: the model says that the object is live, and this is the only thread.
                assert!(check(unsafe { pool.slice(handle, len) }, tag));
                pool.free(handle, len);
                model.remove(&handle);
            }
            if step % 5000 == 4999 {
                pool.shrink();
                for (&handle, &(tag, len)) in &model {
                    // SAFETY: as above.
                    assert!(check(unsafe { pool.slice(handle, len) }, tag));
                }
            }
            assert_eq!(pool.objects(), model.len());
        }
        let stored: usize = model.values().map(|&(_, len)| len).sum();
        assert_eq!(pool.stored_bytes(), stored);
        let usage = pool.usage();
        let waste = usage.rounding_bytes + usage.tail_bytes + usage.hole_bytes + usage.empty_bytes;
        assert_eq!(usage.pool_bytes, stored + waste, "{usage:?}");
        for (handle, (tag, len)) in model {
            // SAFETY: as above.
            assert!(check(unsafe { pool.slice(handle, len) }, tag));
            pool.free(handle, len);
        }
        pool.shrink();
        assert_eq!((pool.pool_bytes(), pool.stored_bytes()), (0, 0));
    }
}

#[test]
fn the_fullest_slab_is_filled_first() {
    let mut pool = Zpool::new(MIB).unwrap();
    let objects: Vec<Handle> = (0..24).map(|tag| store(&mut pool, tag, 4096)).collect();
    // Three slabs of 8. Leave 1 object in the first, 7 in the second, 4 in the third.
    for &handle in objects[1..8].iter().chain(&objects[8..9]).chain(&objects[20..24]) {
        pool.free(handle, 4096);
    }
    let slabs: Vec<usize> = (0..6).map(|tag| store(&mut pool, tag, 4000).slab()).collect();
    assert_eq!(slabs, [1, 2, 2, 2, 2, 0]);
}

#[test]
fn a_full_pool_refuses() {
    let mut pool = Zpool::new(2 * SLAB_BYTES).unwrap();
    let objects: Vec<Handle> = std::iter::from_fn(|| pool.alloc(4096)).collect();
    assert_eq!(objects.len(), 16);
    assert_eq!(pool.alloc(1), None);
    pool.free(objects[3], 4096);
    assert_eq!(pool.alloc(4096), Some(objects[3]));
}

#[test]
fn a_pool_larger_than_the_address_space_is_made_smaller() {
    assert!(passes_in_a_child(|| {
        let limit = libc::rlimit { rlim_cur: 4 << 30, rlim_max: 4 << 30 };
        // SAFETY: `limit` outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let mut pool = Zpool::new(64 << 30).unwrap();
        assert!(pool.capacity() < 4 << 30 && pool.capacity() >= 1 << 30);
        store(&mut pool, 1, 100);
    }));
}

#[test]
#[should_panic(expected = "freed twice?")]
fn freeing_an_object_twice_panics() {
    let mut pool = Zpool::new(MIB).unwrap();
    let handle = store(&mut pool, 1, 1000);
    let _other = store(&mut pool, 2, 1000);
    pool.free(handle, 1000);
    pool.free(handle, 1000);
}

#[test]
#[should_panic(expected = "freed but not allocated")]
fn freeing_with_another_length_class_panics() {
    let mut pool = Zpool::new(MIB).unwrap();
    let handle = store(&mut pool, 1, 1000);
    pool.free(handle, 2000);
}

#[test]
#[should_panic(expected = "freed but not allocated")]
fn freeing_the_last_object_of_a_slab_twice_panics() {
    let mut pool = Zpool::new(MIB).unwrap();
    let handle = store(&mut pool, 1, 1000);
    pool.free(handle, 1000);
    pool.free(handle, 1000);
}

#[test]
#[should_panic(expected = "never allocated")]
fn freeing_a_handle_of_a_fresh_slab_panics() {
    Zpool::new(MIB).unwrap().free(Handle(0), 10);
}

#[test]
#[should_panic(expected = "points into an object")]
fn freeing_the_middle_of_an_object_panics() {
    let mut pool = Zpool::new(MIB).unwrap();
    let handle = store(&mut pool, 1, 1000);
    pool.free(Handle(handle.0 + 1), 1000);
}

#[test]
#[should_panic(expected = "outside of a pool")]
fn a_handle_past_the_end_is_refused() {
    let pool = Zpool::new(SLAB_BYTES).unwrap();
    // SAFETY: the call panics before it makes a slice: that is the test.
    unsafe { pool.slice(Handle(SLAB_UNITS as u32 - 1), 65) };
}

#[test]
fn empty_slabs_go_back_to_the_kernel() {
    assert!(passes_in_a_child(|| {
        let mut pool = Zpool::new(256 * MIB).unwrap();
        let before = rss_shmem();
        let objects: Vec<Handle> = (0..8192).map(|tag| store(&mut pool, tag, 4096)).collect();
        let full = rss_shmem() - before;
        assert_eq!(pool.pool_bytes(), 32 * MIB);
        assert!(full.abs_diff(32 * MIB) < MIB, "{full}");
        // The second half: `free` itself keeps no more than the reserve.
        for &handle in &objects[4096..] {
            pool.free(handle, 4096);
        }
        let half = rss_shmem() - before;
        assert!(pool.pool_bytes() <= 16 * MIB + 2 * EMPTY_RESERVE * SLAB_BYTES);
        assert!(half.abs_diff(pool.pool_bytes()) < MIB, "{half}");
        // `shrink` gives the reserve back too.
        assert!(pool.shrink() > 0);
        assert_eq!(pool.pool_bytes(), 16 * MIB);
        assert!((rss_shmem() - before).abs_diff(16 * MIB) < MIB);
        // What is left is unharmed, and what went back can be used again.
        for (tag, &handle) in objects[..4096].iter().enumerate() {
            // SAFETY: these objects are live, and this is the only thread.
            assert!(check(unsafe { pool.slice(handle, 4096) }, tag as u32));
        }
        for tag in 0..4096 {
            store(&mut pool, tag, 4096);
        }
        assert_eq!(pool.pool_bytes(), 32 * MIB);
    }));
}

#[test]
fn a_forked_child_reads_its_parents_objects() {
    let mut pool = Zpool::new(256 * MIB).unwrap();
    let objects: Vec<(Handle, usize)> = (0..6000)
        .map(|tag| {
            let len = 1500 + tag % 2500;
            (store(&mut pool, tag as u32, len), len)
        })
        .collect();
    let bytes = pool.pool_bytes();
    assert!(passes_in_a_child(|| {
        // SAFETY: the parent waits for this child and uses its own `pool` only afterwards; here the copy of the
        // value is the only one.
        let foreign = unsafe { std::ptr::read(&pool) }.into_foreign();
        let read_all = || {
            objects.iter().enumerate().all(|(tag, &(handle, len))| {
                // SAFETY: the parent keeps its objects until this child is gone.
                check(unsafe { foreign.slice(handle, len) }, tag as u32)
            })
        };
        let before = rss_shmem();
        assert!(read_all());
        let read = rss_shmem();
        assert!(read - before > bytes * 3 / 4, "{before} {read} {bytes}");
        foreign.drop_resident().unwrap();
        let dropped = rss_shmem();
        assert!(dropped < read - bytes * 3 / 4, "{read} {dropped}");
        assert!(read_all());
        std::mem::forget(foreign);
    }));
    // The child's end and its `drop_resident` did no harm here.
    for (tag, &(handle, len)) in objects.iter().enumerate() {
        // SAFETY: the object is live, and this is the only thread that has its handle.
        assert!(check(unsafe { pool.slice(handle, len) }, tag as u32));
        pool.free(handle, len);
    }
}

#[test]
fn a_view_is_used_while_the_pool_is_locked() {
    let pool = std::sync::Mutex::new(Zpool::new(16 * MIB).unwrap());
    let view = pool.lock().unwrap().view();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..2000u32 {
                    let tag = thread << 16 | round;
                    let len = 1 + (tag as usize * 37) % 4096;
                    let handle = pool.lock().unwrap().alloc(len).unwrap();
                    // SAFETY: this thread alone has the handle.
                    let bytes = unsafe { view.slice_mut(handle, len) };
                    bytes.iter_mut().zip(pattern(tag)).for_each(|(b, p)| *b = p);
                    // SAFETY: as above.
                    assert!(check(unsafe { view.slice(handle, len) }, tag));
                    pool.lock().unwrap().free(handle, len);
                }
            });
        }
    });
    assert_eq!(pool.lock().unwrap().objects(), 0);
}

#[test]
fn compaction_gives_back_what_the_holes_add_up_to() {
    let mut owner = Owner::new(64 * MIB);
    (0..1600).for_each(|tag| owner.store(tag, 1000));
    assert_eq!(owner.pool.classes[16].slabs, 50);
    (0..1600).filter(|tag| tag % 4 != 0).for_each(|tag| owner.free(tag));
    assert_eq!(owner.pool.spare_slabs(), 37, "400 objects fit into 13 slabs");
    // 24 each are enough for the 13 slabs that stay.
    assert_eq!(owner.compact(), 37 * 8);
    assert_eq!((owner.pool.spare_slabs(), owner.pool.classes[16].slabs), (0, 13));
    owner.check();
    assert_eq!(owner.compact(), 0);
}

#[test]
fn the_sparsest_slabs_run_empty() {
    let mut owner = Owner::new(MIB);
    (0..24).for_each(|tag| owner.store(tag, 4096));
    // Three slabs of 8: 3 objects stay in the first, 6 in the second, 1 in the third.
    (0..5).chain(8..10).chain(17..24).for_each(|tag| owner.free(tag));
    assert_eq!(owner.pool.choose_leaving(&mut owner.chosen, usize::MAX), 1);
    assert!(owner.chosen.contains(owner.objects[&16].0));
    assert!((0..16).all(|tag| owner.objects.get(&tag).is_none_or(|&(handle, _)| !owner.chosen.contains(handle))));
    assert!(owner.move_one(16));
    owner.check();
    assert_eq!(owner.pool.leaving_slabs(), 0);
}

#[test]
fn a_slab_that_is_leaving_takes_no_object_until_it_may_stay() {
    let mut owner = Owner::new(MIB);
    (0..16).for_each(|tag| owner.store(tag, 4096));
    // Two slabs with 3 objects each.
    (0..5).chain(8..13).for_each(|tag| owner.free(tag));
    assert_eq!(owner.pool.choose_leaving(&mut owner.chosen, usize::MAX), 1);
    // The other has room for 5, the next 8 have a slab of their own.
    (100..113).for_each(|tag| owner.store(tag, 4096));
    assert!((100..113).all(|tag| !owner.chosen.contains(owner.objects[&tag].0)));
    let leaving = (0..16).find(|tag| owner.objects.get(tag).is_some_and(|&(handle, _)| owner.chosen.contains(handle)));
    assert!(!owner.move_one(leaving.unwrap()), "no holes are left");
    assert!(owner.pool.stop_leaving(usize::MAX));
    owner.store(200, 4096);
    assert!(owner.chosen.contains(owner.objects[&200].0));
    owner.check();
}

#[test]
fn where_all_address_space_is_taken_a_leaving_slab_takes_objects() {
    let mut owner = Owner::new(2 * SLAB_BYTES);
    (0..16).for_each(|tag| owner.store(tag, 4096));
    (0..5).chain(8..13).for_each(|tag| owner.free(tag));
    assert_eq!(owner.pool.choose_leaving(&mut owner.chosen, usize::MAX), 1);
    (100..110).for_each(|tag| owner.store(tag, 4096));
    assert_eq!(owner.pool.alloc(4096), None);
    assert_eq!(owner.pool.leaving_slabs(), 0);
    owner.check();
}

#[test]
fn contents_survive_compaction_that_stops_anywhere() {
    for seed in 1..=8u64 {
        let mut chance = Chance(0x9E37_79B9_7F4A_7C15 ^ seed);
        let mut owner = Owner::new(8 * MIB);
        let any = |owner: &Owner, chance: &mut Chance| {
            let from = chance.below(20_000) as u32;
            owner.objects.range(from..).next().or_else(|| owner.objects.first_key_value()).map(|(&tag, _)| tag)
        };
        let mut moved = 0;
        for step in 0..20_000u32 {
            // Some hundred objects of five classes come, then most go.
            let (stores, frees) = if step / 2500 % 2 == 0 { (10, 2) } else { (2, 10) };
            let drawn = chance.below(20);
            match drawn {
                _ if drawn < stores => {
                    let len = [60, 500, 1000, 2000, 4000][chance.below(5)] - chance.below(50);
                    owner.store(step, len);
                }
                _ if drawn < stores + frees => {
                    if let Some(tag) = any(&owner, &mut chance) {
                        owner.free(tag);
                    }
                }
                12..17 => {
                    let from = chance.below(20_000) as u32;
                    let leaves = |&(_, &(handle, _)): &(&u32, &(Handle, usize))| owner.chosen.contains(handle);
                    let next = owner.objects.range(from..).find(leaves).map(|(&tag, _)| tag);
                    moved += next.map_or(0, |tag| u32::from(owner.move_one(tag)));
                }
                17 | 18 if chance.below(10) == 0 => {
                    let most = chance.below(40);
                    owner.pool.choose_leaving(&mut owner.chosen, most);
                }
                19 if chance.below(100) == 0 => {
                    owner.pool.stop_leaving(1 + chance.below(4));
                    owner.pool.trim(chance.below(4));
                }
                _ => {}
            }
            if step % 1000 == 999 {
                owner.check();
            }
        }
        assert!(moved > 100, "{moved} objects moved");
        owner.compact();
        assert_eq!(owner.pool.spare_slabs(), 0);
        owner.check();
        let tags: Vec<u32> = owner.objects.keys().copied().collect();
        tags.into_iter().for_each(|tag| owner.free(tag));
        owner.pool.shrink();
        assert_eq!((owner.pool.pool_bytes(), owner.pool.stored_bytes()), (0, 0));
    }
}
