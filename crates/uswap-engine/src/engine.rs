//! The engine of one process: the shared state of its threads, its locks, and their order.
//!
//! Locks, in the order in which they are taken:
//!
//! 1. `running` (`phase.rs`): read by every thread while it may change the books; written by a fork, which needs them still.
//! 2. `swapoff`: by whoever empties an area, while he asks the books what is next.
//! 3. `gate`: read while pages are moved; written while messages of the userfaultfd are read and events applied. So an
//!    event is never applied between the moment a thread asks the books about a page and the moment it moves it, and no
//!    thread sees a fault before the events that came first.
//! 4. `order` (or that of the window of a fork), `heirs` or `trash`.
//! 5. `core`: the books. Not held across I/O, a copy or a compression.
//! 6. `pool`: a leaf.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Instant;

use uswap_core::entry::Epoch;
use uswap_core::event_order::EventOrder;
use uswap_core::sabotage::{Sabotage, is_on};
use uswap_core::tuning;
pub(crate) use uswap_core::tuning::ROUND_PAGES as BATCH;
use uswap_core::{BLOCK_PAGES, Core, CoreConfig, FrameId, Location, PAGE_SIZE, PageNumber, RangeSet, Released};
use uswap_sys::private_memory::{self, PrivateMapping, Purpose};
use uswap_sys::report::Reason;
use uswap_sys::ring::Ring;
use uswap_system::faults::{Call, Faults};
use uswap_system::looks::Residency;
use uswap_system::sync::{Gate, Lock, LockGuard};
use uswap_system::{Advice, Supervisor, System};

use crate::ahead::Ahead;
use crate::areas::Areas;
use crate::compress::PageCompressor;
use crate::fork_copy::Ancestor;
use crate::fork_journal::Window;
use crate::group::{Compressor, Counter};
use crate::handler::PendingFault;
use crate::host::Host;
use crate::ledger::Ledger;
use crate::member::Member;
use crate::page_io::{PageBatch, SlotPage};
use crate::phase::{Entry, Phase};
use crate::post::Post;
use crate::swapin::Load;
use crate::swapoff::Swapoff;
use crate::swapout::PendingStore;
use crate::userfault::Userfault;
use crate::writer::Writer;
use crate::zpool::{Handle, PoolView, Zpool};

/// Blocks of frames that are given back to the kernel at a time: 2 MiB.
pub(crate) const TRASH_BLOCKS: usize = 32;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE_SIZE;
/// Blocks of frames of a process: 4 to 512 MiB.
const FRAME_BLOCKS_MIN: u32 = 64;
const FRAME_BLOCKS_MAX: u32 = 8192;
/// Room for released places that a worker keeps.
pub(crate) const RELEASED_KEPT: usize = 4096;

/// A registered range without events: frames moved there can be given back to the kernel, which would be an event in the
/// frame area.
pub(crate) struct Trash<H: Host> {
    pub uffd: H::Faults,
    pub memory: PrivateMapping,
}

impl<H: Host> Trash<H> {
    /// Drops what was moved there.
    pub fn empty(&self) {
        let drop = || H::advise(self.memory.start(), self.memory.len(), Advice::DontNeed);
        if drop().is_err() {
            // The program has locked all that is mapped, by a call that was not seen.
            H::unlock_all();
            let _ = drop();
        }
    }
}

/// Why a process cannot swap.
#[derive(Debug)]
pub enum StartError<E> {
    /// No userfaultfd.
    Uffd(E),
    /// Something else.
    Io(io::Error),
}

