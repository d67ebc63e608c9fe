//! userfaultfd: registration, messages, and the ioctls that put pages where faults wait for them.
//!
//! The kernel reports a short success as a failure (`EAGAIN`, with the bytes done in an output field),
//! and a pending event the same way with a negative field. [`Progress`] is the one place where that is
//! untangled: every operation goes on until all is done or a real reason to stop is known.
//!
//! All operations on pages are fit for the fault path: no allocation, no lock, no errno.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::ops::BitOr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::PAGE_SIZE;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, opcode};

pub use uswap_system::faults::{Holes, Message, Progress, Stop, Wake};

const UFFD_API: u64 = 0xAA;
const GROUP: u8 = 0xAA;

const REGISTER_MODE_MISSING: u64 = 1 << 0;
const REGISTER_MODE_WP: u64 = 1 << 1;
const MODE_DONTWAKE: u64 = 1 << 0;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 1 << 1;

const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const FAULT_FLAG_WRITE: u64 = 1 << 0;
const FAULT_FLAG_WP: u64 = 1 << 1;

/// Below, nothing is mapped, by the usual vm.mmap_min_addr.
const FIRST_BYTE: usize = 1 << 16;
/// The last page that a process may have on x86-64.
const LAST_PAGE: usize = (1 << 47) - 2 * PAGE_SIZE;

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeRequest {
    start: u64,
    len: u64,
}

#[repr(C)]
struct ProtectRequest {
    range: RangeRequest,
    mode: u64,
}

#[repr(C)]
struct RegisterRequest {
    range: RangeRequest,
    mode: u64,
    ioctls: u64,
}

/// `uffdio_copy` and `uffdio_move` share this layout; `done` is `copy` or `move`.
#[repr(C)]
struct TransferRequest {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

/// `uffdio_zeropage`, `uffdio_continue` and `uffdio_poison` share this layout; `done` is `zeropage`, `mapped` or `updated`.
#[repr(C)]
struct FillRequest {
    range: RangeRequest,
    mode: u64,
    done: i64,
}

const IOC_NEW: Opcode = opcode::none(GROUP, 0x00);
const IOC_API: Opcode = opcode::read_write::<ApiRequest>(GROUP, 0x3F);
const IOC_REGISTER: Opcode = opcode::read_write::<RegisterRequest>(GROUP, 0x00);
const IOC_UNREGISTER: Opcode = opcode::read::<RangeRequest>(GROUP, 0x01);
const IOC_WAKE: Opcode = opcode::read::<RangeRequest>(GROUP, 0x02);
const IOC_COPY: Opcode = opcode::read_write::<TransferRequest>(GROUP, 0x03);
const IOC_ZEROPAGE: Opcode = opcode::read_write::<FillRequest>(GROUP, 0x04);
const IOC_MOVE: Opcode = opcode::read_write::<TransferRequest>(GROUP, 0x05);
const IOC_WRITEPROTECT: Opcode = opcode::read_write::<ProtectRequest>(GROUP, 0x06);
const IOC_CONTINUE: Opcode = opcode::read_write::<FillRequest>(GROUP, 0x07);
const IOC_POISON: Opcode = opcode::read_write::<FillRequest>(GROUP, 0x08);

/// A set of userfaultfd features.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(u64);

impl Features {
    /// No feature at all.
    pub const NONE: Features = Features(0);
    /// `fork` sends an event with a descriptor for the child.
    pub const EVENT_FORK: Features = Features(1 << 1);
    /// `mremap` sends an event.
    pub const EVENT_REMAP: Features = Features(1 << 2);
    /// `madvise(DONTNEED | FREE | REMOVE)` sends an event, and waits until it is read.
    pub const EVENT_REMOVE: Features = Features(1 << 3);
    /// Missing pages of shared memory are messages, too.
    pub const MISSING_SHMEM: Features = Features(1 << 5);
    /// `munmap`, and whatever else ends a mapping, sends an event.
    pub const EVENT_UNMAP: Features = Features(1 << 6);
    /// Faults raise SIGBUS instead of sending a message.
    pub const SIGBUS: Features = Features(1 << 7);
    /// A fault message says whether the page is protected ([`Uffd::protect`]).
    pub const PAGEFAULT_FLAG_WP: Features = Features(1 << 0);
    /// A fault message says which thread waits.
    pub const THREAD_ID: Features = Features(1 << 8);
    /// A fault message has the exact address, not that of its page.
    pub const EXACT_ADDRESS: Features = Features(1 << 11);
    /// Shared memory can be protected ([`Uffd::protect`]).
    pub const WP_HUGETLBFS_SHMEM: Features = Features(1 << 12);
    /// [`Uffd::poison`] works (Linux 6.6).
    pub const POISON: Features = Features(1 << 14);
    /// Write protection can be tracked without messages (Linux 6.7).
    pub const WP_ASYNC: Features = Features(1 << 15);
    /// [`Uffd::move_pages`] works (Linux 6.8).
    pub const MOVE: Features = Features(1 << 16);

