//! Page replacement: which page leaves when memory is full. One policy per file, chosen by name.
//!
//! Pages are small numbers: 0, 1, 2, ... up to as many as there are distinct ones. Whatever a policy keeps lies in arrays
//! indexed by page and in queues of pages, so that a touch costs one or two cache lines, and memory grows with the number of
//! distinct pages alone: at most [`BYTES_PER_PAGE_MAX`] bytes each, history of pages that have left included.
//!
//! Here are [`Replacement`], which all of them are, their [`NAMES`], and [`belady_misses`], which no policy can be below. Streams
//! of readahead are in [`streams`], what tells a page that came back too soon in [`refault_distance`].
//!
//! ```
//! use uswap_policy::{Access, NAMES, belady_misses, by_name};
//!
//! // A loop over four pages, and memory for three.
//! let trace: Vec<u32> = (0..400).map(|step| step % 4).collect();
//! let least = belady_misses(&trace, 3);
//! for name in NAMES {
//!     let mut policy = by_name(name, 3)?;
//!     let misses = trace.iter().filter(|&&page| policy.access(page) != Access::Hit).count() as u64;
//!     assert!((least..=400).contains(&misses), "{name} misses {misses}");
//! }
//! # Ok::<(), uswap_policy::UnknownPolicy>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod belady;
pub mod lirs;
pub mod refault_distance;
pub mod s3_fifo;
pub mod second_chance;
pub mod streams;
pub mod two_lists;

pub(crate) mod list;
pub(crate) mod queue;

pub use belady::belady_misses;
pub use lirs::Lirs;
pub use s3_fifo::S3Fifo;
pub use second_chance::SecondChance;

use alloc::boxed::Box;
use core::fmt;

use crate::two_lists::LinuxLru;

/// A page, numbered densely from 0; `u32::MAX` is no page.
pub type PageIndex = u32;

/// No policy keeps more than this for a page that it has seen.
pub const BYTES_PER_PAGE_MAX: usize = 64;

/// A replacement policy, and the pages that it holds to be in memory.
pub trait Replacement {
    /// The name that it is chosen by.
    fn name(&self) -> &'static str;

    /// Pages that fit in memory.
    fn capacity(&self) -> usize;

    /// Memory has a different size from here on. Where it shrinks, [`evict`](Self::evict) until the pages fit.
    fn resize(&mut self, capacity: usize);

    /// Pages in memory.
    fn resident(&self) -> usize;

    /// Whether `page` is in memory.
    fn is_resident(&self, page: PageIndex) -> bool;

    /// `page`, which is in memory, was used.
    fn touch(&mut self, page: PageIndex);

    /// `page`, which was not in memory, is so now because it was used.
    fn insert(&mut self, page: PageIndex);

    /// Lets a page go; `None` when there is none in memory.
    fn evict(&mut self) -> Option<PageIndex>;

    /// Nobody will use `page` again (it was unmapped): it leaves memory, and what is remembered of it is dropped.
    fn forget(&mut self, page: PageIndex);

    /// Bytes of the arrays that grow with the number of distinct pages.
    fn bytes(&self) -> usize;

    /// `pages` will be used next: looks at what is kept of each. Nothing changes, but the processor waits for memory once for
    /// all of them, where it would wait for each on its own. Worth it where that is more than its caches hold.
    fn look_ahead(&self, pages: &[PageIndex]);

    /// `page` is used: a miss brings it in, and where memory is full another page leaves for it first.
    #[inline]
    fn access(&mut self, page: PageIndex) -> Access {
        if self.is_resident(page) {
            self.touch(page);
            return Access::Hit;
        }
        let evicted = if self.resident() >= self.capacity() { self.evict() } else { None };
        self.insert(page);
        Access::Miss { evicted }
    }
}

/// What an access did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The page was in memory.
    Hit,
    /// The page was brought in.
    Miss {
        /// The page that left for it.
        evicted: Option<PageIndex>,
    },
}

/// The names of all policies.
pub const NAMES: [&str; 4] = [SecondChance::NAME, S3Fifo::NAME, Lirs::NAME, LinuxLru::NAME];

/// The policy called `name`, for a memory of `capacity` pages.
///
/// # Errors
/// [`UnknownPolicy`] when no policy has that name.
///
/// # Panics
/// When `capacity` is 0.
pub fn by_name(name: &str, capacity: usize) -> Result<Box<dyn Replacement>, UnknownPolicy> {
    Ok(match name {
        SecondChance::NAME => Box::new(SecondChance::new(capacity)),
        S3Fifo::NAME => Box::new(S3Fifo::new(capacity)),
        Lirs::NAME => Box::new(Lirs::new(capacity)),
        LinuxLru::NAME => Box::new(LinuxLru::new(capacity)),
        _ => return Err(UnknownPolicy),
    })
}

/// No policy has that name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("unknown replacement policy; choose one of")?;
        NAMES.iter().try_for_each(|name| write!(out, " {name}"))
    }
}

impl core::error::Error for UnknownPolicy {}

/// Grows an array that is indexed by page so that it covers `page`.
pub(crate) fn cover<T: Clone + Default>(array: &mut alloc::vec::Vec<T>, page: PageIndex) {
    if array.len() <= page as usize {
        array.resize(page as usize + 1, T::default());
    }
}

/// Reads `part` of what `array` has for each of `pages`, if anything, and forgets it. Nothing in here waits for the page before.
#[inline]
pub(crate) fn glance<'p, T>(array: &[T], pages: impl IntoIterator<Item = &'p PageIndex>, part: impl Fn(&T) -> u32) {
    let seen = pages.into_iter().filter_map(|&page| array.get(page as usize)).fold(0, |seen, of| seen | part(of));
    core::hint::black_box(seen);
}

pub(crate) fn checked_capacity(capacity: usize) -> usize {
    assert!(capacity > 0, "a memory of no pages cannot hold the page that is used");
    capacity
}

#[cfg(test)]
mod tests;
