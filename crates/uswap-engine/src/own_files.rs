//! Memory files of uswap's own that every process of a run has mapped: the agent, and what the processes tell each other. Each counts its
//! part of them. Counted in full in each, they had filled a seventh of the budget of a database with 27 small processes.

use std::io;
use std::time::{Duration, Instant};

use uswap_system::System;
use uswap_system::looks::{Mappings, PopulatedRange, Residency};

/// How long a process has lived before it looks where they are: one that ends soon has little use of it.
const LOOK_FIRST: Duration = Duration::from_millis(100);
/// Where they would fill one part in so many of the budget if each counted them in full, it looks at once: many that begin at the same time
/// would swap for nothing.
const FILL_PART: u64 = 8;
/// What a process has of them, roughly, in pages: 1 MiB.
const PAGES_EACH: u64 = 256;
/// How often it looks what is resident of them: some microseconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// See the file's head.
pub(crate) struct OwnFiles {
    /// Where they are, as bytes; nothing before the first look.
    mappings: Option<Vec<(usize, usize)>>,
    /// Pages of them in memory, at the last look.
    pages: u64,
    looked: Instant,
}

impl OwnFiles {
    /// Of a process that begins at `now`.
    pub fn new(now: Instant) -> OwnFiles {
        OwnFiles { mappings: None, pages: 0, looked: now }
    }

    /// How many of the process's pages others of so many processes count for, in a budget of so many pages.
    pub fn of_others<S: System>(&mut self, processes: u64, limit: u64) -> u64 {
        let every = match self.mappings {
            Some(_) => LOOK_EVERY,
            None if processes * PAGES_EACH > limit / FILL_PART => Duration::ZERO,
            None => LOOK_FIRST,
        };
        if S::since(self.looked) >= every {
            // What cannot be looked at counts in full.
            self.pages = self.look::<S>().unwrap_or(0);
            self.looked = S::now();
        }
        self.pages - self.pages.div_ceil(processes.max(1))
    }

    fn look<S: System>(&mut self) -> io::Result<u64> {
        if self.mappings.is_none() {
            // They stay where they are.
            let mut text = Vec::new();
            S::Mappings::read_maps(&mut text)?;
            let own = uswap_sys::maps::vmas(&text).filter(uswap_sys::shared_file::is_in_every_process);
            self.mappings = Some(own.map(|vma| (vma.start, vma.end)).collect());
        }
        let mappings = self.mappings.as_deref().unwrap_or_default();
        if mappings.is_empty() {
            return Ok(0);
        }
        let residency = S::Residency::open()?;
        mappings.iter().map(|&(start, end)| pages_of_file(&residency, start, end)).sum()
    }
}

/// Pages of a file, or of shared memory, in memory; copies that are the process's own are none.
pub(crate) fn pages_of_file(residency: &impl Residency, start: usize, end: usize) -> io::Result<u64> {
    let (mut at, mut pages) = (start, 0);
    let mut ranges = [PopulatedRange::default(); 16];
    while at < end {
        let (filled, next) = residency.populated(at, end, &mut ranges)?;
        let of_file = ranges[..filled].iter().filter(|range| range.file() && !range.kernel_swapped());
        pages += of_file.map(|range| ((range.end - range.start) / uswap_system::PAGE_SIZE) as u64).sum::<u64>();
        at = next;
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use uswap_sys::linux::Linux;

    use super::*;
    use crate::group::{Group, GroupConfig};

    const LIMIT: u64 = 1 << 16;

    #[test]
    fn all_processes_together_count_them_once() {
        let files = |pages| OwnFiles { pages, ..OwnFiles::new(Instant::now()) };
        assert_eq!(files(300).of_others::<Linux>(1, LIMIT), 0);
        assert_eq!(files(301).of_others::<Linux>(3, LIMIT), 301 - 101);
        assert_eq!(files(0).of_others::<Linux>(0, LIMIT), 0);
    }

    #[test]
    fn they_are_found_by_their_names() {
        let (group, _fd) =
            Group::create(&GroupConfig { memory_limit_bytes: 1 << 30, ..GroupConfig::default() }).unwrap();
        group.process(7).resident.anon_pages.store(1, std::sync::atomic::Ordering::Relaxed);
        let mut files = OwnFiles { looked: Instant::now() - LOOK_EVERY, ..OwnFiles::new(Instant::now()) };
        let of_others = files.of_others::<Linux>(2, LIMIT);
        assert!(files.mappings.is_some_and(|mappings| !mappings.is_empty()) && files.pages > 0);
        assert_eq!(of_others, files.pages / 2);
        let new = |processes| OwnFiles::new(Instant::now()).of_others::<Linux>(processes, LIMIT);
        assert_eq!(new(2), 0, "it has not lived for long enough");
        assert!(new(LIMIT / FILL_PART / PAGES_EACH + 1) > 0, "so many would fill much of the budget");
    }
}
