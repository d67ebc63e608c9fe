//! What a seed stands for: how large everything is, and what goes how often wrong.

use uswap_engine::group::{Compressor, FaultPlan, GroupConfig};
use uswap_engine::store::faulty::FaultKind;

use uswap_core::{OwnerSearch, Policies, ReadaheadPolicy, ReclaimPolicy};

use super::copiers::Copiers;
use super::disturbances::Disturbances;
use super::random_program::Habits;
use crate::chance::Chance;
use crate::tree::Crew;
use crate::world_config::WorldConfig;

/// One schedule's world.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The kernel and the scheduler.
    pub world: WorldConfig,
    /// The group.
    pub group: GroupConfig,
    /// Slots of each area.
    pub area_slots: Vec<u64>,
    /// The engine's threads.
    pub crew: Crew,
    /// What programs do.
    pub habits: Habits,
    /// What they do instead, if it is nothing but writing to what forks leave in common.
    pub copiers: Option<Copiers>,
    /// What happens from outside.
    pub disturbances: Disturbances,
}

impl Scenario {
    /// The world of `chance`.
    pub fn draw(chance: &mut Chance) -> Scenario {
        let mut world = WorldConfig::draw(chance);
        world.span = 64 + 16 * chance.index(13);
        let area_slots: Vec<u64> = (0..chance.below(3)).map(|_| 16 + chance.below(600)).collect();
        let fault_injection = fault_plan(chance);
        world.may_lose_pages = fault_injection.kind() != FaultKind::None;
        let habits = Habits::draw(chance, world.base, world.span);
        let shares = if habits.forks > 0 { 1 + chance.below(3) } else { 1 };
        let gap_min_pages = 4 + chance.below(12) as u32;
        let limit_pages = (2 * u64::from(gap_min_pages) + 40) * shares + chance.below(world.span as u64 / 2);
        let policies = Policies {
            reclaim: ReclaimPolicy::ALL[chance.index(ReclaimPolicy::ALL.len())],
            readahead: ReadaheadPolicy::ALL[chance.index(ReadaheadPolicy::ALL.len())],
            ..Policies::default()
        };
        let group = GroupConfig {
            memory_limit_bytes: limit_pages * 4096,
            zpool_percent: [0, 1, 5, 25][chance.index(4)],
            accept_threshold_percent: 90,
            compressor: [Compressor::None, Compressor::Lz4, Compressor::Lz4, Compressor::Zstd][chance.index(4)],
            policies,
            gap_min_pages,
            verbosity: 1,
            fault_injection,
            ..GroupConfig::default()
        };
        let crew = Crew { handlers: 1 + chance.index(3), readers: chance.index(2), has_writer: chance.happens(3, 4) };
        let disturbances = Disturbances::draw(chance);
        let scenario = Scenario { world, group, area_slots, crew, habits, copiers: None, disturbances };
        let mut scenario = match chance.below(200) {
            0..5 => scenario.with_a_large_pool(chance),
            5 => scenario.with_large_forks(),
            _ => scenario,
        };
        if scenario.habits.follows > 3 {
            // Who follows closely is seen to where others stand still.
            scenario.world.late_reports = 32 + chance.below(128);
        }
        scenario.habits.rests_in_budget = scenario.keeps_its_budget();
        scenario.habits.swaps_off = scenario.can_empty_areas();
        scenario
    }

    /// A pool of some hundred pages, of which much is given up again: it is compacted.
    fn with_a_large_pool(mut self, chance: &mut Chance) -> Scenario {
        self.world.span = 1200;
        self.world.late_reads = chance.below(32);
        self.world.content_kind = Some(2);
        self.group.memory_limit_bytes = 400 * 4096;
        self.group.zpool_percent = 90;
        self.group.compressor = Compressor::Lz4;
        self.habits = self.habits.of_a_large_pool(self.world.base, self.world.span);
        self
    }

    /// Processes that are so large that room must be made for their children.
    fn with_large_forks(mut self) -> Scenario {
        self.world.span = 3000;
        self.group.memory_limit_bytes = 2600 * 4096;
        self.area_slots = vec![4000];
        self.habits = self.habits.of_large_forks(self.world.base, self.world.span);
        self
    }

    /// The same in a world where nothing rests: threads fork and change the same memory all the time, little of it stays as it is, and
    /// what is late or refused now and then elsewhere is so often. A schedule takes as long as several, and finds as much as dozens.
    pub fn restless(mut self, seed: u64) -> Scenario {
        let mut chance = Chance::new(seed ^ 0x5eed_5eed_0000);
        self.habits = self.habits.of_the_restless(&mut chance);
        let world = &mut self.world;
        let mut often = |rate: &mut u64, most: u64| {
            if chance.happens(1, 2) {
                *rate = 1 + chance.below(most);
            }
        };
        often(&mut world.stops, 200);
        often(&mut world.woken_first, 100);
        often(&mut world.late_tasks, 160);
        often(&mut world.late_reports, 160);
        often(&mut world.late_drops, 160);
        often(&mut world.late_looks, 120);
        often(&mut world.late_reads, 64);
        often(&mut world.lazy_drops, 800);
        let mut rarely = |rate: &mut u64, one_in: u64, most: u64| {
            if chance.happens(1, one_in) {
                *rate = 1 + chance.below(most);
            }
        };
        rarely(&mut world.refusals, 4, 80);
        rarely(&mut world.failed_looks, 4, 100);
        rarely(&mut world.no_memory, 4, 40);
        rarely(&mut world.kernel_swap, 6, 200);
        world.spurious = world.spurious.min(20);
        rarely(&mut world.refused_unmaps, 4, 60);
        if chance.happens(1, 8) {
            self.group.policies.swapoff = OwnerSearch::ALL[chance.index(OwnerSearch::ALL.len())];
        }
        self
    }

    /// Whether what leaves finds a place, and nothing is refused: then a program that rests has no more than its budget.
    fn keeps_its_budget(&self) -> bool {
        let Scenario { world, group, .. } = self;
        let nothing_refused =
            world.failed_looks + world.no_memory + world.refusals + world.busy + world.kernel_swap == 0;
        let finds_a_place = self.area_slots.iter().sum::<u64>() >= 2 * world.span as u64;
        let is_quiet = self.disturbances.are_none() && self.habits.forks + self.habits.files == 0;
        nothing_refused && finds_a_place && is_quiet && group.fault_injection.kind() == FaultKind::None
    }

    /// Whether whatever is on an area can be read, and nobody else tells areas to leave or ends processes.
    fn can_empty_areas(&self) -> bool {
        self.disturbances.are_none() && self.group.fault_injection.kind() == FaultKind::None
    }

    /// The same, in which one process does nothing but touch its memory.
    pub fn touching_only(mut self) -> Scenario {
        self.habits = Habits { calls: 0, forks: 0, ..self.habits };
        self
    }

    /// The same without forks.
    pub fn without_forks(mut self) -> Scenario {
        self.habits.forks = 0;
        self
    }
}

fn fault_plan(chance: &mut Chance) -> FaultPlan {
    let kinds = [
        FaultKind::ReadEio,
        FaultKind::WriteEio,
        FaultKind::Enospc,
        FaultKind::ShortRead,
        FaultKind::ShortWrite,
        FaultKind::FlipBit,
    ];
    if !chance.happens(1, 4) {
        return FaultPlan::default();
    }
    let mut plan = FaultPlan::always(kinds[chance.index(kinds.len())]);
    plan.every = 1 + chance.below(40) as u32;
    (plan.after, plan.seed) = (chance.below(30) as u32, chance.any());
    plan
}
