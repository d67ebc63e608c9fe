//! Remembers that the user wants a command to stop, so that it can clean up first.
//!
//! For commands that change the machine's state (`uswap bench`). The handler only stores the signal's
//! number; the command asks `requested` wherever it waits. A second signal changes nothing.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

static REQUESTED: AtomicI32 = AtomicI32::new(0);

extern "C" fn remember(signal: libc::c_int) {
    REQUESTED.store(signal, Ordering::Relaxed);
}

/// From here on SIGINT, SIGTERM and SIGHUP are remembered and do not end the process.
///
/// System calls that wait end with EINTR, once.
pub fn catch_termination() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: an all-zero sigaction is valid: no flags, an empty mask, the default action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = remember as extern "C" fn(libc::c_int) as usize;
        // SAFETY: `action` is filled in; `remember` stores to an atomic, which is allowed in a handler.
        if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The signal that asked us to stop, if one did.
pub fn requested() -> Option<i32> {
    match REQUESTED.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_remembered_and_does_not_end_the_process() {
        catch_termination().unwrap();
        assert_eq!(requested(), None);
        // SAFETY: raise has no preconditions; SIGHUP's handler was installed above.
        assert_eq!(unsafe { libc::raise(libc::SIGHUP) }, 0);
        assert_eq!(requested(), Some(libc::SIGHUP));
    }
}
