//! Mappings of memory files in place of anonymous shared memory, made by a thread whose descriptors the program does not see.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fd::AsFd as _;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use uswap_system::{MapShared, Reply, SharedSwap, Sharing};

use crate::shared_file::SharedFile;
use crate::shared_forks::{self, has_any, process_id};
use crate::uffd::Uffd;
use crate::{huge_pages, named_memory};

const ANONYMOUS: u32 = 0x20;

/// The process that has handed over a userfaultfd for its shared memory. A forked child of it is served by another, which the fork has
/// brought; for what it maps itself it hands over one of its own.
static SHARED_BY: AtomicU32 = AtomicU32::new(0);
/// The process that has mapped some last.
static MAPPED_BY: AtomicU32 = AtomicU32::new(0);
/// This process, or one that it was forked from, has mapped some that has a name.
static HAS_NAMED: AtomicBool = AtomicBool::new(false);
/// The process for which no userfaultfd could be handed over.
static FAILED_IN: AtomicU32 = AtomicU32::new(0);
/// Where other threads move what is to be kept from forks, and it was not.
static NOT_KEPT: Mutex<Option<NotKept>> = Mutex::new(None);
/// The process whose userfaultfd has been handed over without an answer.
static UNANSWERED_IN: AtomicU32 = AtomicU32::new(0);
/// The userfaultfd that `SHARED_BY` or `UNANSWERED_IN` has handed over. In a forked child its descriptor is another file's, or none.
static OWN: Mutex<Option<Uffd>> = Mutex::new(None);

/// Hands something over for the shared-memory server.
pub type Share<'a> = &'a dyn Fn(BorrowedFd<'_>, Sharing) -> io::Result<()>;
/// Hands something over by what it is given, and waits for a while until the shared-memory server knows of it.
pub type Known<'a> = &'a dyn Fn(&dyn Fn()) -> Reply;

/// When it is tried again.
struct NotKept {
    process: u32,
    since: Instant,
    pause: Duration,
}

impl NotKept {
    const FIRST_PAUSE: Duration = Duration::from_millis(50);
    const LONGEST_PAUSE: Duration = Duration::from_secs(1);

    /// Keeps shared memory from forks of `process`, which this is, if it is time to try. Whether it is kept.
    fn keeps(process: u32, others: &mut dyn FnMut(usize, usize)) -> bool {
        let mut state = NOT_KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        // What a forked child inherits is its parent's.
        let before = state.as_ref().filter(|before| before.process == process);
        if before.is_some_and(|before| before.since.elapsed() < before.pause) {
            return false;
        }
        let pause = before.map_or(NotKept::FIRST_PAUSE, |before| (2 * before.pause).min(NotKept::LONGEST_PAUSE));
        let is_kept = shared_forks::begin(others);
        *state = (!is_kept).then(|| NotKept { process, since: Instant::now(), pause });
        is_kept
    }
}

/// How shared memory gets to its server.
pub struct Way<'a> {
    /// /dev/userfaultfd, if that is the way.
    pub device: Option<BorrowedFd<'a>>,
    /// Hands something over.
    pub share: Share<'a>,
    /// See [`Known`].
    pub known: Known<'a>,
}

fn error(errno: Errno) -> isize {
    -(errno.raw_os_error() as isize)
}

/// Maps a new memory file as `wanted`, and hands it over. Where shared memory is swapped, it is registered before anybody can use it, or,
/// where children tell of themselves, it is found out later who has it.
/// What mmap answers: an address, or an error below 0, which is ENOSYS where the kernel is to be asked for what it has instead.
pub fn map(wanted: MapShared, swap: SharedSwap, way: &Way<'_>) -> isize {
    let Ok(file) = SharedFile::new(wanted.len.next_multiple_of(crate::PAGE_SIZE)) else { return error(Errno::NOSYS) };
    let is_new = swap != SharedSwap::Off && SHARED_BY.load(Acquire) != process_id();
    let heard = if is_new { hand_over_uffd(swap, way, &mut |_, _| {}) } else { Reply::Known };
    let swap = match heard {
        Reply::Known => swap,
        // As before there was a server: it can be swapped as soon as all is kept from forks.
        Reply::NotYet if UNANSWERED_IN.load(Acquire) != process_id() => SharedSwap::Off,
        _ => return error(Errno::NOSYS),
    };
    let protection = ProtFlags::from_bits_retain(wanted.protection);
    let flags = MapFlags::from_bits_retain(wanted.flags).difference(MapFlags::from_bits_retain(ANONYMOUS));
    let start = std::ptr::with_exposed_provenance_mut(wanted.start);
    // SAFETY: what the program has asked for, without MAP_FIXED: nothing of it is replaced.
    let mapped = match unsafe { rustix::mm::mmap(start, wanted.len, protection, flags, file.as_fd(), 0) } {
        Ok(mapped) => mapped as usize,
        Err(errno) => return error(errno),
    };
    huge_pages::keep_from(mapped, wanted.len);
    MAPPED_BY.store(process_id(), Release);
    let len = wanted.len.next_multiple_of(crate::PAGE_SIZE);
    if swap == SharedSwap::ChildrenTell {
        shared_forks::keep_new(mapped, len);
    }
    if swap != SharedSwap::KernelTells {
        // Mapped first: the supervisor gives up what nobody has mapped. Where it is gone, so is the tree.
        let _ = (way.share)(file.as_fd(), Sharing::Object { start: 0 });
        return mapped as isize;
    }
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_registered = own.as_ref().is_some_and(|uffd| uffd.register(mapped, len).is_ok());
    let hand_over = || {
        let _ = (way.share)(file.as_fd(), Sharing::Object { start: mapped });
    };
    if !is_registered || (way.known)(&hand_over) != Reply::Known {
        if is_registered {
            let _ = own.as_ref().map(|uffd| uffd.unregister(mapped, len));
        }
        unmap(mapped, len);
        return error(Errno::NOSYS);
    }
    mapped as isize
}

