//! Linux as the engine asks for it: see [`uswap_system`]. Each answer is one of the other files'.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mm::{Advice as MemoryAdvice, MprotectFlags};
use uswap_system::atomic::AtomicU32;
use uswap_system::faults::{Faults, Heard, Holes, Message, Progress, Wake};
use uswap_system::looks::{Footprint, Mappings, Rss, Vma};
use uswap_system::{Advice, MapShared, PAGE_SIZE, Reply, Scope, SharedSwap, Sharing, System, Waited};

use crate::call::Call;
use crate::maps::{self, MapQuery, MapsOf};
use crate::pagemap::PageMap;
use crate::report::Reason;
use crate::rss::{self, StatM};
use crate::shared_forks;
use crate::shared_mapping::{self, Known, Way};
use crate::uffd::{Features, RawMessage, Uffd, UffdUnavailable};
use crate::{
    futex, heap, huge_pages, last_thread, named_memory, private_memory, proc, report, reserve, rusage, select, uffd,
};

/// Looks before sleep: some 20 us.
const LOOKS: u32 = 600;
/// Messages that one read takes, at most.
const MESSAGES: usize = 16;
/// What the names of the engine's threads begin with.
const ENGINE_THREADS: &[u8] = b"uswap-";

thread_local! {
    /// Which locks of the engine's this thread holds. Without a destructor, so that an agent thread may have it.
    static HELD_LOCKS: Cell<u32> = const { Cell::new(0) };
}

/// Linux.
#[derive(Debug)]
pub struct Linux;

impl System for Linux {
    type Faults = Uffd;
    type Residency = PageMap;
    type Mappings = MapQuery;
    type Footprint = StatM;
    type Supervisor = Supervisor;

    const HAS_IO_URING: bool = true;
    const CHECKS_LOCKS: bool = cfg!(debug_assertions);

    #[inline]
    fn now() -> Instant {
        Instant::now()
    }

    fn held_locks<R>(look: impl FnOnce(&Cell<u32>) -> R) -> R {
        HELD_LOCKS.with(look)
    }

