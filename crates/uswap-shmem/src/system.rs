//! The system on which the engine runs in the server: Linux, or another, but for the memory that it manages, which are windows.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::io::Write as _;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uswap_engine::host::Host;
use uswap_engine::notices::Notices;
use uswap_engine::staffed::Staffed;
use uswap_sys::linux::Linux;
use uswap_system::atomic::AtomicU32;
use uswap_system::faults::{Faults, Heard, Holes, Message, Progress, Stop, Wake};
use uswap_system::looks::{Footprint, Mappings, PopulatedRange, Residency, Rss, Vma};
use uswap_system::{Advice, PAGE_SIZE, Scope, System, Waited};

use crate::client::Client;
use crate::kernel::{CallOf, Kernel, SharedObject};
use crate::messages;
use crate::moving::{self, Filling};
use crate::shared::Shared;

/// See the file's head.
#[derive(Debug)]
pub struct SharedMemory<K = Linux>(PhantomData<fn() -> K>);

impl<K: Kernel> Host for SharedMemory<K> {
    #[inline]
    fn notices() -> &'static Notices<Self> {
        K::notices()
    }
}

impl<K: Kernel> Staffed for SharedMemory<K> {
    type Threads = K::Threads;
}

fn is_window<K: Kernel>(address: usize) -> bool {
    K::shared().object_at(address).is_some()
}

/// Whether a range is all in the window of an object that is managed. When an object is gone, the server's own memory may take the place of
/// its window, and who has read of the window before must not have it for one.
fn is_managed_window<K: Kernel>(start: usize, len: usize) -> bool {
    let object = K::shared().object_at(start);
    object.is_some_and(|object| object.is_managed() && start + len <= object.end())
}

impl<K: Kernel> System for SharedMemory<K> {
    type Faults = SharedFaults<K>;
    type Residency = SharedResidency<K>;
    type Mappings = Windows<K>;
    type Footprint = SharedFootprint<K>;
    type Supervisor = K::Supervisor;

    const HAS_IO_URING: bool = K::HAS_IO_URING;
    /// MADV_REMOVE, by a system call of the program's own.
    const PAGES_ARE_GIVEN_UP: bool = true;
    const CHECKS_LOCKS: bool = K::CHECKS_LOCKS;

    fn now() -> Instant {
        K::now()
    }

    fn cpu_time() -> Duration {
        K::cpu_time()
    }

    fn sleep(duration: Duration) {
        K::sleep(duration);
    }

    fn acquire<G>(attempt: impl FnMut() -> Option<G>, sleep: impl FnOnce() -> G) -> G {
        K::acquire(attempt, sleep)
    }

    fn held_locks<R>(look: impl FnOnce(&Cell<u32>) -> R) -> R {
        K::held_locks(look)
    }

    fn wait(word: &AtomicU32, scope: Scope, expected: u32, timeout: Option<Duration>) -> Waited {
        K::wait(word, scope, expected, timeout)
    }

    fn wake(word: &AtomicU32, scope: Scope, count: u32) {
        K::wake(word, scope, count);
    }

    fn call<R>(call: impl FnOnce() -> R) -> R {
        K::call(call)
    }

    fn others_may_go_on() {
        K::others_may_go_on();
    }

    /// What is in a window is its processes' to give up.
    fn advise(start: usize, len: usize, advice: Advice) -> io::Result<()> {
        if K::is_of_engine(start, len) { K::advise(start, len, advice) } else { Ok(()) }
    }

    fn let_execute(_: usize, _: usize, _: bool) -> bool {
        false
    }

    fn unlock_all() {}

    fn make_exclusive(page: usize) {
        K::make_exclusive(page);
    }

    fn reserve_is_whole() -> bool {
        true
    }

    fn refill_reserve() -> bool {
        true
    }

    fn keep_addresses() {}

    fn may_fail(grow: impl FnOnce() -> bool) -> bool {
        grow()
    }

