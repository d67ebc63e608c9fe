//! Memory: the program's memory and the frame area as the kernel has them, and what puts them in order with the books.
//!
//! Who fills or moves a page asks the books and does it with the `gate` passed; who reads messages and applies events shuts it.
//! So an event is never applied between the moment a thread asks the books about a page and the moment it moves it, and no
//! thread sees a fault before the events that came first. `order` has the events that were read and are not in the books yet:
//! while there are any, the userfaultfd fills nothing.
//!
//! A frame is moved away or written to only by the thread to which the books have given it.

#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use uswap_core::event_order::{Event, EventOrder};
use uswap_core::{BLOCK_PAGES, FrameId, PAGE_SIZE, PageNumber, PageRange};
use uswap_sys::private_memory::{self, PrivateMapping, Purpose};
use uswap_system::faults::{Faults, Progress, Wake};
use uswap_system::looks::Residency;
use uswap_system::{Advice, Supervisor, System};

use crate::lock_order::{Gate, Level, Lock, LockGuard};
use crate::userfault::Userfault;

/// Blocks of frames that are given back to the kernel at a time: 2 MiB.
pub(crate) const TRASH_BLOCKS: usize = 32;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE_SIZE;
/// Blocks of frames of a process: 4 to 512 MiB.
const FRAME_BLOCKS_MIN: u32 = 64;
const FRAME_BLOCKS_MAX: u32 = 8192;

/// A registered range without events: frames moved there can be given back to the kernel, which would be an event in the
/// frame area.
pub(crate) struct Trash<S: System> {
    pub uffd: Arc<S::Faults>,
    pub memory: PrivateMapping,
    /// When a frame could last not be given back, however often it was tried: somebody reads it from outside, and may wait for another
    /// page of ours meanwhile.
    pub refused: Option<Instant>,
}

impl<S: System> Trash<S> {
    /// Drops what was moved there.
    pub fn empty(&self) {
        let drop = || S::advise(self.memory.start(), self.memory.len(), Advice::DontNeed);
        if drop().is_err() {
            // The program has locked all that is mapped, by a call that was not seen.
            S::unlock_all();
            let _ = drop();
        }
    }
}

/// Events that were read and are not in the books yet.
#[derive(Default)]
pub(crate) struct ReadEvents {
    order: EventOrder,
    /// In which read each was, where it matters.
    reads: Vec<(Event, u64)>,
}

impl ReadEvents {
    /// An event was read, in the read of this number.
    pub fn was_read(&mut self, event: Event, number: u64) {
        self.reads.push((event, number));
    }

    /// Takes out the number of the read in which `event` was: the first that is left of several that are alike.
    pub fn take_read_of(&mut self, event: Event) -> Option<u64> {
        let is_it = |read: Event| match (read, event) {
            (Event::Remapped { from, to, .. }, Event::Remapped { from: other, to: place, .. }) => {
                (from, to) == (other, place)
            }
            _ => read == event,
        };
        let index = self.reads.iter().position(|&(read, _)| is_it(read))?;
        Some(self.reads.remove(index).1)
    }

    /// All are in the books.
    pub fn forget_reads(&mut self) {
        self.reads.clear();
    }
}

impl Deref for ReadEvents {
    type Target = EventOrder;

    fn deref(&self) -> &EventOrder {
        &self.order
    }
}

impl DerefMut for ReadEvents {
    fn deref_mut(&mut self) -> &mut EventOrder {
        &mut self.order
    }
}

/// The program's memory, and the frames.
pub(crate) struct Memory<S: System> {
    pub uffd: Userfault<S::Faults>,
    pub pagemap: S::Residency,
    frames: PrivateMapping,
    zeros: PrivateMapping,
    pub gate: Gate<S>,
    /// Events that were read.
    order: Lock<ReadEvents, S>,
    trash: Lock<Trash<S>, S>,
    /// Where its memory is.
    trash_range: (usize, usize),
    /// Its userfaultfd, which has no events.
    without_events: Arc<S::Faults>,
    /// A handler has served a page that an mremap has added to a managed mapping: the rest is to be adopted.
    grown: AtomicBool,
}

