//! zswap: which compressed pages leave the pool, and when.
//!
//! The pool takes pages until it reaches its limit; from then on the oldest objects are written back to an area until the
//! pool is down to the accept threshold, as the kernel's zswap does with its shrink worker. A swap-in takes the object
//! out of the pool (exclusive load), so what is old in the pool has not been wanted since it was stored.

use alloc::collections::VecDeque;

use crate::core::Core;
use crate::entry::{AreaId, EntryId, Location};
use crate::swap_table::SwapTable;

/// Objects that one search for a victim looks at.
const SEARCH_MAX: usize = 512;

/// What the age order has of an object: its entry, and which of the contents that use the entry's index one after another.
/// Not its handle: an object that compaction moves keeps its age.
#[derive(Clone, Copy)]
struct Record {
    entry: EntryId,
    generation: u8,
}

/// Age order of the pool.
#[derive(Clone)]
pub struct Zswap {
    fifo: VecDeque<Record>,
    objects: u64,
}

/// An object to write to an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct WritebackJob {
    /// Its entry, pinned until [`Core::written_back`].
    pub entry: EntryId,
    /// The object.
    pub handle: u32,
    /// Its length in bytes.
    pub len: u16,
    /// Hash of the page in it.
    pub hash: u128,
}

/// Whether the pool takes pages, by its size in bytes. It refuses from the limit on, and takes again at the accept
/// threshold (`accept_threshold_percent`, kernel default 90).
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolGate {
    full: bool,
}

impl PoolGate {
    /// As judged last.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Judges the pool's size; `true`: the oldest objects must be written back.
    pub fn must_shrink(&mut self, pool_bytes: u64, limit_bytes: u64, accept_percent: u64) -> bool {
        if pool_bytes >= limit_bytes {
            self.full = true;
        } else if pool_bytes <= limit_bytes / 100 * accept_percent {
            self.full = false;
        }
        self.full
    }
}

impl Zswap {
    pub(crate) fn new() -> Self {
        Self { fifo: VecDeque::new(), objects: 0 }
    }

    pub(crate) fn make_room(&mut self, objects: usize) -> bool {
        self.fifo.try_reserve(objects).is_ok()
    }

    pub(crate) fn object_added(&mut self, entry: EntryId, table: &SwapTable) {
        self.fifo.push_back(Record { entry, generation: table.generation(entry) });
        self.objects += 1;
        self.forget_gone(table);
    }

    pub(crate) fn object_gone(&mut self) {
        self.objects -= 1;
    }

    /// Objects leave the pool anywhere in the order; their records go when they are more than half of it.
    fn forget_gone(&mut self, table: &SwapTable) {
        if self.fifo.len() as u64 > 64 + 2 * self.objects {
            self.fifo.retain(|&record| object(table, record).is_some());
        }
    }
}

/// Handle and length of the object that a record of the age order names; `None` when the object is gone, and the entry may
/// be another's. Once in 256 the record of an object that is gone passes for one of its entry's next object, which then is
/// written back before its turn.
fn object(table: &SwapTable, Record { entry, generation }: Record) -> Option<(u32, u16)> {
    if !table.is_live(entry) || table.is_foreign(entry) || table.generation(entry) != generation {
        return None;
    }
    match table.location(entry) {
        Location::Pool { handle, len } => Some((handle, len)),
        Location::Slot { .. } => None,
    }
}

impl Core {
    /// The oldest object of the pool that nobody is reading, and that may leave: an object whose heirs cannot be told of that (`held`) stays
    /// where it is, for their books name its place.
    pub fn next_writeback(&mut self, held: impl Fn(EntryId) -> bool) -> Option<WritebackJob> {
        for _ in 0..self.zswap.fifo.len().min(SEARCH_MAX) {
            let record = self.zswap.fifo.pop_front()?;
            let entry = record.entry;
            let Some((handle, len)) = object(&self.table, record) else { continue };
            if self.table.pins(entry) > 0 || held(entry) {
                self.zswap.fifo.push_back(record);
                continue;
            }
            self.table.pin(entry);
            return Some(WritebackJob { entry, handle, len, hash: self.table.hash(entry) });
        }
        None
    }

