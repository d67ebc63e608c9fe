//! What the engine asks of the system that it runs on.
//!
//! The engine is generic over a [`System`]. `uswap-sys` implements it for Linux, `uswap-model` for a model of Linux with a
//! scheduler that goes by a seed. Calls are dispatched statically: on Linux the traits cost nothing.
//!
//! - [`faults`]: userfaultfd: messages, and what fills, moves and drops pages;
//! - [`looks`]: what is where: page tables, mappings, the size of the process;
//! - [`atomic`]: the words that they are made of;
//! - [`call_word`]: the one beside a call;
//! - [`sync`]: locks and words to wait on, made of [`System::acquire`], [`System::wait`] and [`System::wake`].
//!
//! Addresses are bytes. Functions without a receiver are about the calling thread or its process: the model knows which of its
//! threads calls.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

pub mod atomic;
pub mod call_word;
pub mod faults;
pub mod looks;
pub mod sync;
#[cfg(uswap_words)]
pub mod words;

use atomic::AtomicU32;
use faults::Faults;
use looks::{Footprint, Mappings, Residency};

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;

/// Advice about memory, by its name in madvise(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// MADV_DONTNEED: the content goes.
    DontNeed,
    /// MADV_DONTFORK.
    DontFork,
    /// MADV_DOFORK.
    DoFork,
    /// MADV_NOHUGEPAGE.
    NoHugepage,
    /// MADV_POPULATE_WRITE: as a write to each page, without changing a byte.
    PopulateWrite,
}

/// Anonymous shared memory that a thread of the program wants, as mmap(2) is asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapShared {
    /// Where, or 0.
    pub start: usize,
    /// How many bytes.
    pub len: usize,
    /// PROT_*.
    pub protection: u32,
    /// MAP_*.
    pub flags: u32,
}

/// Whether the shared-memory server knows of what has been handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It does.
    Known,
    /// It wants none of it.
    Refused,
    /// It has not answered yet.
    NotYet,
}

impl MapShared {
    /// -ENOSYS: the kernel is to be asked.
    pub const NOT_SUPPORTED: isize = -38;
    /// Nothing is to be mapped: the process is about to do direct I/O.
    pub const DIRECT_IO: MapShared = MapShared { start: 0, len: 0, protection: u32::MAX, flags: 0 };

    /// Nothing is to be mapped: MADV_DONTFORK (`keeps`) or MADV_DOFORK is given for what may be shared memory.
    pub fn fork_advice(start: usize, len: usize, keeps: bool) -> MapShared {
        MapShared { start, len, protection: Self::FORK_ADVICE, flags: u32::from(keeps) }
    }

    /// Whether it is [`fork_advice`](Self::fork_advice), and which.
    pub fn as_fork_advice(&self) -> Option<bool> {
        (self.protection == Self::FORK_ADVICE).then_some(self.flags != 0)
    }

    const FORK_ADVICE: u32 = u32::MAX - 1;

    /// Nothing is to be mapped: shared memory that has a name (a segment, a file in memory) has been mapped at `start`, of which the program
    /// does not know yet; it may have been asked before (`is_again`). What is answered: 0, it may use it.
    pub fn named(start: usize, is_again: bool) -> MapShared {
        MapShared { start, len: 0, protection: Self::NAMED, flags: u32::from(is_again) }
    }

    /// Whether it is [`named`](Self::named), where, and again or not.
    pub fn as_named(&self) -> Option<(usize, bool)> {
        (self.protection == Self::NAMED).then_some((self.start, self.flags != 0))
    }

    const NAMED: u32 = u32::MAX - 2;

    /// Nothing is to be mapped: the segment that is attached at `start` is to be detached. What is answered: 0, it has been;
    /// [`NOT_SUPPORTED`](Self::NOT_SUPPORTED), the kernel is to be asked.
    pub fn detached(start: usize) -> MapShared {
        MapShared { start, len: 0, protection: Self::DETACHED, flags: 0 }
    }

    /// Whether it is [`detached`](Self::detached), and where.
    pub fn as_detached(&self) -> Option<usize> {
        (self.protection == Self::DETACHED).then_some(self.start)
    }

    const DETACHED: u32 = u32::MAX - 3;

    /// Nothing is to be mapped: the file with this number on this device, which may be swapped out, is about to be changed by the kernel. What is
    /// answered: 0, none of it is swapped out any more; -EAGAIN, not yet so.
    pub fn changed(device: u64, number: u64) -> MapShared {
        MapShared { start: number as usize, len: device as usize, protection: Self::CHANGED, flags: 0 }
    }

    /// Whether it is [`changed`](Self::changed), and which device and file.
    pub fn as_changed(&self) -> Option<(u64, u64)> {
        (self.protection == Self::CHANGED).then_some((self.len as u64, self.start as u64))
    }

    const CHANGED: u32 = u32::MAX - 4;
}