/// What of it may fail, and can be given up again.
pub(crate) struct Mapped<S: System> {
    uffd: S::Faults,
    trash: Trash<S>,
    frames: PrivateMapping,
    /// How many blocks of frames there are.
    pub blocks: u32,
    zeros: PrivateMapping,
    pagemap: S::Residency,
}

impl<S: System> Mapped<S> {
    /// With userfaultfds of its own. Nothing is registered yet.
    pub fn with(uffd: S::Faults, trash_uffd: S::Faults, blocks: u32, supervisor: &S::Supervisor) -> io::Result<Self> {
        let (blocks, frames) = map_frames(blocks)?;
        let trash = private_memory::map(TRASH_BLOCKS * BLOCK_BYTES, Purpose::Frames)?;
        for memory in [&frames, &trash] {
            // A forked child makes its own.
            S::advise(memory.start(), memory.len(), Advice::DontFork)?;
            let _ = S::advise(memory.start(), memory.len(), Advice::NoHugepage);
        }
        // Read once, so that a copy from it takes no fault on the way.
        let zeros = private_memory::map(BLOCK_BYTES, Purpose::Buffers)?;
        let pagemap = S::Residency::open()?;
        // Last: the supervisor keeps it for as long as the process lives, also if this comes to nothing.
        if let Some(descriptor) = uffd.descriptor() {
            supervisor.keep(descriptor)?;
        }
        Ok(Mapped {
            uffd,
            trash: Trash { uffd: Arc::new(trash_uffd), memory: trash, refused: None },
            frames,
            blocks,
            zeros,
            pagemap,
        })
    }

    /// Last of all that an engine is made of, because from here on nothing may fail: unmapping registered memory waits for a
    /// handler.
    pub fn register(self) -> io::Result<Memory<S>> {
        let Mapped { uffd, trash, frames, zeros, pagemap, blocks: _ } = self;
        // Nobody reads its messages: who looks at it from outside must not wait for one.
        trash.uffd.register_as_target(trash.memory.start(), trash.memory.len())?;
        uffd.register(frames.start(), frames.len())?;
        Ok(Memory {
            uffd: Userfault::new(uffd),
            pagemap,
            frames,
            zeros,
            gate: Gate::new(Level::Gate),
            order: Lock::new(Level::Order, ReadEvents::default()),
            trash_range: (trash.memory.start(), trash.memory.end()),
            without_events: trash.uffd.clone(),
            trash: Lock::new(Level::Trash, trash),
            grown: AtomicBool::new(false),
        })
    }
}

/// Frames that a process with this budget has room for, in blocks. The records of those that have been in use take 40 bytes each, in each
/// process.
pub(crate) fn frame_blocks(limit_pages: u64) -> u32 {
    ((limit_pages / 3 / BLOCK_PAGES as u64) as u32).clamp(FRAME_BLOCKS_MIN, FRAME_BLOCKS_MAX)
}

/// As [`frame_blocks`], and no more than fit into so many bytes of addresses.
pub(crate) fn frame_blocks_within(blocks: u32, bytes: u64) -> u32 {
    u64::from(blocks).min((bytes / BLOCK_BYTES as u64).max(u64::from(FRAME_BLOCKS_MIN))) as u32
}

/// Maps so many blocks of frames, or half of that, and so on.
fn map_frames(mut blocks: u32) -> io::Result<(u32, PrivateMapping)> {
    loop {
        match private_memory::map(blocks as usize * BLOCK_BYTES, Purpose::Frames) {
            Ok(frames) => return Ok((blocks, frames)),
            Err(_) if blocks > FRAME_BLOCKS_MIN => blocks = (blocks / 2).max(FRAME_BLOCKS_MIN),
            Err(error) => return Err(error),
        }
    }
}

impl<S: System> Memory<S> {
    /// Address of a frame.
    pub fn frame_address(&self, frame: FrameId) -> usize {
        let offset = frame.0 as usize * PAGE_SIZE;
        assert!(offset < self.frames.len());
        self.frames.start() + offset
    }

