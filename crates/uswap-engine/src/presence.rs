//! Presence: what the kernel has of a page, asked where the answer of a call does not tell.
//!
//! The kernel may swap pages out by itself, those of the program, of the frame area, and of all else that the engine has. Such
//! a page is not missing: a touch is the kernel's to answer, no message comes, and UFFDIO_MOVE takes it along as it is, its
//! entry in the page table instead of its memory. So *populated* means present or swapped, everywhere.
//!
//! While the kernel reclaims, or after a fork, a count of UFFDIO_MOVE is a hint: seen on Linux 6.18 is one page too few, the
//! next call then finding its target taken by that very page. Taken at its word, the page would be looked for where it is
//! not. So what was moved is known by where it is:
//!
//! | call | answer | means | what is done |
//! | --- | --- | --- | --- |
//! | MOVE, out | all, or a count and any stop | pages, or holes that were run across, up to there; perhaps one more | the frames are looked at: populated is moved. Neither there nor in its old place, and passed: missing |
//! | MOVE, in, of frames with content | a count and any stop | so many, perhaps one more | a frame that is not populated any more has been moved, whatever its target looks like by now |
//! | MOVE, of free frames | a count and any stop | so many left, perhaps one more | the call is repeated until it says that all have |
//! | MOVE | EEXIST | the target is taken: by a page that was not counted, or by a newer one | looked at as above; then the newer one stays, and who waits is woken |
//! | MOVE | ENOENT | a hole, or no registered mapping | out: looked at. In: unmapped, an event is on its way |
//! | MOVE | EBUSY | shared after a fork, or brought back while it was still being written (zram), or pinned, or part of a large folio in the kernel's swap cache | out: the monitor writes to it, which mends all but the pinned. In: copied. Free frames: written to, a bounded number of times |
//! | MOVE | EINVAL | mappings of another kind | out: one by one, with frames made executable. In: copied |
//! | MOVE | EFAULT | a marker in its place: a guard, poison, memory that failed | out: it stays. In: cannot be, the process ends |
//! | MOVE, COPY, ZEROPAGE, POISON | EAGAIN | an unread event comes first; the count is right but for the page above | after the events |
//! | COPY | EEXIST | populated; markers are overwritten. Or, since Linux 6.14, nothing is there: its page table was just being freed, because another thread drops all 2 MiB that it is about in one call (of private memory this page, too; what is shared stays) | looked at: what is there is newer; where nothing is, tried again |
//! | ZEROPAGE, POISON | EEXIST | populated, or a marker; or as above | looked at, tried again a few times; then there: woken |
//! | COPY, ZEROPAGE | ENOMEM | the machine, or the memory cgroup, has none | tried again |
//! | DONTNEED of the trash | success | gone, also from the kernel's swap | |
//!
//! That a page has vanished is said only when POISON has taken its place: no page that is there can be poisoned.
//!
//! A process that has changed its user cannot see what the kernel has swapped out (`PageMap::is_exact`). Where there is no kernel
//! swap, what it does not see is not there all the same (`Residency::shows_absence`). Where there is, pages are moved one by one, and a page
//! that cannot be moved is never called missing. No call is taken at its word there, either: a page that was moved and not counted is seen
//! in its frame, or is not seen where it was while its frame is said to be taken; and what is brought in is brought in alone, so that
//! EEXIST means that its content, or a newer one, is in its place.

use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::fault::Vanished;
use uswap_core::{BLOCK_PAGES, FrameBlock, PAGE_SIZE, PageNumber};
use uswap_sys::report::Reason;
use uswap_system::System;
use uswap_system::faults::{Holes, Progress, Stop, Wake};
use uswap_system::looks::{PopulatedRange, Residency};

use crate::engine::Engine;
use crate::group::Counter;
use crate::host::Host;
use crate::memory::{BLOCK_BYTES, Memory};
use crate::names::PageName;

/// How often the kernel is asked for what nobody can do without, while it has no memory for an answer, and how long after it
/// was asked last: a second in all.
const LOOKS_MAX: u32 = 1000;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How often pages are filled again where the kernel says that they are there, and nothing is seen.
const FILLS_MAX: u32 = 8;

/// What became of a page that the books call resident.
pub(crate) enum Presence {
    /// It is there, or the books have changed.
    There,
    /// It is not, and an unread event may tell why.
    Changing,
    /// It is not.
    Vanished(Vanished),
}

/// Pages of `start..end`, at most a block, for which `is_meant`: bit `i` for page `i`.
fn mask_of(start: usize, ranges: &[PopulatedRange], is_meant: impl Fn(&PopulatedRange) -> bool) -> u16 {
    ranges.iter().filter(|range| is_meant(range)).fold(0, |mask, range| {
        let (from, to) = ((range.start - start) / PAGE_SIZE, (range.end - start) / PAGE_SIZE);
        mask | (((1u32 << to) - 1) & !((1u32 << from) - 1)) as u16
    })
}