/// Whether shared memory is swapped, and who tells the server of forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedSwap {
    /// It is not.
    Off,
    /// It is, and the kernel tells (UFFD_EVENT_FORK, which takes CAP_SYS_PTRACE).
    KernelTells,
    /// It is, and each child tells before it goes on.
    ChildrenTell,
}

/// What the supervisor is to hand to the shared-memory server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// A memory file that is mapped in place of anonymous shared memory.
    Object {
        /// Where it has been registered with the process's userfaultfd, before anybody could use it; or 0.
        start: usize,
    },
    /// The userfaultfd for shared memory of a process, before its handshake.
    Client,
    /// The same again: shared memory that has a name has been mapped.
    Named {
        /// Where.
        start: usize,
    },
    /// Nothing, but word that a file in memory is about to be changed.
    Changed {
        /// Its device.
        device: u64,
        /// Its number there.
        number: u64,
    },
}

/// Who waits on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Threads of one process.
    Process,
    /// Threads of several processes that have the word in common.
    Shared,
}

/// Why a wait on a word ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Somebody woke us, or a signal did, or nobody: look at the word.
    Woken,
    /// The word was not what was expected; we did not sleep.
    Changed,
    /// The time is over.
    TimedOut,
}

/// Threads, waiting, time, and memory that is not filled by userfaultfd.
pub trait System: Sized + Send + Sync + 'static {
    /// The userfaultfd of a process.
    type Faults: Faults<Supervisor = Self::Supervisor>;
    /// Its page tables, as they can be looked at.
    type Residency: Residency;
    /// Its mappings.
    type Mappings: Mappings;
    /// How much memory it has.
    type Footprint: Footprint;
    /// Its connection to the supervisor.
    type Supervisor: Supervisor;

    /// Whether I/O goes by io_uring where there is one.
    const HAS_IO_URING: bool;

    /// Whether a page that is not there where it should be has been given up by the program, for nobody else can have taken it.
    const PAGES_ARE_GIVEN_UP: bool = false;

    /// Whether a thread that takes locks in a wrong order is to be found.
    const CHECKS_LOCKS: bool = false;

    /// The time. It never goes backwards.
    fn now() -> Instant;

    /// The time since then.
    fn since(then: Instant) -> Duration {
        Self::now().saturating_duration_since(then)
    }

    /// What the calling thread has had of a CPU.
    fn cpu_time() -> Duration;

    /// Sleeps.
    fn sleep(duration: Duration);

    /// Gets what `attempt` gets sooner or later, as a lock that others hold for microseconds: tried awake for a while, then
    /// `sleep` waits for it.
    fn acquire<G>(attempt: impl FnMut() -> Option<G>, sleep: impl FnOnce() -> G) -> G;

    /// For [`CHECKS_LOCKS`](Self::CHECKS_LOCKS): looks at a word that the calling thread has for itself, and that is 0 at first.
    fn held_locks<R>(look: impl FnOnce(&Cell<u32>) -> R) -> R {
        look(&Cell::new(0))
    }

    /// Sleeps while `word` is `expected`, at most for `timeout`. It may end for no reason.
    fn wait(word: &AtomicU32, scope: Scope, expected: u32, timeout: Option<Duration>) -> Waited;

    /// Wakes up to `count` of those who wait on `word`.
    fn wake(word: &AtomicU32, scope: Scope, count: u32);

    /// Makes a call of the kernel that may take long, as a transfer of a disk. Others go on meanwhile.
    fn call<R>(call: impl FnOnce() -> R) -> R {
        call()
    }

    /// Advice about memory that is the engine's, or that the program does not notice.
    ///
    /// # Errors
    /// What the kernel says: nothing is mapped there, or it does not know the advice.
    fn advise(start: usize, len: usize, advice: Advice) -> io::Result<()>;

    /// Whether memory of the engine, which stays readable and writable, may be executed from here on. False if that could not
    /// be had.
    fn let_execute(start: usize, len: usize, may_execute: bool) -> bool;

    /// Others may go on here, as they may anywhere: where it matters and nothing else is asked of the system.
    fn others_may_go_on() {}

    /// Ends the locks of mlockall(2) on the engine's own memory.
    fn unlock_all();

    /// A write to a page of the engine's that is present, without changing a byte: one that a fork once shared is exclusive
    /// afterwards.
    fn make_exclusive(page: usize);

    /// Whether the memory that is set aside for the books is whole.
    fn reserve_is_whole() -> bool;

    /// Sets aside again what was used of it. False when it cannot be had.
    fn refill_reserve() -> bool;

    /// Keeps addresses for what the program will map, where there is a limit on them.
    fn keep_addresses();

    /// Gives back what the calling thread has used of its stack and needs no more: an engine is made on it.
    fn give_back_stack() {}

    /// Does what may need more memory at once than is set aside; false when that was refused.
    fn may_fail(grow: impl FnOnce() -> bool) -> bool;

    /// Bytes of addresses that the process may still map (RLIMIT_AS); `None` without a limit.
    fn addresses_left() -> Option<u64>;

    /// Forbids the kernel to make huge pages in this process, and in those that it forks from here on. What was allowed before;
    /// `None` where nothing was, or it cannot be forbidden.
    fn forbid_huge_pages() -> Option<u32>;

    /// Allows in this process what [`forbid_huge_pages`](Self::forbid_huge_pages) said, here or in its parent.
    fn allow_huge_pages(before: u32);

    /// This process's id.
    fn process_id() -> u32;

    /// What a message to the user calls the memory that is swapped.
    fn name_memory(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", Self::process_id())
    }

    /// What a message to the user calls the page of it at this address.
    fn name_page(f: &mut fmt::Formatter<'_>, address: usize) -> fmt::Result {
        write!(f, "page {address:#x} of process {}", Self::process_id())
    }

    /// The id of the process that made this one, if that lives; of another, or 0, if not.
    fn parent_process_id() -> u32;

    /// Whether a thread of this process has ended.
    fn thread_has_ended(thread: u32) -> bool;

    /// Whether a thread of this process is one of the engine's. Where that cannot be told it is said to be.
    fn is_thread_of_engine(thread: u32) -> bool;

    /// Whether the program has a single thread at this moment, beside the engine's. No, where that cannot be told.
    fn program_has_one_thread() -> bool;

    /// Ends the process as the end of its last thread would have, if the calling thread and `threads`, the engine's others,
    /// are all that is left of it.
    fn end_with_the_program(threads: &[u32]);

    /// Whether the process that forked this one lives. One in another pid namespace has no number here, and is taken to.
    fn parent_is(process: u32) -> bool;

    /// Maps a memory file in place of anonymous shared memory, and hands it to the supervisor. Where shared memory is swapped, it is
    /// registered first, and `known` waits until the shared-memory server knows of what has just been handed over. What mmap answers: an
    /// address, or an error below 0. For [`MapShared::fork_advice`]: 1 when it has been given, 0 when it was about other memory.
    fn map_shared(_: MapShared, _: &Self::Supervisor, _: SharedSwap, _known: impl Fn(&dyn Fn()) -> Reply) -> isize {
        MapShared::NOT_SUPPORTED
    }

    /// Unmaps what [`map_shared`](Self::map_shared) has mapped, and nobody wants.
    fn unmap_shared(_: isize, _: usize) {}

    /// Hands a userfaultfd for shared memory to the supervisor, if this process has any that can be swapped. `others`: as for
    /// [`keep_shared_from_forks`](Self::keep_shared_from_forks).
    fn share_memory(
        _: &Self::Supervisor,
        _: SharedSwap,
        _known: impl Fn(&dyn Fn()) -> Reply,
        _others: impl FnMut(usize, usize),
    ) {
    }

    /// Whether forks are to be followed for the sake of shared memory: children tell of it. In a forked child: whether its parent's were.
    fn shared_forks_are_followed() -> bool {
        false
    }

    /// Before a fork that is followed: the child gets shared memory.
    fn let_shared_fork() {}

    /// After it: no child gets shared memory. Whether that is so. What has come into its place meanwhile (start and length) may have been
    /// kept from children by mistake, and is told to `others`.
    fn keep_shared_from_forks(_others: impl FnMut(usize, usize)) -> bool {
        true
    }

    /// In the child of a fork that was followed, before the program goes on: hands its userfaultfd over, if it has shared memory, and waits
    /// (`known`). `false`: it cannot.
    fn share_in_child(_: &Self::Supervisor, _known: impl Fn(&dyn Fn()) -> Reply) -> bool {
        true
    }

    /// Ends the process, and says why: a wrong page is worse than a crash.
    fn end(why: fmt::Arguments<'_>) -> !;

    /// Ends the process as its tree ends, without a word.
    fn kill_self() -> !;
}

/// What the engine asks of its connection to the supervisor.
pub trait Supervisor: Send + Sync {
    /// Keeps a second reference to a userfaultfd there: closing the last one turns missing pages to zeros.
    ///
    /// # Errors
    /// The supervisor is gone.
    fn keep(&self, descriptor: BorrowedFd<'_>) -> io::Result<()>;

    /// Whether it is gone: the tree ends with it.
    fn is_gone(&self) -> bool;

    /// One line for the user.
    fn say(&self, line: fmt::Arguments<'_>);

    /// The userfaultfd device, when the supervisor could open it.
    fn device(&self) -> Option<BorrowedFd<'_>>;

    /// Has the shared-memory server get this, from now on or when there is one.
    ///
    /// # Errors
    /// The supervisor is gone.
    fn share(&self, _: BorrowedFd<'_>, _: Sharing) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The descriptor of swap area `index`, which is given once.
    fn take_area(&mut self, index: usize) -> Option<OwnedFd>;
}
