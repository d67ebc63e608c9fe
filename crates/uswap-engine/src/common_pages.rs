//! Shared memory that several processes have: it is in RAM once, but each counts it as resident.
//!
//! A database maps its buffers in each of its processes; counted in all, they would fill the budget many times. The kernel
//! knows how many have a page, but to ask it is slow, so that is done seldom, and only by processes with shared memory
//! beside the compressed pool, which is their own.

use std::time::{Duration, Instant};

use uswap_system::System;

/// Fewer are never worth a look: 1 MiB.
pub(crate) const PAGES_MIN: u64 = 256;
/// Fewer are not worth one where very many processes would look: 4 MiB.
const PAGES_MIN_OF_MANY: u64 = 1024;
/// Each looks for itself, so the more there are, the more must be there to see.
const PAGES_MIN_EACH: u64 = 16;
/// How often a process looks that has no more than at the last time: others may have come or gone.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How soon a process looks that has more.
const LOOK_SOON: Duration = Duration::from_millis(10);
/// Looking takes at most one part in so many of a CPU.
const LOOK_COST: u32 = 100;
/// The same where that has just changed: meanwhile processes swap their own memory to make room for what is there once.
const LOOK_SOON_COST: u32 = 32;
/// Less growth than this is not told.
const UNTOLD_PAGES: u64 = 64;

/// What a look shows, in pages.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    /// Resident shared pages.
    pub resident: u64,
    /// The process's share of them: one that three processes have counts as a third.
    pub share: u64,
}

/// What is known of the others when a process looks.
#[derive(Clone, Copy)]
pub(crate) struct Around {
    /// Processes of the group.
    pub processes: u64,
    /// [`Group::shared_growth`](crate::group::Group::shared_growth).
    pub growth: u64,
}

/// See the file's head.
pub(crate) struct CommonPages {
    /// What others count for.
    of_others: u64,
    /// The process's share of all, at the last look.
    own: u64,
    /// Shared pages beside the pool, at the last look.
    seen: u64,
    /// Processes of the group at the last look.
    processes: u64,
    /// The group's growth right before the last look.
    growth: u64,
    /// Shared pages when others were last told that there are more.
    told: u64,
    /// The last look did not tell the same as the one before.
    changing: bool,
    looked: Instant,
    /// CPU time of the last look. What it waited for a CPU costs nothing, and processes that thrash make it wait long.
    took: Duration,
}

impl CommonPages {
    pub(crate) fn new(now: Instant) -> CommonPages {
        CommonPages {
            of_others: 0,
            own: 0,
            seen: 0,
            processes: 0,
            growth: 0,
            told: 0,
            changing: false,
            looked: now,
            took: Duration::ZERO,
        }
    }

    /// The process's share of its shared pages at the last look, its pool included; 0 where that is not worth a look.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// The group's growth when the process last looked.
    pub(crate) fn growth(&self) -> u64 {
        self.growth
    }

    /// By how many pages a process that has so many shared pages `resident` has more, and less, than it last said. Little by little
    /// it does not say it.
    pub(crate) fn changed(&mut self, resident: u64) -> (u64, u64) {
        if resident.abs_diff(self.told) < UNTOLD_PAGES {
            return (0, 0);
        }
        let before = std::mem::replace(&mut self.told, resident);
        (resident.saturating_sub(before), before.saturating_sub(resident))
    }

    /// How many pages are new since the last look, in a process that counts so many shared pages `beside` the pool, in a
    /// group of so many processes.
    pub(crate) fn new_pages(&self, beside: u64, processes: u64) -> u64 {
        let all = beside + self.of_others;
        if all < pages_min(processes) { 0 } else { all.saturating_sub(self.seen) }
    }

    /// How many of a process's `shmem` pages others count for, when `pool` of them are its compressed pool. Pages
    /// that are new since the last look count as its own.
    pub(crate) fn of_others<S: System>(
        &mut self,
        shmem: u64,
        pool: u64,
        around: Around,
        look: impl FnOnce() -> std::io::Result<Shared>,
    ) -> u64 {
        let Around { processes, growth } = around;
        let beside = shmem.saturating_sub(pool);
        let min = pages_min(processes);
        if beside < min {
            (self.of_others, self.own, self.seen, self.growth) = (0, 0, 0, growth);
            return 0;
        }
        let soon = beside >= self.seen + min || processes != self.processes || self.changing;
        let pause = match soon {
            true => LOOK_SOON.max(self.took * LOOK_SOON_COST),
            // Others have more, and may have what this one has.
            false if growth >= self.growth + min => LOOK_SOON.max(self.took * LOOK_COST),
            false => LOOK_EVERY.max(self.took * LOOK_COST),
        };
        if S::since(self.looked) >= pause {
            let begun = S::cpu_time();
            let shared = look().unwrap_or(Shared { resident: shmem, share: shmem });
            let of_others = shared.resident.saturating_sub(shared.share);
            let before = std::mem::replace(&mut self.of_others, of_others);
            self.own = shared.share;
            self.changing = before.abs_diff(self.of_others) >= min / 4;
            (self.seen, self.processes, self.growth) = (beside, processes, growth);
            self.looked = S::now();
            self.took = S::cpu_time().saturating_sub(begun);
        }
        self.of_others.min(beside)
    }
}