/// What the kernel answers. It may have no memory for that, at the moment; without an answer the process cannot go on.
fn answered<S: System, T>(mut ask: impl FnMut() -> io::Result<T>) -> T {
    let mut asked = 0;
    loop {
        asked += 1;
        match ask() {
            Ok(answer) => return answer,
            Err(error) if error.kind() == ErrorKind::OutOfMemory && asked < LOOKS_MAX => S::sleep(LOOK_AGAIN),
            Err(error) => S::end(format_args!("uswap: cannot look at memory: {}", Reason(&error))),
        }
    }
}

impl<S: System> Memory<S> {
    /// Whether `page` is populated. Where that cannot be known it is said to be.
    pub(crate) fn is_populated(&self, page: PageNumber) -> bool {
        // In this order: kernel swap may be turned on meanwhile.
        self.is_seen(page) || !self.pagemap.shows_absence()
    }

    /// Which frames of a block have content. Only where that can be known.
    pub(crate) fn populated(&self, block: FrameBlock) -> u16 {
        self.look_at_block(self.frame_address(block.frame(0)), |_| true)
    }

    fn look_at_block(&self, start: usize, is_meant: impl Fn(&PopulatedRange) -> bool) -> u16 {
        let mut ranges = [PopulatedRange::default(); BLOCK_PAGES];
        let (count, _) = answered::<S, _>(|| self.pagemap.populated(start, start + BLOCK_BYTES, &mut ranges));
        mask_of(start, &ranges[..count], is_meant)
    }

    /// Whether anything of `start..end` is seen to be populated.
    pub(crate) fn has_populated(&self, start: usize, end: usize) -> bool {
        answered::<S, _>(|| self.pagemap.has_populated(start, end))
    }

    /// Makes the kernel keep what was moved into these frames and may be dropped; which of it is gone. What cannot be told is
    /// never called gone: it becomes zeros, as it would read, if it is.
    pub(crate) fn hold_on_to(&self, block: FrameBlock, moved: u16) -> u16 {
        let start = self.frame_address(block.frame(0));
        let keep = |pages| answered::<S, _>(|| self.pagemap.keep_lazily_freed(start, pages));
        let mut gone = keep(moved);
        if gone != 0 && self.pagemap.is_exact() {
            return gone & !self.populated(block);
        }
        for _ in 0..FILLS_MAX {
            if gone == 0 {
                break;
            }
            self.fill_frames(start, gone);
            gone = keep(gone);
        }
        0
    }

    /// Fills those of some frames that are missing with zeros. The userfaultfd that does it has no events, so that the kernel does it also
    /// while the program is changing its memory.
    fn fill_frames(&self, start: usize, pages: u16) {
        for index in (0..BLOCK_PAGES).filter(|index| pages >> index & 1 == 1) {
            answered::<S, _>(|| match self.fill_frame(start + index * PAGE_SIZE).stop {
                // A page table may just have gone.
                Some(Stop::NoMemory | Stop::TryLater) => Err(ErrorKind::OutOfMemory.into()),
                _ => Ok(()),
            });
        }
    }

    /// As [`Userfault::copy`](crate::userfault::Userfault::copy): with [`Stop::AlreadyThere`] there is something newer.
    pub(crate) fn copy(&self, target: usize, source: *const u8, len: usize, wake: Wake) -> Progress {
        let copy = |at: usize, len| self.uffd.copy(at, source.wrapping_add(at - target), len, wake);
        let copied = self.fill(target, len, copy);
        match copied.stop {
            Some(Stop::AlreadyThere) if !self.is_there(target + copied.bytes) && self.pagemap.shows_absence() => {
                Progress { stop: Some(Stop::TryLater), ..copied }
            }
            _ => copied,
        }
    }

    /// As [`Userfault::zeropage`](crate::userfault::Userfault::zeropage): with [`Stop::AlreadyThere`] there is something, or a marker.
    pub(crate) fn zeropage(&self, start: usize, len: usize, wake: Wake) -> Progress {
        self.fill(start, len, |at, len| self.uffd.zeropage(at, len, wake))
    }

    fn fill(&self, start: usize, len: usize, fill: impl Fn(usize, usize) -> Progress) -> Progress {
        let mut done = 0;
        for _ in 0..FILLS_MAX {
            let progress = fill(start + done, len - done);
            done += progress.bytes;
            if progress.stop != Some(Stop::AlreadyThere) || self.is_there(start + done) {
                return Progress { bytes: done, ..progress };
            }
        }
        Progress { bytes: done, stop: Some(Stop::AlreadyThere) }
    }

    /// Whether the page at `start`, which is said to be there, is; where that can be known. A look that fails tells nothing.
    fn is_there(&self, start: usize) -> bool {
        is_on(Sabotage::ThereIsBelieved)
            || is_on(Sabotage::SharedThereIsBelieved)
            || self.has_populated(start, start + PAGE_SIZE)
    }

