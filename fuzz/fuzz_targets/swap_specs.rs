//! libFuzzer's entry to [`uswap_fuzz::swap_specs`].

#![no_main]

use uswap_fuzz::{Canary, swap_specs};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| swap_specs::run(bytes, Canary::of_the_environment()));
