//! An engine's words on shuttle's threads: see `uswap_system::words`. The tests are beside what they test (`words.rs` there).

use uswap_system::words::Shuttle;

use crate::host::Host;
use crate::notices::Notices;

thread_local! {
    // Tests run at the same time, each with all its threads on one of the system's.
    static NOTICES: &'static Notices<Shuttle> = Box::leak(Box::default());
}

impl Host for Shuttle {
    fn notices() -> &'static Notices<Shuttle> {
        NOTICES.with(|notices| *notices)
    }
}