    /// The set with these bits of `UFFD_FEATURE_*`.
    pub const fn from_bits(bits: u64) -> Features {
        Features(bits)
    }

    /// Both sets together.
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// Whether all of `other` is in this set.
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// What this set has and `other` lacks.
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// Whether nothing is in this set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Features {
    type Output = Features;
    fn bitor(self, other: Features) -> Features {
        self.with(other)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Features, &str); 13] = [
            (Features::PAGEFAULT_FLAG_WP, "PAGEFAULT_FLAG_WP"),
            (Features::EVENT_FORK, "EVENT_FORK"),
            (Features::EVENT_REMAP, "EVENT_REMAP"),
            (Features::EVENT_REMOVE, "EVENT_REMOVE"),
            (Features::MISSING_SHMEM, "MISSING_SHMEM"),
            (Features::EVENT_UNMAP, "EVENT_UNMAP"),
            (Features::SIGBUS, "SIGBUS"),
            (Features::THREAD_ID, "THREAD_ID"),
            (Features::EXACT_ADDRESS, "EXACT_ADDRESS"),
            (Features::WP_HUGETLBFS_SHMEM, "WP_HUGETLBFS_SHMEM"),
            (Features::POISON, "POISON"),
            (Features::WP_ASYNC, "WP_ASYNC"),
            (Features::MOVE, "MOVE"),
        ];
        let mut rest = *self;
        let mut separator = "";
        for (feature, name) in NAMES {
            if rest.contains(feature) {
                write!(out, "{separator}{name}")?;
                separator = "+";
                rest = rest.without(feature);
            }
        }
        if !rest.is_empty() {
            write!(out, "{separator}{:#x}", rest.0)?;
        } else if separator.is_empty() {
            out.write_str("none")?;
        }
        Ok(())
    }
}

/// Why there is no userfaultfd to be had.
#[derive(Debug)]
pub enum UffdUnavailable {
    /// Neither capability, sysctl, device permission nor seccomp filter lets us have one.
    NoPermission,
    /// The kernel lacks these features, or userfaultfd altogether ([`Features::NONE`]).
    NotSupported(Features),
    /// Anything else.
    Io(io::Error),
}

impl fmt::Display for UffdUnavailable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UffdUnavailable::NoPermission => out.write_str("no permission to use userfaultfd"),
            UffdUnavailable::NotSupported(lacking) if lacking.is_empty() => {
                out.write_str("the kernel has no userfaultfd")
            }
            UffdUnavailable::NotSupported(lacking) => {
                write!(out, "the kernel's userfaultfd lacks {lacking}")
            }
            UffdUnavailable::Io(error) => write!(out, "userfaultfd: {error}"),
        }
    }
}

impl std::error::Error for UffdUnavailable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            UffdUnavailable::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Errno> for UffdUnavailable {
    fn from(errno: Errno) -> UffdUnavailable {
        match errno {
            Errno::PERM | Errno::ACCESS => UffdUnavailable::NoPermission,
            Errno::NOSYS | Errno::NOTTY => UffdUnavailable::NotSupported(Features::NONE),
            other => UffdUnavailable::Io(other.into()),
        }
    }
}

fn wake_mode(wake: Wake) -> u64 {
    match wake {
        Wake::Wake => 0,
        Wake::DontWake => MODE_DONTWAKE,
    }
}

