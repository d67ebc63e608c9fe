//! libFuzzer's entry to [`uswap_fuzz::messages`].

#![no_main]

use uswap_fuzz::{Canary, messages};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| messages::run(bytes, Canary::of_the_environment()));
