//! mremap of a mapping of which a part is adopted.
//!
//! Linux takes a mapping that is registered in part for two, and refuses to resize or move both by one mremap (EFAULT).
//! Mappings are adopted as a whole, but what was read of them may be out of date before the registration: then an adopted
//! range ends in the middle of a mapping that has been made meanwhile. The wrapper of mremap has the monitor adopt the rest,
//! and tries again.

use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

use uswap_sys::futex::Word;

use crate::monitor::ENGINE;
use crate::post::Post;

/// A refusal of the program's own making takes so long at most.
const PATIENCE: Duration = Duration::from_millis(200);

/// Counts those who asked.
static ASKED: Word = Word::new(0);
/// Those who have been served.
static DONE: Word = Word::new(0);

/// Program thread: an mremap was refused. Waits until adopted memory does not end within a mapping; whether it is worth
/// another try.
pub fn wait(post: &Post) -> bool {
    if ENGINE.load(Acquire).is_null() {
        return false;
    }
    let mine = ASKED.atomic().fetch_add(1, AcqRel).wrapping_add(1);
    let begun = Instant::now();
    post.ring();
    loop {
        let done = DONE.load();
        if done.wrapping_sub(mine) as i32 >= 0 {
            return true;
        }
        let Some(left) = PATIENCE.checked_sub(begun.elapsed()) else { return false };
        if post.inert.load(Acquire) {
            return false;
        }
        let _ = DONE.wait(done, Some(left));
    }
}

/// Monitor: whether anybody waits, and what [`done`] is to be told then.
pub(crate) fn asked() -> Option<u32> {
    let asked = ASKED.load();
    (asked != DONE.load()).then_some(asked)
}

/// Monitor: those who had asked can go on.
pub(crate) fn done(asked: u32) {
    DONE.store_and_wake(asked);
}
