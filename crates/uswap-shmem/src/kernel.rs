//! What the server asks of the system that it runs on, beside what the engine asks: objects, and the userfaultfds of other processes.
//!
//! Linux has it ([`linux`](crate::linux)), and `uswap-model`'s model of Linux, on which this crate's code runs in random schedules. Calls
//! are dispatched statically.

use std::fmt;
use std::io;
use std::time::Duration;

use uswap_core::defects::{Sabotage, is_on};
use uswap_engine::notices::Notices;
use uswap_engine::staffed::Threads;
use uswap_system::faults::{Faults, Heard, Message, Progress, Stop, Wake};
use uswap_system::looks::PopulatedRange;
use uswap_system::{PAGE_SIZE, System};

use crate::client::{Client, Mappings};
use crate::shared::Shared;
use crate::system::SharedMemory;

/// The call by which handlers are called.
pub type CallOf<K> = <<K as System>::Faults as Faults>::Call;

/// A system on which shared memory is swapped.
pub trait Kernel: System + fmt::Debug {
    /// The userfaultfd of a client; and that by which the server fills windows.
    type Uffd: ClientUffd;
    /// A piece of shared memory.
    type Object: SharedObject<Self::Uffd>;
    /// Where messages of clients are waited for.
    type Poll: Poll<Self::Uffd>;
    /// The threads of the engine that runs here.
    type Threads: Threads<SharedMemory<Self>>;

    /// That of the calling thread's process, which has begun.
    fn shared() -> &'static Shared<Self>;

    /// What the threads of this process have noted.
    fn notices() -> &'static Notices<SharedMemory<Self>>;

    /// Whether all of a range is memory of the engine's, not of the server's at large.
    fn is_of_engine(start: usize, len: usize) -> bool;

    /// Has the supervisor keep the userfaultfd of a client that a fork has brought.
    ///
    /// # Errors
    /// The supervisor is gone.
    fn keep(uffd: &Self::Uffd) -> io::Result<()>;

    /// What a client has mapped of objects, registered with its userfaultfd, as the system shows it; none where that cannot be seen now. No
    /// message is read meanwhile. What the client changes meanwhile is counted
    /// ([`is_changing`](ClientUffd::is_changing)).
    fn mapped(shared: &Shared<Self>, client: &Client<Self>) -> Option<Mappings>;

    /// Has a thread that waits for messages read, though there may be none.
    fn have_messages_read(shared: &Shared<Self>);

    /// Waits for messages of clients, or a call.
    ///
    /// # Errors
    /// Nothing can be waited for.
    fn wait_for_clients(
        poll: &Self::Poll,
        call: &CallOf<Self>,
        supervisor: &Self::Supervisor,
        patience: Option<Duration>,
    ) -> io::Result<Heard>;

    /// The supervisor is gone: ends this process when nobody has shared memory that is swapped.
    fn end_after_clients() -> !;
}

/// What is read from the userfaultfd of a client.
#[derive(Debug)]
pub enum FromClient<U> {
    /// It has forked; this is its child's.
    Child(U),
    /// Anything else.
    Message(Message),
}

/// The userfaultfd of a process that has objects mapped. See [`Faults`], too.
pub trait ClientUffd: Sized + Send + Sync + fmt::Debug {
    /// A write to a page that is there waits from here on, or no more.
    fn protect(&self, at: usize, len: usize, protect: bool) -> Progress;

    /// Fills missing pages with what is at `source`.
    fn copy(&self, at: usize, source: *const u8, len: usize, wake: Wake) -> Progress;

    /// Fills missing pages with zeros.
    fn zeropage(&self, at: usize, len: usize, wake: Wake) -> Progress;

    /// Makes later accesses to missing pages a SIGBUS.
    fn poison(&self, at: usize, len: usize) -> Progress;

    /// Wakes all that wait in a range.
    ///
    /// # Errors
    /// Nothing can be mapped there, and nobody waits.
    fn wake(&self, at: usize, len: usize) -> io::Result<()>;

    /// What is mapped in a range is not this one's: no message of it comes any more, and who waits there goes on.
    fn let_go(&self, _at: usize, _len: usize) {}

    /// Whether an event is unread, or its task has not gone on yet.
    fn is_changing(&self) -> bool;

    /// Reads up to `room` messages, faults first.
    ///
    /// # Errors
    /// What `each` says, or it is no userfaultfd.
    fn read(&self, room: usize, each: impl FnMut(FromClient<Self>) -> io::Result<()>) -> io::Result<()>;
}

/// A piece of shared memory, and its window: addresses in the server that name its pages.
pub trait SharedObject<U>: Send + Sync + fmt::Debug {
    /// First byte of its window.
    fn start(&self) -> usize;

    /// One past the last byte of its window.
    fn end(&self) -> usize;

    /// Whether it is swapped: all who have it mapped are known.
    fn is_managed(&self) -> bool;

    /// Whether pages of it may leave.
    fn may_leave(&self) -> bool {
        self.is_managed()
    }

    /// What a message to the user calls the page at an address of its window.
    fn name_page(&self, f: &mut fmt::Formatter<'_>, address: usize) -> fmt::Result;

    /// Pages of it that are in memory.
    fn resident_pages(&self) -> u64;

    /// The first pages in memory within `start..end` of the window.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn populated(&self, start: usize, end: usize) -> io::Result<Option<PopulatedRange>>;

    /// Reads what is in memory from an address of the window on.
    ///
    /// # Errors
    /// It could not be read, or not all of it.
    fn read(&self, at: usize, out: &mut [u8]) -> io::Result<()>;

    /// Takes pages away: gone from every mapping.
    ///
    /// # Errors
    /// It is refused, or some of it is there still: what was in it may be gone.
    fn punch(&self, at: usize, len: usize) -> io::Result<()>;

    /// What could not be taken away has this content, as before. Nothing of the object leaves any more.
    ///
    /// # Errors
    /// It could not be written.
    fn put_back(&self, at: usize, content: &[u8]) -> io::Result<()>;

    /// What filling has come to, from an address of the window on: Linux since 6.14 says that a page is there also where the page table has
    /// just been freed, because another thread has advised that all that was in it is not needed. Then it is to be tried again.
    fn looked_at(&self, at: usize, progress: Progress) -> Progress {
        let next = at + progress.bytes;
        let is_so = progress.stop != Some(Stop::AlreadyThere)
            || is_on(Sabotage::SharedThereIsBelieved)
            || !matches!(self.populated(next, next + PAGE_SIZE), Ok(None));
        if is_so { progress } else { Progress { stop: Some(Stop::TryLater), ..progress } }
    }

    /// Fills missing pages, for whoever has them mapped.
    fn fill(&self, filler: &U, at: usize, source: *const u8, len: usize) -> Progress;

    /// The same with zeros.
    fn fill_with_zeros(&self, filler: &U, at: usize, len: usize) -> Progress;

    /// What has been filled does not count as this process's own from here on.
    fn forget_filled(&self) {}
}

/// Where messages of clients are waited for.
pub trait Poll<U>: Sized + Send + Sync {
    /// Messages of this client are waited for, too.
    ///
    /// # Errors
    /// It cannot be waited for.
    fn add(&self, number: u64, uffd: &U) -> io::Result<()>;

    /// Not any more.
    fn remove(&self, uffd: &U);

    /// The numbers of clients that have sent some.
    fn ready(&self, each: impl FnMut(u64));
}
