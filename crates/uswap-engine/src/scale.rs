//! Scale: what the process has of the group's memory, and how fast that grows.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_system::looks::Footprint;

use crate::census::Census;
use crate::common_pages::{Around, CommonPages, PAGES_MIN, Shared};
use crate::content::Ancestor;
use crate::engine::Engine;

use crate::group::{Group, ProcessSlot};
use crate::host::Host;
use crate::in_common::{InCommon, Looking};
use crate::last_told::LastTold;
use crate::member::Member;
use crate::own_files::OwnFiles;
use crate::swapped_shared::SwappedShared;

/// How often slow figures are taken anew.
const SLOW_LOOK: Duration = Duration::from_millis(100);
/// The monitor may come so much too late, on a machine that is busy.
const UNSEEN_MS: u64 = 8;
/// Programs grow by fits and starts.
const SPURT_LASTS: Duration = Duration::from_millis(10);
/// Less growth than this, in pages within that time, is none: 25 MiB/s.
const SPURT_PAGES: u64 = 64;

/// Measures this process.
pub(crate) struct Scale<H: Host> {
    statm: H::Footprint,
    file_pages: u64,
    /// What the kernel has swapped out by itself: not resident, and so not counted against the budget.
    kernel_swapped: u64,
    looked: Instant,
    common: CommonPages,
    swapped: SwappedShared,
    own_files: OwnFiles,
    pub in_common: InCommon,
    census: Census<H>,
}

impl<H: Host> Scale<H> {
    /// Measures for the first time.
    pub fn new(told: &LastTold, member: &Member<H>) -> io::Result<Scale<H>> {
        let mut scale = Scale {
            statm: H::Footprint::open()?,
            file_pages: 0,
            kernel_swapped: 0,
            looked: H::now(),
            common: CommonPages::new(H::now()),
            swapped: SwappedShared::default(),
            own_files: OwnFiles::new(H::now()),
            in_common: InCommon::new(told, member),
            census: Census::new(),
        };
        scale.look_slowly()?;
        Ok(scale)
    }

    fn look_slowly(&mut self) -> io::Result<()> {
        let rss = H::Footprint::by_kind()?;
        (self.file_pages, self.kernel_swapped) = (rss.file_pages, rss.swap_pages);
        self.looked = H::now();
        Ok(())
    }

    /// The program's first thread has ended.
    pub fn main_has_ended(&self) -> bool {
        self.statm.main_has_ended()
    }

    /// Publishes in `slot` what the process has.
    pub fn weigh(&mut self, group: &Group, slot: &ProcessSlot, told: &LastTold, engine: Option<&Engine<H>>) {
        if H::since(self.looked) > SLOW_LOOK {
            let _ = self.look_slowly();
        }
        let processes = group.processes().count() as u64;
        let looking = Looking::begin(engine);
        let look = self.census.look(slot);
        let Ok((resident, shared)) = self.statm.read() else { return };
        let anon = resident.saturating_sub(shared);
        let changes = self.in_common.see(slot, told, anon, looking);
        let shmem = shared.saturating_sub(self.file_pages);
        let swapped = if group.swaps_shared() {
            self.swapped.pages::<H>(shmem, self.statm.mapped(), group.shared_judged())
        } else {
            0
        };
        let elsewhere = swapped + self.own_files.of_others::<H>(processes, group.limit_pages());
        let shmem = shmem.saturating_sub(elsewhere);
        // As it is at this moment: what the pool has grown since must not pass for the program's.
        let pool = engine.map_or(0, |engine| engine.content.pool_pages());
        let ancestors = engine.map_or(&[][..], |engine| &engine.content.ancestors[..]);
        let resident = shmem.saturating_sub(pool);
        // What it has of its ancestors' pools comes and goes without its doing.
        let own = if ancestors.is_empty() { resident } else { resident.min(self.common.own().saturating_sub(pool)) };
        let (grown, shrunk) = self.common.changed(own);
        if grown > 0 && ancestors.is_empty() {
            group.shared_memory_grows(grown);
        }
        let around = Around { processes, growth: group.shared_growth() };
        let of_others = self.common.of_others::<H>(shmem, pool, around, || look_at_shared::<H>(ancestors, elsewhere));
        let shmem = shmem - of_others;
        let beside = shmem.saturating_sub(pool);
        // What is left of the views of its ancestors' pools is uswap's.
        let shared = if ancestors.is_empty() { beside } else { beside.min(self.common.own().saturating_sub(pool)) };
        if slot.parent().is_some() && slot.resident.inherited_pages.load(Relaxed) == 0 {
            slot.resident.inherited_pages.store(anon.max(1), Relaxed);
        }
        slot.resident.anon_pages.store(anon, Relaxed);
        self.census.told(group, slot, anon, changes, look);
        slot.resident.shmem_pages.store(shmem, Relaxed);
        slot.resident.kernel_swapped_pages.store(self.kernel_swapped, Relaxed);
        slot.shared.pages.store(shared, Relaxed);
        slot.shared.new_pages.store(self.common.new_pages(beside, processes), Relaxed);
        // Of its ancestors' pools nobody knows how much is there at this moment.
        slot.shared.resident_pages.store(if ancestors.is_empty() { resident } else { shared }, Relaxed);
        slot.shared.growth.store(self.common.growth(), Relaxed);
        if shrunk > 0 {
            // Nobody adds up what it had any more.
            group.shared_memory_shrinks(shrunk);
        }
    }
}

