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

/// Whether the kernel can read what lies at an address, as far as its page goes. What is swapped out comes in.
///
/// It takes a look at the word when it is to change the signal mask, before it sees that the change is none that it knows. No filter of
/// system calls refuses that.
pub(crate) fn can_be_read(address: usize) -> bool {
    const NONE_KNOWN: usize = 99;
    let word = address & !(size_of::<u64>() - 1);
    // SAFETY: errno is this thread's own, here and below.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: nothing is changed.
    let answer = unsafe { ask(libc::SYS_rt_sigprocmask, [NONE_KNOWN, word, 0, size_of::<u64>(), 0]) };
    // SAFETY: as above.
    let is_fault = answer == -1 && unsafe { *libc::__errno_location() } == libc::EFAULT;
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    word != 0 && !is_fault
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_is_told_from_what_cannot() {
        let word = 0u64;
        assert!(can_be_read((&raw const word).addr()) && can_be_read((&raw const word).addr() + 7));
        assert!(!can_be_read(0) && !can_be_read(8) && !can_be_read(usize::MAX));
    }
}