    /// The content of a frame.
    ///
    /// # Safety
    /// The frame is populated, and until the slice is gone nobody moves it away or writes to it: its state is `Writing`,
    /// or `Loading` by this thread.
    pub unsafe fn frame_page(&self, frame: FrameId) -> &[u8; PAGE_SIZE] {
        // SAFETY: the address lies inside the frame area, which stays mapped; the rest is the caller's promise.
        unsafe { &*(self.frame_address(frame) as *const [u8; PAGE_SIZE]) }
    }

    /// The frame that `page` is, if it lies in the frame area.
    pub fn frame_at(&self, page: PageNumber) -> Option<FrameId> {
        let address = page.address();
        let is_frame = (self.frames.start()..self.frames.end()).contains(&address);
        is_frame.then(|| FrameId(((address - self.frames.start()) / PAGE_SIZE) as u32))
    }

    /// How many frames there are.
    pub fn frame_count(&self) -> u64 {
        (self.frames.len() / PAGE_SIZE) as u64
    }

    /// A block of zeros.
    pub fn zeros(&self) -> *const u8 {
        self.zeros.as_ptr()
    }

    /// Wakes those who wait for `pages` pages.
    pub fn wake(&self, first: PageNumber, pages: u64) {
        if pages > 0 {
            let _ = self.uffd.wake(first.address(), pages as usize * PAGE_SIZE);
        }
    }

    /// Whoever touches `page` gets SIGBUS.
    pub fn poison(&self, page: PageNumber) {
        let _ = self.uffd.poison(page.address(), PAGE_SIZE);
        self.wake(page, 1);
    }

    /// What is known of events that were read.
    pub fn order(&self) -> LockGuard<'_, ReadEvents, S> {
        self.order.lock()
    }

    /// With the gate shut: an event was read. Nothing is filled until it is settled.
    pub fn keep_event(&self, event: Event) {
        let mut order = self.order.lock();
        order.read(event);
        self.uffd.hold_events(true);
    }

    /// With the gate shut: all that was read is settled.
    pub fn events_are_settled(&self) {
        self.order.lock().clear();
        self.uffd.hold_events(false);
    }

    /// Where free frames are given back.
    pub fn trash(&self) -> LockGuard<'_, Trash<S>, S> {
        self.trash.lock()
    }

    /// Whether all of `range` is one mapping and registered, as far as the kernel tells, which it does also while the program is changing
    /// its memory.
    pub fn sees_registered(&self, range: PageRange) -> bool {
        self.without_events.sees_registered(range.start.address(), range.pages as usize * PAGE_SIZE)
    }

    /// Fills a frame with zeros, if nothing is in it, also while the program is changing its memory. What is said to be there is: no page table
    /// of frames is ever dropped as a whole.
    pub fn fill_frame(&self, address: usize) -> Progress {
        self.without_events.zeropage(address, PAGE_SIZE, Wake::DontWake)
    }

    /// A handler: a managed mapping turned out to have grown, or the monitor has adopted what it has grown by.
    pub fn note_grown(&self, has_grown: bool) {
        self.grown.store(has_grown, Relaxed);
    }

    /// Whether a managed mapping is known to have grown.
    pub fn has_grown(&self) -> bool {
        self.grown.load(Relaxed)
    }

    /// In the copy that a forked child has: where the parent's frame area and its trash were, which it does not have.
    pub fn ranges_without_copy(&self) -> [(usize, usize); 2] {
        [(self.frames.start(), self.frames.end()), self.trash_range]
    }

    /// In the copy that a forked child has: forgets it. Its descriptors are those of other files there, and another thread may
    /// have been writing into the rest.
    pub fn forget(self) {
        let Memory { uffd, pagemap, frames, zeros, gate: _, order, trash, trash_range: _, without_events, grown: _ } =
            self;
        std::mem::forget((uffd, pagemap, trash.into_inner(), without_events, frames, zeros, order));
    }
}
