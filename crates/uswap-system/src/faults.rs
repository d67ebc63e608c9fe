//! userfaultfd: what is read from it, and what it does to pages.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What a move does with pages that the source does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// Stops with [`Stop::Missing`].
    Refuse,
    /// Skips them, and counts them as moved.
    Allow,
}

/// Whether threads that wait for the pages are woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Wakes them.
    Wake,
    /// Leaves them asleep until [`Faults::wake`].
    DontWake,
}

/// What an operation on pages did: `bytes` from its beginning, then why it stopped, if before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// Bytes done, from the beginning of the range.
    pub bytes: usize,
    /// Why it stopped at `bytes`; none when all is done.
    pub stop: Option<Stop>,
}

impl Progress {
    /// Whether all was done.
    pub fn is_complete(self) -> bool {
        self.stop.is_none()
    }
}

/// Why an operation on pages stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The address space is changing: an unread event comes first. Read it, then go on.
    TryLater,
    /// The page is there already. A waiting thread may not have been woken: wake it.
    AlreadyThere,
    /// The source has no page, or the target is not registered.
    Missing,
    /// The page is shared after a fork, or pinned for DMA.
    Busy,
    /// The ranges are unaligned, of the wrong kind, or cross a mapping's border.
    Invalid,
    /// No memory, of the machine or of the cgroup.
    NoMemory,
    /// The process whose memory it was is gone.
    ProcessGone,
    /// The source cannot be read.
    Fault,
    /// Any other errno.
    Other(i32),
}

/// What happened to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A thread waits for the page at `addr`.
    Fault {
        /// The page's address.
        addr: usize,
        /// Whether it wants to write.
        write: bool,
        /// The page is there, and protected: see [`Faults::protect`].
        protected: bool,
        /// Who waits, if the kernel says so.
        thread: Option<u32>,
    },
    /// `mremap` moved `len` bytes (the old length); the `Unmap` of the old range follows.
    Remap {
        /// The old address.
        from: usize,
        /// The new address.
        to: usize,
        /// The old length.
        len: usize,
    },
    /// The content of a range is about to be thrown away: its next touch reads zeros.
    Remove {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
    /// A range is no longer mapped, and no longer registered.
    Unmap {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
    /// An event that we did not ask for.
    Other(u8),
}

/// What a handler that waited has heard; see [`Faults::wait`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// There are messages to read.
    pub messages: bool,
    /// The monitor calls for help.
    pub call: bool,
    /// The supervisor is gone.
    pub no_supervisor: bool,
}

/// A userfaultfd of this process, past its handshake.
///
/// Closing the last descriptor of it turns every missing page into zeros without a word: whoever owns
/// one of these owns the program's data.
pub trait Faults: Sized + Send + Sync {
    /// Why there is none to be had.
    type Unavailable: fmt::Debug + fmt::Display + Send;
    /// A call that handlers hear while they wait for messages.
    type Call: Call;
    /// The connection to the supervisor, whose end handlers hear, too.
    type Supervisor;

    /// Only faults are read, and what else is told is taken in below: messages may be read while pages are on their way.
    const ONLY_FAULTS_ARE_READ: bool = false;

    /// Makes one that tells of faults, and of what the program does to its mappings.
    ///
    /// # Errors
    /// There is none to be had, or it lacks a feature.
    fn for_program(device: Option<BorrowedFd<'_>>) -> Result<Self, Self::Unavailable>;

    /// Makes one that tells nothing, to move pages with.
    ///
    /// # Errors
    /// As for [`for_program`](Self::for_program).
    fn for_moves(device: Option<BorrowedFd<'_>>) -> Result<Self, Self::Unavailable>;

    /// To be kept by the supervisor.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Registers a range: from here on, a touch of a missing page of it is a message, and waits.
    ///
    /// # Errors
    /// The kernel refuses: nothing is mapped there, or memory of another kind.
    fn register(&self, start: usize, len: usize) -> io::Result<()>;

    /// Registers a range as one where pages can be moved to, and whose missing pages are the kernel's to fill as ever.
    ///
    /// # Errors
    /// As for [`register`](Self::register).
    fn register_as_target(&self, start: usize, len: usize) -> io::Result<()>;

    /// Ends registration of a range: missing pages of it read as zeros from here on.
    ///
    /// # Errors
    /// As for [`register`](Self::register).
    fn unregister(&self, start: usize, len: usize) -> io::Result<()>;

    /// Moves pages, without copying: atomic per page, the source is missing afterwards.
    fn move_pages(&self, target: usize, source: usize, len: usize, holes: Holes, wake: Wake) -> Progress;

    /// Allocates pages at `target` with a copy of `len` bytes from `source`. Only missing pages are filled.
    fn copy(&self, target: usize, source: *const u8, len: usize, wake: Wake) -> Progress;

    /// Maps the zero page: no memory is used until the first write. Missing pages only.
    fn zeropage(&self, start: usize, len: usize, wake: Wake) -> Progress;

    /// Makes every later access to the range a SIGBUS. Missing pages only.
    fn poison(&self, start: usize, len: usize) -> Progress;

    /// From here on a write to a page of the range that is there is a message, and waits; or no more, and those who wait are
    /// woken.
    fn protect(&self, start: usize, len: usize, protect: bool) -> Progress;

    /// Wakes all threads that wait in a range; a page still missing faults again.
    ///
    /// # Errors
    /// Nothing can be mapped there, and nobody waits.
    fn wake(&self, start: usize, len: usize) -> io::Result<()>;

    /// Whether the program is changing its memory right now: an event is unread, or its task has not gone on yet. The
    /// kernel counts an event before memory disappears, and ends the count after the event was read; while there is one,
    /// it refuses to fill anything.
    fn is_changing(&self) -> bool;

    /// Whether all of a range is one anonymous mapping and registered with this; `None` while the program is changing its memory.
    fn is_registered(&self, start: usize, len: usize) -> Option<bool>;

    /// Whether all of a range is one anonymous mapping and registered, with whichever; `false` where the program has one of its own. To be
    /// asked of one without events, which can tell also while the program is changing its memory.
    fn sees_registered(&self, start: usize, len: usize) -> bool;

    /// Reads as many messages as there are and as fit, faults first; 0 when there is none.
    ///
    /// # Errors
    /// The descriptor is no userfaultfd any more.
    fn read(&self, messages: &mut [Message]) -> io::Result<usize>;

    /// Waits for messages, a call, or the end of the supervisor.
    ///
    /// # Errors
    /// The descriptor is no userfaultfd any more.
    fn wait(&self, call: &Self::Call, supervisor: &Self::Supervisor, patience: Option<Duration>) -> io::Result<Heard>;
}

/// A call that handlers hear while they wait for messages.
pub trait Call: Sized + Send + Sync {
    /// A call that nobody has made yet.
    ///
    /// # Errors
    /// No descriptor is to be had.
    fn new() -> io::Result<Self>;

    /// Makes it.
    fn make(&self);

    /// It has been heard by enough.
    fn end(&self);
}
