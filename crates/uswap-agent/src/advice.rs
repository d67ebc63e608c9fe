//! A wrapper of madvise: what the program says about its memory and fork, that it gives memory up lazily, and where it
//! wants guards.
//!
//! All advice goes to libc as it is. What concerns fork is also posted to the engine, which uses the same advice for itself
//! and must not undo the program's.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use uswap_engine::discards::Counted;
use uswap_engine::fork_advice::Advice;
use uswap_engine::host::notices;
use uswap_engine::{guard_regions, lazy_free};
use uswap_sys::{PAGE_SIZE, private_memory};

use crate::kernel;
use crate::libc_functions::libc_version;
use crate::real::{Real, Wrapper};
use crate::shared_advice;

/// `MADV_GUARD_INSTALL`, Linux 6.13.
const GUARD_INSTALL: c_int = 102;

type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

static REAL: Real = Real::new(c"madvise");

/// Looks up libc's function. Not done on the first call: allocators call madvise while they hold their locks, and the
/// loader, which looks things up, allocates while it holds its own.
pub(crate) fn prepare() {
    let _ = REAL.get();
    if libc_guards_stacks() {
        guard_regions::note();
    }
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 1] {
    [REAL.wrapper()]
}

/// Whether libc guards the stacks of threads by MADV_GUARD_INSTALL, which it calls by itself (glibc 2.42).
fn libc_guards_stacks() -> bool {
    libc_version() >= (2, 42)
}

/// As libc's, and tells the engine what concerns fork.
///
/// # Safety
/// As for madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    announce(advice);
    if matches!(advice, libc::MADV_DONTFORK | libc::MADV_DOFORK)
        && let Some(result) = advised_by_the_monitor(address as usize, len, advice == libc::MADV_DONTFORK)
    {
        return result;
    }
    if advice == libc::MADV_COLLAPSE && shared_advice::is_about_some(address as usize, len) {
        // As where the kernel makes no huge pages.
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return -1;
    }
    // SAFETY: the caller's promise.
    let result = unsafe { real_madvise(address, len, advice) };
    if advice == GUARD_INSTALL {
        // SAFETY: it has just been asked for.
        unsafe { forget_what_was_guarded(address, len, result) };
        return result;
    }
    match advice {
        libc::MADV_REMOVE if result == 0 => shared_advice::is_removed(address as usize, len),
        libc::MADV_HUGEPAGE => shared_advice::keep_from_huge_pages(address as usize, len),
        _ => {}
    }
    let posted = match advice {
        libc::MADV_DONTFORK => Advice::DontFork,
        libc::MADV_DOFORK => Advice::DoFork,
        libc::MADV_WIPEONFORK => Advice::WipeOnFork,
        _ => return result,
    };
    if is_advised(result) && !is_of_the_engine() {
        match crate::forks::is_member() {
            true => notices().advise_for_forks(posted, address as usize, len),
            // A library's constructor may run before the agent's.
            false => notices().fork_advice.note(posted),
        }
    }
    result
}

/// For shared memory that is kept from forks anyway the program's advice is only noted, by the monitor. What madvise answers, if it was so.
fn advised_by_the_monitor(start: usize, len: usize, keeps: bool) -> Option<c_int> {
    // SAFETY: errno is this thread's own.
    let (errno, before) = unsafe { (libc::__errno_location(), *libc::__errno_location()) };
    let answer = crate::shared_memory::advise_for_forks(start, len, keeps);
    // SAFETY: as above.
    unsafe { *errno = if answer.is_none() { libc::EAGAIN } else { before } };
    match answer {
        Some(true) => Some(0),
        Some(false) => None,
        // Given to the kernel, it might let a child have what nobody knows of.
        None => Some(-1),
    }
}

/// Whether the kernel has advised the range: with ENOMEM, part of it is not mapped, and the rest has been advised.
fn is_advised(result: c_int) -> bool {
    // SAFETY: errno is this thread's own.
    result == 0 || unsafe { *libc::__errno_location() } == libc::ENOMEM
}