    /// Whether the object of `job` leaves the pool, if its content has a slot now: nobody else reads it, and it is wanted still.
    pub fn may_leave_pool(&self, job: &WritebackJob) -> bool {
        self.table.pins(job.entry) == 1 && self.table.is_live(job.entry)
    }

    /// Ends a writeback: the content is in `slot` of `area`, or stays in the pool (`None`).
    pub fn written_back(&mut self, job: WritebackJob, place: Option<(AreaId, u64)>) -> bool {
        let mut has_left = false;
        // While the job has the entry pinned, its index is nobody else's.
        let record = Record { entry: job.entry, generation: self.table.generation(job.entry) };
        if let Some((area, slot)) = place {
            if self.may_leave_pool(&job) {
                let old = self.table.relocate(job.entry, Location::Slot { area, slot });
                let epoch = self.table.epoch();
                self.release_place(job.entry, old, epoch);
                has_left = true;
            } else {
                // Somebody reads the object, or nobody wants the content any more: the new copy is the one to drop.
                let _ = self.slots[area.0 as usize].free(slot);
                self.zswap.fifo.push_back(record);
            }
        } else {
            self.zswap.fifo.push_back(record);
        }
        self.unpin(job.entry);
        self.zswap.forget_gone(&self.table);
        has_left
    }