    fn addresses_left() -> Option<u64> {
        K::addresses_left()
    }

    fn forbid_huge_pages() -> Option<u32> {
        None
    }

    fn allow_huge_pages(_: u32) {}

    fn process_id() -> u32 {
        K::process_id()
    }

    fn name_memory(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shared memory")
    }

    /// By its object, and a process that is known to have it.
    fn name_page(f: &mut fmt::Formatter<'_>, address: usize) -> fmt::Result {
        let shared = K::shared();
        let Some(object) = shared.object_at(address) else { return write!(f, "page {address:#x} of shared memory") };
        object.name_page(f, address)?;
        let place = |client: Arc<Client<K>>| {
            let part = client.mappings().parts(address, address + PAGE_SIZE).find(|part| part.is_mapped)?;
            Some((client.process?, part.at))
        };
        match shared.all_clients().into_iter().find_map(place) {
            Some((process, at)) => write!(f, " ({at:#x} of process {process})"),
            None => Ok(()),
        }
    }

    fn parent_process_id() -> u32 {
        K::parent_process_id()
    }

    fn thread_has_ended(thread: u32) -> bool {
        K::thread_has_ended(thread)
    }

    fn is_thread_of_engine(thread: u32) -> bool {
        K::is_thread_of_engine(thread)
    }

    /// No program is in the server: it ends with the run.
    fn program_has_one_thread() -> bool {
        false
    }

    fn end_with_the_program(_: &[u32]) {}

    fn parent_is(process: u32) -> bool {
        K::parent_is(process)
    }

    fn end(why: fmt::Arguments<'_>) -> ! {
        K::end(why)
    }

    /// The supervisor is gone.
    fn kill_self() -> ! {
        K::end_after_clients()
    }
}

/// The userfaultfds of all clients as one; and one of the server's own, for its frames.
#[derive(Debug)]
pub struct SharedFaults<K: Kernel = Linux> {
    own: K::Faults,
    /// Start and length of what is registered with `own`.
    frames: OnceLock<(usize, usize)>,
}

impl<K: Kernel> SharedFaults<K> {
    fn shared(&self) -> &'static Shared<K> {
        K::shared()
    }
}

impl<K: Kernel> Faults for SharedFaults<K> {
    type Unavailable = <K::Faults as Faults>::Unavailable;
    type Call = CallOf<K>;
    type Supervisor = K::Supervisor;

    const ONLY_FAULTS_ARE_READ: bool = true;

    fn for_program(device: Option<BorrowedFd<'_>>) -> Result<Self, Self::Unavailable> {
        Self::for_moves(device)
    }

    fn for_moves(device: Option<BorrowedFd<'_>>) -> Result<Self, Self::Unavailable> {
        Ok(SharedFaults { own: K::Faults::for_moves(device)?, frames: OnceLock::new() })
    }

    /// It is over with the server, and so are its clients.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Windows are registered in each client. Of the server's own memory the frames are registered, once, before there is any window:
    /// nobody would ever fill what else is missing.
    fn register(&self, start: usize, len: usize) -> io::Result<()> {
        if is_managed_window::<K>(start, len) {
            return Ok(());
        }
        self.frames.set((start, len)).map_err(|_| Errno::INVAL)?;
        self.own.register(start, len)
    }

    fn register_as_target(&self, start: usize, len: usize) -> io::Result<()> {
        self.own.register_as_target(start, len)
    }

    fn unregister(&self, start: usize, len: usize) -> io::Result<()> {
        if is_window::<K>(start) { Ok(()) } else { self.own.unregister(start, len) }
    }

    fn move_pages(&self, target: usize, source: usize, len: usize, holes: Holes, wake: Wake) -> Progress {
        if is_window::<K>(source) {
            moving::move_out(self.shared(), &self.own, target, source, len)
        } else if is_window::<K>(target) {
            moving::move_in(self.shared(), target, source, len, wake)
        } else if K::is_of_engine(source, len) {
            self.own.move_pages(target, source, len, holes, wake)
        } else {
            Progress { bytes: 0, stop: Some(Stop::Missing) }
        }
    }

