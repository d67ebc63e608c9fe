//! libFuzzer's entry to [`uswap_fuzz::control_words`].

#![no_main]

use uswap_fuzz::{Canary, control_words};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| control_words::run(bytes, Canary::of_the_environment()));
