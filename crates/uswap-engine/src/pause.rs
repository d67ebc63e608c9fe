//! The pause of who waits for something that takes microseconds and wakes nobody.

use std::time::Duration;

use uswap_system::System;

/// How long a pause is.
const PAUSE: Duration = Duration::from_micros(20);

/// Lets the task of an event that has been read run.
pub(crate) fn pause<S: System>() {
    S::sleep(PAUSE);
}