    fn cpu_time() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(time).unwrap_or_default()
    }

    fn sleep(duration: Duration) {
        let mut left = rustix::thread::Timespec::try_from(duration).ok();
        while let Some(time) = left.take() {
            if let rustix::thread::NanosleepRelativeResult::Interrupted(rest) = rustix::thread::nanosleep(&time) {
                left = Some(rest);
            }
        }
    }

    #[inline]
    fn acquire<G>(mut attempt: impl FnMut() -> Option<G>, sleep: impl FnOnce() -> G) -> G {
        for _ in 0..LOOKS {
            if let Some(got) = attempt() {
                return got;
            }
            std::hint::spin_loop();
        }
        sleep()
    }

    #[inline]
    fn wait(word: &AtomicU32, scope: Scope, expected: u32, timeout: Option<Duration>) -> Waited {
        futex::wait(word, scope, expected, timeout)
    }

    #[inline]
    fn wake(word: &AtomicU32, scope: Scope, count: u32) {
        futex::wake(word, scope, count);
    }

    fn advise(start: usize, len: usize, advice: Advice) -> io::Result<()> {
        let advice = match advice {
            Advice::DontNeed => MemoryAdvice::LinuxDontNeed,
            Advice::DontFork => MemoryAdvice::LinuxDontFork,
            Advice::DoFork => MemoryAdvice::LinuxDoFork,
            Advice::NoHugepage => MemoryAdvice::LinuxNoHugepage,
            Advice::PopulateWrite => MemoryAdvice::LinuxPopulateWrite,
        };
        // SAFETY: only advice that keeps the content of memory is given here, or to memory of the engine without content.
        unsafe { rustix::mm::madvise(start as *mut _, len, advice)? };
        Ok(())
    }

    fn forbid_huge_pages() -> Option<u32> {
        huge_pages::forbid()
    }

    fn allow_huge_pages(before: u32) {
        huge_pages::allow(before);
    }

    fn let_execute(start: usize, len: usize, may_execute: bool) -> bool {
        assert!(private_memory::overlaps(start, start + len), "only the engine's own memory");
        let protection = match may_execute {
            true => MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC,
            false => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        // SAFETY: the engine's own memory, which stays readable and writable.
        unsafe { rustix::mm::mprotect(start as *mut _, len, protection) }.is_ok()
    }

    fn unlock_all() {
        private_memory::unlock_all();
    }

    fn make_exclusive(page: usize) {
        assert!(private_memory::overlaps(page, page + PAGE_SIZE), "only the engine's own memory");
        // SAFETY: the engine's own memory is mapped and writable. By the contract of the trait the page is present.
        unsafe { uffd::make_exclusive(page) };
    }

    #[inline]
    fn reserve_is_whole() -> bool {
        reserve::is_enough()
    }

    fn refill_reserve() -> bool {
        reserve::refill()
    }

    fn keep_addresses() {
        reserve::keep_addresses();
    }

    fn give_back_stack() {
        crate::thread::give_back_stack();
    }

    #[inline]
    fn may_fail(grow: impl FnOnce() -> bool) -> bool {
        heap::may_fail(grow)
    }

    fn addresses_left() -> Option<u64> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
        limit.map(|limit| limit.saturating_sub(rss::mapped_bytes().unwrap_or(0)))
    }

    fn process_id() -> u32 {
        // Not libc's, which the program may have replaced.
        rustix::process::getpid().as_raw_nonzero().get() as u32
    }

    fn parent_process_id() -> u32 {
        rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned())
    }

    fn thread_has_ended(thread: u32) -> bool {
        last_thread::has_ended(thread)
    }

    /// A number of another pid namespace may be the same as one of ours: then this is said to be so.
    fn is_thread_of_engine(thread: u32) -> bool {
        let path = CString::new(format!("/proc/self/task/{thread}/comm")).expect("a number has no null byte");
        let mut name = [0; 16];
        match proc::open(&path).and_then(|file| Ok(rustix::io::read(&file, &mut name)?)) {
            Ok(len) => name[..len].starts_with(ENGINE_THREADS),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    fn program_has_one_thread() -> bool {
        // The directory has two links, and one more for each thread. Where the engine makes or ends one, or io_uring has some, they are
        // looked at one by one.
        let is_one = |links| links == 2 + u64::from(crate::thread::running()) + 1;
        proc::links(c"/proc/self/task").is_ok_and(is_one)
            || last_thread::has_one_thread(Self::is_thread_of_engine).unwrap_or(false)
    }

    fn end_with_the_program(threads: &[u32]) {
        let mut ours = threads.to_vec();
        ours.push(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        if last_thread::is_program_over(&ours).unwrap_or(false) {
            last_thread::end_process();
        }
    }

    fn parent_is(process: u32) -> bool {
        let parent = rustix::process::getppid();
        parent.is_none_or(|parent| parent.as_raw_nonzero().get() as u32 == process)
    }

    fn map_shared(
        wanted: MapShared,
        supervisor: &Supervisor,
        swap: SharedSwap,
        known: impl Fn(&dyn Fn()) -> Reply,
    ) -> isize {
        if let Some(start) = wanted.as_detached() {
            return if named_memory::detach(start) { 0 } else { MapShared::NOT_SUPPORTED };
        }
        if let Some((device, number)) = wanted.as_changed() {
            return supervisor.by_way(&known, |way| shared_mapping::is_about_to_change(device, number, way));
        }
        match (wanted.as_fork_advice(), wanted.as_named()) {
            (Some(keeps), _) => shared_forks::advise(wanted.start, wanted.len, keeps).into(),
            (_, Some((start, is_again))) => {
                supervisor.by_way(&known, |way| shared_mapping::share_named(start, is_again, swap, way))
            }
            _ => supervisor.by_way(&known, |way| shared_mapping::map(wanted, swap, way)),
        }
    }

    fn unmap_shared(start: isize, len: usize) {
        shared_mapping::unmap(start as usize, len);
    }

    fn share_memory(
        supervisor: &Supervisor,
        swap: SharedSwap,
        known: impl Fn(&dyn Fn()) -> Reply,
        mut others: impl FnMut(usize, usize),
    ) {
        supervisor.by_way(&known, |way| shared_mapping::share(swap, way, &mut others));
    }

    fn shared_forks_are_followed() -> bool {
        shared_forks::are_followed()
    }

    fn let_shared_fork() {
        shared_forks::let_fork();
    }

    fn keep_shared_from_forks(others: impl FnMut(usize, usize)) -> bool {
        shared_forks::keep(others)
    }

    fn share_in_child(supervisor: &Supervisor, known: impl Fn(&dyn Fn()) -> Reply) -> bool {
        supervisor.by_way(&known, shared_mapping::share_in_child)
    }

    fn end(why: fmt::Arguments<'_>) -> ! {
        report::end(why)
    }

    fn kill_self() -> ! {
        report::kill_self()
    }
}

/// Why there is no userfaultfd to be had, in few words and without asking libc for them.
#[derive(Debug)]
pub struct NoUffd(UffdUnavailable);

impl fmt::Display for NoUffd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            UffdUnavailable::Io(error) => write!(f, "no userfaultfd: {}", Reason(error)),
            UffdUnavailable::NoPermission => f.write_str("no permission for userfaultfd"),
            UffdUnavailable::NotSupported(_) => f.write_str("userfaultfd lacks what is needed"),
        }
    }
}