/// The engine.
pub struct Engine<H: Host> {
    /// This process in its group.
    pub member: Member<H>,
    pub(crate) uffd: Userfault<H::Faults>,
    pub(crate) pagemap: H::Residency,
    pub(crate) frames: PrivateMapping,
    pub(crate) zeros: PrivateMapping,
    pub(crate) areas: Areas<H>,
    pub(crate) view: PoolView,
    pub(crate) ancestors: Vec<Ancestor>,
    pub(crate) phase: Phase<H>,
    pub(crate) window: Window<H>,
    pub(crate) gate: Gate<H>,
    /// Events that were read.
    pub(crate) order: Lock<EventOrder, H>,
    pub(crate) core: Lock<Core, H>,
    pub(crate) pool: Lock<Zpool, H>,
    pub(crate) heirs: Lock<Vec<Ledger>, H>,
    pub(crate) trash: Lock<Trash<H>, H>,
    /// Where its memory is.
    pub(crate) trash_range: (usize, usize),
    pub(crate) meter: Meter,
    pub(crate) call: <H::Faults as Faults>::Call,
    pub(crate) ahead: Ahead,
    pub(crate) swapoff: Lock<Swapoff, H>,
    pub(crate) writer: Writer<H>,
    /// Handlers, threads that read ahead and the writer, as far as they have all the memory that they need.
    pub(crate) handlers_ready: AtomicU32,
    pub(crate) post: &'static Post<H>,
    /// Nanoseconds of a handler for a page from the pool, and for one from an area: a mean of the last ones.
    pub(crate) fault_cost: [AtomicU64; 2],
    pub(crate) started: Instant,
    /// In a forked child: memory whose swapped content may not be what is there.
    pub(crate) refused: Lock<RangeSet, H>,
    /// The user has been told that nothing more can be stored.
    pub(crate) said_full: AtomicBool,
    /// And that the books cannot grow.
    pub(crate) said_out_of_memory: AtomicBool,
}

/// How much memory the process uses, as last measured, and what changed since.
#[derive(Default)]
pub(crate) struct Meter {
    /// Pages that counted against the budget when the monitor looked.
    pub mine: AtomicU64,
    /// Pages that handlers added since.
    pub added: AtomicU64,
    /// Where reclaim ends.
    pub low: AtomicU64,
    /// Where a handler that has served a fault calls the monitor.
    pub start: AtomicU64,
    /// Where it reclaims a little by itself, because the monitor does not keep up.
    pub direct: AtomicU64,
    /// Where it does so before it serves a fault, until there is room.
    pub limit: AtomicU64,
    /// The monitor need not be called: it reclaims at this moment, or found nothing to reclaim a moment ago.
    pub called: AtomicBool,
    /// The monitor found nothing to reclaim the last time, and nothing since: waiting for it is in vain.
    pub fruitless: AtomicBool,
    /// A handler has served a page that an mremap has added to a managed mapping: the rest is to be adopted.
    pub grown: AtomicBool,
    /// Pool bytes from which the oldest objects are written back.
    pub pool_limit: AtomicU64,
    /// Frames without content that are kept ready.
    pub reserve: AtomicU64,
    /// Until when, in milliseconds since the engine started, there is no place for anything: faults do not wait for it.
    pub hopeless_until_ms: AtomicU64,
    /// Frames with content that are kept before they are stored.
    pub inactive: AtomicU64,
}

impl Meter {
    /// Pages that count against the budget, as far as is known.
    pub fn used(&self) -> u64 {
        self.mine.load(Relaxed) + self.added.load(Relaxed)
    }

    /// `pages` have been given back to the kernel since the monitor looked.
    pub fn freed(&self, pages: u64) {
        let take = |from: &AtomicU64, pages: u64| {
            let before = from.fetch_update(Relaxed, Relaxed, |value| Some(value.saturating_sub(pages)));
            before.unwrap_or_else(|before| before).min(pages)
        };
        let rest = pages - take(&self.added, pages);
        take(&self.mine, rest);
    }
}

/// What a thread of the engine has for itself. All memory is taken when it is made.
pub struct Worker {
    pub(crate) ring: Ring,
    pub(crate) batch: PageBatch,
    pub(crate) slot_pages: Vec<SlotPage>,
    pub(crate) stores: Vec<PendingStore>,
    pub(crate) wanted: Vec<PageNumber>,
    pub(crate) compressor: PageCompressor,
    pub(crate) compressed: Box<[u8; PAGE_SIZE]>,
    /// Whole pages.
    pub(crate) buffer: PrivateMapping,
    pub(crate) released: Vec<Released>,
    /// Pages that could not be moved, for the monitor to see to.
    pub(crate) busy: Vec<PageNumber>,
    /// Whether `busy` is filled.
    pub(crate) collects_busy: bool,
    /// Whether this thread writes to areas. Otherwise it leaves that to the writer.
    pub(crate) writes: bool,
    /// Rounds for which it leaves all stores to the writer, because most pages found no place in memory.
    pub(crate) leaves_stores: u32,
    /// Faults that have been read and not yet served.
    pub(crate) pending: VecDeque<PendingFault>,
    /// Those whose content is to be read from areas together, and what is to be read for each.
    pub(crate) reading: Vec<PendingFault>,
    /// See `reading`.
    pub(crate) loads: Vec<Load>,
    /// Which handler this is.
    pub(crate) number: usize,
    /// Whether the pool had to shrink when this thread looked.
    pub(crate) pool_gate: uswap_core::zswap::PoolGate,
}

