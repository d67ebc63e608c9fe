//! A word to wait on: the only way in which our threads and the program's wait for each other.
//!
//! Neither flavour allocates or writes `errno`. A wait may end for no reason; look at the word again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Somebody woke us, or a signal did, or nobody: look at the word.
    Woken,
    /// The word was not what was expected; we did not sleep.
    Changed,
    /// The time is over.
    TimedOut,
}

/// A word that threads of one process wait on.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word(AtomicU32);

/// A word in shared memory that several processes wait on.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SharedWord(AtomicU32);

macro_rules! flavour {
    ($name:ident, $flags:expr) => {
        impl $name {
            /// A word with this value.
            pub const fn new(value: u32) -> Self {
                Self(AtomicU32::new(value))
            }

            /// The word itself.
            pub fn atomic(&self) -> &AtomicU32 {
                &self.0
            }

            /// Its value.
            pub fn load(&self) -> u32 {
                self.0.load(Ordering::Acquire)
            }

            /// Sets it; wakes nobody.
            pub fn store(&self, value: u32) {
                self.0.store(value, Ordering::Release);
            }

            /// Sleeps while the word is `expected`, at most for `timeout`.
            pub fn wait(&self, expected: u32, timeout: Option<Duration>) -> Waited {
                wait(&self.0, $flags, expected, timeout)
            }

            /// Sleeps until the word is not `unwanted` any more, and gives its value.
            pub fn wait_while(&self, unwanted: u32) -> u32 {
                loop {
                    let value = self.load();
                    if value != unwanted {
                        return value;
                    }
                    self.wait(unwanted, None);
                }
            }

            /// Wakes one waiter, if there is one.
            pub fn wake_one(&self) {
                wake(&self.0, $flags, 1);
            }

            /// Wakes all waiters.
            pub fn wake_all(&self) {
                wake(&self.0, $flags, i32::MAX as u32);
            }

            /// Sets it and wakes all waiters.
            pub fn store_and_wake(&self, value: u32) {
                self.store(value);
                self.wake_all();
            }
        }
    };
}

flavour!(Word, Flags::PRIVATE);
flavour!(SharedWord, Flags::empty());

fn wait(word: &AtomicU32, flags: Flags, expected: u32, timeout: Option<Duration>) -> Waited {
    // A duration too long for the kernel is for ever.
    let timeout = timeout.and_then(|t| futex::Timespec::try_from(t).ok());
    match futex::wait(word, flags, expected, timeout.as_ref()) {
        Err(Errno::AGAIN) => Waited::Changed,
        Err(Errno::TIMEDOUT) => Waited::TimedOut,
        Ok(()) | Err(_) => Waited::Woken,
    }
}

fn wake(word: &AtomicU32, flags: Flags, count: u32) {
    // The only errors are about the address, and a reference is a good one.
    let _: Result<_, Errno> = futex::wake(word, flags, count);
}

/// A lock of one word: for the heap, and for whatever must be usable before any constructor ran.
///
/// It is not tied to a thread: whoever knows that it is held may release it. That is what a fork needs.
#[derive(Debug, Default)]
pub struct RawLock(Word);

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_AND_WAITED_FOR: u32 = 2;

impl RawLock {
    /// A free lock.
    pub const fn new() -> RawLock {
        RawLock(Word::new(FREE))
    }

    /// Takes the lock, waiting for it if need be.
    pub fn lock(&self) {
        if !self.try_lock() {
            while self.0.atomic().swap(HELD_AND_WAITED_FOR, Ordering::Acquire) != FREE {
                self.0.wait(HELD_AND_WAITED_FOR, None);
            }
        }
    }

    /// Takes the lock, waiting for it for about so long; whether it has it.
    pub fn lock_within(&self, patience: Duration) -> bool {
        self.try_lock()
            || self.0.atomic().swap(HELD_AND_WAITED_FOR, Ordering::Acquire) == FREE
            || (self.0.wait(HELD_AND_WAITED_FOR, Some(patience)) != Waited::TimedOut
                && self.0.atomic().swap(HELD_AND_WAITED_FOR, Ordering::Acquire) == FREE)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> bool {
        self.0.atomic().compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Releases the lock. The caller holds it, or knows that whoever did is gone.
    pub fn unlock(&self) {
        if self.0.atomic().swap(FREE, Ordering::Release) == HELD_AND_WAITED_FOR {
            self.0.wake_one();
        }
    }
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
