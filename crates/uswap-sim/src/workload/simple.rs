//! Workloads of one rule each.

use super::{Spec, Zipf, scattered};
use crate::chance::Chance;
use crate::trace::Access;

fn access(page: u64, write: bool) -> Access {
    Access { process: 0, page, write }
}

pub(super) fn sequential(spec: &Spec) -> impl Iterator<Item = Access> + use<> {
    let pages = spec.pages;
    (0u64..).map(move |index| access(index % pages, (index / pages).is_multiple_of(2)))
}

pub(super) fn round_and_round(spec: &Spec) -> impl Iterator<Item = Access> + use<> {
    let pages = spec.pages;
    (0u64..).map(move |index| access(index % pages, false))
}

pub(super) fn zero(spec: &Spec) -> impl Iterator<Item = Access> + use<> {
    let pages = spec.pages;
    (0u64..).map(move |index| access(index % pages, index < pages))
}

pub(super) fn strided(spec: &Spec) -> impl Iterator<Item = Access> + use<> {
    let (pages, stride) = (spec.pages, spec.stride);
    let round = (0..stride).flat_map(move |offset| (offset..pages).step_by(stride as usize));
    std::iter::repeat_with(move || round.clone()).flatten().map(|page| access(page, false))
}

pub(super) fn random(spec: &Spec, mut chance: Chance) -> impl Iterator<Item = Access> + use<> {
    let (pages, writes) = (spec.pages, spec.writes);
    std::iter::repeat_with(move || access(chance.below(pages), chance.happens(writes, 100)))
}

pub(super) fn zipf(spec: &Spec, mut chance: Chance) -> impl Iterator<Item = Access> + use<> {
    let (pages, writes, zipf) = (spec.pages, spec.writes, Zipf::new(spec.pages, spec.theta));
    std::iter::repeat_with(move || access(scattered(zipf.draw(&mut chance), pages), chance.happens(writes, 100)))
}