/// The kernel has dropped what was where it has put guards, but sends no event: the books would still have it when a guard goes.
/// What was on its way back may have overwritten a guard, so guards are put there once more.
///
/// # Safety
/// The program has asked for guards in this range, with this result: no content of it that is gone can have been written since.
unsafe fn forget_what_was_guarded(address: *mut c_void, len: usize, result: c_int) {
    // SAFETY: errno is this thread's own, here and below.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: as far as the kernel came, or nowhere.
    let guard = |len| is_advised(unsafe { real_madvise(address, len, GUARD_INSTALL) });
    let guarded = match is_advised(result) {
        true => len,
        // It goes from mapping to mapping up to one that it refuses (locked, sealed, not anonymous), and leaves the guards before that.
        // If another thread unlocks that one right now, this goes further than the program's call came.
        false if (address as usize).checked_add(len).is_some() => {
            let (mut guarded, mut refused) = (0, len.div_ceil(PAGE_SIZE));
            while guarded + 1 < refused {
                let middle = guarded.midpoint(refused);
                *(if guard(middle * PAGE_SIZE) { &mut guarded } else { &mut refused }) = middle;
            }
            guarded * PAGE_SIZE
        }
        false => 0,
    };
    if guarded > 0 {
        // SAFETY: the caller's promise.
        unsafe { real_madvise(address, guarded, libc::MADV_DONTNEED) };
        guard(guarded);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Such advice is about to be given.
pub(crate) fn announce(advice: c_int) {
    if matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE)
        && notices().giving_way.is_asked_for()
        && !is_of_the_engine()
    {
        notices().giving_way.give_way();
    }
    match advice {
        // Before it is done: the memory may be adopted at this moment.
        libc::MADV_FREE => lazy_free::note(),
        GUARD_INSTALL => guard_regions::note(),
        _ => {}
    }
}

/// A call with such advice is in the kernel, for as long as what this returns.
pub(crate) fn counted(advice: c_int) -> Option<Counted<'static>> {
    matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED)
        .then(|| notices().discards.begin())
}

/// Whether the wrapper does more than hand it on.
pub(crate) fn takes_more(advice: c_int) -> bool {
    matches!(
        advice,
        GUARD_INSTALL
            | libc::MADV_REMOVE
            | libc::MADV_HUGEPAGE
            | libc::MADV_COLLAPSE
            | libc::MADV_DONTFORK
            | libc::MADV_DOFORK
            | libc::MADV_WIPEONFORK
    )
}

/// # Safety
/// As for madvise(2).
unsafe fn real_madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    let real = REAL.known();
    if real.is_null() {
        // Before the agent has started.
        // SAFETY: the caller's promise.
        return unsafe { kernel::ask(libc::SYS_madvise, [address as usize, len, advice as usize, 0, 0]) as c_int };
    }
    let _counted = counted(advice);
    // SAFETY: the symbol is libc's function of this signature.
    let real = unsafe { std::mem::transmute::<*mut c_void, Madvise>(real) };
    // SAFETY: the caller's promise.
    unsafe { real(address, len, advice) }
}

/// Whether a thread of the engine is calling: its stack is private memory. Libraries that the engine uses advise their own
/// memory through this wrapper.
pub(crate) fn is_of_the_engine() -> bool {
    let here = 0u8;
    let address = &raw const here as usize;
    private_memory::overlaps(address, address + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_sys::thread::{FileTable, spawn};

    extern "C" fn ask(answer: *mut u8) {
        // SAFETY: the test waits for this thread, and looks only then.
        unsafe { *answer = 1 + u8::from(is_of_the_engine()) };
    }

    #[test]
    fn a_thread_of_the_engine_is_told_from_the_programs() {
        let mut answer = 0;
        spawn(c"advises", 64 << 10, FileTable::Share, ask, &raw mut answer).unwrap().join();
        assert_eq!(answer, 2);
        assert!(!is_of_the_engine());
    }
}
