//! The allocator under zswap: size classes, and a pool that packs objects of a class into short chains of pages.
//!
//! An object of `s` bytes is kept with a handle word of 8, in the class of the next multiple of 16 (from 32). A *zspage* is a
//! chain of pages that holds objects of one class, over page borders; how many pages it has is what wastes least at its end.
//! Neighbouring classes that come to the same chain and the same number of objects are one class. Nothing is given back
//! but whole zspages, so a pool after many frees is larger than what it holds, until compaction moves objects from sparse
//! zspages to dense ones.
//!
//! Source: Linux 6.18. Only sizes are kept here, no bytes.

use alloc::vec::Vec;
use core::fmt;

/// Pages of a zspage at most, as configured by default (`CONFIG_ZSMALLOC_CHAIN_SIZE`; 4 to 16 are allowed).
pub const CHAIN_DEFAULT: u32 = 8;
/// Bytes of a page.
const PAGE_BYTES: u32 = 4096;
/// What a handle adds to each object, in bytes.
const HANDLE_BYTES: u32 = 8;
const SIZE_MIN: u32 = 32;
const SIZE_STEP: u32 = 16;
/// The last class holds whole pages.
const CLASS_LAST: u32 = (PAGE_BYTES - SIZE_MIN) / SIZE_STEP;
/// Empty, ten deciles, full.
const GROUPS: usize = 12;
const EMPTY: u8 = 0;
const FULL: u8 = GROUPS as u8 - 1;

/// A class of object sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeClass {
    /// Bytes of an object, its handle included.
    pub size: u32,
    /// Pages of a zspage.
    pub pages: u32,
    /// Objects of a zspage.
    pub objects: u32,
}

/// All classes that one chain length leads to.
#[derive(Clone, Debug)]
pub struct SizeClasses {
    classes: Vec<SizeClass>,
    /// Of each multiple of 16, the class.
    by_index: Vec<u8>,
}

impl SizeClasses {
    /// The classes for zspages of at most so many pages.
    ///
    /// # Panics
    /// Unless that is 4 to 16, as the kernel's configuration allows.
    pub fn new(chain_max: u32) -> Self {
        assert!((4..=16).contains(&chain_max), "a chain of {chain_max} pages cannot be configured");
        let mut classes: Vec<SizeClass> = Vec::new();
        let mut by_index = alloc::vec![0; CLASS_LAST as usize + 1];
        // From the largest down: a size that packs like the class above is part of it.
        for index in (0..=CLASS_LAST).rev() {
            let size = SIZE_MIN + SIZE_STEP * index;
            let pages = chain_length(size, chain_max);
            let objects = pages * PAGE_BYTES / size;
            if classes.last().is_none_or(|above| (above.pages, above.objects) != (pages, objects)) {
                classes.push(SizeClass { size, pages, objects });
            }
            by_index[index as usize] = (classes.len() - 1) as u8;
        }
        Self { classes, by_index }
    }

    /// The class of an object of `bytes` bytes, without its handle.
    ///
    /// # Panics
    /// When it is larger than a page.
    pub fn class_of(&self, bytes: u32) -> SizeClass {
        self.classes[self.number_of(bytes)]
    }

    /// All of them, the largest first.
    pub fn as_slice(&self) -> &[SizeClass] {
        &self.classes
    }

    fn number_of(&self, bytes: u32) -> usize {
        assert!(bytes <= PAGE_BYTES, "an object of {bytes} bytes is larger than a page");
        let index = (bytes + HANDLE_BYTES).saturating_sub(SIZE_MIN).div_ceil(SIZE_STEP).min(CLASS_LAST);
        self.by_index[index as usize].into()
    }
}

/// The shortest chain that wastes the fewest bytes at its end.
fn chain_length(size: u32, chain_max: u32) -> u32 {
    if size.is_power_of_two() {
        return 1;
    }
    (1..=chain_max).min_by_key(|pages| pages * PAGE_BYTES % size).expect("a chain has a page")
}

/// Names an object of a pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(u32);

#[derive(Clone, Copy)]
struct Object {
    class: u8,
    zspage: u32,
    index: u16,
    bytes: u16,
}

