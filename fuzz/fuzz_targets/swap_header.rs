//! libFuzzer's entry to [`uswap_fuzz::swap_header`].

#![no_main]

use uswap_fuzz::{Canary, swap_header};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| swap_header::run(bytes, Canary::of_the_environment()));