impl Faults for Uffd {
    type Unavailable = NoUffd;
    type Call = Call;
    type Supervisor = Supervisor;

    fn for_program(device: Option<BorrowedFd<'_>>) -> Result<Self, NoUffd> {
        let events = Features::EVENT_REMAP.with(Features::EVENT_REMOVE).with(Features::EVENT_UNMAP);
        let says = Features::THREAD_ID.with(Features::PAGEFAULT_FLAG_WP);
        let wanted = events.with(Features::MOVE).with(Features::POISON).with(says);
        Uffd::new(device, wanted).map_err(NoUffd)
    }

    fn for_moves(device: Option<BorrowedFd<'_>>) -> Result<Self, NoUffd> {
        Uffd::new(device, Features::MOVE).map_err(NoUffd)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn register(&self, start: usize, len: usize) -> io::Result<()> {
        Uffd::register(self, start, len)
    }

    fn register_as_target(&self, start: usize, len: usize) -> io::Result<()> {
        Uffd::register_as_target(self, start, len)
    }

    fn unregister(&self, start: usize, len: usize) -> io::Result<()> {
        Uffd::unregister(self, start, len)
    }

    #[inline]
    fn move_pages(&self, target: usize, source: usize, len: usize, holes: Holes, wake: Wake) -> Progress {
        Uffd::move_pages(self, target, source, len, holes, wake)
    }

    #[inline]
    fn copy(&self, target: usize, source: *const u8, len: usize, wake: Wake) -> Progress {
        Uffd::copy(self, target, source, len, wake)
    }

    #[inline]
    fn zeropage(&self, start: usize, len: usize, wake: Wake) -> Progress {
        Uffd::zeropage(self, start, len, wake)
    }

    #[inline]
    fn poison(&self, start: usize, len: usize) -> Progress {
        Uffd::poison(self, start, len)
    }

    #[inline]
    fn protect(&self, start: usize, len: usize, protect: bool) -> Progress {
        Uffd::protect(self, start, len, protect)
    }

    #[inline]
    fn wake(&self, start: usize, len: usize) -> io::Result<()> {
        Uffd::wake(self, start, len)
    }

    #[inline]
    fn is_changing(&self) -> bool {
        Uffd::is_changing(self)
    }

    #[inline]
    fn is_registered(&self, start: usize, len: usize) -> Option<bool> {
        Uffd::is_registered(self, start, len)
    }

    #[inline]
    fn sees_registered(&self, start: usize, len: usize) -> bool {
        Uffd::sees_registered(self, start, len)
    }

    fn read(&self, messages: &mut [Message]) -> io::Result<usize> {
        let mut read = [RawMessage::default(); MESSAGES];
        let room = messages.len().min(MESSAGES);
        let count = Uffd::read(self, &mut read[..room])?;
        for (message, read) in messages.iter_mut().zip(&read[..count]) {
            *message = read.decode();
        }
        Ok(count)
    }

    fn wait(&self, call: &Call, supervisor: &Supervisor, patience: Option<Duration>) -> io::Result<Heard> {
        let mut fds = [
            PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN),
            PollFd::new(&supervisor.socket, PollFlags::RDHUP),
            match call.as_fd() {
                Some(call) => PollFd::from_borrowed_fd(call, PollFlags::IN),
                None => PollFd::new(&supervisor.socket, PollFlags::empty()),
            },
        ];
        let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
        match rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, patience.as_ref())) {
            Ok(_) => {}
            // The program has lowered its limit on descriptors below their number.
            Err(Errno::INVAL) => {
                let (uffd, socket) = (self.as_fd(), supervisor.socket.as_fd());
                let fds = [uffd, socket, call.as_fd().unwrap_or(socket)];
                let [messages, is_over, called] = select::readable(fds, patience.as_ref())?;
                let no_supervisor = is_over && select::is_at_end(socket);
                return Ok(Heard { messages, call: called && call.as_fd().is_some(), no_supervisor });
            }
            Err(errno) => return Err(errno.into()),
        }
        Ok(Heard {
            messages: fds[0].revents().contains(PollFlags::IN),
            call: fds[2].revents().contains(PollFlags::IN),
            no_supervisor: is_end(fds[1].revents()),
        })
    }
}