#[derive(Clone, Default)]
struct Zspage {
    /// By place: the handle of the object there.
    places: Vec<Option<Handle>>,
    used: u32,
    group: u8,
    /// Where it is in its group's list.
    listed: u32,
}

#[derive(Clone, Default)]
struct ClassPool {
    zspages: Vec<Zspage>,
    free_numbers: Vec<u32>,
    groups: [Vec<u32>; GROUPS],
    used: u64,
}

/// What a pool holds, and what it takes for that.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolUsage {
    /// Pages of all zspages.
    pub pages: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of the objects themselves.
    pub stored_bytes: u64,
    /// Bytes of the objects rounded up to their classes' sizes.
    pub class_bytes: u64,
}

impl PoolUsage {
    /// The share of the pool's memory, in thousandths, in which no object lies though one could, or that is a zspage's
    /// unusable end.
    pub fn fragmentation_permille(self) -> u64 {
        let bytes = self.pages * u64::from(PAGE_BYTES);
        ((bytes - self.class_bytes) * 1000).checked_div(bytes).unwrap_or(0)
    }
}

/// Books of a pool that do not agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolViolation {
    /// Bytes of an object of the class.
    pub class_size: u32,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for PoolViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zsmalloc class {}: {}", self.class_size, self.what)
    }
}

/// A pool.
#[derive(Clone)]
pub struct Zsmalloc {
    classes: SizeClasses,
    pools: Vec<ClassPool>,
    objects: Vec<Option<Object>>,
    free_handles: Vec<Handle>,
    usage: PoolUsage,
}

impl Default for Zsmalloc {
    fn default() -> Self {
        Self::new(CHAIN_DEFAULT)
    }
}

impl Zsmalloc {
    /// An empty pool whose zspages have at most so many pages.
    ///
    /// # Panics
    /// See [`SizeClasses::new`].
    pub fn new(chain_max: u32) -> Self {
        let classes = SizeClasses::new(chain_max);
        let pools = alloc::vec![ClassPool::default(); classes.classes.len()];
        Self { classes, pools, objects: Vec::new(), free_handles: Vec::new(), usage: PoolUsage::default() }
    }

    /// What it holds.
    pub fn usage(&self) -> PoolUsage {
        self.usage
    }

    /// Keeps an object: in the fullest zspage of its class that has room.
    ///
    /// # Panics
    /// When it is larger than a page.
    pub fn alloc(&mut self, bytes: u16) -> Handle {
        let class = self.classes.number_of(bytes.into());
        let SizeClass { size, pages, objects } = self.classes.classes[class];
        let pool = &mut self.pools[class];
        let zspage = pool.fullest_with_room().unwrap_or_else(|| {
            self.usage.pages += u64::from(pages);
            pool.add_zspage(objects)
        });
        let handle = self.free_handles.pop().unwrap_or_else(|| {
            self.objects.push(None);
            Handle(self.objects.len() as u32 - 1)
        });
        let index = pool.put(zspage, handle);
        self.objects[handle.0 as usize] = Some(Object { class: class as u8, zspage, index, bytes });
        self.usage.objects += 1;
        self.usage.stored_bytes += u64::from(bytes);
        self.usage.class_bytes += u64::from(size);
        handle
    }

    /// Length of an object in bytes.
    ///
    /// # Panics
    /// When there is none of that handle.
    pub fn bytes(&self, handle: Handle) -> u16 {
        self.object(handle).bytes
    }

    /// Drops an object; the zspage goes with its last.
    ///
    /// # Panics
    /// When there is none of that handle.
    pub fn free(&mut self, handle: Handle) {
        let object = self.object(handle);
        let class = self.classes.classes[usize::from(object.class)];
        self.objects[handle.0 as usize] = None;
        self.free_handles.push(handle);
        if self.pools[usize::from(object.class)].take(object.zspage, object.index) {
            self.usage.pages -= u64::from(class.pages);
        }
        self.usage.objects -= 1;
        self.usage.stored_bytes -= u64::from(object.bytes);
        self.usage.class_bytes -= u64::from(class.size);
    }