    /// Objects in the pool of this process.
    pub fn pool_objects(&self) -> u64 {
        self.zswap.objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CoreConfig;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn the_age_order_does_not_grow_when_nothing_is_written_back() {
        let mut core = Core::new(CoreConfig {
            frame_blocks: 4,
            area_slots: Vec::new(),
            window_max: 16,
            ahead_max: 0,
            ..CoreConfig::default()
        });
        for _ in 0..10_000 {
            // One page comes and goes: each time the same entry, and the same place.
            let entry = core.table.insert(Location::Pool { handle: 7, len: 100 }, 0);
            core.zswap.object_added(entry, &core.table);
            core.let_go(entry);
        }
        assert!(core.zswap.fifo.len() < 100, "{} records of no object", core.zswap.fifo.len());
    }

    #[test]
    fn t6a_the_pool_refuses_at_its_limit_and_accepts_at_the_threshold() {
        let mut gate = PoolGate::default();
        let pages = |pages: u64| pages * 4096;
        assert!(!gate.must_shrink(pages(199_999), pages(200_000), 90));
        assert!(gate.must_shrink(pages(200_000), pages(200_000), 90));
        assert!(gate.must_shrink(pages(190_000), pages(200_000), 90));
        assert!(!gate.must_shrink(pages(180_000), pages(200_000), 90));
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Store,
        /// A swap-in takes the object out.
        Take(usize),
        Read(usize),
        EndRead(usize),
        /// An heir comes to read it.
        Hold(usize),
        /// The oldest is written, and this becomes of it.
        WriteBack(Written),
    }

    #[derive(Clone, Copy, Debug)]
    enum Written {
        Fine,
        Failed,
        /// A thread begins to read it meanwhile.
        WhileRead,
        /// Its page is gone meanwhile.
        WhileTaken,
    }

    fn step() -> impl Strategy<Value = Step> {
        let written = prop_oneof![
            4 => Just(Written::Fine),
            1 => Just(Written::Failed),
            1 => Just(Written::WhileRead),
            1 => Just(Written::WhileTaken)
        ];
        prop_oneof![
            4 => Just(Step::Store),
            2 => any::<usize>().prop_map(Step::Take),
            1 => any::<usize>().prop_map(Step::Read),
            1 => any::<usize>().prop_map(Step::EndRead),
            1 => any::<usize>().prop_map(Step::Hold),
            2 => written.prop_map(Step::WriteBack),
        ]
    }

    /// An object of the plain pool.
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Object {
        entry: EntryId,
        handle: u32,
        reads: u32,
        held: bool,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Against a list of objects, oldest first.
        #[test]
        fn model_the_oldest_object_that_nobody_needs_is_written_back(steps in proptest::collection::vec(step(), 1..150)) {
            let mut core = Core::new(CoreConfig { frame_blocks: 4, area_slots: alloc::vec![1024], window_max: 16, ahead_max: 0, ..CoreConfig::default() });
            core.slots[0].grant(0);
            core.slots[0].grant(1);
            let mut plain: Vec<Object> = Vec::new();
            // Objects that moved to a slot, and nobody has let go.
            let mut on_area: BTreeMap<EntryId, u64> = BTreeMap::new();
            let mut handles = 0u32..;
            let pick = |plain: &[Object], choice: usize, of: &dyn Fn(&Object) -> bool| {
                let some: Vec<usize> = (0..plain.len()).filter(|&at| of(&plain[at])).collect();
                (!some.is_empty()).then(|| some[choice % some.len()])
            };
            for step in steps {
                match step {
                    Step::Store => {
                        let handle = handles.next().expect("there are handles");
                        let entry = core.table.insert(Location::Pool { handle, len: 100 }, u128::from(handle));
                        core.zswap.object_added(entry, &core.table);
                        plain.push(Object { entry, handle, reads: 0, held: false });
                    }
                    Step::Take(choice) => if let Some(at) = pick(&plain, choice, &|object| object.reads == 0) {
                        core.let_go(plain.remove(at).entry);
                    }
                    Step::Read(choice) => if let Some(at) = pick(&plain, choice, &|_| true) {
                        core.table.pin(plain[at].entry);
                        plain[at].reads += 1;
                    }
                    Step::EndRead(choice) => if let Some(at) = pick(&plain, choice, &|object| object.reads > 0) {
                        core.unpin(plain[at].entry);
                        plain[at].reads -= 1;
                    }
                    Step::Hold(choice) => if let Some(at) = pick(&plain, choice, &|_| true) {
                        plain[at].held ^= true;
                    }
                    Step::WriteBack(written) => {
                        let held: Vec<EntryId> =
                            plain.iter().filter(|object| object.held).map(|object| object.entry).collect();
                        let job = core.next_writeback(|entry| held.contains(&entry));
                        let needed = |object: &&Object| object.reads > 0 || object.held;
                        let passed_over = plain.iter().take_while(needed).count();
                        // Those that are needed are as good as new.
                        plain.rotate_left(passed_over);
                        let expected = (passed_over < plain.len()).then(|| plain.remove(0));
                        prop_assert_eq!(job.map(|job| (job.entry, job.handle)), expected.map(|it| (it.entry, it.handle)));
                        let (Some(job), Some(mut object)) = (job, expected) else { continue };
                        prop_assert_eq!((job.len, job.hash), (100, u128::from(object.handle)));
                        if let Written::Failed = written {
                            core.written_back(job, None);
                            plain.push(object);
                            continue;
                        }
                        match written {
                            Written::WhileRead => {
                                core.table.pin(job.entry);
                                object.reads += 1;
                            }
                            Written::WhileTaken => core.let_go(job.entry),
                            Written::Fine | Written::Failed => {}
                        }
                        let slot = core.slots[0].alloc().expect("there are slots");
                        core.written_back(job, Some((AreaId(0), slot)));
                        match written {
                            Written::Fine => { on_area.insert(job.entry, slot); }
                            Written::WhileRead => plain.push(object),
                            Written::WhileTaken | Written::Failed => {}
                        }
                    }
                }
                prop_assert_eq!(core.pool_objects(), plain.len() as u64);
                prop_assert_eq!(core.slots[0].used(), on_area.len() as u64, "a copy that is not used frees its slot");
                for (&entry, &slot) in &on_area {
                    prop_assert_eq!(core.table.location(entry), Location::Slot { area: AreaId(0), slot });
                }
            }
        }
    }
}