fn is_end(events: PollFlags) -> bool {
    events.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

impl Mappings for MapQuery {
    fn open() -> io::Result<Self> {
        let mut query = MapQuery::open_self()?;
        // Before Linux 6.11 nothing is known of any address.
        let here = 0u8;
        let is_answered = MapQuery::at(&mut query, (&raw const here).addr()).is_some();
        if is_answered { Ok(query) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    fn at(&mut self, address: usize) -> Option<Vma<'_>> {
        MapQuery::at(self, address)
    }

    fn at_or_after(&mut self, address: usize) -> Option<Vma<'_>> {
        MapQuery::at_or_after(self, address)
    }

    fn read_maps(buffer: &mut Vec<u8>) -> io::Result<()> {
        maps::read_maps(MapsOf::SelfProcess, buffer)
    }

    fn read_smaps(buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        io::Read::read_to_end(&mut std::fs::File::from(proc::open(c"/proc/thread-self/smaps")?), buffer)?;
        Ok(())
    }
}

impl Footprint for StatM {
    fn open() -> io::Result<Self> {
        StatM::open_self()
    }

    fn main_has_ended(&self) -> bool {
        StatM::main_has_ended(self)
    }

    fn read(&mut self) -> io::Result<(u64, u64)> {
        StatM::read(self)
    }

    fn faults() -> io::Result<u64> {
        rusage::faults().ok_or_else(|| io::ErrorKind::PermissionDenied.into())
    }

    fn processor_time() -> io::Result<Duration> {
        rusage::processor_time().ok_or_else(|| io::ErrorKind::PermissionDenied.into())
    }

    fn by_kind() -> io::Result<Rss> {
        rss::own_rss()
    }

    fn mapped(&self) -> u64 {
        StatM::mapped(self)
    }

    fn swapped_shmem(others: &mut Vec<(usize, usize)>) -> io::Result<u64> {
        if shared_mapping::is_shared() { Ok(rss::own_registered_shmem(others)?.0) } else { Ok(0) }
    }

    fn share_of_shmem() -> io::Result<u64> {
        let swapped = if shared_mapping::is_shared() { rss::own_registered_shmem(&mut Vec::new())?.1 } else { 0 };
        Ok(rss::own_share_of_shmem()?.saturating_sub(swapped))
    }

    fn share_of_private() -> io::Result<u64> {
        rss::own_share_of_private()
    }
}

/// How something is handed over to the supervisor at the other end of a socket, for the shared-memory server.
pub type Share = fn(BorrowedFd<'_>, BorrowedFd<'_>, Sharing) -> io::Result<()>;

/// How a userfaultfd is handed over to the supervisor at the other end of a socket.
pub type Keep = fn(BorrowedFd<'_>, BorrowedFd<'_>) -> io::Result<()>;

/// The connection to the supervisor, and what it has given.
#[derive(Debug)]
pub struct Supervisor {
    /// End of file means that the supervisor is gone.
    pub socket: OwnedFd,
    /// /dev/userfaultfd, when the supervisor could open it.
    pub device: Option<OwnedFd>,
    /// The supervisor's standard error, for messages to the user.
    pub stderr: OwnedFd,
    /// The swap areas.
    pub areas: Vec<Option<OwnedFd>>,
    /// The protocol is not known here.
    pub keep: Keep,
    /// As `keep`.
    pub share: Share,
}

impl Supervisor {
    /// Does something by the way on which shared memory gets to its server.
    fn by_way<R>(&self, known: Known<'_>, act: impl FnOnce(&Way<'_>) -> R) -> R {
        let share = |fd: BorrowedFd<'_>, what| uswap_system::Supervisor::share(self, fd, what);
        act(&Way { device: self.device.as_ref().map(AsFd::as_fd), share: &share, known })
    }
}

