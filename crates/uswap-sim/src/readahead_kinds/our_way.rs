//! The engine's own way.

use uswap_core::Policies;
use uswap_model::replay::{Access, replay};

use super::{Pattern, Score};

pub(super) fn run(limit: usize, pattern: &Pattern) -> Score {
    // All that is on swap has been used, in order, and has left.
    let on_swap: Vec<u64> = pattern.on_swap().collect();
    let reads: Vec<Access> = pattern.accesses.iter().map(|&page| Access { page, writes: false }).collect();
    let met = replay(limit as u64, Policies::default(), &on_swap, &reads);
    Score { misses: met.misses, hits: met.used, wasted: met.wasted }
}
