//! Wrappers of the ways to a userfaultfd: that the program has one of its own is noted before it has it.
//!
//! The kernel tells that memory is registered, and not with which.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{c_int, c_long, c_ulong, c_void};

use uswap_sys::uffd::HAS_OTHERS;

use crate::raw_calls::{as_libc_answers, hand_on};
use crate::real::{Real, Wrapper};

static REAL: Real = Real::new(c"ioctl");

/// Looks up the next function of this name, a library's or libc's.
pub(crate) fn prepare() {
    let _ = REAL.get();
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 1] {
    [REAL.wrapper()]
}

/// As libc's, whose last argument is there for most requests only.
///
/// # Safety
/// As for ioctl(2).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    naked_asm!(
        "cmp esi, 0xaa00", // USERFAULTFD_IOC_NEW
        "jne 2f",
        "mov byte ptr [rip + {noted}], 1",
        "2:",
        "mov r11, qword ptr [rip + {real} + {address}]",
        "test r11, r11",
        "jz 3f",
        "jmp r11",
        // Before the agent has started.
        "3:",
        "mov eax, 16",
        "syscall",
        "mov rdi, rax",
        "jmp {answers}",
        noted = sym HAS_OTHERS,
        real = sym REAL,
        address = const Real::ADDRESS,
        answers = sym as_libc_answers,
    )
}

/// userfaultfd, by libc's `syscall`.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn made() -> c_long {
    naked_asm!(
        "mov byte ptr [rip + {noted}], 1",
        "jmp {hand_on}",
        noted = sym HAS_OTHERS,
        hand_on = sym hand_on,
    )
}