/// A process of a group of so many looks when it has as many shared pages as this.
fn pages_min(processes: u64) -> u64 {
    (processes * PAGES_MIN_EACH).clamp(PAGES_MIN, PAGES_MIN_OF_MANY)
}

#[cfg(test)]
mod tests {
    use uswap_sys::linux::Linux;

    use super::*;

    /// One that has looked long ago.
    fn old() -> CommonPages {
        CommonPages { looked: Instant::now() - 2 * LOOK_EVERY, ..CommonPages::new(Instant::now()) }
    }

    fn of(processes: u64) -> Around {
        Around { processes, growth: 0 }
    }

    fn share(resident: u64, share: u64) -> std::io::Result<Shared> {
        Ok(Shared { resident, share })
    }

    #[test]
    fn a_process_counts_its_share() {
        let mut pages = old();
        assert_eq!(pages.of_others::<Linux>(9000, 1000, of(2), || share(9000, 3000)), 6000);
        // Nobody looks again at once, and new pages are its own.
        assert_eq!(pages.of_others::<Linux>(9500, 1000, of(2), || unreachable!()), 6000);
        assert_eq!(pages.new_pages(2500, 2), 500);
        // It gives most of them up: no more than it has is left out.
        assert_eq!(pages.of_others::<Linux>(3000, 1000, of(2), || unreachable!()), 2000);
    }

    #[test]
    fn what_a_look_gives_up_is_not_taken_for_that_of_others() {
        let mut pages = old();
        // 800 were views of a parent's pool.
        assert_eq!(pages.of_others::<Linux>(9800, 1000, of(2), || share(9000, 3000)), 6000);
        assert_eq!(pages.own(), 3000);
    }

    #[test]
    fn few_processes_look_at_little_and_many_do_not() {
        // A server's workers with 3.9 MiB in common: counted in each, four of them had filled a budget of 34 MiB by half.
        assert_eq!(old().of_others::<Linux>(1000, 0, of(4), || share(1000, 250)), 750);
        assert_eq!(old().of_others::<Linux>(1000, 0, of(200), || unreachable!()), 0);
    }

    #[test]
    fn who_has_a_pool_alone_does_not_look() {
        assert_eq!(old().of_others::<Linux>(9000, 9000 - PAGES_MIN + 1, of(2), || unreachable!()), 0);
    }

    #[test]
    fn what_cannot_be_looked_at_counts_in_full() {
        assert_eq!(old().of_others::<Linux>(9000, 0, of(2), || Err(std::io::ErrorKind::NotFound.into())), 0);
    }

    #[test]
    fn when_others_come_it_looks_soon_until_nothing_changes() {
        let mut pages = old();
        let ago = |pages: &mut CommonPages| pages.looked = Instant::now() - 2 * LOOK_SOON;
        assert_eq!(pages.of_others::<Linux>(9000, 1000, of(2), || share(9000, 5000)), 4000);
        for own in [3000, 3000] {
            ago(&mut pages);
            pages.of_others::<Linux>(9000, 1000, of(3), || share(9000, own));
        }
        ago(&mut pages);
        assert_eq!(pages.of_others::<Linux>(9000, 1000, of(3), || unreachable!()), 6000);
        assert_eq!(pages.of_others::<Linux>(9000, 1000, of(4), || share(9000, 2500)), 6500);
    }

    #[test]
    fn when_another_has_more_it_looks_again() {
        let mut pages = old();
        assert_eq!(pages.of_others::<Linux>(9000, 1000, of(2), || share(9000, 9000)), 0);
        pages.looked = Instant::now() - 2 * LOOK_SOON;
        assert_eq!(pages.of_others::<Linux>(9000, 1000, of(2), || unreachable!()), 0);
        assert_eq!(
            pages.of_others::<Linux>(9000, 1000, Around { processes: 2, growth: 10_000 }, || share(9000, 5000)),
            4000
        );
        assert_eq!(pages.growth(), 10_000);
    }

    #[test]
    fn changes_are_told_by_pieces() {
        let mut pages = old();
        assert_eq!(pages.changed(UNTOLD_PAGES - 1), (0, 0));
        assert_eq!(pages.changed(1000), (1000, 0));
        let told = [1063, 1064, 1001, 100, 200].map(|resident| pages.changed(resident));
        assert_eq!(told, [(0, 0), (64, 0), (0, 0), (0, 964), (100, 0)]);
    }
}