impl uswap_system::Supervisor for Supervisor {
    fn keep(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        (self.keep)(self.socket.as_fd(), descriptor)
    }

    fn share(&self, descriptor: BorrowedFd<'_>, what: Sharing) -> io::Result<()> {
        (self.share)(self.socket.as_fd(), descriptor, what)
    }

    fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let ready = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        match ready {
            // As in `wait`.
            Err(Errno::INVAL) => select::is_at_end(self.socket.as_fd()),
            ready => matches!(ready, Ok(1..)) && is_end(fds[0].revents()),
        }
    }

    fn say(&self, line: fmt::Arguments<'_>) {
        report::line(self.stderr.as_fd(), line);
    }

    fn device(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map(AsFd::as_fd)
    }

    fn take_area(&mut self, index: usize) -> Option<OwnedFd> {
        self.areas.get_mut(index)?.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Gate = uswap_system::sync::Gate<Linux>;
    type Lock<T> = uswap_system::sync::Lock<T, Linux>;

    #[test]
    fn the_gate_keeps_those_inside_apart_from_who_shuts_it() {
        let (gate, count) = (Gate::new(), Lock::new((0u32, 0u32)));
        std::thread::scope(|scope| {
            for alone in [true, false, false] {
                let (gate, count) = (&gate, &count);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        if alone {
                            let _shut = gate.shut();
                            let mut count = count.lock();
                            assert_eq!(count.0, 0, "inside while the gate is shut");
                            count.1 += 1;
                        } else {
                            let _passed = gate.pass();
                            count.lock().0 += 1;
                            std::hint::spin_loop();
                            count.lock().0 -= 1;
                        }
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), (0, 2000));
    }

    #[test]
    fn who_waits_for_long_sleeps_and_gets_in() {
        let gate = Gate::new();
        let passed = gate.pass();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(gate.shut()));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiter.is_finished());
            drop(passed);
        });
    }
}
