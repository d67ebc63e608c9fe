//! Failures on purpose, inside an agent: for tests, by the environment variable `USWAP_TEST_AGENT`.
//!
//! | value | does |
//! | --- | --- |
//! | `maps-fail-at=N` | the Nth mapping that the agent asks for is refused |
//! | `maps-fail-from=N` | that one, and all after it |
//! | `threads-fail-from=N` | the Nth thread of the agent cannot be made, nor those after it |
//! | `panic=N`, `memory=N` | at the Nth fault that a handler serves it panics, or gets no memory |
//!
//! Each process of a tree counts for itself. The first refusal is told, so that a test knows when N is beyond the last one.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The variable.
pub const VARIABLE: &str = "USWAP_TEST_AGENT";

/// Something that is counted down, and then happens.
struct Countdown {
    /// What is left; 0: it never happens, or has.
    left: AtomicU64,
    /// It goes on happening.
    forever: AtomicBool,
    /// It has happened.
    begun: AtomicBool,
}

impl Countdown {
    const fn new() -> Countdown {
        Countdown { left: AtomicU64::new(0), forever: AtomicBool::new(false), begun: AtomicBool::new(false) }
    }

    fn set(&self, at: u64, forever: bool) {
        self.left.store(at, Relaxed);
        self.forever.store(forever, Relaxed);
    }

    fn is_due(&self) -> bool {
        if self.left.load(Relaxed) == 0 {
            return self.forever.load(Relaxed) && self.begun.load(Relaxed);
        }
        let due = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) == Ok(1);
        if due {
            self.begun.store(true, Relaxed);
        }
        due
    }
}

static MAPS: Countdown = Countdown::new();
static THREADS: Countdown = Countdown::new();
static PANIC: Countdown = Countdown::new();
static MEMORY: Countdown = Countdown::new();

/// Does as the variable's value says, from here on. What is not understood is left alone.
pub fn set(value: &[u8]) {
    let Ok(text) = str::from_utf8(value) else { return };
    for part in text.split(',') {
        let Some((what, number)) = part.split_once('=') else { continue };
        let Ok(number) = number.parse() else { continue };
        match what {
            "maps-fail-at" => MAPS.set(number, false),
            "maps-fail-from" => MAPS.set(number, true),
            "threads-fail-from" => THREADS.set(number, true),
            "panic" => PANIC.set(number, false),
            "memory" => MEMORY.set(number, false),
            _ => {}
        }
    }
}

fn is_due(of: &Countdown, what: &str) -> bool {
    let before = of.begun.load(Relaxed);
    let due = of.is_due();
    if due && !before {
        crate::report::stderr_line(format_args!("uswap: test: no more {what}"));
    }
    due
}

/// Whether a mapping is to be refused.
pub(crate) fn refuses_map() -> bool {
    is_due(&MAPS, "mappings")
}

/// Whether a thread is to be refused.
pub(crate) fn refuses_thread() -> bool {
    is_due(&THREADS, "threads")
}

/// Called for each fault that a handler serves.
pub fn fault_served() {
    if PANIC.is_due() {
        panic!("a test wants it");
    }
    if MEMORY.is_due() {
        crate::heap::run_out_of_memory();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_down_happens_once_or_from_then_on() {
        let (once, forever, never) = (Countdown::new(), Countdown::new(), Countdown::new());
        once.set(3, false);
        forever.set(2, true);
        let happens = |of: &Countdown| (0..5).map(|_| u8::from(of.is_due())).collect::<Vec<_>>();
        assert_eq!(happens(&once), [0, 0, 1, 0, 0]);
        assert_eq!(happens(&forever), [0, 1, 1, 1, 1]);
        assert_eq!(happens(&never), [0; 5]);
    }
}