    fn copy(&self, target: usize, source: *const u8, len: usize, wake: Wake) -> Progress {
        match self.shared().object_at(target) {
            Some(object) => moving::fill(self.shared(), &object, target, Filling::From(source), len, wake),
            None => self.own.copy(target, source, len, wake),
        }
    }

    fn zeropage(&self, start: usize, len: usize, wake: Wake) -> Progress {
        match self.shared().object_at(start) {
            Some(object) => moving::fill(self.shared(), &object, start, Filling::Zeros, len, wake),
            None => self.own.zeropage(start, len, wake),
        }
    }

    fn poison(&self, start: usize, len: usize) -> Progress {
        if is_window::<K>(start) { moving::poison(self.shared(), start, len) } else { self.own.poison(start, len) }
    }

    /// Nothing is left in common by a fork that would be copied.
    fn protect(&self, _: usize, len: usize, _: bool) -> Progress {
        Progress { bytes: len, stop: None }
    }

    fn wake(&self, start: usize, len: usize) -> io::Result<()> {
        self.shared().wake(start, start + len);
        Ok(())
    }

    /// Windows are where they are.
    fn is_changing(&self) -> bool {
        self.shared().is_forgetting()
    }

    fn is_registered(&self, start: usize, len: usize) -> Option<bool> {
        Some(is_managed_window::<K>(start, len))
    }

    fn sees_registered(&self, start: usize, len: usize) -> bool {
        is_managed_window::<K>(start, len)
    }

    fn read(&self, messages: &mut [Message]) -> io::Result<usize> {
        messages::read(self.shared(), messages)
    }

    fn wait(&self, call: &Self::Call, supervisor: &K::Supervisor, patience: Option<Duration>) -> io::Result<Heard> {
        K::wait_for_clients(self.shared().poll(), call, supervisor, patience)
    }
}

/// What of windows is in memory is what their objects have; of other memory the kernel's page table tells.
#[derive(Debug)]
pub struct SharedResidency<K: Kernel = Linux> {
    own: K::Residency,
}

impl<K: Kernel> Residency for SharedResidency<K> {
    fn open() -> io::Result<Self> {
        Ok(SharedResidency { own: K::Residency::open()? })
    }

    fn is_exact(&self) -> bool {
        self.own.is_exact()
    }

    fn shows_absence(&self) -> bool {
        self.own.shows_absence()
    }

    fn populated(&self, start: usize, end: usize, out: &mut [PopulatedRange]) -> io::Result<(usize, usize)> {
        let Some(object) = K::shared().object_at(start) else {
            return self.own.populated(start, end, out);
        };
        let end = end.min(object.end());
        let (mut at, mut count) = (start, 0);
        while at < end && count < out.len() {
            let Some(range) = object.populated(at, end)? else { return Ok((count, end)) };
            at = range.end;
            out[count] = range;
            count += 1;
        }
        Ok((count, at.min(end)))
    }

    fn has_populated(&self, start: usize, end: usize) -> io::Result<bool> {
        match K::shared().object_at(start) {
            Some(object) => Ok(object.populated(start, end.min(object.end()))?.is_some()),
            None => self.own.has_populated(start, end),
        }
    }

    fn in_common(&self, _: usize, _: usize) -> io::Result<u64> {
        Ok(0)
    }

    fn keep_lazily_freed(&self, start: usize, pages: u16) -> io::Result<u16> {
        self.own.keep_lazily_freed(start, pages)
    }
}

/// The windows of managed objects, as private memory would look.
#[derive(Debug)]
pub struct Windows<K = Linux>(PhantomData<fn() -> K>);

