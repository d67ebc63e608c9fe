//! Locks that are waited for awake at first.
//!
//! What they guard takes microseconds: a look at the books, one call of the kernel. Who goes to sleep for them pays two
//! changes of threads, and on a virtual machine an idle CPU that must be woken for tens of microseconds; and std's
//! [`RwLock`] lets new readers in while the writer that it has woken is still on its way, again and again.

use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Looks before sleep: some 20 us.
const LOOKS: u32 = 600;

/// A thread that panics ends the process, so no lock is ever poisoned.
const SOUND: &str = "no thread panics with this lock";

/// A mutex.
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        look(|| self.0.try_lock().ok()).unwrap_or_else(|| self.0.lock().expect(SOUND))
    }

    /// What it guards, whether or not somebody held it when a fork copied it.
    pub fn into_inner(self) -> T {
        self.0.into_inner().expect(SOUND)
    }
}

/// Many may be inside at a time, or one who shuts it.
pub(crate) struct Gate(RwLock<()>);

impl Gate {
    pub const fn new() -> Self {
        Self(RwLock::new(()))
    }

    /// Goes inside with others.
    pub fn pass(&self) -> RwLockReadGuard<'_, ()> {
        look(|| self.0.try_read().ok()).unwrap_or_else(|| self.0.read().expect(SOUND))
    }

    /// Goes inside alone.
    pub fn shut(&self) -> RwLockWriteGuard<'_, ()> {
        look(|| self.0.try_write().ok()).unwrap_or_else(|| self.0.write().expect(SOUND))
    }
}

fn look<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..LOOKS {
        if let Some(found) = attempt() {
            return Some(found);
        }
        std::hint::spin_loop();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_keeps_those_inside_apart_from_who_shuts_it() {
        let (gate, count) = (Gate::new(), Lock::new((0u32, 0u32)));
        std::thread::scope(|scope| {
            for alone in [true, false, false] {
                let (gate, count) = (&gate, &count);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        if alone {
                            let _shut = gate.shut();
                            let mut count = count.lock();
                            assert_eq!(count.0, 0, "inside while the gate is shut");
                            count.1 += 1;
                        } else {
                            let _passed = gate.pass();
                            count.lock().0 += 1;
                            std::hint::spin_loop();
                            count.lock().0 -= 1;
                        }
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), (0, 2000));
    }

    #[test]
    fn who_waits_for_long_sleeps_and_gets_in() {
        let gate = Gate::new();
        let passed = gate.pass();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(gate.shut()));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiter.is_finished());
            drop(passed);
        });
    }
}
