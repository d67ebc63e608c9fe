//! An engine's words on shuttle's threads: see `uswap_system::words`. The tests are beside what they test (`words.rs` there).

use uswap_system::words::Shuttle;

use crate::host::Host;
use crate::notices::Notices;

static NOTICES: Notices<Shuttle> = Notices::new();

impl Host for Shuttle {
    fn notices() -> &'static Notices<Shuttle> {
        &NOTICES
    }
}