impl Worker {
    /// With a buffer of so many pages, of which mostly no more than `io_pages` are read or written together.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new<H: Host>(compressor: Compressor, io_pages: usize, buffer_pages: usize) -> io::Result<Worker> {
        let entries = 2 * io_pages as u32;
        Ok(Worker {
            ring: if H::HAS_IO_URING { Ring::new_or_synchronous(entries) } else { Ring::new_synchronous(entries) },
            batch: PageBatch::with_capacity(io_pages),
            slot_pages: Vec::with_capacity(buffer_pages),
            stores: Vec::with_capacity(BATCH),
            wanted: Vec::with_capacity(BATCH),
            compressor: PageCompressor::new(compressor),
            compressed: Box::new([0; PAGE_SIZE]),
            buffer: private_memory::map(buffer_pages * PAGE_SIZE, Purpose::Buffers)?,
            released: Vec::with_capacity(RELEASED_KEPT),
            busy: Vec::new(),
            collects_busy: false,
            writes: true,
            leaves_stores: 0,
            pending: VecDeque::with_capacity(4096),
            reading: Vec::with_capacity(io_pages),
            loads: Vec::with_capacity(io_pages),
            number: 0,
            pool_gate: Default::default(),
        })
    }

    /// Gives the memory of all but the first pages of the buffer back.
    pub(crate) fn trim_buffer<H: Host>(&self, kept_pages: usize) {
        let kept = kept_pages * PAGE_SIZE;
        if kept < self.buffer.len() {
            let _ = H::advise(self.buffer.start() + kept, self.buffer.len() - kept, Advice::DontNeed);
        }
    }

    /// Page `index` of the worker's buffer.
    pub(crate) fn buffer_page(&self, index: usize) -> *mut u8 {
        assert!(index < self.buffer.len() / PAGE_SIZE);
        self.buffer.as_ptr().wrapping_add(index * PAGE_SIZE)
    }
}

/// What an engine is made of.
struct Parts<H: Host> {
    uffd: H::Faults,
    trash: Trash<H>,
    frames: PrivateMapping,
    zeros: PrivateMapping,
    pagemap: H::Residency,
    call: <H::Faults as Faults>::Call,
    pool: Zpool,
    areas: Areas<H>,
    core: Core,
    ancestors: Vec<Ancestor>,
}

