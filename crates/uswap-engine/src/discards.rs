//! The program's discards that are in the kernel.
//!
//! madvise(MADV_DONTNEED) is reported first, and takes effect when its thread has gone on; that may lose its processor in between.
//! What is found at such a place meanwhile is about to go ([`recent_discards`](uswap_core)). The wrapper of madvise counts the calls, in two
//! turns: one ends when no call is left that began in the turn before, so that after two of them every call is over that was in
//! the kernel when its report was read. A call by a system call in a program's own code is not counted: for it only time passes.

use uswap_system::atomic::{AtomicU32, Ordering::*};

/// Calls in the kernel.
#[derive(Default)]
pub struct Discards {
    /// Which turn it is: its lowest bit.
    turn: AtomicU32,
    /// How many calls of this turn, and of the one before.
    calls: [AtomicU32; 2],
}

/// A call in the kernel.
pub struct Counted<'a>(&'a AtomicU32);

impl Discards {
    pub(crate) const fn new() -> Discards {
        Discards { turn: AtomicU32::new(0), calls: [const { AtomicU32::new(0) }; 2] }
    }

    fn of_turn(&self, turn: u32) -> &AtomicU32 {
        &self.calls[turn as usize % 2]
    }

    /// The program is about to discard memory. Never waits. The turn may end meanwhile; the one after it does not.
    pub fn begin(&self) -> Counted<'_> {
        let calls = self.of_turn(self.turn.load(SeqCst));
        calls.fetch_add(1, SeqCst);
        Counted(calls)
    }

    /// The monitor: ends the turn, unless a call of the one before is in the kernel still. Whether it has.
    pub(crate) fn turn_ends(&self) -> bool {
        let turn = self.turn.load(Relaxed);
        let is_over = self.of_turn(turn.wrapping_add(1)).load(SeqCst) == 0;
        if is_over {
            self.turn.store(turn.wrapping_add(1), SeqCst);
        }
        is_over
    }

    /// The monitor: a call of the turn before has taken longer than any does. Its thread has left it by a jump out of a signal handler, or was
    /// a child of vfork that has been killed.
    pub(crate) fn give_up(&self) {
        self.of_turn(self.turn.load(Relaxed).wrapping_add(1)).store(0, SeqCst);
    }

    /// In a forked child: no call of the parent's other threads is in it.
    pub(crate) fn child_begins(&self) {
        self.calls.iter().for_each(|calls| calls.store(0, Relaxed));
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        // Not below what it was given up to.
        let _ = self.0.fetch_update(SeqCst, Relaxed, |calls| calls.checked_sub(1));
    }
}

#[cfg(all(test, uswap_words))]
mod words;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_outlives_no_two_turns() {
        let discards = Discards::new();
        let call = discards.begin();
        assert!(discards.turn_ends() && !discards.turn_ends());
        // Of the turn that has begun.
        let later = discards.begin();
        assert!(!discards.turn_ends());
        drop(call);
        assert!(discards.turn_ends() && !discards.turn_ends());
        drop(later);
        assert!(discards.turn_ends() && discards.turn_ends());
    }

    #[test]
    fn a_call_that_never_returns_is_given_up() {
        let discards = Discards::new();
        let call = discards.begin();
        assert!(discards.turn_ends() && !discards.turn_ends());
        discards.give_up();
        assert!(discards.turn_ends());
        drop(call);
        assert!(discards.turn_ends() && discards.turn_ends(), "no call is counted that is not there");
    }
}
