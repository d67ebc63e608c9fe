//! System calls that no function is called for: libc's `syscall` is wrapped, and comes back to those that would call it.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};

/// What the kernel answers, or -1 and errno, as libc has it.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn ask(number: c_long, arguments: [usize; 5]) -> isize {
    let [first, second, third, fourth, fifth] = arguments;
    let answer: isize;
    // SAFETY: the caller's promise; the kernel leaves all but these registers as they were.
    unsafe {
        std::arch::asm!(
            "syscall", inlateout("rax") number as isize => answer, in("rdi") first, in("rsi") second, in("rdx") third,
            in("r10") fourth, in("r8") fifth, lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    if (-4095..0).contains(&answer) {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = -answer as c_int };
        return -1;
    }
    answer
}