impl<H: Host> Parts<H> {
    fn make(member: &mut Member<H>, inheritance: Option<Inheritance>) -> Result<Self, StartErrorOf<H>> {
        let config = member.group.config();
        let limit_bytes = config.memory_limit_bytes;
        let left = AddressSpace(H::addresses_left());
        let uffd = H::Faults::for_program(member.supervisor.device()).map_err(StartError::Uffd)?;
        let trash_uffd = H::Faults::for_moves(member.supervisor.device()).map_err(StartError::Uffd)?;
        let (blocks, frames) = map_frames(left.at_most(frame_blocks(limit_bytes / PAGE_SIZE as u64)))?;
        let trash = private_memory::map(TRASH_BLOCKS * BLOCK_BYTES, Purpose::Frames)?;
        for memory in [&frames, &trash] {
            // A forked child makes its own.
            H::advise(memory.start(), memory.len(), Advice::DontFork)?;
            let _ = H::advise(memory.start(), memory.len(), Advice::NoHugepage);
        }
        // Read once, so that a copy from it takes no fault on the way.
        let zeros = private_memory::map(BLOCK_BYTES, Purpose::Buffers)?;
        if let Some(descriptor) = uffd.descriptor() {
            member.supervisor.keep(descriptor)?;
        }
        let pool = Zpool::new(left.pool_bytes((limit_bytes as usize).saturating_mul(4)))?;
        let area_slots: Vec<u64> = config.areas.iter().filter(|area| area.present).map(|area| area.slots).collect();
        let (core, ancestors) = match inheritance {
            None => {
                let config = CoreConfig {
                    frame_blocks: blocks,
                    area_slots,
                    window_max: BLOCK_PAGES as u32,
                    ahead_max: tuning::ahead_pages(config.memory_limit_bytes / PAGE_SIZE as u64),
                    policies: config.policies,
                };
                (Core::new(config), Vec::new())
            }
            Some(Inheritance { mut core, ancestors }) => {
                core.become_child(blocks);
                (core, ancestors)
            }
        };
        let pagemap = H::Residency::open()?;
        let call = Call::new()?;
        let areas = Areas::open(member)?;
        // Last, because from here on nothing may fail: unmapping registered memory waits for a handler.
        // Nobody reads its messages: who looks at it from outside must not wait for one.
        trash_uffd.register_as_target(trash.start(), trash.len())?;
        uffd.register(frames.start(), frames.len())?;
        Ok(Parts {
            uffd,
            trash: Trash { uffd: trash_uffd, memory: trash },
            frames,
            zeros,
            pagemap,
            call,
            pool,
            areas,
            core,
            ancestors,
        })
    }
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

/// Bytes of addresses that the process may still use (RLIMIT_AS), of which the engine takes a quarter at most: a program that
/// runs under the limit alone should run here, too.
struct AddressSpace(Option<u64>);

impl AddressSpace {
    /// Blocks of frames: an eighth.
    fn at_most(&self, blocks: u32) -> u32 {
        let most = self.0.map_or(u64::MAX, |left| left / 8 / BLOCK_BYTES as u64);
        u64::from(blocks).min(most.max(u64::from(FRAME_BLOCKS_MIN))) as u32
    }

    /// Bytes for the pool: an eighth.
    fn pool_bytes(&self, wanted: usize) -> usize {
        self.0.map_or(wanted, |left| wanted.min((left / 8) as usize))
    }
}

impl<E> From<io::Error> for StartError<E> {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Why a process of this system cannot swap.
pub type StartErrorOf<H> = StartError<<<H as System>::Faults as Faults>::Unavailable>;

/// A start that failed: who wanted to start gets himself back.
pub(crate) type NotStarted<H> = (Box<Member<H>>, StartErrorOf<H>);

impl<E: fmt::Display> fmt::Display for StartError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Uffd(error) => error.fmt(f),
            StartError::Io(error) => Reason(error).fmt(f),
        }
    }
}

/// Content with which an engine starts: none, or what a fork left to the child.
pub(crate) struct Inheritance {
    pub core: Core,
    pub ancestors: Vec<Ancestor>,
}

/// Frames that a process with this budget has room for, in blocks. Their records take 40 bytes each, in each process.
fn frame_blocks(limit_pages: u64) -> u32 {
    ((limit_pages / 3 / BLOCK_PAGES as u64) as u32).clamp(FRAME_BLOCKS_MIN, FRAME_BLOCKS_MAX)
}

impl<H: Host> Engine<H> {
    /// Starts the engine of `member`, who gets himself back if that fails.
    pub(crate) fn start(
        mut member: Member<H>,
        post: &'static Post<H>,
        inheritance: Option<Inheritance>,
    ) -> Result<Self, NotStarted<H>> {
        // What of it is in the child, and where, is to be told before anything is brought in: see `Monitor::take_over`.
        let phase = if inheritance.is_some() { Phase::freezing() } else { Phase::running() };
        match Parts::make(&mut member, inheritance) {
            Ok(Parts { uffd, trash, frames, zeros, pagemap, call, pool, areas, core, ancestors }) => Ok(Engine {
                uffd: Userfault::new(uffd),
                pagemap,
                frames,
                zeros,
                areas,
                view: pool.view(),
                ancestors,
                phase,
                window: Window::new(),
                gate: Gate::new(),
                order: Lock::new(EventOrder::default()),
                core: Lock::new(core),
                pool: Lock::new(pool),
                heirs: Lock::new(Vec::new()),
                trash_range: (trash.memory.start(), trash.memory.end()),
                trash: Lock::new(trash),
                meter: Meter::default(),
                call,
                ahead: Ahead::new(),
                swapoff: Lock::new(Swapoff::default()),
                writer: Writer::new(),
                refused: Lock::new(RangeSet::default()),
                handlers_ready: AtomicU32::new(0),
                post,
                fault_cost: [AtomicU64::new(10_000), AtomicU64::new(100_000)],
                started: H::now(),
                said_full: AtomicBool::new(false),
                said_out_of_memory: AtomicBool::new(false),
                member,
            }),
            Err(error) => Err((Box::new(member), error)),
        }
    }

