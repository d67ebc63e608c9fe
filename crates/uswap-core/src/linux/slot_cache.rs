//! Slots that a CPU holds in advance, and those that it gives back together: up to 6.14 or so.
//!
//! A CPU takes 64 slots at a time from the areas and hands them out one by one; slots that are freed wait on the CPU until there
//! are 64 of them. Both kinds look like in use to everybody else. It is switched off when few slots are left, since they would
//! lie idle on the CPUs, and emptied before swapoff. Orders above 0 go past it. Source: Linux 6.12.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::slot_alloc::AllocHost;
use super::swap_areas::{NoSlot, SwapAreas};
use super::swap_entry::SwapEntry;
use super::swap_map::Left;

/// Slots of a CPU, each way.
pub const BATCH_SLOTS: usize = 64;
/// It is switched on when more batches than this are free for each CPU.
const BATCHES_ON: i64 = 5;
/// It is switched off when fewer batches than this are free for each CPU.
const BATCHES_OFF: i64 = 2;

#[derive(Clone, Default)]
struct Cpu {
    taken: VecDeque<SwapEntry>,
    returned: Vec<SwapEntry>,
}

/// The slot caches of all CPUs.
#[derive(Clone)]
pub struct SlotCache {
    cpus: Vec<Cpu>,
    on: bool,
}

impl SlotCache {
    /// Empty, and switched off until the areas have been looked at.
    pub fn new(cpus: usize) -> Self {
        Self { cpus: alloc::vec![Cpu::default(); cpus], on: false }
    }

    /// Whether CPUs hold slots at present.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Slots that lie on CPUs, of both kinds.
    pub fn held(&self) -> u64 {
        self.cpus.iter().map(|cpu| (cpu.taken.len() + cpu.returned.len()) as u64).sum()
    }

    /// Hands out one slot, to the swap cache, as [`SwapAreas::alloc`] does.
    ///
    /// # Errors
    /// When there is none.
    pub fn alloc<H: AllocHost>(
        &mut self,
        cpu: usize,
        areas: &mut SwapAreas,
        host: &mut H,
    ) -> Result<SwapEntry, NoSlot> {
        self.judge(areas);
        if !self.on {
            return areas.alloc(cpu, 0, host);
        }
        let taken = &mut self.cpus[cpu].taken;
        if taken.is_empty() {
            taken.extend((0..BATCH_SLOTS).map_while(|_| areas.alloc(cpu, 0, host).ok()));
        }
        taken.pop_front().ok_or(NoSlot::Full)
    }

    /// Takes back a slot that nothing but the swap cache holds any more.
    ///
    /// # Panics
    /// When a page table still refers to it: it would keep its slot after all, or lose it.
    pub fn give_back(&mut self, cpu: usize, entry: SwapEntry, areas: &mut SwapAreas) {
        let map = areas.area(entry.area).map();
        assert!(map.is_cache_only(entry.slot), "slot {} of area {} is still referred to", entry.slot, entry.area);
        self.cpus[cpu].returned.push(entry);
        self.judge(areas);
        if !self.on || self.cpus[cpu].returned.len() >= BATCH_SLOTS {
            self.free_returned(cpu, areas);
        }
    }

    /// Gives everything back to the areas: before swapoff, and when little is left.
    pub fn drain(&mut self, areas: &mut SwapAreas) {
        for cpu in 0..self.cpus.len() {
            let taken = core::mem::take(&mut self.cpus[cpu].taken);
            self.cpus[cpu].returned.extend(taken);
            self.free_returned(cpu, areas);
        }
    }

    fn free_returned(&mut self, cpu: usize, areas: &mut SwapAreas) {
        // By area, so that each is locked once.
        let mut returned = core::mem::take(&mut self.cpus[cpu].returned);
        returned.sort_by_key(|entry| entry.area);
        for entry in returned {
            let left = areas.put_cache(entry);
            assert!(left == Left::Free, "slot {} of area {} got an owner while it waited", entry.slot, entry.area);
        }
    }

