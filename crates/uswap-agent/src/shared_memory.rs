//! A wrapper of mmap: anonymous shared memory is a mapping of a memory file, so that it can be swapped
//! ([`shared_mapping`](uswap_engine::shared_mapping)); for files in memory, see [`named_memory`].
//!
//! All other calls go on to libc's function as they came. It is visible to programs and yet protected: what the agent itself calls is this
//! one, whatever a program calls so.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;

use uswap_sys::shared_forks;
use uswap_system::MapShared;

use crate::advice::is_of_the_engine;
use crate::libc_functions::MMAP;
use crate::locks;
use crate::real::Wrapper;
use crate::start::POST;
use crate::{named_changes, named_memory};

/// Less is not worth a descriptor of the supervisor's: 1 MiB.
const BYTES_MIN: usize = 1 << 20;
/// What a mapping may be asked for with: MAP_SHARED, MAP_SHARED_VALIDATE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_POPULATE, MAP_NONBLOCK,
/// MAP_STACK, MAP_FIXED_NOREPLACE. Not at a fixed place, where it would take that of other memory; locked memory stays where it is, and huge
/// pages have pools of their own.
const FLAGS: c_int = libc::MAP_SHARED_VALIDATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_STACK
    | libc::MAP_FIXED_NOREPLACE;

/// As libc's.
///
/// # Safety
/// As for mmap(2).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn mmap(
    start: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    naked_asm!(
        ".protected mmap",
        // Not anonymous.
        "test ecx, 0x20",
        "jz {file}",
        // Shared.
        "test ecx, 1",
        "jnz {shared}",
        "test ecx, {lock}",
        "jnz {locked}",
        "jmp {hand_on}",
        lock = const libc::MAP_LOCKED,
        file = sym map_file,
        shared = sym map_shared,
        locked = sym map_locked,
        hand_on = sym hand_on,
    )
}

/// As libc's, where it is the same as [`mmap`].
///
/// # Safety
/// As for mmap(2).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn mmap64(
    start: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    naked_asm!(".protected mmap64", "jmp {mmap}", mmap = sym mmap)
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 2] {
    ["mmap\0", "mmap64\0"].map(|name| Wrapper::named(name, &MMAP))
}

/// Hands a call on as it came: to libc's function, or to the kernel until that has been found.
#[unsafe(naked)]
unsafe extern "C" fn hand_on(
    start: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    naked_asm!(
        "mov rax, qword ptr [rip + {libcs}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov r10, rcx",
        "mov eax, 9",
        "syscall",
        "mov rdi, rax",
        "cmp rax, -4095",
        "jae {answers}",
        "ret",
        libcs = sym MMAP,
        answers = sym crate::raw_calls::as_libc_answers,
    )
}

unsafe extern "C" fn map_shared(
    start: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let may_be = len >= BYTES_MIN && flags & !FLAGS == 0 && protection & libc::PROT_EXEC == 0;
    if may_be
        && crate::forks::is_member()
        && !is_of_the_engine()
        && let Some(answer) = ask(start as usize, len, protection, flags)
    {
        return answer;
    }
    // SAFETY: the caller's promise.
    unsafe { hand_on(start, len, protection, flags, fd, offset) }
}

unsafe extern "C" fn map_locked(
    start: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let mapped = unsafe { hand_on(start, len, protection, flags, fd, offset) };
    if mapped != libc::MAP_FAILED {
        locks::lock_later_parts_on_fault(mapped, len);
    }
    mapped
}

unsafe extern "C" fn map_file(
    start: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let ask = |start: *mut c_void, flags| {
        // SAFETY: the caller's promise.
        unsafe { hand_on(start, len, protection, flags, fd, offset) }
    };
    let Some(file) = (!is_of_the_engine()).then(|| named_memory::look(fd)).flatten() else { return ask(start, flags) };
    // Where such memory is swapped, it comes to be known as any other.
    if !named_memory::may_be_swapped() {
        named_changes::is_mapped(fd, &file);
    }
    if !named_memory::are_asked_for() {
        return ask(start, flags);
    }
    // SAFETY: `ask` maps where the kernel has room, or where the caller wants it.
    unsafe { named_memory::map(start, len, protection, flags, ask) }
}

/// The program's MADV_DONTFORK (`keeps`) or MADV_DOFORK where forks are followed for the sake of shared memory. Whether that was what it was
/// about: then it has been given. `None` where the monitor does not answer.
pub(crate) fn advise_for_forks(start: usize, len: usize, keeps: bool) -> Option<bool> {
    if !shared_forks::are_followed() || !crate::forks::is_member() || is_of_the_engine() {
        return Some(false);
    }
    let wanted = MapShared::fork_advice(start, len, keeps);
    ask_monitor(wanted).map(|answer| answer == 1)
}

/// Has the monitor do something about shared memory: what it answers, `None` where it does not. errno stays.
pub(crate) fn ask_monitor(wanted: MapShared) -> Option<isize> {
    // SAFETY: errno is this thread's own, here and below.
    let errno = unsafe { *libc::__errno_location() };
    let answer = POST.shared_mappings.ask(wanted, || POST.ring(), || POST.inert.load(Relaxed));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    answer
}

/// Asks the monitor. `None` where it does not answer, or there is no memory file to be had.
fn ask(start: usize, len: usize, protection: c_int, flags: c_int) -> Option<*mut c_void> {
    let wanted = MapShared { start, len, protection: protection.cast_unsigned(), flags: flags.cast_unsigned() };
    match ask_monitor(wanted)? {
        answer if (-4095..0).contains(&answer) => {
            let error = -answer as c_int;
            // SAFETY: errno is this thread's own.
            (error != libc::ENOSYS).then(|| unsafe { *libc::__errno_location() = error }).map(|()| libc::MAP_FAILED)
        }
        answer => Some(answer as *mut c_void),
    }
}
