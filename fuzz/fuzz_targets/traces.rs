//! libFuzzer's entry to [`uswap_fuzz::traces`].

#![no_main]

use uswap_fuzz::{Canary, traces};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traces::run(bytes, Canary::of_the_environment()));
