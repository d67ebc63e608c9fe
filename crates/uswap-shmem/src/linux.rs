//! Linux as the system that the server runs on.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use uswap_engine::engine_threads::EngineThreads;
use uswap_engine::group::Group;
use uswap_engine::notices::Notices;
use uswap_sys::call::Call;
use uswap_sys::linux::{Linux, Supervisor};
use uswap_sys::private_memory;
use uswap_sys::uffd::{RawMessage, Uffd};
use uswap_system::PAGE_SIZE;
use uswap_system::faults::{Heard, Progress, Wake};
use uswap_system::looks::PopulatedRange;

use crate::client::{Client, Mappings};
use crate::kernel::{ClientUffd, FromClient, Kernel, Poll, SharedObject};
use crate::object::Object;
use crate::server;
use crate::shared::Shared;
use crate::system::SharedMemory;
use crate::whereabouts;

/// Messages of one client that are read at a time.
const MESSAGES: usize = 16;

/// The number of what is no client's: pages are wanted.
const NOBODY: u64 = 0;

static SHARED: OnceLock<Shared> = OnceLock::new();
static WANTED: OnceLock<OwnedFd> = OnceLock::new();
static NOTICES: Notices<SharedMemory> = Notices::new();

impl Shared {
    /// Of this process, which has nothing yet.
    ///
    /// # Errors
    /// No descriptor or no userfaultfd is to be had.
    pub fn begin(device: Option<BorrowedFd<'_>>, group: &'static Group) -> io::Result<&'static Shared> {
        let filler = Uffd::to_fill_shared_memory(device).map_err(io::Error::other)?;
        let poll = Epoll(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let wanted = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&poll.0, &wanted, epoll::EventData::new_u64(NOBODY), events)?;
        let _ = WANTED.set(wanted);
        Ok(SHARED.get_or_init(|| Shared::new(filler, poll, group)))
    }

    /// Has pages of windows brought back, for which nobody waits.
    pub fn bring_back(&self, pages: Vec<usize>) {
        self.want(pages);
        Linux::have_messages_read(self);
    }

    /// That of this process, which has begun.
    pub fn of_process() -> &'static Shared {
        SHARED.get().expect("the server has begun")
    }
}

impl Kernel for Linux {
    type Uffd = Uffd;
    type Object = Object;
    type Poll = Epoll;
    type Threads = EngineThreads<SharedMemory>;

    #[inline]
    fn shared() -> &'static Shared {
        Shared::of_process()
    }

    #[inline]
    fn notices() -> &'static Notices<SharedMemory> {
        &NOTICES
    }

    fn is_of_engine(start: usize, len: usize) -> bool {
        private_memory::next_gap(start, start + len).is_none()
    }

    fn keep(uffd: &Uffd) -> io::Result<()> {
        server::keep(uffd.as_fd())
    }

    fn mapped(shared: &Shared, client: &Client) -> Option<Mappings> {
        whereabouts::mapped(shared, client)
    }

    fn have_messages_read(_: &Shared) {
        let wanted = WANTED.get().expect("the server has begun");
        let _ = rustix::io::write(wanted, &1u64.to_ne_bytes());
    }

    fn wait_for_clients(
        poll: &Epoll,
        call: &Call,
        supervisor: &Supervisor,
        patience: Option<Duration>,
    ) -> io::Result<Heard> {
        let called = call.as_fd().unwrap_or(supervisor.socket.as_fd());
        let wanted = if call.as_fd().is_some() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&poll.0, PollFlags::IN), PollFd::from_borrowed_fd(called, wanted)];
        let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, patience.as_ref()))?;
        Ok(Heard {
            messages: fds[0].revents().contains(PollFlags::IN),
            call: fds[1].revents().contains(PollFlags::IN),
            // See `server`.
            no_supervisor: false,
        })
    }

    fn end_after_clients() -> ! {
        server::end_after_its_clients()
    }
}

impl ClientUffd for Uffd {
    #[inline]
    fn protect(&self, at: usize, len: usize, protect: bool) -> Progress {
        Uffd::protect(self, at, len, protect)
    }

