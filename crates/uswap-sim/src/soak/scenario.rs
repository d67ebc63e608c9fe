//! What a seed stands for: how large everything is, and what goes how often wrong.

use crate::chance::Chance;
use crate::device::failures::FaultRates;
use uswap_core::{Policies, ReadaheadPolicy, ReclaimPolicy};

/// One schedule's world.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// Pages of address space.
    pub span: u64,
    /// Threads of the first process.
    pub threads: usize,
    /// Fault handlers of each process, besides its monitor.
    pub handlers: usize,
    /// Blocks of 16 frames.
    pub frame_blocks: u32,
    /// Slots of each area.
    pub area_slots: Vec<u64>,
    /// Most objects in the pool; 0: there is none.
    pub pool_objects: u64,
    /// Most pages of a window.
    pub window_max: u32,
    /// Most pages read ahead of a stream.
    pub ahead_max: u32,
    /// Which block leaves, and what comes along.
    pub policies: Policies,
    /// Steps of the scheduler before the program ends.
    pub steps: u64,
    /// What goes wrong in I/O.
    pub faults: FaultRates,
    /// Parts of 1000: an operation of the kernel ends early for want of memory.
    pub no_memory: u64,
    /// Parts of 1000: what a thread does next is no access but a call.
    pub calls: u64,
    /// Parts of 1000 of those calls: a fork.
    pub forks: u64,
    /// How much of what the actors do is reclaim, in parts of 1000.
    pub pressure: u64,
    /// Pages that accesses go to mostly.
    pub hot_pages: u64,
    /// Parts of 100 of the accesses that write.
    pub writes: u64,
    /// Parts of 100 of the accesses that go on beside the one before.
    pub streams: u64,
    /// Parts of 16 of reclaim that store, rather than move out.
    pub stores: u64,
    /// Parts of 100 of reclaim that give frames back.
    pub trashes: u64,
    /// Areas leave now and then, and may stay after all.
    pub swapoffs: bool,
}

impl Scenario {
    /// The world of `chance`.
    pub fn draw(chance: &mut Chance) -> Scenario {
        let faulty = chance.happens(1, 3);
        let mut rate = |most: u64| if faulty && chance.happens(1, 2) { chance.below(most) as u16 } else { 0 };
        let faults = FaultRates {
            read_fails: rate(300),
            read_corrupts: rate(200),
            write_fails: rate(200),
            write_tears: rate(100),
            write_is_short: rate(100),
            write_corrupts: rate(30),
            no_space: rate(200),
            delays: 0,
        };
        let areas = chance.below(4).min(2);
        let span = 64 + 16 * chance.below(10);
        let mut scenario = Scenario {
            span,
            policies: Policies::default(),
            threads: 1 + chance.index(4),
            handlers: 1 + chance.index(3),
            frame_blocks: 2 + chance.below(14) as u32,
            area_slots: (0..areas).map(|_| area_slots(chance)).collect(),
            pool_objects: if chance.happens(1, 2) { 1 + chance.below(60) } else { 0 },
            window_max: [1, 4, 16][chance.index(3)],
            ahead_max: [0, 8, 24, 64][(span / 16 % 4) as usize],
            steps: 500 + chance.below(4000),
            faults,
            no_memory: if chance.happens(1, 4) { chance.below(60) } else { 0 },
            calls: if chance.happens(2, 3) { chance.below(12) } else { 10 + chance.below(90) },
            forks: if chance.happens(1, 3) { chance.below(200) } else { 0 },
            pressure: 200 + chance.below(700),
            hot_pages: 4 + chance.below(120),
            writes: 10 + chance.below(80),
            streams: chance.below(100),
            stores: 4 + chance.below(8),
            trashes: chance.below(6),
            swapoffs: (span / 16).is_multiple_of(3),
        };
        scenario.policies = scenario.policies();
        match chance.below(16) {
            0 | 1 => scenario.with_random_faults(),
            2 | 3 => scenario.with_many_calls(),
            _ => scenario,
        }
    }

    /// Every other world has the default policies; the others' follow from what was drawn, so that no world differs for them.
    fn policies(&self) -> Policies {
        let of = |count: usize, from: u64| if from.is_multiple_of(2) { 0 } else { from as usize / 2 % count };
        Policies {
            reclaim: ReclaimPolicy::ALL[of(ReclaimPolicy::ALL.len(), self.pressure)],
            readahead: ReadaheadPolicy::ALL[of(ReadaheadPolicy::ALL.len(), self.hot_pages)],
        }
    }

    /// Threads that move and unmap memory all the time, and look at little of it.
    fn with_many_calls(self) -> Scenario {
        Scenario { threads: 3 + self.threads % 2, calls: 400, forks: self.forks / 16, faults: FaultRates::NONE, ..self }
    }

    /// A program that works at random on what it has written to an area: what cluster readahead is for.
    fn with_random_faults(self) -> Scenario {
        Scenario {
            frame_blocks: 20,
            area_slots: vec![1030],
            pool_objects: 0,
            window_max: 16,
            ahead_max: 0,
            faults: FaultRates::NONE,
            calls: 0,
            forks: 0,
            hot_pages: 64,
            writes: 95,
            streams: 5,
            trashes: 0,
            // Each page must be touched several times before its neighbours lie beside it.
            steps: 4 * self.steps,
            span: 64,
            // And leave with all of its block.
            pressure: 30,
            ..self
        }
    }
}

/// Clusters have 512 slots, and the last one of an area what is left: short ones are soon full, and soon empty.
fn area_slots(chance: &mut Chance) -> u64 {
    512 * chance.below(3) + 3 + chance.below(40)
}
