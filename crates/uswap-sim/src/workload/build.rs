//! A kernel build: many short processes with memory of their own, and files that all of them read.

use super::{Spec, Zipf, scattered};
use crate::chance::Chance;
use crate::trace::Access;

/// make -j32.
const JOBS: usize = 32;

/// One compiler.
struct Job {
    process: u32,
    /// Its own pages.
    pages: u64,
    accesses: u64,
}

/// Each compiler reads headers, which all share (process 0), and works on memory of its own, mostly on what it allocated
/// last. When it is done, another begins, and nobody touches the pages of the first one again.
pub(super) fn kernel_build(spec: &Spec, mut chance: Chance) -> impl Iterator<Item = Access> + use<> {
    // Half of the pages at a time are headers, the rest the compilers'.
    let headers = (spec.pages / 2).max(1);
    let pages_each = (spec.pages / 2 / JOBS as u64).max(8);
    let zipf = Zipf::new(headers, 0.8);
    let mut last_process = 0;
    let mut begin = move |chance: &mut Chance| {
        last_process += 1;
        Job { process: last_process, pages: pages_each / 2 + chance.below(pages_each), accesses: 0 }
    };
    let mut jobs: Vec<Job> = (0..JOBS).map(|_| begin(&mut chance)).collect();
    std::iter::repeat_with(move || {
        if chance.happens(1, 3) {
            return Access { process: 0, page: scattered(zipf.draw(&mut chance), headers), write: false };
        }
        let index = chance.index(JOBS);
        // It touches each page about four times before the next one is new.
        if jobs[index].accesses / 4 >= jobs[index].pages {
            jobs[index] = begin(&mut chance);
        }
        let job = &mut jobs[index];
        job.accesses += 1;
        let newest = job.accesses / 4;
        let near = newest - chance.below(newest + 1).min(chance.below(newest + 1)).min(chance.below(newest + 1));
        Access { process: job.process, page: near, write: chance.happens(1, 2) }
    })
}
