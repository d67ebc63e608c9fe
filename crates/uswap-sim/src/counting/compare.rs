//! All policies on all sizes of memory, with Belady's optimum as the bound.

use uswap_core::{PageNumber, Policies, ReadaheadPolicy, ReclaimPolicy};
use uswap_model::replay::{Access, SIZE_MIN, replay};
use uswap_policy::{NAMES, belady_misses, by_name};

use super::misses;
use crate::on_engine::Dense;

/// What the engine's own choice is called, by each of its policies: blocks of neighbours, with faults as the only evidence of
/// use. No page comes along here.
pub fn engine_name(reclaim: ReclaimPolicy) -> &'static str {
    match reclaim {
        ReclaimPolicy::Lists => "engine lists",
        ReclaimPolicy::Refault => "engine refault",
        ReclaimPolicy::S3Fifo => "engine s3fifo",
        ReclaimPolicy::Lirs => "engine lirs",
    }
}

/// What the bound is called.
pub const BOUND: &str = "belady";

/// The miss ratios of one policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// The policy.
    pub policy: &'static str,
    /// Pages of memory, and misses of an access; none where the engine cannot keep to so few.
    pub points: Vec<(u64, f64)>,
}

/// Sizes from a twentieth of the distinct pages to all of them.
pub fn sizes_for(pages: u32) -> Vec<u64> {
    let mut sizes: Vec<u64> =
        [5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100].map(|percent| (u64::from(pages) * percent / 100).max(1)).into();
    sizes.dedup();
    sizes
}

/// The curves of all policies, the bound last. `places` has the address of each page of `trace`.
pub fn compare(trace: &[u32], places: &[PageNumber], sizes: &[u64]) -> Vec<Curve> {
    let ratio = |misses: u64| misses as f64 / trace.len().max(1) as f64;
    let mut curves: Vec<Curve> = NAMES
        .iter()
        .map(|&policy| Curve {
            policy,
            points: sizes
                .iter()
                .map(|&size| {
                    let mut replacement = by_name(policy, size as usize).expect("it is in the list of names");
                    (size, ratio(misses(trace, &mut *replacement)))
                })
                .collect(),
        })
        .collect();
    for reclaim in ReclaimPolicy::ALL {
        let sizes = sizes.iter().filter(|&&size| size >= SIZE_MIN);
        let points = sizes.map(|&size| (size, ratio(engine_misses(trace, places, size, reclaim)))).collect();
        curves.push(Curve { policy: engine_name(reclaim), points });
    }
    let points = sizes.iter().map(|&size| (size, ratio(belady_misses(trace, size as usize)))).collect();
    curves.push(Curve { policy: BOUND, points });
    curves
}

fn engine_misses(trace: &[u32], places: &[PageNumber], size: u64, reclaim: ReclaimPolicy) -> u64 {
    let dense = Dense::of(places.iter().copied());
    let access = |&page: &u32| Access { page: dense.place(places[page as usize]), writes: false };
    let accesses: Vec<Access> = trace.iter().map(access).collect();
    replay(size, Policies { reclaim, readahead: ReadaheadPolicy::Off, ..Policies::default() }, &[], &accesses).misses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counting::placed;
    use crate::workload::Spec;

    #[test]
    fn nothing_is_below_the_bound_and_all_memory_misses_once_a_page() {
        for workload in
            ["zipf:pages=500,accesses=20000", "loop:pages=300,accesses=5000", "sysbench:pages=2000,accesses=9000"]
        {
            let (trace, places) = placed(Spec::parse(workload).unwrap().accesses(2));
            let pages = places.len() as u32;
            let curves = compare(&trace, &places, &sizes_for(pages));
            let bound = curves.last().unwrap();
            assert_eq!(bound.policy, BOUND);
            for curve in &curves {
                for point in &curve.points {
                    let least = bound.points.iter().find(|least| least.0 == point.0).unwrap();
                    assert!(point.1 >= least.1, "{workload}: {} at {} pages", curve.policy, point.0);
                }
                let (all, once) = (curve.points.last().unwrap().1, f64::from(pages) / trace.len() as f64);
                // The engine keeps frames free, of the same memory.
                let is_engine = curve.policy.starts_with("engine");
                assert!(is_engine || (all - once).abs() < 1e-9, "{workload}: {}", curve.policy);
                assert!(all < 2.0 * once + 0.05, "{workload}: {}: {all}", curve.policy);
            }
        }
    }
}
