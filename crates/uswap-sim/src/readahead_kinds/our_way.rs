//! The engine's own way.

use uswap_core::{PageNumber, ReadaheadPolicy, ReclaimPolicy};

use super::{Pattern, Score};
use crate::engine_memory::{Along, EngineMemory, Met};

pub(super) fn run(limit: usize, pattern: &Pattern) -> Score {
    let mut memory =
        EngineMemory::new(limit as u64, pattern.end(), ReclaimPolicy::default(), Along::As(ReadaheadPolicy::Stream));
    // All that is on swap has been used, in order, and has left.
    for page in pattern.on_swap() {
        let _ = memory.access(PageNumber(page), true);
    }
    memory.swap_out_all();
    let before = memory.counts();
    let missed = |&&page: &&u64| memory.access(PageNumber(page), false) == Met::Miss;
    let misses = pattern.accesses.iter().filter(missed).count() as u64;
    let after = memory.counts();
    Score { misses, hits: after.used - before.used, wasted: after.wasted - before.wasted }
}
