//! What a seed stands for: how the world is, and what goes how often wrong in it.

use crate::chance::Chance;
use crate::switching::Switching;

/// One world.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// First page of the program's address space. Near the end of a leaf of the page table, so that most spaces cross into the
    /// next one.
    pub base: usize,
    /// Pages of it.
    pub span: usize,
    /// Who goes on at each step.
    pub switching: Switching,
    /// Nanoseconds that a step takes at most.
    pub step_ns: u64,
    /// Parts of 100,000 steps after which a thread stands still for a while.
    pub stops: u64,
    /// Parts of 256 of those who wake somebody that lose the processor to him for a while.
    pub woken_first: u64,
    /// Parts of 256 of the tasks of events that do not go on for a while after their report was read.
    pub late_tasks: u64,
    /// Parts of 256 of the changes of the mappings that are reported a while after they were done.
    pub late_reports: u64,
    /// Parts of 256 of the discards that take effect a while after their report was read, when nothing is counted any more.
    pub late_drops: u64,
    /// Parts of 256 of the unmappings that are refused after they have been reported (Linux 6.12 and later).
    pub refused_unmaps: u64,
    /// Parts of 256 of the looks at mappings, and of registrations, after and before which a thread stands still.
    pub late_looks: u64,
    /// Parts of 10,000 of the looks at pages and mappings that fail.
    pub failed_looks: u64,
    /// Parts of 256 of the reads of what was compressed that begin a while after it was looked up.
    pub late_reads: u64,
    /// Parts of 100,000 steps with which somebody who sleeps wakes for no reason.
    pub spurious: u64,
    /// Parts of 1000 pages that the kernel has no memory for.
    pub no_memory: u64,
    /// Parts of 1000 missing pages that COPY, ZEROPAGE and POISON do not fill, for their page table has just gone: half of them they say are
    /// there, the others are to be tried again. Linux does so since 6.14 where another thread drops all that a page table is about
    /// (MADV_DONTNEED of 2 MiB in one call), at that moment; here it may be any page, at any time.
    pub tables_go: u64,
    /// Parts of 1000 requests of the engine for threads, memory, registrations and advice that are refused.
    pub refusals: u64,
    /// Parts of 1000 pages that it does not move although they are exclusive.
    pub busy: u64,
    /// Parts of 1000 pages moved that the kernel does not count.
    pub miscounts: u64,
    /// Parts of 100,000 steps with which the kernel swaps a page out by itself.
    pub kernel_swap: u64,
    /// Parts of 100,000 steps with which a page that was given up lazily goes.
    pub lazy_drops: u64,
    /// Parts of 100,000 steps with which the kernel fills holes, to make a huge page of what is around them.
    pub huge_pages: u64,
    /// Where such a page was the engine's, nobody may read zeros there: it must have been held on to.
    pub spoils_dropped: bool,
    /// PROCMAP_QUERY is known.
    pub has_map_query: bool,
    /// pagemap can be read; otherwise mincore(2) is all there is.
    pub has_pagemap: bool,
    /// Pages may be lost, because stores fail: an access gets SIGBUS then.
    pub may_lose_pages: bool,
    /// A planted defect: one access in so many is told to have found something else; 0: none. The oracle must say so.
    pub misreads: u64,
    /// Of which kind the content of all pages is ([`Content`](crate::Content)), if of one.
    pub content_kind: Option<u64>,
    /// What is done to this page is told on standard error.
    pub trace: Option<usize>,
    /// The last steps are kept, to be told of ([`last_steps`](crate::world::last_steps)).
    pub keeps_last_steps: bool,
    /// Steps before the program must have come to its end.
    pub steps_max: u64,
}

impl WorldConfig {
    /// A world in which nothing goes wrong, and threads change at random.
    pub fn plain() -> WorldConfig {
        WorldConfig {
            base: 448,
            span: 256,
            switching: Switching::Random { parts: 64 },
            step_ns: 500,
            stops: 0,
            woken_first: 0,
            late_tasks: 0,
            late_reports: 0,
            late_drops: 0,
            refused_unmaps: 0,
            late_reads: 0,
            late_looks: 0,
            failed_looks: 0,
            spurious: 0,
            no_memory: 0,
            tables_go: 0,
            refusals: 0,
            busy: 0,
            miscounts: 0,
            kernel_swap: 0,
            lazy_drops: 20,
            huge_pages: 0,
            spoils_dropped: true,
            has_map_query: true,
            has_pagemap: true,
            may_lose_pages: true,
            misreads: 0,
            content_kind: None,
            trace: None,
            keeps_last_steps: false,
            steps_max: 20_000_000,
        }
    }

    /// The world of `chance`.
    pub fn draw(chance: &mut Chance) -> WorldConfig {
        let mut apart = chance.apart();
        let tables_go = if apart.happens(1, 6) { 1 + apart.below(100) } else { 0 };
        let mut rare = |one_in: u64, most: u64| if chance.happens(1, one_in) { 1 + chance.below(most) } else { 0 };
        let (stops, spurious, no_memory, busy) = (rare(2, 100), rare(2, 100), rare(4, 30), rare(4, 15));
        let refusals = rare(8, 60);
        let no_memory = if no_memory > 20 { 3 * no_memory } else { no_memory };
        let (woken_first, late_tasks) = (rare(3, 64), rare(3, 128));
        let (late_reports, late_drops, late_reads) = (rare(3, 128), rare(3, 128), rare(6, 32));
        let (late_looks, failed_looks) = (rare(6, 64), rare(48, 60));
        let kernel_swap = rare(4, 300);
        let (miscounts, lazy_drops) = (if kernel_swap > 0 { rare(2, 50) } else { 0 }, rare(2, 400));
        WorldConfig {
            span: 64 + 32 * chance.index(10),
            switching: Switching::draw(chance),
            step_ns: if chance.happens(1, 12) { 100_000 } else { [500, 2000, 5000, 20_000][chance.index(4)] },
            stops,
            woken_first,
            late_tasks,
            late_reports,
            late_drops,
            late_reads,
            late_looks,
            failed_looks,
            spurious,
            no_memory,
            tables_go,
            refusals,
            busy,
            miscounts,
            kernel_swap,
            lazy_drops,
            // These two have no chance of their own: the worlds of all seeds that are on record would be others.
            refused_unmaps: if spurious % 4 == 3 { spurious } else { 0 },
            huge_pages: if stops % 3 == 2 { 20 * stops } else { 0 },
            spoils_dropped: chance.happens(1, 2),
            has_map_query: chance.happens(3, 4),
            has_pagemap: chance.happens(15, 16),
            may_lose_pages: false,
            ..WorldConfig::plain()
        }
    }
}