impl<K: Kernel> Mappings for Windows<K> {
    fn open() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn at(&mut self, _: usize) -> Option<Vma<'_>> {
        None
    }

    fn at_or_after(&mut self, _: usize) -> Option<Vma<'_>> {
        None
    }

    fn read_maps(buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        for object in K::shared().all_objects().iter().filter(|object| object.is_managed()) {
            writeln!(buffer, "{:x}-{:x} rw-p 00000000 00:00 0 ", object.start(), object.end())?;
        }
        Ok(())
    }

    fn read_smaps(buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        Ok(())
    }
}

/// What the server has: its own memory, and the pages of managed objects, as if they were private.
#[derive(Debug)]
pub struct SharedFootprint<K: Kernel = Linux> {
    own: K::Footprint,
}

impl<K: Kernel> Footprint for SharedFootprint<K> {
    fn open() -> io::Result<Self> {
        Ok(SharedFootprint { own: K::Footprint::open()? })
    }

    fn main_has_ended(&self) -> bool {
        false
    }

    fn read(&mut self) -> io::Result<(u64, u64)> {
        let objects = K::shared().all_objects();
        objects.iter().for_each(|object| object.forget_filled());
        let (resident, shared) = self.own.read()?;
        Ok((resident + K::shared().resident_pages(), shared))
    }

    fn faults() -> io::Result<u64> {
        K::Footprint::faults()
    }

    /// Its clients use its memory, not it.
    fn processor_time() -> io::Result<Duration> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// What its clients fill takes no fault of its own.
    fn sign_of_growth() -> io::Result<u64> {
        Ok(K::Footprint::sign_of_growth()?.wrapping_add(K::shared().resident_pages()))
    }

    fn by_kind() -> io::Result<Rss> {
        let own = K::Footprint::by_kind()?;
        Ok(Rss { anon_pages: own.anon_pages + K::shared().resident_pages(), ..own })
    }

    fn share_of_shmem() -> io::Result<u64> {
        K::Footprint::share_of_shmem()
    }

    fn share_of_private() -> io::Result<u64> {
        K::Footprint::share_of_private()
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags};
    use uswap_engine::group::{Group, GroupConfig};
    use uswap_sys::private_memory::{self, Purpose};
    use uswap_sys::shared_file::SharedFile;

    use super::*;
    use crate::object::Object;

    #[test]
    #[allow(unsafe_code)]
    fn what_takes_the_place_of_a_window_is_not_registered() {
        const LEN: usize = 16 * PAGE_SIZE;
        let (group, _fd) = Group::create(&GroupConfig::default()).unwrap();
        let shared = match Shared::begin(None, Box::leak(Box::new(group))) {
            Ok(shared) => shared,
            Err(why) => return println!("skipped: {why}"),
        };
        let faults = <SharedFaults>::for_moves(None).unwrap();
        let frames = private_memory::map(LEN, Purpose::Frames).unwrap();
        faults.register(frames.start(), LEN).unwrap();
        let file = SharedFile::new(LEN).unwrap().as_fd().try_clone_to_owned().unwrap();
        let object = shared.add_object(Object::new(file, &shared.filler).unwrap());
        let window = object.start();
        assert!(faults.register(window, LEN).is_err(), "nobody knows yet who has it mapped");
        object.manage(true);
        assert!(faults.register(window, LEN).is_ok() && faults.register(window, 2 * LEN).is_err());
        object.manage(false);
        assert!(faults.register(window, LEN).is_err());
        shared.remove_object(&object);
        drop(object);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where nothing else is.
        let place = unsafe { rustix::mm::mmap_anonymous(window as *mut _, LEN, access, flags) }.unwrap();
        assert!(faults.register(window, LEN).is_err());
        // SAFETY: memory of this test's; were it registered, this would wait for ever.
        assert_eq!(unsafe { place.cast::<u8>().read_volatile() }, 0);
        // SAFETY: mapped above.
        unsafe { rustix::mm::munmap(place, LEN) }.unwrap();
    }
}