    /// A thread of the engine has begun, and has all that it works with.
    pub(crate) fn thread_begins(&self) {
        self.handlers_ready.fetch_add(1, AcqRel);
    }

    /// Waits out a fork that is being prepared, then tells how the books may be used.
    pub(crate) fn enter(&self) -> Entry<'_> {
        self.phase.enter()
    }

    /// Whether a fork is under way. Stays as it is while the gate is held.
    pub(crate) fn is_frozen(&self) -> bool {
        self.phase.is_frozen()
    }

    pub(crate) fn core(&self) -> LockGuard<'_, Core> {
        self.core.lock()
    }

    pub(crate) fn count(&self, counter: Counter, by: u64) {
        self.member.slot().tally.add(counter, by);
    }

    /// Address of a frame.
    pub(crate) fn frame_address(&self, frame: FrameId) -> usize {
        let offset = frame.0 as usize * PAGE_SIZE;
        assert!(offset < self.frames.len());
        self.frames.start() + offset
    }

    /// The content of a frame.
    ///
    /// # Safety
    /// The frame is populated, and until the slice is gone nobody moves it away or writes to it: its state is `Writing`,
    /// or `Loading` by this thread.
    pub(crate) unsafe fn frame_page(&self, frame: FrameId) -> &[u8; PAGE_SIZE] {
        // SAFETY: the address lies inside the frame area, which stays mapped; the rest is the caller's promise.
        unsafe { &*(self.frame_address(frame) as *const [u8; PAGE_SIZE]) }
    }

    /// The compressed object of an entry stored by the process of `epoch`.
    ///
    /// # Safety
    /// The entry is pinned, or a zombie, or foreign and not given up: its object stays as it is.
    pub(crate) unsafe fn object(&self, epoch: Epoch, handle: u32, len: u16) -> &[u8] {
        let view = match self.ancestors.get(epoch.0 as usize) {
            Some(ancestor) => ancestor.pool.view(),
            None => self.view,
        };
        // SAFETY: by the caller's promise the object is allocated and nobody frees it meanwhile; the pool it is in lives
        // as long as the engine, which lives as long as the process.
        unsafe { view.slice(Handle(handle), len as usize) }
    }

    /// Releases the places that the books have let go.
    pub(crate) fn release(&self, released: &mut Vec<Released>) {
        if released.is_empty() {
            return;
        }
        let own = Epoch(self.ancestors.len() as u16);
        let mut pool = None;
        for place in released.drain(..) {
            if place.epoch == own {
                if let Location::Pool { handle, len } = place.location {
                    let pool = pool.get_or_insert_with(|| self.pool.lock());
                    if is_on(Sabotage::DoubleFree) {
                        pool.free(Handle(handle), len as usize);
                    }
                    pool.free(Handle(handle), len as usize);
                }
            } else if let Some(ancestor) = self.ancestors.get(place.epoch.0 as usize) {
                ancestor.ledger.give_up(place.entry);
            }
        }
    }

    /// Stops the program: something happened that must not be possible, and a wrong page is worse than a crash.
    pub(crate) fn fatal(&self, args: std::fmt::Arguments<'_>) -> ! {
        H::end(args)
    }

    /// Whether memory for the books is short: then nothing is begun that would make them grow. What is adopted stays so, and
    /// what is in memory stays there, beyond the budget if need be; faults are served from what is set aside.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        if H::reserve_is_whole() {
            return false;
        }
        if !self.said_out_of_memory.swap(true, Relaxed) {
            self.member.alarm(format_args!(
                "uswap: process {} gets no more memory for uswap's own books (ulimit -v, ulimit -d, vm.max_map_count): \
                 it may go beyond its budget",
                H::process_id()
            ));
        }
        true
    }
}
