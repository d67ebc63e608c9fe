//! Words to wait on, and locks, on any [`System`].
//!
//! None of them allocates, and all but [`Lock`] and [`Gate`] may lie in memory that a fork copies or processes share.

use std::marker::PhantomData;
use std::time::Duration;

use crate::atomic::{AtomicU32, Mutex, MutexGuard, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::{Scope, System, Waited};

/// A word that threads of one process wait on.
#[repr(transparent)]
pub struct Word<S>(AtomicU32, PhantomData<fn() -> S>);

/// A word in shared memory that several processes wait on. Zeros are one with the value 0.
#[repr(transparent)]
pub struct SharedWord<S>(AtomicU32, PhantomData<fn() -> S>);

macro_rules! flavour {
    ($name:ident, $scope:expr) => {
        impl<S> $name<S> {
            /// A word with this value.
            pub const fn new(value: u32) -> Self {
                Self(AtomicU32::new(value), PhantomData)
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
        }

        impl<S: System> $name<S> {
            /// Sleeps while the word is `expected`, at most for `timeout`.
            pub fn wait(&self, expected: u32, timeout: Option<Duration>) -> Waited {
                S::wait(&self.0, $scope, expected, timeout)
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
                S::wake(&self.0, $scope, 1);
            }

            /// Wakes all waiters.
            pub fn wake_all(&self) {
                S::wake(&self.0, $scope, i32::MAX as u32);
            }

            /// Sets it and wakes all waiters.
            pub fn store_and_wake(&self, value: u32) {
                self.store(value);
                self.wake_all();
            }
        }
    };
}

flavour!(Word, Scope::Process);
flavour!(SharedWord, Scope::Shared);

/// A lock of one word: for whatever must be usable before any constructor ran.
///
/// It is not tied to a thread: whoever knows that it is held may release it. That is what a fork needs.
pub struct RawLock<S>(Word<S>);

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_AND_WAITED_FOR: u32 = 2;

impl<S> RawLock<S> {
    /// A free lock.
    pub const fn new() -> Self {
        RawLock(Word::new(FREE))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> bool {
        self.0.atomic().compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

impl<S> Default for RawLock<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: System> RawLock<S> {
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

    /// Releases the lock. The caller holds it, or knows that whoever did is gone.
    pub fn unlock(&self) {
        if self.0.atomic().swap(FREE, Ordering::Release) == HELD_AND_WAITED_FOR {
            self.0.wake_one();
        }
    }
}

/// A thread that panics ends the process, so no lock is ever poisoned.
const SOUND: &str = "no thread panics with this lock";

/// A mutex that is waited for awake at first.
///
/// What it guards takes microseconds: a look at the books, one call of the kernel. Who goes to sleep for it pays two changes of
/// threads, and on a virtual machine an idle CPU that must be woken for tens of microseconds.
pub struct Lock<T, S>(Mutex<T>, PhantomData<fn() -> S>);

/// What a [`Lock`] guards, while it is held.
pub type LockGuard<'a, T> = MutexGuard<'a, T>;

impl<T, S> Lock<T, S> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value), PhantomData)
    }

    /// What it guards, whether or not somebody held it when a fork copied it.
    pub fn into_inner(self) -> T {
        self.0.into_inner().expect(SOUND)
    }
}

impl<T, S: System> Lock<T, S> {
    /// Takes it.
    pub fn lock(&self) -> LockGuard<'_, T> {
        S::acquire(|| self.0.try_lock().ok(), || self.0.lock().expect(SOUND))
    }
}

/// Many may be inside at a time, or one who shuts it. Waited for awake at first: std's [`RwLock`] lets new readers in while the
/// writer that it has woken is still on its way, again and again.
pub struct Gate<S>(RwLock<()>, PhantomData<fn() -> S>);

/// Somebody is inside.
pub struct Passed<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// It is shut.
pub struct Shut<'a>(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

impl<S> Gate<S> {
    /// One with nobody inside.
    pub const fn new() -> Self {
        Self(RwLock::new(()), PhantomData)
    }
}

impl<S> Default for Gate<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: System> Gate<S> {
    /// Goes inside with others.
    pub fn pass(&self) -> Passed<'_> {
        Passed(S::acquire(|| self.0.try_read().ok(), || self.0.read().expect(SOUND)))
    }

    /// Goes inside with others, if nobody shuts it or is about to.
    pub fn try_pass(&self) -> Option<Passed<'_>> {
        self.0.try_read().ok().map(Passed)
    }

    /// Goes inside alone.
    pub fn shut(&self) -> Shut<'_> {
        Shut(S::acquire(|| self.0.try_write().ok(), || self.0.write().expect(SOUND)))
    }
}
