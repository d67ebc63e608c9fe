//! A call for the writer, and what has come of it.

use std::time::Instant;

use uswap_core::tuning;
use uswap_system::System;
use uswap_system::atomic::{AtomicBool, AtomicU64, Ordering::*};
use uswap_system::sync::Word;

/// A call for the writer.
pub(crate) struct Writer<S> {
    /// There is such a thread.
    present: AtomicBool,
    /// Counts calls; the thread sleeps on it.
    calls: Word<S>,
    /// It was called, and has not come to an end.
    at_work: AtomicBool,
    /// Pages that it has stored or given back.
    pages: AtomicU64,
    /// When it began with what it does now, in milliseconds since `made`.
    begun_ms: AtomicU64,
    /// Until when it need not be called for the pool's sake, on the same clock.
    in_vain_until_ms: AtomicU64,
    made: Instant,
}

/// What the writer has done since it was last asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// It has brought the budget nearer.
    Made,
    /// It is at work.
    Awaited,
    /// None, and it has given up.
    None,
}

impl<S: System> Writer<S> {
    pub fn new() -> Writer<S> {
        Writer {
            present: AtomicBool::new(false),
            calls: Word::new(0),
            at_work: AtomicBool::new(false),
            pages: AtomicU64::new(0),
            begun_ms: AtomicU64::new(0),
            in_vain_until_ms: AtomicU64::new(0),
            made: S::now(),
        }
    }

    /// The thread is there.
    pub fn starts(&self) {
        self.present.store(true, Relaxed);
    }

    /// The writer, before it looks what there is to be done: to be told when it rests.
    pub fn heard(&self) -> u32 {
        self.calls.load()
    }

    /// The writer has come to an end, and waits for the next call after `heard`.
    pub fn rests(&self, heard: u32) {
        // In this order: a call from here on is heard below.
        self.at_work.store(false, Release);
        let _ = self.calls.wait(heard, None);
    }

    /// It has stored or given back so many pages.
    pub fn has_done(&self, pages: u64) {
        self.pages.fetch_add(pages, Relaxed);
    }

    /// Whether writes can be left to it. Its ring is a descriptor, so there is none where those are scarce.
    pub fn is_present(&self) -> bool {
        self.present.load(Relaxed)
    }

    /// There is something to write.
    pub fn call(&self) {
        if !self.at_work.swap(true, AcqRel) {
            self.begins();
            self.calls.atomic().fetch_add(1, AcqRel);
            self.calls.wake_all();
        }
    }

    /// The pool is too large. Not where there was nothing to do about it a moment ago: whoever waits would take the call for
    /// progress to come.
    pub fn call_unless_in_vain(&self) {
        if self.now_ms() >= self.in_vain_until_ms.load(Relaxed) {
            self.call();
        }
    }

    fn now_ms(&self) -> u64 {
        S::since(self.made).as_millis() as u64
    }

    /// It begins with something.
    pub fn begins(&self) {
        self.begun_ms.store(self.now_ms(), Relaxed);
    }

    /// Nothing came of it.
    pub fn was_in_vain(&self) {
        self.in_vain_until_ms.store(self.now_ms() + tuning::POOL_LEFT_ALONE.as_millis() as u64, Relaxed);
    }

    /// Whether there will be room soon: it is at work, and what it does has not taken long yet.
    pub fn is_getting_on(&self) -> bool {
        let takes_ms = self.now_ms().saturating_sub(self.begun_ms.load(Relaxed));
        self.at_work.load(Relaxed) && takes_ms < tuning::SLOW_WRITE.as_millis() as u64
    }

    /// `seen`: what this had counted before.
    pub fn progress(&self, seen: &mut u64) -> Progress {
        // In this order: what was done before it ended is seen.
        let at_work = self.at_work.load(Acquire);
        let pages = self.pages.load(Relaxed);
        match (std::mem::replace(seen, pages) != pages, at_work) {
            (true, _) => Progress::Made,
            (false, true) => Progress::Awaited,
            (false, false) => Progress::None,
        }
    }
}

#[cfg(all(test, uswap_words))]
mod words;

#[cfg(test)]
mod tests {
    use uswap_sys::linux::Linux;

    use super::*;

    #[test]
    fn progress_is_told_once_and_then_awaited_until_the_end() {
        let (writer, mut seen) = (Writer::<Linux>::new(), 0);
        assert_eq!(writer.progress(&mut seen), Progress::None);
        writer.call();
        assert_eq!(writer.progress(&mut seen), Progress::Awaited);
        writer.pages.fetch_add(3, Relaxed);
        writer.at_work.store(false, Release);
        assert_eq!(writer.progress(&mut seen), Progress::Made);
        assert_eq!(writer.progress(&mut seen), Progress::None);
    }

    #[test]
    fn a_write_that_takes_long_is_not_waited_for() {
        let mut writer = Writer::<Linux>::new();
        assert!(!writer.is_getting_on(), "it has not been called");
        writer.call();
        assert!(writer.is_getting_on());
        writer.made -= tuning::SLOW_WRITE;
        assert!(!writer.is_getting_on());
        writer.call();
        assert!(!writer.is_getting_on(), "it is still at the same");
        writer.begins();
        assert!(writer.is_getting_on());
    }

    #[test]
    fn what_was_in_vain_is_not_tried_again_at_once() {
        let mut writer = Writer::<Linux>::new();
        writer.was_in_vain();
        writer.call_unless_in_vain();
        assert_eq!(writer.calls.load(), 0);
        writer.made -= 2 * tuning::POOL_LEFT_ALONE;
        writer.call_unless_in_vain();
        assert_eq!(writer.calls.load(), 1);
    }

    #[test]
    fn a_call_while_it_is_at_work_is_none() {
        let writer = Writer::<Linux>::new();
        writer.call();
        writer.call();
        assert_eq!(writer.calls.load(), 1);
    }
}
