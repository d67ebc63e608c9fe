//! Whether this kernel moves pages rightly that it has swapped out by itself, found out by doing it.
//!
//! Some threads move runs of pages to and fro between registered ranges, one more has the kernel swap them out all the time. What
//! a call counts may be too low (see the engine's `presence`); a page must be where it is populated, in one of the two places,
//! and have its content.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::with_exposed_provenance_mut as at;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::mm::Advice;

use crate::PAGE_SIZE;
use crate::pagemap::{PageMap, PopulatedRange};
use crate::private_memory::{self, Purpose};
use crate::uffd::{Features, Holes, Stop, Uffd, UffdUnavailable, Wake, make_exclusive};

const THREADS: usize = 2;
/// Pages that a thread moves at a time.
const RUN: usize = 16;
/// Pages that a thread has. Up to 31 pages that a processor has filled last are on no list of the kernel's yet (a folio batch),
/// and cannot be swapped out.
const PAGES: usize = 8 * RUN;
const WORDS: usize = PAGE_SIZE / size_of::<u64>();

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Pages moved.
    pub moved: u64,
    /// Those that the kernel had swapped out when they were moved, or a moment before.
    pub swapped: u64,
    /// Those that were moved and not counted.
    pub uncounted: u64,
    /// Those that were in neither place, or had other content afterwards.
    pub wrong: u64,
}

/// Tries it for some time.
pub fn try_for(device: Option<BorrowedFd<'_>>, time: Duration) -> Result<Tried, UffdUnavailable> {
    let uffd = Uffd::new(device, Features::MOVE)?;
    let bytes = THREADS * PAGES * PAGE_SIZE;
    let sides = [(); 2].map(|()| private_memory::map(bytes, Purpose::Buffers));
    let [left, right] = sides;
    let (left, right) = (left.map_err(UffdUnavailable::Io)?, right.map_err(UffdUnavailable::Io)?);
    for side in [&left, &right] {
        uffd.register(side.start(), bytes).map_err(UffdUnavailable::Io)?;
    }
    let over = AtomicBool::new(false);
    let tried = std::thread::scope(|scope| {
        let movers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let offset = thread * PAGES * PAGE_SIZE;
                let (uffd, over) = (&uffd, &over);
                let sides = [left.start() + offset, right.start() + offset];
                scope.spawn(move || Mover { uffd, sides, seed: thread as u64, tried: Tried::default() }.run(over))
            })
            .collect();
        let begun = Instant::now();
        while begun.elapsed() < time && !movers.iter().any(|mover| mover.is_finished()) {
            for side in [&left, &right] {
                // SAFETY: the advice changes no content. It fails where nothing can be swapped out.
                let _ = unsafe { rustix::mm::madvise(at(side.start()), bytes, Advice::LinuxPageOut) };
            }
        }
        over.store(true, Relaxed);
        movers.into_iter().map(|mover| mover.join().expect("it does not panic")).collect::<io::Result<Vec<_>>>()
    });
    let sum = |sum: Tried, one: &Tried| Tried {
        moved: sum.moved + one.moved,
        swapped: sum.swapped + one.swapped,
        uncounted: sum.uncounted + one.uncounted,
        wrong: sum.wrong + one.wrong,
    };
    Ok(tried.map_err(UffdUnavailable::Io)?.iter().fold(Tried::default(), sum))
}

/// A thread that moves its pages from the first side to the second.
struct Mover<'a> {
    uffd: &'a Uffd,
    sides: [usize; 2],
    seed: u64,
    tried: Tried,
}

impl Mover<'_> {
    /// To and fro, until it is over or something is wrong.
    fn run(mut self, over: &AtomicBool) -> io::Result<Tried> {
        let pagemap = PageMap::open_self()?;
        let zeros = [0u8; PAGE_SIZE];
        for index in 0..PAGES {
            let page = self.sides[0] + index * PAGE_SIZE;
            if !self.uffd.copy(page, zeros.as_ptr(), PAGE_SIZE, Wake::Wake).is_complete() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            // SAFETY: a populated page of this thread's own.
            (0..WORDS).for_each(|word| unsafe { self.word(page, word).write_volatile(self.content(index, word)) });
        }
        while !over.load(Relaxed) && self.tried.wrong == 0 {
            for run in (0..PAGES * PAGE_SIZE).step_by(RUN * PAGE_SIZE) {
                self.tried.swapped += count(&pagemap, self.sides[0] + run, RUN, PopulatedRange::kernel_swapped)?;
                self.move_run(&pagemap, self.sides.map(|side| side + run))?;
            }
            self.sides.reverse();
            // Nobody serves faults, so a page that is not there must not be looked at.
            if self.tried.wrong == 0 {
                self.tried.wrong += (0..PAGES).filter(|&index| !self.is_right(index)).count() as u64;
            }
        }
        Ok(self.tried)
    }

    fn move_run(&mut self, pagemap: &PageMap, [source, target]: [usize; 2]) -> io::Result<()> {
        let mut done = 0;
        while done < RUN {
            let (from, to, len) = (source + done * PAGE_SIZE, target + done * PAGE_SIZE, (RUN - done) * PAGE_SIZE);
            let progress = self.uffd.move_pages(to, from, len, Holes::Refuse, Wake::Wake);
            done += progress.bytes / PAGE_SIZE;
            let Some(stop) = progress.stop else { break };
            let before = done;
            while done < RUN && count(pagemap, source + done * PAGE_SIZE, 1, |_| true)? == 0 {
                if count(pagemap, target + done * PAGE_SIZE, 1, |_| true)? == 0 {
                    self.tried.wrong += 1;
                    return Ok(());
                }
                done += 1;
            }
            self.tried.uncounted += (done - before) as u64;
            match stop {
                // Brought back while it was still being written: it counts as shared until somebody writes to it.
                Stop::Busy if done == before => {
                    // SAFETY: a populated page of this thread's own.
                    unsafe { make_exclusive(source + done * PAGE_SIZE) }
                }
                Stop::Busy | Stop::AlreadyThere | Stop::TryLater if done > before => {}
                Stop::TryLater => {}
                stop => return Err(io::Error::other(format!("a page could not be moved: {stop:?}"))),
            }
        }
        self.tried.moved += RUN as u64;
        Ok(())
    }

    /// Does not compress to nothing: a device may keep pages of one word as no page at all.
    fn content(&self, index: usize, word: usize) -> u64 {
        (self.seed << 16 | index as u64) ^ (word as u64) << 40
    }

    fn word(&self, page: usize, word: usize) -> *mut u64 {
        at(page + word * size_of::<u64>())
    }

    fn is_right(&self, index: usize) -> bool {
        let page = self.sides[0] + index * PAGE_SIZE;
        // SAFETY: a populated page of this thread's own.
        (0..WORDS).all(|word| unsafe { self.word(page, word).read_volatile() } == self.content(index, word))
    }
}

/// How many of some pages are populated and meant.
fn count(pagemap: &PageMap, start: usize, pages: usize, is_meant: impl Fn(&PopulatedRange) -> bool) -> io::Result<u64> {
    let mut ranges = [PopulatedRange::default(); RUN];
    let (filled, _) = pagemap.populated(start, start + pages * PAGE_SIZE, &mut ranges)?;
    Ok(ranges[..filled].iter().filter(|range| is_meant(range)).map(|r| ((r.end - r.start) / PAGE_SIZE) as u64).sum())
}
