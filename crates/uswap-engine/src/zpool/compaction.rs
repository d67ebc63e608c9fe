//! Compaction, the pool's part: which slabs are to run empty, and where their objects go.
//!
//! A class has slabs to spare when its objects would fit into fewer. Then its sparsest slabs are made [`Place::Leaving`]:
//! they take no new objects, and the holes of the others have room for all that is in them. Their objects are moved by
//! those who know the owners, one at a time: [`Zpool::move_target`] gives an object a second place, the owner copies the
//! bytes and names the copy, and [`Zpool::free`] ends the first one. A slab is `Empty` when its last object has gone,
//! whether that was moved or freed. Slabs whose objects could not all be moved become `Partial` again at the end.
//!
//! At any moment an object has one whole copy that its owner names; so compaction may stop anywhere, for good.

use super::slab::{CLASS_UNITS_MAX, Handle, NO_SLAB, Place, SLAB_BYTES, SLAB_UNITS, class_units};
use super::{EMPTY_RESERVE, Zpool};

/// Some slabs of a pool.
///
/// For a quick look without the pool's lock: whether a slab is still leaving, the pool alone knows.
#[derive(Default)]
pub struct SlabSet {
    words: Vec<u64>,
}

impl SlabSet {
    /// Whether the slab of an object is one of them.
    pub fn contains(&self, handle: Handle) -> bool {
        let slab = handle.slab();
        self.words.get(slab / 64).is_some_and(|word| word >> (slab % 64) & 1 == 1)
    }

    fn insert(&mut self, slab: usize) {
        if self.words.len() <= slab / 64 {
            self.words.resize(slab / 64 + 1, 0);
        }
        self.words[slab / 64] |= 1 << (slab % 64);
    }

    /// None of them.
    pub fn clear(&mut self) {
        self.words.clear();
    }
}

impl Zpool {
    /// Slabs of a class that are neither needed for its objects nor leaving already.
    fn spare_of(&self, units: usize) -> usize {
        let class = &self.classes[units];
        class.slabs.saturating_sub(class.leaving + class.objects.div_ceil(SLAB_UNITS / units))
    }

    /// Slabs that the pool could do without, if the objects of each class lay close together. Those that are leaving do not
    /// count.
    pub fn spare_slabs(&self) -> usize {
        (1..=CLASS_UNITS_MAX).map(|units| self.spare_of(units)).sum()
    }

    /// Slabs that compaction empties at this moment.
    pub fn leaving_slabs(&self) -> usize {
        self.leaving.len
    }

    /// Chooses up to `max` slabs to run empty, the sparsest of each class that has some to spare, and adds them to `chosen`.
    /// Says how many.
    pub fn choose_leaving(&mut self, chosen: &mut SlabSet, max: usize) -> usize {
        let mut count = 0;
        for units in 1..=CLASS_UNITS_MAX {
            for _ in 0..self.spare_of(units).min(max - count) {
                let sparsest = self.partial[units].iter().map(|list| list.first).find(|&first| first != NO_SLAB);
                // Where some are spare the holes add up to one, so there are partial ones.
                let Some(index) = sparsest else { break };
                self.put(index, Place::Leaving);
                chosen.insert(index as usize);
                count += 1;
            }
        }
        count
    }

    /// A place for a copy of an object whose slab is leaving. `None` when it is leaving no more, or its class has no holes
    /// elsewhere: a slab for it would be none the better.
    pub fn move_target(&mut self, handle: Handle, len: usize) -> Option<Handle> {
        if self.slab(handle.slab() as u32).place != Place::Leaving {
            return None;
        }
        let target = self.fullest_partial(class_units(len))?;
        Some(self.take_in(target, len))
    }

    /// Lets up to `max` slabs that have not run empty take objects again. Whether none is left.
    pub fn stop_leaving(&mut self, max: usize) -> bool {
        for _ in 0..max {
            let index = self.leaving.first;
            if index == NO_SLAB {
                break;
            }
            let place = self.slab(index).place_by_use();
            self.put(index, place);
        }
        self.leaving.len == 0
    }

    /// Gives up to `max` empty slabs beyond the reserve back to the kernel; a small pool has a smaller reserve. Says how many
    /// bytes.
    pub fn trim(&mut self, max: usize) -> usize {
        let in_use = self.pool_bytes() / SLAB_BYTES - self.empty.len;
        let reserve = EMPTY_RESERVE.min(in_use / 64);
        self.return_empty_slabs(reserve.max(self.empty.len.saturating_sub(max)))
    }
}