    /// Moves objects from sparse zspages to dense ones, class by class, as long as that empties one; the pages given back.
    pub fn compact(&mut self) -> u64 {
        let before = self.usage.pages;
        for (pool, class) in self.pools.iter_mut().zip(&self.classes.classes) {
            while pool.can_empty_one(class.objects) {
                let source = pool.sparsest().expect("two zspages have room");
                pool.hide(source);
                for index in 0..class.objects as u16 {
                    let Some(handle) = pool.zspages[source as usize].places[usize::from(index)] else { continue };
                    let target = pool.fullest_with_room().expect("the others have room for all of it");
                    let place = pool.put(target, handle);
                    let object = self.objects[handle.0 as usize].as_mut().expect("the object is live");
                    (object.zspage, object.index) = (target, place);
                    pool.used -= 1;
                }
                pool.drop_hidden(source);
                self.usage.pages -= u64::from(class.pages);
            }
        }
        before - self.usage.pages
    }

    /// Checks every zspage against the objects, and the counts.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self) -> Result<(), PoolViolation> {
        let mut usage = PoolUsage::default();
        for (pool, class) in self.pools.iter().zip(&self.classes.classes) {
            let wrong = |what| Err(PoolViolation { class_size: class.size, what });
            let mut used = 0;
            for (number, zspage) in pool.zspages.iter().enumerate().filter(|(_, zspage)| !zspage.places.is_empty()) {
                usage.pages += u64::from(class.pages);
                let mut here = 0;
                for (index, handle) in zspage.places.iter().enumerate() {
                    let Some(handle) = handle else { continue };
                    here += 1;
                    let Some(object) = self.objects[handle.0 as usize] else { return wrong("a place holds no object") };
                    if (object.zspage as usize, usize::from(object.index)) != (number, index) {
                        return wrong("an object is in two places");
                    }
                    usage.stored_bytes += u64::from(object.bytes);
                }
                if here != zspage.used || here == 0 {
                    return wrong("a zspage miscounts its objects");
                }
                if zspage.group != group_of(here, class.objects) {
                    return wrong("a zspage is in the wrong fullness group");
                }
                used += u64::from(here);
            }
            if used != pool.used {
                return wrong("the class miscounts its objects");
            }
            usage.objects += used;
            usage.class_bytes += used * u64::from(class.size);
        }
        if usage != self.usage {
            return Err(PoolViolation { class_size: 0, what: "the pool's totals are not the sums of its classes" });
        }
        Ok(())
    }

    fn object(&self, handle: Handle) -> Object {
        let object = self.objects.get(handle.0 as usize).copied().flatten();
        object.unwrap_or_else(|| panic!("handle {} names no object", handle.0))
    }
}

/// Empty is 0, full is 11, and each tenth in between has its own.
fn group_of(used: u32, objects: u32) -> u8 {
    match used {
        0 => EMPTY,
        all if all == objects => FULL,
        some => (some * 10 / objects) as u8 + 1,
    }
}

impl ClassPool {
    fn add_zspage(&mut self, objects: u32) -> u32 {
        let number = self.free_numbers.pop().unwrap_or_else(|| {
            self.zspages.push(Zspage::default());
            self.zspages.len() as u32 - 1
        });
        self.zspages[number as usize].places = alloc::vec![None; objects as usize];
        self.list(number);
        number
    }

    fn fullest_with_room(&self) -> Option<u32> {
        self.groups[..usize::from(FULL)].iter().rev().find_map(|group| group.last().copied())
    }

    fn sparsest(&self) -> Option<u32> {
        self.groups[1..usize::from(FULL)].iter().find_map(|group| group.last().copied())
    }

    /// Whether the holes of the class add up to a zspage.
    fn can_empty_one(&self, objects: u32) -> bool {
        let zspages: u64 = self.groups.iter().map(|group| group.len() as u64).sum();
        zspages * u64::from(objects) >= self.used + u64::from(objects)
    }

    fn put(&mut self, number: u32, handle: Handle) -> u16 {
        let zspage = &mut self.zspages[number as usize];
        let index = zspage.places.iter().position(Option::is_none).expect("the zspage has room");
        zspage.places[index] = Some(handle);
        zspage.used += 1;
        self.used += 1;
        self.regroup(number);
        index as u16
    }

    /// Empties a place; true when the zspage has gone with it.
    fn take(&mut self, number: u32, index: u16) -> bool {
        let zspage = &mut self.zspages[number as usize];
        zspage.places[usize::from(index)] = None;
        zspage.used -= 1;
        self.used -= 1;
        if zspage.used > 0 {
            self.regroup(number);
            return false;
        }
        self.hide(number);
        self.drop_hidden(number);
        true
    }