/// What is mapped at `start` has a name, and the program does not know of it yet: where shared memory is swapped the server has to. What
/// is answered: 0, the program may use it; -EAGAIN, not yet; else below 0, never.
pub fn share_named(start: usize, is_again: bool, swap: SharedSwap, way: &Way<'_>) -> isize {
    HAS_NAMED.store(true, Release);
    // Where that is refused, it stays an attachment, which cannot be registered, and is left alone.
    let _ = named_memory::replace_attachment(start, is_again);
    // Without the kernel's word for forks, what is named is left alone.
    if swap != SharedSwap::KernelTells {
        return 0;
    }
    let is_new = SHARED_BY.load(Acquire) != process_id();
    let own = || OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let hand_over = || {
        let _ = own().as_ref().map(|uffd| (way.share)(uffd.as_fd(), Sharing::Named { start }));
    };
    let heard = if is_new { hand_over_uffd(swap, way, &mut |_, _| {}) } else { Reply::Known };
    match heard {
        Reply::Known if (way.known)(&hand_over) == Reply::Known => 0,
        Reply::Refused => error(Errno::NOMEM),
        _ => error(Errno::AGAIN),
    }
}

/// A file in memory is about to be changed by the kernel. What is answered: 0, none of it is swapped out any more; -EAGAIN, not yet so.
pub fn is_about_to_change(device: u64, number: u64, way: &Way<'_>) -> isize {
    // Each message has a descriptor with it.
    let Ok(any) = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC) else { return error(Errno::AGAIN) };
    let hand_over = || {
        let _ = (way.share)(any.as_fd(), Sharing::Changed { device, number });
    };
    if (way.known)(&hand_over) == Reply::Known { 0 } else { error(Errno::AGAIN) }
}

/// Unmaps what nobody has got.
pub fn unmap(start: usize, len: usize) {
    // SAFETY: mapped by `map`, whose answer nobody has.
    let _ = unsafe { rustix::mm::munmap(start as *mut _, len) };
}

/// Whether this process, or one that it was forked from, has shared memory that may be swapped some time.
pub fn is_mapped() -> bool {
    is_shared() || MAPPED_BY.load(Acquire) != 0 || HAS_NAMED.load(Acquire)
}

/// Whether this process, or one that it was forked from, has handed over a userfaultfd.
pub fn is_shared() -> bool {
    SHARED_BY.load(Acquire) != 0
}

/// Makes this process's userfaultfd for shared memory, and has the server know of it.
fn hand_over_uffd(swap: SharedSwap, way: &Way<'_>, others: &mut dyn FnMut(usize, usize)) -> Reply {
    let process = process_id();
    if FAILED_IN.load(Acquire) == process {
        return Reply::Refused;
    }
    // Before anything can leave.
    if swap == SharedSwap::ChildrenTell && !NotKept::keeps(process, others) {
        return Reply::NotYet;
    }
    // Nor is it tried again.
    FAILED_IN.store(process, Release);
    let own = || OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if UNANSWERED_IN.load(Acquire) != process {
        let Ok(uffd) = Uffd::for_shared_memory(way.device) else { return Reply::Refused };
        // That of a parent is no descriptor of this process's.
        std::mem::forget(own().replace(uffd));
    }
    // Not locked while it is waited: another thread may fork meanwhile, and its child would find it locked for ever.
    let hand_over = || {
        let _ = own().as_ref().map(|uffd| (way.share)(uffd.as_fd(), Sharing::Client));
    };
    let heard = (way.known)(&hand_over);
    match heard {
        Reply::Known => SHARED_BY.store(process, Release),
        // The server may have got it by the next time: it is to be the same one.
        Reply::NotYet => UNANSWERED_IN.store(process, Release),
        Reply::Refused => return heard,
    }
    FAILED_IN.store(0, Release);
    heard
}

/// Shared memory is swapped: hands over a userfaultfd, if this process has mapped some before, and nobody knows of its mappings by a fork.
/// `others`: see [`shared_forks::keep`].
pub fn share(swap: SharedSwap, way: &Way<'_>, others: &mut dyn FnMut(usize, usize)) {
    let (shared_by, mapped_by) = (SHARED_BY.load(Acquire), MAPPED_BY.load(Acquire));
    let has_named = swap == SharedSwap::KernelTells && HAS_NAMED.load(Acquire);
    if shared_by != 0 || (mapped_by == 0 && !has_named) {
        return;
    }
    // What a forked child has, it has of its parent.
    if has_named || mapped_by == process_id() || has_any() {
        hand_over_uffd(swap, way, others);
    }
}

/// In the child of a fork that was followed: has the server know of what it has. Whether it does, or has nothing.
pub fn share_in_child(way: &Way<'_>) -> bool {
    !shared_forks::is_unknown()
        || !has_any()
        || hand_over_uffd(SharedSwap::ChildrenTell, way, &mut |_, _| {}) == Reply::Known
}