    #[inline]
    fn copy(&self, at: usize, source: *const u8, len: usize, wake: Wake) -> Progress {
        Uffd::copy(self, at, source, len, wake)
    }

    #[inline]
    fn zeropage(&self, at: usize, len: usize, wake: Wake) -> Progress {
        Uffd::zeropage(self, at, len, wake)
    }

    #[inline]
    fn poison(&self, at: usize, len: usize) -> Progress {
        Uffd::poison(self, at, len)
    }

    #[inline]
    fn wake(&self, at: usize, len: usize) -> io::Result<()> {
        Uffd::wake(self, at, len)
    }

    fn let_go(&self, at: usize, len: usize) {
        let _ = self.unregister(at, len);
    }

    fn is_changing(&self) -> bool {
        Uffd::is_changing(self)
    }

    fn read(&self, room: usize, mut each: impl FnMut(FromClient<Uffd>) -> io::Result<()>) -> io::Result<()> {
        let mut raw = [RawMessage::default(); MESSAGES];
        let read = Uffd::read(self, &mut raw[..room.min(MESSAGES)])?;
        for message in &raw[..read] {
            each(match message.take_child() {
                Some(child) => FromClient::Child(child),
                None => FromClient::Message(message.decode()),
            })?;
        }
        Ok(())
    }
}

impl SharedObject<Uffd> for Object {
    #[inline]
    fn start(&self) -> usize {
        Object::start(self)
    }

    #[inline]
    fn end(&self) -> usize {
        Object::end(self)
    }

    #[inline]
    fn is_managed(&self) -> bool {
        Object::is_managed(self)
    }

    #[inline]
    fn may_leave(&self) -> bool {
        Object::may_leave(self)
    }

    /// By its inode, which /proc/PID/maps shows.
    fn name_page(&self, f: &mut fmt::Formatter<'_>, address: usize) -> fmt::Result {
        write!(f, "page {} of shared memory {}", self.offset(address) / PAGE_SIZE as u64, self.inode.number)
    }

    fn resident_pages(&self) -> u64 {
        self.file.look().map_or(0, |look| look.pages)
    }

    fn populated(&self, start: usize, end: usize) -> io::Result<Option<PopulatedRange>> {
        Object::populated(self, start, end)
    }

    fn read(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        self.file.read(self.offset(at), out)
    }

    /// Of a huge page that could not be split the kernel fills a part with zeros, and says that all went well.
    fn punch(&self, at: usize, len: usize) -> io::Result<()> {
        self.file.punch(self.offset(at), len as u64)?;
        match Object::populated(self, at, at + len)? {
            None => Ok(()),
            Some(_) => Err(io::Error::other("it is there still")),
        }
    }

    fn put_back(&self, at: usize, content: &[u8]) -> io::Result<()> {
        self.stay();
        self.file.write(self.offset(at), content)
    }

    fn fill(&self, filler: &Uffd, at: usize, source: *const u8, len: usize) -> Progress {
        Object::fill(self, filler, at, source, len)
    }

    fn fill_with_zeros(&self, filler: &Uffd, at: usize, len: usize) -> Progress {
        Object::fill_with_zeros(self, filler, at, len)
    }

    fn forget_filled(&self) {
        Object::forget_filled(self);
    }
}

/// epoll.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Poll<Uffd> for Epoll {
    fn add(&self, number: u64, uffd: &Uffd) -> io::Result<()> {
        Ok(epoll::add(&self.0, uffd.as_fd(), epoll::EventData::new_u64(number), epoll::EventFlags::IN)?)
    }

    fn remove(&self, uffd: &Uffd) {
        let _ = epoll::delete(&self.0, uffd.as_fd());
    }

    fn ready(&self, mut each: impl FnMut(u64)) {
        let mut events = Vec::with_capacity(16);
        if epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), Some(&Default::default())).is_ok() {
            events.iter().for_each(|event: &epoll::Event| each(event.data.u64()));
        }
    }
}
