//! A word to wait on: the only way in which our threads and the program's wait for each other.
//!
//! Neither flavour allocates or writes `errno`. A wait may end for no reason; look at the word again.

use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use uswap_system::Scope;
use uswap_system::atomic::AtomicU32;

use crate::linux::Linux;

pub use uswap_system::Waited;

/// A word that threads of one process wait on.
pub type Word = uswap_system::sync::Word<Linux>;
/// A word in shared memory that several processes wait on.
pub type SharedWord = uswap_system::sync::SharedWord<Linux>;
/// A lock of one word: for the heap, and for whatever must be usable before any constructor ran.
pub type RawLock = uswap_system::sync::RawLock<Linux>;

fn flags(scope: Scope) -> Flags {
    match scope {
        Scope::Process => Flags::PRIVATE,
        Scope::Shared => Flags::empty(),
    }
}

pub(crate) fn wait(word: &AtomicU32, scope: Scope, expected: u32, timeout: Option<Duration>) -> Waited {
    // A duration too long for the kernel is for ever.
    let timeout = timeout.and_then(|t| futex::Timespec::try_from(t).ok());
    match futex::wait(word, flags(scope), expected, timeout.as_ref()) {
        Err(Errno::AGAIN) => Waited::Changed,
        Err(Errno::TIMEDOUT) => Waited::TimedOut,
        Ok(()) | Err(_) => Waited::Woken,
    }
}

pub(crate) fn wake(word: &AtomicU32, scope: Scope, count: u32) {
    // The only errors are about the address, and a reference is a good one.
    let _: Result<_, Errno> = futex::wake(word, flags(scope), count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    #[test]
    fn a_waiter_is_woken() {
        let word = Word::new(0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| word.wait_while(0));
            std::thread::sleep(Duration::from_millis(20));
            word.store_and_wake(5);
            assert_eq!(waiter.join().unwrap(), 5);
        });
    }

    #[test]
    fn a_wait_tells_why_it_ended() {
        let word = SharedWord::new(1);
        assert_eq!(word.wait(0, None), Waited::Changed);
        assert_eq!(word.wait(1, Some(Duration::from_millis(5))), Waited::TimedOut);
    }

    #[test]
    fn the_raw_lock_excludes() {
        struct Counter(UnsafeCell<u64>, RawLock);
        #[allow(unsafe_code)]
        // SAFETY: the counter is touched under its lock only.
        unsafe impl Sync for Counter {}
        let counter = &Counter(UnsafeCell::new(0), RawLock::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        counter.1.lock();
                        #[allow(unsafe_code)]
                        // SAFETY: the lock is held.
                        unsafe {
                            *counter.0.get() += 1
                        };
                        counter.1.unlock();
                    }
                });
            }
        });
        #[allow(unsafe_code)]
        // SAFETY: all other threads are done.
        let total = unsafe { *counter.0.get() };
        assert_eq!(total, 80_000);
    }
}