fn stop_of(errno: Errno) -> Stop {
    match errno {
        Errno::AGAIN => Stop::TryLater,
        Errno::EXIST => Stop::AlreadyThere,
        Errno::NOENT => Stop::Missing,
        Errno::BUSY => Stop::Busy,
        Errno::INVAL => Stop::Invalid,
        Errno::NOMEM => Stop::NoMemory,
        // ENOSPC was the answer before Linux 4.13.
        Errno::SRCH | Errno::NOSPC => Stop::ProcessGone,
        Errno::FAULT => Stop::Fault,
        other => Stop::Other(other.raw_os_error()),
    }
}

/// One message as the kernel writes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RawMessage {
    event: u8,
    reserved: [u8; 7],
    argument: [u64; 3],
}

const _: () = assert!(size_of::<RawMessage>() == 32);

impl RawMessage {
    /// The userfaultfd of the child that `fork` has made, which reading this message has brought into the calling thread's descriptors.
    /// To be asked once of each message.
    pub fn take_child(&self) -> Option<Uffd> {
        // SAFETY: the kernel has made the descriptor for whoever reads the message, and the caller asks once.
        (self.event == EVENT_FORK).then(|| Uffd { fd: unsafe { OwnedFd::from_raw_fd(self.argument[0] as i32) } })
    }

    /// The message in our words.
    pub fn decode(&self) -> Message {
        let [a, b, c] = self.argument;
        match self.event {
            EVENT_PAGEFAULT => Message::Fault {
                addr: b as usize,
                write: a & FAULT_FLAG_WRITE != 0,
                protected: a & FAULT_FLAG_WP != 0,
                // Only when [`Features::THREAD_ID`] is on.
                thread: (c as u32 != 0).then_some(c as u32),
            },
            EVENT_REMAP => Message::Remap { from: a as usize, to: b as usize, len: c as usize },
            EVENT_REMOVE => Message::Remove { start: a as usize, end: b as usize },
            EVENT_UNMAP => Message::Unmap { start: a as usize, end: b as usize },
            other => Message::Other(other),
        }
    }
}

/// Whether the program has made a userfaultfd of its own, with which memory may be registered.
pub static HAS_OTHERS: AtomicBool = AtomicBool::new(false);

/// `USERFAULTFD_IOC_NEW`: the argument is a word of flags, the answer a descriptor.
struct NewFromDevice {
    flags: usize,
}

// SAFETY: the opcode has no data; the kernel takes the argument as a plain integer, never as a pointer,
// and answers with a new descriptor that nobody else owns.
unsafe impl Ioctl for NewFromDevice {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        IOC_NEW
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.flags)
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the ioctl succeeded, so `out` is a descriptor made for us.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

/// A userfaultfd of this process, past its handshake.
///
/// Closing the last descriptor of it turns every missing page into zeros without a word: whoever owns
/// one of these owns the program's data.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
}