    fn regroup(&mut self, number: u32) {
        let zspage = &self.zspages[number as usize];
        if zspage.group != group_of(zspage.used, zspage.places.len() as u32) {
            self.hide(number);
            self.list(number);
        }
    }

    fn list(&mut self, number: u32) {
        let zspage = &mut self.zspages[number as usize];
        zspage.group = group_of(zspage.used, zspage.places.len() as u32);
        let group = &mut self.groups[usize::from(zspage.group)];
        zspage.listed = group.len() as u32;
        group.push(number);
    }

    /// Takes a zspage out of its group.
    fn hide(&mut self, number: u32) {
        let Zspage { group, listed, .. } = self.zspages[number as usize];
        let group = &mut self.groups[usize::from(group)];
        group.swap_remove(listed as usize);
        if let Some(&moved) = group.get(listed as usize) {
            self.zspages[moved as usize].listed = listed;
        }
    }

    fn drop_hidden(&mut self, number: u32) {
        self.zspages[number as usize] = Zspage::default();
        self.free_numbers.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn class(chain: u32, bytes: u32) -> (u32, u32, u32) {
        let class = SizeClasses::new(chain).class_of(bytes);
        (class.size, class.pages, class.objects)
    }

    #[test]
    fn t6d_size_classes_of_chains_of_eight() {
        for (bytes, expected) in [
            (24, (32, 1, 128)),
            (25, (48, 3, 256)),
            (1000, (1024, 1, 4)),
            (1360, (1424, 8, 23)),
            (2048, (2176, 8, 15)),
            (2720, (2864, 7, 10)),
            (3000, (3072, 3, 4)),
            (3260, (3408, 5, 6)),
            (3500, (3584, 7, 8)),
            (3624, (3632, 8, 9)),
            (3625, (4096, 1, 1)),
            (4096, (4096, 1, 1)),
        ] {
            assert_eq!(class(8, bytes), expected, "{bytes} bytes");
        }
    }

    #[test]
    fn the_chain_length_decides_how_many_classes_there_are() {
        for (chain, classes, largest) in [(4, 69, (3264, 4, 5)), (8, 119, (3632, 8, 9)), (16, 192, (3840, 15, 16))] {
            let all = SizeClasses::new(chain);
            assert_eq!(all.as_slice().len(), classes);
            let shared = all.as_slice().iter().find(|class| class.objects > 1).unwrap();
            assert_eq!((shared.size, shared.pages, shared.objects), largest);
        }
    }

    #[test]
    fn pages_come_and_go_with_whole_zspages() {
        let mut pool = Zsmalloc::default();
        // Nine objects in a zspage of eight pages.
        let handles: Vec<_> = (0..10).map(|_| pool.alloc(3624)).collect();
        assert_eq!(pool.usage().pages, 16);
        pool.free(handles[9]);
        assert_eq!(pool.usage().pages, 8);
        for &handle in &handles[..8] {
            pool.free(handle);
        }
        assert_eq!(pool.usage().pages, 8, "one object keeps them all");
        pool.free(handles[8]);
        assert_eq!(pool.usage(), PoolUsage::default());
    }

    #[test]
    fn the_fullest_zspage_with_room_is_filled_first() {
        let mut pool = Zsmalloc::default();
        let handles: Vec<_> = (0..12).map(|_| pool.alloc(1000)).collect();
        // Four to a page: the first page keeps one, the second three.
        for index in [0, 1, 2, 4] {
            pool.free(handles[index]);
        }
        pool.alloc(1000);
        pool.free(handles[3]);
        assert_eq!((pool.usage().pages, pool.check()), (2, Ok(())), "the hole of the second was filled");
    }

    #[test]
    fn compaction_gives_back_what_the_holes_add_up_to() {
        let mut pool = Zsmalloc::default();
        let handles: Vec<_> = (0..400).map(|_| pool.alloc(1000)).collect();
        for (index, &handle) in handles.iter().enumerate() {
            if index % 4 != 0 {
                pool.free(handle);
            }
        }
        assert_eq!(pool.usage().pages, 100);
        assert_eq!(pool.compact(), 75);
        assert_eq!((pool.usage().pages, pool.check()), (25, Ok(())));
        assert_eq!(pool.compact(), 0);
        assert!(handles.iter().step_by(4).all(|&handle| pool.bytes(handle) == 1000), "handles stay good");
    }

    /// Lengths as LZ4 makes them of a program's pages: many around a half, some small, a few that hardly compress.
    fn length(random: u64) -> u16 {
        match random % 10 {
            0..2 => 40 + (random >> 8) % 400,
            2..8 => 800 + (random >> 8) % 2000,
            _ => 2800 + (random >> 8) % 1296,
        }
        .try_into()
        .expect("lengths are below a page")
    }

    /// A pool of 20,000 objects of which nine out of ten were replaced by others, and then seven out of ten freed.
    fn churned() -> Zsmalloc {
        let mut pool = Zsmalloc::default();
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut handles: Vec<_> = (0..20_000).map(|_| pool.alloc(length(random()))).collect();
        for _ in 0..18_000 {
            let victim = random() as usize % handles.len();
            pool.free(handles[victim]);
            handles[victim] = pool.alloc(length(random()));
        }
        for _ in 0..14_000 {
            let victim = random() as usize % handles.len();
            pool.free(handles.swap_remove(victim));
        }
        pool
    }

    #[test]
    fn after_churn_compaction_leaves_less_than_a_tenth_unused() {
        let mut pool = churned();
        let before = pool.usage().fragmentation_permille();
        assert!(before > 300, "{before} per mille before: there is something to compact");
        pool.compact();
        let after = pool.usage().fragmentation_permille();
        assert!(after < 100, "{after} per mille after, {before} before");
        assert_eq!(pool.check(), Ok(()));
    }

    #[test]
    #[should_panic(expected = "handle 0 names no object")]
    fn an_object_is_not_freed_twice() {
        let mut pool = Zsmalloc::default();
        let handle = pool.alloc(100);
        pool.free(handle);
        pool.free(handle);
    }

    #[test]
    fn the_checker_finds_books_that_differ() {
        let what = |damage: &dyn Fn(&mut Zsmalloc)| {
            let mut pool = Zsmalloc::default();
            for _ in 0..3 {
                pool.alloc(1000);
            }
            assert_eq!(pool.check(), Ok(()));
            damage(&mut pool);
            pool.check().unwrap_err().what
        };
        let class = SizeClasses::new(8).number_of(1000);
        assert_eq!(what(&|pool| pool.objects[1] = None), "a place holds no object");
        assert_eq!(what(&|pool| pool.objects[1] = pool.objects[0]), "an object is in two places");
        assert_eq!(what(&|pool| pool.pools[class].zspages[0].used = 2), "a zspage miscounts its objects");
        assert_eq!(what(&|pool| pool.pools[class].zspages[0].group = 3), "a zspage is in the wrong fullness group");
        assert_eq!(what(&|pool| pool.pools[class].used = 4), "the class miscounts its objects");
        assert_eq!(what(&|pool| pool.usage.pages = 9), "the pool's totals are not the sums of its classes");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn model_objects_keep_their_length_and_pages_are_counted(
            steps in prop::collection::vec((0u8..8, any::<prop::sample::Index>(), 1u16..=4096), 1..80),
        ) {
            let mut pool = Zsmalloc::default();
            let mut live: Vec<(Handle, u16)> = Vec::new();
            for (step, index, bytes) in steps {
                match step {
                    0..5 => live.push((pool.alloc(bytes), bytes)),
                    5..7 => if !live.is_empty() {
                        pool.free(live.swap_remove(index.index(live.len())).0);
                    },
                    _ => {
                        pool.compact();
                        for (class, pool) in pool.classes.classes.iter().zip(&pool.pools) {
                            prop_assert!(!pool.can_empty_one(class.objects));
                        }
                    }
                }
            }
            prop_assert_eq!(pool.check(), Ok(()));
            for &(handle, bytes) in &live {
                prop_assert_eq!(pool.bytes(handle), bytes);
            }
            prop_assert_eq!(pool.usage().stored_bytes, live.iter().map(|&(_, bytes)| u64::from(bytes)).sum::<u64>());
        }
    }
}
