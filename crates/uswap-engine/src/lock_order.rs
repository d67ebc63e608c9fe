//! The order of the engine's locks: which may be taken while another is held.
//!
//! Each lock is made with its [`Level`]. A thread takes a lock only while all that it holds are of lower levels; so threads never
//! wait for each other in a circle. Where the system checks it ([`System::CHECKS_LOCKS`]: on the model, and in builds with debug
//! assertions), a thread that does otherwise ends with both names. Elsewhere that costs nothing.
//!
//! What has a lock of std's for a few lines of its own (an area, the journal of a fork) takes no other meanwhile.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use uswap_system::System;
use uswap_system::sync;

/// Locks, the outer first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Level {
    /// [`Phase`](crate::phase::Phase): passed by every thread while it may change the books; shut by a fork, which needs them
    /// still.
    Running,
    /// [`Content::swapoff`](crate::content::Content): by whoever empties an area, while he asks the books what is next.
    Swapoff,
    /// [`Memory::gate`](crate::memory::Memory): passed while pages are filled or moved; shut while messages of the userfaultfd
    /// are read and events applied.
    Gate,
    /// [`Window::seen`](crate::fork_journal::Window): what has been read in the window of a fork.
    Window,
    /// [`Memory::order`](crate::memory::Memory): events that were read.
    Order,
    /// [`Content::heirs`](crate::content::Content): what children may read.
    Heirs,
    /// [`Memory::trash`](crate::memory::Memory): where free frames are given back.
    Trash,
    /// [`Books`](crate::books::Books): not held across I/O, a copy or a compression.
    Books,
    /// [`Books::say_lost`](crate::books::Books::say_lost): a leaf.
    Told,
    /// [`Content::pool`](crate::content::Content): a leaf.
    Pool,
}

/// A level that this thread holds until this is dropped.
struct Held<S: System>(Level, PhantomData<fn() -> S>);

impl<S: System> Held<S> {
    /// Before the lock is waited for.
    fn take(level: Level) -> Self {
        if S::CHECKS_LOCKS {
            S::held_locks(|held: &Cell<u32>| {
                if let Some(inner) =
                    LEVELS.into_iter().find(|other| *other >= level && held.get() >> *other as u8 & 1 == 1)
                {
                    panic!("{level:?} is taken while {inner:?} is held, which comes after it (lock_order.rs)");
                }
                held.set(held.get() | 1 << level as u8);
            });
        }
        Held(level, PhantomData)
    }
}

impl<S: System> Drop for Held<S> {
    fn drop(&mut self) {
        if S::CHECKS_LOCKS {
            S::held_locks(|held: &Cell<u32>| held.set(held.get() & !(1 << self.0 as u8)));
        }
    }
}

/// All of them, the inner first.
const LEVELS: [Level; 10] = [
    Level::Pool,
    Level::Told,
    Level::Books,
    Level::Trash,
    Level::Heirs,
    Level::Order,
    Level::Window,
    Level::Gate,
    Level::Swapoff,
    Level::Running,
];

/// A lock of a level: see [`sync::Lock`].
pub(crate) struct Lock<T, S> {
    inner: sync::Lock<T, S>,
    level: Level,
}

/// What a [`Lock`] guards, while it is held.
pub(crate) struct LockGuard<'a, T, S: System> {
    // Given back in this order.
    guard: sync::LockGuard<'a, T>,
    _held: Held<S>,
}

impl<T, S: System> Lock<T, S> {
    /// A free lock.
    pub const fn new(level: Level, value: T) -> Self {
        Lock { inner: sync::Lock::new(value), level }
    }

    /// Takes it.
    pub fn lock(&self) -> LockGuard<'_, T, S> {
        let held = Held::take(self.level);
        LockGuard { guard: self.inner.lock(), _held: held }
    }

    /// What it guards, whether or not somebody held it when a fork copied it.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T, S: System> Deref for LockGuard<'_, T, S> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, S: System> DerefMut for LockGuard<'_, T, S> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A gate of a level: see [`sync::Gate`].
pub(crate) struct Gate<S> {
    inner: sync::Gate<S>,
    level: Level,
}

/// Somebody is inside.
pub(crate) struct Passed<'a, S: System> {
    _guard: sync::Passed<'a>,
    _held: Held<S>,
}

/// It is shut.
pub(crate) struct Shut<'a, S: System> {
    _guard: sync::Shut<'a>,
    _held: Held<S>,
}

impl<S> Gate<S> {
    /// One with nobody inside.
    pub const fn new(level: Level) -> Self {
        Gate { inner: sync::Gate::new(), level }
    }
}

impl<S: System> Gate<S> {
    /// Goes inside with others.
    pub fn pass(&self) -> Passed<'_, S> {
        let held = Held::take(self.level);
        Passed { _guard: self.inner.pass(), _held: held }
    }

    /// Goes inside with others, if nobody shuts it or is about to.
    pub fn try_pass(&self) -> Option<Passed<'_, S>> {
        let held = Held::take(self.level);
        Some(Passed { _guard: self.inner.try_pass()?, _held: held })
    }

    /// Goes inside alone.
    pub fn shut(&self) -> Shut<'_, S> {
        let held = Held::take(self.level);
        Shut { _guard: self.inner.shut(), _held: held }
    }
}

#[cfg(test)]
mod tests {
    use uswap_sys::linux::Linux;

    use super::*;

    #[test]
    fn levels_are_all_there_and_inner_ones_come_first() {
        assert!(LEVELS.windows(2).all(|pair| pair[0] > pair[1]));
        assert_eq!(LEVELS.map(|level| level as u8), [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn the_right_order_goes_and_what_was_given_back_may_be_taken_again() {
        let gate = Gate::<Linux>::new(Level::Gate);
        let (books, pool) = (Lock::<_, Linux>::new(Level::Books, 1), Lock::<_, Linux>::new(Level::Pool, 2));
        for _ in 0..2 {
            let shut = gate.shut();
            let core = books.lock();
            drop(shut);
            assert_eq!(*core + *pool.lock(), 3);
            drop(core);
            assert!(gate.try_pass().is_some());
        }
        Linux::held_locks(|held: &Cell<u32>| assert_eq!(held.get(), 0));
    }

    #[test]
    #[should_panic(expected = "Gate is taken while Books is held")]
    fn a_wrong_order_is_found() {
        let (gate, books) = (Gate::<Linux>::new(Level::Gate), Lock::<_, Linux>::new(Level::Books, ()));
        let _core = books.lock();
        let _passed = gate.pass();
    }

    #[test]
    #[should_panic(expected = "Order is taken while Order is held")]
    fn a_second_lock_of_one_level_is_found() {
        let [one, other] = [(); 2].map(|()| Lock::<_, Linux>::new(Level::Order, ()));
        let _one = one.lock();
        let _other = other.lock();
    }
}
