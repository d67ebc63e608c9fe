//! Signals: a raw thread gets none but libc's own, and a thread that forks holds most of them back.

use std::ffi::c_int;

use super::syscall4;

/// All signals but the two that glibc sends to its threads; signal n is bit n - 1.
pub(super) const AGENT_SIGNAL_MASK: u64 = !(1 << (32 - 1) | 1 << (33 - 1));

/// Sets the calling thread's mask, and gives the old one. libc's own function would hide 32 and 33.
pub(super) fn set_signal_mask(mask: u64) -> u64 {
    change_signal_mask(libc::SIG_SETMASK, mask).unwrap_or(0)
}

fn change_signal_mask(how: c_int, mask: u64) -> Option<u64> {
    let mut old = 0u64;
    // SAFETY: rt_sigprocmask reads one mask of eight bytes and writes another.
    let result = unsafe {
        syscall4(
            libc::SYS_rt_sigprocmask,
            how as usize,
            (&raw const mask).addr(),
            (&raw mut old).addr(),
            size_of::<u64>(),
        )
    };
    result.is_ok().then_some(old)
}

/// What a thread holds back while it forks: all but what its own instructions raise, which would end it, what collectors of
/// garbage stop threads with and wait for (SIGPWR, SIGXCPU, and SIGRTMIN as the kernel and as libc count), and libc's own.
const HELD_BACK: u64 = {
    let let_through = [
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGSEGV,
        libc::SIGSYS,
        libc::SIGPWR,
        libc::SIGXCPU,
        32,
        33,
        34,
        35,
    ];
    let (mut mask, mut index) = (u64::MAX, 0);
    while index < let_through.len() {
        mask &= !(1 << (let_through[index] - 1));
        index += 1;
    }
    mask
};

/// Holds signals back in the calling thread, and gives the mask as it was; `None` if that may not be done. No handler of the
/// program's may run in a child whose memory is not served yet, nor in a thread that has a fork half done. What has no handler
/// comes at once: a key that ends or stops the program does so before there is a child, or is for both.
pub fn hold_signals_back() -> Option<u64> {
    change_signal_mask(libc::SIG_BLOCK, with_handler(HELD_BACK))
}

/// Those of `signals` for which there is a handler.
fn with_handler(signals: u64) -> u64 {
    (0..u64::BITS)
        .filter(|index| signals >> index & 1 == 1 && has_handler(index + 1))
        .fold(0, |mask, index| mask | 1 << index)
}

fn has_handler(signal: u32) -> bool {
    const IGNORED: usize = libc::SIG_IGN;
    // The kernel's own struct: the handler comes first.
    let mut action = [0usize; 4];
    // SAFETY: rt_sigaction only writes, and no more than four words.
    let asked =
        unsafe { syscall4(libc::SYS_rt_sigaction, signal as usize, 0, (&raw mut action).addr(), size_of::<u64>()) };
    asked.is_err() || action[0] > IGNORED
}

/// Ends [`hold_signals_back`].
pub fn let_signals_come(mask: Option<u64>) {
    if let Some(mask) = mask {
        let _ = change_signal_mask(libc::SIG_SETMASK, mask);
    }
}

/// In a thread whose maker [holds signals back](hold_signals_back), and had `mask` before: it begins with that. Not if its maker has
/// given it another mask meanwhile: that is what it is to have.
pub fn begin_with_signals(mask: u64) {
    const NEVER_HELD: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
    let before = mask & !NEVER_HELD;
    // Which had handlers when they were held back is not known here.
    let is_makers = |now: u64| now & before == before && now & !HELD_BACK == before & !HELD_BACK;
    if change_signal_mask(libc::SIG_BLOCK, 0).is_some_and(is_makers) {
        let_signals_come(Some(mask));
    }
}