    fn judge(&mut self, areas: &mut SwapAreas) {
        let free = areas.totals().free;
        let batch = (BATCH_SLOTS * self.cpus.len()) as i64;
        if self.on && free < BATCHES_OFF * batch {
            self.on = false;
            self.drain(areas);
        } else if !self.on && free > BATCHES_ON * batch {
            self.on = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::swapped_memory::tests::machine;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    fn areas(slots: u64) -> SwapAreas {
        machine(&[slots], false).into_areas()
    }

    #[test]
    fn slots_are_taken_and_given_back_64_at_a_time() {
        let mut areas = areas(4096);
        let mut cache = SlotCache::new(1);
        let first = cache.alloc(0, &mut areas, &mut ()).unwrap();
        assert_eq!((first.slot, areas.area(0).in_use(), cache.held()), (1, 64, 63));
        let slots: Vec<_> = (0..127).map(|_| cache.alloc(0, &mut areas, &mut ()).unwrap()).collect();
        assert_eq!((slots[126].slot, areas.area(0).in_use(), cache.held()), (128, 128, 0));
        for &entry in &slots[..63] {
            cache.give_back(0, entry, &mut areas);
        }
        assert_eq!((areas.area(0).in_use(), cache.held()), (128, 63));
        cache.give_back(0, slots[63], &mut areas);
        assert_eq!((areas.area(0).in_use(), cache.held()), (64, 0));
    }

    #[test]
    fn it_is_on_above_five_batches_for_each_cpu_and_off_below_two() {
        let mut cache = SlotCache::new(2);
        // 640 free slots are five batches for each of two CPUs.
        let mut tight = areas(641);
        cache.alloc(0, &mut tight, &mut ()).unwrap();
        assert!(!cache.is_on());
        let mut enough = areas(642);
        let mut cache = SlotCache::new(2);
        let mut slots = Vec::new();
        slots.push(cache.alloc(0, &mut enough, &mut ()).unwrap());
        assert!(cache.is_on());
        while cache.is_on() {
            slots.push(cache.alloc(0, &mut enough, &mut ()).unwrap());
        }
        assert!(enough.totals().free < 256, "{:?}", enough.totals());
        assert_eq!((cache.held(), enough.area(0).in_use()), (0, slots.len() as u64));
    }

    #[test]
    fn the_last_slots_are_handed_out_too() {
        let mut areas = areas(1024);
        let mut cache = SlotCache::new(2);
        let mut got = BTreeSet::new();
        for turn in 0..1023 {
            assert!(got.insert(cache.alloc(turn % 2, &mut areas, &mut ()).unwrap()), "two owners");
        }
        assert_eq!(cache.alloc(0, &mut areas, &mut ()), Err(NoSlot::Full));
    }

    #[test]
    fn drained_before_swapoff_no_slot_is_left_on_a_cpu() {
        let mut areas = areas(4096);
        let mut cache = SlotCache::new(2);
        let slot = cache.alloc(0, &mut areas, &mut ()).unwrap();
        cache.give_back(1, slot, &mut areas);
        areas.swapoff_begin(Ok(0), true, u64::MAX).unwrap();
        cache.drain(&mut areas);
        areas.swapoff_finish(0);
    }

    #[test]
    #[should_panic(expected = "slot 1 of area 0 is still referred to")]
    fn a_slot_with_a_reference_is_not_taken_back() {
        let mut areas = areas(4096);
        let mut cache = SlotCache::new(1);
        let slot = cache.alloc(0, &mut areas, &mut ()).unwrap();
        areas.duplicate(slot).unwrap();
        cache.give_back(0, slot, &mut areas);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn model_slots_are_with_an_owner_on_a_cpu_or_free(
            slots in 600u64..1500,
            steps in prop::collection::vec((0usize..3, 0u8..4, 1usize..200), 1..20),
        ) {
            let mut areas = areas(slots);
            let mut cache = SlotCache::new(3);
            let mut owned = Vec::new();
            for (cpu, step, times) in steps {
                for _ in 0..times {
                    if step > 0 {
                        let Ok(entry) = cache.alloc(cpu, &mut areas, &mut ()) else { break };
                        owned.push(entry);
                    } else if let Some(entry) = owned.pop() {
                        cache.give_back(cpu, entry, &mut areas);
                    }
                }
                prop_assert_eq!(areas.area(0).in_use(), owned.len() as u64 + cache.held());
            }
            let distinct: BTreeSet<_> = owned.iter().collect();
            prop_assert_eq!(distinct.len(), owned.len(), "two owners");
            prop_assert_eq!(areas.check(), Ok(()));
        }
    }
}
