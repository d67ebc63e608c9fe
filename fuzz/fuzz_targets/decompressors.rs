//! libFuzzer's entry to [`uswap_fuzz::decompressors`].

#![no_main]

use uswap_fuzz::{Canary, decompressors};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| decompressors::run(bytes, Canary::of_the_environment()));