/// What the process has of shared memory, without what it has looked at of its ancestors' pools, which it does not need, and without
/// pages that are counted `elsewhere`.
fn look_at_shared<H: Host>(ancestors: &[Ancestor], elsewhere: u64) -> io::Result<Shared> {
    for ancestor in ancestors {
        ancestor.pool.drop_resident()?;
    }
    let resident = H::Footprint::by_kind()?.shmem_pages.saturating_sub(elsewhere);
    // A child that has just been born has little else, and the kernel would go through all of its memory.
    if !ancestors.is_empty() && resident < PAGES_MIN {
        return Ok(Shared { resident, share: resident });
    }
    Ok(Shared { resident, share: H::Footprint::share_of_shmem()?.min(resident) })
}

/// How fast the program fills memory that is not adopted yet, where nothing makes it wait.
#[derive(Default)]
pub(crate) struct Growth {
    pages_per_ms: u64,
}

impl Growth {
    /// `pages` were found that are new since the last look, some time `ago`.
    pub fn found(&mut self, pages: u64, ago: Duration) {
        let us = ago.as_micros().clamp(1000, 1 << 20) as u64;
        let now = pages * 1000 / us;
        // Fast programs pause: what was seen is forgotten little by little.
        let most = self.pages_per_ms.max(now);
        self.pages_per_ms = most - (most - now).div_ceil(16);
    }

    /// What it may fill before it is seen.
    pub fn unseen(&self) -> u64 {
        self.pages_per_ms * UNSEEN_MS
    }
}

/// Whether the process grows at this moment, by what it has at each look.
#[derive(Default)]
pub struct Spurt {
    /// The least that it had since this time.
    least: Option<(u64, Instant)>,
    grew: Option<Instant>,
}

impl Spurt {
    /// It has `pages` at `now`.
    pub fn is_on(&mut self, pages: u64, now: Instant) -> bool {
        let (least, since) = *self.least.get_or_insert((pages, now));
        if pages >= least + SPURT_PAGES {
            self.grew = Some(now);
        }
        if pages <= least || pages >= least + SPURT_PAGES || now - since > SPURT_LASTS {
            self.least = Some((pages, now));
        }
        self.grew.is_some_and(|grew| now - grew < SPURT_LASTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spurt_is_much_in_a_short_time_and_ends_soon() {
        let (mut spurt, start) = (Spurt::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!spurt.is_on(1000, at(0)));
        assert!(!spurt.is_on(1000 + SPURT_PAGES - 1, at(1)));
        assert!(spurt.is_on(1000 + SPURT_PAGES, at(2)));
        assert!(spurt.is_on(1000, at(11)), "what leaves does not end it");
        assert!(!spurt.is_on(1000, at(13)));
        // One page in each 2 ms, for long.
        assert!((7..500).all(|step| !spurt.is_on(1000 + step, at(2 * step))));
    }
}