impl Uffd {
    /// Makes a descriptor, non-blocking and closed on exec, and does its handshake.
    ///
    /// `device` is an open `/dev/userfaultfd`; without it the system call is used, which wants
    /// `CAP_SYS_PTRACE` or `vm.unprivileged_userfaultfd`.
    pub fn new(device: Option<BorrowedFd<'_>>, wanted: Features) -> Result<Uffd, UffdUnavailable> {
        let uffd = Uffd { fd: Self::descriptor(device)? };
        match uffd.handshake(wanted) {
            Ok(_) => Ok(uffd),
            // A feature that the kernel does not know is an EINVAL; find out which.
            Err(Errno::INVAL) => {
                let lacking = wanted.without(Self::available(device)?);
                Err(if lacking.is_empty() {
                    UffdUnavailable::Io(Errno::INVAL.into())
                } else {
                    UffdUnavailable::NotSupported(lacking)
                })
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// The features that this kernel has, asked of a descriptor that is thrown away.
    pub fn available(device: Option<BorrowedFd<'_>>) -> Result<Features, UffdUnavailable> {
        let uffd = Uffd { fd: Self::descriptor(device)? };
        Ok(uffd.handshake(Features::NONE)?)
    }

    /// Makes one for memory that several processes share, before its handshake ([`serves_shared_memory`](Self::serves_shared_memory)).
    pub fn for_shared_memory(device: Option<BorrowedFd<'_>>) -> Result<Uffd, UffdUnavailable> {
        Ok(Uffd { fd: Self::descriptor(device)? })
    }

    /// The handshake of one that a process has made for its shared memory, by the process that serves it. Where it `tells_of_forks`, with
    /// the child's, this process needs CAP_SYS_PTRACE.
    pub fn serves_shared_memory(&self, tells_of_forks: bool) -> Result<(), UffdUnavailable> {
        let forks = if tells_of_forks { Features::EVENT_FORK } else { Features::NONE };
        let events = Features::EVENT_REMAP | Features::EVENT_UNMAP;
        let faults = Features::MISSING_SHMEM | Features::PAGEFAULT_FLAG_WP | Features::WP_HUGETLBFS_SHMEM;
        Ok(self.handshake(forks | events | faults | Features::POISON).map(|_| ())?)
    }

    /// Makes one for memory of this process's own that others have, too, and that it only fills.
    pub fn to_fill_shared_memory(device: Option<BorrowedFd<'_>>) -> Result<Uffd, UffdUnavailable> {
        Uffd::new(device, Features::MISSING_SHMEM)
    }

    /// Registers shared memory that is only filled by this.
    pub fn register_to_fill(&self, addr: usize, len: usize) -> io::Result<()> {
        self.register_as(REGISTER_MODE_MISSING, addr, len)
    }

    /// One that another process has made, past its handshake, for its own memory.
    pub fn received(fd: OwnedFd) -> Uffd {
        Uffd { fd }
    }

    /// The descriptor.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn descriptor(device: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
        let flags = rustix::mm::UserfaultfdFlags::CLOEXEC | rustix::mm::UserfaultfdFlags::NONBLOCK;
        match device {
            // SAFETY: NewFromDevice describes USERFAULTFD_IOC_NEW exactly; on another kind of file the
            // kernel answers ENOTTY and touches nothing.
            Some(device) => unsafe { rustix::ioctl::ioctl(device, NewFromDevice { flags: flags.bits() as usize }) },
            // SAFETY: a fresh descriptor has nothing registered, so it changes no memory yet; what is
            // registered later is the duty of `register`'s caller.
            None => unsafe { rustix::mm::userfaultfd(flags) },
        }
    }

    fn handshake(&self, wanted: Features) -> Result<Features, Errno> {
        let mut request = ApiRequest { api: UFFD_API, features: wanted.0, ioctls: 0 };
        // SAFETY: ApiRequest has the layout of uffdio_api, which UFFDIO_API reads and writes.
        unsafe { self.ioctl::<IOC_API, _>(&mut request)? };
        Ok(Features(request.features))
    }

    /// # Safety
    /// `T` has the layout that the ioctl `OPCODE` of userfaultfd reads and writes, and what the request
    /// asks for is sound for the memory it names.
    unsafe fn ioctl<const OPCODE: Opcode, T>(&self, request: &mut T) -> Result<(), Errno> {
        // SAFETY: the caller's promise; `request` outlives the call.
        unsafe { rustix::ioctl::ioctl(&self.fd, Updater::<OPCODE, T>::new(request)) }
    }

    /// Registers a range: from here on, a touch of a missing page of it is a message, and waits; so is a write to a page that is
    /// protected ([`protect`](Self::protect)).
    ///
    /// Whole mappings or parts of them; all private, anonymous and writable, or shared memory.
    pub fn register(&self, addr: usize, len: usize) -> io::Result<()> {
        self.register_as(REGISTER_MODE_MISSING | REGISTER_MODE_WP, addr, len)
    }

    /// Registers a range as one where pages can be moved to, and whose missing pages are the kernel's to fill as ever.
    pub fn register_as_target(&self, addr: usize, len: usize) -> io::Result<()> {
        self.register_as(REGISTER_MODE_WP, addr, len)
    }

    fn register_as(&self, mode: u64, addr: usize, len: usize) -> io::Result<()> {
        let mut request =
            RegisterRequest { range: RangeRequest { start: addr as u64, len: len as u64 }, mode, ioctls: 0 };
        // SAFETY: the layout is uffdio_register's. Registration changes no byte of memory.
        unsafe { self.ioctl::<IOC_REGISTER, _>(&mut request)? };
        Ok(())
    }

    /// Ends registration of a range: missing pages of it read as zeros from here on.
    pub fn unregister(&self, addr: usize, len: usize) -> io::Result<()> {
        let mut request = RangeRequest { start: addr as u64, len: len as u64 };
        // SAFETY: the layout is uffdio_range's. No byte that is in memory changes.
        unsafe { self.ioctl::<IOC_UNREGISTER, _>(&mut request)? };
        Ok(())
    }

    /// Moves pages, without copying: atomic per page, `src` is missing afterwards.
    ///
    /// Both ranges are private and anonymous, inside one mapping each; `dst` is registered and empty.
    /// Fault path.
    pub fn move_pages(&self, dst: usize, src: usize, len: usize, holes: Holes, wake: Wake) -> Progress {
        let mode = wake_mode(wake)
            | match holes {
                Holes::Refuse => 0,
                Holes::Allow => MOVE_MODE_ALLOW_SRC_HOLES,
            };
        go_on(len, |done| {
            let mut request = TransferRequest {
                dst: (dst + done) as u64,
                src: (src + done) as u64,
                len: (len - done) as u64,
                mode,
                done: 0,
            };
            // SAFETY: the layout is uffdio_move's. The kernel moves only into empty pages of ranges
            // registered with this descriptor, which are the registrant's to fill.
            let result = unsafe { self.ioctl::<IOC_MOVE, _>(&mut request) };
            (request.done, result)
        })
    }

    /// Allocates pages at `dst` with a copy of `len` bytes from `src`, which may be unaligned.
    ///
    /// Only missing pages are filled. `src` must not itself be missing in a range that this thread
    /// serves: the kernel would wait for us. An unreadable `src` is [`Stop::Fault`]. Fault path.
    pub fn copy(&self, dst: usize, src: *const u8, len: usize, wake: Wake) -> Progress {
        go_on(len, |done| {
            let mut request = TransferRequest {
                dst: (dst + done) as u64,
                src: (src.addr() + done) as u64,
                len: (len - done) as u64,
                mode: wake_mode(wake),
                done: 0,
            };
            // SAFETY: the layout is uffdio_copy's. The kernel only reads `src`, checks that it may, and
            // fills only missing pages of registered ranges.
            let result = unsafe { self.ioctl::<IOC_COPY, _>(&mut request) };
            (request.done, result)
        })
    }

    /// Maps the zero page at `dst`: no memory is used until the first write. Fault path.
    pub fn zeropage(&self, dst: usize, len: usize, wake: Wake) -> Progress {
        self.fill::<IOC_ZEROPAGE>(dst, len, wake_mode(wake))
    }

    /// Makes every later access to the range a SIGBUS. Missing pages only. Fault path.
    pub fn poison(&self, addr: usize, len: usize) -> Progress {
        self.fill::<IOC_POISON>(addr, len, 0)
    }

    fn fill<const OPCODE: Opcode>(&self, addr: usize, len: usize, mode: u64) -> Progress {
        go_on(len, |done| {
            let mut request = FillRequest {
                range: RangeRequest { start: (addr + done) as u64, len: (len - done) as u64 },
                mode,
                done: 0,
            };
            // SAFETY: uffdio_zeropage and uffdio_poison both have this layout, and the kernel changes
            // only missing pages of registered ranges.
            let result = unsafe { self.ioctl::<OPCODE, _>(&mut request) };
            (request.done, result)
        })
    }

    /// From here on a write to a page of the range that is there is a message, and waits; or no more, and those who wait are
    /// woken. All of the range is registered. Fault path.
    pub fn protect(&self, addr: usize, len: usize, protect: bool) -> Progress {
        let mode = if protect { WRITEPROTECT_MODE_WP } else { 0 };
        let mut request = ProtectRequest { range: RangeRequest { start: addr as u64, len: len as u64 }, mode };
        // SAFETY: the layout is uffdio_writeprotect's. No byte of memory changes.
        match unsafe { self.ioctl::<IOC_WRITEPROTECT, _>(&mut request) } {
            Ok(()) => Progress { bytes: len, stop: None },
            Err(errno) => Progress { bytes: 0, stop: Some(stop_of(errno)) },
        }
    }

    /// Wakes all threads that wait in a range; a page still missing faults again. Fault path.
    pub fn wake(&self, addr: usize, len: usize) -> io::Result<()> {
        let mut request = RangeRequest { start: addr as u64, len: len as u64 };
        // SAFETY: the layout is uffdio_range's. Waking changes no memory.
        unsafe { self.ioctl::<IOC_WAKE, _>(&mut request)? };
        Ok(())
    }

    /// Wakes all that wait, wherever: who still misses a page asks again.
    pub fn wake_all(&self) {
        // Refused only if nothing can be mapped there, and nobody waits.
        let _ = self.wake(FIRST_BYTE, LAST_PAGE - FIRST_BYTE);
    }

    /// Whether somebody still has the memory that this is for. It may outlive the process that made it: a child of vfork has
    /// it, too.
    pub fn has_memory(&self) -> bool {
        let mut request = RangeRequest { start: LAST_PAGE as u64, len: PAGE_SIZE as u64 };
        // SAFETY: the layout is uffdio_range's. Nobody registers the last page, where no mapping is placed, so nothing changes.
        let result = unsafe { self.ioctl::<IOC_UNREGISTER, _>(&mut request) };
        // The kernel looks first whether there is memory at all.
        result != Err(Errno::NOMEM)
    }

    /// Whether the program is changing its memory right now: an event is unread, or its task has not gone on yet. The
    /// kernel counts an event before memory disappears, and ends the count after the event was read; while there is one,
    /// it refuses to fill anything, an empty range included. Fault path.
    pub fn is_changing(&self) -> bool {
        let mut request = FillRequest { range: RangeRequest { start: 0, len: 0 }, mode: 0, done: 0 };
        // SAFETY: the layout is uffdio_zeropage's. An empty range is not a range, so nothing is changed.
        let result = unsafe { self.ioctl::<IOC_ZEROPAGE, _>(&mut request) };
        result.is_err_and(|errno| errno == Errno::AGAIN)
    }

    /// Whether all of a range is one anonymous mapping and registered with this descriptor, not with another, which the program
    /// may have as well; `None` while the program is changing its memory. `false` tells what was when the kernel looked, whatever
    /// is being changed: an unread event may tell why. Fault path.
    pub fn is_registered(&self, addr: usize, len: usize) -> Option<bool> {
        let mut request = FillRequest { range: RangeRequest { start: addr as u64, len: len as u64 }, mode: 0, done: 0 };
        // SAFETY: the layout is uffdio_continue's. It is for shared memory: of other memory the kernel looks at nothing but
        // the mapping, and says that the request is invalid.
        match unsafe { self.ioctl::<IOC_CONTINUE, _>(&mut request) } {
            Err(Errno::AGAIN) => None,
            // With whichever. Where it is with this one already, to register it changes nothing; the other's is refused. Asked only
            // where there may be another: what the program has mapped there since the first answer would be registered.
            Err(Errno::INVAL) => Some(!HAS_OTHERS.load(Relaxed) || self.register(addr, len).is_ok()),
            _ => Some(false),
        }
    }

    /// Whether all of a range is one anonymous mapping and registered, with whichever descriptor; `false` also where the program has one.
    /// To be asked of a descriptor without events: of one that has them the kernel tells nothing while the program is changing its
    /// memory.
    pub fn sees_registered(&self, addr: usize, len: usize) -> bool {
        !HAS_OTHERS.load(Relaxed) && self.is_registered(addr, len) == Some(true)
    }

    /// Waits until there is a message; false when the time is over or a signal came. `None` waits for
    /// ever. Fault path.
    pub fn wait_readable(&self, timeout_ms: Option<i32>) -> io::Result<bool> {
        let timeout = timeout_ms.map(|ms| Timespec {
            tv_sec: i64::from(ms.max(0) / 1000),
            tv_nsec: i64::from(ms.max(0) % 1000) * 1_000_000,
        });
        let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) if polled[0].revents().contains(PollFlags::IN) => Ok(true),
            // POLLERR: the handshake is missing, or the descriptor is blocking.
            Ok(_) => Err(Errno::BADFD.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads as many messages as there are and as fit, faults first; 0 when there is none.
    ///
    /// A wait may well end with nothing to read: another thread was faster. Fault path.
    pub fn read(&self, out: &mut [RawMessage]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let bytes = size_of_val(out);
        // SAFETY: RawMessage is plain data without padding, any bit pattern of which is a value; the
        // slice covers `out` exactly and replaces it for the time of the borrow.
        let buffer = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u8>(), bytes) };
        match rustix::io::read(&self.fd, buffer) {
            Ok(bytes) => Ok(bytes / size_of::<RawMessage>()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Writes to a page without changing it, atomically: afterwards a page that a fork once shared, and
/// shares no longer, is exclusive again and can be moved; one still shared is copied.
///
/// An atomic add of zero in Rust would not do: the compiler turns it into a fence and a read.
///
/// # Safety
/// `addr` is mapped and writable, now and during the call. The page is present, or the calling thread
/// may wait for whoever fills it: a thread that serves faults must not.
pub unsafe fn make_exclusive(addr: usize) {
    // SAFETY: the caller's promise; the instruction leaves the byte as it is, whoever else writes it.
    unsafe {
        std::arch::asm!("lock or byte ptr [{}], 0", in(reg) addr, options(nostack));
    }
}

/// Repeats `step(bytes already done)` until `total` bytes are done or it names a reason to stop.
///
/// `step` answers with the output field, which was 0 before the call, and the ioctl's result. Each
/// repetition has done at least a byte, so this ends.
fn go_on(total: usize, mut step: impl FnMut(usize) -> (i64, Result<(), Errno>)) -> Progress {
    let mut bytes = 0;
    while bytes < total {
        let (done, result) = step(bytes);
        let stop = match result {
            // What the kernel says it did, and not a byte more than was asked.
            Ok(()) | Err(Errno::AGAIN) if done > 0 => {
                bytes += (done as usize).min(total - bytes);
                continue;
            }
            // A success of nothing does not exist; not looping on it matters more than its name.
            Ok(()) => Stop::TryLater,
            Err(errno) => stop_of(errno),
        };
        return Progress { bytes, stop: Some(stop) };
    }
    Progress { bytes, stop: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_success_is_followed_to_the_real_reason() {
        let mut calls = 0;
        let progress = go_on(4 * 4096, |done| {
            calls += 1;
            match done {
                0 => (8192, Err(Errno::AGAIN)),
                8192 => (-17, Err(Errno::EXIST)),
                _ => unreachable!("nothing was asked for there"),
            }
        });
        assert_eq!(calls, 2);
        assert_eq!(progress, Progress { bytes: 8192, stop: Some(Stop::AlreadyThere) });
    }

    #[test]
    fn a_changing_address_space_means_try_later() {
        for field in [0, -11] {
            let progress = go_on(4096, |_| (field, Err(Errno::AGAIN)));
            assert_eq!(progress, Progress { bytes: 0, stop: Some(Stop::TryLater) });
        }
    }

    #[test]
    fn nothing_to_do_is_complete() {
        assert!(go_on(0, |_| unreachable!()).is_complete());
    }

    #[test]
    fn messages_are_decoded() {
        let message = |event, argument| RawMessage { event, reserved: [0; 7], argument };
        let fault = message(EVENT_PAGEFAULT, [1, 0x7000, 42]);
        assert_eq!(fault.decode(), Message::Fault { addr: 0x7000, write: true, protected: false, thread: Some(42) });
        let protected = message(EVENT_PAGEFAULT, [3, 0x7000, 42]);
        assert_eq!(protected.decode(), Message::Fault { addr: 0x7000, write: true, protected: true, thread: Some(42) });
        let unknown = message(EVENT_PAGEFAULT, [0, 0x7000, 0]);
        assert_eq!(unknown.decode(), Message::Fault { addr: 0x7000, write: false, protected: false, thread: None });
        assert_eq!(message(EVENT_REMAP, [1, 2, 3]).decode(), Message::Remap { from: 1, to: 2, len: 3 });
        assert_eq!(message(EVENT_REMOVE, [1, 2, 0]).decode(), Message::Remove { start: 1, end: 2 });
        assert_eq!(message(EVENT_UNMAP, [1, 2, 0]).decode(), Message::Unmap { start: 1, end: 2 });
        assert_eq!(message(0x13, [9, 0, 0]).decode(), Message::Other(0x13));
    }

    #[test]
    fn features_are_named() {
        let both = Features::MOVE | Features::EVENT_REMAP;
        assert_eq!(both.to_string(), "EVENT_REMAP+MOVE");
        assert_eq!(Features::NONE.to_string(), "none");
        assert_eq!(Features::from_bits(1 << 40).to_string(), "0x10000000000");
        assert!(both.contains(Features::MOVE) && !Features::MOVE.contains(both));
    }
}