    /// Whether a page that was to move from `source` to the frame at `target`, which was empty, has moved, though the kernel has stopped
    /// with `stop` and not counted it.
    pub(crate) fn has_moved_uncounted(&self, target: usize, source: usize, stop: Stop) -> bool {
        let is_seen = |start: usize| self.has_populated(start, start + PAGE_SIZE);
        is_seen(target) || stop == Stop::AlreadyThere && !is_seen(source)
    }

    /// Whether several pages can be brought in by one call, and it be told afterwards which of them have been.
    pub(crate) fn moves_several(&self) -> bool {
        self.pagemap.shows_absence()
    }

    /// Moves `pages` pages with content from the frames at `source` to `target`, with the gate held.
    ///
    /// As nobody else moves these frames, one that is not populated any more tells that it was this call.
    pub(crate) fn move_run(&self, target: usize, source: usize, pages: usize, wake: Wake) -> Progress {
        let len = pages * PAGE_SIZE;
        let sees_all = self.moves_several();
        let mut done = 0;
        loop {
            let step = if sees_all { len - done } else { PAGE_SIZE };
            let progress = self.uffd.move_pages(target + done, source + done, step, Holes::Refuse, wake);
            done += progress.bytes;
            if progress.stop.is_some() {
                let before = done;
                while sees_all && done < len && !self.is_populated(PageNumber::containing(source + done)) {
                    done += PAGE_SIZE;
                }
                if done == before {
                    return Progress { bytes: done, ..progress };
                }
                // The kernel wakes those who wait for what it counts.
                if wake == Wake::Wake {
                    self.wake(PageNumber::containing(target + before), ((done - before) / PAGE_SIZE) as u64);
                }
            }
            if done == len {
                return Progress { bytes: done, stop: None };
            }
        }
    }

    /// Whether `page` is seen to be populated; where that is not known, whoever asks must ask further.
    fn is_seen(&self, page: PageNumber) -> bool {
        let mut found = [PopulatedRange::default(); 1];
        let (start, end) = (page.address(), page.address() + PAGE_SIZE);
        matches!(self.pagemap.populated(start, end, &mut found), Ok((1.., _)) | Err(_))
    }
}

impl<H: Host> Engine<H> {
    /// Which pages of a block the kernel has swapped out, as far as it has any of this process.
    pub(crate) fn kernel_swapped(&self, first: PageNumber) -> u16 {
        match self.kernel_swaps() {
            true => self.memory.look_at_block(first.address(), PopulatedRange::kernel_swapped),
            false => 0,
        }
    }

    fn kernel_swaps(&self) -> bool {
        self.member.slot().resident.kernel_swapped_pages.load(Relaxed) > 0
    }

    /// The books say that `page` is resident, and yet a thread missed it. Mostly another thread brought it in after the
    /// message had been read. If it really is missing, was not discarded, and no unread event tells that it was unmapped
    /// or moved, its content is lost. The caller keeps events from being applied.
    pub(crate) fn check_present(&self, page: PageNumber) -> Presence {
        let mut core = self.core();
        // Looked at under the lock, for a page is there before the books say so, and leaves after they say so.
        if !core.is_resident(page) || self.memory.is_seen(page) {
            return Presence::There;
        }
        // In this order: an event is counted before the page goes.
        if self.memory.uffd.is_changing() {
            return Presence::Changing;
        }
        if H::PAGES_ARE_GIVEN_UP {
            core.given_up_lazily(page.alone());
        }
        let vanished = core.vanished(page);
        if vanished == Vanished::Lost {
            match self.take_the_place_of(page) {
                Some(Stop::AlreadyThere) => {
                    core.not_lost(page);
                    return Presence::There;
                }
                Some(Stop::TryLater) => {
                    core.not_lost(page);
                    return Presence::Changing;
                }
                _ => {}
            }
            drop(core);
            self.tell_vanished(page);
        }
        Presence::Vanished(vanished)
    }

    /// The content of `page`, poisoned in the books, is lost, and nobody knows why. Or it is there after all.
    pub(crate) fn page_is_missing(&self, page: PageNumber) {
        // There after all, or the program is changing its memory.
        if matches!(self.take_the_place_of(page), Some(Stop::AlreadyThere | Stop::TryLater)) {
            return self.core().not_lost(page);
        }
        self.tell_vanished(page);
    }

    fn take_the_place_of(&self, page: PageNumber) -> Option<Stop> {
        self.memory.uffd.poison(page.address(), PAGE_SIZE).stop
    }

    fn tell_vanished(&self, page: PageNumber) {
        self.count(Counter::PoisonedPages, 1);
        let _ = self.books.say_lost(page);
        self.member.alarm(format_args!("uswap: {} vanished; an access raises SIGBUS", PageName::<H>::new(page)));
        self.memory.poison(page);
    }
}
